"""A file of lines with one writer at a time, whose finished lines survive a kill or power cut.

Events are read from it, by byte offset, while its writer works.
"""

import fcntl
import os
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from cadenza.core.errors import InputError, IntegrityError
from cadenza.core.files import fsync_folder, make_folder
from cadenza.core.strict_json import parse_json_object
from cadenza.loop.errors import EventLogError, EventLogHeldError
from cadenza.loop.events.event import MAX_PAYLOAD_BYTES

#: Bytes read at once while looking for a line end from the back.
_BLOCK_BYTES: Final = 1 << 16
#: Seconds we wait for another writer: a killed one needs a moment to let go.
LOCK_WAIT_S: Final = 5.0


class LogFile:
    """Appends whole lines; a line that a killed writer left half is cut off at opening."""

    def __init__(self, path: Path) -> None:
        """Open or create the file and own it until `close`.

        Raises:
            EventLogHeldError: Another writer owns it.
            EventLogError: The file system refused.
        """
        self._path = path
        try:
            make_folder(path.parent)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            self.close = weakref.finalize(self, os.close, self._descriptor)
            self._own()
            size = os.fstat(self._descriptor).st_size
            self._length = self._line_end_before(size)
            if self._length < size:
                os.ftruncate(self._descriptor, self._length)
                os.fsync(self._descriptor)
            fsync_folder(path.parent)
        except EventLogError:
            raise
        except OSError as error:
            raise self._failure("open this log", error) from error

    def last_line(self) -> bytes | None:
        """Return the last line with its line end; None if the file is empty."""
        if self._length == 0:
            return None
        start = self._line_end_before(self._length - 1)
        return os.pread(self._descriptor, self._length - start, start)

    def append(self, lines: bytes) -> None:
        """Append finished lines; they are durable when this returns.

        Raises:
            EventLogError: The file system refused; the lines before stay intact.
        """
        written = 0
        try:
            while written < len(lines):
                place = self._length + written
                written += os.pwrite(self._descriptor, lines[written:], place)
            os.fsync(self._descriptor)
        except OSError as error:
            with suppress(OSError):  # the next lines overwrite what cannot be cut off
                os.ftruncate(self._descriptor, self._length)
            raise self._failure("append an event", error) from error
        self._length += len(lines)

    def _own(self) -> None:
        deadline = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() < deadline:
                    time.sleep(0.02)
                    continue
                self.close()
                raise EventLogHeldError(
                    f"{self._path}: expected to own this log, got a lock held by another writer; "
                    "see that no other process works on the run, and close other event buses of "
                    "this log."
                ) from error
            return

    def _line_end_before(self, end: int) -> int:
        """Return the offset behind the last line end before byte ``end``; 0 if there is none."""
        while end > 0:
            start = max(0, end - _BLOCK_BYTES)
            found = os.pread(self._descriptor, end - start, start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
        return 0

    def _failure(self, wish: str, error: OSError) -> EventLogError:
        return EventLogError(
            error.errno,
            f"{self._path}: expected to {wish}, got '{error.strerror}'; free space or choose "
            "another folder, then resume (earlier lines are intact)",
        )


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
