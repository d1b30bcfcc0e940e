"""Batches as `tensordict.TensorDict`, which is an optional package."""

from collections.abc import Mapping
from typing import Any, cast

from cadenza.core.errors import MissingExtraError
from cadenza.learn.memory.core_types import SampleResult


def tensordict_class() -> Any:
    """Return the class `tensordict.TensorDict`.

    Raises:
        MissingExtraError: The package is not installed.
    """
    try:
        from tensordict import TensorDict
    except ImportError as error:
        raise MissingExtraError(
            "as_tensordict: expected the package tensordict, got none; install it with "
            "pip install 'cadenza[tensordict]'."
        ) from error
    return TensorDict


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
