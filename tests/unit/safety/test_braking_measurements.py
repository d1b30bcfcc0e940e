"""Braking on what was measured late, on contact forces, under a rate limit; and its record."""

import json
import math

import numpy as np
import pytest

from cadenza.core.errors import InputError
from cadenza.safety.bounds import Bounds
from cadenza.safety.braking import compute_min_ttc, maybe_brake, time_to_collision
from cadenza.safety.control_models import DoubleIntegratorControlModel, JacobianControlModel
from tests.unit.safety.scenes import agent, box

BOUNDS = box(5.0)


def actions(*uids):
    return {uid: np.array([0.1, -0.2]) for uid in uids}


def head_on(gap, speed):
    """Two agents of radius 0.2 whose surfaces are ``gap`` apart, closing at ``speed``."""
    half = 0.2 + gap / 2.0
    return {"a": agent([-half, 0], [speed / 2, 0]), "b": agent([half, 0], [-speed / 2, 0])}


def test_ttc_carries_old_snapshots_forward():
    # The partner's packet is 0.3 s old: at 1 m/s it is 0.3 m nearer than the packet says.
    snaps = {"a": agent([0, 0]), "b": agent([2, 0], [-1, 0], age_s=0.3)}
    assert compute_min_ttc(snaps) == {("a", "b"): pytest.approx(2.0 - 0.3 - 0.4)}
    assert time_to_collision(snaps["a"], snaps["b"]) == pytest.approx(1.6)


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


def test_brake_stopping_test_fears_what_an_old_partner_may_have_done():
    models = {
        "a": DoubleIntegratorControlModel("a", 2),
        "b": DoubleIntegratorControlModel("b", 2, capacity=1.0),
    }
    # alpha = 5 - 1 = 4; age 0.2 s: w = 2 + 0.2, lost 0.5 * 0.2 * 0.25 = 0.025 m besides;
    # 4.84 / 8 + 2.2 * 0.05 + 0.025 = 0.74 m instead of 4 / 8 + 2 * 0.05 = 0.6 m.
    for gap, age_s, fires in (
        (0.739, 0.2, True),
        (0.741, 0.2, False),
        (0.599, 0.0, True),
        (0.601, 0.0, False),
    ):
        snaps = {
            "a": agent([0, 0], [2, 0]),
            "b": agent([0.4 + gap, 0], age_s=age_s),
        }
        decision = maybe_brake(actions("a"), snaps, bounds=BOUNDS, dt=0.05, control_models=models)
        assert decision.fired is fires


def test_brake_latency_lengthens_the_stopping_distance():
    # 1.5 m without, 5 m/s * 0.1 s more with a latency of 0.1 s.
    for gap, latency_s, fires in (
        (1.51, 0.0, False),
        (1.51, 0.1, True),
        (1.99, 0.1, True),
        (2.01, 0.1, False),
    ):
        decision = maybe_brake(
            actions("a", "b"), head_on(gap, 5.0), bounds=BOUNDS, dt=0.05, latency_s=latency_s
        )
        assert decision.fired is fires
        assert decision.latency_s == latency_s


def test_brake_latency_brings_the_time_threshold_forward():
    for gap, fires in ((0.29, True), (0.31, False)):
        decision = maybe_brake(actions("a", "b"), head_on(gap, 1.0), bounds=BOUNDS, latency_s=0.2)
        assert decision.fired is fires


FORCEFUL = Bounds(5.0, 5.0, 1.0, 0.0, 20.0)
APART = {"a": agent([0, 0]), "b": agent([3, 0]), "c": agent([0, 3])}


@pytest.mark.parametrize("key", [("a", "b"), ("b", "a")])
def test_brake_fires_on_excessive_force_whatever_the_order_of_the_pair(key):
    decision = maybe_brake(
        actions("a", "b", "c"), APART, bounds=FORCEFUL, contact_forces={key: 20.1}
    )
    assert decision.braked == ("a", "b")
    danger = decision.dangers["a", "b"]
    assert (danger.reason, danger.force) == ("force", 20.1)
    assert decision.override["a"] == pytest.approx([-5.0, 0.0])


def test_brake_force_up_to_the_limit_is_allowed_and_no_limit_allows_all():
    at_limit = {("a", "b"): 20.0}
    assert not maybe_brake(actions("a"), APART, bounds=FORCEFUL, contact_forces=at_limit).fired
    huge = {("a", "b"): 1e6}
    assert not maybe_brake(actions("a"), APART, bounds=BOUNDS, contact_forces=huge).fired
    assert maybe_brake(actions("a"), APART, bounds=FORCEFUL, contact_forces=huge).fired


def test_brake_force_is_released_below_the_limit_only():
    for force, again in ((16.1, True), (15.9, False)):  # 20 / 1.25 = 16
        decision = maybe_brake(
            actions("a"),
            APART,
            bounds=FORCEFUL,
            contact_forces={("a", "b"): force},
            still_braking={("a", "b")},
        )
        assert decision.fired is again


def test_brake_force_comes_before_contact_and_is_recorded_with_any_reason():
    overlap = {"a": agent([0, 0]), "b": agent([0.3, 0])}
    for force, reason in ((25.0, "force"), (5.0, "contact")):
        decision = maybe_brake(
            actions("a"), overlap, bounds=FORCEFUL, contact_forces={("a", "b"): force}
        )
        danger = decision.dangers["a", "b"]
        assert (danger.reason, danger.force) == (reason, force)


def test_brake_force_of_uncontrolled_or_absent_agents_is_nobody_s_business():
    forces = {("b", "c"): 99.0, ("a", "elsewhere"): 99.0}
    assert maybe_brake(actions("a"), APART, bounds=FORCEFUL, contact_forces=forces) == (None, False)


def test_brake_force_given_twice_counts_as_the_larger():
    forces = {("a", "b"): 25.0, ("b", "a"): 1.0}
    assert maybe_brake(actions("a"), APART, bounds=FORCEFUL, contact_forces=forces).fired


@pytest.mark.parametrize("force", [-1.0, math.nan, math.inf])
def test_brake_force_that_is_no_force_is_refused(force):
    with pytest.raises(InputError, match=r"contact force of \('a', 'b'\): expected a finite force"):
        maybe_brake(actions("a"), APART, bounds=FORCEFUL, contact_forces={("b", "a"): force})


def test_brake_respects_the_action_rate_of_agents_with_a_previous_action():
    bounds = Bounds(5.0, 5.0, 1.5, 0.0, 0.0)
    decision = maybe_brake(
        actions("a", "b"),
        head_on(0.05, 1.0),
        bounds=bounds,
        previous_action={"a": np.array([2.0, 0.4])},
    )
    # The push is (-5, 0): each component moves by at most 1.5 from (2, 0.4).
    assert decision.override["a"] == pytest.approx([0.5, 0.0])
    assert decision.override["b"] == pytest.approx([5.0, 0.0])
    assert decision.rate_limited == ("a",)


def test_brake_rate_limit_keeps_the_box_and_does_not_touch_what_is_near():
    bounds = Bounds(5.0, 5.0, 1.5, 0.0, 0.0)
    outside = maybe_brake(
        actions("a"), head_on(0.05, 1.0), bounds=bounds, previous_action={"a": np.array([-9.0, 0])}
    )
    assert outside.override["a"] == pytest.approx([-5.0, 0.0])
    near = maybe_brake(
        actions("a"), head_on(0.05, 1.0), bounds=bounds, previous_action={"a": np.array([-4.0, 0])}
    )
    assert near.override["a"] == pytest.approx([-5.0, 0.0])
    assert near.rate_limited == ()


@pytest.mark.parametrize(
    ("previous", "message"),
    [
        (np.zeros(3), r"previous_action\['a'\]: expected shape \(2,\), got \(3,\)"),
        (np.array([0.0, np.nan]), r"previous_action\['a'\]: expected finite numbers"),
    ],
)
def test_brake_malformed_previous_action_is_refused(previous, message):
    with pytest.raises(InputError, match=message):
        maybe_brake(
            actions("a"), head_on(0.05, 1.0), bounds=BOUNDS, previous_action={"a": previous}
        )


def test_brake_stopping_test_credits_what_the_box_reaches_not_what_is_declared():
    models = {
        "a": DoubleIntegratorControlModel("a", 2),
        "b": DoubleIntegratorControlModel("b", 2, capacity=0.0),
    }
    # Declared 50, box 5: 4 / 10 + 2 * 0.05 = 0.5 m, not 4 / 100 + 0.1 = 0.14 m.
    bounds = box(5.0, capacity=50.0)
    for gap, fires in ((0.49, True), (0.51, False)):
        snaps = {"a": agent([0, 0], [2, 0]), "b": agent([0.4 + gap, 0])}
        decision = maybe_brake(actions("a"), snaps, bounds=bounds, dt=0.05, control_models=models)
        assert decision.fired is fires


def test_brake_without_controllers_pushes_an_arm_through_its_model():
    matrix = np.array([[1.0, 0.5, 0.0], [0.0, 1.0, 1.0]])
    models = {
        "a": JacobianControlModel("a", 3, 2, lambda _: matrix, max_cartesian_accel_value=5.0),
        "b": DoubleIntegratorControlModel("b", 2, capacity=1.0),
    }
    override = maybe_brake(
        {"a": np.zeros(3)}, head_on(0.05, 1.0), bounds=BOUNDS, control_models=models
    ).override
    assert override["a"].shape == (3,)
    assert matrix @ override["a"] == pytest.approx([-5.0, 0.0], abs=1e-4)


def test_brake_record_is_json_able_and_complete():
    snaps = {**head_on(0.05, 1.0), "c": agent([9, 0], [0, 0]), "d": agent([9.3, 0])}
    decision = maybe_brake(
        actions("a", "c"),
        snaps,
        bounds=Bounds(5.0, 5.0, 1.0, 0.0, 10.0),
        latency_s=0.02,
        contact_forces={("c", "a"): 12.0},
        previous_action={"c": np.array([3.0, 0.0])},
    )
    record = json.loads(json.dumps(decision.to_dict()))
    assert record["fired"] is True
    assert record["braked"] == ["a", "c"]
    assert record["rate_limited"] == ["c"]
    assert record["latency_s"] == 0.02
    first, second, third = record["dangers"]
    assert first["pair"] == ["a", "b"]
    assert first["reason"] == "ttc"
    assert first["time_to_collision"] == pytest.approx(0.05)
    assert first["distance"] == pytest.approx(0.05)
    assert first["closing_speed"] == pytest.approx(1.0)
    assert (first["force"], first["age_s"]) == (None, 0.0)
    assert (second["pair"], second["reason"], second["force"]) == (["a", "c"], "force", 12.0)
    assert second["time_to_collision"] is not None
    assert (third["pair"], third["reason"]) == (["c", "d"], "contact")
    calm = maybe_brake(actions("a"), {"a": agent([0, 0])}, bounds=BOUNDS).to_dict()
    assert calm == {
        "fired": False,
        "braked": [],
        "rate_limited": [],
        "latency_s": 0.0,
        "dangers": [],
    }


def test_brake_record_of_a_collision_that_never_comes_has_no_time():
    decision = maybe_brake(actions("a"), APART, bounds=FORCEFUL, contact_forces={("a", "b"): 30.0})
    assert decision.dangers["a", "b"].time_to_collision == math.inf
    assert decision.to_dict()["dangers"][0]["time_to_collision"] is None


@pytest.mark.parametrize("latency_s", [-0.1, math.nan, math.inf])
def test_brake_malformed_latency_is_refused(latency_s):
    with pytest.raises(InputError, match="latency_s: expected a finite time >= 0 s"):
        maybe_brake(actions("a"), APART, bounds=BOUNDS, latency_s=latency_s)


def test_brake_orthogonal_pair_pushes_along_the_normalised_sum():
    snaps = {"a": agent([0, 0]), "b": agent([0.39, 0]), "c": agent([0, 0.39])}
    override = maybe_brake(actions("a"), snaps, bounds=BOUNDS).override
    assert override["a"] == pytest.approx(np.array([-5.0, -5.0]) / math.sqrt(2.0), abs=1e-10)


def test_brake_of_separating_agents_at_a_hair_s_breadth_does_not_fire():
    snaps = {"a": agent([0, 0], [-1, 0]), "b": agent([0.4001, 0], [1, 0])}
    assert not maybe_brake(actions("a", "b"), snaps, bounds=BOUNDS, dt=0.05).fired


def test_brake_push_opens_the_gap():
    snaps = head_on(0.05, 1.0)
    override = maybe_brake(actions("a", "b"), snaps, bounds=BOUNDS).override
    normal = np.array([-1.0, 0.0])  # from b to a
    assert normal @ (override["a"] - override["b"]) == pytest.approx(10.0)


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
