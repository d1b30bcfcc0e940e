"""Calling a hook with the values that its parameters name.

A hook is a method such as ``end_batch(self, bp_step, rewards)``. Its parameters name keys of the
training state; this module finds the values. With a data group, the group's values come first and
the outer state's second. The signature is read once, when the class is made.

Limits:  a hook that takes ``**kwargs`` gets the whole state and no look-up in a group.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final, cast

from cadenza.core.errors import CadenzaError, refuse

#: Attribute of a function: parameters whose state key is an attribute of the callback.
MEMBER_KEYS: Final = "__member_keys__"
#: Attribute of a function: it wants the whole state and says so.
WHOLE_STATE: Final = "__whole_state__"
#: Attribute of a function: name of the hook it only passes the state on to.
FORWARDS: Final = "__forwards_to__"
#: Attribute of a wrapper: the `HookSignature` of the function it wraps.
SIGNATURE: Final = "__hook_signature__"
#: Key that the state of every training has.
TRAINING_KEY: Final = "bp_step"
#: Hooks that may run before the first batch, when no data group exists yet.
HOOKS_WITHOUT_BATCH: Final = frozenset({"restore_state", "begin_training", "end_training"})

_POSITIONAL: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)


class MissingStateKeyError(CadenzaError, KeyError, TypeError):
    """A hook needs a key that the training state does not hold."""

    def __str__(self) -> str:
        """Return the message itself; `KeyError` would show its repr."""
        return str(self.args[0]) if self.args else ""


class HookReturnError(CadenzaError, TypeError, ValueError):
    """A hook returned something that cannot be merged into the training state."""


@dataclass(frozen=True, slots=True, eq=False)
class HookSignature:
    """What a hook's signature asks for.

    Attributes:
        positional: How many of ``parameters``, from the first, may be passed by position.
        required: Those of ``parameters`` that have no default.
        takes_state: The hook has ``**kwargs`` and gets everything.
        member_keys: Parameter to attribute of the callback that holds the state key.
    """

    function: Callable[..., Any]
    name: str
    parameters: tuple[str, ...]
    positional: int
    required: frozenset[str]
    takes_state: bool
    member_keys: Mapping[str, str]

    @classmethod
    def of(
        cls, function: Callable[..., Any], name: str, *, is_method: bool = True
    ) -> "HookSignature":
        """Read a signature; the first parameter of a method is the object."""
        parameters = list(inspect.signature(function).parameters.values())[int(is_method) :]
        named = [p for p in parameters if p.kind in (*_POSITIONAL, inspect.Parameter.KEYWORD_ONLY)]
        return cls(
            function=function,
            name=name,
            parameters=tuple(p.name for p in named),
            positional=sum(p.kind in _POSITIONAL for p in named),
            required=frozenset(p.name for p in named if p.default is inspect.Parameter.empty),
            takes_state=any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters),
            member_keys=getattr(function, MEMBER_KEYS, {}),
        )

    def arguments(
        self, owner: object, state: Mapping[str, Any], group: str | None, consumed: int
    ) -> dict[str, Any]:
        """Return the keyword arguments of a call; a ``group``'s values come before the outer ones.

        The caller passes the first ``consumed`` parameters by position.

        Raises:
            MissingStateKeyError: A parameter without default is in neither group nor state; or a
                parameter with default is missing because the group is.
        """
        inner: Mapping[str, Any] = state.get(group, {}) if group else {}
        found: dict[str, Any] = {}
        missing: list[str] = []
        for parameter in self.parameters[consumed:]:
            member = self.member_keys.get(parameter)
            key = parameter if member is None else getattr(owner, member)
            if key in inner:
                found[parameter] = inner[key]
            elif key in state:
                found[parameter] = state[key]
            else:
                missing.append(key)
                if parameter in self.required:
                    raise self._missing(owner, key, group, state)
        # In a training, defaults must not hide a misspelt group; calls by hand need no group.
        is_training = TRAINING_KEY in state and self.name not in HOOKS_WITHOUT_BATCH
        if missing and group and group not in state and is_training:
            raise self._missing(owner, missing[0], group, state)
        return found

    def _missing(
        self, owner: object, key: str, group: str | None, state: Mapping[str, Any]
    ) -> MissingStateKeyError:
        label = f"{getattr(owner, 'name', type(owner).__name__)} ({type(owner).__name__})"
        place = "the state"
        if group is not None:
            inside = f"has {sorted(state[group].keys())}" if group in state else "is absent"
            place = f"group {group!r}, which {inside}, or the outer state"
        where = f"{place}, which has {sorted(state)}"
        told = (
            f"{label}.{self.name}: expected the key {key!r} in {where}; add a callback or loader "
        )
        told += "that provides it earlier, correct data_group, or give the parameter a default."
        return MissingStateKeyError(told)


def data_group_of(owner: object) -> str | None:
    """Return the data group of a callback: its ``data_group``, else its ``DATA_GROUP``."""
    return getattr(owner, "data_group", None) or getattr(owner, "DATA_GROUP", None) or None


def injected(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return ``function`` as a method that picks its arguments from the keywords it is given.

    The wrapper acts only when it is the object's own method. Reached through ``super()`` it calls
    ``function`` as written. Functions with ``**kwargs`` come back unchanged.
    """
    signature = HookSignature.of(function, name)
    if signature.takes_state:
        return function

    @functools.wraps(function)
    def call(self: object, *args: Any, **state: Any) -> Any:
        if getattr(type(self), name, None) is not call:
            return function(self, *args, **state)
        group = data_group_of(self)
        leading = args[: signature.positional]
        result = function(self, *leading, **signature.arguments(self, state, group, len(leading)))
        return merge_into_group(result, group, state)

    setattr(call, SIGNATURE, signature)
    return call


def merge_into_group(result: Any, group: str | None, state: Mapping[str, Any]) -> Any:
    """Move what ``result`` says about ``group`` into the existing group; return the rest.

    Anything but a dict that names the group is returned as it is, and so is a dict when the state
    has no such group yet.
    """
    if group is None or not isinstance(result, dict) or group not in result:
        return cast("Any", result)
    returned = cast("dict[str, Any]", result)
    update: object = returned[group]
    if not isinstance(update, Mapping):
        got, advice = type(update).__name__, f"return {{{group!r}: {{...}}}}"
        refuse(
            HookReturnError, f"group {group!r}", expected="a mapping of names", got=got, do=advice
        )
    target: object = state.get(group)
    if not isinstance(target, MutableMapping):
        return returned
    cast("MutableMapping[str, Any]", target).update(cast("Mapping[str, Any]", update))
    return {key: value for key, value in returned.items() if key != group}
