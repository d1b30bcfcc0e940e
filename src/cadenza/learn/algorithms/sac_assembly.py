"""Soft actor-critic put together: from networks and the losses of the critics to all callbacks.

Source:  arXiv:1812.05905, with a learned temperature and twin critics.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from cadenza.core.errors import InputError
from cadenza.learn.algorithms.critic_loss import CriticLoss
from cadenza.learn.algorithms.sac_losses import PolicyLoss
from cadenza.learn.algorithms.sac_target import QTarget
from cadenza.learn.algorithms.sac_temperature import AlphaLoss
from cadenza.learn.callback import Callback
from cadenza.learn.optimizers import FusedAdam


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorCriticNumbers:
    """Numbers of policy, temperature and targets.

    Attributes:
        learning_rate: Adam's step size of policy and temperature.
        gamma: Discount per step.
        tau: Share that the target networks move per update.
        reward_scale: Factor on the rewards.
        max_alpha: Cap of the temperature.
        target_entropy: Nats; None is −A.
        max_grad_norm: Longest gradient of the policy.
        max_alpha_grad_norm: Longest gradient of the temperature.
        data_group: Group of the state that holds the batch.
    """

    learning_rate: float = 3e-4
    gamma: float = 0.99
    tau: float = 0.005
    reward_scale: float = 1.0
    max_alpha: float = 10.0
    target_entropy: float | None = None
    max_grad_norm: float = 10.0
    max_alpha_grad_norm: float = 10.0
    data_group: str = "default"


def adam(network: nn.Module, learning_rate: float) -> FusedAdam:
    """Return an optimiser, in one kernel per step, of all in ``network`` that is not frozen."""
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    return FusedAdam(trained, learning_rate)


def soft_actor_critic(
    policy: nn.Module,
    critics: Sequence[CriticLoss[Any]],
    ln_alpha: Tensor,
    action_dim: int,
    numbers: ActorCriticNumbers,
) -> list[Callback]:
    """Return the callbacks of soft actor-critic, in order.

    Args:
        policy: Returns actions and log-probabilities.
        critics: Losses of the two critics, which they hold.
        ln_alpha: ln α to start from, trained in place.
        action_dim: A.
        numbers: Numbers of the other parts; final states are worth 0.

    Raises:
        InputError: There are not two critics.
    """
    if len(critics) != 2:
        raise InputError(
            f"soft_actor_critic: expected the losses of two critics, got {len(critics)}."
        )
    q1, q2 = (loss.q_network for loss in critics)
    policy_loss = PolicyLoss(
        pi=policy,
        ln_alpha=ln_alpha,
        q=q1,
        q2=q2,
        opt=adam(policy, numbers.learning_rate),
        max_grad_norm=numbers.max_grad_norm,
        data_group=numbers.data_group,
    )
    alpha_loss = AlphaLoss(
        pi=policy,
        ln_alpha=ln_alpha,
        opt=FusedAdam([ln_alpha], numbers.learning_rate),
        n_actions=action_dim,
        max_alpha=numbers.max_alpha,
        max_grad_norm=numbers.max_alpha_grad_norm,
        t_entropy=numbers.target_entropy,
        log_prob_from=policy_loss,
        data_group=numbers.data_group,
    )
    target = QTarget(
        pi=policy,
        ln_alpha=ln_alpha,
        q1=q1,
        q2=q2,
        gamma=numbers.gamma,
        reward_scale=numbers.reward_scale,
        target_q_tau=numbers.tau,
        use_terminal_masking=True,
        data_group=numbers.data_group,
    )
    return [*critics, policy_loss, alpha_loss, target]
