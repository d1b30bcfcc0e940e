"""Callbacks: the parts that a training loop is made of.

A callback overrides some of eight hooks. Its parameters name what it reads from the training state,
and a dict that it returns is merged into the state. See `cadenza.learn.injection` for the rules and
`cadenza.learn.trainer` for the loop.

Emote's callbacks call the same two switches of ``load_state_dict`` by different names:
``load_network`` and ``load_optimizer`` in some classes, ``load_weights`` and ``load_optimizers`` in
others. Here every class declares the first two, and `accepts_other_names` lets callers use either.
"""

import functools
import inspect
import warnings
from abc import ABCMeta
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial
from typing import Any, Final, TypeVar, Unpack, cast, get_args, get_origin

from cadenza.core.errors import ConfigurationTypeError, InputError, refuse
from cadenza.learn.injection import FORWARDS, MEMBER_KEYS, SIGNATURE, WHOLE_STATE, injected

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

#: Other name of a switch to its name, and to its place after ``self`` and the state.
OTHER_NAMES: Final = {"load_weights": ("load_network", 0), "load_optimizers": ("load_optimizer", 1)}

_ACCEPTS: Final = "__accepts_other_names__"
#: Arguments before the first switch: ``self`` and the state.
_LEADING: Final = 2


def accepts_other_names(function: F) -> F:
    """Return a ``load_state_dict`` that also takes ``load_weights`` and ``load_optimizers``.

    A keyword that is None counts as not given; a switch given by both names is an `InputError`.
    """
    if getattr(function, _ACCEPTS, False):
        return function

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        for other, (name, place) in OTHER_NAMES.items():
            value = kwargs.pop(other, None)
            if value is None:
                continue
            if name in kwargs or len(args) > _LEADING + place:
                expected = f"{name} or {other}, which mean the same"
                refuse(InputError, function.__qualname__, expected=expected, got="both")
            kwargs[name] = value
        return function(*args, **kwargs)

    *known, last = inspect.signature(function).parameters.values()
    rest = [last] if last.kind is inspect.Parameter.VAR_KEYWORD else []
    known += [] if rest else [last]
    keyword = partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY, default=None)
    others = [keyword(other, annotation="bool | None") for other in OTHER_NAMES]
    signature = inspect.Signature([*known, *others, *rest])
    vars(wrapper).update({"__signature__": signature, _ACCEPTS: True})
    return cast("F", wrapper)


#: The hooks of a training loop, in the order in which they run.
HOOKS: Final = (
    "restore_state",
    "begin_training",
    "begin_cycle",
    "begin_batch",
    "backward",
    "end_batch",
    "end_cycle",
    "end_training",
)
#: `Callback._order` of writers of checkpoints: after every callback that still changes in a hook.
ORDER_CHECKPOINT: Final = 1_000
#: `Callback._order` of callbacks that end the training: after the last checkpoint is written.
ORDER_STOP: Final = 2_000

#: Method of mixins with a state; called where `Callback` would hide that state.
REFUSE_HIDDEN_STATE: Final = "_refuse_hidden_state"

#: Likeness, as `difflib` counts it, from which a method's name is taken for a misspelt hook.
_MISSPELT: Final = 0.85
_EXTENDS: Final = "__extends_callback__"
_LOAD: Final = "load_state_dict"


class CallbackMeta(ABCMeta):
    """Gives the hooks of a class their injected arguments, and `load_state_dict` its other names.

    A method whose name is nearly that of a hook is a `ConfigurationTypeError`.

    ``_callbacks`` maps the name of every hook to the function that declares it. A method of that
    name in a subclass is an override, and is replaced by a wrapper that picks its arguments.
    """

    _callbacks: dict[str, Callable[..., Any]]

    def __init__(
        cls, name: str, bases: tuple[type, ...], fields: dict[str, Any], /, **kwargs: Any
    ) -> None:
        super().__init__(name, bases, fields, **kwargs)
        declared: dict[str, Callable[..., Any]] = {}
        for base in bases:
            declared |= getattr(base, "_callbacks", {})
        if not declared:
            declared = {hook: fields[hook] for hook in HOOKS if hook in fields}
        declared |= {key: value for key, value in fields.items() if getattr(value, _EXTENDS, False)}
        cls._callbacks = declared
        for field in sorted(fields.keys() - declared):
            for hook in get_close_matches(field, declared, n=1, cutoff=_MISSPELT):
                if inspect.isfunction(fields[field]) and hook not in field:  # not `end_batches`
                    expected = f"the hook {hook!r}, or a clearly different name"
                    got, owner = "a method that no training calls", f"{name}.{field}"
                    refuse(
                        ConfigurationTypeError, owner, expected=expected, got=got, do="rename it"
                    )
        for hook, declaration in declared.items():
            function = getattr(cls, hook)
            # Mixins that are no callbacks may bring hooks too, so look beyond this class's body.
            if function is declaration or not inspect.isfunction(function):
                continue
            wrapper = function if hasattr(function, SIGNATURE) else injected(function, hook)
            if wrapper is not function:
                setattr(cls, hook, wrapper)
        if inspect.isfunction(fields.get("__init__")):
            _spell_out(fields["__init__"], super(cls, cls).__init__)
        load = fields.get(_LOAD)
        if inspect.isfunction(load):
            setattr(cls, _LOAD, accepts_other_names(load))

    @property
    def __signature__(cls) -> inspect.Signature:
        """What the constructor takes; `__call__` below would hide it."""
        signature = inspect.signature(cls.__init__)
        return signature.replace(parameters=list(signature.parameters.values())[1:])

    def __call__(cls: type[T], *args: Any, **kwargs: Any) -> T:
        """Make an instance; warn about hooks that take whatever there is."""
        instance = type.__call__(cls, *args, **kwargs)
        declared: dict[str, Callable[..., Any]] = vars(cls)["_callbacks"]
        for hook, declaration in declared.items():
            function = getattr(cls, hook)
            if function is not declaration and hook != "backward" and _takes_anything(function):
                told = f"Deprecated: {cls.__name__}.{hook} takes *args or **kwargs and so gets the "
                told += "whole state; name the keys it needs, or mark it @Callback.whole_state."
                warnings.warn(told, UserWarning, stacklevel=2)
        return instance

    def extend(cls, func: F) -> F:
        """Declare ``func`` a hook of its class: overrides in subclasses get injected arguments."""
        setattr(func, _EXTENDS, True)
        return func

    def whole_state(cls, func: F) -> F:
        """Say that ``func`` takes ``**kwargs`` because it wants the whole state."""
        setattr(func, WHOLE_STATE, True)
        return func

    def keys_from_member(cls, **param_to_attr: str) -> Callable[[F], F]:
        """Let attributes of the instance, by parameter, say which state keys feed parameters."""

        def mark(func: F) -> F:
            setattr(func, MEMBER_KEYS, dict(param_to_attr))
            return func

        return mark


def _spell_out(init: Callable[..., None], inherited: Callable[..., None]) -> None:
    """Show keywords that a constructor passes on, ``**more: Unpack[...]``, with their defaults."""
    *own, rest = inspect.signature(init).parameters.values()
    if get_origin(rest.annotation) is not Unpack:
        return
    known = inspect.signature(inherited).parameters
    names = get_args(rest.annotation)[0].__annotations__
    if names.keys() <= known.keys():
        own += [known[name].replace(kind=inspect.Parameter.KEYWORD_ONLY) for name in names]
        vars(init)["__signature__"] = inspect.Signature(own)


def _takes_anything(function: Callable[..., Any]) -> bool:
    """Return whether a hook has ``*args`` or ``**kwargs`` and does not say that it wants them."""
    if getattr(function, WHOLE_STATE, False):
        return False
    kinds = {parameter.kind for parameter in inspect.signature(function).parameters.values()}
    return bool(kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD})


class Callback(metaclass=CallbackMeta):
    """A modular part of a training loop.

    Every hook may return None or a dict of values for the state. Set ``data_group`` (per instance)
    or ``DATA_GROUP`` (per class) to read and write a group of the state.

    Attributes:
        cycle: Steps between calls of `begin_cycle` and `end_cycle`; None or 0: never called.
        name: Name of the class; used for checkpoints and messages.
        overwrites: State keys (``"group/key"`` inside a group) that a strict trainer lets this
            callback write although another callback has written them in the same step.
        ends_first: Its `end_training` runs before that of the other callbacks.
    """

    overwrites: frozenset[str] = frozenset()
    ends_first: bool = False

    def __init__(self, cycle: int | None = None) -> None:
        super().__init__()
        self.cycle = cycle
        self._order = 0
        self.name: str = type(self).__name__

    @property
    def order(self) -> int:
        """Place among the callbacks: lower runs first, equal ones in the order of the list."""
        return self._order

    def restore_state(self, *args: Any, **kwargs: Any) -> dict[str, Any] | None:
        """Load state from elsewhere; the other callbacks may not have theirs yet."""

    def begin_training(self, *args: Any, **kwargs: Any) -> dict[str, Any] | None:
        """Prepare for training, from scratch or after a restore."""

    def begin_cycle(self, *args: Any, **kwargs: Any) -> dict[str, Any] | None:
        """Start a cycle."""

    def begin_batch(self, *args: Any, **kwargs: Any) -> dict[str, Any] | None:
        """Prepare for a batch that has just been sampled."""

    def backward(self, *args: Any, **kwargs: Any) -> dict[str, Any] | None:
        """Do the main work of a batch."""

    def end_batch(self, *args: Any, **kwargs: Any) -> dict[str, Any] | None:
        """Finish a batch after every `backward`."""

    def end_cycle(self, *args: Any, **kwargs: Any) -> dict[str, Any] | None:
        """Finish a cycle."""

    def end_training(self, *args: Any, **kwargs: Any) -> dict[str, Any] | None:
        """Let go of resources; the first argument is the exception that ended training, or None."""

    def state_dict(self) -> dict[str, Any]:
        """Return everything a checkpoint must hold: tensors, plain values, lists and dicts."""
        self._require_front_mixins()
        return {}

    def load_state_dict(
        self,
        state_dict: dict[str, Any],
        load_network: bool = True,
        load_optimizer: bool = True,
        load_hparams: bool = True,
    ) -> None:
        """Take over what `state_dict` returned.

        ``load_network`` (or ``load_weights``) takes the network's parameters, ``load_optimizer``
        (or ``load_optimizers``) optimiser and learning-rate schedule, ``load_hparams`` everything
        else. A state that lacks a part or is of another kind of object is a `CheckpointError`.
        """
        self._require_front_mixins()
        if load_optimizer:
            self._load_optimizer(state_dict)
        if load_network:
            self._load_network(state_dict)
        if load_hparams:
            self._load_rest(state_dict)

    def _load_optimizer(self, state: Mapping[str, Any]) -> None:
        """Take over optimiser and learning-rate schedule from ``state``."""

    def _load_network(self, state: Mapping[str, Any]) -> None:
        """Take over the network from ``state``."""

    def _load_rest(self, state: Mapping[str, Any]) -> None:
        """Take over from ``state`` what is neither network nor optimiser."""

    def _require_front_mixins(self) -> None:
        """Let a mixin say so if its state is hidden, because it comes behind this class."""
        refuse = getattr(super(), REFUSE_HIDDEN_STATE, None)
        if refuse is not None:
            refuse()


class BatchCallback(Callback):
    """A callback that names the fields of a batch it needs as parameters of `get_batch`."""

    @Callback.whole_state
    def begin_batch(self, *args: Any, **kwargs: Any) -> dict[str, Any] | None:
        """Pass the state on to `get_batch`."""
        return self.get_batch(*args, **kwargs)

    @Callback.extend
    def get_batch(self, *args: Any, **kwargs: Any) -> dict[str, Any] | None:
        """Take a batch; override with the fields you need as parameters."""

    setattr(begin_batch, FORWARDS, "get_batch")
