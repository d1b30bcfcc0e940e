"""A vector env replays its scalar env byte for byte, across automatic resets."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.envs.crossing import CrossingEnv, VectorCrossingEnv
from cadenza.envs.doorway import (
    DoorwayDiffDriveEnv,
    DoorwayEnv,
    VectorDoorwayDiffDriveEnv,
    VectorDoorwayEnv,
)
from cadenza.envs.mpe import MPECooperativePushEnv, VectorMPECooperativePushEnv


class ScalarCopies:
    """N scalar envs with the automatic resets of the vector env, one Python loop."""

    def __init__(self, make, count, autoreset):
        self.envs = [make() for _ in range(count)]
        self.autoreset = autoreset
        self.seeds = np.zeros(count, dtype=np.int64)
        self.waiting = [False] * count

    def reset(self, seed):
        self.seeds = seed + np.arange(len(self.envs))
        return [env.reset(seed=int(s))[0] for env, s in zip(self.envs, self.seeds, strict=True)]

    def step(self, actions):
        """Return per copy: observation, final observation or None, reward, flags, info or None."""
        rows = []
        for i, env in enumerate(self.envs):
            if self.waiting[i]:
                self.waiting[i] = False
                rows.append((self._next(i), None, 0.0, False, False, None))
                continue
            obs, reward, terminated, truncated, info = env.step(
                {uid: action[i] for uid, action in actions.items()}
            )
            final = None
            if terminated or truncated:
                if self.autoreset == "same_step":
                    final, obs = obs, self._next(i)
                else:
                    self.waiting[i] = True
            rows.append((obs, final, reward, terminated, truncated, info))
        return rows

    def _next(self, i):
        self.seeds[i] += len(self.envs)
        return self.envs[i].reset(seed=int(self.seeds[i]))[0]


def state_bytes(obs, uid, i=None):
    state = obs["agent"][uid]["state"]
    return (state if i is None else state[i]).tobytes()


def assert_same_rollout(vector, scalars, *, seed, steps, policy):
    """Step both and compare every byte; return how many episodes ended."""
    uids, ended = vector.agent_uids, 0
    obs = vector.reset(seed=seed)[0]
    for i, single in enumerate(scalars.reset(seed)):
        assert all(state_bytes(obs, uid, i) == state_bytes(single, uid) for uid in uids)
    for step in range(steps):
        actions = policy(obs, step)
        obs, reward, terminated, truncated, info = vector.step(actions)
        for i, row in enumerate(scalars.step(actions)):
            single, final, expected, *flags, facts = row
            assert all(state_bytes(obs, uid, i) == state_bytes(single, uid) for uid in uids)
            assert reward[i].tobytes() == np.float64(expected).tobytes()
            assert [terminated[i], truncated[i]] == flags
            for name, value in (facts or {}).items():
                assert info[name][i] == value
            if final is not None:
                last = info["final_observation"]
                assert all(state_bytes(last, uid, i) == state_bytes(final, uid) for uid in uids)
                assert info["_final_obs"][i]
            ended += any(flags)
    return ended


def towards_goals(uids, rng):
    """Return a policy that brings crossing robots together, with noise."""

    def act(obs, _):
        return {
            uid: (
                1.5 * obs["agent"][uid]["state"][:, 4:6]
                - 0.5 * obs["agent"][uid]["state"][:, 2:4]
                + rng.normal(size=obs["agent"][uid]["state"][:, :2].shape)
            ).astype(np.float32)
            for uid in uids
        }

    return act


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("num_robots", [2, 8])
def test_64_crossing_copies_equal_64_scalar_envs_byte_for_byte(num_robots, autoreset):
    arguments = {"num_robots": num_robots, "episode_length": 45, "root_seed": 3}
    vector = VectorCrossingEnv(64, autoreset=autoreset, **arguments)
    scalars = ScalarCopies(lambda: CrossingEnv(**arguments), 64, autoreset)
    policy = towards_goals(vector.agent_uids, np.random.default_rng(1))
    assert assert_same_rollout(vector, scalars, seed=0, steps=100, policy=policy) >= 96


@settings(max_examples=25, deadline=None)
@given(
    root=st.integers(0, 2**70),
    seed=st.integers(0, 2**40),
    count=st.integers(1, 5),
    length=st.integers(1, 6),
    autoreset=st.sampled_from(["same_step", "next_step"]),
)
def test_push_parity_holds_for_any_seeds_sizes_and_lengths(root, seed, count, length, autoreset):
    rng = np.random.default_rng(seed)
    arguments = {"episode_length": length, "root_seed": root, "agent_uids": ("b", "a")}
    vector = VectorMPECooperativePushEnv(count, autoreset=autoreset, **arguments)
    scalars = ScalarCopies(lambda: MPECooperativePushEnv(**arguments), count, autoreset)

    def policy(_, __):
        return {uid: rng.uniform(-3, 3, (count, 2)) for uid in ("a", "b")}

    assert_same_rollout(vector, scalars, seed=seed, steps=14, policy=policy)


@settings(max_examples=25, deadline=None)
@given(
    root=st.integers(0, 2**70),
    seed=st.integers(0, 2**40),
    count=st.integers(1, 5),
    num_robots=st.integers(2, 8),
    length=st.integers(1, 30),
    autoreset=st.sampled_from(["same_step", "next_step"]),
)
def test_crossing_parity_holds_for_any_seeds_sizes_and_lengths(
    root, seed, count, num_robots, length, autoreset
):
    arguments = {"num_robots": num_robots, "episode_length": length, "root_seed": root}
    vector = VectorCrossingEnv(count, autoreset=autoreset, **arguments)
    scalars = ScalarCopies(lambda: CrossingEnv(**arguments), count, autoreset)
    policy = towards_goals(vector.agent_uids, np.random.default_rng(seed))
    assert_same_rollout(vector, scalars, seed=seed, steps=35, policy=policy)


@settings(max_examples=12, deadline=None)
@given(
    kinds=st.sampled_from(
        [(VectorDoorwayEnv, DoorwayEnv), (VectorDoorwayDiffDriveEnv, DoorwayDiffDriveEnv)]
    ),
    root=st.integers(0, 2**70),
    seed=st.integers(0, 2**40),
    count=st.integers(1, 9),
    takt=st.sampled_from([0.15, 1.5]),
    autoreset=st.sampled_from(["same_step", "next_step"]),
)
def test_door_parity_holds_for_any_seeds_sizes_and_takts(kinds, root, seed, count, takt, autoreset):
    batch, single = kinds
    rng = np.random.default_rng(seed)
    arguments = {"takt_s": takt, "root_seed": root, "agent_uids": ("b", "a")}
    vector = batch(count, autoreset=autoreset, **arguments)
    scalars = ScalarCopies(lambda: single(**arguments), count, autoreset)

    def policy(_, __):
        return {uid: rng.uniform(-1.5, 1.5, (count, 2)) for uid in ("b", "a")}

    assert assert_same_rollout(vector, scalars, seed=seed, steps=40, policy=policy) >= count
