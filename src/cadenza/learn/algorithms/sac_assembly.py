"""Soft actor-critic put together: from networks and the losses of the critics to all callbacks.

Source:  arXiv:1812.05905, with a learned temperature and twin critics.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from cadenza.core.errors import InputError
from cadenza.learn.algorithms.critic_loss import CriticLoss
from cadenza.learn.algorithms.sac_losses import PolicyLoss
from cadenza.learn.algorithms.sac_target import QTarget
from cadenza.learn.algorithms.sac_temperature import AlphaLoss
from cadenza.learn.callback import Callback
from cadenza.learn.configs import SACConfig
from cadenza.learn.optimizers import FusedAdam


def adam(network: nn.Module, learning_rate: float) -> FusedAdam:
    """Return an optimiser, in one kernel per step, of all in ``network`` that is not frozen."""
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    return FusedAdam(trained, learning_rate)


def soft_actor_critic(
    policy: nn.Module,
    critics: Sequence[CriticLoss[Any]],
    ln_alpha: Tensor,
    action_dim: int,
    config: SACConfig,
    *,
    reward_scale: float = 1.0,
    data_group: str = "default",
) -> list[Callback]:
    """Return the callbacks of soft actor-critic, in order.

    Args:
        policy: Returns actions and log-probabilities.
        critics: Losses of the two critics, which they hold.
        ln_alpha: ln α to start from, trained in place.
        action_dim: A.
        config: Settings of the other parts; final states are worth 0.
        reward_scale: Factor on the rewards.
        data_group: Group of the state that holds the batch.

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
        opt=adam(policy, config.learning_rate),
        max_grad_norm=config.max_gradient_norm,
        data_group=data_group,
    )
    alpha_loss = AlphaLoss(
        pi=policy,
        ln_alpha=ln_alpha,
        opt=FusedAdam([ln_alpha], config.learning_rate),
        n_actions=action_dim,
        max_alpha=config.max_alpha,
        max_grad_norm=config.max_gradient_norm,
        t_entropy=config.target_entropy,
        log_prob_from=policy_loss,
        data_group=data_group,
    )
    target = QTarget(
        pi=policy,
        ln_alpha=ln_alpha,
        q1=q1,
        q2=q2,
        gamma=config.gamma,
        reward_scale=reward_scale,
        target_q_tau=config.tau,
        use_terminal_masking=True,
        data_group=data_group,
    )
    return [*critics, policy_loss, alpha_loss, target]
