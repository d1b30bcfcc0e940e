"""A loss as a callback: one optimiser step per batch."""

import logging
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

import torch
from torch import Tensor, nn, optim
from torch.optim.lr_scheduler import ConstantLR, LRScheduler

from cadenza.core.errors import (
    CheckpointError,
    CheckpointKeyError,
    InputError,
    NotReadyError,
)
from cadenza.learn.callback import Callback
from cadenza.learn.callbacks.logging_mixin import LoggingMixin


def observed_input(owner: str, observation: Mapping[str, Tensor], key: str) -> Tensor:
    """Return ``observation[key]``, shape (B, ...).

    Raises:
        InputError: There is none of that name.
    """
    if key not in observation:
        raise InputError(
            f"{owner}: expected observation[{key!r}], got the keys {sorted(observation)}; set "
            "input_key."
        )
    return observation[key]


_logger = logging.getLogger(__name__)

_NETWORK: Final = "network_state_dict"
#: What torch appends to a module's name for state that is neither parameter nor buffer.
_EXTRA_STATE: Final = "_extra_state"
_SCHEDULE: Final = "lr_schedule_state_dict"
#: What `torch.nn.utils.clip_grad_norm_` adds to a norm before it divides by it.
NORM_MARGIN: Final = 1e-6
#: Steps from one look at a loss to the next where looking waits for a device.
LOOK_EVERY: Final = 100


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
        max_grad_norm: float,
        data_group: str | None,
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
        optimizer, schedule = self._stepped()
        for parameter in self.parameters:  # frozen ones too: an old gradient would still step
            parameter.grad = None
        loss = self.loss(*args, **kwargs)
        loss = loss if loss.dim() == 0 else loss.mean()
        # into these parameters alone: networks that others train cost no gradients of weights
        learning = [parameter for parameter in self.parameters if parameter.requires_grad]
        torch.autograd.backward(loss, inputs=learning)
        norm = self._shorten_gradients()
        may_look = loss.is_cpu or schedule.last_epoch % LOOK_EVERY == 0
        if may_look and not math.isfinite(float(loss.detach()) + float(norm)):
            raise InputError(
                f"{self.name}: expected a finite loss and gradient, got {float(loss)} and "
                f"{float(norm)}; lower the learning rate, or look for extremes in the batch."
            )
        optimizer.step()
        schedule.step()
        self.log_scalar(f"loss/{self.name}_lr", schedule.get_last_lr()[0])
        self.log_scalar(f"loss/{self.name}_loss", loss)
        self.log_scalar(f"loss/{self.name}_gradient_norm", norm)
        if self._log_per_param_weights or self.log_per_param_grads:
            self.log_per_param_weights_and_grads()

    def _stepped(self) -> tuple[optim.Optimizer, LRScheduler]:
        if self.optimizer is None or self.lr_schedule is None:
            raise NotReadyError(
                f"{self.name}: expected an optimizer to step, got none; pass one or override "
                "backward."
            )
        return self.optimizer, self.lr_schedule

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
        state |= {name: part.state_dict() for name, part in self._parts()}
        return state

    def load_state_dict(
        self,
        state_dict: dict[str, Any],
        load_network: bool = True,
        load_optimizer: bool = True,
        load_hparams: bool = True,
    ) -> None:
        """Take over what `state_dict` returned.

        Args:
            state_dict: State of a loss like this one.
            load_network: Take the network's parameters and buffers.
            load_optimizer: Take optimiser and learning-rate schedule.
            load_hparams: Take the logs.

        Raises:
            CheckpointKeyError: A part is missing.
            CheckpointError: A part does not fit, e.g. other parameter names or shapes.
        """
        rest = dict(state_dict)
        for name, part in self._parts():
            wanted = load_network if name == _NETWORK else load_optimizer
            if wanted and name == _SCHEDULE and name not in rest:  # files of Emote have none
                _logger.warning("%s: the loaded state has no learning-rate schedule", self.name)
            elif wanted:
                self._load_part(name, part, rest)
            rest.pop(name, None)
        super().load_state_dict(rest, load_network, load_optimizer, load_hparams)

    def _parts(self) -> Iterator[tuple[str, Any]]:
        """Return names and objects of what is saved beside the logs."""
        if self.optimizer is not None:
            yield "optimizer_state_dict", self.optimizer
        if self.lr_schedule is not None:
            yield _SCHEDULE, self.lr_schedule
        if self.network is not None:
            yield _NETWORK, self.network

    def _load_part(self, name: str, part: Any, state: dict[str, Any]) -> None:
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
