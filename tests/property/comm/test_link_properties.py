import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.comm import (
    ChamberCommError,
    CommDegradationWrapper,
    DegradationProfile,
    FixedFormatCommChannel,
    packet_from_bytes,
    packet_to_bytes,
)
from cadenza.comm.packets import MOTION_SCHEMA_VERSION

finite = st.floats(allow_nan=False, allow_infinity=False)
names = st.text(min_size=1, max_size=8)
poses = st.fixed_dictionaries(
    {
        "xyz": st.tuples(finite, finite, finite),
        "quat_wxyz": st.sampled_from([(1.0, 0.0, 0.0, 0.0), (0.6, 0.0, -0.8, 0.0)]),
    }
)
predicates = st.fixed_dictionaries(
    {}, optional={"grasp_side": st.text(), "object_class": st.text(), "contact_force": finite}
)


@st.composite
def packets(draw):
    uids = draw(st.lists(names, unique=True, max_size=4))
    version = draw(st.sampled_from([1, MOTION_SCHEMA_VERSION]))
    some = st.dictionaries(st.sampled_from(uids), poses) if uids else st.just({})
    pose = draw(some)
    packet = {
        "schema_version": version,
        "pose": pose,
        "task_state": {uid: draw(predicates) for uid in uids[:2]},
        "aoi": {uid: draw(st.floats(0.0, 1e6)) for uid in uids},
        "learned_overlay": None,
    }
    if version == MOTION_SCHEMA_VERSION:
        packet["velocity"] = {uid: draw(st.tuples(finite, finite, finite)) for uid in pose}
    return packet


@given(packet=packets())
def test_bytes_hold_the_packet_and_are_canonical(packet):
    data = packet_to_bytes(packet)
    assert packet_from_bytes(data) == packet
    reversed_ = {
        key: dict(reversed(value.items())) if isinstance(value, dict) else value
        for key, value in packet.items()
    }
    assert packet_to_bytes(reversed_) == data


@given(packet=packets(), data=st.data())
def test_any_flipped_bit_and_any_cut_is_noticed(packet, data):
    sound = packet_to_bytes(packet)
    bit = data.draw(st.integers(0, 8 * len(sound) - 1))
    damaged = bytearray(sound)
    damaged[bit // 8] ^= 1 << bit % 8
    for broken in (bytes(damaged), sound[: bit // 8], sound + b"\0"):
        with pytest.raises(ChamberCommError):
            packet_from_bytes(broken)


@given(
    mean=st.floats(0.0, 20.0),
    std=st.floats(0.0, 20.0),
    drop=st.floats(0.0, 0.45),
    burst=st.none() | st.floats(1.0, 20.0),
    ordering=st.sampled_from(["freshest", "fifo", "as_arrived"]),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=60)
def test_age_is_true_on_every_link(mean, std, drop, burst, ordering, seed):
    profile = DegradationProfile(mean, std, drop, burst)
    channel = CommDegradationWrapper(
        FixedFormatCommChannel(), profile, tick_period_ms=2.0, ordering=ordering
    )
    channel.reset(seed=seed)
    newest = 0.0
    for tick in range(1, 80):
        pose = {"xyz": (float(tick), 0.0, 0.0), "quat_wxyz": (1.0, 0.0, 0.0, 0.0)}
        # "b" speaks every third tick only; its age counts from what it said last
        said = {"a": pose, "b": pose} if tick % 3 == 1 else {"a": pose}
        packet = channel.encode({"pose": said})
        if not packet["pose"]:
            assert packet["aoi"] == {}
            continue
        sent = packet["pose"]["a"]["xyz"][0]
        assert packet["aoi"]["a"] == tick - sent
        assert packet["aoi"]["b"] == tick - (sent - (sent - 1) % 3)
        assert ordering == "as_arrived" or sent >= newest
        newest = max(newest, sent)
    stats = channel.stats
    assert stats.dropped + stats.delivered <= 79


@given(
    mean=st.floats(0.01, 1e3), ratio=st.floats(0.0, 1e3), u=st.floats(0.0, 1.0, exclude_max=True)
)
def test_delay_is_within_its_range_and_symmetric(mean, ratio, u):
    profile = DegradationProfile(mean, mean * ratio, 0.0)
    delay = profile.latency_ms(u)
    assert 0.0 <= delay <= 2.0 * mean
    assert profile.latency_ms(0.5) == pytest.approx(mean, rel=1e-6)
    if 0.01 < u < 0.99:
        assert delay + profile.latency_ms(1.0 - u) == pytest.approx(2.0 * mean, rel=1e-6)
