"""Soft actor-critic over networks of one's own, for examples whose batches or actions are special.

The examples of plain soft actor-critic use `soft_actor_critic`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from off_policy import torch_generator
from torch import nn
from torch.optim import Adam

from cadenza.learn.algorithms.sac import AlphaLoss, PolicyLoss, QLoss, QTarget
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
    ln_alpha = torch.tensor([math.log(settings.initial_alpha)], requires_grad=True)
    group, norm = settings.data_group, settings.max_grad_norm
    policy_loss = PolicyLoss(
        pi=policy,
        ln_alpha=ln_alpha,
        q=critics[0],
        q2=critics[1],
        opt=adam(policy, settings),
        max_grad_norm=norm,
        data_group=group,
    )
    return [
        *(
            QLoss(
                name=f"q{i}",
                q=critic,
                opt=adam(critic, settings),
                max_grad_norm=norm,
                data_group=group,
            )
            for i, critic in enumerate(critics, start=1)
        ),
        policy_loss,
        AlphaLoss(
            pi=policy,
            ln_alpha=ln_alpha,
            opt=Adam([ln_alpha], settings.learning_rate),
            n_actions=action_size,
            max_alpha=settings.max_alpha,
            log_prob_from=policy_loss,
            data_group=group,
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
            data_group=group,
        ),
    ]


def adam(network: nn.Module, settings: ActorCriticSettings) -> Adam:
    """Return an optimiser of everything in ``network`` that is not frozen."""
    trained = [p for p in network.parameters() if p.requires_grad]
    return Adam(trained, settings.learning_rate, fused=True)
