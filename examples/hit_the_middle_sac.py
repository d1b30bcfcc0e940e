"""The engine by hand, soft actor-critic from its parts: 2 000 updates of tiny networks, seconds.

    python examples/hit_the_middle_sac.py --seeds 6

A collector steps the environments and fills a memory, a loader draws batches, and the trainer calls
every callback with what it asks for. The score is the mean reward of the batches of the last 100
updates: how well the recent behaviour hits the middle; 0 is best.
"""

import math

import gymnasium
import numpy as np
import torch
import typer
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch.optim import Adam

from cadenza.learn import Callback, Trainer
from cadenza.learn.agents.judging import Evaluation
from cadenza.learn.algorithms.sac import AlphaLoss, PolicyLoss, QLoss, QTarget
from cadenza.learn.callbacks import BackPropStepsTerminator
from cadenza.learn.collectors.sync import SimpleGymCollector
from cadenza.learn.env.dict_gym_wrapper import DictGymWrapper
from cadenza.learn.env.hit_the_middle import HitTheMiddle
from cadenza.learn.env.stepping import ReplayableEnv
from cadenza.learn.memory import MemoryLoader, MemoryTableProxy
from cadenza.learn.memory.builder import DictObsMemoryTable
from cadenza.learn.nn import ActionValueMlp, GaussianMlpPolicy
from cadenza.learn.proxies import GenericAgentProxy

ENVS = 10
HIDDEN = (10, 10)


class RewardCurve(Callback):
    """Keeps the mean reward of every batch; a callback's arguments name what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.data_group = "default"
        self.rewards: list[float] = []

    def end_batch(self, rewards: torch.Tensor) -> None:
        """Note the batch's mean reward."""
        self.rewards.append(float(rewards.mean()))


def train(seed: int, updates: int) -> list[float]:
    """Train one seed and return the mean reward of every batch."""

    def make(index: int) -> gymnasium.Env:
        return ReplayableEnv(HitTheMiddle(), root_seed=seed, index=index)

    env = DictGymWrapper(
        SyncVectorEnv(
            [lambda index=index: make(index) for index in range(ENVS)],
            autoreset_mode=AutoresetMode.SAME_STEP,
        )
    )
    weights, noise = (torch.Generator().manual_seed(2 * seed + k) for k in (0, 1))
    q1, q2 = (ActionValueMlp(2, 1, HIDDEN, generator=weights) for _ in range(2))
    policy = GaussianMlpPolicy(2, 1, HIDDEN, generator=noise, init_generator=weights)
    ln_alpha = torch.full((1,), math.log(0.2), requires_grad=True)
    table = DictObsMemoryTable(
        spaces=env.dict_space, use_terminal_column=True, maxlen=1_000, device="cpu", seed=seed
    )
    memory = MemoryTableProxy(table, minimum_length_threshold=2, use_terminal=True)
    agent = GenericAgentProxy(policy, "cpu", ("obs",), ("actions",), spaces=env.dict_space)
    collector = SimpleGymCollector(env, agent, memory, render=False, warmup_steps=500)
    curve = RewardCurve()
    callbacks = [
        QLoss(name="q1", q=q1, opt=Adam(q1.parameters(), 8e-3)),
        QLoss(name="q2", q=q2, opt=Adam(q2.parameters(), 8e-3)),
        PolicyLoss(pi=policy, ln_alpha=ln_alpha, q=q1, q2=q2, opt=Adam(policy.parameters())),
        AlphaLoss(pi=policy, ln_alpha=ln_alpha, opt=Adam([ln_alpha]), n_actions=1),
        QTarget(pi=policy, ln_alpha=ln_alpha, q1=q1, q2=q2, use_terminal_masking=True),
        collector,
        curve,
        BackPropStepsTerminator(updates),
    ]
    Trainer(callbacks, MemoryLoader(table, 100, 2, "batch_size")).train()
    return curve.rewards


def main(seed: int = 0, seeds: int = 1, updates: int = 2_000) -> None:
    """Train every seed and print the mean reward of its first and its last 100 batches."""
    torch.set_num_threads(1)  # networks are small: threads would wait for one another
    scores: list[float] = []
    for root in range(seed, seed + seeds):
        rewards = train(root, updates)
        scores.append(float(np.mean(rewards[-100:])))
        print(f"seed {root}: {np.mean(rewards[:100]):.2f} at first, {scores[-1]:.2f} at last")
    if seeds > 1:
        over = Evaluation.of(scores, [])
        print(f"over seeds: {over.mean:.2f} [{over.low:.2f}, {over.high:.2f}]")


if __name__ == "__main__":
    typer.run(main)
