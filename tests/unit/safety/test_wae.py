"""The classical row by hand, in the published form and with the corrected authority."""

import math

import pytest

from cadenza.core.errors import ConfigurationError
from cadenza.safety.cbf import PairParameters
from cadenza.safety.cbf_qp import ExpCBFQP
from cadenza.safety.control_models import DoubleIntegratorControlModel
from cadenza.safety.errors import ConcertoSafetyInfeasible
from cadenza.safety.filters.compat import wae_level
from tests.unit.safety.scenes import agent, call, models, slack

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
    pair = PairParameters(
        alpha=4.0, partner_accel=0.0, relative_accel=0.0, dt=0.05, gamma=5.0, plant="zoh"
    )
    found = wae_level(*state, pair, power)
    assert found == (pytest.approx(level, abs=1e-6), pytest.approx(h, abs=1e-12))


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"barrier": "wae", "cbf_power": 2}, r"cbf_power: expected one of \(1, 3\), got 2"),
        ({"barrier": "wae", "max_age_s": 0.1}, r'max_age_s needs barrier="sampled"'),
        ({"barrier": "wae", "compat": "upstream", "prediction_error": 0.1}, "leave prediction_err"),
        ({"barrier": "wae", "compat": "upstream", "budget_split": "proportional"}, "leave budget_"),
        ({"max_age_s": -0.1}, "max_age_s: expected a number"),
        ({"rate_limit": "maybe"}, "rate_limit: expected one of"),
    ],
)
def test_filter_option_that_would_have_no_effect_is_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        ExpCBFQP.ego_only(**({"control_models": models()} | options))
