"""Weights from a trainer to all producers, through a file without a name.

Every process that publishes has a region of its own, so that none waits for another; the latest
version counts.

Header:  version, bytes of the weights, first 16 bytes of their BLAKE2b: 32 bytes, and so in each
         region.
A reader that meets a write in progress sees a wrong digest and keeps its weights until the next
look.
"""

import os
import struct
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

from cadenza.core.errors import StorageError
from cadenza.core.payloads import deserialise, serialise
from cadenza.stream.layout import MAX_CONSUMERS
from cadenza.stream.shared_file import ThreadLock, UnnamedFile

_HEADER: Final = struct.Struct("<qq16s")
#: Distance of two regions, so that all lie within the largest file of ext4; what nobody wrote takes
#: no memory.
_REGION_BYTES: Final = 2**36


class PolicyBoard(UnnamedFile):
    """Holds the newest weights; the file grows with them and ends with its last process."""

    def __init__(self, descriptor: int | None = None) -> None:
        """Open a board; ``descriptor`` as of `UnnamedFile`."""
        super().__init__(descriptor)
        self._turn = ThreadLock()

    def write(self, version: int, weights: Mapping[str, Any], row: int = 0) -> None:
        """Replace the weights of a process, which has ``row`` in the counters, by a later version.

        See `core.payloads.serialise` for what weights may be.

        Raises:
            StorageError: There is no room.
            CheckpointError: A value of another type.
        """
        data = serialise(weights)
        digest, begin = blake2b(data, digest_size=16).digest(), row * _REGION_BYTES
        try:
            with self._turn.here():
                os.posix_fallocate(self._descriptor, begin, _HEADER.size + len(data))
                _write_all(self._descriptor, data, begin + _HEADER.size)
                _write_all(self._descriptor, _HEADER.pack(version, len(data), digest), begin)
        except OSError as error:
            raise StorageError(
                f"publish_policy: expected room for {len(data)} bytes in shared memory, got: "
                f"{error}; make the buffer or the network smaller."
            ) from error

    def read(self) -> tuple[int, dict[str, Any]] | None:
        """Return the latest version that is not being written, and its weights, None if none is."""
        headers: list[tuple[int, int, bytes, int]] = []
        for begin in range(0, MAX_CONSUMERS * _REGION_BYTES, _REGION_BYTES):
            header = os.pread(self._descriptor, _HEADER.size, begin)
            if len(header) == _HEADER.size:
                headers.append((*_HEADER.unpack(header), begin + _HEADER.size))
        for version, size, digest, begin in sorted(headers, reverse=True):
            data = _read_all(self._descriptor, size, begin)
            if version and blake2b(data, digest_size=16).digest() == digest:
                return version, deserialise(data, max_bytes=2 * size + 4096)
        return None


def _write_all(descriptor: int, data: bytes, place: int) -> None:
    written = 0
    while written < len(data):
        written += os.pwrite(descriptor, data[written:], place + written)


def _read_all(descriptor: int, size: int, place: int) -> bytes:
    parts: list[bytes] = []
    read = 0
    while read < size:
        part = os.pread(descriptor, size - read, place + read)
        if not part:
            break
        parts.append(part)
        read += len(part)
    return b"".join(parts)
