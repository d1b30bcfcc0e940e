"""One meaning of a step in all three autoreset modes."""

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from cadenza.core.errors import CheckpointError, ConfigurationError, InputError, NotReadyError
from cadenza.learn.env.stepping import ReplayableEnv, VectorSteps
from tests.unit.learn.counting_envs import CountingEnv

ACTION = np.array([5, 5])


def steps_of(mode, *, wrap=False, **options):
    def make(index):
        env = CountingEnv(**options)
        return ReplayableEnv(env, root_seed=0, index=index) if wrap else env

    return VectorSteps(SyncVectorEnv([lambda i=i: make(i) for i in range(2)], autoreset_mode=mode))


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_same_step_returns_the_next_episode_and_the_last_observation_apart(mode):
    steps = steps_of(mode)
    assert steps.reset(0)[0].tolist() == [0.0, 0.0]
    for count in (1, 2):
        step = steps.step(ACTION)
        assert step.observations[0].tolist() == [0.0, count]
        assert step.valid.all()
        assert not step.boundaries.any()
        assert not len(step.cut)
    last = steps.step(ACTION)
    assert last.observations[0].tolist() == [1.0, 0.0]
    assert last.following.tolist() == [[0.0, 3.0], [0.0, 3.0]]
    assert last.cut.tolist() == [0, 1]
    assert steps.step(ACTION).observations[0].tolist() == [1.0, 1.0]


def test_next_step_marks_the_step_that_decides_nothing():
    steps = steps_of(AutoresetMode.NEXT_STEP)
    steps.reset(0)
    for _ in range(2):
        steps.step(ACTION)
    last = steps.step(ACTION)
    assert last.boundaries.all()
    assert last.valid.all()
    assert last.following.tolist() == last.observations.tolist() == [[0.0, 3.0]] * 2
    restart = steps.step(ACTION)
    assert not restart.valid.any()
    assert restart.observations[0].tolist() == [1.0, 0.0]
    assert steps.step(ACTION).valid.all()


@pytest.mark.parametrize("mode", AutoresetMode)
def test_termination_is_no_cut_and_keeps_its_last_observation(mode):
    steps = steps_of(mode, horizon=1, terminates=True)
    steps.reset(0)
    step = steps.step(ACTION)
    assert step.terminated.all()
    assert step.boundaries.all()
    assert step.cut.tolist() == []
    assert step.following.tolist() == [[0.0, 1.0]] * 2


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
@pytest.mark.parametrize("before", [1, 3])
def test_stored_environments_go_on_alike(mode, before):
    first, second = (steps_of(mode, wrap=True, seeded=True) for _ in range(2))
    first.reset(0)
    for _ in range(before):
        first.step(ACTION)
    state = first.state_dict()
    second.load_state_dict(state)
    for _ in range(5):
        one, two = first.step(ACTION), second.step(ACTION)
        assert one.observations.tolist() == two.observations.tolist()
        assert one.valid.tolist() == two.valid.tolist()
        assert one.rewards.tolist() == two.rewards.tolist()


def test_environments_without_a_record_have_no_replays():
    steps = steps_of(AutoresetMode.SAME_STEP)
    assert steps.state_dict() is None
    steps.reset(0)
    assert steps.state_dict()["replays"] is None


def test_a_record_is_refused_by_environments_that_keep_none():
    recorded = steps_of(AutoresetMode.SAME_STEP, wrap=True)
    recorded.reset(0)
    with pytest.raises(CheckpointError, match="environments in a ReplayableEnv"):
        steps_of(AutoresetMode.SAME_STEP).load_state_dict(recorded.state_dict())


def test_attribute_error_of_an_environment_is_not_taken_for_a_missing_record():
    recorded = steps_of(AutoresetMode.SAME_STEP, wrap=True)
    recorded.reset(0)
    state = recorded.state_dict()
    broken = steps_of(AutoresetMode.SAME_STEP, wrap=True)

    def fail(**_):
        raise AttributeError("the simulator has no arm")

    broken.envs.envs[0].env.reset = fail
    with pytest.raises(AttributeError, match=r"^the simulator has no arm$"):
        broken.load_state_dict(state)


def test_step_before_reset_is_refused():
    with pytest.raises(NotReadyError, match=r"expected reset\(\) before"):
        steps_of(AutoresetMode.SAME_STEP).step(ACTION)


def test_environment_that_does_not_say_how_it_resets_is_refused():
    envs = SyncVectorEnv([CountingEnv])
    envs.metadata = {}
    with pytest.raises(ConfigurationError, match="autoreset_mode"):
        VectorSteps(envs)


def test_hidden_last_observation_is_refused():
    steps = steps_of(AutoresetMode.SAME_STEP, horizon=1)
    steps.reset(0)
    real = steps.envs.step
    steps.envs.step = lambda actions: (*real(actions)[:4], {})
    with pytest.raises(InputError, match=r"info\['final_obs'\]"):
        steps.step(ACTION)


class Telling(CountingEnv):
    """Says in its info which step of which episode it was, and at the last one that it was."""

    def reset(self, **options):
        seen, _ = super().reset(**options)
        return seen, {"begun": self.episode}

    def step(self, action):
        *answer, _ = super().step(action)
        info = {"count": self.count, "safety": {"slack": np.array([self.episode, self.count])}}
        return *answer, info | ({"is_success": True} if self.count == self.horizon else {})


@pytest.mark.parametrize("mode", AutoresetMode)
def test_info_of_a_row_is_what_followed_its_action(mode):
    made = [lambda: Telling(horizon=2), lambda: Telling(horizon=3)]
    steps = VectorSteps(SyncVectorEnv(made, autoreset_mode=mode))
    steps.reset(0)
    counts = [[0, 0], [0, 0]]
    for _ in range(12):
        step = steps.step(ACTION)
        for row, horizon in enumerate((2, 3)):
            episode, count = counts[row]
            if not step.valid[row]:
                assert step.info["begun"][row] == episode
                continue
            count += 1
            assert step.info["count"][row] == count
            assert step.info["safety"]["slack"][row].tolist() == [episode, count]
            assert step.info["_count"][row]
            has_ended = bool(step.info.get("_is_success", [False, False])[row])
            assert has_ended == step.boundaries[row] == (count == horizon)
            counts[row] = [episode + has_ended, 0 if has_ended else count]
    assert min(episode for episode, _ in counts) > 2
