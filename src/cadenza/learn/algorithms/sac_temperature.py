"""Temperature of soft actor-critic: how much the policy is paid for entropy.

Equation:  mean ln α · (-log π(a|o) - H_target), minimised over ln α
Source:    arXiv:1812.05905, section 5, in the ln α form of its published code.
Axes:      B = rows of a batch, A = action.
"""

import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn, optim

from cadenza.core.errors import ConfigurationTypeError, InputError
from cadenza.core.schedules import ConstantSchedule, Schedule
from cadenza.learn.algorithms.critic_loss import Observations
from cadenza.learn.algorithms.sac_losses import PolicyLoss
from cadenza.learn.callbacks.loss import LossCallback


def temperature_objective(
    log_probabilities: Tensor, ln_alpha: Tensor, target_entropy: float
) -> Tensor:
    """Return mean(ln α · (-log π - H_target)), differentiable in ``ln_alpha`` only."""
    return torch.mean(ln_alpha * (-log_probabilities - target_entropy).detach())


class AlphaLoss(LossCallback):
    """Moves the temperature α so that the policy keeps a target entropy.

    Args:
        pi: Policy.
        ln_alpha: ln α, a leaf tensor that ``opt`` trains.
        opt: Optimiser of ``ln_alpha``.
        lr_schedule: Learning-rate schedule of ``opt``.
        n_actions: A; the target entropy is -A nats unless ``t_entropy`` is given.
        max_grad_norm: Bound of the gradient's norm.
        max_alpha: Cap of α, applied after every batch. The default is the original engine's.
        name: Name in logs and checkpoints.
        data_group: Group of the state that holds the batch.
        t_entropy: Target entropy in nats, a number or a schedule that steps once per batch.
        log_prob_from: A `PolicyLoss` of the same policy that runs earlier in the same step; its
            log-probabilities are used instead of evaluating the policy again. The temperature then
            follows the policy before its update, as in most implementations.

    Raises:
        ConfigurationTypeError: ``t_entropy`` is neither number, schedule nor None.
        InputError: ``max_alpha`` is not positive, or ``log_prob_from`` trains another policy.
    """

    def __init__(
        self,
        *,
        pi: nn.Module,
        ln_alpha: Tensor,
        opt: optim.Optimizer,
        lr_schedule: optim.lr_scheduler.LRScheduler | None = None,
        n_actions: int,
        max_grad_norm: float = 10.0,
        max_alpha: float = 0.2,
        name: str = "alpha",
        data_group: str = "default",
        t_entropy: float | Schedule | None = None,
        log_prob_from: PolicyLoss | None = None,
    ) -> None:
        super().__init__(
            name=name,
            network=None,
            optimizer=opt,
            lr_schedule=lr_schedule,
            max_grad_norm=max_grad_norm,
            data_group=data_group,
        )
        if not max_alpha > 0.0:
            raise InputError(f"AlphaLoss: expected max_alpha > 0, got {max_alpha}.")
        if log_prob_from is not None and log_prob_from.policy is not pi:
            raise InputError("AlphaLoss: expected log_prob_from to train the same policy pi.")
        self.policy = pi
        self.ln_alpha = ln_alpha
        self._max_ln_alpha = math.log(max_alpha)
        self._log_prob_from = log_prob_from
        self.t_entropy = _entropy_schedule(t_entropy, n_actions)
        if float(ln_alpha.detach().max()) > self._max_ln_alpha + 1e-6:
            warnings.warn(
                f"AlphaLoss: alpha starts at {float(ln_alpha.detach().exp().max()):.3g} and will "
                f"be cut to max_alpha = {max_alpha:.3g} after the first batch; start lower or "
                "raise max_alpha.",
                UserWarning,
                stacklevel=2,
            )

    def loss(self, observation: Observations) -> Tensor:
        """Return mean(ln α · (-log π - H_target)), shape ()."""
        log_probabilities = self._log_probabilities(observation)
        self.log_mean("training/entropy", -log_probabilities)
        return temperature_objective(log_probabilities, self.ln_alpha, self.t_entropy.value)

    def end_batch(self) -> None:
        """Cap α, log it, and step the target entropy."""
        with torch.no_grad():
            self.ln_alpha.clamp_(max=self._max_ln_alpha)
        self.log_mean("training/alpha_value", self.ln_alpha.detach().exp())
        self.log_scalar("training/target_entropy", self.t_entropy.value)
        self.t_entropy.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the optimiser, ln α as ``network_state_dict``, and the schedule's position."""
        state = super().state_dict()
        state["network_state_dict"] = self.ln_alpha.detach().clone()
        state["target_entropy_schedule"] = self.t_entropy.state_dict()
        return state

    def load_state_dict(
        self,
        state_dict: dict[str, Any],
        load_network: bool = True,
        load_optimizer: bool = True,
        load_hparams: bool = True,
    ) -> None:
        """Take over what `state_dict` returned; ln α always, in place, since others share it.

        Raises:
            KeyError: ``network_state_dict`` is missing.
        """
        rest = dict(state_dict)
        saved: Tensor = rest.pop("network_state_dict")
        schedule = rest.pop("target_entropy_schedule", None)
        with torch.no_grad():
            self.ln_alpha.copy_(saved)
        if load_hparams and schedule is not None:
            self.t_entropy.load_state_dict(schedule)
        super().load_state_dict(rest, load_network, load_optimizer, load_hparams)

    def _log_probabilities(self, observation: Observations) -> Tensor:
        shared = (
            None
            if self._log_prob_from is None
            else self._log_prob_from.log_probabilities_of(observation)
        )
        if shared is not None:
            return shared
        with torch.no_grad():
            log_probabilities: Tensor = self.policy(**observation)[1]
        return log_probabilities


def _entropy_schedule(t_entropy: object, n_actions: int) -> Schedule:
    """Return the target entropy as a schedule; -``n_actions`` nats when None."""
    if isinstance(t_entropy, Schedule):
        return t_entropy
    if t_entropy is None:
        return ConstantSchedule(-float(n_actions))
    if isinstance(t_entropy, int | float):
        return ConstantSchedule(float(t_entropy))
    raise ConfigurationTypeError(
        f"AlphaLoss: expected t_entropy a number, a Schedule or None, got {type(t_entropy)}."
    )
