"""Configurations as trees: plain copies, missing values, changes at a path.

Path syntax:  ``gym_config.kwargs.sizes[0]``: attribute names and keys after dots, indices in
              brackets.
"""

import copy
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any, Final, cast

import numpy as np
from torch import Tensor

from cadenza.core.errors import ConfigurationError, ConfigurationTypeError

_STEP: Final = re.compile(r"\[(\d+)\]|\.?([^.\[\]]+)")


def plain(value: object, path: str = "") -> Any:
    """Return ``value`` in dictionaries, lists, tuples and plain values.

    Callables become ``module:qualname`` (lambdas their source text), enumerations their value,
    NumPy's numbers plain ones; tensors and anything else without fields pass through.

    Raises:
        ConfigurationError: A value contains itself.
    """
    return _plain(value, path, ())


def _plain(value: object, path: str, above: tuple[int, ...]) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, np.number | np.bool_):
        return cast("Any", value).item()
    if value is None or isinstance(value, str | int | float | bytes | Tensor):
        return value
    if callable(value):
        return _import_string(value)
    if id(value) in above:
        raise ConfigurationError(
            f"to_dict: expected a tree, got a value that contains itself at {path!r}; break the "
            "cycle."
        )
    above = (*above, id(value))
    if isinstance(value, list | tuple):
        items = cast("Sequence[object]", value)
        done = [_plain(item, f"{path}[{i}]", above) for i, item in enumerate(items)]
        return done if isinstance(value, list) else tuple(done)
    entries = _entries(value)
    if entries is None:
        return value
    return {
        key: _plain(item, _joined(path, key), above)
        for key, item in entries
        if not str(key).startswith("__")
    }


def missing_paths(value: object, prefix: str = "") -> list[str]:
    """Return the paths of all values that are `dataclasses.MISSING`, in order of appearance."""
    return list(_missing(value, prefix, ()))


def _missing(value: object, path: str, above: tuple[int, ...]) -> Iterator[str]:
    if value is MISSING:
        yield path
        return
    if isinstance(value, str | bytes | Tensor | Enum) or callable(value) or id(value) in above:
        return
    above = (*above, id(value))
    if isinstance(value, list | tuple):
        for index, item in enumerate(cast("Sequence[object]", value)):
            yield from _missing(item, f"{path}[{index}]", above)
        return
    for key, item in _entries(value) or ():
        yield from _missing(item, _joined(path, key), above)


def with_value_at(tree: object, path: str, value: object) -> None:
    """Set the value at ``path`` below the mutable ``tree``.

    The last key of a mapping may be new; everything before it must be there.

    Raises:
        ConfigurationTypeError: No such place.
    """
    steps = [int(index) if index else name for index, name in _STEP.findall(path)]
    place: Any = tree
    for step in steps[:-1]:
        place = _step_into(place, step, path)
    last = steps[-1]
    if isinstance(place, dict):
        place[last] = value
    elif isinstance(place, list) and isinstance(last, int):
        if last >= len(cast("list[object]", place)):
            raise _no_place(path, last)
        place[last] = value
    elif _has_field(cast("object", place), last):
        setattr(cast("object", place), str(last), value)
    else:
        raise _no_place(path, last)


def _step_into(place: Any, step: str | int, path: str) -> Any:
    try:
        if isinstance(place, Mapping | list | tuple):
            return cast("Any", place)[step]
        return getattr(place, str(step))
    except (LookupError, AttributeError, TypeError) as error:
        raise _no_place(path, step) from error


def _has_field(place: object, name: str | int) -> bool:
    return is_dataclass(place) and name in {field.name for field in fields(place)}


def _no_place(path: str, step: str | int) -> ConfigurationTypeError:
    return ConfigurationTypeError(
        f"replace: expected the path of an existing value, got {path!r}, which has no {step!r}; "
        "check the names along it."
    )


def deep_copied(value: object) -> Any:
    """Return a copy that shares nothing mutable; `MISSING` and callables stay what they are.

    A number of NumPy becomes a plain one.
    """
    if isinstance(value, np.number | np.bool_):
        return cast("Any", value).item()
    if value is MISSING or callable(value):
        return value
    return copy.deepcopy(value, {id(MISSING): MISSING})


def _entries(value: object) -> list[tuple[Any, object]] | None:
    """Return names and values inside ``value``, None if it has none."""
    if isinstance(value, Mapping):
        return list(cast("Mapping[Any, object]", value).items())
    if is_dataclass(value):
        return [(field.name, getattr(value, field.name)) for field in fields(value)]
    inside = getattr(value, "__dict__", None)
    return None if inside is None else list(cast("dict[str, object]", inside).items())


def _joined(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _import_string(value: Any) -> str:
    name = str(getattr(value, "__qualname__", type(value).__qualname__))
    if "<lambda>" in name:
        try:
            return inspect.getsource(value).strip()
        except OSError:  # typed at a prompt: there is no file
            return f"{value.__module__}:{name}"
    return f"{value.__module__}:{name}"
