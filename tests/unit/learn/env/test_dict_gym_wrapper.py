"""A vector environment as agents: ids, ends, final observations, in every autoreset mode."""

from functools import partial

import numpy as np
import pytest
from gymnasium import spaces

from cadenza.core.errors import CheckpointError, InputError
from cadenza.core.spaces import BoxSpace
from cadenza.core.types import DictResponse, EpisodeState
from cadenza.learn.env.dict_gym_wrapper import DictGymWrapper
from tests.unit.learn.env.counting_env import (
    BOTH,
    MODES,
    TERMINATED,
    TRUNCATED,
    VECTOR_CLASSES,
    CountingEnv,
    vector,
)

PLAN = ((2, TERMINATED), (3, TRUNCATED), (1, BOTH))


def respond(observations, action=(0.0, 0.0)):
    """Return the same action for every agent whose episode goes on."""
    over = (EpisodeState.TERMINAL, EpisodeState.INTERRUPTED)
    return {
        agent: DictResponse({"actions": action}, {})
        for agent, seen in observations.items()
        if seen.episode_state not in over
    }


def episodes(wrapper, steps):
    """Return the life of each agent as (state, observation, reward) and every step's info."""
    lives, infos = {}, []
    observations = wrapper.dict_reset()
    for _ in range(steps + 1):
        for agent, seen in observations.items():
            place = tuple(int(x) for x in seen.array_data["obs"])
            lives.setdefault(agent, []).append(
                (seen.episode_state.name, place, seen.rewards["reward"])
            )
        observations, info = wrapper.dict_step(respond(observations))
        infos.append(info)
    return lives, infos


@pytest.mark.parametrize("kind", VECTOR_CLASSES)
@pytest.mark.parametrize("mode", MODES)
def test_episodes_are_cut_off_at_the_limit_and_the_next_begin_at_once(kind, mode):
    endless, short = ((10**6, TERMINATED),), ((2, TERMINATED),)
    makers = partial(CountingEnv, 0, endless), partial(CountingEnv, 1, short)
    wrapper = DictGymWrapper(vector(*makers, mode=mode, kind=kind))
    seen = wrapper.dict_reset()
    life = {}
    for _ in range(8):
        for agent, each in seen.items():
            if each.array_data["obs"][0] == 0:
                _, episode, t = each.array_data["obs"].tolist()
                life.setdefault(agent, []).append((each.episode_state.name, episode, t))
        seen, _ = wrapper.dict_step(respond(seen), max_episode_steps=3)
    cut = [("INITIAL", 0, 0), ("RUNNING", 0, 1), ("RUNNING", 0, 2), ("INTERRUPTED", 0, 3)]
    first, second = list(life.values())[:2]
    assert first == cut
    assert second == [(name, 1, t) for name, _, t in cut]
    wrapper.close()


@pytest.mark.parametrize("kind", VECTOR_CLASSES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("copies", [True, False])
def test_every_agent_lives_one_episode_and_sees_its_own_last_observation(kind, mode, copies):
    env = vector(
        partial(CountingEnv, 0, PLAN), partial(CountingEnv, 1, PLAN[1:]), mode=mode, kind=kind
    )
    env.copy = copies  # without copies, it hands out the buffers that it writes to
    wrapper = DictGymWrapper(env)
    lives, _ = episodes(wrapper, 12)
    wrapper.close()
    by_episode = {(life[0][1][0], life[0][1][1]): life for life in lives.values()}
    assert by_episode[0, 0] == [
        ("INITIAL", (0, 0, 0), None),
        ("RUNNING", (0, 0, 1), 1.0),
        ("TERMINAL", (0, 0, 2), 2.0),
    ]
    assert by_episode[0, 1] == [
        ("INITIAL", (0, 1, 0), None),
        ("RUNNING", (0, 1, 1), 101.0),
        ("RUNNING", (0, 1, 2), 102.0),
        ("INTERRUPTED", (0, 1, 3), 103.0),
    ]
    # Ended by the task and by the clock at once: the task decides.
    assert by_episode[0, 2] == [("INITIAL", (0, 2, 0), None), ("TERMINAL", (0, 2, 1), 201.0)]
    assert by_episode[1, 0][-1] == ("INTERRUPTED", (1, 0, 3), 3.0)
    # Ids are consecutive and each belongs to one episode of one environment.
    assert sorted(lives) == list(range(len(lives)))
    assert len(by_episode) == len(lives)
    for life in lives.values():
        steps = [place for _, place, _ in life]
        assert steps == [(*steps[0][:2], t) for t in range(len(steps))]


def test_new_episode_begins_one_step_later_in_next_step_mode_without_a_transition():
    env = CountingEnv(0, ((1, TRUNCATED),))
    wrapper = DictGymWrapper(vector(lambda: env, mode="NextStep"))
    (old,) = wrapper.dict_reset()
    ended, _ = wrapper.dict_step({old: DictResponse({"actions": [0.5, 0.5]}, {})})
    assert {agent: seen.episode_state.name for agent, seen in ended.items()} == {old: "INTERRUPTED"}
    begun, info = wrapper.dict_step({})
    assert {a: seen.episode_state.name for a, seen in begun.items()} == {old + 1: "INITIAL"}
    assert info == {}
    assert len(env.actions) == 1  # the second step was a reset


def test_info_has_the_mean_return_of_the_episodes_that_ended():
    wrapper = DictGymWrapper(
        vector(
            partial(CountingEnv, 0, ((2, TERMINATED),)),
            partial(CountingEnv, 1, ((2, TRUNCATED),)),
            partial(CountingEnv, 2, ((5, TERMINATED),)),
        )
    )
    observations = wrapper.dict_reset()
    observations, first = wrapper.dict_step(respond(observations))
    observations, second = wrapper.dict_step(respond(observations))
    assert first == {}
    assert second == {"reward": 3.0}  # 1 + 2 in both episodes that ended
    metadata = observations[0].metadata
    assert metadata.info == {"episode/reward": 3.0, "episode/length": 2.0}
    assert observations[2].metadata is None


@pytest.mark.parametrize("mode", MODES)
def test_dict_observations_keep_their_keys_types_and_final_values(mode):
    wrapper = DictGymWrapper(
        vector(partial(CountingEnv, 4, ((1, TERMINATED),), as_dict=True), mode=mode)
    )
    assert wrapper.dict_space.state.spaces == {
        "kind": BoxSpace(np.int64, ()),
        "position": BoxSpace(np.float32, (3,)),
    }
    observations = wrapper.dict_reset()
    final = wrapper.dict_step(respond(observations))[0][0]
    assert final.episode_state is EpisodeState.TERMINAL
    assert final.array_data["position"].tolist() == [4.0, 0.0, 1.0]
    assert final.array_data["position"].dtype == np.float32
    assert final.array_data["kind"] == 4
    assert final.array_data["kind"].dtype == np.int64


def test_spaces_of_continuous_and_discrete_actions():
    continuous = DictGymWrapper(vector(CountingEnv)).dict_space
    assert continuous.actions == BoxSpace(np.float32, (2,))
    assert continuous.rewards == BoxSpace(np.float32, (1,))
    assert continuous.state.spaces == {"obs": BoxSpace(np.float32, (3,))}
    discrete = DictGymWrapper(vector(partial(CountingEnv, action_space=spaces.Discrete(3))))
    assert discrete.dict_space.actions == BoxSpace(np.int64, (1,))
    several = DictGymWrapper(
        vector(partial(CountingEnv, action_space=spaces.MultiDiscrete([2, 5])))
    )
    assert several.dict_space.actions == BoxSpace(np.int64, (2,))
    binary = DictGymWrapper(vector(partial(CountingEnv, action_space=spaces.MultiBinary(4))))
    assert binary.dict_space.actions == BoxSpace(np.int8, (4,))


@pytest.mark.parametrize("action", [2, [2], np.array([2.0], np.float32), np.int64(2)])
def test_discrete_actions_reach_the_environment_as_whole_numbers(action):
    env = CountingEnv(action_space=spaces.Discrete(3))
    wrapper = DictGymWrapper(vector(lambda: env))
    wrapper.dict_step(respond(wrapper.dict_reset(), action))
    assert np.shape(env.actions[0]) == ()
    assert np.issubdtype(np.asarray(env.actions[0]).dtype, np.integer)
    assert env.actions[0] == 2
    assert env.action_space.contains(env.actions[0])


def test_actions_follow_the_order_of_environments_not_of_responses():
    made = [CountingEnv(i) for i in range(3)]
    wrapper = DictGymWrapper(vector(*[partial(lambda env: env, env) for env in made]))
    wrapper.dict_reset()
    answers = {i: DictResponse({"actions": [i / 10, -i / 10]}, {}) for i in (2, 0, 1)}
    wrapper.dict_step(answers)
    assert [env.actions[0][0] for env in made] == pytest.approx([0.0, 0.1, 0.2])


def test_seed_reaches_the_environments_and_a_reset_begins_new_ids():
    class Noisy(CountingEnv):
        def observe(self):
            return self.np_random.random(3).astype(np.float32)

    wrapper = DictGymWrapper(vector(Noisy, Noisy))
    first = wrapper.dict_reset(seed=5)
    again = wrapper.dict_reset(seed=5)
    other = wrapper.dict_reset(seed=6)
    values = [[o.array_data["obs"][0] for o in seen.values()] for seen in (first, again, other)]
    assert values[0] == values[1]
    assert values[0] != values[2]
    assert [list(seen) for seen in (first, again, other)] == [[0, 1], [2, 3], [4, 5]]


def test_state_of_environments_without_replay_keeps_ids_and_asks_for_a_reset():
    wrapper = DictGymWrapper(vector(CountingEnv))
    wrapper.dict_step(respond(wrapper.dict_reset()))
    state = wrapper.state_dict()
    assert state["environments"] is None
    other = DictGymWrapper(vector(CountingEnv))
    other.load_state_dict(state)
    assert not other.is_reset
    assert list(other.dict_reset()) == [1]


@pytest.mark.parametrize(
    ("responses", "match"),
    [
        ({}, "of agent 0, got no response"),
        ({0: DictResponse({"other": [1.0]}, {})}, "of agent 0, got none"),
        ({0: DictResponse({"actions": [1.0]}, {})}, r"of shape \(2,\), got shapes \[\(1,\)\]"),
        ({0: DictResponse({"actions": [np.nan, 0.0]}, {})}, "expected finite 'actions'"),
    ],
)
def test_malformed_responses_are_refused(responses, match):
    wrapper = DictGymWrapper(vector(CountingEnv))
    wrapper.dict_reset()
    with pytest.raises(InputError, match=match):
        wrapper.dict_step(responses)


def test_state_of_another_number_of_environments_is_refused():
    state = DictGymWrapper(vector(CountingEnv, CountingEnv)).state_dict()
    with pytest.raises(CheckpointError, match="expected the state of 1 environments, got 2"):
        DictGymWrapper(vector(CountingEnv)).load_state_dict(state)
