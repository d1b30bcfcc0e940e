"""Reach of partners and least separations against brute force in time."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cadenza.safety.backup.reach import Bound, escape_gap, min_sep

#: Any direction: reach speaks of one axis.
N = (1.0, 0.0)
speeds = st.floats(-2.0, 2.0)
caps = st.floats(0.0, 2.0)
accels = st.one_of(st.floats(0.0, 5.0), st.just(math.inf))
rates = st.floats(0.05, 5.0)


def reach(speed, accel, cap, time_s):
    """Return P(s)."""
    return Bound(N, 0.0, speed, accel, cap).reach(time_s)


def partner_speed(speed, accel, cap, times):
    """Return min(pi + a_p t, v_p) at some times."""
    if accel == math.inf:
        return np.where(times > 0.0, cap, speed)
    return np.minimum(speed + accel * times, cap)


def integral(values, times):
    """Return the integral of samples that are linear in between, from 0 to each time."""
    steps = np.diff(times) * 0.5 * (values[1:] + values[:-1])
    return np.concatenate(([0.0], np.cumsum(steps)))


@given(speed=speeds, cap=caps, accel=accels, time_s=st.floats(0.0, 3.0))
def test_reach_is_the_integral_of_the_fastest_motion(speed, cap, accel, time_s):
    speed = min(speed, cap)
    times = np.linspace(0.0, time_s, 4001)
    fastest = partner_speed(speed, accel, cap, times)
    if accel == math.inf:
        fastest[0] = cap  # at once
    way = integral(fastest, times)
    assert abs(reach(speed, accel, cap, time_s) - way[-1]) < 1e-5
    assert Bound(N, 0.0, speed, accel, cap).furthest_reach(time_s) >= way.max() - 1e-5


@given(speed=speeds, cap=caps, accel=accels, first=st.floats(0.0, 1.0), second=st.floats(0.0, 1.0))
def test_reach_nests(speed, cap, accel, first, second):
    # Whatever a partner did in the first part, its reach from there is part of its reach from now.
    speed = min(speed, cap)
    whole = reach(speed, accel, cap, first + second)
    for share in (0.0, 0.3, 1.0):
        rate = 0.0 if accel == math.inf else share * accel
        later = min(speed + rate * first, cap)
        moved = reach(speed, rate, cap, first)
        assert moved + reach(later, accel, cap, second) <= whole + 1e-9


@given(
    excess=st.floats(0.0, 2.0),
    speed=speeds,
    cap=caps,
    accel=accels,
    ends=st.lists(st.tuples(st.floats(0.01, 1.0), speeds), min_size=1, max_size=5),
    begin=speeds,
    spare=st.floats(0.0, 1.0),
)
def test_least_separation_is_exact(excess, speed, cap, accel, ends, begin, spare):
    speed, final = min(speed, cap), cap + spare
    pieces, since, knots = [], begin, [(0.0, begin)]
    for duration, end in [*ends[:-1], (ends[-1][0], final)]:
        pieces.append((duration, since, end))
        since = end
        knots.append((knots[-1][0] + duration, end))
    least = min_sep(Bound(N, excess, speed, accel, cap), pieces, final)
    times = np.linspace(0.0, knots[-1][0] + 2.0, 20_001)
    sigma = np.interp(times, *zip(*knots, strict=True))
    closing = partner_speed(speed, accel, cap, times) - sigma
    if accel == math.inf:
        closing[0] = cap - sigma[0]
    brute = (excess - integral(closing, times)).min()
    # Between samples the separation falls by at most the closing speed times half a sample.
    assert brute - 1e-3 <= least <= brute + 1e-6


@given(speed=speeds, cap=caps, accel=accels, along=speeds, rate=rates)
def test_gap_of_an_escape_in_closed_form_is_what_it_loses(speed, cap, accel, along, rate):
    speed = min(speed, cap)
    gap = escape_gap(Bound(N, 0.0, speed, accel, cap), along, rate)
    pieces = [((cap - along) / rate, along, cap)] if along < cap else []
    final = max(along, cap)
    exact = -min_sep(Bound(N, 0.0, speed, accel, cap), pieces, final)
    assert abs(gap - exact) < 1e-9


def test_gap_by_hand():
    # w = 1 m/s, the robot gains 2 m/s^2 on a partner that cannot speed up: 1 / (2 * 2).
    assert escape_gap(Bound(N, 0.0, 1.0, 0.0, 1.0), 0.0, 2.0) == 0.25
    # The partner doubles its speed at 4 m/s^2 within 0.25 s while the robot reaches 0.5 m/s:
    # w goes 1 -> 1.5 in 0.25 s (0.3125 m), and to 0 at 2 m/s^2 (0.5625 m).
    assert escape_gap(Bound(N, 0.0, 1.0, 4.0, 2.0), 0.0, 2.0) == 0.3125 + 0.5625


def test_separation_falls_for_ever_from_a_faster_partner():
    # Within 2 s it seems safe: 1 m less 0.4 m. After 5 s it is touched.
    pieces, faster = [(2.0, 1.0, 1.0)], Bound(N, 1.0, 1.2, 0.0, 1.2)
    horizon = min_sep(faster, pieces, math.inf)
    assert abs(horizon - 0.6) < 1e-12
    assert min_sep(faster, pieces, 1.0) == -math.inf
