import struct
import zlib

import pytest
import torch

from cadenza.comm import ChamberCommError, packet_from_bytes, packet_to_bytes
from cadenza.comm.codec import MAX_PACKET_BYTES


def packet(**fields):
    sound = {"schema_version": 1, "pose": {}, "task_state": {}, "aoi": {}, "learned_overlay": None}
    return sound | fields


def sealed(body):
    return body + struct.pack("<I", zlib.crc32(body))


def test_layout_is_the_documented_one():
    pose = {"xyz": (1.0, -2.0, 0.5), "quat_wxyz": (0.0, 1.0, 0.0, 0.0)}
    said = packet(
        pose={"é": pose},
        task_state={"b": {"object_class": "cup", "contact_force": 2.0}},
        aoi={"é": 3.0, "b": 0.0},
    )
    body = (
        b"CDZP\x01\x00"
        + (b"\x01\x00" + b"\x02\x00" + "é".encode())
        + struct.pack("<7d", 1.0, -2.0, 0.5, 0.0, 1.0, 0.0, 0.0)
        + (b"\x01\x00" + b"\x01\x00b" + b"\x06" + b"\x03\x00cup" + struct.pack("<d", 2.0))
        + (b"\x02\x00" + b"\x01\x00b" + struct.pack("<d", 0.0))
        + (b"\x02\x00" + "é".encode() + struct.pack("<d", 3.0))
        + b"\x00\x00"
    )
    assert packet_to_bytes(said) == sealed(body)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool])
def test_overlay_keeps_type_shape_and_entries(dtype):
    overlay = torch.arange(6).reshape(2, 3).to(dtype)
    read = packet_from_bytes(packet_to_bytes(packet(learned_overlay=overlay)))["learned_overlay"]
    assert read.dtype is dtype
    assert torch.equal(read, overlay)


def test_what_cannot_be_written_is_refused():
    with pytest.raises(ChamberCommError, match="convert it"):
        packet_to_bytes(packet(learned_overlay=torch.zeros(2, dtype=torch.bfloat16)))
    with pytest.raises(ChamberCommError, match="at most"):
        packet_to_bytes(packet(learned_overlay=torch.zeros(MAX_PACKET_BYTES // 4)))
    with pytest.raises(ChamberCommError, match="65535"):
        packet_to_bytes(packet(aoi={"a" * 70_000: 0.0}))


HEAD, EMPTY = b"CDZP\x01\x00", b"\x00\x00"


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b"XXXX", "CRC-32"),
        (b"CDZP\x01", "more bytes"),
        (HEAD + b"\xff\xff", "more bytes"),
        (HEAD + 2 * EMPTY + b"\x01\x00\x01\x00a" + struct.pack("<d", -1.0) + EMPTY, ">= 0"),
        (HEAD + 2 * EMPTY + b"\x01\x00\x01\x00\xff" + bytes(8) + EMPTY, "UTF-8"),
        (HEAD + 4 * EMPTY + b"rest", "canonical"),
        (HEAD + 2 * EMPTY + b"\x02\x00" + 2 * (b"\x01\x00a" + bytes(8)) + EMPTY, "canonical"),
        (HEAD + 3 * EMPTY + b"\x03\x00|O8\x00", "unknown type"),
        (HEAD + 3 * EMPTY + b"\x03\x00<f8\x02" + b"\xff" * 8, "more bytes"),
    ],
)
def test_hostile_bytes_are_an_error(body, fault):
    with pytest.raises(ChamberCommError, match=fault):
        packet_from_bytes(sealed(body))
    with pytest.raises(ChamberCommError, match="at most"):
        packet_from_bytes(bytes(MAX_PACKET_BYTES + 1))
