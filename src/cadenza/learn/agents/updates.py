"""What updates are made of: Adam, target networks, and the ways in which a whole update runs.

Adam:     m ← m + (1 − β1)(g − m),   v ← β2 v + (1 − β2) g²,
          θ ← θ − η / (1 − β1^t) · m / (√(v / (1 − β2^t)) + ε)
Clipping: g ← g · min(1, c / (|g| + 1e-6)), by the norm of each group alone
Targets:  θ_target ← (1 − τ) θ_target + τ θ
Sources:  Adam: arXiv:1412.6980, algorithm 1; targets: arXiv:1509.02971, section 3.
Modes:    an update is compiled or not, in float32 or with products rounded to bfloat16. Each mode
          rounds differently, so a state of one is refused in another.
Device:   nothing is read back from one, but for a look at each hundredth update whether all of it
          is finite. On the CPU every update is looked at, before it changes a weight.
"""

import inspect
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Literal, cast

import torch
from torch import Tensor

from cadenza.core.errors import CheckpointError, ConfigurationError, NonFiniteError
from cadenza.learn.optimizers import NORM_MARGIN, may_look

Precision = Literal["float32", "bf16"]
#: Scalars of an update by name, shape () each, detached; reading one waits for its device.
Figures = dict[str, Tensor]
#: Adam's decay rates and what it adds to the root (arXiv:1412.6980, and torch's defaults).
BETAS: Final = (0.9, 0.999)
EPSILON: Final = 1e-8
_COMPILER_OPTIONS: Final = {"pattern_matcher": False, "cpp_wrapper": True}


class Adam:
    """Adam on named groups of parameters: one pass, one kernel, each group shortened alone.

    It differentiates into its own parameters, so networks that a loss only passes through cost no
    gradients of weights, and ``.grad`` stays empty. Parameters that are frozen now are left out;
    one that is frozen later, or that a loss does not use, sits the step out.

    Args:
        learning_rate: η.
        max_norm: c, the longest gradient of a group.
        groups: Parameters by the name of the loss that trains them.

    Attributes:
        parameters: Those of all groups, one after the other.
        groups: Places of each group among them.
    """

    def __init__(self, learning_rate: float, max_norm: float, **groups: Iterable[Tensor]) -> None:
        self.learning_rate = learning_rate
        self.max_norm = max_norm
        self.parameters: list[Tensor] = []
        self.groups: dict[str, slice] = {}
        for name, group in groups.items():
            first = len(self.parameters)
            self.parameters += [parameter for parameter in group if parameter.requires_grad]
            self.groups[name] = slice(first, len(self.parameters))
        count, device = len(self.parameters), self.parameters[0].device
        self._means = [torch.zeros_like(parameter) for parameter in self.parameters]
        self._squares = [torch.zeros_like(parameter) for parameter in self.parameters]
        self._counts = [0] * count
        #: The counts for the kernel: one tensor, over and over, while they are equal.
        self._steps = [torch.zeros((), device=device)] * count
        self._updates = 0
        self._factors = torch.zeros((count, 2), device=device)  # of a compiled step
        self._finite = torch.ones((), dtype=torch.bool)
        self._learned: list[int] = []

    def step(self, **losses: Tensor) -> Figures:
        """Take a step down the losses of all groups; return losses and norms of gradients.

        Raises:
            InputError: A loss or gradient is not finite; no weight has changed.
        """
        gradients = self._gradients(losses)
        figures: Figures = {}
        for name, loss in losses.items():
            own = [g for g in gradients[self.groups[name]] if g is not None]
            figures[f"{name}_loss"] = loss.detach()
            figures[f"{name}_gradient_norm"] = _norm(own) if own else torch.zeros_like(loss)
        with torch.no_grad():
            if torch.compiler.is_compiling():
                self._take_compiled(gradients, figures)
            else:
                self._take(gradients, figures)
        return figures

    def _gradients(self, losses: Mapping[str, Tensor]) -> list[Tensor | None]:
        learning = [parameter for parameter in self.parameters if parameter.requires_grad]
        found = iter(torch.autograd.grad(list(losses.values()), learning, allow_unused=True))
        return [next(found) if p.requires_grad else None for p in self.parameters]

    def _take(self, gradients: list[Tensor | None], figures: Figures) -> None:
        self._updates += 1
        if may_look(self.parameters[0].device, self._updates):
            require_finite(figures)
        for name in self._shortened(figures):
            place, norm = self.groups[name], figures[f"{name}_gradient_norm"]
            scale = (self.max_norm / (norm + NORM_MARGIN)).clamp(max=1.0)
            # not in place: two gradients can be one tensor
            gradients[place] = [None if g is None else g * scale for g in gradients[place]]
        self._count([place for place, gradient in enumerate(gradients) if gradient is not None])
        columns = self.parameters, gradients, self._means, self._squares, self._steps
        learned = [row for row in zip(*columns, strict=True) if row[1] is not None]
        parameters, found, means, squares, steps = map(list, zip(*learned, strict=True))
        laid_out = [  # the kernel reads memory as it lies
            gradient
            if gradient.stride() == parameter.stride()
            else torch.empty_like(parameter).copy_(gradient)
            for gradient, parameter in zip(found, parameters, strict=True)
        ]
        torch._fused_adam_(  # pyright: ignore[reportPrivateImportUsage, reportPrivateUsage]
            parameters,
            laid_out,
            means,
            squares,
            [],
            steps,
            lr=self.learning_rate,
            beta1=BETAS[0],
            beta2=BETAS[1],
            weight_decay=0.0,
            eps=EPSILON,
            amsgrad=False,
            maximize=False,
        )

    def _shortened(self, figures: Figures) -> list[str]:
        """Return the groups whose gradients are too long; on a device, all."""
        names = [name for name in self.groups if f"{name}_loss" in figures]
        if not self.parameters[0].is_cpu:
            return names
        norms = {name: float(figures[f"{name}_gradient_norm"]) for name in names}
        return [name for name in names if not norms[name] + NORM_MARGIN <= self.max_norm]

    def _count(self, learned: Sequence[int]) -> None:
        """Count a step of the parameters at these places."""
        for place in learned:
            self._counts[place] += 1
        are_one = self._steps[0] is self._steps[-1]
        if are_one and len(learned) < len(self._steps):  # they part
            self._steps = [step.clone() for step in self._steps]
            are_one = False
        for step in self._steps[:1] if are_one else [self._steps[place] for place in learned]:
            step += 1

    def prepare(self, finite: Tensor) -> None:
        """Make what a compiled step reads: its factors; in ``finite`` it notes if all is finite."""
        self._finite = finite
        times = [count + 1 for count in self._counts]
        sizes = [self.learning_rate / (1.0 - BETAS[0] ** t) for t in times]
        roots = [(1.0 - BETAS[1] ** t) ** 0.5 for t in times]
        self._factors.copy_(torch.tensor([sizes, roots]).T, non_blocking=True)

    def _take_compiled(self, gradients: list[Tensor | None], figures: Figures) -> None:
        """Take the step in operations that can be compiled; none once something is not finite."""
        for figure in figures.values():
            self._finite.logical_and_(torch.isfinite(figure))
        learned: list[int] = []
        for name, place in self.groups.items():
            if f"{name}_loss" not in figures:
                continue
            norm = figures[f"{name}_gradient_norm"]
            scale = (self.max_norm / (norm + NORM_MARGIN)).clamp(max=1.0)
            for i in range(place.start, place.stop):
                gradient = gradients[i]
                if gradient is None:
                    continue
                learned.append(i)
                adam_(
                    self.parameters[i],
                    self._means[i],
                    self._squares[i],
                    gradient * scale,
                    self._factors[i],
                    self._finite,
                )
        self._learned = learned

    def finish(self) -> None:
        """Count the compiled step that was taken."""
        self._count(self._learned)
        self._learned = []

    def state_dict(self) -> dict[str, Any]:
        """Return moments and counts of steps."""
        return {
            "means": list(self._means),
            "squares": list(self._squares),
            "steps": list(self._counts),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken; the learning rate stays.

        Raises:
            ValueError: The state is of other parameters.
        """
        for own, found in ((self._means, state["means"]), (self._squares, state["squares"])):
            if [kept.shape for kept in own] != [value.shape for value in found]:
                raise ValueError("moments of other parameters")
            for kept, value in zip(own, found, strict=True):
                kept.copy_(value)
        if len(state["steps"]) != len(self._counts):
            raise ValueError("steps of other parameters")
        self._counts = [int(step) for step in state["steps"]]
        first, device = self._counts[0], self._steps[0].device
        if all(count == first for count in self._counts):
            self._steps = [torch.full((), float(first), device=device)] * len(self._counts)
        else:
            self._steps = [torch.full((), float(c), device=device) for c in self._counts]

    def from_torch(self, groups: Sequence[Mapping[int, Mapping[str, Tensor]]]) -> dict[str, Any]:
        """Return the states of one optimiser of torch per group as a state of this one."""
        found = [
            group.get(i, {})
            for group, place in zip(groups, self.groups.values(), strict=True)
            for i in range(place.stop - place.start)
        ]
        pairs = list(zip(found, self.parameters, strict=True))
        return {
            "means": [part.get("exp_avg", torch.zeros_like(p)) for part, p in pairs],
            "squares": [part.get("exp_avg_sq", torch.zeros_like(p)) for part, p in pairs],
            "steps": [int(part.get("step", 0)) for part in found],
        }


def adam_(
    parameter: Tensor,
    mean: Tensor,
    square: Tensor,
    gradient: Tensor,
    factors: Tensor,
    is_wanted: Tensor,
) -> None:
    """Take Adam's step in operations that can be compiled; change nothing unless ``is_wanted``.

    ``factors`` are η / (1 − β1^t) and √(1 − β2^t).
    """
    size, root = factors
    new_mean = mean + (1.0 - BETAS[0]) * (gradient - mean)
    new_square = BETAS[1] * square + (1.0 - BETAS[1]) * gradient * gradient
    change = size * new_mean / (new_square.sqrt() / root + EPSILON)
    mean.copy_(torch.where(is_wanted, new_mean, mean))
    square.copy_(torch.where(is_wanted, new_square, square))
    parameter.sub_(torch.where(is_wanted, change, 0.0))


def _norm(gradients: list[Tensor]) -> Tensor:
    """Return the norm of all gradients together, shape ()."""
    if torch.compiler.is_compiling():
        return torch.stack([(g * g).sum() for g in gradients]).sum().sqrt()
    norms: list[Tensor] = list(torch._foreach_norm(gradients))  # pyright: ignore[reportPrivateImportUsage, reportPrivateUsage] # noqa: SLF001 -- as `torch.nn.utils.get_total_norm` on a device
    return cast("Tensor", torch.linalg.vector_norm(torch.stack(norms)))  # pyright: ignore[reportUnknownMemberType] -- torch leaves it untyped


def require_finite(figures: Mapping[str, Tensor]) -> None:
    """Refuse losses and norms of gradients that are not finite.

    Raises:
        InputError: Names the first such loss.
    """
    for key, loss in figures.items():
        if not key.endswith("_loss"):
            continue
        name = key.removesuffix("_loss")
        norm = figures[f"{name}_gradient_norm"]
        if not math.isfinite(float(loss) + float(norm)):
            raise NonFiniteError(
                f"{name}: expected a finite loss and gradient, got {float(loss)} and "
                f"{float(norm)}; lower the learning rate, or look for extremes in the batch."
            )


@torch.no_grad()
def soft_update(targets: Sequence[Tensor], sources: Sequence[Tensor], tau: float) -> None:
    """Move every target the share ``tau`` towards its source, in one kernel."""
    torch._foreach_lerp_(list(targets), list(sources), 1.0 - (1.0 - tau))  # pyright: ignore[reportPrivateImportUsage, reportPrivateUsage]


class WholeUpdate:
    """Runs an update in its mode: as it stands, or compiled as one function.

    Args:
        update: The update, from tensors to figures; it draws nothing itself.
        optimizers: All that step in it.
        compile: Compile it, which takes about a minute at the first call. Without a C++ compiler a
            warning says so, and nothing is compiled.
        precision: ``"bf16"`` rounds the inputs of large products within `rounding`.
        device: Where the tensors are.

    Raises:
        ConfigurationError: The processor cannot multiply in bfloat16.
    """

    def __init__(
        self,
        update: Callable[..., Figures],
        optimizers: Iterable[Adam],
        *,
        compile: bool,  # noqa: A002 -- as torch calls it
        precision: Precision,
        device: torch.device,
    ) -> None:
        if precision == "bf16" and device.type == "cpu" and not _multiplies_bfloat16():
            raise ConfigurationError(
                "precision: expected a processor with bfloat16 instructions for bf16, got one "
                "without; use float32."
            )
        compiled = compile and _has_compiler()
        self.mode = f"{'compiled' if compiled else 'eager'}, {precision}"
        self._update = update
        self._optimizers = list(optimizers)
        self._rounds = precision == "bf16"
        self._device = device
        self._finite = torch.ones((), dtype=torch.bool, device=device)
        self._compiled = None
        self._updates = 0
        if compiled:
            from torch._dynamo import config  # takes seconds, and only compiling needs it

            options = _COMPILER_OPTIONS if device.type == "cpu" else {}
            self._compiled = _compiled_alone(update, dynamic=False, options=options)
            self._tracing = cast("Any", config).patch(trace_autograd_ops=True)

    def rounding(self) -> AbstractContextManager[Any]:
        """Return a context whose large products take rounded inputs, if the mode says so."""
        if not self._rounds:
            return nullcontext()
        return torch.autocast(self._device.type, torch.bfloat16)

    def __call__(self, *inputs: Any) -> Figures:
        """Do the update; return its figures.

        Raises:
            InputError: A loss or gradient is not finite; nothing has learned from it.
        """
        if self._compiled is None:
            return self._update(*inputs)
        self._finite.fill_(True)
        for optimizer in self._optimizers:
            optimizer.prepare(self._finite)
        with self._tracing:
            figures = self._compiled(*inputs)
        self._updates += 1
        if may_look(self._device, self._updates):
            require_finite(figures)
        for optimizer in self._optimizers:
            optimizer.finish()
        return figures

    def require(self, mode: str) -> None:
        """Refuse the state of a run in another mode.

        Raises:
            CheckpointError: It is of another.
        """
        if mode != self.mode:
            raise CheckpointError(
                f"learner: expected a run whose updates are {self.mode}, got {mode}; continue in "
                "that mode, because each mode rounds differently."
            )


def _compiled_alone(function: Callable[..., Figures], **options: Any) -> Callable[..., Figures]:
    """Return ``function`` compiled with ``options`` and a limit of compilations of its own.

    Torch before 2.13 has one limit for all objects of a class: what is beyond it runs there as it
    is, with a warning.
    """
    compiler = cast("Any", torch).compile  # its type lacks the last argument
    isolated = "isolate_recompiles" in inspect.signature(compiler).parameters
    return compiler(function, **options, **({"isolate_recompiles": True} if isolated else {}))


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
            "compile: expected a C++ compiler for compile = true, got none, so updates run "
            "uncompiled; install g++ or clang++, or set CXX.",
            UserWarning,
            stacklevel=4,
        )
        return False
    return True
