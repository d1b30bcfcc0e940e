"""A soft critic that learns from a prioritised table and tells it its errors."""

import numpy as np
import torch
from torch.optim import Adam

from cadenza.core.spaces import BoxSpace, DictSpace, MDPSpace
from cadenza.learn import Trainer
from cadenza.learn.algorithms.sac import QLoss
from cadenza.learn.callback import Callback
from cadenza.learn.callbacks import BackPropStepsTerminator
from cadenza.learn.memory import MemoryLoader
from cadenza.learn.memory.builder import DictObsMemoryTable
from cadenza.learn.memory.prioritized_strategy import PrioritizedSampleStrategy
from cadenza.learn.nn import ActionValueMlp

STEPS = 200
#: The one transition that the rewards of the others say nothing about.
ODD = 77


class RewardTarget(Callback):
    """Makes the reward the target, and counts how often the odd transition is drawn."""

    def __init__(self):
        super().__init__()
        self.data_group = "default"
        self.drawn = []

    def begin_batch(self, observation, rewards):
        self.drawn.append(int((observation["obs"] == ODD / STEPS).sum()))
        return {"default": {"q_target": rewards}}


def test_surprising_transition_is_drawn_more_and_more_often():
    box = BoxSpace(np.float32, (1,))
    table = DictObsMemoryTable(
        spaces=MDPSpace(box, box, DictSpace({"obs": box})),
        maxlen=STEPS,
        device="cpu",
        sampler=PrioritizedSampleStrategy(alpha=1.0, beta=0.0),
    )
    rewards = np.zeros((STEPS, 1), np.float32)
    rewards[ODD] = 5.0
    obs = np.arange(STEPS + 1, dtype=np.float32)[:, None] / STEPS
    table.add_sequence(0, {"obs": obs, "actions": rewards * 0, "rewards": rewards})
    critic = ActionValueMlp(1, 1, [8], generator=torch.Generator().manual_seed(0))
    target = RewardTarget()
    loss = QLoss(name="q", q=critic, opt=Adam(critic.parameters(), 1e-2), prioritized_memory=table)
    loader = MemoryLoader(table, 64, 1, "batch_size")
    Trainer([target, loss, BackPropStepsTerminator(60)], loader).train()
    # Uniform draws would give 64 / 200 = 0.32 per batch
    assert np.mean(target.drawn[-20:]) > 3.0
