"""Q-learning with its real parts: memory, loader, trainer, priorities, shaped rewards, export."""

import numpy as np
import pytest
import torch
from torch import nn

from cadenza.core.spaces import BoxSpace, DictSpace, MDPSpace
from cadenza.learn.algorithms.amp import AMPReward
from cadenza.learn.algorithms.dqn import QLoss, QTarget
from cadenza.learn.callback import Callback
from cadenza.learn.callbacks.generic import BackPropStepsTerminator
from cadenza.learn.memory.builder import DictObsMemoryTable, DictObsNStepMemoryTable
from cadenza.learn.memory.loader import MemoryLoader
from cadenza.learn.memory.strategy import PrioritizedSampleStrategy
from cadenza.learn.nn.action_value_mlp import DiscreteQMlp
from cadenza.learn.trainer import Trainer
from tests.campaigns import size

#: A corridor of five cells; action 1 moves right, action 0 left. Entering cell 4 gives 1 and ends
#: the episode.
CELLS = 5
SPACES = MDPSpace(
    rewards=BoxSpace(np.float32, (1,)),
    actions=BoxSpace(np.int64, (1,)),
    state=DictSpace({"obs": BoxSpace(np.float32, (CELLS,))}),
)


def one_hot(cell: int) -> np.ndarray:
    return np.eye(CELLS, dtype=np.float32)[cell]


def fill(table, episodes: int = 60, longest: int = 30, seed: int = 0) -> None:
    """Walk at random; episodes that do not arrive are interrupted."""
    rng = np.random.default_rng(seed)
    for identity in range(episodes):
        cell, cells, actions, rewards = 0, [0], [], []
        while cell != CELLS - 1 and len(actions) < longest:
            action = int(rng.integers(2))
            cell = max(0, cell + 2 * action - 1)
            cells.append(cell)
            actions.append([action])
            rewards.append([float(cell == CELLS - 1)])
        table.add_sequence(
            identity,
            {
                "obs": np.stack([one_hot(c) for c in cells]),
                "actions": np.array(actions),
                "rewards": np.array(rewards, np.float32),
                "terminal": np.array([0.0 if cell == CELLS - 1 else 1.0], np.float32),
            },
        )


def q_net() -> DiscreteQMlp:
    return DiscreteQMlp(CELLS, 2, [32], generator=torch.Generator().manual_seed(0))


def losses(network: nn.Module, **options) -> QLoss:
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    return QLoss(name="q", q=network, opt=optimizer, **options)


DOUBLE = {"double": True, "target_q_tau": 1.0, "target_period": 20}
#: V(cell) = γ^(3 - cell) with γ = 0.9: the discounted 1 for entering the last cell.
TRUE_VALUES = [0.9 ** (CELLS - 2 - cell) for cell in range(CELLS - 1)]


@pytest.mark.parametrize("options", size([DOUBLE], [{}, DOUBLE]))
def test_one_step_learning_finds_the_values_of_a_corridor(options):
    table = DictObsMemoryTable(spaces=SPACES, use_terminal_column=True, device="cpu")
    fill(table)
    network = q_net()
    options = {"target_q_tau": 0.05, **options}
    callbacks = [
        QTarget(q_net=network, gamma=0.9, **options),
        losses(network),
        BackPropStepsTerminator(1500),
    ]
    Trainer(callbacks, MemoryLoader(table, 64, 1, "batch_size")).train()
    with torch.no_grad():
        values = network(torch.eye(CELLS))[: CELLS - 1]
    assert values.argmax(1).tolist() == [1] * (CELLS - 1)
    assert values.amax(1).tolist() == pytest.approx(TRUE_VALUES, abs=0.05)


def test_prioritised_memory_learns_the_corridor_and_gets_errors_as_priorities():
    sampler = PrioritizedSampleStrategy(seed=0)
    table = DictObsNStepMemoryTable(
        spaces=SPACES, use_terminal_column=True, maxlen=5_000, sampler=sampler, device="cpu"
    )
    fill(table)
    seen: list[torch.Tensor] = []
    update = table.update_priorities

    def record(sample_ids, priorities):
        seen.append(priorities)
        return update(sample_ids, priorities)

    table.update_priorities = record
    network = q_net()
    callbacks = [
        QTarget(q_net=network, gamma=0.9, target_q_tau=0.05, roll_length=2),
        losses(network, prioritized_memory=table),
        BackPropStepsTerminator(1000),
    ]
    Trainer(callbacks, MemoryLoader(table, 32, 2, "batch_size")).train()
    assert len(seen) == 1000
    assert all(errors.shape == (32,) for errors in seen)
    assert seen[-1].mean() < 0.5 * seen[0].mean()
    with torch.no_grad():
        assert network(torch.eye(CELLS))[: CELLS - 1].argmax(1).tolist() == [1] * (CELLS - 1)


def test_priorities_are_mean_absolute_errors_per_rollout():
    class Memory:
        def update_priorities(self, sample_ids, priorities):
            self.got = sample_ids.tolist(), priorities.tolist()

    network, memory = nn.Linear(1, 2, bias=False), Memory()
    network.forward = lambda obs: nn.functional.linear(obs, 0.0 * network.weight)
    callback = losses(network, prioritized_memory=memory)
    batch = {
        "observation": {"obs": torch.zeros(4, 1)},
        "actions": torch.zeros(4, 1),
        "q_target": torch.tensor([[1.0], [-3.0], [0.0], [5.0]]),
        "sample_ids": torch.tensor([7, 9]),
    }
    callback.backward(default=batch)
    assert memory.got == ([7, 9], [2.0, 2.5])


def test_style_rewards_reach_the_targets_whatever_the_order_of_the_list():
    table = DictObsNStepMemoryTable(
        spaces=SPACES, use_terminal_column=True, maxlen=5_000, device="cpu"
    )
    fill(table)
    rows: list[dict] = []

    class Spy(Callback):
        data_group = "default"

        def backward(self, rewards, task_rewards, style_rewards, q_target):
            rows.append(
                {
                    "rewards": rewards,
                    "task": task_rewards,
                    "style": style_rewards,
                    "target": q_target,
                }
            )

    discriminator = nn.Linear(2 * CELLS, 1)
    shaper = AMPReward(discriminator, lambda s: s, 0.5, 3, "obs", "default")
    network = q_net()
    callbacks = [
        QTarget(q_net=network, gamma=0.0, roll_length=3),
        Spy(),
        shaper,
        BackPropStepsTerminator(3),
    ]
    Trainer(callbacks, MemoryLoader(table, 8, 3, "batch_size"), strict=False).train()
    assert len(rows) == 3
    for row in rows:
        assert torch.allclose(row["rewards"], row["task"] + row["style"])
        assert torch.allclose(row["target"], row["rewards"])  # γ = 0: the reward alone
        assert row["style"].abs().max() > 0
