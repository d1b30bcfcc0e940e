"""Double DQN with five-step targets on CartPole-v1: 4 environments, 50 000 steps, 25 000 updates.

python examples/cartpole_dqn.py --seeds 5
"""

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from harness import Run, evaluate_policy, main
from numpy.typing import NDArray
from off_policy import CurveReporter, EpisodeReturns

from cadenza.core.schedules import LinearSchedule
from cadenza.learn.algorithms.dqn import QLoss, QTarget
from cadenza.learn.algorithms.exploration import EpsilonGreedyPolicy, EpsilonSchedule
from cadenza.learn.callbacks.generic import BackPropStepsTerminator
from cadenza.learn.collectors.sync import SimpleGymCollector
from cadenza.learn.env.dict_gym_wrapper import DictGymWrapper
from cadenza.learn.memory.builder import DictObsNStepMemoryTable
from cadenza.learn.memory.loader import MemoryLoader
from cadenza.learn.memory.table_proxy import MemoryTableProxy
from cadenza.learn.nn.discrete_q import DiscreteQMlp
from cadenza.learn.proxies import GenericAgentProxy
from cadenza.learn.trainer import Trainer

ENV_ID = "CartPole-v1"
NUM_ENVS = 4
#: Training steps per step of all environments: two environment steps for every update.
UPDATES_PER_COLLECT = 2
HIDDEN = [256, 256]
LEARNING_RATE = 1e-3  # falls linearly to a thousandth
ROLLOUTS, ROLLOUT_LENGTH = 32, 5
MEMORY = 50_000
WARMUP_CALLS = 250
GAMMA, TAU = 0.99, 0.005
REWARD_SCALE = 0.1
EPSILON_START, EPSILON_END, EPSILON_UPDATES = 1.0, 0.05, 5_000
#: Typical size of position (m), velocity (m/s), angle (rad) and angular velocity (rad/s).
OBSERVATION_SCALE = np.array([2.4, 2.0, 0.21, 2.0], np.float32)
REPORT_EVERY = 500


def make_env() -> gymnasium.Env[NDArray[np.float32], np.int64]:
    """Return CartPole whose observations are of size one; left as they are, the angle drowns."""

    def scale(observation: NDArray[np.float32]) -> NDArray[np.float32]:
        return observation / OBSERVATION_SCALE

    space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    return gymnasium.wrappers.TransformObservation(gymnasium.make(ENV_ID), scale, space)


def train(run: Run) -> None:
    """Train one seed and evaluate the last policy greedily."""
    updates = max(1, run.steps * UPDATES_PER_COLLECT // NUM_ENVS)
    weights = torch.Generator().manual_seed(run.seed)
    noise = torch.Generator().manual_seed(run.seed + 1_000)
    envs = SyncVectorEnv([make_env] * NUM_ENVS, autoreset_mode=AutoresetMode.SAME_STEP)
    env = DictGymWrapper(envs)
    env.dict_reset(seed=run.seed)
    spaces = env.dict_space

    q_net = DiscreteQMlp(4, 2, HIDDEN, generator=weights)
    policy = EpsilonGreedyPolicy(q_net, generator=noise)
    agent = GenericAgentProxy(
        policy, "cpu", ("obs",), ("actions",), uses_logprobs=False, spaces=spaces
    )
    table = DictObsNStepMemoryTable(
        spaces=spaces, use_terminal_column=True, maxlen=MEMORY, device="cpu", seed=run.seed
    )
    memory = EpisodeReturns(
        MemoryTableProxy(table, minimum_length_threshold=ROLLOUT_LENGTH, use_terminal=True)
    )
    collector = SimpleGymCollector(
        env,
        agent,
        memory,
        render=False,
        warmup_steps=WARMUP_CALLS,
        bp_steps_per_inf=UPDATES_PER_COLLECT,
    )
    optimizer = torch.optim.Adam(q_net.parameters(), lr=LEARNING_RATE)
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 1e-3, total_iters=updates)
    schedule = LinearSchedule(EPSILON_START, EPSILON_END, EPSILON_UPDATES)
    callbacks = [
        EpsilonSchedule(policy, schedule),
        collector,
        QTarget(
            q_net=q_net,
            gamma=GAMMA,
            reward_scale=REWARD_SCALE,
            target_q_tau=TAU,
            roll_length=ROLLOUT_LENGTH,
            double=True,
        ),
        QLoss(name="q", q=q_net, opt=optimizer, lr_schedule=decay),
        CurveReporter(run, memory, REPORT_EVERY),
        BackPropStepsTerminator(updates),
    ]
    Trainer(callbacks, MemoryLoader(table, ROLLOUTS, ROLLOUT_LENGTH, "batch_size")).train()
    envs.close()

    policy.eval()

    def act(observation: Any) -> int:
        return int(policy(torch.as_tensor(observation)[None]).item())

    returns = evaluate_policy(act, make_env, run.evaluation_episodes, run.seed)
    run.finish(returns, env_steps=collector.inf_step, updates=updates)


if __name__ == "__main__":
    main(train, name="cartpole_dqn", steps=50_000, smoke_steps=400, evaluation_episodes=100)
