"""Array types of the package, and checks on arrays at public boundaries.

Each check names the array, what was expected and what came, and returns nothing: a caller writes
one line per argument and reads on.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cadenza.core.errors import InputError, NonFiniteError, refuse

#: Quantities in SI units.
FloatArray: TypeAlias = NDArray[np.float64]
#: Network inputs and outputs.
Float32Array: TypeAlias = NDArray[np.float32]

#: Part of an observation, or of an info, that tells legal actions: 1 for each that is, else 0.
MASK: Final = "action_mask"


class Shaped(Protocol):
    """An array of NumPy or a tensor of torch."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of its axes."""
        ...


def require_shape(name: str, array: Shaped, shape: tuple[int | str, ...], do: str = "") -> None:
    """Raise unless ``array`` has ``shape``; ``name`` is how the message calls it.

    An axis that is a name, such as ``"rows"``, may have any size. ``do`` ends the message.

    Raises:
        InputError: The shapes differ.
    """
    found = tuple(array.shape)
    if found == shape:
        return
    pairs = zip(shape, found, strict=False)
    if len(found) != len(shape) or any(isinstance(a, int) and a != b for a, b in pairs):
        told = str(shape).replace("'", "")
        refuse(InputError, name, expected=f"shape {told}", got=found, do=do)


def require_finite(name: str, array: NDArray[Any]) -> None:
    """Raise if ``array``, of any shape, holds NaN or infinity; ``name`` is for the message.

    Raises:
        InputError: At least one entry is not finite; the message gives the first index.
    """
    # A finite sum of squares proves finite entries in one pass that raises no floating-point
    # warning; only overflow needs the slow look.
    if math.isfinite(float(np.vdot(array, array))):
        return
    finite = np.isfinite(array)
    if finite.all():
        return
    first = tuple(int(i) for i in np.argwhere(~finite)[0])
    raise NonFiniteError(
        f"{name}: expected finite numbers, got {array[first]} at index {first} "
        f"({int(finite.size - finite.sum())} of {finite.size} entries are not finite)."
    )


def legal_choices(name: str, mask: Any, rows: int, size: int) -> NDArray[np.bool_]:
    """Return what ``mask`` allows, (rows, size); ``name`` is for the message.

    Raises:
        InputError: It is of another size, or has other numbers than 0 and 1.
    """
    values = np.asarray(mask)
    if values.size != rows * size:
        several = f" for each of {rows} observations" if rows > 1 else ""
        expected = f"an {MASK} of {size} numbers{several}"
        refuse(InputError, name, expected=expected, got=f"one of shape {values.shape}")
    values = values.reshape(rows, size)
    legal = values == 1
    wrong = values[~legal & (values != 0)]
    if wrong.size:
        expected, advice = f"an {MASK} of zeros and ones", "write 1 for each legal action"
        refuse(InputError, name, expected=expected, got=f"{wrong[0]} in one", do=advice)
    return legal


def require_legal(name: str, legal: NDArray[np.bool_], counts: Sequence[int]) -> None:
    """Raise unless each row, (N, sum of ``counts``), allows something in every choice.

    Raises:
        InputError: A row does not.
    """
    firsts = [0, *np.cumsum(counts)[:-1].tolist()]
    some = np.logical_or.reduceat(legal, firsts, axis=1).all(axis=1)
    if not some.all():
        expected = f"an {MASK} with at least one legal action of every choice"
        got = str(legal[~some][0].astype(int).tolist())
        advice = "end the episode where there is none, or correct the mask"
        refuse(InputError, name, expected=expected, got=got, do=advice)


#: Rows of a policy's matrix products: below 16, torch's results depend on how many there are.
BLOCK_ROWS: Final = 64


def in_blocks(
    function: Callable[[NDArray[Any]], NDArray[Any]], rows: NDArray[Any], size: int = BLOCK_ROWS
) -> NDArray[Any]:
    """Return ``function(rows)`` computed on blocks of ``size`` rows, the last padded with zeros.

    Libraries compute a product of few rows in another order than one of many, so that a row's last
    bits depend on how many others there are. In blocks of one size they do not.
    """
    padded = np.zeros((-(-len(rows) // size) * size, *rows.shape[1:]), dtype=rows.dtype)
    padded[: len(rows)] = rows
    parts = [function(padded[k : k + size]) for k in range(0, len(padded), size)]
    return np.concatenate(parts)[: len(rows)]
