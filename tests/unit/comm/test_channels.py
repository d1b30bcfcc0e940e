import math

import numpy as np
import pytest
import torch

from cadenza.comm import (
    SCHEMA_VERSION,
    AoIClock,
    ChamberCommError,
    CommChannel,
    CommDegradationWrapper,
    DegradationProfile,
    FixedFormatCommChannel,
    LearnedOverlay,
    PerLinkChannel,
)
from cadenza.comm.packets import MOTION_SCHEMA_VERSION

UPRIGHT = (1.0, 0.0, 0.0, 0.0)


def pose(x, y=0.0):
    return {"xyz": (x, y, 0.0), "quat_wxyz": UPRIGHT}


def test_clock_ages_who_it_knows():
    clock = AoIClock()
    clock.mark_fresh("a")
    clock.tick(0.01)
    clock.mark_fresh("b")
    clock.tick(0.25)
    assert clock.snapshot() == {"a": 0.26, "b": 0.25}
    copy = clock.snapshot()
    copy["a"] = 9.0
    assert clock.aoi("a") == 0.26
    clock.reset()
    with pytest.raises(KeyError, match="<none>"):
        clock.aoi("a")
    with pytest.raises(ValueError, match="non-negative"):
        clock.tick(-1e-9)


def test_silent_robot_leaves_the_packet_and_its_age_grows():
    channel = FixedFormatCommChannel()
    assert channel.encode({"pose": {"a": pose(1.0), "b": pose(2.0)}})["aoi"] == {"a": 0.0, "b": 0.0}
    packet = channel.encode({"pose": {"a": pose(1.5)}, "task_state": None})
    assert packet["pose"] == {"a": pose(1.5)}
    assert packet["aoi"] == {"a": 0.0, "b": 1.0}
    assert channel.encode("no mapping")["aoi"] == {"a": 1.0, "b": 2.0}
    channel.reset()
    assert channel.encode({})["aoi"] == {}


def test_round_trip_keeps_every_field():
    overlay = LearnedOverlay(torch.arange(3.0))
    state = {
        "pose": {"a": pose(1.0)},
        "task_state": {"b": {"grasp_side": "left", "contact_force": 2.5}},
        "learned_overlay": overlay.encode(),
    }
    channel = FixedFormatCommChannel()
    decoded = channel.decode(channel.encode(state))
    assert decoded["pose"] == state["pose"]
    assert decoded["task_state"] == state["task_state"]
    assert decoded["aoi"] == {"a": 0.0, "b": 0.0}
    assert LearnedOverlay.decode(decoded["learned_overlay"]) is overlay.tensor
    overlay.reset()
    assert overlay.encode() is None


def test_second_version_carries_velocities_and_the_first_does_not():
    state = {"pose": {"a": pose(1.0)}, "velocity": {"a": (0.5, 0.0, 0.0)}}
    plain = FixedFormatCommChannel()
    moving = FixedFormatCommChannel(schema_version=MOTION_SCHEMA_VERSION)
    assert "velocity" not in plain.encode(state)
    packet = moving.encode(state)
    assert moving.decode(packet)["velocity"] == {"a": (0.5, 0.0, 0.0)}
    with pytest.raises(ChamberCommError, match="version mismatch: expected 1, got 2"):
        plain.decode(packet)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"schema_version": 3}, "version mismatch"),
        ({"schema_version": True}, "version mismatch"),
        ({"extra": 1}, "expected the keys"),
        ({"aoi": {"a": -1.0}}, "age >= 0"),
        ({"aoi": {"a": math.nan}}, "finite number"),
        ({"aoi": {}}, "expected an age"),
        ({"pose": {"a": {"xyz": (0.0, 0.0, 0.0)}}}, "expected the keys"),
        ({"pose": {"a": {"xyz": (0.0, math.inf, 0.0), "quat_wxyz": UPRIGHT}}}, "finite number"),
        ({"pose": {"a": {"xyz": (0.0, 0.0), "quat_wxyz": UPRIGHT}}}, "3 numbers"),
        ({"pose": {"a": {"xyz": (0.0, 0.0, 0.0), "quat_wxyz": (2.0, 0, 0, 0)}}}, "length 1"),
        ({"pose": {1: pose(0.0)}}, "names as keys"),
        ({"task_state": {"a": {"colour": "red"}}}, "new schema version"),
        ({"task_state": {"a": {"grasp_side": 3}}}, "expected text"),
        ({"task_state": {"a": {"contact_force": "3"}}}, "finite number"),
        ({"learned_overlay": [1.0]}, "tensor or None"),
        ({"learned_overlay": torch.tensor([math.nan])}, "finite numbers"),
    ],
)
def test_decode_refuses_what_breaks_the_contract(change, fault):
    channel = FixedFormatCommChannel()
    packet = channel.encode({"pose": {"a": pose(1.0)}})
    channel.decode(packet)
    with pytest.raises(ChamberCommError, match=fault):
        channel.decode({**packet, **change})
    with pytest.raises(ChamberCommError, match="expected the keys"):
        channel.decode({key: value for key, value in packet.items() if key != "learned_overlay"})


def test_float32_quaternion_of_a_simulator_is_taken():
    quaternion = np.array([0.3, -0.5, 0.7, 0.2], np.float32)
    quaternion /= np.linalg.norm(quaternion)
    state = {"pose": {"a": {"xyz": np.zeros(3, np.float32), "quat_wxyz": quaternion}}}
    channel = FixedFormatCommChannel()
    assert channel.decode(channel.encode(state))["pose"]["a"]["quat_wxyz"] == tuple(
        quaternion.tolist()
    )


def test_packet_in_flight_keeps_what_was_said():
    xyz, velocity = np.array([1.0, 0.0, 0.0]), np.array([0.5, 0.0, 0.0])
    state = {"pose": {"a": {"xyz": xyz, "quat_wxyz": UPRIGHT}}, "velocity": {"a": velocity}}
    inner = FixedFormatCommChannel(schema_version=MOTION_SCHEMA_VERSION)
    channel = CommDegradationWrapper(inner, DegradationProfile(1.0, 0.0, 0.0))
    channel.encode(state)
    xyz += 1.0  # as a simulator moves on in its own arrays
    velocity += 1.0
    packet = channel.encode(state)
    assert (packet["pose"]["a"]["xyz"], packet["velocity"]["a"]) == ((1.0, 0, 0), (0.5, 0, 0))


def test_every_link_has_its_own_luck_and_the_receiver_knows_itself():
    lossy = DegradationProfile(2.0, 1.0, 0.3)
    channel = PerLinkChannel({"a": lossy, "b": lossy}, receiver="me", root_seed=4)
    assert isinstance(channel, CommChannel)
    channel.reset()
    seen = []
    for tick in range(1, 301):
        said = {uid: pose(float(tick)) for uid in ("a", "b", "me")}
        packet = channel.encode({"pose": said, "task_state": {"a": {"grasp_side": str(tick)}}})
        channel.decode(packet)
        assert packet["pose"]["me"] == pose(float(tick))
        assert packet["aoi"]["me"] == 0.0
        for uid in packet["pose"]:
            assert packet["aoi"][uid] == tick - packet["pose"][uid]["xyz"][0]
        if "a" in packet["pose"]:
            assert float(packet["task_state"]["a"]["grasp_side"]) == packet["pose"]["a"]["xyz"][0]
        seen.append(tuple(packet["aoi"].get(uid) for uid in ("a", "b")))
    assert len({a == b for a, b in seen}) == 2
    assert all(50 < link.stats.dropped < 130 for link in channel.links.values())


@pytest.mark.parametrize(
    ("state", "fault"),
    [
        ({"pose": {"stranger": pose(0.0)}}, "give every sender a profile"),
        ({"learned_overlay": torch.zeros(1)}, "names no sender"),
    ],
)
def test_link_of_nobody_is_refused(state, fault):
    channel = PerLinkChannel({"a": DegradationProfile(0.0, 0.0, 0.0)}, receiver="me")
    with pytest.raises(ChamberCommError, match=fault):
        channel.encode(state)
    with pytest.raises(ValueError, match="no link to itself"):
        PerLinkChannel({"me": DegradationProfile(0.0, 0.0, 0.0)}, receiver="me")


def test_channels_satisfy_the_protocol():
    fixed = FixedFormatCommChannel()
    assert fixed.schema_version == SCHEMA_VERSION == 1
    assert isinstance(fixed, CommChannel)
    link = CommDegradationWrapper(fixed, DegradationProfile(0.0, 0.0, 0.0))
    assert isinstance(link, CommChannel)
    assert link.decode(link.encode({"pose": {"a": pose(1.0)}}))["pose"] == {"a": pose(1.0)}
