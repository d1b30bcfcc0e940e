"""The actor-critic that several examples share: networks, losses, environments, curve points."""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from harness import Run
from torch import Tensor, nn
from torch.optim import Adam

from cadenza.learn.algorithms.sac import AlphaLoss, PolicyLoss, QLoss, QTarget
from cadenza.learn.callback import Callback
from cadenza.learn.collectors.sync import EPISODE_REWARD, SimpleGymCollector
from cadenza.learn.env.dict_gym_wrapper import DictGymWrapper
from cadenza.learn.env.replayable import ReplayableEnv
from cadenza.learn.nn.action_value_mlp import ActionValueMlp
from cadenza.learn.nn.gaussian_policy import GaussianMlpPolicy


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Numbers of one soft actor-critic."""

    hidden: tuple[int, ...] = (256, 256)
    learning_rate: float = 7e-4
    initial_alpha: float = 0.2
    max_alpha: float = 10.0
    reward_scale: float = 0.1
    gamma: float = 0.99
    tau: float = 0.01
    max_grad_norm: float = 1.0
    data_group: str = "default"


class SoftActorCritic:
    """A policy, two critics and a temperature, with the callbacks that train them."""

    def __init__(self, obs_size: int, action_size: int, settings: Settings, seed: int) -> None:
        """Build networks and losses; ``seed`` fixes weights and noise."""
        weights = torch.Generator().manual_seed(seed)
        noise = torch.Generator().manual_seed(seed + 1_000)
        hidden = list(settings.hidden)
        self.policy = GaussianMlpPolicy(
            obs_size,
            action_size,
            hidden,
            generator=noise,
            min_log_prob=-2.0,
            init_generator=weights,
        )
        critics = [ActionValueMlp(obs_size, action_size, hidden, generator=weights) for _ in "12"]
        self.callbacks = losses(self.policy, critics, action_size, settings)

    def act_greedily(self, observation: Any) -> Any:
        """Return the greedy action for one observation."""
        return greedy(self.policy)(observation)


def losses(
    policy: nn.Module, critics: Sequence[nn.Module], action_size: int, settings: Settings
) -> list[Callback]:
    """Return the callbacks of soft actor-critic over the given networks."""
    ln_alpha = torch.tensor([math.log(settings.initial_alpha)], requires_grad=True)
    common = {"max_grad_norm": settings.max_grad_norm, "data_group": settings.data_group}
    rate = settings.learning_rate
    policy_loss = PolicyLoss(
        pi=policy,
        ln_alpha=ln_alpha,
        q=critics[0],
        q2=critics[1],
        opt=Adam(trainable(policy), rate),
        **common,
    )
    return [
        *(
            QLoss(name=f"q{i + 1}", q=critic, opt=Adam(critic.parameters(), rate), **common)
            for i, critic in enumerate(critics)
        ),
        policy_loss,
        AlphaLoss(
            pi=policy,
            ln_alpha=ln_alpha,
            opt=Adam([ln_alpha], rate),
            n_actions=action_size,
            max_alpha=settings.max_alpha,
            log_prob_from=policy_loss,
            **common,
        ),
        QTarget(
            pi=policy,
            ln_alpha=ln_alpha,
            q1=critics[0],
            q2=critics[1],
            gamma=settings.gamma,
            reward_scale=settings.reward_scale,
            target_q_tau=settings.tau,
            use_terminal_masking=True,
            data_group=settings.data_group,
        ),
    ]


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that are not frozen."""
    return [p for p in module.parameters() if p.requires_grad]


def greedy(policy: nn.Module) -> Callable[[Any], Any]:
    """Return a function from one observation to the policy's action without noise."""

    def act(observation: Any) -> Any:
        was_training = policy.training
        policy.eval()
        with torch.no_grad():
            action: Tensor = policy(torch.as_tensor(observation, dtype=torch.float32)[None])
        policy.train(was_training)
        return action[0].numpy()

    return act


def vector_env(
    make: Callable[[], gymnasium.Env[Any, Any]], count: int, seed: int
) -> DictGymWrapper:
    """Return ``count`` environments whose episodes a checkpoint can bring back."""

    def maker(index: int) -> Callable[[], gymnasium.Env[Any, Any]]:
        return lambda: ReplayableEnv(make(), root_seed=seed, index=index)

    return DictGymWrapper(
        SyncVectorEnv([maker(i) for i in range(count)], autoreset_mode=AutoresetMode.SAME_STEP)
    )


class CurvePoints(Callback):
    """Reports the mean return of the last twenty finished training episodes."""

    def __init__(self, run: Run, collector: SimpleGymCollector, every: int) -> None:
        """Look at ``collector`` after every batch and report every ``every`` batches."""
        super().__init__(cycle=every)
        self._run = run
        self._collector = collector
        self._recent: deque[float] = deque(maxlen=20)

    def end_batch(self) -> None:
        """Note the return of an episode that has just ended."""
        latest = self._collector.scalar_logs.get(EPISODE_REWARD)
        if latest is not None and (not self._recent or latest != self._recent[-1]):
            self._recent.append(latest)

    def end_cycle(self) -> None:
        """Report."""
        if self._recent:
            self._run.report(self._collector.inf_step, float(np.mean(self._recent)))
