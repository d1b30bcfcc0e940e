"""Nested tensors and plain values as bytes, and back, without running code from the file.

Promise:  equal values give equal bytes (for one torch version), whatever objects hold them: shared
          storages, tied parameters, views and equal strings are written as independent values.
Limits:   tensors come back on the CPU, dense, contiguous and without gradient history; mappings
          come back as `dict`.
"""

import io
import pickle
import struct
import sys
import zipfile
from collections.abc import Mapping
from typing import Any, Final, cast

import torch

from cadenza.core.errors import CheckpointError

#: What torch raises on archives that are foreign, hostile or damaged.
_LOAD_ERRORS: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    pickle.UnpicklingError,
    struct.error,
)


def serialise(state: Mapping[str, Any]) -> bytes:
    """Return tensors, plain values, and lists, tuples and mappings of them as a torch archive.

    Raises:
        CheckpointError: A value is of another type, so it could not be loaded again.
    """
    buffer = io.BytesIO()
    torch.save(_Canonical().value(state, "state"), buffer)
    return buffer.getvalue()


def deserialise(data: bytes, *, max_bytes: int) -> dict[str, Any]:
    """Return the mapping that `serialise`, or any torch 1.6 or later, wrote.

    Raises:
        CheckpointError: Not such an archive, larger than ``max_bytes`` unpacked, not a mapping, or
            holding types other than tensors and plain values.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, ValueError, struct.error) as error:
        raise CheckpointError(
            f"expected a torch archive, got {len(data)} bytes that are none ({error}); "
            "save it again with save_checkpoint."
        ) from error
    if unpacked > max_bytes:
        raise CheckpointError(
            f"expected an archive of at most {max_bytes} bytes unpacked, got {unpacked}; "
            "raise max_bytes if you trust the file."
        )
    try:
        state: object = torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except _LOAD_ERRORS as error:
        raise CheckpointError(
            f"expected tensors and plain values, got an archive torch refuses ({_reason(error)}); "
            "save it again with save_checkpoint."
        ) from error
    if not isinstance(state, dict):
        raise CheckpointError(
            f"expected a mapping of names to values, got {type(state).__name__}; "
            "save it again with save_checkpoint."
        )
    return cast("dict[str, Any]", state)


def _reason(error: Exception) -> str:
    """Return the line of torch's message that says what is wrong, without its advice."""
    lines = str(error).splitlines() or [type(error).__name__]
    reasons = [line for line in lines if "WeightsUnpickler error" in line]
    return (reasons or lines)[0].partition(" Please")[0].strip()


class _Canonical:
    """Copies a state so that no two of its parts are the same object by accident.

    The archive writes an object it meets again as a reference. Which objects are shared depends on
    how the state came about (fresh or loaded), so without this copy equal states would differ.
    """

    def __init__(self) -> None:
        self._storages: set[int] = set()

    def value(self, value: object, place: str) -> object:
        """Return the canonical copy of ``value``; ``place`` is where it stands in the state."""
        match value:
            case torch.Tensor():
                return self._tensor(value, place)
            case None | bool() | int() | float():
                return _plain_number(value)
            case str():
                return sys.intern(str(value))
            case list():
                items = cast("list[object]", value)
                return [self.value(item, f"{place}[{i}]") for i, item in enumerate(items)]
            case tuple():
                parts = cast("tuple[object, ...]", value)
                return tuple([self.value(item, f"{place}[{i}]") for i, item in enumerate(parts)])
            case Mapping():
                entries = cast("Mapping[object, object]", value)
                return {
                    self.value(key, f"key of {place}"): self.value(item, f"{place}[{key!r}]")
                    for key, item in entries.items()
                }
            case _:
                raise CheckpointError(
                    f"{place}: expected a tensor or a plain value, got "
                    f"{type(value).__module__}.{type(value).__qualname__}; convert it (arrays with "
                    "torch.from_numpy, bytes with torch.frombuffer, numpy numbers with .item())."
                )

    def _tensor(self, tensor: torch.Tensor, place: str) -> torch.Tensor:
        """Return ``tensor`` on the CPU with a storage of exactly its own size."""
        if tensor.layout is not torch.strided:
            raise CheckpointError(
                f"{place}: expected a dense tensor, got layout {tensor.layout}; use to_dense()."
            )
        dense = tensor.detach().to("cpu").contiguous()
        storage = dense.untyped_storage()
        is_whole = storage.nbytes() == dense.numel() * dense.element_size()
        if not is_whole or storage.data_ptr() in self._storages:
            dense = dense.clone()
            storage = dense.untyped_storage()
        self._storages.add(storage.data_ptr())
        return dense


def _plain_number(value: bool | int | float | None) -> bool | int | float | None:
    """Return ``value`` without a subclass, such as numpy's float64."""
    if value is None or isinstance(value, bool):
        return value
    return float(value) if isinstance(value, float) else int(value)
