"""Members of a group start alike, or the learner says why not."""

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from cadenza.core.errors import ConfigurationError, GroupResetError
from cadenza.learn.algorithms.group_reset import group_seeds, require_equal_starts, reset_groups
from cadenza.learn.algorithms.vector_steps import VectorSteps
from cadenza.learn.env.replayable import ReplayableEnv
from tests.unit.learn.counting_envs import CountingEnv


def steps_of(*envs):
    return VectorSteps(
        SyncVectorEnv([lambda env=env: env for env in envs], autoreset_mode=AutoresetMode.SAME_STEP)
    )


def test_seeds_are_equal_within_and_different_between_groups_and_streams():
    seeds = group_seeds("a", environments=6, group_size=3, root_seed=1)
    assert seeds[0] == seeds[1] == seeds[2]
    assert seeds[3] == seeds[4] == seeds[5]
    assert seeds[0] != seeds[3]
    assert seeds == group_seeds("a", environments=6, group_size=3, root_seed=1)
    for other in (("b", 1), ("a", 2)):
        drawn = group_seeds(other[0], environments=6, group_size=3, root_seed=other[1])
        assert not set(drawn) & set(seeds)


def test_seeds_want_whole_groups():
    with pytest.raises(ConfigurationError, match=r"that 4 \(group_size\) divides, got 6"):
        group_seeds("a", environments=6, group_size=4, root_seed=0)


def test_cartpoles_of_one_group_start_alike():
    steps = steps_of(*(gymnasium.make("CartPole-v1") for _ in range(4)))
    seeds = group_seeds("a", environments=4, group_size=2, root_seed=0)
    observations = reset_groups(steps, seeds, 2)
    assert observations[0].tolist() == observations[1].tolist()
    assert observations[2].tolist() == observations[3].tolist()
    assert observations[0].tolist() != observations[2].tolist()
    alone, _ = gymnasium.make("CartPole-v1").reset(seed=seeds[2])
    assert observations[3].tolist() == alone.tolist()


def test_environments_that_ignore_their_seed_are_refused():
    class Unseeded(CountingEnv):
        count_of_all = 0

        def reset(self, *, seed=None, options=None):
            Unseeded.count_of_all += 1
            self.episode = Unseeded.count_of_all - 1
            return super().reset(seed=seed)

    with pytest.raises(
        GroupResetError,
        match=r"environments 0 \.\.\. 1 \(group 0\).*of 0 and 1 that differ by up to 1 .*np_random",
    ):
        reset_groups(steps_of(Unseeded(), Unseeded()), [5, 5], 2)


def test_error_names_the_member_that_differs():
    observations = np.zeros((6, 2, 2), np.float32)
    observations[5, 1, 0] = 0.25
    with pytest.raises(GroupResetError, match=r"3 \.\.\. 5 \(group 1\).* 3 and 5 .* up to 0\.25"):
        require_equal_starts(observations, 3)
    require_equal_starts(observations[:3], 3)


def test_not_a_number_is_no_equal_start():
    with pytest.raises(GroupResetError, match="differ by up to nan"):
        require_equal_starts(np.full((2, 1), np.nan), 2)


def test_vector_environment_without_a_seed_each_is_refused():
    steps = steps_of(CountingEnv(), CountingEnv())

    def reset(*, seed=None, options=None):
        return np.random.default_rng(int(seed)).random(2), {}

    steps.envs.reset = reset
    with pytest.raises(GroupResetError, match="takes a list with one seed per environment"):
        reset_groups(steps, [1, 1], 2)


@pytest.mark.parametrize("grouped", [True, False])
def test_replayable_environments_start_alike_within_their_group_only(grouped):
    def make(index):
        env = CountingEnv(seeded=True, horizon=1)
        group = index // 2 if grouped else None
        return ReplayableEnv(env, root_seed=0, index=index, group=group)

    steps = steps_of(*(make(i) for i in range(4)))
    if not grouped:
        with pytest.raises(GroupResetError, match=r"group=\.\.\."):
            reset_groups(steps, [7, 7, 7, 7], 2)
        return
    first = reset_groups(steps, [7, 7, 7, 7], 2)
    assert first[0].tolist() == first[1].tolist() != first[2].tolist()
    second = steps.step(np.full(4, 5)).observations  # every episode has one step
    assert second[0].tolist() == second[1].tolist() != first[0].tolist()
