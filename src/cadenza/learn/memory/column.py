"""What a table stores per step: the name, shape and type of each column."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch

from cadenza.core.errors import InputError
from cadenza.learn.memory.storage import VirtualStorage


def numpy_dtype(dtype: Any, *, name: str = "dtype") -> np.dtype[Any]:
    """Return ``dtype``, of numpy, torch or Python, as a numpy dtype.

    Raises:
        InputError: No fixed-size type of numbers or booleans.
    """
    try:
        if isinstance(dtype, torch.dtype):
            return np.dtype(torch.empty(0, dtype=dtype).numpy().dtype)
        found = np.dtype(dtype)
    except TypeError as error:
        raise InputError(
            f"{name}: expected a numpy or torch type of numbers, got {dtype!r}; choose one that "
            "both libraries know, e.g. numpy.float32."
        ) from error
    if found.kind not in "biufc":
        raise InputError(
            f"{name}: expected a type of numbers or booleans, got {found}; encode other values "
            "as numbers."
        )
    return found


@dataclass
class Column:
    """Real data: one array per episode.

    Attributes:
        name: Key in added sequences and sampled batches.
        shape: Shape of one step; ``()`` is a number.
        dtype: numpy scalar type, ``np.dtype``, torch dtype or ``bool``.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Any

    def state(self) -> dict[str, Any]:
        """Return shape and type as JSON values."""
        dtype = numpy_dtype(self.dtype, name=f"column {self.name!r}")
        return {"shape": list(self.shape), "dtype": dtype.name}

    def load_state(self, config: Mapping[str, Any]) -> None:
        """Take shape and type from what `state` gave.

        Raises:
            InputError: A field is missing or malformed; nothing has changed then.
        """
        shape, dtype = _read_config(self.name, config)
        self.shape, self.dtype = shape, dtype


@dataclass
class TagColumn(Column):
    """One value per episode; of several values in a sequence the first counts."""


@dataclass
class VirtualColumn(Column):
    """Data made while sampling from the column ``target_name``, which is declared before it.

    Attributes:
        target_name: Column that the values come from.
        mapper: Makes the values; a `VirtualStorage` class or another callable
            ``(storage, shape, dtype)`` that returns one.
    """

    target_name: str
    mapper: type[VirtualStorage]

    def state(self) -> dict[str, Any]:
        """Return shape, type and target as JSON values."""
        return {**super().state(), "target_name": self.target_name}

    def load_state(self, config: Mapping[str, Any]) -> None:
        """Take shape, type and target from what `state` gave.

        Raises:
            InputError: A field is missing or malformed; nothing has changed then.
        """
        target = config.get("target_name")
        if not isinstance(target, str):
            raise InputError(
                f"column {self.name!r}: expected a target_name, got {target!r} in {config!r}."
            )
        super().load_state(config)
        self.target_name = target


def _read_config(name: str, config: Mapping[str, Any]) -> tuple[tuple[int, ...], Any]:
    """Return shape and dtype of a column's state."""
    shape, dtype_name = config.get("shape"), config.get("dtype")
    sizes = cast("list[object]", shape) if isinstance(shape, list | tuple) else [None]
    if not all(isinstance(size, int) and size >= 0 for size in sizes):
        raise InputError(
            f"column {name!r}: expected a shape of integers >= 0, got {shape!r} in {config!r}."
        )
    if not isinstance(dtype_name, str):
        raise InputError(
            f"column {name!r}: expected the name of a dtype, got {dtype_name!r} in {config!r}."
        )
    dtype = numpy_dtype(dtype_name, name=f"column {name!r}")
    kept = bool if dtype == np.bool_ else dtype.type
    return tuple(int(cast("int", size)) for size in sizes), kept
