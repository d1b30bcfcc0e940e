"""What a run survived, in a file of its own: ``incidents.jsonl`` beside the events.

The events of a disturbed run equal those of an undisturbed one; takeovers, adopted jobs, killed
attempts, stops and resumptions are told here. A line may be lost or repeated by a kill; on a full
disk, which the run itself may outlast, it stands in the log alone.
"""

import json
import logging
import time
from pathlib import Path
from typing import Any

from cadenza.core.files import make_folder
from cadenza.loop.jobs.reports import Incident

#: Name of the file in the folder of a run.
INCIDENTS_FILE = "incidents.jsonl"
_logger = logging.getLogger(__name__)


class IncidentLog:
    """Appends incidents to a run's file."""

    def __init__(self, folder: Path) -> None:
        """Append below ``folder``, the run's own."""
        self._path = folder / INCIDENTS_FILE

    def note(self, kind: str, message: str, **details: Any) -> None:
        """Append an incident; what cannot be written is told in the log alone.

        Args:
            kind: What happened.
            message: In one sentence.
            details: Further facts that JSON can express.
        """
        line = {"ts": time.time(), "kind": kind, "message": message, **details}
        try:
            make_folder(self._path.parent)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, allow_nan=False) + "\n")
        except OSError as error:  # a run that survives a full disk must not end of telling so
            _logger.warning("%s: %r is not noted there: %s", self._path, message, error)

    def note_job(self, incident: Incident) -> None:
        """Append what a runner tells of a job."""
        self.note(
            incident.kind,
            incident.message,
            cycle=incident.key.cycle,
            stage=incident.key.stage,
            attempt=incident.attempt,
        )
