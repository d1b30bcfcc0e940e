"""The training loop: batches from a loader, work from callbacks.

Order of one step:  the batch enters the state; the shutdown signal is asked; then `begin_cycle`
(where due), `begin_batch`, `backward`, `end_batch` and `end_cycle` (where due), each for all
callbacks before the next.
Promise:  every callback that was started gets `end_training` exactly once, however training ends.
Numbers:  ``bp_step`` counts steps from 1 over the whole life of a run; a restored run goes on with
          the step after the saved one, and cycles stay aligned to these absolute numbers.
"""

import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

from cadenza.core.errors import CadenzaError, ConfigurationError, PreconditionError, refuse
from cadenza.core.types import WeakReference
from cadenza.learn.callback import HOOKS, BatchCallback, Callback
from cadenza.learn.injection import (
    FORWARDS,
    SIGNATURE,
    HookReturnError,
    HookSignature,
    MissingStateKeyError,
    data_group_of,
    merge_into_group,
)

__all__ = [
    "StateDict",
    "Trainer",
    "TrainingShutdownException",
    "TrainingStartError",
]

#: Hooks of one step, in their order.
STEP_HOOKS: Final = ("begin_cycle", "begin_batch", "backward", "end_batch", "end_cycle")
#: Those of every step; groups they write are dropped before the next batch.
_STEP_HOOKS: Final = ("begin_batch", "backward", "end_batch")
#: Functions that do nothing until a subclass overrides them.
_DECLARATIONS: Final = frozenset(
    [*(getattr(Callback, hook) for hook in HOOKS), BatchCallback.get_batch]
)


class StateDict(dict[str, Any]):
    """A dict of training state that supports weak references.

    Values are transient when they came with a batch, and so are groups (mappings) that hooks write
    during a step. `next_batch` drops them, so that no value of an older batch is read by mistake.
    Everything else persists.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._transient: set[str] = set()

    def get_handle(self) -> "WeakReference[StateDict]":
        """Return a weak reference to this dict."""
        return WeakReference(self)

    def next_batch(self, batch: Mapping[str, Any]) -> None:
        """Forget the transient values and take those of ``batch``.

        Groups are copied one level deep: hooks add to them, and the loader may own the original.
        """
        for key in self._transient:
            self.pop(key, None)
        self._transient = set(batch)
        for key, value in batch.items():
            is_group = type(value) is dict
            self[key] = dict(cast("dict[str, Any]", value)) if is_group else value

    def write(self, values: Mapping[str, Any], *, in_step: bool) -> None:
        """Merge what a hook returned; groups of a hook of a step (``in_step``) are transient."""
        self.update(values)
        if in_step:
            self._transient |= {k for k, value in values.items() if isinstance(value, Mapping)}

    def persistent(self) -> dict[str, Any]:
        """Return the values that outlive a batch."""
        return {key: value for key, value in self.items() if key not in self._transient}


_logger = logging.getLogger(__name__)


class TrainingShutdownException(Exception):  # noqa: N818 -- the name is part of the interface
    """Stops training cleanly; raised by hooks and loaders."""


class TrainingStartError(CadenzaError, RuntimeError):
    """A callback failed before the first step; the cause is chained."""


class InvalidCallbackError(PreconditionError, TypeError):
    """Something in the list of callbacks is no callback."""


@dataclass(frozen=True, slots=True, eq=False)
class PlannedHook:
    """One overridden hook of one callback, ready to be called with the state."""

    callback: Callback
    name: str
    signature: HookSignature
    function: Callable[..., Any]
    group: str | None

    @classmethod
    def of(cls, callback: Callback, name: str) -> "PlannedHook | None":
        """Return the plan for one hook, or None if the callback does not override it."""
        if name in vars(callback):  # set on the instance
            function = vars(callback)[name]
            signature = HookSignature.of(function, name, is_method=False)
            return cls(callback, name, signature, function, None)
        function = getattr(type(callback), name)
        function = getattr(type(callback), getattr(function, FORWARDS, name))
        if function in _DECLARATIONS:
            return None
        signature: HookSignature | None = getattr(function, SIGNATURE, None)
        group = data_group_of(callback) if signature is not None else None
        signature = signature or HookSignature.of(function, name)
        bound = signature.function.__get__(callback, type(callback))
        return cls(callback, name, signature, bound, group)

    def __call__(self, state: StateDict, *args: Any) -> dict[str, Any] | None:
        """Call the hook; ``args`` fill its leading parameters as far as it has any."""
        if self.signature.takes_state:
            result = self.function(*args, **state)
        else:
            leading = args[: self.signature.positional]
            named = self.signature.arguments(self.callback, state, self.group, len(leading))
            result = self.function(*leading, **named)
        if result is not None and not isinstance(result, Mapping):
            expected, got = "None or a dict of state values", type(result).__name__
            refuse(HookReturnError, self.label, expected=expected, got=got)
        return cast("dict[str, Any] | None", result)

    @property
    def label(self) -> str:
        """Name of callback and hook, for messages."""
        return f"{self.callback.name}.{self.name}"


class Trainer:
    """Runs callbacks over the batches of a loader.

    Attributes:
        callbacks: The callbacks, sorted by `Callback.order`.
        dataloader: Where batches come from; iterated once.
        state: What callbacks share.
        writers: With ``trace``: who wrote each key last, e.g. ``"default/q_target"`` to
            ``"QTarget.begin_batch"``.
    """

    def __init__(
        self,
        callbacks: Sequence[Callback],
        dataloader: Iterable[Mapping[str, Any]],
        batch_size_key: str = "batch_size",
        *,
        strict: bool = False,
        trace: bool = False,
    ) -> None:
        """Sort the callbacks and plan their calls.

        Args:
            callbacks: What does the work.
            dataloader: Yields dicts that are merged into the state.
            batch_size_key: Key of the number of rows of a batch.
            strict: Refuse two callbacks that write the same key in one step, unless the second
                names it in its ``overwrites``.
            trace: Record in ``writers`` who wrote which key.

        Raises:
            PreconditionError: An element of ``callbacks`` is no callback.
        """
        for callback in callbacks:
            if not isinstance(callback, Callback):  # pyright: ignore[reportUnnecessaryIsInstance]
                got = f"{callback!r} of type {type(callback).__name__}"
                advice = "derive a class from Callback and pass an instance"
                refuse(InvalidCallbackError, "Trainer", expected="callbacks", got=got, do=advice)
        self.callbacks: list[Callback] = sorted(callbacks, key=lambda callback: callback.order)
        self.dataloader = dataloader
        self.state: StateDict = StateDict()
        self.writers: dict[str, str] = {}
        self._batch_size_key = batch_size_key
        self._strict = strict
        self._trace = trace
        self._written: dict[str, PlannedHook] = {}
        self._started: set[int] = set()
        self._plan: dict[str, list[PlannedHook]] = {}
        for name in HOOKS:
            is_cyclic = name.endswith("_cycle")
            called = [c for c in self.callbacks if not is_cyclic or (c.cycle or 0) > 0]
            planned = [PlannedHook.of(callback, name) for callback in called]
            self._plan[name] = [hook for hook in planned if hook is not None]

    def train(self, shutdown_signal: Callable[[], bool] | None = None) -> None:
        """Train until the loader is exhausted, a callback stops it, or something fails.

        ``shutdown_signal`` is asked after every batch arrives; True stops before it is trained on.

        Raises:
            TrainingStartError: A `restore_state` or `begin_training` failed.
            BaseExceptionGroup: An `end_training` failed and nothing else had.
        """
        try:
            self.begin()
            self._run(shutdown_signal or (lambda: False))
        except TrainingShutdownException as stop:
            _logger.info("Training stops: %s", stop)
            self.end(stop)
        except BaseException as error:
            self.end(error)
            raise
        else:
            self.end(None)

    def train_on(self, batch: Mapping[str, Any]) -> None:
        """Do one step on ``batch`` for a caller that has a loop of its own.

        Numbering goes on from ``state["bp_step"]``, or starts at 1; `restore_state`,
        `begin_training` and `end_training` are not called.
        """
        self.state.setdefault("bp_samples", 0)
        step = self.state.get("bp_step", 0) + 1
        self.take(batch, step)
        self.call(*STEP_HOOKS)

    def begin(self, **counts: int) -> None:
        """Run `restore_state`, then `begin_training`, and note who was started.

        ``counts`` are those of a training that goes on: ``bp_step``, ``bp_samples``, ``inf_step``.

        Raises:
            TrainingStartError: One of them failed.
        """
        self.state.update({"bp_samples": 0, "bp_step": 1, **counts})
        self._started.clear()
        begin = {id(hook.callback): hook for hook in self._plan["begin_training"]}
        try:
            for hook in self._plan["restore_state"]:
                self._started.add(id(hook.callback))
                self._call(hook)
            for callback in self.callbacks:
                self._started.add(id(callback))
                if id(callback) in begin:
                    self._call(begin[id(callback)])
        except TrainingShutdownException:
            raise
        except Exception as error:
            raise TrainingStartError(f"Error in begin_training, aborting: {error}") from error

    def _run(self, should_stop: Callable[[], bool]) -> None:
        """Train on every batch of the loader."""
        iterator = iter(self.dataloader)
        # A generator made here ends here, with whatever threads it runs; the caller's own goes on.
        is_ours = isinstance(cast("object", iterator), Generator) and iterator != self.dataloader
        with closing(cast("Generator[Any]", iterator)) if is_ours else nullcontext():
            for step, batch in enumerate(iterator, start=self.state["bp_step"]):
                self.take(batch, step)
                if should_stop():
                    raise TrainingShutdownException("the shutdown signal was set")
                self.call(*STEP_HOOKS)

    def take(self, batch: Mapping[str, Any], step: int) -> None:
        """Put the batch of a step and its numbers into the state."""
        state = self.state
        state.next_batch(batch)
        if self._batch_size_key not in state:
            expected = f"the batch to have {self._batch_size_key!r}"
            advice = "set the loader's size_key or the trainer's batch_size_key"
            refuse(MissingStateKeyError, "Trainer", expected=expected, got=sorted(batch), do=advice)
        state["bp_step"] = step
        state["bp_samples"] += state[self._batch_size_key]
        self._written.clear()

    def call(self, *hooks: str) -> None:
        """Run these hooks of the step whose batch was taken, each for all callbacks in turn."""
        step: int = self.state["bp_step"]
        for name in hooks:
            is_cyclic = name.endswith("_cycle")
            place = step - (name == "begin_cycle")  # it begins one step after another's end
            for hook in self._plan[name]:
                if not is_cyclic or place % cast("int", hook.callback.cycle) == 0:
                    self._call(hook)

    def _call(self, hook: PlannedHook, *args: Any) -> None:
        """Run one hook and merge what it returns."""
        result = hook(self.state, *args)
        if not result:
            return
        if self._strict or self._trace:
            self._note_writes(hook, result)
        rest = merge_into_group(result, hook.group, self.state)
        self.state.write(rest, in_step=hook.name in _STEP_HOOKS)

    def _note_writes(self, hook: PlannedHook, result: Mapping[str, Any]) -> None:
        """Record the keys that a hook writes; with ``strict``, refuse undeclared conflicts."""
        for key in _written_keys(result):
            before = self._written.get(key)
            is_conflict = before is not None and before.callback is not hook.callback
            if self._strict and is_conflict and key not in hook.callback.overwrites:
                expected = f"to be the only writer of {key!r} in step {self.state['bp_step']}"
                got = f"{cast('PlannedHook', before).label} before it"
                advice = "rename the key or add it to the callback's 'overwrites'"
                refuse(ConfigurationError, hook.label, expected=expected, got=got, do=advice)
            self._written[key] = hook
            if self._trace:
                self.writers[key] = hook.label

    def end(self, ending: BaseException | None) -> None:
        """Run `end_training` of every started callback; failures do not stop the others.

        Raises:
            BaseExceptionGroup: One failed, and nothing else had: ``ending`` is no failure.
        """
        hooks = sorted(self._plan["end_training"], key=lambda hook: not hook.callback.ends_first)
        started = [hook for hook in hooks if id(hook.callback) in self._started]
        ends = [(hook.label, partial(self._call, hook, ending)) for hook in started]
        self._started.clear()
        end_all(ends, ending)


def end_all(ends: Iterable[tuple[str, Callable[[], object]]], ending: BaseException | None) -> None:
    """Call all ``ends``, named, of a training; failures do not stop the others.

    Raises:
        BaseExceptionGroup: One failed, and nothing else had: ``ending`` is no failure.
    """
    failures: list[BaseException] = []
    for label, end in ends:
        try:
            end()
        except BaseException as error:
            _logger.error("%s failed", label, exc_info=error)  # noqa: TRY400 -- one log
            error.add_note(f"raised by {label}")
            failures.append(error)
    if not failures:
        return
    if ending is None or isinstance(ending, TrainingShutdownException):
        raise BaseExceptionGroup("end_training failed", failures)
    for failure in failures:
        ending.add_note(f"end_training failed too: {failure!r}")


def _written_keys(result: Mapping[str, Any]) -> Iterable[str]:
    """Return the keys a result writes, ``"group/key"`` for those inside groups."""
    for key, value in result.items():
        if isinstance(value, Mapping):
            yield from (f"{key}/{inner}" for inner in cast("Mapping[str, Any]", value))
        else:
            yield key
