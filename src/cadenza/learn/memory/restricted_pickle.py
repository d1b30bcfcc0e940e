"""Reading old pickles of memories without running what they ask for.

Only containers, numbers, text and numpy arrays come alive. Objects of the package that wrote them
become `Inert`: dictionaries that remember class name and state, and do nothing. Any other class or
function in the pickle is refused before it is imported.
"""

import pickle
import struct
from collections import OrderedDict, defaultdict, deque
from typing import IO, Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from cadenza.core.errors import IntegrityError

#: Package whose objects become inert.
_FOREIGN: Final = "emote"
_BUILTINS: Final = (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, slice)
_CONTAINERS: Final = (OrderedDict, defaultdict, deque)
_NUMPY_MODULES: Final = ("numpy.core", "numpy._core")
_NUMPY_FUNCTIONS: Final = {
    ("multiarray", "_reconstruct"),
    ("multiarray", "scalar"),
    ("numeric", "_frombuffer"),
}
#: What unpickling raises on data that are damaged or hostile.
_ERRORS: Final = (
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)


class Inert(dict[Any, Any]):
    """An object of another package, reduced to its items and state."""

    inert_state: Any = None

    def __setstate__(self, state: Any) -> None:
        """Keep the state."""
        self.inert_state = state


def _inert_attribute(owner: object, name: str) -> type[Inert]:
    """Stand in for ``getattr``, which pickles use to name methods of classes."""
    del name
    if not (isinstance(owner, type) and issubclass(owner, Inert)):
        raise pickle.UnpicklingError(f"an attribute of {owner!r} is asked for")
    return owner


class _RestrictedUnpickler(pickle.Unpickler):
    """Knows the harmless types only."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """Return the type or function that a pickle names, if it is harmless."""
        if module_name == _FOREIGN or module_name.startswith(f"{_FOREIGN}."):
            return type(global_name, (Inert,), {})
        for known in (*_BUILTINS, *_CONTAINERS):
            if (known.__module__, known.__name__) == (module_name, global_name):
                return known
        if (module_name, global_name) == ("builtins", "getattr"):
            return _inert_attribute
        package, _, module = module_name.rpartition(".")
        if package in _NUMPY_MODULES and (module, global_name) in _NUMPY_FUNCTIONS:
            return super().find_class(f"numpy._core.{module}", global_name)
        found: Any = getattr(np, global_name, None) if module_name == "numpy" else None
        if isinstance(found, type) and issubclass(found, np.ndarray | np.dtype | np.generic):
            return cast("Any", found)
        raise pickle.UnpicklingError(f"{module_name}.{global_name} is not plain data")


def load_plain_pickle(stream: IO[bytes], *, source: str) -> dict[Any, Any]:
    """Return the dictionary that a pickle holds.

    Args:
        stream: The pickle.
        source: How messages call it.

    Raises:
        IntegrityError: It is damaged, no dictionary, or holds more than plain data.
    """
    try:
        value: object = _RestrictedUnpickler(stream).load()
    except _ERRORS as error:
        raise IntegrityError(
            f"{source}: expected a pickle of plain data, got an error: {error}."
        ) from error
    if isinstance(value, np.ndarray):
        array = cast("NDArray[Any]", value)
        value = array.item() if array.shape == () else array  # `np.save` of a dictionary
    if not isinstance(value, dict):
        raise IntegrityError(f"{source}: expected a dictionary, got {type(value).__name__}.")
    return cast("dict[Any, Any]", value)
