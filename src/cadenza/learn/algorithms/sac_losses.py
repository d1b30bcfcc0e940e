"""Losses of soft actor-critic's critics and policy.

Equations:  critic  mean (Q(a, o) - y)²
            policy  mean α log π(a|o) - min(Q1, Q2)(a, o),   a ~ π(·|o) reparameterised
Source:     arXiv:1812.05905, equations 5 and 7.
Axes:       B = rows of a batch, A = action.
"""

import torch
from torch import Tensor, nn, optim

from cadenza.learn.algorithms.critic_loss import CriticLoss, Observations
from cadenza.learn.callbacks.loss import LossCallback


def policy_objective(log_probabilities: Tensor, values: Tensor, alpha: Tensor) -> Tensor:
    """Return mean(α log π - Q), what a soft policy minimises; inputs of shape (B, 1)."""
    return torch.mean(alpha * log_probabilities - values)


class QLoss(CriticLoss[nn.Module]):
    """Mean squared distance between a critic and ``q_target``; arguments are those of `CriticLoss`.

    Rollouts of a prioritised memory are weighted by its ``sample_weights``.
    """

    def rows(
        self, observation: Observations, actions: Tensor, q_target: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return predictions and squared errors."""
        predictions: Tensor = self.q_network(actions, **observation)
        errors = predictions - q_target
        return predictions.detach(), errors * errors


class PolicyLoss(LossCallback):
    """Makes the policy choose actions of high soft value.

    Of the critics, only parameters that ``opt`` trains itself (a shared encoder, say) learn.

    Args:
        pi: Policy.
        ln_alpha: ln α, shared with the other losses.
        q: Critic.
        opt: Optimiser of the policy's parameters.
        lr_schedule: Learning-rate schedule of ``opt``.
        q2: Second critic; the smaller of both values counts.
        max_grad_norm: Bound of the gradient's norm.
        name: Name in logs and checkpoints.
        data_group: Group of the state that holds the batch.
        log_per_param_weights: Log every parameter.
        log_per_param_grads: Log every gradient.
    """

    def __init__(
        self,
        *,
        pi: nn.Module,
        ln_alpha: Tensor,
        q: nn.Module,
        opt: optim.Optimizer,
        lr_schedule: optim.lr_scheduler.LRScheduler | None = None,
        q2: nn.Module | None = None,
        max_grad_norm: float = 10.0,
        name: str = "policy",
        data_group: str = "default",
        log_per_param_weights: bool = False,
        log_per_param_grads: bool = False,
    ) -> None:
        super().__init__(
            name=name,
            network=pi,
            optimizer=opt,
            lr_schedule=lr_schedule,
            max_grad_norm=max_grad_norm,
            data_group=data_group,
            log_per_param_weights=log_per_param_weights,
            log_per_param_grads=log_per_param_grads,
        )
        self.policy = pi
        self.ln_alpha = ln_alpha
        self.q1 = q
        self.q2 = q2
        self._evaluated: tuple[Observations, Tensor] | None = None

    def loss(self, observation: Observations, policy_noise: Tensor | None = None) -> Tensor:
        """Return mean(α log π - Q), shape (), for the B rows of ``observation``.

        Args:
            observation: B rows.
            policy_noise: Standard normal draws for the policy, (B, A); None lets it draw.
        """
        noise = {} if policy_noise is None else {"epsilon": policy_noise}
        actions, log_probabilities = self.policy(**observation, **noise)
        q_value: Tensor = self.q1(actions, **observation)
        if self.q2 is not None:
            q_value = torch.minimum(q_value, self.q2(actions, **observation))
        alpha = self.ln_alpha.detach().exp()
        self._evaluated = (observation, log_probabilities.detach())
        self.log_mean("policy/q_pi_min", q_value)
        self.log_mean("policy/logp_pi", self._evaluated[1])
        self.log_mean("policy/alpha", alpha)
        return policy_objective(log_probabilities, q_value, alpha)

    def log_probabilities_of(self, observation: Observations) -> Tensor | None:
        """Return log π as this loss drew it for that very ``observation``, detached, else None."""
        if self._evaluated is None or self._evaluated[0] is not observation:
            return None
        return self._evaluated[1]

    def end_batch(self) -> None:
        """Let go of the batch."""
        self._evaluated = None
