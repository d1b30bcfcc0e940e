"""Arguments of the wrong kind are named, wherever a filter is built or called."""

import math

import numpy as np
import pytest

from cadenza.core.checks import is_real, is_whole
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety.cbf_qp import ExpCBFQP, pair_h_value
from cadenza.safety.conformal import compute_per_pair_loss, compute_prediction_gap_for_pairs
from cadenza.safety.control_models import JacobianControlModel
from cadenza.safety.oscbf import OSCBF, joint_limit_constraint_row
from cadenza.safety.pairs import make_lambda_dict
from cadenza.safety.state import SafetyState
from tests.unit.safety.scenes import agent, box, call, ego_filter, models, slack

NEAR = {"ego": agent([-0.8, 0.0], [0.8, 0.0]), "p": agent([0.0, 0.0])}


def test_kinds_of_numbers():
    assert [is_real(x) for x in (1, 0.5, np.float32(1), math.nan)] == [True] * 4
    assert [is_real(x) for x in (True, np.True_, "1", None, 1j, 10**400)] == [False] * 6
    assert [is_whole(x) for x in (1, np.int64(2))] == [True] * 2
    assert [is_whole(x) for x in (True, 1.0, "1", None)] == [False] * 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cbf_gamma": "x"}, "cbf_gamma: expected a number in .* got 'x'"),
        ({"margin_m": True}, "margin_m: expected a number"),
        ({"max_age_s": None}, "max_age_s: expected a number .* got None"),
        ({"prediction_error": [1]}, "prediction_error: expected a number"),
        ({"cbf_power": True, "barrier": "wae"}, "cbf_power: expected one of"),
        ({"plant": np.array(["zoh", "zoh"])}, "plant: expected one of"),
        ({"budget_split": math.nan}, "budget_split: expected a BudgetSplitStrategy, the name"),
        ({"solver": "daqp"}, "solver: expected a QPSolver or None, got str; take one from"),
        ({"control_models": "x"}, "control_models: expected control models by agent id, got str"),
        ({"control_models": {"p": 3}}, r"control_models\['p'\]: expected an AgentControlModel"),
    ],
)
def test_ego_filter_refuses_options_of_another_kind(options, message):
    with pytest.raises(ConfigurationError, match=message):
        ExpCBFQP.ego_only(**({"control_models": models()} | options))


@pytest.mark.parametrize("mode", ["centralized", "shared_control"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dt": "x"}, "dt: expected seconds in .* got 'x'"),
        ({"dt": True}, "dt: expected seconds in .* got True"),
        ({"bounds_by_uid": "x"}, "bounds_by_uid: expected Bounds by agent id, got str"),
        ({"bounds_by_uid": {"p": 1.0}}, r"bounds_by_uid\['p'\]: expected Bounds, got float"),
        ({"solver": 3}, "solver: expected a QPSolver or None, got int"),
        ({"control_models": [1]}, "control_models: expected control models by agent id"),
    ],
)
def test_joint_filters_refuse_options_of_another_kind(mode, options, message):
    with pytest.raises(ConfigurationError, match=message):
        getattr(ExpCBFQP, mode)(**({"control_models": models(), "dt": 0.05} | options))


@pytest.mark.parametrize("mode", ["centralized", "shared_control"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"state": None}, "state: expected SafetyState, got NoneType"),
        ({"bounds": None}, "bounds: expected Bounds, got NoneType"),
        ({"state": SafetyState({("ego", "p"): "x"})}, r"expected a finite number, got 'x'"),
        ({"state": SafetyState({})}, "for all pairs of proposed_action with make_lambda_dict"),
    ],
)
def test_joint_filters_refuse_arguments_of_another_kind(mode, arguments, message):
    guard = getattr(ExpCBFQP, mode)(control_models=models(), dt=0.05)
    given = {
        "proposed_action": {"ego": np.zeros(2), "p": np.zeros(2)},
        "obs": {"agent_states": NEAR},
        "state": slack(),
        "bounds": box(),
        "ego_uid": "ego",
        "partner_action_bound": 1.0,
    }
    with pytest.raises(InputError, match=message):
        guard.filter(**(given | arguments))


@pytest.mark.parametrize("uid", [["ego"], {}, np.zeros(2), 3])
def test_ego_filter_refuses_an_ego_that_is_no_id(uid):
    with pytest.raises(InputError, match="ego_uid: expected the id of an agent, got"):
        ego_filter().filter(
            np.zeros(2),
            {"agent_states": NEAR},
            slack(),
            box(),
            ego_uid=uid,
            partner_predicted_states=NEAR,
            dt=0.05,
        )


@pytest.mark.parametrize("value", [None, "x", [1], 1j, math.nan])
def test_ego_filter_refuses_slack_that_is_no_number(value):
    with pytest.raises(InputError, match=r"state.lambda_\[.*: expected a finite number"):
        call(ego_filter(), [0.0, 0.0], NEAR, state=SafetyState({("ego", "p"): value}))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SafetyState(None), "SafetyState.lambda_: expected a number by agent pair"),
        (lambda: SafetyState({}, epsilon="x"), "SafetyState.epsilon: expected a finite number"),
        (lambda: SafetyState({}, eta=None), "SafetyState.eta: expected a finite number"),
        (lambda: SafetyState({}, warmup_steps_remaining=math.nan), "expected a whole number >= 0"),
        (lambda: make_lambda_dict(["a", "b"], fill=math.nan), "fill: expected a finite number"),
        (lambda: make_lambda_dict(["a", "b"], fill="x"), "fill: expected a finite number, got 'x'"),
        (lambda: JacobianControlModel("a", 2.5, 2), "action_dim: expected >= 1, got 2.5"),
        (lambda: JacobianControlModel("a", 2, None), "position_dim: expected >= 2, got None"),
        (lambda: JacobianControlModel("a", 2, 2, damping="x"), "damping: expected a number >= 0"),
        (lambda: OSCBF(n_joints=math.inf), "n_joints: expected a whole number in .* got inf"),
        (lambda: OSCBF(n_joints=True), "n_joints: expected a whole number"),
        (lambda: OSCBF(n_joints=2, weight_joint="x"), "weight_joint: expected a finite number"),
        (
            lambda: joint_limit_constraint_row(n_joints=2, joint_index=True, upper=1.0),
            "expected a whole joint_index in .* got True",
        ),
        (lambda: pair_h_value(*NEAR.values(), alpha_pair=math.nan), "alpha_pair: expected an acc"),
        (lambda: pair_h_value(*NEAR.values(), alpha_pair=-1.0), "alpha_pair: expected an acc"),
        (
            lambda: compute_prediction_gap_for_pairs(NEAR, NEAR, alpha_pair=math.inf, gamma=1.0),
            "alpha_pair: expected an acceleration >= 0",
        ),
        (
            lambda: compute_per_pair_loss(np.array([math.nan]), np.array([0.0])),
            "per-pair loss: expected numbers, got NaN",
        ),
    ],
)
def test_parts_refuse_arguments_of_another_kind(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_ego_filter_follows_a_control_model_that_changes_what_it_declares():
    partner = JacobianControlModel("p", 2, 2, max_cartesian_accel_value=0.2)
    known = models() | {"p": partner}
    guard = ExpCBFQP.ego_only(control_models=known)
    weak = call(guard, [2.0, 0.0], NEAR)[0]
    partner.max_cartesian_accel_value = 1.5
    strong = call(guard, [2.0, 0.0], NEAR)[0]
    fresh = call(ExpCBFQP.ego_only(control_models=known), [2.0, 0.0], NEAR)[0]
    assert strong.tolist() == fresh.tolist()
    assert strong[0] < weak[0]
