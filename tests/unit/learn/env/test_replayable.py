"""An environment comes back from its seed and the actions of the running episode."""

from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from cadenza.core.errors import CheckpointError
from cadenza.core.payloads import deserialise, serialise
from cadenza.learn.env.dict_gym_wrapper import DictGymWrapper
from cadenza.learn.env.stepping import ReplayableEnv, replay_states, restore_replay_states
from tests.campaigns import size
from tests.unit.learn.env.counting_env import MODES, VECTOR_CLASSES, CountingEnv, vector


def replayable(env_id, index, root_seed=11, **kwargs):
    return ReplayableEnv(gymnasium.make(env_id, **kwargs), root_seed=root_seed, index=index)


def walk(env, steps, rng, *, is_reset=False):
    """Step with actions from ``rng``, resetting ended episodes; return all that was seen."""
    seen = []
    if not is_reset:
        seen.append(env.reset()[0])
    for _ in range(steps):
        action = rng.uniform(-1.0, 1.0, env.action_space.shape)
        if isinstance(env.action_space, spaces.Discrete):
            action = rng.integers(env.action_space.n)
        observation, reward, terminated, truncated, _ = env.step(action)
        seen.append((observation, reward, terminated, truncated))
        if terminated or truncated:
            seen.append(env.reset()[0])
    return seen


@pytest.mark.parametrize(
    "env_id",
    ["CartPole-v1", "Pendulum-v1", "LunarLander-v3", "LunarLanderContinuous-v3", "HalfCheetah-v5"],
)
def test_restored_environment_goes_on_like_the_first_one(env_id, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings into the current folder
    first, second = replayable(env_id, 2), replayable(env_id, 2, root_seed=0)
    walk(first, 330, np.random.default_rng(0))  # ends in the middle of a later episode
    state = deserialise(serialise(first.replay_state()), max_bytes=2**24)
    second.restore_replay_state(state)
    going_on = walk(first, 220, np.random.default_rng(1), is_reset=True)
    restored = walk(second, 220, np.random.default_rng(1), is_reset=True)
    for ours, theirs in zip(going_on, restored, strict=True):
        np.testing.assert_equal(ours, theirs)
    assert second.replay_state() == first.replay_state()


def test_episodes_depend_on_root_seed_index_and_number_only():
    starts = {
        (root, index): [replayable_start(root, index, n) for n in range(3)]
        for root in (0, 1)
        for index in (0, 1)
    }
    flat = [tuple(s) for several in starts.values() for s in several]
    assert len(set(flat)) == 12
    assert starts[0, 0][2] == replayable_start(0, 0, 2)


def replayable_start(root, index, episode):
    env = replayable("Pendulum-v1", index, root_seed=root)
    for _ in range(episode + 1):
        observation, _ = env.reset()
    return observation.tolist()


@pytest.mark.parametrize("kind", VECTOR_CLASSES)
@pytest.mark.parametrize("mode", MODES)
def test_vector_environments_come_back_at_every_step_of_an_episode(kind, mode):
    """Also right after an end, when next-step mode still owes the reset."""

    def build():
        makers = [partial(replayable, "Pendulum-v1", i, max_episode_steps=4 + i) for i in range(2)]
        return vector(*makers, mode=mode, kind=kind)

    def advance(env, steps):
        seen = []
        for _ in range(steps):
            obs, reward, terminated, truncated, _ = env.step(np.full((2, 1), 0.3, np.float32))
            done = terminated | truncated
            if mode == "Disabled" and done.any():
                obs, _ = env.reset(options={"reset_mask": done})
            seen.append((obs.copy(), reward, done))
        return seen

    for before in size((0, 4, 5), range(7)):
        first, second = build(), build()
        first.reset(), second.reset()
        advance(first, before)
        advance(second, 5)  # somewhere else
        restore_replay_states(second, replay_states(first))
        for ours, theirs in zip(advance(first, 9), advance(second, 9), strict=True):
            np.testing.assert_equal(ours, theirs)
        first.close(), second.close()


def test_other_environments_have_no_replay_states():
    assert replay_states(gymnasium.make_vec("CartPole-v1", num_envs=2)) is None
    plain = vector(CountingEnv, kind=gymnasium.vector.AsyncVectorEnv)
    assert replay_states(plain) is None
    plain.reset()  # the worker is still alive
    plain.close()
    with pytest.raises(CheckpointError, match="expected environments in a ReplayableEnv"):
        restore_replay_states(vector(CountingEnv), [])


def test_multi_discrete_and_binary_actions_are_repeated():
    class Remembering(CountingEnv):
        def observe(self):
            total = float(np.sum([np.sum(a) for a in self.actions])) if self.t else 0.0
            return np.array([self.t, total, 0.0], np.float32)

        def reset(self, **kwargs):
            self.actions = []
            return super().reset(**kwargs)

    for space in (spaces.MultiDiscrete([3, 4]), spaces.MultiBinary(3), spaces.Discrete(9)):
        first, second = (
            ReplayableEnv(Remembering(0, ((9, (True, False)),), space), root_seed=0, index=0)
            for _ in range(2)
        )
        first.reset()
        space.seed(1)
        for _ in range(4):
            first.step(space.sample())
        second.restore_replay_state(first.replay_state())
        assert second.env.actions[0].dtype == space.dtype
        np.testing.assert_array_equal(np.array(second.env.actions), np.array(first.env.actions))


def test_environment_that_is_not_deterministic_is_noticed():
    class Drifting(CountingEnv):
        made = 0

        def reset(self, **kwargs):
            Drifting.made += 1
            return super().reset(**kwargs)

        def observe(self):
            return np.array([Drifting.made, self.t, 0.0], np.float32)

    first, second = (ReplayableEnv(Drifting(), root_seed=0, index=0) for _ in range(2))
    first.reset()
    first.step(np.zeros(2))
    with pytest.raises(CheckpointError, match=r"after 1 actions, got another one.*deterministic"):
        second.restore_replay_state(first.replay_state())


def test_state_of_another_environment_is_refused():
    env = replayable("Pendulum-v1", 0)
    env.reset()
    with pytest.raises(CheckpointError, match="expected the state of environment 1, got that of 0"):
        replayable("Pendulum-v1", 1).restore_replay_state(env.replay_state())
    with pytest.raises(CheckpointError, match="expected a state of environment 1 among 1"):
        replayable("Pendulum-v1", 1).restore_replay_state([env.replay_state()])
    with pytest.raises(CheckpointError, match=r"without \[\'episode\', \'actions\'"):
        env.restore_replay_state({"index": 0, "root_seed": 0})


def test_wrapper_restores_ids_and_sums_of_running_episodes():
    def build():
        return DictGymWrapper(
            vector(partial(replayable, "Pendulum-v1", 0, max_episode_steps=5), mode="NextStep")
        )

    from tests.unit.learn.env.test_dict_gym_wrapper import respond

    first, second = build(), build()
    seen = first.dict_reset()
    for _ in range(8):
        seen, _ = first.dict_step(respond(seen, [0.1]))
    second.load_state_dict(first.state_dict())
    theirs = seen
    for _ in range(6):
        seen, info = first.dict_step(respond(seen, [0.1]))
        theirs, their_info = second.dict_step(respond(theirs, [0.1]))
        assert list(seen) == list(theirs)
        assert info == their_info
