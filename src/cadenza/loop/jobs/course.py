"""How a job came to its present attempt: ``course.json`` beside the files of the attempt.

A runner writes it as it starts an attempt. It tells what this attempt alone has done, and how often
in a row the command was killed without getting further.
"""

import logging
from typing import Final

from pydantic import Field, ValidationError

from cadenza.core.errors import IntegrityError
from cadenza.core.files import atomic_write_text
from cadenza.core.strict_json import parse_json_object
from cadenza.loop.contracts.records import Rate, Record
from cadenza.loop.jobs.attempt_files import AttemptFolder
from cadenza.loop.jobs.outcomes import Outcome

_logger = logging.getLogger(__name__)
_FILE: Final = "course.json"


class Course(Record):
    """What was when an attempt began.

    Attributes:
        attempt: Number of the attempt.
        done: Share of the job that it goes on from; None if nobody knows.
        failed: Earlier attempts that failed; the others were interrupted.
        kills: Times in a row that the command alone was killed without getting further.
        last: Why the attempt before did not do the job; empty for the first one.
    """

    attempt: int = Field(ge=0)
    done: Rate | None = None
    failed: int = Field(default=0, ge=0)
    kills: int = Field(default=0, ge=0)
    last: str = ""

    def kills_after(self, outcome: Outcome, kept: float | None) -> int:
        """Return how often in a row the command was killed, this attempt included.

        Args:
            outcome: What the attempt came to.
            kept: Share of the job that is done after it; None if nobody knows.
        """
        if kept is not None and self.done is not None and kept > self.done:
            return 0
        return self.kills + int(outcome.killed_alone)


def read_course(folder: AttemptFolder) -> Course | None:
    """Return how the job came to its present attempt; None if nobody said so, or readably."""
    path = folder.path / _FILE
    try:
        return Course.model_validate(parse_json_object(path.read_bytes(), source=str(path)))
    except FileNotFoundError:
        return None
    except (IntegrityError, ValidationError) as error:  # it only informs; the store decides
        _logger.warning("%s: expected how a job has gone, got '%s'", path, error)
        return None


def write_course(folder: AttemptFolder, course: Course) -> None:
    """Say how the job came to an attempt; the caller holds the lock."""
    atomic_write_text(folder.path / _FILE, course.model_dump_json())
