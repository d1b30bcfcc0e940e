"""Spaces as JSON values, and observations of them as rows, for policies without an environment.

Axes:  N = observations, O = flat observation.
"""

import math
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from cadenza.core.errors import InputError


def space_facts(space: Any) -> dict[str, Any]:
    """Return kind, shape and dtype of a space as JSON values; bounds do not change a policy.

    ``discrete`` has n and start, ``multi_discrete`` its counts, ``dict`` and ``tuple`` their parts
    with names, in the order in which they are flattened.
    """
    told: Any = space
    if isinstance(space, spaces.Dict | spaces.Tuple):
        is_dict = isinstance(space, spaces.Dict)
        parts: Any = told.spaces.items() if is_dict else enumerate(told.spaces)
        named = [[name, space_facts(part)] for name, part in parts]
        return {"kind": "dict" if is_dict else "tuple", "parts": named}
    if isinstance(space, spaces.Discrete):
        return {"kind": "discrete", "n": int(told.n), "start": int(told.start)}
    array = {"shape": [int(size) for size in told.shape], "dtype": str(told.dtype)}
    if isinstance(space, spaces.MultiDiscrete):
        lists = {"counts": told.nvec, "start": told.start}
        flat = {name: np.asarray(values).reshape(-1).tolist() for name, values in lists.items()}
        return {"kind": "multi_discrete", **flat, **array}
    return {"kind": "multi_binary" if isinstance(space, spaces.MultiBinary) else "box", **array}


def flat_width(facts: Mapping[str, Any]) -> int:
    """Return O of the space that `space_facts` described."""
    if "parts" in facts:
        return sum(flat_width(part) for _, part in facts["parts"])
    return sum(choice_counts(facts)) or math.prod(facts["shape"])


def choice_counts(facts: Mapping[str, Any]) -> list[int]:
    """Return how many choices there are in each place; none where observations are numbers."""
    return [facts["n"]] if facts["kind"] == "discrete" else facts.get("counts", [])


def is_single(observation: Any, facts: Mapping[str, Any]) -> bool:
    """Return whether there is one observation, without an axis N."""
    while "parts" in facts:
        name, facts = facts["parts"][0]
        try:
            observation = observation[name]
        except (KeyError, IndexError, TypeError):
            return False  # `flat_rows` says what is wrong
    return np.ndim(observation) == len(facts.get("shape", ()))


def with_axis(observation: Any) -> Any:
    """Return one observation with an axis N."""
    parts = observation
    if isinstance(observation, Mapping | tuple):
        named = parts.items() if isinstance(observation, Mapping) else enumerate(parts)
        return {name: with_axis(part) for name, part in named}
    return np.asarray(observation)[None]


def flat_rows(observations: Any, facts: Mapping[str, Any]) -> NDArray[Any]:
    """Return observations, N of them, as rows (N, O), one-hot where they are choices.

    Raises:
        InputError: They are of another kind or size.
    """
    width = flat_width(facts)
    try:
        rows = _rows_of(observations, facts)
        if rows.shape[1] == width:
            return rows
        told, cause = f"observations of {width} numbers, got {rows.shape[1]}", None
        advice = "; it was trained on another task"
    except (KeyError, IndexError, TypeError, ValueError) as error:
        told, cause = f"observations of {dict(facts)}, N of them, got others: {error}", error
        advice = ""
    if is_single(observations, facts):
        told = f"a row for each observation, (N, {width}), got one observation alone"
        advice = "; write predict(observation) for one"
    raise InputError(f"policy: expected {told.rstrip('.')}{advice}.") from cause


def _rows_of(observations: Any, facts: Mapping[str, Any]) -> NDArray[Any]:
    """Return rows of one part, or of several side by side."""
    if isinstance(observations, Mapping | tuple):
        named = cast("Any", observations)
        parts = [_rows_of(named[name], part) for name, part in facts["parts"]]
        return np.concatenate(parts, axis=1)
    values = np.asarray(observations)
    rows = values.reshape(len(values), -1)
    counts = choice_counts(facts)
    if not counts or (rows.shape[1] == sum(counts) and values.dtype.kind == "f"):
        return rows  # numbers, or choices that are one-hot already
    choices = zip(counts, (rows - np.reshape(facts["start"], -1)).T, strict=True)
    return np.concatenate([np.eye(n, dtype=np.float32)[column] for n, column in choices], 1)
