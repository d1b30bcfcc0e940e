"""Where drawn chunks are copied to, and on which device they end up.

Axes:  n = chunks, c = steps of a chunk.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from cadenza.core.errors import InputError
from cadenza.stream.chunk_batch import flat_tensors, tensordict_class
from cadenza.stream.chunk_keys import allocate_chunks, chunk_fields
from cadenza.stream.draw_options import DrawOptions
from cadenza.stream.layout import StoreLayout

if TYPE_CHECKING:
    from tensordict import TensorDict


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
        InputError: ``out`` is no batch, has another shape or no key, or lacks a selected one, or
            ``valid`` when the draw may pad.
    """
    if out is None:
        return allocate_chunks(chunk_fields(layout, select, masked=options.may_mask), *size)
    if not isinstance(out, tensordict_class()):
        raise InputError(
            f"sample_batch: expected out to be a TensorDict, got {type(cast('object', out))}."
        )
    if tuple(out.batch_size) != size:
        raise InputError(
            f"sample_batch: expected out of shape {size}, got {tuple(out.batch_size)}."
        )
    found = flat_tensors(out)
    if not found:
        raise InputError("sample_batch: expected out with keys, got an empty one.")
    # A batch that says nothing of its padding would be trained on as it stands.
    names = list(found) if select is None else select
    wanted = list(chunk_fields(layout, names, masked=options.may_mask))
    missing = sorted(set(wanted) - set(found))
    if missing:
        raise InputError(f"sample_batch: expected the selected keys in out, it lacks {missing}.")
    return {name: found[name] for name in wanted}


def moved_batch(
    batch: "TensorDict", device: torch.device, out: "TensorDict | None"
) -> "TensorDict":
    """Return ``batch`` on ``device``, in the tensors of ``out`` if there is one."""
    if out is not None:
        return cast("Any", out).update_(batch)
    return batch if device.type == "cpu" else cast("Any", batch).to(device)
