"""Checkpoints of every algorithm play in the evaluation through their portable policy."""

import numpy as np
import pytest
import torch

from cadenza.benchmark.policies import EgoSeat, PortablePolicy, load_policy
from cadenza.core.checkpoints import CheckpointMetadata, save_checkpoint
from cadenza.core.errors import CheckpointError
from cadenza.learn.nn.mlp_policy import MLP_POLICY_KEY, MlpPolicy

URI = "local://artifacts/policy.pt"


def policy():
    """a = clip(s_0 + 1, -1, 1)."""
    return MlpPolicy(
        weights=[torch.tensor([[1.0, 0.0]]), torch.tensor([1.0])],
        activation="relu",
        output="mean",
        low=torch.tensor([-1.0]),
        high=torch.tensor([1.0]),
    )


def seat(observation_dim=2):
    bounds = np.ones(1, np.float32)
    return EgoSeat(uid="ego", observation_dim=observation_dim, low=-bounds, high=bounds)


def test_checkpoint_with_a_portable_policy_plays(tmp_path):
    save_checkpoint(
        state_dict={MLP_POLICY_KEY: policy().state_dict()},
        uri=URI,
        metadata=CheckpointMetadata(
            run_id="r", seed=0, step=1, git_sha="g", pyproject_hash="p", sha256=""
        ),
        artifacts_root=tmp_path,
    )
    loaded = load_policy(URI, seat=seat(), artifacts_root=tmp_path)
    loaded.reset(seed=3)
    obs = {"agent": {"ego": {"state": np.array([-1.5, 9.0], np.float32)}}}
    assert loaded.act(obs).tolist() == [-0.5]


def test_policy_for_another_seat_is_refused():
    with pytest.raises(CheckpointError, match=r"for 3 observations and 1 actions .* got one for 2"):
        PortablePolicy(policy(), seat(observation_dim=3))
