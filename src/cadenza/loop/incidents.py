"""What a run survived, in a file of its own beside the events; one JSON object a line.

The events of a disturbed run equal those of an undisturbed one; takeovers, adopted jobs, killed
attempts, stops, resumptions and removed files are noted here. A kill may lose or repeat a line.
"""

import json
import logging
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from cadenza.core.errors import IntegrityError
from cadenza.core.files import make_folder
from cadenza.core.strict_json import parse_json_object

#: File in the folder of a run.
INCIDENTS_FILE: Final = "incidents.jsonl"

_logger = logging.getLogger(__name__)


class IncidentLog:
    """Appends to the incidents of the run of a folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / INCIDENTS_FILE

    def note(self, kind: str, message: str, **details: Any) -> None:
        """Append an incident; if the disk refuses it, only the log tells."""
        line = {"ts": time.time(), "kind": kind, "message": message, **details}
        try:
            make_folder(self._path.parent)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, allow_nan=False) + "\n")
        except OSError as error:
            _logger.warning("%s: %r is not noted there: %s", self._path, message, error)


def incidents_of(folder: Path) -> list[dict[str, Any]]:
    """Return what a run survived, in order; lines that a kill or a full disk cut are left out."""
    try:
        lines = (folder / INCIDENTS_FILE).read_bytes().splitlines()
    except OSError:
        return []
    found: list[dict[str, Any]] = []
    for line in lines:
        with suppress(IntegrityError):
            found.append(parse_json_object(line, source=INCIDENTS_FILE))
    return found


def who_stopped(folder: Path) -> str | None:
    """Return who asked a run to stop since it was last resumed, and why; None if nobody said."""
    for one in reversed(incidents_of(folder)):
        if one.get("kind") == "stop_asked":
            return f"{one.get('by') or 'somebody'} asked for it: {one.get('message')}".rstrip(".")
        if one.get("kind") in ("stopped", "resume_asked", "resumed"):
            return None
    return None
