"""Marking functions that should no longer be called."""

import functools
import threading
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

P = ParamSpec("P")
R = TypeVar("R")


@overload
def deprecated(original_function: Callable[P, R]) -> Callable[P, R]: ...


@overload
def deprecated(
    original_function: None = None,
    *,
    reason: str = "",
    max_warn_count: int = 10,
    version: str | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def deprecated(
    original_function: Callable[..., Any] | None = None,
    *,
    reason: str = "",
    max_warn_count: int = 10,
    version: str | None = None,
) -> Callable[..., Any]:
    """Let calls of a function warn; usable as ``@deprecated`` and ``@deprecated(reason=...)``.

    Args:
        original_function: The function; passed by the decorator syntax.
        reason: What to do instead.
        max_warn_count: How many calls of the function warn; later ones are silent.
        version: Since when it is deprecated.

    Returns:
        The function, warning with `DeprecationWarning` at the caller's line.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        message = f"Call to deprecated function '{function.__qualname__}'"
        message += f": {reason}" if reason else ""
        message += f" -- deprecated since version {version}." if version else "."
        lock = threading.Lock()
        calls = 0

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            with lock:
                calls += 1
                warns = calls <= max_warn_count
            if warns:
                warnings.warn(message, DeprecationWarning, stacklevel=2)
            return function(*args, **kwargs)

        return call

    return decorate if original_function is None else decorate(original_function)
