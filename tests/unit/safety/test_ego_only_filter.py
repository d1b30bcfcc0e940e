import math

import numpy as np
import pytest

from cadenza.core.errors import ConfigurationError, InputError, UnknownNameError
from cadenza.safety.cbf_qp import ExpCBFQP
from cadenza.safety.contracts import SafetyState
from cadenza.safety.control_models import DoubleIntegratorControlModel, JacobianControlModel
from cadenza.safety.errors import ConcertoSafetyInfeasible
from cadenza.safety.solvers import QPSolution, SolveStatus, make_solver
from tests.unit.safety.scenes import agent, box, call, ego_filter, models, slack

# One scene by hand: ego at the origin, partner at (0.8, 0) at rest, ego moving at 0.5 m/s to it.
# n = (-1, 0), r = 0.8, e = 0.4, w = 0.5. Box 2, partner bound 0.5: alpha = 1.5, dt = 0.1.
# c_max: c^2 / 3 + 0.15 c = 0.4 has c = (-0.15 + sqrt(0.0225 + 1.6 / 3)) * 1.5.
C_MAX = 1.5 * (-0.15 + math.sqrt(0.0225 + 1.6 / 3))
LEVEL = (C_MAX - 0.5) / 0.1 - 0.5


def approach(speed=0.5, gap=0.8):
    return {"ego": agent([0, 0], [speed, 0]), "p": agent([gap, 0])}


def test_filter_action_on_the_row_by_hand():
    # C_MAX = 0.8933, so u_x <= 3.433 without and 3.433 - 3 with lambda = -3; u_y is free.
    assert pytest.approx(3.433, abs=1e-3) == LEVEL
    action, info = call(ego_filter(), [2.0, -1.0], approach(), dt=0.1, state=slack(fill=-3.0))
    assert action == pytest.approx([LEVEL - 3.0, -1.0], abs=1e-12)
    assert info["status"] == "optimal"
    assert info["intervention"] == pytest.approx(2.0 - (LEVEL - 3.0), abs=1e-12)
    assert info["lambda"] == {("ego", "p"): -3.0}
    assert info["margin"] == pytest.approx([0.4])
    assert info["constraint_violation"].tolist() == [0.0]
    assert info["slack"].tolist() == [0.0]
    assert info["prediction_gap_loss"] is None
    assert info["fallback_fired"] is False
    assert info["qp_solve_ms"] > 0.0
    assert info["uncertified"] is False


def test_filter_without_partners_only_keeps_the_box():
    action, info = call(ego_filter(), [3.0, 0.5], {"ego": agent([0, 0])})
    assert action.tolist() == [2.0, 0.5]
    assert info["constraint_violation"].shape == (0,)
    assert info["uncertified"] is False


def test_filter_gamma_sets_how_fast_overlap_is_undone():
    # Overlap 0.01 m at rest: c_max = -gamma 0.01; u_x <= -gamma 0.01 / 0.1 - 0.5.
    for gamma in (2.0, 5.0):
        action, info = call(ego_filter(cbf_gamma=gamma), [1.0, 0.0], approach(0.0, 0.39), dt=0.1)
        assert action[0] == pytest.approx(-0.1 * gamma - 0.5, abs=1e-9)
        assert info["constraint_violation"] == pytest.approx([0.01 * gamma])
        assert info["margin"] == pytest.approx([-0.01])
        assert info["uncertified"] is True


def test_filter_infeasible_raises_when_asked_to():
    guard = ego_filter(on_infeasible="raise")
    with pytest.raises(ConcertoSafetyInfeasible, match="use the braking fallback"):
        call(guard, [2.0, 0.4], approach(3.0, 0.6))
    assert call(guard, [0.0, 0.0], approach(0.0, 3.0))[1]["status"] == "inactive"


def test_filter_positive_lambda_relaxes_and_voids_the_certificate():
    plain, _ = call(ego_filter(), [2.0, 0.0], approach(1.2, 0.95), dt=0.1)
    relaxed, info = call(
        ego_filter(), [2.0, 0.0], approach(1.2, 0.95), dt=0.1, state=slack(fill=0.5)
    )
    assert relaxed[0] == pytest.approx(plain[0] + 0.5, abs=1e-12)
    assert info["uncertified"] is True


def test_filter_negative_lambda_never_makes_one_row_infeasible():
    action, info = call(ego_filter(), [2.0, 0.0], approach(), dt=0.1, state=slack(fill=-1e3))
    assert info["status"] == "optimal"
    assert action[0] == pytest.approx(-2.0, abs=1e-6)
    # Exactly as tight as the box allows: lambda = -c |row| - level.
    assert info["lambda"]["ego", "p"] == pytest.approx(-2.0 - LEVEL, abs=1e-6)


def test_filter_negative_lambda_is_dropped_when_it_sets_rows_against_each_other():
    agents = {"ego": agent([0, 0]), "p": agent([0.5, 0]), "q": agent([-0.5, 0])}
    guard = ego_filter(partners=("p", "q"))
    # At rest, 0.1 m apart, either row allows all |u_x| <= 2; at lambda = -20 each row alone is cut
    # back to what the box can do, u_x <= -2 and u_x >= 2, which contradict each other.
    action, info = call(guard, [2.0, 0.0], agents, state=slack(("p", "q"), fill=-20.0))
    assert info["status"] in ("inactive", "optimal")
    assert info["lambda"] == {("ego", "p"): 0.0, ("ego", "q"): 0.0}
    assert action.tolist() == call(guard, [2.0, 0.0], agents)[0].tolist()


def forecast(accel, dt=0.1):
    return {"p": agent([0.8, 0], [accel * dt, 0])}


def test_filter_default_ignores_a_forecast_within_the_bound():
    plain, _ = call(ego_filter(), [2.0, 0.0], approach(1.0), dt=0.1)
    # n = (-1, 0): the partner accelerating along -x pushes the ego.
    for accel in (-0.4, 0.0, 0.4):
        action, info = call(
            ego_filter(), [2.0, 0.0], approach(1.0), dt=0.1, predicted=forecast(accel)
        )
        assert action.tolist() == plain.tolist()
        assert info["uncertified"] is False


def test_filter_default_takes_a_forecast_beyond_the_bound_seriously():
    plain, _ = call(ego_filter(), [2.0, 0.0], approach(0.9), dt=0.1)
    action, info = call(ego_filter(), [2.0, 0.0], approach(0.9), dt=0.1, predicted=forecast(-0.9))
    assert action[0] == pytest.approx(plain[0] - 0.4, abs=1e-12)
    assert info["uncertified"] is True


def test_filter_trusted_forecast_replaces_the_bound():
    guard = ego_filter(prediction_error=0.1)
    plain, _ = call(ego_filter(), [2.0, 0.0], approach(1.0), dt=0.1)
    actions = {
        accel: call(guard, [2.0, 0.0], approach(1.0), dt=0.1, predicted=forecast(accel))[0][0]
        for accel in (-0.3, 0.0, 0.3)
    }
    # push = -accel + 0.1 instead of 0.5: towards the ego tightens, away loosens.
    for accel, value in actions.items():
        assert value == pytest.approx(plain[0] + 0.5 - (-accel + 0.1), abs=1e-12)
    assert actions[-0.3] < actions[0.0] < actions[0.3]


def test_filter_counts_the_acceleration_of_a_zero_action():
    partner = DoubleIntegratorControlModel("p", 2, capacity=0.5)

    def action(bias):
        model = JacobianControlModel(
            "ego",
            3,
            2,
            lambda _: np.array([[2.0, 0.0, 0.0], [0.0, 1.5, 0.5]]),
            bias_fn=lambda _: np.array([bias, 0.0]),
            max_cartesian_accel_value=1.5,
        )
        guard = ExpCBFQP.ego_only(control_models={"ego": model, "p": partner})
        return call(guard, [0.9, 0.3, -0.2], approach(0.7), bounds=box(1.0), dt=0.1)[0]

    # n = (-1, 0). The box reaches 2 - 0.1 or more everywhere, the credit stays at the 1.5 declared.
    plain, toward, away = (action(bias) for bias in (0.0, 0.1, -0.1))
    c_max = -0.15 + math.sqrt(0.0225 + 0.8)  # alpha = 1
    assert plain[0] == pytest.approx(((c_max - 0.7) / 0.1 - 0.5) / 2.0, abs=1e-12)
    # A drift of 0.1 m/s^2 at the partner takes that much from the level; u_0 acts twofold.
    assert toward[0] == pytest.approx(plain[0] - 0.05, abs=1e-12)
    assert away[0] == pytest.approx(plain[0] + 0.05, abs=1e-12)


def test_filter_partner_as_strong_as_the_ego_is_refused():
    with pytest.raises(ConfigurationError, match=r"got 2 m/s\^2 against 2 m/s\^2 of 'p'"):
        call(ego_filter(2.0), [0.0, 0.0], approach())
    # A capacity beyond the box does not help: the box gives 2 in the weakest direction.
    with pytest.raises(ConfigurationError, match="declare what the partner can really do"):
        call(ego_filter(2.0), [0.0, 0.0], approach(), bounds=box(2.0, capacity=2.8))


def test_filter_new_bounds_dt_and_agents_take_effect_at_once():
    guard = ego_filter(partners=("p", "q"))
    first, _ = call(guard, [2.0, 0.0], approach(1.2, 0.95), dt=0.1)
    other_dt, _ = call(guard, [2.0, 0.0], approach(1.2, 0.95), dt=0.05)
    other_box, _ = call(guard, [2.0, 0.0], approach(1.2, 0.95), dt=0.1, bounds=box(3.0))
    agents = approach(1.2, 0.95)
    third = {"ego": agents["ego"], "q": agents["p"]}
    other_agent, _ = call(guard, [2.0, 0.0], third, dt=0.1, state=slack(("q",)))
    assert len({first[0], other_dt[0], other_box[0]}) == 3
    assert other_agent.tolist() == first.tolist()
    assert call(guard, [2.0, 0.0], approach(1.2, 0.95), dt=0.1)[0].tolist() == first.tolist()


def test_filter_does_not_change_the_state_and_copies_lambda():
    state = slack(fill=-0.25)
    _, info = call(ego_filter(), [2.0, 0.0], approach(), state=state)
    info["lambda"]["ego", "p"] = 9.0
    assert state == slack(fill=-0.25)


def test_filter_barrier_values_match_the_violation_it_reports():
    guard, agents = ego_filter(margin_m=0.05), approach(3.0, 0.6)
    values = guard.barrier_values(agents, box(), ego_uid="ego", dt=0.05)
    _, info = call(guard, [0.0, 0.0], agents)
    assert values["ego", "p"] < 0.0
    assert info["constraint_violation"] == pytest.approx([-values["ego", "p"]])


class SolveOnly:
    """A solver that offers one method: rows in, minimiser and milliseconds out."""

    def __init__(self):
        self.calls = 0

    def solve(self, P, q, A, b, *, warm_start=True):
        self.calls += 1
        x, elapsed_ms = make_solver("clarabel").solve(P, q, A, b, warm_start=warm_start)
        return x + 1e-8, elapsed_ms  # as close as such methods come


def test_filter_takes_a_solver_that_offers_solve_only():
    open_ = {"ego": agent([0, 0], [0.9, 0.9]), "p": agent([0.75, 0.1]), "q": agent([0.1, 0.75])}
    p, q = agent([0.34, -0.19], [0.4, 0.7]), agent([-0.22, 0.43], [0.4, -0.3])
    closed = {"ego": agent([0, 0]), "p": p, "q": q}
    for scene, status in ((open_, "optimal"), (closed, "infeasible")):
        mine = SolveOnly()
        expected, _ = call(ego_filter(partners=("p", "q")), [2.0, 2.0], scene)
        action, info = call(ego_filter(partners=("p", "q"), solver=mine), [2.0, 2.0], scene)
        assert mine.calls > 0
        assert info["status"] == status
        assert action == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("status", [SolveStatus.NUMERICAL, SolveStatus.INFEASIBLE])
def test_filter_solver_failure_is_flagged_and_never_returns_the_nominal(status):
    class Failing:
        def run(self, P, q, A, b, lower, upper):
            return QPSolution(-q, status, 1)

    agents = {"ego": agent([0, 0], [0.9, 0.9]), "p": agent([0.75, 0.1]), "q": agent([0.1, 0.75])}
    guard = ego_filter(partners=("p", "q"), solver=Failing())
    action, info = call(guard, [2.0, 2.0], agents)
    assert info["status"] == status.value
    assert info["uncertified"] is True
    assert info["slack"].max() > 0.0
    assert action.tolist() != [2.0, 2.0]
    good, good_info = call(ego_filter(partners=("p", "q")), [2.0, 2.0], agents)
    assert good_info["status"] == "optimal"
    assert np.all(good < 2.0)


def arguments(**change):
    agents = approach()
    return {
        "proposed_action": np.zeros(2),
        "obs": {"agent_states": agents},
        "state": slack(),
        "bounds": box(),
        "ego_uid": "ego",
        "partner_predicted_states": {"p": agents["p"]},
        "dt": 0.05,
    } | change


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"ego_uid": None}, InputError, "ego_uid is required"),
        ({"ego_uid": ["ego"]}, InputError, "ego_uid: expected the id of an agent, got"),
        ({"partner_predicted_states": None}, InputError, "partner_predicted_states is required"),
        ({"partner_predicted_states": []}, InputError, "expected snapshots by agent id, got list"),
        ({"state": None}, InputError, "state: expected SafetyState, got NoneType"),
        ({"bounds": 2.0}, InputError, "bounds: expected Bounds, got float"),
        ({"dt": None}, InputError, "dt is required"),
        ({"dt": 0.0}, InputError, "dt must be a finite number"),
        ({"dt": math.nan}, InputError, "dt must be a finite number"),
        ({"dt": 1e-300}, InputError, "dt must be a finite number"),
        ({"proposed_action": [0.0, 0.0]}, TypeError, "must be an array, got list"),
        ({"obs": {}}, InputError, "agent_states.* must be a dict"),
        ({"ego_uid": "x"}, InputError, r"expected the ego 'x' .* got \['ego', 'p'\]"),
        ({"state": SafetyState({})}, InputError, "key set mismatch"),
        ({"state": slack(fill=math.nan)}, InputError, r"lambda_\[.*\]: expected a finite number"),
        ({"proposed_action": np.zeros(3)}, InputError, r"expected shape \(2,\), got \(3,\)"),
        (
            {"proposed_action": np.array([0.0, np.nan])},
            InputError,
            "proposed_action: expected finite",
        ),
        ({"proposed_action": np.array(["a", "b"])}, InputError, "expected real numbers"),
        (
            {"obs": {"agent_states": approach() | {"p": {"position": [0, 0]}}}},
            InputError,
            "agent_states: expected AgentSnapshot, got dict",
        ),
        (
            {"obs": {"agent_states": approach() | {"p": agent([1, 0, 0])}}},
            InputError,
            "expected 2 dimensions like the ego's",
        ),
        ({"partner_predicted_states": {}}, UnknownNameError, "'p' in partner_predicted_states"),
        ({"partner_predicted_states": {"p": None}}, InputError, "expected AgentSnapshot, got None"),
    ],
)
def test_filter_malformed_call_is_refused(change, error, message):
    with pytest.raises(error, match=message):
        ego_filter().filter(**arguments(**change))


def test_filter_agent_without_control_model_is_refused():
    guard = ExpCBFQP.ego_only(control_models={"p": DoubleIntegratorControlModel("p", 2)})
    with pytest.raises(KeyError, match="'ego' in control_models"):
        guard.filter(**arguments())
    guard = ExpCBFQP.ego_only(control_models={"ego": DoubleIntegratorControlModel("ego", 2)})
    with pytest.raises(KeyError, match="'p' in control_models"):
        guard.filter(**arguments())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"control_models": {}}, "expected at least one control model"),
        (
            {"control_models": {"a": DoubleIntegratorControlModel("b", 2)}},
            "expected the control model of 'a', got one for 'b'",
        ),
        ({"cbf_gamma": 0.0}, "cbf_gamma: expected a number"),
        ({"margin_m": -0.1}, "margin_m: expected a number"),
        ({"prediction_error": math.inf}, "prediction_error"),
        ({"plant": "euler"}, "plant: expected one of .* got 'euler'"),
        ({"on_infeasible": "ignore"}, "on_infeasible: expected one of"),
    ],
)
def test_filter_bad_option_is_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        ExpCBFQP.ego_only(**({"control_models": models()} | options))


def test_filter_follows_a_control_model_that_changes_what_it_declares():
    partner = JacobianControlModel("p", 2, 2, max_cartesian_accel_value=0.2)
    known = models() | {"p": partner}
    guard, near = ExpCBFQP.ego_only(control_models=known), approach(0.8)
    weak = call(guard, [2.0, 0.0], near)[0]
    partner.max_cartesian_accel_value = 1.5
    strong = call(guard, [2.0, 0.0], near)[0]
    fresh = call(ExpCBFQP.ego_only(control_models=known), [2.0, 0.0], near)[0]
    assert strong.tolist() == fresh.tolist()
    assert strong[0] < weak[0]
