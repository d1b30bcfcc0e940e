"""Which keys a chunk may have, and buffers for them.

Besides the stored fields there are ``next.<state field>``, the state that each step led to, and
the keys of `layout.VIRTUAL`, computed from where the chunk lies.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cadenza.core.errors import InputError, UnknownNameError
from cadenza.stream.argument_checks import checked_names
from cadenza.stream.layout import NEXT, VIRTUAL, Field, StoreLayout


def known_keys(layout: StoreLayout) -> dict[str, Field]:
    """Return every key that chunks of a store may have."""
    fields = {field.name: field for field in layout.fields}
    states = [field for field in layout.fields if field.kind == "state"]
    following = [
        Field(name=NEXT + field.name, shape=field.shape, dtype=field.dtype) for field in states
    ]
    return fields | {field.name: field for field in (*following, *VIRTUAL)}


def chunk_fields(
    layout: StoreLayout, select: Sequence[str] | None = None, *, masked: bool = False
) -> dict[str, Field]:
    """Return the fields of a chunk by name.

    Args:
        layout: Layout of the store.
        select: Keys, or beginnings of nested ones (``"obs"`` for all of ``obs.*``); None for
            every stored field and ``valid``.
        masked: Also give ``valid``, which draws that may pad need.

    Raises:
        InputError: ``select`` is empty, or no sequence of names.
        UnknownNameError: No key is called so.
    """
    padding = {field.name: field for field in VIRTUAL if field.name == "valid"}
    if select is None:
        return {field.name: field for field in layout.fields} | padding
    known = known_keys(layout)
    chosen: dict[str, Field] = {}
    for key in checked_names("select", select):
        found = {n: f for n, f in known.items() if n == key or n.startswith(key + ".")}
        if not found:
            raise UnknownNameError(f"select: expected keys among {sorted(known)}, got {key!r}.")
        chosen |= found
    return chosen | padding if masked else chosen


def allocate_chunks(fields: Mapping[str, Field], n: int, c: int, **place: Any) -> dict[str, Tensor]:
    """Return buffers for ``n`` chunks of ``c`` steps, each (n, c, ...), contents undefined.

    ``place`` tells `torch.empty` in what memory.
    """
    return {
        name: torch.empty((n, c, *field.shape), dtype=torch_dtype(field.dtype), **place)
        for name, field in fields.items()
    }


@cache
def torch_dtype(name: str) -> torch.dtype:
    """Return torch's type for a numpy type name."""
    return torch.as_tensor(np.empty(0, name)).dtype


def check_targets(
    known: Mapping[str, Field], n: int, c: int, out: Mapping[str, Tensor], device: torch.device
) -> None:
    """Refuse buffers that chunks cannot be copied into.

    Raises:
        UnknownNameError: A name is no key of the store.
        InputError: A buffer lies elsewhere, has another shape or type, gaps, or a gradient.
    """
    for name, target in out.items():
        field = known.get(name)
        if field is None:
            raise UnknownNameError(f"out: expected keys among {sorted(known)}, got {name!r}.")
        shape, dtype = (n, c, *field.shape), torch_dtype(field.dtype)
        if target.shape != shape or target.dtype != dtype or not target.is_contiguous():
            raise InputError(
                f"out[{name!r}]: expected a contiguous {dtype} tensor of shape {shape}, got "
                f"{target.dtype} of shape {tuple(target.shape)}, strides {target.stride()}."
            )
        if target.requires_grad:
            raise InputError(
                f"out[{name!r}]: expected a tensor without gradient, got one that requires it; "
                "detach it."
            )
        found = target.device
        if found != device and (found.type != device.type or str(device) != device.type):
            raise InputError(
                f"sample_batch: expected out[{name!r}] on the device {str(device)!r}, got "
                f"{str(found)!r}; move it, or choose another buffer_device (device of a "
                "RecordedStream)."
            )
