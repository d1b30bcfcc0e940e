"""The batches of a stream: where drawn chunks are copied to, and how they get to its device.

Batches are `tensordict.TensorDict`, an optional package; the dots of a key are their levels.

Axes:  n = chunks, c = steps of a chunk.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data._utils import collate

from cadenza.core.checks import checked_names
from cadenza.core.errors import InputError, UnknownNameError
from cadenza.core.extras import load_extra
from cadenza.stream.draw_options import DrawOptions
from cadenza.stream.layout import NEXT, VIRTUAL, Field, StoreLayout

if TYPE_CHECKING:
    from tensordict import TensorDict

_CPU: Final = torch.device("cpu")


class Batches:
    """Makes the batches of one stream, or takes those that callers keep."""

    def __init__(self, layout: StoreLayout, device: torch.device = _CPU) -> None:
        """Make batches of chunks from a store with ``layout`` that lie on ``device``."""
        self._layout = layout
        self._device = device
        self._known = known_keys(layout)
        self._usual = chunk_fields(layout)

    def targets(
        self,
        size: tuple[int, int],
        options: DrawOptions,
        select: Sequence[str] | None,
        out: "TensorDict | None",
    ) -> dict[str, Tensor]:
        """Return the tensors that chunks end up in, by dotted name; their only check.

        ``select`` None takes the usual keys, or those of ``out``, whose tensors are used if it is
        given.

        Raises:
            UnknownNameError: A key is none of the store.
            InputError: ``out`` is no batch, has another shape or no key, or lacks a selected key,
                or ``valid`` when the draw may pad; or one of its tensors lies elsewhere, has
                another type or shape than the chunks, gaps, or a gradient.
        """
        if out is None:
            fields = self._usual
            if select is not None:
                fields = chunk_fields(self._layout, select, masked=options.may_mask)
            place = {} if self._device.type == _CPU.type else {"device": self._device}
            return allocate_chunks(fields, *size, **place)
        if not isinstance(out, tensordict_class()):
            raise InputError(
                f"sample_batch: expected out to be a TensorDict, got {type(cast('object', out))}."
            )
        if out.batch_size != size:
            raise InputError(
                f"sample_batch: expected out of shape {size}, got {tuple(out.batch_size)}."
            )
        found = flat_tensors(out)
        if not found:
            raise InputError("sample_batch: expected out with keys, got an empty one.")
        if select is not None or options.may_mask:
            found = self._selected(found, options, select)
        check_targets(self._known, *size, found, self._device)
        return found

    def _selected(
        self, found: dict[str, Tensor], options: DrawOptions, select: Sequence[str] | None
    ) -> dict[str, Tensor]:
        wanted = set(found if select is None else chunk_fields(self._layout, select))
        # A batch that says nothing of its padding would be trained on as it stands.
        wanted.update(["valid"] * options.may_mask)
        missing = sorted(wanted - found.keys())
        if missing:
            raise InputError(
                f"sample_batch: expected the selected keys in out, it lacks {missing}."
            )
        return {name: found[name] for name in wanted}

    def landing(self, size: tuple[int, int], targets: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return where the processor copies chunks to that end up in ``targets``.

        Those are the targets themselves where it can; for a CUDA device page-locked memory.
        """
        device = self._device.type
        if device == _CPU.type:
            return targets
        fields = chunk_fields(self._layout, list(targets))
        return allocate_chunks(fields, *size, pin_memory=device == "cuda")

    def batch(
        self,
        targets: dict[str, Tensor],
        landed: dict[str, Tensor],
        size: tuple[int, int],
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
        return batch if landed is targets else cast("Any", batch).to(self._device)


@cache
def tensordict_class() -> "type[TensorDict]":
    """Return the class `tensordict.TensorDict`, which loaders stack from now on.

    Raises:
        MissingExtraError: The package is not installed.
    """
    made = load_extra("tensordict").TensorDict
    cast("Any", collate).default_collate_fn_map.setdefault(made, _collated)  # torch's own table
    return made


def _collated(batch: "Sequence[TensorDict]", **_: Any) -> "TensorDict":
    """Stack chunks as loaders ask for it."""
    return stacked(batch)


_convert: Final[Callable[[Any], Any]] = cast("Any", collate).default_convert


def default_convert(data: Any) -> Any:
    """Convert what a loader without batches of its own gives, as torch does; batches stay as is.

    Torch takes a `TensorDict` for a dictionary, whose keys it is not made of.
    """
    return data if type(data).__module__.startswith("tensordict") else _convert(data)


# Loaders take the function from here; torch has a table for other classes in the stacking one only.
collate.default_convert = default_convert


def stacked(chunks: "Sequence[TensorDict]") -> "TensorDict":
    """Return n chunks of equal keys and shape [c] as a batch [n, c]."""
    entries = [dict(cast("Mapping[str, Any]", chunk).items()) for chunk in chunks]
    leaves = (Tensor, tensordict_class())
    if not all(each.keys() == entries[0].keys() for each in entries) or not all(
        isinstance(value, leaves) for value in entries[0].values()
    ):
        return cast("Any", torch).stack(tuple(chunks))  # which says what does not fit
    made = {
        key: (torch.stack if isinstance(value, Tensor) else stacked)([e[key] for e in entries])
        for key, value in entries[0].items()
    }
    return nested_batch(made, (len(chunks), *chunks[0].batch_size))


def single_chunks(batch: "TensorDict") -> "list[TensorDict]":
    """Return the chunks of a batch, which stay in its memory."""
    columns: dict[str, Sequence[Any]] = {
        key: value.unbind(0) if isinstance(value, Tensor) else single_chunks(value)
        for key, value in cast("Mapping[str, Any]", batch).items()
    }
    make, size = cast("Any", type(batch))._new_unsafe, batch.batch_size[1:]  # noqa: SLF001
    rows = zip(*columns.values(), strict=True)
    return [make(dict(zip(columns, row, strict=True)), batch_size=size) for row in rows]


def nested_batch(tensors: Mapping[str, Tensor], size: tuple[int, ...]) -> "TensorDict":
    """Return a batch of shape ``size``, with which the shape of every tensor begins.

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
    # Its constructor would look at every tensor once more, which costs a tenth of a whole draw.
    unchecked = cast("Any", tensordict_class())._new_unsafe  # noqa: SLF001
    return unchecked(tree, batch_size=torch.Size(size))


def flat_tensors(batch: "TensorDict") -> dict[str, Tensor]:
    """Return the tensors of a batch by dotted name; they are the batch's own."""
    found: dict[str, Tensor] = {}
    for key, value in cast("Mapping[str, Any]", batch).items():
        if isinstance(value, Tensor) or not isinstance(value, type(batch)):
            found[key] = value
        else:
            found |= {f"{key}.{name}": tensor for name, tensor in flat_tensors(value).items()}
    return found


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

    ``select`` holds keys, or beginnings of nested ones (``"obs"`` for all of ``obs.*``); None takes
    every stored field and ``valid``, which ``masked`` draws, that may pad, have in any case.

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
