import itertools
import statistics
import warnings

import pytest

from cadenza.comm import (
    URLLC_3GPP_R17,
    ChamberCommQPSaturationWarning,
    CommDegradationStats,
    CommDegradationWrapper,
    DegradationProfile,
    FixedFormatCommChannel,
    packet_to_bytes,
    saturation_guard,
)
from cadenza.comm.degradation import LISTED_LATENCIES
from cadenza.core.errors import ConfigurationError


def link(profile, **options):
    profile = URLLC_3GPP_R17.get(profile, profile)
    channel = CommDegradationWrapper(FixedFormatCommChannel(), profile, **options)
    channel.reset(seed=options.get("root_seed", 0))
    return channel


def say(channel, tick):
    pose = {"xyz": (float(tick), 0.0, 0.0), "quat_wxyz": (1.0, 0.0, 0.0, 0.0)}
    return channel.encode({"pose": {"a": pose}})


def trace(channel, ticks):
    """Return (tick that is visible, its age) per tick, None before the first packet."""
    packets = (say(channel, tick) for tick in range(1, ticks + 1))
    return [(int(p["pose"]["a"]["xyz"][0]), p["aoi"]["a"]) if p["pose"] else None for p in packets]


@pytest.mark.parametrize(
    ("profile", "ages", "jumps"),
    [
        *(("ideal", 0, 0), ("urllc", 0, 0), ("factory", 0, 0)),
        *(("wifi", 628, 190), ("lossy", 716, 491), ("saturation", 728, 467)),
    ],
)
def test_ages_are_true_and_samples_monotone_where_published_ones_are_not(profile, ages, jumps):
    def faults(seen):
        rows = known(seen)
        wrong = sum(age != tick - sent for tick, (sent, age) in rows)
        back = sum(b[1][0] < a[1][0] for a, b in itertools.pairwise(rows))
        return wrong, back

    assert faults(trace(link(profile, compat="upstream"), 2000)) == (ages, jumps)
    assert faults(trace(link(profile), 2000)) == (0, 0)


@pytest.mark.parametrize("compat", [None, "upstream"])
def test_fixed_delays_of_the_presets(compat):
    assert trace(link("urllc", compat=compat), 3) == [None, (1, 1.0), (2, 1.0)]
    assert trace(link("factory", compat=compat), 7) == [None] * 5 + [(1, 5.0), (2, 5.0)]
    assert trace(link("ideal", compat=compat), 2) == [(1, 0.0), (2, 0.0)]


@pytest.mark.parametrize("compat", [None, "upstream"])
@pytest.mark.parametrize("name", list(URLLC_3GPP_R17))
def test_ten_thousand_packets_show_the_profile(name, compat):
    profile = URLLC_3GPP_R17[name]
    channel = link(name, compat=compat)
    trace(channel, 10_000)
    stats = channel.stats
    in_flight = 10_000 - stats.dropped - stats.delivered
    assert stats.dropped / 10_000 == pytest.approx(profile.drop_rate, abs=0.01)
    assert 0 <= in_flight <= 2 * profile.latency_mean_ms + 1
    assert stats.delivered == len(stats.latency_ticks)
    mean = statistics.fmean(stats.latency_ticks)
    std = statistics.pstdev(stats.latency_ticks)
    assert mean == pytest.approx(profile.latency_mean_ms, rel=0.05, abs=0.05)
    assert std == pytest.approx(profile.latency_std_ms, rel=0.05, abs=0.5)
    assert (stats.latency_mean, stats.latency_std) == (pytest.approx(mean), pytest.approx(std))


def test_loss_of_a_packet_does_not_stall_those_in_flight():
    # Find a tick that loses its packet, and look whether the one sent two ticks earlier arrives.
    channel = link(DegradationProfile(2.0, 0.0, 0.3))
    dropped, seen = [], []
    for tick in range(1, 101):
        before = channel.stats.dropped
        seen.append(say(channel, tick)["aoi"].get("a"))
        dropped.append(channel.stats.dropped > before)
    stalls = [
        tick
        for tick in range(2, 100)
        if dropped[tick] and not dropped[tick - 2] and seen[tick] != 2.0
    ]
    assert stalls == []
    assert sum(dropped) > 20


def test_profiles_share_their_luck():
    # Two draws per tick, needed or not: another delay does not change which packets are lost,
    # and a higher rate loses the same packets and more.
    def lost(profile):
        channel = link(profile)
        count, ticks = 0, set()
        for tick in range(1, 501):
            say(channel, tick)
            if channel.stats.dropped > count:
                count += 1
                ticks.add(tick)
        return ticks

    few = lost(DegradationProfile(0.0, 0.0, 0.1))
    assert lost(DegradationProfile(30.0, 7.0, 0.1)) == few
    assert few < lost(DegradationProfile(5.0, 0.0, 0.2))


def test_episodes_have_traces_of_their_own_and_seeds_repeat_them():
    channel = link("saturation")
    first = trace(channel, 200)
    channel.reset()
    second = trace(channel, 200)
    assert first != second
    channel.reset(seed=0)
    assert trace(channel, 200) == first
    channel.reset()
    assert trace(channel, 200) == second
    channel.reset(seed=1)
    assert trace(channel, 200) not in (first, second)
    assert trace(link("saturation", link="a.b"), 200) != first
    fresh = CommDegradationWrapper(FixedFormatCommChannel(), URLLC_3GPP_R17["saturation"])
    assert trace(fresh, 200) == first
    published = link("saturation", compat="upstream")
    first = trace(published, 200)
    published.reset()
    assert trace(published, 200) == first


@pytest.mark.parametrize(("burst_length", "burst_loss"), [(None, 1.0), (6.0, 1.0), (6.0, 0.5)])
def test_bursts_keep_the_rate_and_have_their_length(burst_length, burst_loss):
    profile = DegradationProfile(0.0, 0.0, 0.1, burst_length, burst_loss)
    channel = link(profile)
    fresh = [entry is not None and entry[1] == 0.0 for entry in trace(channel, 20_000)]
    assert fresh.count(False) / len(fresh) == pytest.approx(0.1, rel=0.15)
    runs = "".join("." if ok else "x" for ok in fresh).replace(".", " ").split()
    if burst_loss == 1.0:
        expected = burst_length or 1.0 / 0.9
        assert statistics.fmean(map(len, runs)) == pytest.approx(expected, rel=0.12)
    else:
        # Within a spell every second packet is lost; the next one is lost if the spell goes on
        # (1 - 1 / L) and it is unlucky (b), or a new spell begins at once, which is rarer.
        again = sum(not a and not b for a, b in itertools.pairwise(fresh))
        assert again / fresh.count(False) == pytest.approx(0.5 * (1 - 1 / burst_length), rel=0.12)


def test_orderings_differ_in_what_a_late_packet_does():
    profile = DegradationProfile(20.0, 8.0, 0.05)
    seen = {name: trace(link(profile, ordering=name), 500) for name in ("freshest", "fifo")}
    channel = link(profile, ordering="as_arrived")
    seen["as_arrived"] = trace(channel, 500)
    sent = {name: [entry[0] for entry in rows if entry] for name, rows in seen.items()}
    assert sent["freshest"] == sorted(sent["freshest"])
    assert sent["fifo"] == sorted(sent["fifo"])
    assert sent["as_arrived"] != sorted(sent["as_arrived"])
    assert channel.stats.reordered > 100
    # Waiting for its predecessors makes no packet newer.
    waiting = dict(known(seen["fifo"]))
    assert all(waiting[tick][0] <= row[0] for tick, row in known(seen["freshest"])[20:])
    for rows in seen.values():
        assert all(age == tick - s for tick, (s, age) in known(rows))


def known(rows):
    return [(tick, row) for tick, row in enumerate(rows, 1) if row]


def test_narrow_link_delays_by_the_size_of_what_is_sent():
    size = len(packet_to_bytes(say(link("ideal"), 1)))
    # One packet takes 2.3 ticks to send: they are through at 1 + 2.3 k = 3.3, 5.6, 7.9, 10.2.
    channel = link(DegradationProfile(0.0, 0.0, 0.0, bandwidth_kbps=8 * size / 2.3))
    seen = [row and row[0] for row in trace(channel, 10)]
    assert seen == [None, None, 1, 1, 1, 2, 2, 3, 3, 4]


@pytest.mark.parametrize(("unit", "age"), [("ticks", 2.0), ("ms", 40.0), ("s", 0.04)])
def test_age_comes_in_the_unit_asked_for(unit, age):
    channel = link(DegradationProfile(40.0, 0.0, 0.0), tick_period_ms=20.0, aoi_unit=unit)
    assert trace(channel, 5)[-1] == (3, pytest.approx(age))


def test_listed_latencies_are_bounded_and_the_rest_is_counted():
    channel = link("ideal")
    empty = channel.stats
    assert empty == CommDegradationStats(dropped=0, delivered=0, latency_ticks=())
    for _ in range(LISTED_LATENCIES + 5):
        channel.encode({})
    assert len(channel.stats.latency_ticks) == LISTED_LATENCIES
    assert channel.stats.delivered == LISTED_LATENCIES + 5


@pytest.mark.parametrize(
    "values",
    [
        {"drop_rate": 1.1},
        {"drop_rate": -0.1},
        {"drop_rate": float("nan")},
        {"latency_mean_ms": float("inf")},
        {"latency_std_ms": -1.0},
        {"latency_mean_ms": True},
        {"burst_length": 0.5},
        {"burst_loss": 0.5},
        {"bandwidth_kbps": 0.0},
        {"burst_length": 2.0, "burst_loss": 0.4, "drop_rate": 0.5},
        {"burst_length": 2.0, "drop_rate": 0.9},
    ],
)
def test_profile_out_of_range_is_refused(values):
    sound = {"latency_mean_ms": 1.0, "latency_std_ms": 0.0, "drop_rate": 0.0}
    DegradationProfile(**sound)
    with pytest.raises(ValueError, match="DegradationProfile"):
        DegradationProfile(**(sound | values))


def test_options_out_of_range_are_refused():
    for period in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="tick_period_ms > 0"):
            link("ideal", tick_period_ms=period)
    for options in ({"ordering": "lifo"}, {"aoi_unit": "h"}, {"compat": "1.0"}):
        with pytest.raises(ConfigurationError, match=next(iter(options))):
            link("ideal", **options)
    with pytest.raises(ConfigurationError, match="beside compat"):
        link("ideal", compat="upstream", ordering="fifo")


def test_guard_warns_of_the_saturating_preset_alone():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in set(URLLC_3GPP_R17) - {"saturation"}:
            report = saturation_guard(URLLC_3GPP_R17[name], qp_time_budget_ms=1e3)
            assert not report.saturated
    with pytest.warns(ChamberCommQPSaturationWarning, match=r"exceeds .* saturation regime"):
        report = saturation_guard(
            URLLC_3GPP_R17["saturation"], lambda: (0.0, sum(range(20_000))), qp_time_budget_ms=1e-6
        )
    assert len(report.reasons) == 2
    assert report.solve_ms > report.budget_ms == 1e-6


def test_guard_judges_a_solver_by_its_median_and_after_a_warm_up():
    calls = []

    def solve():
        calls.append(1)
        if len(calls) in (1, 4):  # loading a library, and one interruption
            sum(range(2_000_000))

    report = saturation_guard(URLLC_3GPP_R17["ideal"], solve, qp_time_budget_ms=5.0)
    assert len(calls) >= 6
    assert not report.saturated
