"""Where drawn chunks are copied to, and on which device they end up.

Axes:  n = chunks, c = steps of a chunk.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import torch
from torch import Tensor

from cadenza.core.errors import InputError
from cadenza.stream.chunk_batch import flat_tensors, nested_batch, tensordict_class
from cadenza.stream.chunk_keys import (
    allocate_chunks,
    check_targets,
    chunk_fields,
    known_keys,
    torch_dtype,
)
from cadenza.stream.draw_options import DrawOptions
from cadenza.stream.layout import Field, StoreLayout

if TYPE_CHECKING:
    from tensordict import TensorDict

_CPU: Final = torch.device("cpu")


def chunk_targets(
    layout: StoreLayout,
    size: tuple[int, int],
    options: DrawOptions,
    select: Sequence[str] | None,
    out: "TensorDict | None",
    device: torch.device = _CPU,
) -> dict[str, Tensor]:
    """Return the tensors that chunks shall end up in, by dotted name.

    Args:
        layout: Layout of the store.
        size: (n, c).
        options: Distribution of the chunks.
        select: Keys; None for all, or for those of ``out``.
        out: Batch whose tensors to use; None makes new ones.
        device: Where they lie.

    Raises:
        InputError: ``out`` is no batch, has another shape or no key, lies elsewhere, or lacks a
            selected key, or ``valid`` when the draw may pad.
    """
    if out is None:
        fields = chunk_fields(layout, select, masked=options.may_mask)
        return _made(fields, size, device)
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
    wanted = set(found if select is None else chunk_fields(layout, select))
    wanted.update(["valid"] * options.may_mask)
    missing = sorted(wanted - found.keys())
    if missing:
        raise InputError(f"sample_batch: expected the selected keys in out, it lacks {missing}.")
    targets = {name: found[name] for name in wanted} if len(wanted) < len(found) else found
    _require_on(device, targets)
    return targets


def landing_buffers(
    layout: StoreLayout, size: tuple[int, int], targets: dict[str, Tensor], device: torch.device
) -> dict[str, Tensor]:
    """Return where the processor copies chunks to that shall end up in ``targets`` on ``device``.

    Those are the targets themselves where it can; for a CUDA device page-locked memory.

    Raises:
        InputError: A target has another shape or type than the chunks, gaps, or a gradient.
    """
    if device.type == _CPU.type:
        return targets
    check_targets(known_keys(layout), *size, targets)
    fields = chunk_fields(layout, list(targets))
    return allocate_chunks(fields, *size, pin_memory=device.type == "cuda")


def filled_batch(
    targets: dict[str, Tensor],
    landed: dict[str, Tensor],
    size: tuple[int, int],
    device: torch.device,
    out: "TensorDict | None",
) -> "TensorDict":
    """Return ``targets`` as a batch, ``out`` if they are its own, with what has ``landed``.

    What the caller starts on a CUDA device from now on sees the values.
    """
    if landed is not targets:
        for name, target in targets.items():
            target.copy_(landed[name], non_blocking=True)
    if out is not None:
        return out
    batch = nested_batch(targets, size)
    return batch if landed is targets else cast("Any", batch).to(device)


def _made(
    fields: Mapping[str, Field], size: tuple[int, int], device: torch.device
) -> dict[str, Tensor]:
    """Return new tensors for ``fields`` on ``device``."""
    if device.type == _CPU.type:
        return allocate_chunks(fields, *size)
    return {
        name: torch.empty((*size, *field.shape), dtype=torch_dtype(field.dtype), device=device)
        for name, field in fields.items()
    }


def _require_on(device: torch.device, targets: Mapping[str, Tensor]) -> None:
    if device.type == _CPU.type and all(target.is_cpu for target in targets.values()):
        return
    for name, target in targets.items():
        found = target.device
        is_there = found == device or (found.type == device.type and str(device) == device.type)
        if not is_there:
            raise InputError(
                f"sample_batch: expected out[{name!r}] on the device {str(device)!r}, got "
                f"{str(found)!r}; move it, or choose another buffer_device (device of a "
                "RecordedStream)."
            )
