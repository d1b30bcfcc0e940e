"""Soft actor-critic over networks of one's own, for examples whose batches or actions are special.

The examples of plain soft actor-critic use `soft_actor_critic.py`, which shows every part.
"""

import math
from collections.abc import Sequence

import torch
from off_policy import torch_generator
from torch import nn

from cadenza.learn.algorithms.sac import QLoss
from cadenza.learn.algorithms.sac_assembly import adam, soft_actor_critic
from cadenza.learn.callback import Callback
from cadenza.learn.configs import SACConfig
from cadenza.learn.nn.action_value_mlp import ActionValueMlp
from cadenza.learn.nn.gaussian_policy import GaussianMlpPolicy

#: Smallest log-probability that the losses see; rare far draws would drive the temperature.
MIN_LOG_PROB = -2.0
CONFIG = SACConfig(learning_rate=7e-4, tau=0.01, max_gradient_norm=1.0)
REWARD_SCALE = 0.1


class ActorCritic:
    """A policy over flat observations with the callbacks that train it.

    Attributes:
        policy: What acts.
        callbacks: Losses and targets, in order.
    """

    def __init__(
        self, obs_size: int, action_size: int, seed: int, data_group: str = "default"
    ) -> None:
        """Build networks and losses that read ``data_group``; ``seed`` fixes weights and noise."""
        weights = torch_generator("actor_critic.weights", seed)
        hidden = CONFIG.hidden_sizes
        self.policy = GaussianMlpPolicy(
            obs_size,
            action_size,
            hidden,
            generator=torch_generator("actor_critic.noise", seed),
            min_log_prob=MIN_LOG_PROB,
            init_generator=weights,
        )
        critics = [ActionValueMlp(obs_size, action_size, hidden, generator=weights) for _ in "12"]
        self.callbacks = losses(self.policy, critics, action_size, CONFIG, data_group=data_group)


def losses(
    policy: nn.Module,
    critics: Sequence[nn.Module],
    action_size: int,
    config: SACConfig,
    *,
    reward_scale: float = REWARD_SCALE,
    data_group: str = "default",
) -> list[Callback]:
    """Return the callbacks of soft actor-critic over the given networks."""
    critic_losses = [
        QLoss(
            name=f"q{i}",
            q=critic,
            opt=adam(critic, config.learning_rate),
            max_grad_norm=config.max_gradient_norm,
            data_group=data_group,
        )
        for i, critic in enumerate(critics, start=1)
    ]
    ln_alpha = torch.tensor([math.log(config.initial_alpha)], requires_grad=True)
    return soft_actor_critic(
        policy,
        critic_losses,
        ln_alpha,
        action_size,
        config,
        reward_scale=reward_scale,
        data_group=data_group,
    )
