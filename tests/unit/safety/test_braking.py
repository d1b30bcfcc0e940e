"""Imminent collisions: when the brake fires, what it does, on old packets and under forces."""

import math

import numpy as np
import pytest

from cadenza.core.errors import InputError, UnknownNameError
from cadenza.safety.braking import compute_min_ttc, maybe_brake, time_to_collision
from cadenza.safety.contracts import Bounds
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
    # A packet of 0.3 s ago: at 1 m/s the partner is 0.3 m nearer than it says.
    late = {"a": agent([0, 0]), "b": agent([2, 0], [-1, 0], age_s=0.3)}
    assert compute_min_ttc(late) == {("a", "b"): pytest.approx(2.0 - 0.3 - 0.4)}


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


def test_brake_does_not_fire_at_the_threshold_itself():
    # c = 1 - 0.25, b = -1: 0.75 / (1 + 0.5) = 0.5 s, exact in binary.
    snaps = {"a": agent([0, 0], [1, 0], radius=0.25), "b": agent([1, 0], radius=0.25)}
    assert compute_min_ttc(snaps)["a", "b"] == 0.5
    assert not maybe_brake(actions("a", "b"), snaps, bounds=BOUNDS, tau_brake=0.5).fired


def test_brake_leaves_a_far_agent_its_very_array():
    snaps = head_on(0.05, 1.0) | {"c": agent([50, 0])}
    proposed = actions("a", "b", "c")
    decision = maybe_brake(proposed, snaps, bounds=BOUNDS)
    assert decision.override["c"] is proposed["c"]
    assert decision.braked == ("a", "b")


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


def pair_of(capacity):
    return {
        "dt": 0.05,
        "control_models": {
            "a": DoubleIntegratorControlModel("a", 2),
            "b": DoubleIntegratorControlModel("b", 2, capacity=capacity),
        },
    }


#: Who is controlled, closing speed, age of b's packet, options; the gap at which it just fires.
THRESHOLDS = {
    "time": ("ab", 1.0, 0.0, {}, 0.1),
    "time and latency": ("ab", 1.0, 0.0, {"latency_s": 0.2}, 0.3),
    "release": ("ab", 1.0, 0.0, {"still_braking": {("a", "b")}}, 0.125),
    # 5 m/s against 5 m/s^2 each, alpha = 10: stops in 25 / 20 + 5 * 0.05 = 1.5 m.
    "stopping": ("ab", 5.0, 0.0, {"dt": 0.05}, 1.5),
    "stopping and latency": ("ab", 5.0, 0.0, {"dt": 0.05, "latency_s": 0.1}, 2.0),
    # alpha = 5 - 1 = 4: 4 / 8 + 2 * 0.05 = 0.6 m; b as a controlled agent: alpha = 6, 0.433 m.
    "obstacle": ("a", 2.0, 0.0, pair_of(1.0), 0.6),
    "partner": ("ab", 2.0, 0.0, pair_of(1.0), 4 / 12 + 0.1),
    # w = 2 + 0.2, lost 0.5 * 0.2 * 0.25 = 0.025 m besides; 4.84 / 8 + 2.2 * 0.05 + 0.025 m.
    "old obstacle": ("a", 2.0, 0.2, pair_of(1.0), 0.74),
    # Declared 50, box 5: 4 / 10 + 2 * 0.05 = 0.5 m, not 4 / 100 + 0.1 = 0.14 m.
    "box": ("a", 2.0, 0.0, pair_of(0.0) | {"bounds": box(5.0, capacity=50.0)}, 0.5),
}


@pytest.mark.parametrize("case", THRESHOLDS)
def test_brake_fires_up_to_the_gap_worked_out_by_hand(case):
    uids, speed, age_s, options, limit = THRESHOLDS[case]
    near, far = (
        maybe_brake(
            actions(*uids),
            {"a": agent([0, 0], [speed, 0]), "b": agent([0.4 + gap, 0], age_s=age_s)},
            **({"bounds": BOUNDS} | options),
        )
        for gap in (limit - 1e-3, limit + 1e-3)
    )
    assert near.dangers["a", "b"].reason == ("stopping" if "dt" in options else "ttc")
    assert not far.fired


def test_brake_without_authority_fires_on_any_approach():
    # Ego and obstacle share one capacity: nothing is left to stop with.
    decision = maybe_brake(actions("a"), head_on(3.0, 0.1), bounds=BOUNDS, dt=0.05)
    assert decision.dangers["a", "b"].reason == "stopping"


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


def test_brake_on_an_old_snapshot_fires_for_where_the_partner_is_now():
    def decide(age_s):
        snaps = {"a": agent([0, 0]), "b": agent([0.7, 0], [-1, 0], age_s=age_s)}
        return maybe_brake(actions("a"), snaps, bounds=BOUNDS)

    assert not decide(0.0).fired
    decision = decide(0.25)  # 0.3 - 0.25 = 0.05 m at 1 m/s
    assert decision.fired
    danger = decision.dangers["a", "b"]
    assert (danger.reason, danger.age_s) == ("ttc", 0.25)
    assert danger.distance == pytest.approx(0.05)
    # The push leaves where the partner is now: it has passed to the other side.
    passed = {"a": agent([0, 0]), "b": agent([0.39, 0], [-2.6, 0], age_s=0.3)}
    override = maybe_brake(actions("a"), passed, bounds=BOUNDS).override
    assert override["a"] == pytest.approx([5.0, 0.0])


FORCEFUL = Bounds(5.0, 5.0, 1.0, 0.0, 20.0)
APART = {"a": agent([0, 0]), "b": agent([3, 0]), "c": agent([0, 3])}


def test_brake_force_comes_before_contact_and_is_recorded_with_any_reason():
    overlap = {"a": agent([0, 0]), "b": agent([0.3, 0])}
    for force, reason in ((25.0, "force"), (5.0, "contact")):
        decision = maybe_brake(
            actions("a"), overlap, bounds=FORCEFUL, contact_forces={("a", "b"): force}
        )
        danger = decision.dangers["a", "b"]
        assert (danger.reason, danger.force) == (reason, force)


@pytest.mark.parametrize(
    ("forces", "fires"),
    [
        ({("b", "c"): 99.0, ("a", "elsewhere"): 99.0}, False),  # uncontrolled or absent
        ({("a", "b"): 25.0, ("b", "a"): 1.0}, True),  # given twice: the larger counts
    ],
)
def test_brake_force_is_the_larger_one_of_a_controlled_agent(forces, fires):
    decision = maybe_brake(actions("a"), APART, bounds=FORCEFUL, contact_forces=forces)
    assert decision.fired if fires else decision == (None, False)


@pytest.mark.parametrize(
    ("previous", "done"),
    [
        ([2.0, 0.4], [0.5, 0.0]),  # the push is (-5, 0): each component moves by at most 1.5
        ([-9.0, 0.0], [-5.0, 0.0]),  # inside the box
        ([-4.0, 0.0], [-5.0, 0.0]),  # near enough
    ],
)
def test_brake_respects_the_action_rate_of_agents_with_a_previous_action(previous, done):
    for agents in ("a", "ab"):
        decision = maybe_brake(
            actions(*agents),
            head_on(0.05, 1.0),
            bounds=Bounds(5.0, 5.0, 1.5, 0.0, 0.0),
            previous_action={"a": np.array(previous)},
        )
        assert decision.override["a"] == pytest.approx(done)
    assert decision.override["b"] == pytest.approx([5.0, 0.0])


def test_brake_dangers_say_why_of_every_pair():
    snaps = {**head_on(0.05, 1.0), "c": agent([9, 0], [0, 0]), "d": agent([9.3, 0])}
    decision = maybe_brake(
        actions("a", "c"),
        snaps,
        bounds=Bounds(5.0, 5.0, 1.0, 0.0, 10.0),
        latency_s=0.02,
        contact_forces={("c", "a"): 12.0},
    )
    assert decision.fired is True
    assert decision.braked == ("a", "c")
    first, second, third = (decision.dangers[pair] for pair in (("a", "b"), ("a", "c"), ("c", "d")))
    assert first.reason == "ttc"
    assert first.time_to_collision == pytest.approx(0.05)
    assert first.distance == pytest.approx(0.05)
    assert first.closing_speed == pytest.approx(1.0)
    assert (first.force, first.age_s) == (None, 0.0)
    assert (second.reason, second.force) == ("force", 12.0)
    assert third.reason == "contact"
    calm = maybe_brake(actions("a"), {"a": agent([0, 0])}, bounds=BOUNDS)
    assert (calm.fired, calm.braked, calm.dangers) == (False, (), {})


def test_brake_controller_is_told_where_its_agent_is_now():
    class Witness:
        def compute_override(self, agent_state, pairwise_repulsion_vectors, bounds):
            self.seen = agent_state
            return np.zeros(2)

    witness = Witness()
    snaps = {"a": agent([0, 0], [1, 0], age_s=0.2), "b": agent([0.5, 0])}
    maybe_brake(actions("a"), snaps, bounds=BOUNDS, emergency_controllers={"a": witness})
    assert witness.seen.position == pytest.approx([0.2, 0.0])
    assert witness.seen.age_s == 0.0


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"tau_brake": 0.0}, InputError, "tau_brake: expected a finite time > 0"),
        ({"tau_brake": math.nan}, InputError, "tau_brake"),
        ({"dt": -1.0}, InputError, "dt: expected a finite time > 0"),
        ({"latency_s": -0.1}, InputError, "latency_s: expected a finite time >= 0 s"),
        ({"latency_s": math.inf}, InputError, "latency_s: expected a finite time >= 0 s"),
        ({"emergency_controllers": {}}, UnknownNameError, "emergency controller of 'a'"),
        ({"control_models": {}, "dt": 0.05}, UnknownNameError, "control model of 'a'"),
        ({"proposed_actions": actions("a", "z")}, InputError, "expected a snapshot of 'z'"),
        ({"contact_forces": {("b", "a"): -1.0}}, InputError, r"contact force of \('a', 'b'\): exp"),
        ({"contact_forces": {("b", "a"): math.nan}}, InputError, "expected a finite force"),
        ({"previous_action": {"a": np.zeros(3)}}, InputError, r"previous_action\['a'\]: expected"),
        ({"previous_action": {"a": np.array([0.0, np.nan])}}, InputError, "expected finite numb"),
    ],
)
def test_brake_malformed_call_is_refused(change, error, message):
    call = {"proposed_actions": actions("a", "b"), "bounds": BOUNDS} | change
    with pytest.raises(error, match=message):
        maybe_brake(call.pop("proposed_actions"), head_on(0.05, 1.0), **call)
