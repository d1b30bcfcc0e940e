"""Emote's other names of the switches of ``load_state_dict``.

Its callbacks call the same two switches by different names: ``load_network`` and ``load_optimizer``
in some classes, ``load_weights`` and ``load_optimizers`` in others. Here every class declares the
first two, and `accepts_other_names` lets callers use either.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from cadenza.core.errors import InputError

F = TypeVar("F", bound=Callable[..., Any])

#: Other name of a switch to its name, and to its place after ``self`` and the state.
OTHER_NAMES: Final = {"load_weights": ("load_network", 0), "load_optimizers": ("load_optimizer", 1)}

_ACCEPTS: Final = "__accepts_other_names__"
#: Arguments before the first switch: ``self`` and the state.
_LEADING: Final = 2


def accepts_other_names(function: F) -> F:
    """Return a ``load_state_dict`` that also takes ``load_weights`` and ``load_optimizers``.

    Args:
        function: Method with the switches ``load_network`` and ``load_optimizer``.

    Returns:
        ``function`` with two more keywords; one that is None counts as not given. Its calls raise
        `InputError` if a switch is given by both names.
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
                raise InputError(
                    f"{function.__qualname__}: expected {name} or {other}, which mean the same, "
                    "got both; leave one out."
                )
            kwargs[name] = value
        return function(*args, **kwargs)

    signature = _extended(inspect.signature(function))
    vars(wrapper).update({"__signature__": signature, _ACCEPTS: True})
    return cast("F", wrapper)


def _extended(signature: inspect.Signature) -> inspect.Signature:
    """Return ``signature`` with the other names as keywords, in front of ``**kwargs``."""
    parameters = list(signature.parameters.values())
    has_rest = bool(parameters) and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD
    end = len(parameters) - has_rest
    parameters[end:end] = [
        inspect.Parameter(
            other, inspect.Parameter.KEYWORD_ONLY, default=None, annotation="bool | None"
        )
        for other in OTHER_NAMES
        if other not in signature.parameters
    ]
    return signature.replace(parameters=parameters)
