"""What a step says about balls that overlap, and about a row that was raised to its floor."""

import numpy as np
import pytest

from cadenza.safety.cbf import barrier_value, barrier_violation
from cadenza.safety.cbf_qp import ExpCBFQP
from cadenza.safety.contracts import SafetyState
from tests.unit.safety.scenes import agent, box, call, ego_filter, models

DT = 0.05


def apart(age_s=0.0, *, gap=0.3, speed=1.0):
    """Balls of 0.2 m whose centres are ``gap`` apart, the ego moving away at ``speed``."""
    return {"ego": agent([0.0, 0.0], [-speed, 0.0]), "p": agent([gap, 0.0], age_s=age_s)}


def test_violation_of_an_overlap_is_what_the_row_asks_to_undo():
    # e = -0.1 m, w = -1 m/s, gamma = 5: h = -0.5 + 1 > 0, yet 0.5 m/s of separation are asked for.
    h = barrier_value(-0.1, -1.0, 1.5, DT, 5.0)
    assert h == pytest.approx(0.5)
    assert barrier_violation(h, -0.1, 5.0) == pytest.approx(0.5)
    assert barrier_violation(-2.0, -0.1, 5.0) == 2.0
    assert barrier_violation(h, -0.1, 0.0) == 0.0
    assert barrier_violation(-0.3, 0.1, 5.0) == 0.3
    assert str(barrier_violation(0.0, 0.0, 5.0)) == "0.0"


def test_ego_filter_reports_an_overlap_that_dissolves_fast():
    _, info = call(ego_filter(), [0.0, 0.0], apart())
    assert info["uncertified"] is True
    assert info["constraint_violation"] == pytest.approx([0.5])
    assert info["margin"] == pytest.approx([-0.1])
    assert info["status"] == "inactive"


def test_ego_filter_counts_the_margin_as_overlap_but_not_rounding():
    _, info = call(ego_filter(margin_m=0.1), [0.0, 0.0], apart(gap=0.45))
    assert info["uncertified"] is True
    assert info["constraint_violation"] == pytest.approx([0.25])
    _, info = call(ego_filter(), [0.0, 0.0], apart(gap=0.4 - 1e-9))
    assert info["uncertified"] is False


def test_old_packet_that_rules_out_every_state_but_overlap_is_uncertified():
    # a_p = 0.5 and age 0.05 s leave 0.00125 m of doubt.
    for gap, uncertified in ((0.3, True), (0.3985, True), (0.399, False)):
        _, info = call(ego_filter(max_age_s=DT), [0.0, 0.0], apart(DT, gap=gap))
        assert info["uncertified"] is uncertified, gap
    assert info["constraint_violation"] == pytest.approx([0.005])


@pytest.mark.parametrize("mode", ["centralized", "shared_control"])
def test_joint_filters_report_an_overlap_that_dissolves_fast(mode):
    guard = getattr(ExpCBFQP, mode)(control_models=models(2.0), dt=DT)
    shared = {"ego_uid": "ego", "partner_action_bound": 5.0} if mode == "shared_control" else {}
    for gap, uncertified, violation in ((0.3, True, 0.5), (0.5, False, 0.0)):
        _, info = guard.filter(
            {"ego": np.zeros(2), "p": np.zeros(2)},
            {"agent_states": apart(gap=gap)},
            SafetyState({("ego", "p"): 0.0}),
            box(),
            **shared,
        )
        assert info["uncertified"] is uncertified
        assert info["constraint_violation"] == pytest.approx([violation])


def floored():
    """An ego so close to an old packet that the row is raised to what braking can do."""
    return {"ego": agent([0, 0], [0.1, 0.0]), "p": agent([0.44, 0.0], age_s=0.3)}


def test_floor_is_covered_only_where_the_safe_set_cannot_have_been_left():
    alone = floored()
    crowd = alone | {"q": agent([0.0, 9.0])}
    calm = crowd | {"p": agent([2.0, 0.0], age_s=0.3)}
    limited = {"max_age_s": 0.3, "rate_limit": "hard"}
    for scene, options, uncertified in (
        (alone, {"max_age_s": 0.3}, False),
        (alone, limited, True),
        (crowd, {"max_age_s": 0.3}, True),
        (calm, {"max_age_s": 0.3}, False),
        (calm, limited, False),
    ):
        partners = tuple(uid for uid in scene if uid != "ego")
        _, info = call(ego_filter(partners=partners, **options), [2.0, 0.0], scene)
        assert info["uncertified"] is uncertified, (partners, options)
        assert info["status"] in ("optimal", "inactive")


def test_floor_with_a_forecast_that_may_be_wrong_is_not_covered():
    for gap, uncertified in ((0.44, True), (2.0, False)):
        scene = {"ego": agent([0, 0], [0.1, 0.0]), "p": agent([gap, 0.0], age_s=0.3)}
        guard = ego_filter(max_age_s=0.3, prediction_error=0.5)
        assert call(guard, [2.0, 0.0], scene)[1]["uncertified"] is uncertified
