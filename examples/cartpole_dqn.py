"""Double DQN with five-step targets on CartPole-v1, the engine by hand.

    python examples/cartpole_dqn.py --seeds 5

Four environments, one update per two of their steps. The front door's `cadenza.DQN` learns from
single steps; here the memory hands out rollouts, the learning rate falls, and observations are of
size one: left as they are, the angle drowns.
"""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from harness import Outcome, Run, main
from numpy.typing import NDArray

from cadenza.core.schedules import LinearSchedule
from cadenza.learn import Trainer
from cadenza.learn.algorithms.dqn import EpsilonGreedyPolicy, EpsilonSchedule, QLoss, QTarget
from cadenza.learn.callbacks import BackPropStepsTerminator
from cadenza.learn.collectors.sync import SimpleGymCollector
from cadenza.learn.env.dict_gym_wrapper import DictGymWrapper
from cadenza.learn.judging import evaluate_policy
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


class ReportingMemory(MemoryTableProxy):
    """Reports the mean return of every 20 episodes on their way into the memory."""

    def __init__(self, run: Run, table: Any) -> None:
        super().__init__(table, minimum_length_threshold=ROLLOUT_LENGTH, use_terminal=True)
        self._run, self._steps = run, 0
        self._returns: list[float] = []

    def add(self, observations: Mapping[Any, Any], responses: Mapping[Any, Any]) -> None:
        """Store, count and report."""
        super().add(observations, responses)
        self._steps += len(responses)
        ended = [seen.metadata for seen in observations.values() if seen.metadata is not None]
        self._returns += [metadata.info["episode/reward"] for metadata in ended]
        if len(self._returns) >= 20:
            self._run.report(self._steps, float(np.mean(self._returns)))
            self._returns.clear()


def train(run: Run) -> Outcome:
    """Train one seed and judge the last policy greedily."""
    updates = max(1, run.steps * UPDATES_PER_COLLECT // ENVS)
    weights = torch.Generator().manual_seed(run.seed)
    noise = torch.Generator().manual_seed(run.seed + 1_000)
    env = DictGymWrapper(SyncVectorEnv([make_env] * ENVS, autoreset_mode=AutoresetMode.SAME_STEP))
    env.dict_reset(seed=run.seed)
    q_net = DiscreteQMlp(4, 2, [256, 256], generator=weights)
    policy = EpsilonGreedyPolicy(q_net, generator=noise)
    agent = GenericAgentProxy(
        policy, "cpu", ("obs",), ("actions",), uses_logprobs=False, spaces=env.dict_space
    )
    table = DictObsNStepMemoryTable(
        spaces=env.dict_space, use_terminal_column=True, maxlen=50_000, device="cpu", seed=run.seed
    )
    collector = SimpleGymCollector(
        env,
        agent,
        ReportingMemory(run, table),
        render=False,
        warmup_steps=250,
        bp_steps_per_inf=UPDATES_PER_COLLECT,
    )
    optimizer = torch.optim.Adam(q_net.parameters(), lr=1e-3)
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 1e-3, total_iters=updates)
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
        QLoss(name="q", q=q_net, opt=optimizer, lr_schedule=decay),
        BackPropStepsTerminator(updates),
    ]
    Trainer(callbacks, MemoryLoader(table, ROLLOUTS, ROLLOUT_LENGTH, "batch_size")).train()
    policy.eval()

    def greedy(observation: NDArray[np.float32]) -> int:
        return int(policy(torch.as_tensor(observation)[None]).item())

    judged = evaluate_policy(greedy, make_env(), run.episodes, seed=run.seed)
    return Outcome(returns=judged.returns, env_steps=collector.inf_step, updates=updates)


if __name__ == "__main__":
    main(train, name="cartpole_dqn", steps=50_000, smoke_steps=400, episodes=100)
