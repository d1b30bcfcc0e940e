"""The three facts the certificate rests on, for random states of one pair.

S: e >= 0 and w^2 / (2 alpha) + w dt / 2 <= e for w > 0.
"""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cadenza.safety import cbf
from cadenza.safety.cbf import PairParameters, next_closing_limit, row_level
from tests.campaigns import size
from tests.unit.safety.scenes import safe_speed

CONTACT = 0.4
positive = {"allow_nan": False, "allow_infinity": False}
excesses = st.floats(0.0, 3.0, **positive)
alphas = st.floats(0.2, 10.0, **positive)
steps = st.sampled_from([0.1, 0.05, 0.02, 0.005])
shares = st.floats(0.0, 1.0, **positive)
speeds = st.floats(-4.0, 4.0, **positive)


def in_safe_set(e, w, alpha, dt, tolerance=1e-9):
    w = max(w, 0.0)
    return e >= -tolerance and w * w / (2 * alpha) + 0.5 * w * dt <= e + tolerance


def parameters(alpha, dt, relative_accel, plant="zoh"):
    return PairParameters(
        alpha=alpha, partner_accel=0.0, relative_accel=relative_accel, dt=dt, gamma=5.0, plant=plant
    )


def after_step(e, w, tangential, c, turn, dt, plant):
    """Exact next excess, closing speed and smallest distance of a pair in the plane.

    The pair starts at distance CONTACT + e on the x axis, closing with ``w``, sliding along y
    with ``tangential``; after the step the old normal sees the closing speed ``c`` and the
    tangential velocity has changed by ``turn``.
    """
    position = np.array([CONTACT + e, 0.0])
    before = np.array([-w, tangential])
    after = np.array([-c, tangential + turn])
    accel = (after - before) / dt

    def at(s):
        if plant == "zoh":
            return position + before * s + 0.5 * accel * s * s
        return position + after * s

    end = at(dt)
    distance = float(np.linalg.norm(end))
    nearest = min(float(np.linalg.norm(at(s))) for s in np.linspace(0.0, dt, 9))
    return distance - CONTACT, -float(end @ after) / distance, nearest


@settings(max_examples=size(200, 600), deadline=None)
@given(
    e=excesses,
    alpha=alphas,
    dt=steps,
    speed_share=shares,
    closing=st.booleans(),
    tangential=speeds,
    relative_accel=st.floats(0.5, 40.0, **positive),
    turn_share=st.floats(-1.0, 1.0, **positive),
    yield_share=st.floats(0.0, 1.0, **positive),
    plant=st.sampled_from(["zoh", "semi_implicit"]),
)
def test_a_step_that_meets_the_row_stays_in_the_safe_set(
    e, alpha, dt, speed_share, closing, tangential, relative_accel, turn_share, yield_share, plant
):
    w = speed_share * safe_speed(e, alpha, dt) if closing else -3.0 * speed_share
    pair = parameters(alpha, dt, relative_accel, plant)
    level, h = row_level(CONTACT + e, CONTACT, w, abs(tangential), pair)
    assert h >= -1e-9
    # c is the largest admissible speed, or any lower one; the turn any within the bound.
    c = w + level * dt - 3.0 * yield_share**4
    turn = turn_share * relative_accel * dt
    next_e, next_w, nearest = after_step(e, w, tangential, c, turn, dt, plant)
    assert in_safe_set(next_e, next_w, alpha, dt)
    assert nearest >= CONTACT - 1e-9


@settings(max_examples=size(150, 400), deadline=None)
@given(
    e=excesses,
    alpha=alphas,
    dt=steps,
    speed_share=shares,
    tangential=st.floats(0.0, 4.0, **positive),
    relative_accel=st.floats(0.5, 40.0, **positive),
    plant=st.sampled_from(["zoh", "semi_implicit"]),
)
def test_braking_meets_the_row_from_anywhere_in_the_safe_set(
    e, alpha, dt, speed_share, tangential, relative_accel, plant
):
    w = speed_share * safe_speed(e, alpha, dt)
    tau = relative_accel**2 * dt**3 / (16.0 * CONTACT)  # the largest allowance there is
    assume(plant == "semi_implicit" or w <= ((alpha * dt) ** 2 - tau * tau) / (2.0 * tau))
    pair = parameters(alpha, dt, relative_accel, plant)
    level, _ = row_level(CONTACT + e, CONTACT, w, tangential, pair)
    assert -alpha <= level + 1e-9


@settings(max_examples=size(100, 300), deadline=None)
@given(e=excesses, alpha=alphas, dt=steps, w=speeds)
def test_zero_order_hold_limit_solves_its_equation_and_covers_the_semi_implicit_one(
    e, alpha, dt, w
):
    assume(w <= safe_speed(e, alpha, dt))
    c = next_closing_limit(e, w, alpha, dt, gamma=5.0, plant="zoh")
    left = c * c / (2 * alpha) + 0.5 * c * dt + max(c, 0.5 * (w + c)) * dt
    assert left == pytest.approx(e, abs=1e-9)
    assert c >= -1e-12
    assert c <= next_closing_limit(e, w, alpha, dt, gamma=5.0, plant="semi_implicit") + 1e-12


def worst_turn(e, dt, relative_accel, pair):
    """A pair at rest along its line whose tangential velocity half reverses within the step."""
    tangential = 2.0 / 3.0 * relative_accel * dt
    level, _ = row_level(CONTACT + e, CONTACT, 0.0, tangential, pair)
    return after_step(e, 0.0, tangential, level * dt, -1.5 * tangential, dt, "zoh")


def test_tangential_allowance_is_needed_and_enough(monkeypatch):
    alpha, dt, relative_accel, e = 1.5, 0.05, 20.0, 0.0
    pair = parameters(alpha, dt, relative_accel)
    next_e, next_w, _ = worst_turn(e, dt, relative_accel, pair)
    assert in_safe_set(next_e, next_w, alpha, dt, tolerance=1e-12)
    monkeypatch.setattr(cbf, "tangential_allowance", lambda *arguments: 0.0)
    next_e, next_w, _ = worst_turn(e, dt, relative_accel, pair)
    assert not in_safe_set(next_e, next_w, alpha, dt, tolerance=1e-6)
