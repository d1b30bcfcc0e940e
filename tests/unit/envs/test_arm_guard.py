"""The operational-space filter in front of the ego's arm, in both tasks of two arms."""

import numpy as np
import pytest

import cadenza
from cadenza.envs.mujoco import (
    CoCarryEnv,
    CoCarryOptions,
    HandoverEnv,
    HandoverOptions,
    VectorCoCarryEnv,
)

pytest.importorskip("mjbatch", reason="needs the extra mujoco")

TICKS = 120
#: What drives the ego's arm at the presenter, at the floor, and over a partner that holds the other
#: end of the bar: the load makes an arm creep.
DRIVEN = {
    "presenter": (
        lambda guard: HandoverEnv(HandoverOptions(guard=guard)),
        [1, -1, -0.2, 0, 0, 0, -1],
        6,
    ),
    "floor": (lambda guard: carrying(guard, "single_arm"), [0, 0, -1], 3),
    "elbow": (lambda guard: carrying(guard, "single_arm", "joint"), [0, 1, 0, 1, 0, -1, 0], 3),
    "load": (lambda guard: carrying(guard, "static_partner"), [1, 0, 1], 3),
    "loaded elbow": (lambda guard: carrying(guard, "matched", "joint"), [0, 1, 0, 0, 0, 0, 0], 3),
}


def carrying(guard, condition, track="grip"):
    return CoCarryEnv(CoCarryOptions(guard=guard, condition=condition, action_track=track))


def driven(case, guard):
    """Drive one episode's ego straight at trouble and return what every tick tells."""
    make, action, partner = DRIVEN[case]
    env = make(guard)
    env.reset(seed=1)
    actions = {"ego": np.array(action, dtype=float), "partner": np.zeros(partner)}
    return [env.step(actions)[-1] for _ in range(TICKS)]


def test_contact_is_never_certified():
    env = CoCarryEnv(CoCarryOptions(guard="watch", condition="static_partner"))
    env.reset(seed=1)
    actions = {"ego": np.array([1.0, 0.0, 1.0]), "partner": np.zeros(3)}
    while env.step(actions)[-1]["arm_gap"] > -0.03:
        pass
    env.guard_arm()
    *_, info = env.step(actions)
    assert info["contact"]
    assert not info["guard_certified"]


@pytest.mark.parametrize("case", DRIVEN)
def test_arm_that_would_hit_something_is_kept_off_it(case):
    watched = driven(case, "watch")
    assert any(info["contact"] for info in watched)
    assert all(info["contact"] == (info["arm_gap"] < 0.0) for info in watched)
    guarded = driven(case, "on")
    assert min(info["arm_gap"] for info in guarded) > 0.005  # of the margin of 10 mm
    assert any(info["guard_changed"] for info in guarded)
    assert all(info["guard_certified"] for info in guarded)


def test_arm_far_from_everything_moves_bit_for_bit_as_without():
    actions = {"ego": np.array([0.0, 0.3, 0.3]), "partner": np.array([0.0, 0.3, 0.3])}
    hashes = []
    for guard in ("off", "watch", "on"):
        env = CoCarryEnv(CoCarryOptions(guard=guard))
        env.reset(seed=3)
        for _ in range(10):
            *_, info = env.step(actions)
        hashes.append(env.state_hash())
        assert ("contact" in info) == (guard != "off")
    assert hashes[0] == hashes[1] == hashes[2]


def test_every_copy_is_guarded_as_the_scalar_environment_is():
    options = CoCarryOptions(guard="on", action_track="joint")
    rng = np.random.default_rng(0)
    envs, env = VectorCoCarryEnv(2, options), CoCarryEnv(options)
    envs.reset(seed=0)
    env.reset(seed=1)
    for _ in range(15):
        ego, partner = rng.uniform(-1.0, 1.0, (2, 7)), rng.uniform(-1.0, 1.0, (2, 3))
        *_, many = envs.step({"ego": ego, "partner": partner})
        *_, one = env.step({"ego": ego[1], "partner": partner[1]})
        assert many["arm_gap"][1] == one["arm_gap"]
        assert many["guard_changed"][1] == one["guard_changed"]
    assert envs.state_hash(1) == env.state_hash()


def test_partner_seen_late_is_kept_farther_away():
    gaps = []
    for delay in (0, 3):
        env = CoCarryEnv(CoCarryOptions(guard="on", condition="single_arm", partner_delay=delay))
        env.reset(seed=1)
        for _ in range(TICKS):
            *_, info = env.step({"ego": np.array([1.0, 0.0, 0.4]), "partner": np.zeros(3)})
        gaps.append(info["arm_gap"])
    assert gaps[1] > gaps[0] + 0.05


def test_one_line_guards_a_task_of_two_arms():
    env = cadenza.guard(HandoverEnv())
    env.reset(seed=1)
    *_, info = env.step({"ego": np.zeros(7), "partner": np.zeros(6)})
    assert info["guard_certified"]


def test_the_egos_seat_of_a_task_of_two_arms_is_guarded_by_its_name():
    env = cadenza.guard("cadenza/CoCarry-v1")
    env.reset(seed=1)
    *_, info = env.step(np.zeros(env.action_space.shape, np.float32))
    assert info["guard_certified"]
