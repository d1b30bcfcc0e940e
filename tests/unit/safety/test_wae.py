"""The classical row by hand, in the published form and with the corrected authority."""

import math

import numpy as np
import pytest

from cadenza.core.errors import ConfigurationError
from cadenza.safety.bounds import Bounds
from cadenza.safety.cbf_qp import ExpCBFQP
from cadenza.safety.control_models import DoubleIntegratorControlModel
from cadenza.safety.errors import ConcertoSafetyInfeasible
from cadenza.safety.rows.wae import cartesian_row, ego_only_row, wae_level
from tests.unit.safety.scenes import CONTACT, Duel, agent, call, models, slack

# One state: r = 0.9, D = 0.4, e = 0.5, w = 0.6, t = 0.3, alpha = 4: psi = sqrt(2 * 4 * 0.5) = 2,
# h = 1.4; b = -(4 / 2) 0.6 + 0.09 / 0.9 + gamma h = -1.1 + gamma 1.4.


@pytest.mark.parametrize(
    ("state", "power", "level", "h"),
    [
        ((0.9, 0.4, 0.6, 0.3), 1, -1.1 + 7.0, 1.4),
        ((0.9, 0.4, 0.6, 0.3), 3, -1.1 + 5.0 * 2.744, 1.4),
        # An odd power keeps the sign: outside the safe set the cubic asks for less than the linear.
        ((0.9, 0.4, 2.5, 0.0), 3, -2.0 * 2.5 + 5.0 * (-0.5) ** 3, -0.5),
        # e = 1e-8: sqrt(2 * 4 * 1e-8) = 2.8e-4 < 1e-3, so psi = 1e-3 and alpha / psi = 4000.
        ((0.4 + 1e-8, 0.4, 0.1, 0.0), 1, -4000.0 * 0.1 + 5.0 * (1e-3 - 0.1), 1e-3 - 0.1),
        # Overlap drops the terms of the excess, e = -0.1: b = 0.09 / 0.3 + 5 (-0.6).
        ((0.3, 0.4, 0.6, 0.3), 1, 0.3 - 3.0, -0.6),
        # Coincident centres.
        ((0.9e-9, 0.4, 0.6, 0.3), 1, -1000.0, -0.4),
        ((1.1e-9, 0.4, 0.6, 0.0), 1, -3.0, -0.6),
    ],
)
def test_level_by_hand(state, power, level, h):
    found = wae_level(*state, alpha=4.0, gamma=5.0, power=power)
    assert found == (pytest.approx(level, abs=1e-6), pytest.approx(h, abs=1e-12))


def pair():
    # n = (-1, 0), r = 0.9; dv = (0.6, 0.3) - 0: w = 0.6, t = 0.3.
    return agent([0.0, 0.0], [0.6, 0.3]), agent([0.9, 0.0])


def test_cartesian_row_of_coincident_centres_adds_lambda():
    row_i, row_j, b, h = cartesian_row(
        agent([1.0, 1.0]), agent([1.0, 1.0]), alpha_pair=4.0, gamma=5.0, lambda_=0.25
    )
    assert (row_i, row_j) == ([-1.0, 0.0], [1.0, 0.0])
    assert (b, h) == (-999.75, -0.4)


def test_ego_only_row_is_the_egos_slot_when_the_partner_keeps_its_velocity():
    ego, partner = pair()
    row, b, h = ego_only_row(
        ego, partner, partner, alpha_pair=4.0, gamma=5.0, lambda_=0.25, dt=0.05
    )
    whole, _, rhs, whole_h = cartesian_row(ego, partner, alpha_pair=4.0, gamma=5.0, lambda_=0.25)
    assert (row, b, h) == (whole, rhs, whole_h)


# The filter around the row.


def wae_filter(partner_accel=0.5, dim=2, partners=("p",), **options):
    return ExpCBFQP.ego_only(
        control_models=models(partner_accel, dim, partners), barrier="wae", **options
    )


def upstream(partner_accel=None, **options):
    return wae_filter(partner_accel, compat="upstream", **options)


def facing(speed=0.6, gap=0.9):
    return {"ego": agent([0, 0], [speed, 0.0]), "p": agent([gap, 0])}


def test_filter_classical_row_uses_the_authority_left_against_the_partner():
    # alpha = 2 - 0.5, push 0.5: psi = sqrt(3 * 0.5), u_x <= -(1.5 / psi) w + gamma h - 0.5.
    psi = math.sqrt(1.5)
    for gamma in (2.0, 3.0):
        expected = -1.5 / psi * 0.6 + gamma * (psi - 0.6) - 0.5
        assert expected < 2.0
        action, info = call(wae_filter(cbf_gamma=gamma), [2.0, 0.3], facing())
        assert action == pytest.approx([expected, 0.3], abs=1e-12)
        assert info["status"] == "optimal"


def test_filter_classical_row_takes_a_trusted_forecast_or_the_worst_push():
    forecast = {"p": agent([0.9, 0], [-0.3 * 0.05, 0])}  # 0.3 m/s^2 towards the ego
    options = {"predicted": forecast, "dt": 0.05}
    worst, _ = call(wae_filter(cbf_gamma=2.0), [2.0, 0.0], facing(), **options)
    trusted, _ = call(
        wae_filter(cbf_gamma=2.0, prediction_error=0.1), [2.0, 0.0], facing(), **options
    )
    assert trusted[0] - worst[0] == pytest.approx(0.5 - (0.3 + 0.1), abs=1e-12)


def test_filter_classical_row_is_never_certified():
    _, info = call(wae_filter(), [0.0, 0.0], facing(0.0, 3.0))
    assert (info["status"], info["uncertified"]) == ("inactive", True)


def test_filter_upstream_counts_on_the_partner_and_believes_its_forecast():
    # alpha = 2 + 2: psi = sqrt(8 * 0.5) = 2; b = -(4 / 2) 0.6 + 1 * 1.4, no push.
    guard = upstream(cbf_gamma=1.0)
    action, info = call(guard, [2.0, 0.0], facing(), dt=0.05)
    assert action[0] == pytest.approx(-1.2 + 1.4, abs=1e-12)
    assert info["constraint_violation"].tolist() == [0.0]
    forecast = {"p": agent([0.9, 0], [-0.3 * 0.05, 0])}
    pushed, _ = call(guard, [2.0, 0.0], facing(), dt=0.05, predicted=forecast)
    assert pushed[0] == pytest.approx(action[0] - 0.3, abs=1e-12)


def test_filter_upstream_takes_lambda_as_it_is():
    # Ours cuts lambda = -9 back to what the box can do and solves; the published one cannot.
    agents, state = facing(), slack(fill=-9.0)
    assert call(wae_filter(), [0.0, 0.0], agents, state=state)[1]["status"] == "optimal"
    with pytest.raises(ConcertoSafetyInfeasible, match="braking fallback"):
        call(upstream(), [0.0, 0.0], agents, state=state)


def test_filter_upstream_raises_in_overlap_and_at_coincident_centres():
    for gap in (0.0, 0.3):
        with pytest.raises(ConcertoSafetyInfeasible, match="braking fallback"):
            call(upstream(), [0.0, 0.0], facing(1.0, gap))


def test_filter_upstream_works_with_a_partner_as_strong_as_the_ego():
    assert call(upstream(None), [0.0, 0.0], facing(0.0, 3.0))[1]["status"] == "inactive"
    with pytest.raises(ConfigurationError, match="expected an ego authority above"):
        call(wae_filter(None), [0.0, 0.0], facing(0.0, 3.0))


def test_filter_upstream_without_any_capacity_is_refused():
    agents = {uid: DoubleIntegratorControlModel(uid, 2, capacity=0.0) for uid in ("ego", "p")}
    guard = ExpCBFQP.ego_only(control_models=agents, barrier="wae", compat="upstream")
    with pytest.raises(ConfigurationError, match=r"of one of them at least, got 0\.0 in total"):
        call(guard, [0.0, 0.0], facing())


def drive_at_a_stationary_partner(guard, dt, steps_s=10.0):
    """Ego nominal +1 m/s^2 at a partner 8 m ahead, box and capacity 5; pass-through on failure."""
    duel = Duel([[-8.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]], dt, "semi_implicit")
    bounds, nearest, unfiltered = Bounds(5.0, 5.0, 1.0, 0.0, 0.0), math.inf, 0
    for _ in range(round(steps_s / dt)):
        try:
            action, _ = call(
                guard, [1.0, 0.0], duel.snapshots(), bounds=bounds, state=slack(("p1",)), dt=dt
            )
        except ConcertoSafetyInfeasible:
            action, unfiltered = np.array([1.0, 0.0]), unfiltered + 1
        nearest = min(nearest, duel.step([action.tolist(), [0.0, 0.0]]))
    return nearest, unfiltered


@pytest.mark.parametrize("dt", [0.05, 0.02])
def test_filter_upstream_drives_through_a_stationary_partner_and_the_corrected_row_does_not(dt):
    published = wae_filter(None, partners=("p1",), compat="upstream")
    nearest, unfiltered = drive_at_a_stationary_partner(published, dt)
    assert nearest < 0.1
    assert unfiltered > 0
    nearest, _ = drive_at_a_stationary_partner(wae_filter(0.0, partners=("p1",)), dt)
    assert nearest > CONTACT - 0.01  # the corrected authority; sampling still costs millimetres
    default = ExpCBFQP.ego_only(control_models=models(0.0, 2, ("p1",)))
    assert drive_at_a_stationary_partner(default, dt) == (pytest.approx(CONTACT, abs=1e-3), 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"barrier": "wae", "cbf_power": 2}, r"cbf_power: expected one of \(1, 3\), got 2"),
        ({"barrier": "wae", "max_age_s": 0.1}, r'max_age_s needs barrier="sampled"'),
        (
            {"barrier": "wae", "compat": "upstream", "prediction_error": 0.1},
            "leave prediction_error out",
        ),
        (
            {"barrier": "wae", "compat": "upstream", "budget_split": "proportional"},
            "leave budget_split out",
        ),
        ({"max_age_s": -0.1}, "max_age_s: expected a number"),
        ({"rate_limit": "maybe"}, "rate_limit: expected one of"),
    ],
)
def test_filter_option_that_would_have_no_effect_is_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        ExpCBFQP.ego_only(**({"control_models": models()} | options))
