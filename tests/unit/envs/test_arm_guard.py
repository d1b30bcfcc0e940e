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

pytest.importorskip("mjbatch")

TICKS = 40
#: What drives the ego's arm at the other one, and into the floor.
AT_THE_OTHER = {
    "handover": (HandoverEnv, HandoverOptions, [1.0, -1.0, -0.2, 0.0, 0.0, 0.0, -1.0], 6),
    "bar let go": (CoCarryEnv, CoCarryOptions, [1.0, 0.0, 0.0], 3),
    "joints": (CoCarryEnv, CoCarryOptions, [0.0, 1.0, 0.0, 1.0, 0.0, -1.0, 0.0], 3),
}


def driven(case, guard):
    """Drive one episode's ego straight at trouble; return what every tick tells, and the env."""
    kind, options, action, partner = AT_THE_OTHER[case]
    more = {"action_track": "joint"} if len(action) == 7 and kind is CoCarryEnv else {}
    if case == "bar let go":
        more["condition"] = "single_arm"
    env = kind(options(guard=guard, **more))
    env.reset(seed=1)
    actions = {"ego": np.array(action), "partner": np.zeros(partner)}
    told = []
    for _ in range(TICKS):
        *_, terminated, truncated, info = env.step(actions)
        told.append(info)
        if terminated or truncated:
            break
    return told, env


@pytest.mark.parametrize("case", ["handover", "joints"])
def test_arm_that_would_hit_something_is_kept_off_it(case):
    watched, _ = driven(case, "watch")
    assert any(info["contact"] for info in watched)
    assert all(info["contact"] == (info["arm_gap"] < 0.0) for info in watched)
    guarded, _ = driven(case, "on")
    assert not any(info["contact"] for info in guarded)
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
