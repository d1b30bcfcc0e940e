"""The learner against an independent implementation of its equations, bit for bit."""

import numpy as np
import pytest
import torch

from cadenza.core.seeding import derive_substream
from tests.unit.aht.ego_ppo_fakes import (
    ACTION_DIM,
    OBSERVATION_DIM,
    MadeUpTask,
    config,
    observation,
    tell,
    trainer,
    weights,
)
from tests.unit.aht.ego_ppo_reference import ReferenceLearner

#: Names of the reference's parameters in the order it lists them.
ACTOR_NAMES = [
    "base.feature_norm.weight", "base.feature_norm.bias",
    "base.mlp.fc.0.weight", "base.mlp.fc.0.bias", "base.mlp.fc.2.weight", "base.mlp.fc.2.bias",
    "base.mlp.fc.3.weight", "base.mlp.fc.3.bias", "base.mlp.fc.5.weight", "base.mlp.fc.5.bias",
    "act.action_out.log_std",
    "act.action_out.fc_mean.weight", "act.action_out.fc_mean.bias",
]  # fmt: skip


def stream(name, seed):
    return derive_substream(name, root_seed=seed)


def reference_for(settings):
    return ReferenceLearner(
        observation_dim=OBSERVATION_DIM,
        action_dim=ACTION_DIM,
        settings=settings.happo.model_dump(),
        torch_seed=derive_substream(
            "training.ego_ppo.torch", root_seed=settings.seed
        ).integer_seed(),
        minibatch_rng=derive_substream(
            "training.ego_ppo.minibatch", root_seed=settings.seed
        ).default_rng(),
    )


def assert_equal_weights(mine, reference):
    actual = weights(mine)
    for name, value in zip(ACTOR_NAMES, reference.actor_parameters, strict=True):
        assert torch.equal(actual[f"actor.{name}"], value), name
    for name, value in reference.critic.state_dict().items():
        assert torch.equal(actual[f"critic.net.{name}"], value), name


@pytest.mark.parametrize(("num_envs", "seed"), [(None, 0), (1, 3), (6, 3)])
def test_three_updates_equal_the_reference(num_envs, seed):
    settings = config(seed=seed)
    mine, task = trainer(seed=seed, num_envs=num_envs), MadeUpTask(seed, num_envs)
    rows = (1, -1) if num_envs is None else (num_envs, -1)

    def batched(array):
        return np.asarray(array).reshape(rows)

    with torch.random.fork_rng():
        reference = reference_for(settings)
        assert_equal_weights(mine, reference)
        state = task.state()
        for _ in range(3):
            for _ in range(settings.happo.rollout_length):
                action = mine.act(observation(state))
                assert np.array_equal(batched(action), reference.act(batched(state)))
                state, reward, terminated, truncated, final = task.step(action)
                tell(mine, state, reward, terminated, truncated, final)
                reference.observe(
                    batched(state),
                    batched(reward)[:, 0],
                    batched(terminated)[:, 0],
                    batched(truncated)[:, 0],
                    batched(final),
                )
            before = weights(mine)
            mine.update()
            reference.update()
            assert_equal_weights(mine, reference)
            after = weights(mine)
            assert all(not torch.equal(before[name], after[name]) for name in before)
