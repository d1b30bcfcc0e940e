"""Tensors by dotted name as `tensordict.TensorDict`, an optional package, and back."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from cadenza.core.extras import load_extra

if TYPE_CHECKING:
    from tensordict import TensorDict


def tensordict_class() -> "type[TensorDict]":
    """Return the class `tensordict.TensorDict`.

    Raises:
        MissingExtraError: The package is not installed.
    """
    return load_extra("tensordict").TensorDict


def nested_batch(tensors: Mapping[str, Tensor], size: tuple[int, ...]) -> "TensorDict":
    """Return a batch of shape ``size``; the dots of a name are levels.

    Raises:
        MissingExtraError: tensordict is not installed.
    """
    tree: dict[str, Any] = {}
    for name, tensor in tensors.items():
        *above, last = name.split(".")
        place = tree
        for part in above:
            place = place.setdefault(part, {})
        place[last] = tensor
    return tensordict_class()(tree, batch_size=size)


def flat_tensors(batch: "TensorDict") -> dict[str, Tensor]:
    """Return the tensors of a batch by dotted name; they are the batch's own."""
    found: dict[str, Tensor] = {}
    for key, value in cast("Mapping[str, Any]", batch).items():
        if isinstance(value, type(batch)):
            found |= {f"{key}.{name}": tensor for name, tensor in flat_tensors(value).items()}
        else:
            found[key] = value
    return found
