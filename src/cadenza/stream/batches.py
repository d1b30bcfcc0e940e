"""Drawn chunks as `TensorDict`s: where they are copied to, how names nest, where they end up.

Axes:  n = chunks, c = steps of a chunk.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from cadenza.core.errors import InputError, MissingExtraError
from cadenza.stream.chunk_keys import allocate_chunks, chunk_fields
from cadenza.stream.draw_options import DrawOptions
from cadenza.stream.layout import StoreLayout

if TYPE_CHECKING:
    from tensordict import TensorDict


def tensordict_type() -> "type[TensorDict]":
    """Return `tensordict.TensorDict`.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        from tensordict import TensorDict
    except ImportError as error:
        raise MissingExtraError(
            "OnlineDataEngine: expected tensordict to be installed, got none; run pip install "
            "'cadenza[stream]'."
        ) from error
    return TensorDict


def chunk_targets(
    layout: StoreLayout,
    size: tuple[int, int],
    options: DrawOptions,
    select: Sequence[str] | None,
    out: "TensorDict | None",
) -> dict[str, Tensor]:
    """Return the tensors to copy chunks into, by dotted name.

    Args:
        layout: Layout of the store.
        size: (n, c).
        options: Distribution of the chunks.
        select: Keys; None for all, or for those of ``out``.
        out: Batch whose tensors to use; None makes new ones.

    Raises:
        InputError: ``out`` has another shape, or lacks a selected key.
    """
    if out is None:
        return allocate_chunks(chunk_fields(layout, select, masked=options.may_mask), *size)
    if tuple(out.batch_size) != size:
        raise InputError(
            f"sample_batch: expected out of shape {size}, got {tuple(out.batch_size)}."
        )
    found = dotted_tensors(out)
    if select is None:
        return found
    wanted = chunk_fields(layout, select)
    missing = sorted(set(wanted) - set(found))
    if missing:
        raise InputError(f"sample_batch: expected the selected keys in out, it lacks {missing}.")
    return {name: found[name] for name in wanted}


def dotted_tensors(batch: "TensorDict") -> dict[str, Tensor]:
    """Return the tensors of a batch by dotted name."""
    entries = cast("Any", batch).items(include_nested=True, leaves_only=True)
    return {key if isinstance(key, str) else ".".join(key): tensor for key, tensor in entries}


def nested_batch(arrays: Mapping[str, Tensor], size: tuple[int, int]) -> "TensorDict":
    """Return a batch whose dotted names are paths."""
    tree: dict[str, Any] = {}
    for name, array in arrays.items():
        *above, last = name.split(".")
        place = tree
        for part in above:
            place = place.setdefault(part, {})
        place[last] = array
    return tensordict_type()(tree, batch_size=size)


def moved_batch(
    batch: "TensorDict", device: torch.device, out: "TensorDict | None"
) -> "TensorDict":
    """Return ``batch`` on ``device``, in the tensors of ``out`` if there is one."""
    if out is not None:
        return cast("Any", out).update_(batch)
    return batch if device.type == "cpu" else cast("Any", batch).to(device)
