"""Weights from a trainer to all producers, through a file without a name.

Header:  version, bytes of the weights, first 16 bytes of their BLAKE2b: 32 bytes.
A reader that meets a write in progress sees a wrong digest and keeps its weights until the next
look.
"""

import os
import struct
from collections.abc import Mapping
from hashlib import blake2b
from multiprocessing import reduction
from typing import Any, Final, cast

from cadenza.core.errors import StorageError
from cadenza.core.payloads import deserialise, serialise
from cadenza.stream.shared_file import SentDescriptor, close_all, memory_folder, open_unnamed

_HEADER: Final = struct.Struct("<qq16s")


class PolicyBoard:
    """Holds the newest weights; the file grows with them and ends with its last process."""

    def __init__(self, descriptor: int | None = None) -> None:
        """Open a board; ``descriptor`` is one that another process opened."""
        self._opened = [] if descriptor is None else [descriptor]
        if descriptor is None:
            open_unnamed(memory_folder(), self._opened)
        self._descriptor = self._opened[0]

    def __getstate__(self) -> dict[str, Any]:
        """Return what a new process needs; only multiprocessing may ask."""
        return {"descriptor": reduction.DupFd(self._descriptor)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open the board in a new process."""
        self.__init__(cast("SentDescriptor", state["descriptor"]).detach())

    def __del__(self) -> None:
        """Give the file free."""
        close_all(getattr(self, "_opened", []))

    def write(self, version: int, weights: Mapping[str, Any]) -> None:
        """Replace the weights by those of a larger version, see `core.payloads.serialise`.

        Raises:
            StorageError: There is no room.
            CheckpointError: A value of another type.
        """
        data = serialise(weights)
        digest = blake2b(data, digest_size=16).digest()
        try:
            os.posix_fallocate(self._descriptor, 0, _HEADER.size + len(data))
            _write_all(self._descriptor, data, _HEADER.size)
            _write_all(self._descriptor, _HEADER.pack(version, len(data), digest), 0)
        except OSError as error:
            raise StorageError(
                f"publish_policy: expected room for {len(data)} bytes in shared memory, got: "
                f"{error}; make the buffer or the network smaller."
            ) from error

    def read(self) -> tuple[int, dict[str, Any]] | None:
        """Return version and weights, None while there are none or they are being written."""
        header = os.pread(self._descriptor, _HEADER.size, 0)
        if len(header) < _HEADER.size:
            return None
        version, size, digest = _HEADER.unpack(header)
        data = _read_all(self._descriptor, size, _HEADER.size)
        if not version or blake2b(data, digest_size=16).digest() != digest:
            return None
        return version, deserialise(data, max_bytes=2 * size + 4096)


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
