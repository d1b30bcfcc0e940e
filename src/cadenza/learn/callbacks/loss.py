"""A loss as a callback: one optimiser step per batch."""

import logging
import math
from collections.abc import Mapping
from typing import Any, Final, TypedDict, cast

import torch
from torch import Tensor, nn, optim
from torch.optim.lr_scheduler import ConstantLR, LRScheduler

from cadenza.core.errors import (
    CheckpointError,
    CheckpointKeyError,
    InputError,
    NotReadyError,
    refuse,
)
from cadenza.learn.callback import Callback
from cadenza.learn.callbacks.logging_mixin import LoggingMixin
from cadenza.learn.optimizers import NORM_MARGIN, may_look
from cadenza.learn.settings import SHARED_DEFAULTS

_logger = logging.getLogger(__name__)

_OPTIMIZER: Final = "optimizer_state_dict"
_NETWORK: Final = "network_state_dict"
#: What torch appends to a module's name for state that is neither parameter nor buffer.
_EXTRA_STATE: Final = "_extra_state"
_SCHEDULE: Final = "lr_schedule_state_dict"


def observed_input(owner: str, observation: Mapping[str, Tensor], key: str) -> Tensor:
    """Return ``observation[key]``, shape (B, ...).

    Raises:
        InputError: There is none of that name.
    """
    if key not in observation:
        got = f"the keys {sorted(observation)}"
        refuse(InputError, owner, expected=f"observation[{key!r}]", got=got, do="set input_key")
    return observation[key]


class LossKeywords(TypedDict, total=False):
    """What a loss passes on to `LossCallback`, which has the defaults."""

    lr_schedule: LRScheduler | None
    max_grad_norm: float
    data_group: str
    log_per_param_weights: bool
    log_per_param_grads: bool


class LossCallback(LoggingMixin, Callback):
    """Computes a loss, its gradients, and steps an optimiser; override `loss`.

    Attributes:
        parameters: All parameters of the optimiser.
        log_per_param_grads: Whether norm and histogram of each gradient are logged.
        named_parameters: Those of ``network`` that the optimiser steps, by path.
    """

    def __init__(
        self,
        lr_schedule: LRScheduler | None = None,
        *,
        name: str,
        network: nn.Module | None,
        optimizer: optim.Optimizer | None,
        max_grad_norm: float = SHARED_DEFAULTS.max_gradient_norm,
        data_group: str | None = "default",
        log_per_param_weights: bool = False,
        log_per_param_grads: bool = False,
    ) -> None:
        """Take what is trained.

        Args:
            lr_schedule: Schedule of ``optimizer``'s learning rate; None keeps it constant.
            name: Part of the log keys, and the name in checkpoints.
            network: What is trained; None if the parameters belong to no module.
            optimizer: Steps the parameters.
            max_grad_norm: Largest global L2 norm of the gradients; longer ones are shortened.
            data_group: Group of the state that `loss` reads first; None: the state itself.
            log_per_param_weights: Log norm and histogram of each parameter, every step.
            log_per_param_grads: The same for gradients.
        """
        super().__init__()
        self.name = name
        self.data_group = data_group
        self.network = network
        self.optimizer = optimizer
        if lr_schedule is None and optimizer is not None:
            lr_schedule = ConstantLR(optimizer, factor=1.0, total_iters=1)
        self.lr_schedule = lr_schedule
        groups = [] if optimizer is None else optimizer.param_groups
        self.parameters: list[Tensor] = [p for group in groups for p in group["params"]]
        stepped = {id(parameter) for parameter in self.parameters}
        named = {} if network is None else dict(network.named_parameters())
        self.named_parameters: dict[str, nn.Parameter] = {
            path: parameter for path, parameter in named.items() if id(parameter) in stepped
        }
        self.max_grad_norm = max_grad_norm
        self._log_per_param_weights = log_per_param_weights
        self.log_per_param_grads = log_per_param_grads

    def backward(self, *args: Any, **kwargs: Any) -> None:
        """Do one optimiser step on the loss of the batch.

        Raises:
            NotReadyError: There is no optimiser.
            InputError: The loss or its gradient is not finite; no weight that this loss trains has
                changed. On another device than the CPU, where looking means waiting, some steps
                are looked at.
        """
        optimizer, schedule = self.optimizer, self.lr_schedule
        if optimizer is None or schedule is None:
            raise NotReadyError(f"{self.name}: expected an optimizer, got none; pass one.")
        for parameter in self.parameters:  # frozen ones too: an old gradient would still step
            parameter.grad = None
        loss = self.loss(*args, **kwargs)
        loss = loss if loss.dim() == 0 else loss.mean()
        # into these parameters alone: networks that others train cost no gradients of weights
        learning = [parameter for parameter in self.parameters if parameter.requires_grad]
        torch.autograd.backward(loss, inputs=learning)
        norm = self._shorten_gradients()
        is_looked_at = may_look(loss.device, schedule.last_epoch)
        if is_looked_at and not math.isfinite(float(loss.detach()) + float(norm)):
            got = f"{float(loss.detach())} and {float(norm)}"
            advice = "lower the learning rate, or look for extremes in the batch"
            refuse(InputError, self.name, expected="a finite loss and gradient", got=got, do=advice)
        optimizer.step()
        schedule.step()
        self.log_scalar(f"loss/{self.name}_lr", schedule.get_last_lr()[0])
        self.log_scalar(f"loss/{self.name}_loss", loss)
        self.log_scalar(f"loss/{self.name}_gradient_norm", norm)
        if self._log_per_param_weights or self.log_per_param_grads:
            self.log_per_param_weights_and_grads()

    def _shorten_gradients(self) -> Tensor:
        """Shorten the gradients to the longest allowed norm; return the norm they had."""
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        is_short = norm.is_cpu and float(norm) + NORM_MARGIN <= self.max_grad_norm
        if not is_short:
            nn.utils.clip_grads_with_norm_(self.parameters, self.max_grad_norm, norm)
        return norm

    def log_per_param_weights_and_grads(self) -> None:
        """Log norm and histogram of parameters and gradients, as far as switched on."""
        for path, parameter in self.named_parameters.items():
            *modules, kind = path.split(".")
            shape = "_".join(str(size) for size in parameter.shape)
            label = "_".join([self.name, *modules, shape])
            if self.log_per_param_grads and parameter.grad is not None:
                self.log_histogram(f"{kind}_grads/{label}", parameter.grad)
                self.log_scalar(f"{kind}_grads_l2/{label}", _l2(parameter.grad))
            if self._log_per_param_weights:
                self.log_histogram(f"{kind}/{label}", parameter)
                self.log_scalar(f"{kind}_l2/{label}", _l2(parameter))

    def state_dict(self) -> dict[str, Any]:
        """Return logs, network, optimiser and learning-rate schedule."""
        state = super().state_dict()
        state |= {name: part.state_dict() for name, part in self._parts().items()}
        return state

    def _parts(self) -> dict[str, Any]:
        """Return what is saved beside the logs."""
        parts = (self.optimizer, self.lr_schedule, self.network)
        named = zip((_OPTIMIZER, _SCHEDULE, _NETWORK), parts, strict=True)
        return {name: part for name, part in named if part is not None}

    def _load_optimizer(self, state: Mapping[str, Any]) -> None:
        self._load_part(_OPTIMIZER, state)
        if self.lr_schedule is None or _SCHEDULE in state:
            self._load_part(_SCHEDULE, state)
        else:  # files of Emote have none
            _logger.warning("%s: the loaded state has no learning-rate schedule", self.name)

    def _load_network(self, state: Mapping[str, Any]) -> None:
        self._load_part(_NETWORK, state)

    def _load_part(self, name: str, state: Mapping[str, Any]) -> None:
        part = self._parts().get(name)
        if part is None:
            return
        if name not in state:
            raise CheckpointKeyError(
                f"{self.name}: expected {name!r} in the loaded state, got {sorted(state)}; "
                "load the state of the same kind of loss, or switch this part off."
            )
        try:
            part.load_state_dict(self._completed(part, state[name]))
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{self.name}: expected a {name!r} that fits {type(part).__name__}, got: {error}"
            ) from error

    def _completed(self, part: Any, state: Any) -> Any:
        """Return ``state``, with a network's own generators where it has none (files of Emote)."""
        if not isinstance(part, nn.Module) or not isinstance(state, Mapping):
            return state
        loaded, own = cast("Mapping[str, Any]", state), part.state_dict()
        absent = [key for key in own if key.endswith(_EXTRA_STATE) and key not in loaded]
        if absent:
            _logger.warning("%s: the loaded network lacks %s, which stay", self.name, absent)
        return {**loaded, **{key: own[key] for key in absent}}

    @Callback.extend
    def loss(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the loss of a batch: one element, or one per row, whose mean counts.

        Override it with the fields it needs as parameters.
        """
        raise NotImplementedError(f"{type(self).__name__}: override loss()")


def _l2(values: Tensor) -> Tensor:
    """Return the L2 norm of all elements."""
    return values.detach().square().sum().sqrt()
