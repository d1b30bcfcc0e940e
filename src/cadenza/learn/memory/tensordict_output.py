"""Batches as `tensordict.TensorDict`, which is an optional package."""

from collections.abc import Mapping
from typing import Any, cast

from cadenza.core.extras import load_extra
from cadenza.learn.memory.core_types import SampleResult


def tensordict_class() -> Any:
    """Return the class `tensordict.TensorDict`.

    Raises:
        MissingExtraError: The package is not installed.
    """
    return load_extra("tensordict").TensorDict


def as_tensordict(kind: Any, result: SampleResult, batch: int) -> Any:
    """Return ``result`` with batch size [B], or [] if some values are not one per row."""
    return kind(result, batch_size=[batch] if _all_of_length(result, batch) else [])


def _all_of_length(result: Mapping[str, Any], batch: int) -> bool:
    return all(
        _all_of_length(cast("dict[str, Any]", value), batch)
        if isinstance(value, dict)
        else len(value) == batch
        for value in result.values()
    )
