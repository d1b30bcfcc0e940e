"""Packets as bytes: one canonical little-endian layout with a checksum.

Layout:   magic, version (u16), then pose, task_state, aoi and, from version 2 on, velocity: a
          count (u16) and per robot, in the order of the uids' UTF-8 bytes, its uid and its numbers
          (f64). A text is its length (u16) and UTF-8. A predicate begins with a byte of flags, one
          per key in the order of `_TEXTS` and force. The overlay is its NumPy type as text (empty
          for none), rank (u8), sizes (u32) and entries. The end is the CRC-32 of all that (u32).
Promise:  equal packets give equal bytes; bytes that are read are checked as a decoded packet is,
          and writing them again gives the same bytes.
"""

import struct
import zlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from cadenza.comm.packets import (
    MOTION_SCHEMA_VERSION,
    ChamberCommError,
    CommPacket,
    Pose,
    TaskStatePredicate,
    empty_packet,
    require_packet,
)

if TYPE_CHECKING:
    from torch import Tensor

#: First bytes of every packet.
MAGIC: Final = b"CDZP"
#: Longest packet that is read, bytes: a thousand robots take 100 kB, the rest is room for overlays.
MAX_PACKET_BYTES: Final = 1 << 20
#: Types of an overlay's entries, as NumPy writes them.
_OVERLAY_TYPES: Final = ("<f2", "<f4", "<f8", "|i1", "<i2", "<i4", "<i8", "|u1", "|b1")
#: Text keys of a predicate, by flag 1 and 2; flag 4 is the force.
_TEXTS: Final = ("grasp_side", "object_class")
_FORCE_FLAG: Final = 4


def packet_to_bytes(packet: CommPacket) -> bytes:
    """Return the bytes of ``packet``.

    Raises:
        ChamberCommError: The packet breaks the contract, or is larger than what is read.
    """
    version = int(packet["schema_version"])
    require_packet(packet, schema_version=version)
    parts = [MAGIC, _packed("<H", version)]
    _write(parts, packet["pose"], lambda p: struct.pack("<7d", *p["xyz"], *p["quat_wxyz"]))
    _write(parts, packet["task_state"], _predicate_bytes)
    _write(parts, packet["aoi"], lambda age: struct.pack("<d", age))
    if version >= MOTION_SCHEMA_VERSION:
        _write(parts, packet.get("velocity", {}), lambda v: struct.pack("<3d", *v))
    parts.append(_overlay_bytes(packet["learned_overlay"]))
    body = b"".join(parts)
    if len(body) + 4 > MAX_PACKET_BYTES:
        raise ChamberCommError(
            f"packet_to_bytes: expected at most {MAX_PACKET_BYTES} bytes, got {len(body) + 4}."
        )
    return body + struct.pack("<I", zlib.crc32(body))


def packet_from_bytes(data: bytes) -> CommPacket:
    """Return the packet that ``data`` holds.

    Raises:
        ChamberCommError: Too long, cut short, damaged, or not what `packet_to_bytes` writes.
    """
    if len(data) > MAX_PACKET_BYTES:
        raise ChamberCommError(
            f"packet_from_bytes: expected at most {MAX_PACKET_BYTES} bytes, got {len(data)}."
        )
    body, checksum = data[:-4], data[-4:]
    if data[: len(MAGIC)] != MAGIC or checksum != struct.pack("<I", zlib.crc32(body)):
        raise ChamberCommError(
            f"packet_from_bytes: expected a packet with a matching CRC-32, got {len(data)} bytes "
            "without; they were damaged on the way or are no packet."
        )
    reader = _Reader(body, len(MAGIC))
    (version,) = reader.numbers("<H")
    packet = empty_packet(version)
    packet["pose"] = reader.by_robot(reader.pose)
    packet["task_state"] = reader.by_robot(reader.predicate)
    packet["aoi"] = reader.by_robot(lambda: reader.numbers("<d")[0])
    if version >= MOTION_SCHEMA_VERSION:
        packet["velocity"] = reader.by_robot(lambda: reader.numbers("<3d"))
    packet["learned_overlay"] = reader.overlay()
    if packet_to_bytes(packet) != data:
        raise ChamberCommError(
            "packet_from_bytes: expected the canonical form of the packet, got another; write it "
            "with packet_to_bytes."
        )
    return packet


def _packed(layout: str, *values: Any) -> bytes:
    try:
        return struct.pack(layout, *values)
    except struct.error as error:
        raise ChamberCommError(f"packet_to_bytes: {error}, got {values}.") from error


def _text(text: str) -> bytes:
    encoded = text.encode("utf-8", "surrogatepass")
    return _packed("<H", len(encoded)) + encoded


def _write(parts: list[bytes], entries: Mapping[str, Any], write: Callable[[Any], bytes]) -> None:
    parts.append(_packed("<H", len(entries)))
    uids = sorted(entries, key=lambda uid: uid.encode("utf-8", "surrogatepass"))
    parts += [_text(uid) + write(entries[uid]) for uid in uids]


def _predicate_bytes(predicate: Mapping[str, Any]) -> bytes:
    flags, parts = 0, list[bytes]()
    for bit, key in enumerate(_TEXTS):
        if key in predicate:
            flags |= 1 << bit
            parts.append(_text(predicate[key]))
    if "contact_force" in predicate:
        flags |= _FORCE_FLAG
        parts.append(struct.pack("<d", predicate["contact_force"]))
    return bytes([flags]) + b"".join(parts)


def _overlay_bytes(overlay: "Tensor | None") -> bytes:
    if overlay is None:
        return _text("")
    try:
        array: np.ndarray[Any, Any] = overlay.detach().cpu().contiguous().numpy()
        kind = array.dtype.newbyteorder("<").str
    except TypeError:  # a type that NumPy does not have
        array, kind = np.zeros(0), str(overlay.dtype)
    if kind not in _OVERLAY_TYPES:
        raise ChamberCommError(
            f"packet_to_bytes: expected an overlay of type {', '.join(_OVERLAY_TYPES)}, got "
            f"{kind}; convert it."
        )
    sizes = _packed(f"<B{array.ndim}I", array.ndim, *array.shape)
    return _text(kind) + sizes + array.astype(kind, copy=False).tobytes()


class _Reader:
    """Reads a packet's body from front to back; what is cut short is a `ChamberCommError`."""

    def __init__(self, body: bytes, start: int) -> None:
        self._body, self._at = body, start

    def take(self, count: int) -> bytes:
        taken = self._body[self._at : self._at + count]
        if len(taken) != count:
            raise ChamberCommError("packet_from_bytes: expected more bytes, got the packet's end.")
        self._at += count
        return taken

    def numbers(self, layout: str) -> tuple[Any, ...]:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))

    def text(self) -> str:
        (length,) = self.numbers("<H")
        try:
            return self.take(length).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise ChamberCommError(f"packet_from_bytes: expected UTF-8, got {error}.") from error

    def by_robot(self, read: Callable[[], Any]) -> dict[str, Any]:
        (count,) = self.numbers("<H")
        return {self.text(): read() for _ in range(count)}

    def pose(self) -> Pose:
        values = self.numbers("<7d")
        return Pose(xyz=values[:3], quat_wxyz=values[3:])

    def predicate(self) -> TaskStatePredicate:
        (flags,) = self.numbers("<B")
        content: dict[str, Any] = {
            key: self.text() for bit, key in enumerate(_TEXTS) if flags & 1 << bit
        }
        if flags & _FORCE_FLAG:
            (content["contact_force"],) = self.numbers("<d")
        return cast("TaskStatePredicate", content)

    def overlay(self) -> "Tensor | None":
        kind = self.text()
        if not kind:
            return None
        if kind not in _OVERLAY_TYPES:
            raise ChamberCommError(f"packet_from_bytes: overlay of unknown type {kind!r}.")
        import torch

        (rank,) = self.numbers("<B")
        sizes = self.numbers(f"<{rank}I")
        count = int(np.prod([int(size) for size in sizes], dtype=object))
        entries = np.frombuffer(self.take(count * np.dtype(kind).itemsize), dtype=kind)
        return torch.as_tensor(entries.reshape(sizes).copy())
