"""Which transitions a pass takes, when passes end, and that learners read nothing in between."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cadenza.learn.algorithms.grpo_agent import GRPOAgent
from cadenza.learn.algorithms.minibatch_epochs import EpochPlan, run_epochs
from cadenza.learn.algorithms.on_policy_buffer import BufferShape, OnPolicyBuffer, Outcome
from cadenza.learn.algorithms.ppo_agent import PPOAgent
from cadenza.learn.configs import GRPOConfig, PPOConfig

CPU = torch.device("cpu")


def run(count, plan, figures=(0.0, 0.0)):
    taken = []

    def learn(indices):
        taken.append(indices.tolist())
        return torch.tensor(figures)

    return run_epochs(count, learn, plan, np.random.default_rng(3), CPU), taken


def test_every_pass_takes_every_transition_once_in_an_order_of_its_own():
    rows, taken = run(7, EpochPlan(epochs=2, batch_size=3, kl_column=0), (1.0, 2.0))
    assert [len(part) for part in taken] == [3, 4, 3, 4]
    rng = np.random.default_rng(3)
    for first, second in (taken[:2], taken[2:]):
        assert first + second == rng.permutation(7).tolist()
    assert rows.tolist() == [[1.0, 2.0]] * 4


@pytest.mark.parametrize(
    ("column", "target", "passes"), [(0, 0.5, 5), (1, 0.5, 1), (1, 2.0, 5), (1, None, 5)]
)
def test_passes_end_after_the_first_whose_kl_exceeds_the_target(column, target, passes):
    plan = EpochPlan(epochs=5, batch_size=4, kl_column=column, target_kl=target)
    rows, _ = run(8, plan, (0.1, 2.0))
    assert len(rows) == 2 * passes


class HostReads(TorchDispatchMode):
    """Counts how often a tensor became a Python number, each a wait for the device."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def filled():
    rng = np.random.default_rng(0)
    buffer = OnPolicyBuffer(BufferShape(capacity=8, rows=4, observation_dim=2))
    while not buffer.full:
        rows = rng.normal(size=(4, 2)).astype(np.float32)
        ends = rng.random(4) < 0.1
        buffer.stage(rows, rng.integers(2, size=4))
        buffer.commit(Outcome(rng.normal(size=4), ends, ends), rows)
    return buffer


SMALL = {"batch_size": 4, "epochs": 3, "hidden_sizes": (4,)}


@pytest.mark.parametrize(
    ("agent", "settings", "expected"),
    [
        (PPOAgent, PPOConfig(**SMALL), 0),
        (PPOAgent, PPOConfig(**SMALL, clip_value=0.1, entropy_coefficient=0.1), 0),
        (PPOAgent, PPOConfig(**SMALL, target_kl=1e9), 3),  # once an epoch
        (GRPOAgent, GRPOConfig(**SMALL, entropy_coefficient=0.1), 0),
        (GRPOAgent, GRPOConfig(**SMALL, kl_coefficient=0.0), 0),
    ],
)
def test_no_minibatch_waits_for_the_device(agent, settings, expected):
    learner = agent(settings, observation_dim=2, choices=2)
    with HostReads() as reads:
        learner.update(filled())
    assert reads.count == expected
