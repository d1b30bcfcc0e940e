"""Checkpoints of every algorithm play in the evaluation through their portable policy."""

import numpy as np
import pytest
import torch

from cadenza.benchmark.policies import EgoSeat, PortablePolicy, load_policy, save_policy
from cadenza.core.checkpoints import read_metadata
from cadenza.core.errors import CheckpointError
from cadenza.learn.nn.mlp_policy import MlpPolicy


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
    address = save_policy(policy(), tmp_path / "policy.pt", seed=0, step=1, task="crossing")
    assert read_metadata(uri=address, artifacts_root=tmp_path).extra == {"task": "crossing"}
    loaded = load_policy(address, seat=seat(), artifacts_root=tmp_path)
    loaded.reset(seed=3)
    obs = {"agent": {"ego": {"state": np.array([-1.5, 9.0], np.float32)}}}
    assert loaded.act(obs).tolist() == [-0.5]


def test_policy_for_another_seat_is_refused():
    with pytest.raises(CheckpointError, match=r"for 3 observations and 1 actions .* got one for 2"):
        PortablePolicy(policy(), seat(observation_dim=3))
