"""Names of agent pairs, numbers stored per pair, and their JSON form.

A pair of agents is the tuple of their two ids in plain string order, so every module that stores a
number per pair agrees on the key whatever order it met the agents in.

JSON forms of a `LambdaDict`:
    version 3: ``[{"a": id, "b": id, "value": number}, ...]``, written today; order is free.
    version 2: flat list of n(n-1)/2 numbers in `make_pair_keys` order; read only, with ``uids``.
"""

import itertools
import math
import warnings
from collections.abc import Iterable
from typing import Any, TypeAlias, cast

from cadenza.core.checks import is_real, real_number
from cadenza.core.errors import InputError

#: One number per agent pair; keys are in canonical order.
LambdaDict: TypeAlias = dict[tuple[str, str], float]


def canonical_pair_order(uids: Iterable[str]) -> list[str]:
    """Return the agent ids in string order.

    Raises:
        InputError: An id occurs twice.
    """
    ordered = sorted(uids)
    for first, second in itertools.pairwise(ordered):
        if first == second:
            raise InputError(f"agent ids: expected distinct ids, got the duplicate {first!r}.")
    return ordered


def canonical_pair_key(a: str, b: str) -> tuple[str, str]:
    """Return the pair of ``a`` and ``b`` in string order.

    Raises:
        InputError: Both are the same agent.
    """
    if a == b:
        raise InputError(f"agent pair: expected two distinct UIDs, got {a!r} twice.")
    return (a, b) if a < b else (b, a)


def make_pair_keys(uids: Iterable[str]) -> list[tuple[str, str]]:
    """Return every pair of ``uids``: n(n-1)/2 keys, outer id first, then inner.

    Raises:
        InputError: An id occurs twice.
    """
    ordered = canonical_pair_order(uids)
    return [(a, b) for i, a in enumerate(ordered) for b in ordered[i + 1 :]]


def make_ego_pair_keys(ego_uid: str, uids: Iterable[str]) -> list[tuple[str, str]]:
    """Return the pairs that contain the ego, in the string order of the other agent.

    Args:
        ego_uid: The agent whose action the filter decides.
        uids: All agents; the ego may be among them.

    Raises:
        InputError: An id occurs twice.
    """
    others = [uid for uid in canonical_pair_order(uids) if uid != ego_uid]
    return [canonical_pair_key(ego_uid, other) for other in others]


def make_lambda_dict(uids: Iterable[str], *, fill: float = 0.0) -> LambdaDict:
    """Return ``fill`` for every pair of ``uids``.

    Raises:
        InputError: An id occurs twice, or ``fill`` is not a finite number.
    """
    if not (is_real(fill) and math.isfinite(fill)):
        raise InputError(f"lambda values: fill: expected a finite number, got {fill!r}.")
    return dict.fromkeys(make_pair_keys(uids), float(fill))


def lambda_to_jsonable(d: LambdaDict) -> list[dict[str, Any]]:
    """Return the version 3 JSON form, sorted by pair.

    Keys stored in the other order are written in canonical order.

    Raises:
        InputError: Two keys name the same pair, or a value is not finite.
    """
    canonical: LambdaDict = {}
    for (a, b), value in d.items():
        _store(canonical, a, b, value)
    return [{"a": a, "b": b, "value": value} for (a, b), value in sorted(canonical.items())]


def lambda_from_jsonable(payload: object, *, uids: Iterable[str] | None = None) -> LambdaDict:
    """Return the numbers that `lambda_to_jsonable`, or its flat predecessor, wrote.

    Args:
        payload: Decoded JSON: version 3 (list of objects) or version 2 (list of numbers). An
            empty list is the empty version 3 form unless ``uids`` asks for pairs.
        uids: Agents of a version 2 list; not needed for version 3.

    Returns:
        A fresh dictionary with canonical keys.

    Raises:
        TypeError: Not a list, an entry that is neither an object nor a number, entries of mixed
            kinds, or version 2 without ``uids``.
        InputError: A pair of one agent, a pair given twice, a missing field, a wrong count, or
            a value that is not a finite number.
    """
    if not isinstance(payload, list):
        raise TypeError(f"lambda payload: expected list, got {type(payload).__name__}.")
    entries = cast("list[object]", payload)
    if entries and isinstance(entries[0], dict):
        return _read_version_3(entries)
    keys = None if uids is None else make_pair_keys(uids)
    if not entries and not keys:
        return {}
    return _read_version_2(entries, keys)


def _read_version_3(entries: list[object]) -> LambdaDict:
    result: LambdaDict = {}
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise TypeError(
                f"lambda payload[{index}]: expected an object with a, b and value, "
                f"got {type(entry).__name__}."
            )
        fields = cast("dict[str, Any]", entry)
        missing = sorted({"a", "b", "value"} - fields.keys())
        if missing:
            raise InputError(f"lambda payload[{index}]: expected a, b and value, missing {missing}")
        a, b = fields["a"], fields["b"]
        if not (isinstance(a, str) and isinstance(b, str)):
            raise TypeError(
                f"lambda payload[{index}]: expected agent ids as text, got {a!r}, {b!r}."
            )
        _store(result, a, b, fields["value"])
    return result


def _read_version_2(entries: list[object], keys: list[tuple[str, str]] | None) -> LambdaDict:
    for index, entry in enumerate(entries):
        if not is_real(entry):
            raise TypeError(
                f"lambda payload[{index}]: expected a number like the entries before it, "
                f"got {type(entry).__name__}."
            )
    if keys is None:
        raise TypeError("lambda payload: a flat list of numbers needs uids to name its pairs.")
    if len(entries) != len(keys):
        raise InputError(
            f"lambda payload: expected the canonical pair count {len(keys)} of the given uids, "
            f"got {len(entries)} numbers."
        )
    result: LambdaDict = {}
    for (a, b), value in zip(keys, entries, strict=True):
        _store(result, a, b, value)
    warnings.warn(
        "lambda payload: flat version 2 lists will no longer be read from 0.6.0; "
        "write them again with lambda_to_jsonable.",
        DeprecationWarning,
        stacklevel=3,
    )
    return result


def _store(target: LambdaDict, a: str, b: str, value: object) -> None:
    """Put one number under its canonical key, or raise."""
    key = canonical_pair_key(a, b)
    if key in target:
        raise InputError(f"lambda values: expected each pair once, got the duplicate {key}.")
    number = real_number(f"lambda value of {key}", value)
    if not math.isfinite(number):
        raise InputError(f"lambda value of {key}: expected a finite number, got {number}.")
    target[key] = number
