"""Blank observation channels without changing their structure."""

import sys
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from cadenza.envs.errors import ChamberEnvCompatibilityError


def zeroed(name: str, value: Any) -> Any:
    """Return ``value`` with every number replaced by zero.

    Args:
        name: How the message calls the value.
        value: Array, tensor, number, or a mapping, list or tuple of these, nested to any depth.

    Returns:
        Same structure, container types, shapes, dtypes and devices.

    Raises:
        ChamberEnvCompatibilityError: A leaf is no number: passing it on would leak what was to be
            hidden.
    """
    if isinstance(value, np.ndarray):
        return np.zeros_like(cast("np.ndarray[Any, Any]", value))
    if isinstance(value, Mapping):
        mapping = cast("Mapping[str, Any]", value)
        return {key: zeroed(f"{name}.{key}", entry) for key, entry in mapping.items()}
    if isinstance(value, list | tuple):
        entries = cast("list[Any] | tuple[Any, ...]", value)
        blank = [zeroed(f"{name}[{k}]", entry) for k, entry in enumerate(entries)]
        return blank if isinstance(entries, list) else tuple(blank)
    if isinstance(value, bool | int | float | np.number | np.bool_):
        number = cast("Any", value)
        return type(number)(0)
    torch = sys.modules.get("torch")  # a tensor can only exist if somebody imported torch
    if torch is not None and isinstance(value, torch.Tensor):
        return torch.zeros_like(value)
    raise ChamberEnvCompatibilityError(
        f"{name}: expected arrays, tensors or numbers to blank, got {type(value).__name__}; "
        "keep this channel or remove it from the observation."
    )
