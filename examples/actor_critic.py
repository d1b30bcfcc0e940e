"""Soft actor-critic over networks of one's own, for examples whose batches or actions are special.

The examples of plain soft actor-critic use `soft_actor_critic.py`, which shows every part.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from off_policy import torch_generator
from torch import nn

from cadenza.learn.algorithms.sac import QLoss
from cadenza.learn.algorithms.sac_assembly import ActorCriticNumbers, adam, soft_actor_critic
from cadenza.learn.callback import Callback
from cadenza.learn.nn.action_value_mlp import ActionValueMlp
from cadenza.learn.nn.gaussian_policy import GaussianMlpPolicy

#: Smallest log-probability that the losses see; rare far draws would drive the temperature.
MIN_LOG_PROB = -2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorCriticSettings:
    """Numbers of one soft actor-critic.

    Attributes:
        hidden: Widths of the hidden layers.
        learning_rate: Of every network and the temperature.
        initial_alpha: Temperature at the start.
        max_alpha: Cap of the temperature.
        reward_scale: Factor on the rewards.
        gamma: Discount per step.
        tau: Share that the target networks move per update.
        max_grad_norm: Longest gradient.
        data_group: Group of the state that the losses read.
    """

    hidden: tuple[int, ...] = (256, 256)
    learning_rate: float = 7e-4
    initial_alpha: float = 0.2
    max_alpha: float = 10.0
    reward_scale: float = 0.1
    gamma: float = 0.99
    tau: float = 0.01
    max_grad_norm: float = 1.0
    data_group: str = "default"


class ActorCritic:
    """A policy over flat observations with the callbacks that train it.

    Attributes:
        policy: What acts.
        callbacks: Losses and targets, in order.
    """

    def __init__(
        self, obs_size: int, action_size: int, settings: ActorCriticSettings, seed: int
    ) -> None:
        """Build networks and losses; ``seed`` fixes weights and noise."""
        weights = torch_generator("actor_critic.weights", seed)
        hidden = list(settings.hidden)
        self.policy = GaussianMlpPolicy(
            obs_size,
            action_size,
            hidden,
            generator=torch_generator("actor_critic.noise", seed),
            min_log_prob=MIN_LOG_PROB,
            init_generator=weights,
        )
        critics = [ActionValueMlp(obs_size, action_size, hidden, generator=weights) for _ in "12"]
        self.callbacks = losses(self.policy, critics, action_size, settings)


def losses(
    policy: nn.Module,
    critics: Sequence[nn.Module],
    action_size: int,
    settings: ActorCriticSettings,
) -> list[Callback]:
    """Return the callbacks of soft actor-critic over the given networks."""
    critic_losses = [
        QLoss(
            name=f"q{i}",
            q=critic,
            opt=adam(critic, settings.learning_rate),
            max_grad_norm=settings.max_grad_norm,
            data_group=settings.data_group,
        )
        for i, critic in enumerate(critics, start=1)
    ]
    ln_alpha = torch.tensor([math.log(settings.initial_alpha)], requires_grad=True)
    numbers = ActorCriticNumbers(
        learning_rate=settings.learning_rate,
        gamma=settings.gamma,
        tau=settings.tau,
        reward_scale=settings.reward_scale,
        max_alpha=settings.max_alpha,
        max_grad_norm=settings.max_grad_norm,
        data_group=settings.data_group,
    )
    return soft_actor_critic(policy, critic_losses, ln_alpha, action_size, numbers)
