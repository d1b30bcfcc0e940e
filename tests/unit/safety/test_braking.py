import ast
import inspect
import math

import numpy as np
import pytest

from cadenza.core.errors import InputError, UnknownNameError
from cadenza.safety import braking, emergency, emergency_jacobian
from cadenza.safety.braking import compute_min_ttc, maybe_brake, time_to_collision
from cadenza.safety.control_models import DoubleIntegratorControlModel
from cadenza.safety.emergency import CartesianAccelEmergencyController
from tests.unit.safety.scenes import agent, box

BOUNDS = box(5.0)


def actions(*uids):
    return {uid: np.array([0.1, -0.2]) for uid in uids}


def head_on(gap, speed):
    """Two agents of radius 0.2 whose surfaces are ``gap`` apart, closing at ``speed``."""
    half = 0.2 + gap / 2.0
    return {"a": agent([-half, 0], [speed / 2, 0]), "b": agent([half, 0], [-speed / 2, 0])}


def test_ttc_head_on_by_hand():
    # +-1 m, 1 m/s each, contact at 0.4 m: (2 - 0.4) / 2 = 0.8 s.
    snaps = {"a": agent([-1, 0], [1, 0]), "b": agent([1, 0], [-1, 0])}
    assert compute_min_ttc(snaps) == {("a", "b"): pytest.approx(0.8, abs=1e-12)}


@pytest.mark.parametrize(
    ("snap", "expected"),
    [
        (agent([0.4, 0], [9, 0]), 0.0),  # touching, though separating
        (agent([0.1, 0], [0, 0]), 0.0),  # overlapping at rest
        (agent([1, 0], [0, 0]), math.inf),  # no relative motion
        (agent([1, 0], [1, 0]), math.inf),  # separating
        (agent([1, 1], [-1, 0]), math.inf),  # passes at 1 m
        (agent([1, 0.4], [-1, 0]), 1.0),  # grazes: discriminant 0, closest at t = 1
    ],
)
def test_ttc_cases(snap, expected):
    # 0.4 is not exact in binary: the grazing and touching cases use radii that sum to just above.
    other = agent([0, 0], radius=0.2 + 1e-9)
    assert time_to_collision(snap, other) == pytest.approx(expected, abs=1e-4)


def test_ttc_of_fewer_than_two_agents_is_empty():
    assert compute_min_ttc({}) == {}
    assert compute_min_ttc({"a": agent([0, 0])}) == {}


def test_brake_record_is_the_promised_tuple():
    decision = maybe_brake(actions("a", "b"), head_on(5.0, 1.0), bounds=BOUNDS)
    assert decision == (None, False)
    override, fired = decision
    assert (override, fired) == (decision.override, decision.fired) == (None, False)
    assert decision.dangers == {}
    assert decision.braked == ()


def test_brake_without_pairs_does_not_fire():
    assert maybe_brake(actions("a"), {"a": agent([0, 0])}, bounds=BOUNDS) == (None, False)


@pytest.mark.parametrize("gap", [0.02, 0.05, 0.2])
@pytest.mark.parametrize("speed", [0.5, 1.0, 4.0])
def test_brake_fires_exactly_below_the_time_threshold(gap, speed):
    ttc = gap / speed
    for shift, fires in ((-1e-6, False), (1e-6, True)):
        decision = maybe_brake(
            actions("a", "b"), head_on(gap, speed), bounds=BOUNDS, tau_brake=ttc + shift
        )
        assert decision.fired is fires


def test_brake_does_not_fire_at_the_threshold_itself():
    # c = 1 - 0.25, b = -1: 0.75 / (1 + 0.5) = 0.5 s, exact in binary.
    snaps = {"a": agent([0, 0], [1, 0], radius=0.25), "b": agent([1, 0], radius=0.25)}
    assert compute_min_ttc(snaps)["a", "b"] == 0.5
    assert not maybe_brake(actions("a", "b"), snaps, bounds=BOUNDS, tau_brake=0.5).fired


def test_brake_pushes_the_pair_apart_and_names_the_reason():
    decision = maybe_brake(actions("a", "b"), head_on(0.05, 1.0), bounds=BOUNDS)
    assert decision.fired
    assert decision.override["a"] == pytest.approx([-5.0, 0.0])
    assert decision.override["b"] == pytest.approx([5.0, 0.0])
    assert decision.braked == ("a", "b")
    danger = decision.dangers["a", "b"]
    assert danger.reason == "ttc"
    assert danger.time_to_collision == pytest.approx(0.05)
    assert danger.distance == pytest.approx(0.05)
    assert danger.closing_speed == pytest.approx(1.0)


def test_brake_separating_agents_fire_only_when_they_overlap():
    apart = {"a": agent([0, 0], [-1, 0]), "b": agent([0.41, 0], [1, 0])}
    assert not maybe_brake(actions("a", "b"), apart, bounds=BOUNDS, dt=0.05).fired
    overlap = {"a": agent([0, 0], [-1, 0]), "b": agent([0.39, 0], [1, 0])}
    decision = maybe_brake(actions("a", "b"), overlap, bounds=BOUNDS)
    assert decision.dangers["a", "b"].reason == "contact"


def test_brake_leaves_a_far_agent_its_very_array():
    snaps = head_on(0.05, 1.0) | {"c": agent([50, 0])}
    proposed = actions("a", "b", "c")
    decision = maybe_brake(proposed, snaps, bounds=BOUNDS)
    assert decision.override["c"] is proposed["c"]
    assert decision.braked == ("a", "b")


def test_brake_squeezed_agent_stays_and_the_outer_ones_leave():
    snaps = {"a": agent([-0.41, 0], [0.5, 0]), "b": agent([0, 0]), "c": agent([0.41, 0], [-0.5, 0])}
    override = maybe_brake(actions("a", "b", "c"), snaps, bounds=BOUNDS).override
    assert np.abs(override["b"]).max() <= 1e-12
    assert override["a"] == pytest.approx([-5.0, 0.0])
    assert override["c"] == pytest.approx([5.0, 0.0])


def test_brake_squeezed_agent_that_moves_is_stopped():
    snaps = {
        "a": agent([-0.41, 0], [0.5, 0]),
        "b": agent([0, 0], [0, 2.0]),
        "c": agent([0.41, 0], [-0.5, 0]),
    }
    override = maybe_brake(actions("b"), snaps, bounds=BOUNDS).override
    assert override["b"] == pytest.approx([0.0, -5.0])


def test_brake_coincident_agents_push_along_x():
    snaps = {"a": agent([0, 0]), "b": agent([0, 0])}
    override = maybe_brake(actions("a", "b"), snaps, bounds=BOUNDS).override
    assert override["a"].tolist() == [5.0, 0.0]
    assert override["b"].tolist() == [-5.0, 0.0]


def test_brake_obstacles_need_no_action_and_never_fire_among_themselves():
    snaps = head_on(0.05, 1.0)
    decision = maybe_brake(actions("a"), snaps, bounds=BOUNDS)
    assert set(decision.override) == {"a"}
    assert decision.braked == ("a",)
    crowd = {"a": agent([90, 0]), **{uid: agent([0, 0]) for uid in ("x", "y")}}
    assert maybe_brake(actions("a"), crowd, bounds=BOUNDS) == (None, False)


def test_brake_stopping_test_fires_long_before_the_time_threshold():
    # 5 m/s against 5 m/s^2 each, alpha = 10: stops in 25 / 20 + 5 * 0.05 = 1.5 m.
    for gap, fires in ((1.49, True), (1.51, False)):
        decision = maybe_brake(actions("a", "b"), head_on(gap, 5.0), bounds=BOUNDS, dt=0.05)
        assert decision.fired is fires
    assert maybe_brake(actions("a", "b"), head_on(1.49, 5.0), bounds=BOUNDS).fired is False


def test_brake_stopping_test_counts_an_obstacle_against_the_ego():
    models = {
        "a": DoubleIntegratorControlModel("a", 2),
        "b": DoubleIntegratorControlModel("b", 2, capacity=1.0),
    }
    # alpha = 5 - 1 = 4: 4 / 8 + 2 * 0.05 = 0.6 m; b as a controlled agent: alpha = 6, 0.433 m.
    for gap, alone, both in ((0.59, True, False), (0.43, True, True), (0.61, False, False)):
        for uids, fires in ((("a",), alone), (("a", "b"), both)):
            decision = maybe_brake(
                actions(*uids), head_on(gap, 2.0), bounds=BOUNDS, dt=0.05, control_models=models
            )
            assert decision.fired is fires
            if fires:
                assert decision.dangers["a", "b"].reason == "stopping"


def test_brake_without_authority_fires_on_any_approach():
    # Ego and obstacle share one capacity: nothing is left to stop with.
    decision = maybe_brake(actions("a"), head_on(3.0, 0.1), bounds=BOUNDS, dt=0.05)
    assert decision.dangers["a", "b"].reason == "stopping"


def test_brake_holds_on_until_the_release_threshold():
    pair = {("a", "b")}
    for gap, again in ((0.11, True), (0.124, True), (0.126, False)):
        decision = maybe_brake(
            actions("a", "b"), head_on(gap, 1.0), bounds=BOUNDS, still_braking=pair
        )
        assert decision.fired is again
    assert not maybe_brake(actions("a", "b"), head_on(0.11, 1.0), bounds=BOUNDS).fired


def test_brake_uses_the_controller_of_each_agent():
    class Honk:
        def compute_override(self, agent_state, pairwise_repulsion_vectors, bounds):
            return np.array([float(len(pairwise_repulsion_vectors)), 0.0])

    controllers = {"a": Honk(), "b": CartesianAccelEmergencyController()}
    override = maybe_brake(
        actions("a", "b"), head_on(0.05, 1.0), bounds=BOUNDS, emergency_controllers=controllers
    ).override
    assert override["a"].tolist() == [1.0, 0.0]
    assert override["b"] == pytest.approx([5.0, 0.0])


def test_brake_result_does_not_depend_on_the_order_of_agents():
    snaps = {
        "a": agent([0, 0], [1, 0]),
        "b": agent([0.45, 0.1], [-1, 0]),
        "c": agent([0.1, 0.45], [0, -1]),
    }
    first = maybe_brake(actions("a", "b", "c"), snaps, bounds=BOUNDS)
    backwards = dict(reversed(snaps.items()))
    second = maybe_brake(actions("c", "a", "b"), backwards, bounds=BOUNDS)
    assert first.dangers == second.dangers
    for uid in "abc":
        assert first.override[uid].tobytes() == second.override[uid].tobytes()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"tau_brake": 0.0}, InputError, "tau_brake: expected a finite time > 0"),
        ({"tau_brake": math.nan}, InputError, "tau_brake"),
        ({"dt": -1.0}, InputError, "dt: expected a finite time > 0"),
        ({"emergency_controllers": {}}, UnknownNameError, "emergency controller of 'a'"),
        ({"control_models": {}, "dt": 0.05}, UnknownNameError, "control model of 'a'"),
    ],
)
def test_brake_malformed_call_is_refused(change, error, message):
    with pytest.raises(error, match=message):
        maybe_brake(actions("a", "b"), head_on(0.05, 1.0), bounds=BOUNDS, **change)


def test_brake_action_of_an_agent_without_snapshot_is_refused():
    with pytest.raises(InputError, match="expected a snapshot of 'z'"):
        maybe_brake(actions("a", "z"), head_on(0.05, 1.0), bounds=BOUNDS)


@pytest.mark.parametrize("module", [braking, emergency, emergency_jacobian])
def test_brake_modules_need_no_solver(module):
    source = inspect.getsource(module)
    imported = {
        alias.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom | ast.Import)
        for alias in node.names
    }
    for word in ("QPSolver", "ClarabelSolver", "OSQPSolver", "qpsolvers", "cvxpy", "daqp", "piqp"):
        assert word.lower() not in source.lower()
    assert not {"project", "DaqpSolver", "project_one_row"} & imported
