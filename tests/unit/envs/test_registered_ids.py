"""Every environment that has a name, through the tests of Gymnasium and PettingZoo.

What is not installed is skipped here and walked by `make test-teamwork` and `make test-maniskill`,
which install it.
"""

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from cadenza.aht.config import EnvConfig
from cadenza.benchmark.builders import build_env
from cadenza.benchmark.tasks import get_task, list_tasks
from cadenza.core.errors import ConfigurationError, MissingExtraError
from cadenza.envs.inputs import ChamberEnvCompatibilityError

EGO = "cadenza/Ego-v1"
#: Environments of other packages with two agents, of choices and of real actions.
FOREIGN = [
    ("pettingzoo:mpe2.simple_push_v3:parallel_env", {}),
    ("pettingzoo:mpe2.simple_push_v3:parallel_env", {"continuous_actions": True}),
    ("pettingzoo:mpe2.simple_reference_v3:parallel_env", {}),
    ("pettingzoo:mpe2.simple_speaker_listener_v4:parallel_env", {}),
]
TASKS = [(task.task_id, {}) for task in list_tasks()] + FOREIGN
WALK = [(name, {}) for name in gymnasium.registry if name.startswith("cadenza/") and name != EGO]
WALK += [(EGO, {"task": task, **options}) for task, options in TASKS]
WALK += [
    (EGO, {"task": task.task_id, "partner": name})
    for task in list_tasks()
    for name in task.partners
]


def installed(make):
    """Return what ``make`` makes, or skip where its package is not installed."""
    try:
        return make()
    except (MissingExtraError, ChamberEnvCompatibilityError, ConfigurationError) as error:
        if not ("pip install" in str(error) or "No module named" in str(error)):
            raise
        pytest.skip(str(error))


def played(env, seed):
    """Return what the numbered episode shows, and the two without a number after it."""
    shown = []
    env.action_space.seed(7)
    for number in (seed, None, None):
        state, _ = env.reset(seed=number)
        shown.append(np.asarray(state, dtype=np.float64))
        for _ in range(12):
            state, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            shown.append(np.append(state, reward))
            if terminated or truncated:
                break
    return shown


@pytest.mark.parametrize(("name", "options"), WALK, ids=str)
def test_seat_of_the_ego_passes_gymnasiums_check_and_a_seed_restarts_its_episodes(name, options):
    env = installed(lambda: gymnasium.make(name, **options)).unwrapped
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a bound may be infinite
        check_env(env, skip_render_check=True)
    first, _, again = played(env, 5), played(env, 6), played(env, 5)
    assert len(first) == len(again)
    assert all(map(np.array_equal, first, again))
    env.close()


@pytest.mark.parametrize(("task", "options"), TASKS, ids=str)
def test_all_seats_pass_the_tests_of_pettingzoo(task, options):
    pytest.importorskip("pettingzoo")
    from pettingzoo.test import parallel_api_test, parallel_seed_test

    from cadenza.envs.parallel_view import ParallelView

    def made():
        length = get_task(task).episode_length
        config = EnvConfig(task=task, episode_length=length, options=options)
        return ParallelView(build_env(config, root_seed=0))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        view = installed(made)
        parallel_api_test(view, num_cycles=60)
        parallel_seed_test(made, num_cycles=20)
        if hasattr(view.multi_env, "parallel_env"):  # what the task was made of
            parallel_api_test(view.multi_env.parallel_env, num_cycles=60)


@pytest.mark.parametrize(
    "name", [name for name, _ in WALK if name.startswith("cadenza/") and name != EGO]
)
def test_copies_of_a_batched_task_play_the_episodes_of_single_environments(name):
    length, count = 4, 3
    copies = installed(lambda: gymnasium.make_vec(name, num_envs=count, episode_length=length))
    assert copies.metadata["autoreset_mode"] is gymnasium.vector.AutoresetMode.SAME_STEP
    singles = [gymnasium.make(name, episode_length=length).unwrapped for _ in range(count)]
    copies.action_space.seed(0)
    shown, _ = copies.reset(seed=5)
    np.testing.assert_array_equal(
        shown, [env.reset(seed=5 + i)[0] for i, env in enumerate(singles)]
    )
    for step in range(1, 2 * length + 1):
        actions = copies.action_space.sample()
        shown, rewards, terminated, truncated, info = copies.step(actions)
        for i, env in enumerate(singles):
            state, reward, *ends, _ = env.step(actions[i])
            assert (rewards[i], terminated[i], truncated[i]) == (reward, *ends)
            if any(ends):
                np.testing.assert_array_equal(info["final_obs"][i], state)
                state, _ = env.reset(seed=5 + i + count * (step // length))
            np.testing.assert_array_equal(shown[i], state)
    assert gymnasium.make_vec(name, num_envs=1).reset(seed=0)[0].shape[0] == 1
