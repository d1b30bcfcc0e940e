"""What a loop needs of an off-policy algorithm, and a base for those made of callbacks.

`UpdateStep` does what a target and its losses do one by one, in fewer and larger pieces: the losses
of a stage are evaluated together, before any of them steps, and differentiated in one pass; the
target belongs to the first stage. Compiled, a stage is one function of `torch.compile`.

Results:  float32 and not compiled, bitwise those of the callbacks one by one. Another mode rounds
          otherwise, so a checkpoint of one mode is refused in another.
Axes:     B = batch, N = environments, O = observation, A = action components,
          W = width of an action as the memory stores it (A, or 1 for an index).
"""

import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from typing import Any, Final, Literal, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cadenza.core.arrays import Float32Array
from cadenza.core.errors import CheckpointError, ConfigurationError
from cadenza.core.seeding import derive_substream
from cadenza.learn.callback import Callback
from cadenza.learn.callbacks.loss import NORM_MARGIN, LossCallback, compiled_alone
from cadenza.learn.injection import SIGNATURE, HookSignature, data_group_of
from cadenza.learn.loaded_state import complete_state
from cadenza.learn.memory.builder import TransitionMemory
from cadenza.learn.nn.layers import EncodedNetwork, EncoderFactory, Network, with_encoder
from cadenza.learn.nn.portable import Output, PortableNetwork, flat_network, layers_of
from cadenza.learn.optimizers import FusedAdam, adam_, set_rate
from cadenza.learn.settings import CompilableConfig
from cadenza.learn.trainer import PlannedHook, Trainer

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
        self.data_group: str | None = data_group_of(target)
        compiled = compile and _has_compiler()
        others = [
            loss.name
            for loss in itertools.chain(*stages)
            if type(loss.optimizer) is not FusedAdam
            or len(loss.optimizer.param_groups) > 1
            or loss.log_per_param_grads
        ]
        if compiled and others:
            raise ConfigurationError(
                "UpdateStep: expected a FusedAdam of one group and no log_per_param_grads in every "
                f"loss to compile its step, got {others} otherwise; build their optimisers with "
                "optimizers.adam."
            )
        self.mode = f"{'compiled' if compiled else 'eager'}, {precision}"
        self._stages = [[(loss, _signature(loss, "loss")) for loss in losses] for losses in stages]
        self._target = (target, _signature(target, "begin_batch"))
        self._draw = draw
        self._rounds = precision == "bf16"
        self._compiled = None
        if compiled:
            from torch._dynamo import config  # takes seconds, and only compiling needs it

            options = {"dynamic": False, "options": _COMPILER_OPTIONS}
            self._compiled = compiled_alone(self._updated, **options)
            self._tracing = cast("Any", config).patch(trace_autograd_ops=True)
        hooks = [PlannedHook.of(part, "end_batch") for part in (*itertools.chain(*stages), target)]
        self._ends = [hook for hook in hooks if hook is not None]

    @Callback.whole_state
    def backward(self, **state: Any) -> None:
        """Do all stages whose turn it is."""
        fields = dict(state[self.data_group] if self.data_group else state)
        if self._draw is not None:
            fields |= self._draw(fields)
        step = state["bp_step"]
        due = tuple(i for i, losses in enumerate(self._stages) if losses[0][0].is_due(step))
        if self._compiled is not None:
            self._run(self._compiled, fields, due)
            return
        for stage in due:
            losses = self._losses((stage,))
            fields, values, gradients = self._evaluated(fields, stage)
            for loss, value in zip(losses, values, strict=True):  # before any of them steps
                loss.require_finite(value)
            left = iter(gradients)
            for loss, value in zip(losses, values, strict=True):
                for parameter in loss.parameters:
                    parameter.grad = next(left) if parameter.requires_grad else None
                loss.take_step(value)

    @Callback.whole_state
    def end_batch(self, **state: Any) -> None:
        """Let every part finish the batch."""
        for hook in self._ends:
            hook(cast("Any", state))

    def state_dict(self) -> dict[str, Any]:
        """Return the mode; the parts have states of their own."""
        return {"mode": self.mode}

    def _load_rest(self, state: Mapping[str, Any]) -> None:
        """Compare the mode."""
        found = state["mode"]
        if found != self.mode:
            raise CheckpointError(
                f"UpdateStep: expected a run whose updates are {self.mode}, got {found}; continue "
                "in that mode, because each mode rounds differently."
            )

    def _losses(self, due: tuple[int, ...]) -> list[LossCallback]:
        return [loss for stage in due for loss, _ in self._stages[stage]]

    def _run(self, compiled: Any, fields: Fields, due: tuple[int, ...]) -> None:
        losses = self._losses(due)
        calls = [self._target, *(call for stage in due for call in self._stages[stage])]
        names = {name for _, signature in calls for name in signature.parameters}
        fields = {name: fields[name] for name in names if name in fields}
        optimizers = [cast("FusedAdam", loss.optimizer) for loss in losses]
        lists = [optimizer.lists() for optimizer in optimizers]
        factors = [optimizer.factors() for optimizer in optimizers]
        with ExitStack() as logs:
            logs.enter_context(self._tracing)
            for part, _ in calls:
                logs.enter_context(part.logs_deferred())
            values, norms, used = compiled(fields, due, [each[:3] for each in lists], factors)
        results = zip(losses, optimizers, values, norms, used, strict=True)
        for stage in due:  # only where all of it was finite, a stage has stepped
            own = list(itertools.islice(results, len(self._stages[stage])))
            for loss, _, value, norm, _ in own:
                loss.require_finite(value, norm)
            for loss, optimizer, value, norm, places in own:
                optimizer.count(places)
                loss.note_step(value, norm)

    def _updated(
        self,
        fields: Fields,
        due: tuple[int, ...],
        lists: list[list[list[Tensor]]],
        factors: list[Tensor],
    ) -> tuple[list[Tensor], list[Tensor], list[list[int]]]:
        """Do the due stages; return losses, norms of gradients, and which parameters have one."""
        all_values: list[Tensor] = []
        norms: list[Tensor] = []
        used: list[list[int]] = []
        is_finite = torch.tensor(True)
        for stage in due:
            losses = self._losses((stage,))
            fields, values, gradients = self._evaluated(fields, stage)
            left = iter(gradients)
            parts: list[list[tuple[int, Tensor]]] = []
            for loss, value in zip(losses, values, strict=True):
                own = [next(left) if p.requires_grad else None for p in loss.parameters]
                parts.append([(i, g) for i, g in enumerate(own) if g is not None])
                used.append([i for i, _ in parts[-1]])
                norms.append(torch.stack([(g * g).sum() for _, g in parts[-1]]).sum().sqrt())
                is_finite = is_finite & torch.isfinite(norms[-1] + value)
            first = len(all_values)
            all_values += values
            for n, (loss, part) in enumerate(zip(losses, parts, strict=True), first):
                parameters, means, squares = lists[n]
                scale = (loss.max_grad_norm / (norms[n] + NORM_MARGIN)).clamp(max=1.0)
                with torch.no_grad():
                    for i, g in part:
                        adam_(
                            parameters[i], means[i], squares[i], g * scale, factors[n][i], is_finite
                        )
        return all_values, norms, used

    def _evaluated(
        self, fields: Fields, stage: int
    ) -> tuple[Fields, list[Tensor], tuple[Tensor | None, ...]]:
        """Return the fields with what the target wrote, losses, and gradients of their weights."""
        with torch.autocast("cpu", torch.bfloat16) if self._rounds else nullcontext():
            if stage == 0:
                target, signature = self._target
                with torch.no_grad():
                    fields = fields | _call(signature, target, fields)[target.data_group]
            losses = [_call(signature, loss, fields) for loss, signature in self._stages[stage]]
        values = [loss.float() if loss.dim() == 0 else loss.float().mean() for loss in losses]
        parameters = [p for loss in self._losses((stage,)) for p in loss.learning()]
        gradients = torch.autograd.grad(values, parameters, allow_unused=True)
        return fields, [value.detach() for value in values], gradients


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


#: Layout version of `CallbackLearner.state_dict`.
STATE_VERSION: Final = 2


class ReplayLearner(Protocol):
    """Acts on flat observations and learns from a memory; actions are in [−1, 1]."""

    #: W, and the element type of stored actions.
    action_width: int
    action_dtype: type[np.generic]

    @property
    def greedy(self) -> nn.Module:
        """The policy without chance: (B, O) to actions in [−1, 1], (B, A), or to choices, (B,)."""
        ...

    def act(self, states: Float32Array, *, frames: int) -> NDArray[Any]:
        """Return exploring actions as the memory stores them, (N, W), for states (N, O).

        ``frames`` are the environment frames done, for exploration that fades.
        """
        ...

    def random_actions(self, rows: int) -> NDArray[Any]:
        """Return uniformly drawn actions as the memory stores them, (``rows``, W)."""
        ...

    def to_unit(self, stored: NDArray[Any]) -> Float32Array:
        """Return stored actions as vectors in [−1, 1], (N, A)."""
        ...

    def learn(self, memory: TransitionMemory) -> dict[str, float]:
        """Do one update; return figures of it by name."""
        ...

    def policy(self, low: Float32Array, high: Float32Array, **fields: Any) -> PortableNetwork:
        """Return the greedy policy with actions scaled to [low, high], (A,) each."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return everything the future depends on, memory excepted."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        ...


class CallbackLearner:
    """Runs callbacks on batches of its own choice and saves them all.

    Args:
        name: Part of the stream names ``learn.<name>.torch`` and ``learn.<name>.noise``.
        config: Settings of the updates.
        seed: Root of those streams.
    """

    greedy: nn.Module

    def __init__(
        self,
        name: str,
        observation_dim: int,
        config: CompilableConfig,
        *,
        seed: int,
        encoder: EncoderFactory | None,
    ) -> None:
        self.config = config
        self.observation_dim = observation_dim
        self._make_encoder = encoder
        self.weights: torch.Generator = torch.Generator().manual_seed(
            derive_substream(f"learn.{name}.torch", root_seed=seed).integer_seed()
        )
        self.noise: torch.Generator = torch.Generator().manual_seed(
            derive_substream(f"learn.{name}.noise", root_seed=seed).integer_seed()
        )
        self._name = name
        self._callbacks: list[Callback] = []
        self.losses: list[LossCallback] = []
        self._trainer = Trainer([], [])

    def run(
        self,
        stages: Sequence[Sequence[LossCallback]],
        target: Any,
        draw: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        """Take the parts of the algorithm, whose names must differ; see `UpdateStep`."""
        step = UpdateStep(
            target, stages, draw=draw, compile=self.config.compile, precision=self.config.precision
        )
        self.losses = [loss for losses in stages for loss in losses]
        self._callbacks = [*self.losses, target, step]
        self._trainer = Trainer([step], [])

    def encoded(
        self, build: Callable[[int], Network]
    ) -> tuple[Network, nn.Module, list[nn.Module]]:
        """Return what ``build`` makes of a width, alone and behind an encoder, and that one."""
        network, encoder = with_encoder(self._make_encoder, self.observation_dim, build)
        return network, EncodedNetwork(encoder[0], network) if encoder else network, encoder

    def policy(self, low: Float32Array, high: Float32Array, **fields: Any) -> PortableNetwork:
        """Return the greedy policy with actions scaled to [low, high], (A,) each.

        ``fields`` are further ones of `PortableNetwork`.

        Raises:
            ConfigurationError: A module of one's own is in it.
        """
        output = Output(kind="unit", low=low, high=high)
        return flat_network(layers_of(self.greedy), self.observation_dim, output, **fields)

    def learn(self, memory: TransitionMemory) -> dict[str, float]:
        """Do one update of everything that is due; return figures of it by name."""
        return self.train_on(memory.sample(self.config.batch_size))

    def train_on(self, batch: Mapping[str, Any]) -> dict[str, float]:
        """Do one step on ``batch``; return the losses by name."""
        self._trainer.train_on({"default": batch, "batch_size": len(batch["rewards"])})
        figures: dict[str, float] = {}
        for loss in self.losses:
            key = f"{loss.name}_loss"
            if f"loss/{key}" in loss.scalar_logs:
                figures[key] = loss.scalar_logs[f"loss/{key}"]
        return figures

    def state_dict(self) -> dict[str, Any]:
        """Return callbacks, step numbers and the noise: tensors and JSON scalars."""
        return {
            "version": STATE_VERSION,
            "algorithm": self._name,
            "callbacks": {callback.name: callback.state_dict() for callback in self._callbacks},
            "bp_step": self._trainer.state.get("bp_step", 0),
            "bp_samples": self._trainer.state.get("bp_samples", 0),
            "noise": self.noise.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken.

        Raises:
            CheckpointError: The state is of another algorithm or version, incomplete, or of other
                sizes.
        """
        found = (state.get("version"), state.get("algorithm"))
        if found != (STATE_VERSION, self._name):
            raise CheckpointError(
                f"{self._name}: expected a state of this algorithm, version {STATE_VERSION}, got "
                f"{found[1]!r}, version {found[0]!r}."
            )
        with complete_state(self._name, "a learner of these sizes"):
            for callback in self._callbacks:
                callback.load_state_dict(dict(state["callbacks"][callback.name]))
            for loss in self.losses:
                set_rate(loss.optimizer, self.config.learning_rate)
            self._trainer.state["bp_step"] = int(state["bp_step"])
            self._trainer.state["bp_samples"] = int(state["bp_samples"])
            self.noise.set_state(state["noise"])


class BoxLearner(CallbackLearner):
    """Base of learners whose actions are vectors in [−1, 1]."""

    action_dtype: type[np.generic] = np.float32

    def __init__(
        self,
        name: str,
        observation_dim: int,
        action_dim: int,
        config: CompilableConfig,
        *,
        seed: int,
        encoder: EncoderFactory | None,
    ) -> None:
        super().__init__(name, observation_dim, config, seed=seed, encoder=encoder)
        self.action_width = action_dim

    def random_actions(self, rows: int) -> NDArray[Any]:
        """Return uniform actions in [−1, 1], (``rows``, A)."""
        drawn = torch.rand((rows, self.action_width), generator=self.noise)
        return (drawn * 2.0 - 1.0).numpy()

    def to_unit(self, stored: NDArray[Any]) -> Float32Array:
        """Return the actions themselves."""
        return stored
