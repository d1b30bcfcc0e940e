"""One update as a whole: what a target and its losses do one by one, in fewer and larger pieces.

The losses of a stage are evaluated together, before any of them steps, and differentiated in one
pass; the target belongs to the first stage. Compiled, a stage is one function of `torch.compile`.

Results:  float32 and not compiled, bitwise those of the callbacks one by one. Another mode rounds
          otherwise, so a checkpoint of one mode is refused in another.
"""

import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from typing import Any, Final, Literal, cast

import torch
from torch import Tensor

from cadenza.core.errors import CheckpointError, ConfigurationError
from cadenza.learn.callback import Callback
from cadenza.learn.callbacks.loss import NORM_MARGIN, LossCallback, compiled_alone
from cadenza.learn.injection import SIGNATURE, HookSignature, data_group_of
from cadenza.learn.optimizers import FusedAdam, adam_
from cadenza.learn.trainer import PlannedHook

Precision = Literal["float32", "bf16"]
#: What is read from a batch: tensors, and observations by name.
Fields = dict[str, Any]
_COMPILER_OPTIONS: Final = {"pattern_matcher": False, "cpp_wrapper": True}


class UpdateStep(Callback):
    """Takes the place of a target and its losses in a `Trainer`; they keep state and logs.

    Args:
        target: Writes what the losses regress towards, in `begin_batch`; a `DeferredLogging`.
        stages: Losses by stage.
        draw: Returns the random numbers of a step for a batch: `torch.compile` cannot draw from a
            network's own generator. None leaves the drawing to the networks.
        compile: Compile the stages, which takes about a minute at the first update. Without a C++
            compiler a warning says so, and nothing is compiled.
        precision: ``"bf16"`` rounds the inputs of the large products to bfloat16.

    Attributes:
        mode: How this object computes; part of its state.

    Raises:
        ConfigurationError: The processor cannot multiply in bfloat16.
    """

    def __init__(
        self,
        target: Any,
        stages: Sequence[Sequence[LossCallback]],
        *,
        draw: Callable[[Fields], Fields] | None = None,
        compile: bool = False,  # noqa: A002 -- as torch calls it
        precision: Precision = "float32",
    ) -> None:
        super().__init__()
        if precision == "bf16" and not _multiplies_bfloat16():
            raise ConfigurationError(
                "UpdateStep: expected a processor with bfloat16 instructions for precision = bf16, "
                "got one without; use float32."
            )
        self.data_group = data_group_of(target)
        compiled = compile and _has_compiler()
        others = [x.name for xs in stages for x in xs if type(x.optimizer) is not FusedAdam]
        if compiled and others:
            raise ConfigurationError(
                f"UpdateStep: expected a FusedAdam in every loss to compile its step, got {others} "
                "without; build their optimisers with sac_assembly.adam."
            )
        self.mode = f"{'compiled' if compiled else 'eager'}, {precision}"
        parts = [[*losses] for losses in stages]
        self._stages = [
            _Stage(target if i == 0 else None, losses, precision, compiled)
            for i, losses in enumerate(parts)
        ]
        self._draw = draw
        ordered = [*(loss for losses in parts for loss in losses), target]
        hooks = [PlannedHook.of(part, "end_batch") for part in ordered]
        self._ends = [hook for hook in hooks if hook is not None]

    @Callback.whole_state
    def backward(self, **state: Any) -> None:
        """Do all stages whose turn it is."""
        fields = dict(state[self.data_group] if self.data_group else state)
        if self._draw is not None:
            fields |= self._draw(fields)
        for stage in self._stages:
            if stage.losses[0].is_due(state["bp_step"]):
                fields |= stage(fields)

    @Callback.whole_state
    def end_batch(self, **state: Any) -> None:
        """Let every part finish the batch."""
        for hook in self._ends:
            hook(cast("Any", state))

    def state_dict(self) -> dict[str, Any]:
        """Return the mode; the parts have states of their own."""
        return {"mode": self.mode}

    def load_state_dict(
        self,
        state_dict: dict[str, Any],
        load_network: bool = True,
        load_optimizer: bool = True,
        load_hparams: bool = True,
    ) -> None:
        """Compare the mode, with ``load_hparams``.

        Raises:
            CheckpointError: The state was written in another mode.
        """
        super().load_state_dict(state_dict, load_network, load_optimizer, load_hparams)
        found = state_dict["mode"]
        if load_hparams and found != self.mode:
            raise CheckpointError(
                f"UpdateStep: expected a run whose updates are {self.mode}, got {found}; go on in "
                "that mode, for every mode rounds in its own way."
            )


class _Stage:
    """Losses that are evaluated together, after the target if they are the first."""

    def __init__(
        self,
        target: Any,
        losses: list[LossCallback],
        precision: Precision,
        compiled: bool,
    ) -> None:
        self.losses = losses
        self._target = None if target is None else (target, _signature(target, "begin_batch"))
        self._calls = [(loss, _signature(loss, "loss")) for loss in losses]
        self._rounds = precision == "bf16"
        self._compiled = (
            compiled_alone(self._updated, dynamic=False, options=_COMPILER_OPTIONS)
            if compiled
            else None
        )

    def __call__(self, fields: Fields) -> Fields:
        """Let every loss take a step; return what the target wrote."""
        if self._compiled is not None:
            return self._run(self._compiled, fields)
        found, values, gradients = self._evaluated(fields)
        left = iter(gradients)
        for loss, value in zip(self.losses, values, strict=True):
            for parameter in loss.parameters:
                parameter.grad = next(left) if parameter.requires_grad else None
            loss.take_step(value)
        return found

    def _run(self, compiled: Any, fields: Fields) -> Fields:
        from torch._dynamo import config  # takes seconds, and only compiling needs it

        calls = self._calls if self._target is None else [self._target, *self._calls]
        names = {name for _, signature in calls for name in signature.parameters}
        fields = {name: fields[name] for name in names if name in fields}
        optimizers = [cast("FusedAdam", loss.optimizer) for loss in self.losses]
        lists = [optimizer.lists() for optimizer in optimizers]
        factors = [optimizer.factors() for optimizer in optimizers]
        with ExitStack() as logs:
            logs.enter_context(cast("Any", config).patch(trace_autograd_ops=True))
            for part, _ in calls:
                logs.enter_context(part.logs_deferred())
            found, values, norms = compiled(fields, [each[:3] for each in lists], factors)
        for loss, value, norm, each in zip(self.losses, values, norms, lists, strict=True):
            loss.require_finite(value, norm)
            torch._foreach_add_(each[3], 1)  # pyright: ignore[reportPrivateImportUsage, reportPrivateUsage]
            loss.note_step(value, norm)
        return found

    def _updated(
        self, fields: Fields, lists: list[list[list[Tensor]]], factors: list[Tensor]
    ) -> tuple[Fields, list[Tensor], list[Tensor]]:
        """As `_evaluated`, but change the weights and return the norms of the gradients."""
        found, values, gradients = self._evaluated(fields)
        norms: list[Tensor] = []
        left = iter(gradients)
        for loss, value, (parameters, means, squares), factor in zip(
            self.losses, values, lists, factors, strict=True
        ):
            own = [next(left) for _ in parameters]
            given = [(i, g) for i, g in enumerate(own) if g is not None]
            norm = torch.stack([(g * g).sum() for _, g in given]).sum().sqrt()
            scale = (loss.max_grad_norm / (norm + NORM_MARGIN)).clamp(max=1.0)
            is_finite = torch.isfinite(norm + value)
            with torch.no_grad():
                for i, gradient in given:
                    adam_(parameters[i], means[i], squares[i], gradient * scale, factor, is_finite)
            norms.append(norm)
        return found, values, norms

    def _evaluated(self, fields: Fields) -> tuple[Fields, list[Tensor], tuple[Tensor | None, ...]]:
        """Return what the target wrote, the losses, and the gradients of all their parameters."""
        found: Fields = {}
        with torch.autocast("cpu", torch.bfloat16) if self._rounds else nullcontext():
            if self._target is not None:
                target, signature = self._target
                with torch.no_grad():
                    written = _call(signature, target, fields)
                found = dict(written[target.data_group])
                fields = {**fields, **found}
            losses = [_call(signature, loss, fields) for loss, signature in self._calls]
        values = [loss.float() if loss.dim() == 0 else loss.float().mean() for loss in losses]
        parameters = [parameter for loss in self.losses for parameter in loss.learning()]
        gradients = torch.autograd.grad(values, parameters, allow_unused=True)
        return found, [value.detach() for value in values], gradients


def _signature(part: object, name: str) -> HookSignature:
    return getattr(getattr(type(part), name), SIGNATURE)


def _call(signature: HookSignature, part: object, fields: Fields) -> Any:
    """Call a hook by its name's own function: what wraps it cannot be traced."""
    chosen = {name: fields[name] for name in signature.parameters if name in fields}
    return signature.function(part, **chosen)


def _multiplies_bfloat16() -> bool:
    """Return whether the processor has instructions for products in bfloat16."""
    answer: bool = torch.cpu._is_avx512_bf16_supported()  # pyright: ignore[reportPrivateUsage] # noqa: SLF001 -- torch has no public one
    return answer


def _has_compiler() -> bool:
    """Return whether torch finds a C++ compiler; warn if not."""
    from torch._inductor import cpp_builder, exc

    try:
        cpp_builder.get_cpp_compiler()
    except exc.InvalidCxxCompiler:
        warnings.warn(
            "UpdateStep: expected a C++ compiler for compile = true, got none, so updates run "
            "uncompiled; install g++ or clang++, or set CXX.",
            UserWarning,
            stacklevel=3,
        )
        return False
    return True
