"""Packet age by hand: partner bound 0.8 m/s^2, dt 0.1 s, A = 0.3 s, D = 0.4 m unless said.

sigma = 0.8 * 0.3 = 0.24 m/s; delta = 0.24 * (0.3 + 0.1) / 2 = 0.048 m.
"""

import math

import numpy as np
import pytest

from cadenza.core.errors import ConfigurationError
from cadenza.safety.cbf import (
    PairParameters,
    best_closing_speed,
    derated,
    row_level,
    stale_row_level,
    staleness,
    worst_closing_speed,
    worst_tangential_speed,
)
from cadenza.safety.cbf_qp import ExpCBFQP
from cadenza.safety.control_models import DoubleIntegratorControlModel, JacobianControlModel
from cadenza.safety.snapshot import AgentSnapshot
from tests.unit.safety.scenes import agent, call, ego_filter, models

PAIR = PairParameters(
    alpha=1.2, partner_accel=0.8, relative_accel=3.6, dt=0.1, gamma=5.0, plant="zoh"
)


def test_staleness_by_hand():
    left_open = staleness(0.3, 0.8, 0.1, 0.6, 0.4)
    assert left_open.velocity == pytest.approx(0.24)
    assert left_open.position == pytest.approx(0.048)
    assert left_open.sine == pytest.approx(0.08)  # 0.048 / 0.6
    assert left_open.cosine == pytest.approx(math.sqrt(1.0 - 0.0064))
    assert left_open.tilt == pytest.approx(2.0 * math.sin(0.5 * math.asin(0.08)), rel=1e-14)


def test_staleness_of_an_ancient_packet_turns_at_most_a_right_angle():
    left_open = staleness(10.0, 0.8, 0.1, 0.6, 0.4)
    assert (left_open.sine, left_open.cosine) == (1.0, 0.0)
    assert left_open.tilt == pytest.approx(math.sqrt(2.0))


def test_worst_closing_speed_is_the_maximum_over_all_angles():
    left_open = staleness(0.3, 0.8, 0.1, 0.6, 0.4)
    angles = np.linspace(0.0, math.asin(0.08), 20_001)
    for w, t in [(0.5, 1.0), (3.0, 0.04), (-1.0, 0.5), (0.0, 0.0), (2.0, 0.16)]:
        most = 0.24 + float(np.max(w * np.cos(angles) + t * np.sin(angles)))
        least = -0.24 + float(np.min(w * np.cos(angles) - t * np.sin(angles)))
        assert worst_closing_speed(w, t, left_open) == pytest.approx(most, abs=1e-9)
        assert best_closing_speed(w, t, left_open) == pytest.approx(least, abs=1e-9)


@pytest.mark.parametrize(
    ("t", "expected"),
    [
        (0.0, 0.24 + 0.08 * 0.5),  # t + room stays below the peak at 0.75 A dt = 0.75
        (0.7, 0.75),  # the peak lies inside
        (2.0, 2.0 - 0.24 - 0.08 * math.hypot(0.5, 2.0)),  # beyond the peak: the lowest t
    ],
)
def test_worst_tangential_speed_by_hand(t, expected):
    left_open = staleness(0.3, 0.8, 0.1, 0.6, 0.4)
    assert worst_tangential_speed(0.5, t, 1.0, left_open) == pytest.approx(expected)


def test_stale_level_is_the_row_at_the_worst_state_by_hand():
    left_open = staleness(0.3, 0.8, 0.1, 1.2, 0.4)
    assert left_open.sine == pytest.approx(0.04)
    # Straight at each other, w = 0.5: worst e = 0.752, w = 0.74 (no tangential speed to tilt),
    # t up to sigma + 0.04 * 0.5 = 0.26, below 0.75 A dt = 0.27.
    stale = stale_row_level(1.2, 0.4, 0.5, 0.0, PAIR, left_open)
    level, _ = row_level(1.152, 0.4, 0.74, 0.26, PAIR)
    assert stale.level == pytest.approx(level, rel=1e-12)
    assert stale.h == row_level(1.2, 0.4, 0.5, 0.0, PAIR)[1]
    # Best: e = 0.848 and w = 0.5 cos - 0.24.
    best_w = 0.5 * left_open.cosine - 0.24
    assert stale.h_best == pytest.approx(row_level(1.248, 0.4, best_w, 0.0, PAIR)[1], rel=1e-12)


def test_stale_level_near_contact_asks_for_the_worse_of_touching_and_overlap():
    # e estimated 0.02, worst -0.028: overlap alone would allow c = -gamma 0.028 = -0.14, but
    # touching while closing at w + sigma asks for more.
    left_open = staleness(0.3, 0.8, 0.1, 0.42, 0.4)
    stale = stale_row_level(0.42, 0.4, 0.1, 0.0, PAIR, left_open)
    worst_t = 0.24 + left_open.sine * 0.1
    touching, _ = row_level(0.4, 0.4, 0.34, worst_t, PAIR)
    overlapping, _ = row_level(0.372, 0.4, 0.34, worst_t, PAIR)
    assert stale.level == pytest.approx(min(touching, overlapping), rel=1e-12)


@pytest.mark.parametrize("plant", ["zoh", "semi_implicit"])
def test_stale_level_at_age_zero_is_the_present_row_bit_for_bit(plant):
    rng = np.random.default_rng(3)
    pair = PairParameters(
        alpha=1.2, partner_accel=0.8, relative_accel=3.6, dt=0.1, gamma=5.0, plant=plant
    )
    for _ in range(500):
        r, w, t = 0.4 + rng.exponential(0.3), float(rng.normal()), float(abs(rng.normal()))
        fresh = stale_row_level(r, 0.4, w, t, pair, staleness(0.0, 0.8, 0.1, r, 0.4))
        assert (fresh.level, fresh.h) == row_level(r, 0.4, w, t, pair)
        assert fresh.h_best == fresh.h


def test_derated_authority_by_hand():
    # reach 2.828, tilt at contact 2 sin(asin(0.12) / 2).
    tilt = 2.0 * math.sin(0.5 * math.asin(0.12))
    assert derated(PAIR, 2.828, 0.4, 0.3).alpha == pytest.approx(1.2 - 2.828 * tilt, rel=1e-12)
    assert derated(PAIR, 2.828, 0.4, 0.0) is PAIR


def test_derated_authority_that_is_used_up_is_refused():
    with pytest.raises(ConfigurationError, match="expected authority left at max_age_s = 1 s"):
        derated(PAIR, 2.828, 0.4, 1.0)
    assert derated(PAIR, 2.828, 0.4, 1.0, refuse=False).alpha == 1e-9


# The whole filter.

DT = 0.1


def scene(age_s=0.0, *, gap=1.0, speed=0.9, partner=(0.0, 0.0)):
    return {
        "ego": agent([0.0, 0.0], [speed, 0.0]),
        "p": AgentSnapshot([gap, 0.0], partner, 0.2, age_s),
    }


def action_of(guard, agents, nominal=(2.0, 0.0)):
    action, info = call(guard, list(nominal), agents, dt=DT)
    return action[0], info


def test_filter_declared_age_costs_authority_even_when_packets_are_fresh():
    # delta = 0.5 * 0.5 * 0.3 * 0.4 = 0.03, sin = 0.075; alpha = 1.5 - sqrt(8) 2 sin(asin / 2).
    alpha = 1.5 - math.sqrt(8.0) * 2.0 * math.sin(0.5 * math.asin(0.075))
    c_max = 0.5 * (-3 * alpha * DT + math.sqrt((3 * alpha * DT) ** 2 + 8 * alpha * 0.6))
    action, _ = action_of(ego_filter(max_age_s=0.3), scene(speed=1.0))
    assert c_max > 1.0
    assert action == pytest.approx((c_max - 1.0) / DT - 0.5, abs=1e-12)


def test_filter_extrapolates_the_partner_and_reports_the_margin_there():
    # At -1 m/s for 0.2 s the partner is 0.2 m closer: margin 1.4 - 0.2 - 0.4 = 0.8.
    _, info = action_of(ego_filter(max_age_s=0.2), scene(0.2, gap=1.4, partner=(-1.0, 0.0)))
    assert info["margin"] == pytest.approx([0.8])


def test_filter_packet_older_than_declared_is_uncertified_but_not_ignored():
    declared = ego_filter(max_age_s=0.2)
    assert action_of(declared, scene(0.2))[1]["uncertified"] is False
    assert action_of(declared, scene(0.1 + 0.1 + 1e-12))[1]["uncertified"] is False
    older, info = action_of(declared, scene(0.3))
    assert info["uncertified"] is True
    assert older < action_of(declared, scene(0.2))[0]


def test_filter_needs_at_most_the_credited_braking_while_the_state_may_be_safe():
    # The worst state of this packet is far outside the safe set, the best one inside: full
    # credited braking, 2 m/s^2 straight back, is proved to be enough.
    action, info = action_of(ego_filter(max_age_s=0.3), scene(0.3, gap=0.44, speed=0.1))
    assert action == pytest.approx(-2.0, abs=1e-12)
    assert (info["status"], info["uncertified"]) == ("optimal", False)
    # Closing at 3 m/s from there, no state within the uncertainty is safe.
    action, info = action_of(ego_filter(max_age_s=0.3), scene(0.3, gap=0.44, speed=3.0))
    assert action == -2.0
    assert (info["status"], info["uncertified"]) == ("infeasible", True)


def test_filter_forecast_of_an_old_packet_is_spread_over_its_age_too():
    guard = ego_filter(prediction_error=0.0, max_age_s=0.3)
    agents = scene(0.3)
    forecast = {"p": agent([1.0, 0.0], [-0.12, 0.0])}
    braking, _ = call(guard, [2.0, 0.0], agents, dt=DT, predicted=forecast)
    steady, _ = call(guard, [2.0, 0.0], agents, dt=DT)
    # -0.12 m/s over 0.3 + 0.1 s is a push of 0.3 m/s^2.
    assert steady[0] - braking[0] == pytest.approx(0.3, abs=1e-12)


def test_filter_declared_age_without_authority_left_is_refused():
    with pytest.raises(ConfigurationError, match="lower max_age_s or the partner's bound"):
        action_of(ego_filter(max_age_s=1.5), scene())


def test_filter_with_a_jacobian_certifies_current_packets_only():
    turned = np.array([[0.8, -0.6], [0.6, 0.8]])
    turntable = JacobianControlModel("ego", 2, 2, lambda _: turned, max_cartesian_accel_value=2.0)
    partner = DoubleIntegratorControlModel("p", 2, capacity=0.5)

    def guard(max_age_s):
        return ExpCBFQP.ego_only(
            control_models={"ego": turntable, "p": partner}, max_age_s=max_age_s
        )

    assert action_of(guard(0.0), scene())[1]["uncertified"] is False
    assert action_of(guard(0.2), scene(0.1))[1]["uncertified"] is True
    # Far too old a bound does not stop an arm in mid-motion: least alpha, full retreat.
    _, info = action_of(guard(1.5), scene(0.1))
    assert info["status"] == "infeasible"


def test_filter_classical_row_at_its_worst_when_the_packet_is_old():
    guard = ExpCBFQP.ego_only(control_models=models(), barrier="wae")
    fresh, _ = action_of(guard, scene(0.0, speed=0.7))
    old, info = action_of(guard, scene(0.2, speed=0.7))
    # delta = 0.5 * 0.5 * 0.2 * 0.3 = 0.015, sigma = 0.1, e = 0.585, w = 0.8; alpha = 1.5:
    # b = -alpha w / psi + gamma (psi - w) - a_p - reach tilt, psi = sqrt(2 alpha e).
    psi = math.sqrt(3.0 * 0.585)
    tilt = 2.0 * math.sin(0.5 * math.asin(0.015))
    expected = -1.5 * 0.8 / psi + 5.0 * (psi - 0.8) - 0.5 - math.sqrt(8.0) * tilt
    assert old == pytest.approx(expected, abs=1e-12)
    assert old < fresh
    assert info["uncertified"] is True
