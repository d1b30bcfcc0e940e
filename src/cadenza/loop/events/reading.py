"""Reading an event log while its writer works, by byte offset."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from cadenza.core.errors import InputError, IntegrityError
from cadenza.core.strict_json import parse_json_object
from cadenza.loop.events.event import MAX_PAYLOAD_BYTES

#: Longest line we take for an event, bytes: the longest payload and its envelope.
_MAX_LINE_BYTES: Final = MAX_PAYLOAD_BYTES + (1 << 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPage:
    """Some events of a log.

    Attributes:
        events: Lines as JSON objects, in order.
        next_offset: Byte to go on from.
        skipped: Finished lines among them that are no JSON objects.
    """

    events: tuple[dict[str, Any], ...]
    next_offset: int
    skipped: int = 0


def read_events(path: Path, offset: int = 0, limit: int = 200) -> EventPage:
    """Return the finished lines of a log from a byte offset on.

    A line without its line end is being written, or was torn by a kill: it is left for later.

    Args:
        path: The log; one that does not exist yet has no events.
        offset: ``next_offset`` of the page before, or 0.
        limit: Most events to return, > 0.

    Raises:
        InputError: ``limit`` or ``offset`` is out of range.
    """
    if limit < 1 or offset < 0:
        raise InputError(
            f"read_events: expected offset >= 0 and limit > 0, got {offset} and {limit}."
        )
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return EventPage(events=(), next_offset=offset)
    events: list[dict[str, Any]] = []
    skipped = 0
    with file:
        file.seek(offset)
        while len(events) < limit and (line := _finished_line(file)) is not None:
            offset = file.tell()
            try:
                events.append(parse_json_object(line, source=str(path)))
            except IntegrityError:
                skipped += 1
    return EventPage(events=tuple(events), next_offset=offset, skipped=skipped)


def _finished_line(file: BinaryIO) -> bytes | None:
    """Return the next line, cut if overlong; None if it is not finished."""
    line = part = file.readline(_MAX_LINE_BYTES)
    while part and not part.endswith(b"\n"):
        part = file.readline(_MAX_LINE_BYTES)
    return line if part else None
