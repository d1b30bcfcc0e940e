"""Double DQN with five-step targets on CartPole-v1, the engine by hand.

    python examples/cartpole_dqn.py --seeds 5

Four environments, one update per two of their steps. The front door's `cadenza.DQN` learns from
single steps; here the memory hands out rollouts, the learning rate falls, and observations are of
size one: left as they are, the angle drowns.
"""

import logging
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
import typer
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from cadenza.core.schedules import LinearSchedule
from cadenza.learn import Trainer
from cadenza.learn.agents.judging import Evaluation, evaluate_policy
from cadenza.learn.algorithms.dqn import EpsilonGreedyPolicy, EpsilonSchedule, QLoss, QTarget
from cadenza.learn.callbacks import BackPropStepsTerminator, TerminalLogger
from cadenza.learn.collectors.sync import SimpleGymCollector
from cadenza.learn.env.dict_gym_wrapper import DictGymWrapper
from cadenza.learn.memory import MemoryLoader, MemoryTableProxy
from cadenza.learn.memory.builder import DictObsNStepMemoryTable
from cadenza.learn.nn.action_value_mlp import DiscreteQMlp
from cadenza.learn.proxies import GenericAgentProxy

ENVS, UPDATES_PER_COLLECT = 4, 2
ROLLOUTS, ROLLOUT_LENGTH = 32, 5
#: Typical size of position (m), velocity (m/s), angle (rad) and angular velocity (rad/s).
OBSERVATION_SCALE = np.array([2.4, 2.0, 0.21, 2.0], np.float32)


def make_env() -> gymnasium.Env[Any, Any]:
    """Return CartPole with scaled observations."""
    space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    return gymnasium.wrappers.TransformObservation(
        gymnasium.make("CartPole-v1"), lambda observation: observation / OBSERVATION_SCALE, space
    )


def train(seed: int, steps: int) -> Callable[[NDArray[np.float32]], int]:
    """Train one seed and return what the last policy does greedily."""
    updates = max(1, steps * UPDATES_PER_COLLECT // ENVS)
    weights = torch.Generator().manual_seed(seed)
    noise = torch.Generator().manual_seed(seed + 1_000)
    env = DictGymWrapper(SyncVectorEnv([make_env] * ENVS, autoreset_mode=AutoresetMode.SAME_STEP))
    env.dict_reset(seed=seed)
    q_net = DiscreteQMlp(4, 2, [256, 256], generator=weights)
    policy = EpsilonGreedyPolicy(q_net, generator=noise)
    agent = GenericAgentProxy(
        policy, "cpu", ("obs",), ("actions",), uses_logprobs=False, spaces=env.dict_space
    )
    table = DictObsNStepMemoryTable(
        spaces=env.dict_space, use_terminal_column=True, maxlen=50_000, device="cpu", seed=seed
    )
    memory = MemoryTableProxy(table, minimum_length_threshold=ROLLOUT_LENGTH, use_terminal=True)
    collector = SimpleGymCollector(
        env,
        agent,
        memory,
        render=False,
        warmup_steps=250,
        bp_steps_per_inf=UPDATES_PER_COLLECT,
    )
    optimizer = torch.optim.Adam(q_net.parameters(), lr=1e-3)
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 1e-3, total_iters=updates)
    loss = QLoss(name="q", q=q_net, opt=optimizer, lr_schedule=decay)
    callbacks = [
        EpsilonSchedule(policy, LinearSchedule(1.0, 0.05, 5_000)),
        collector,
        QTarget(
            q_net=q_net,
            gamma=0.99,
            reward_scale=0.1,
            target_q_tau=0.005,
            roll_length=ROLLOUT_LENGTH,
            double=True,
        ),
        loss,
        TerminalLogger([collector, loss], log_interval=5_000),
        BackPropStepsTerminator(updates),
    ]
    Trainer(callbacks, MemoryLoader(table, ROLLOUTS, ROLLOUT_LENGTH, "batch_size")).train()
    policy.eval()
    return lambda observation: int(policy(torch.as_tensor(observation)[None]).item())


def main(seed: int = 0, seeds: int = 1, steps: int = 50_000, episodes: int = 100) -> None:
    """Train every seed and judge its last policy."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")  # what TerminalLogger writes
    torch.set_num_threads(1)  # networks are small: threads would wait for one another
    means: list[float] = []
    for root in range(seed, seed + seeds):
        judged = evaluate_policy(train(root, steps), make_env(), episodes, seed=root)
        means.append(judged.mean)
        print(f"seed {root}: {judged}", flush=True)
    if seeds > 1:
        print(f"over seeds: {Evaluation.of(means, [])}")


if __name__ == "__main__":
    typer.run(main)
