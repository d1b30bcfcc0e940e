"""Long calls end on SIGTERM and SIGHUP as on Ctrl-C: what is kept on the way out is kept."""

import functools
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Final, ParamSpec, TypeVar

_SIGNALS: Final = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)
)
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@contextmanager
def ending_on_signals() -> Generator[None]:
    """Let SIGTERM and SIGHUP raise `SystemExit` in the body, with the status shells give them.

    A signal that the program handles or ignores (``nohup``) is left to it, and so are all outside
    the main thread.
    """
    taken = [
        number
        for number in _SIGNALS
        if threading.current_thread() is threading.main_thread()
        and signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in taken:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def ends_on_signals(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Return ``function`` within `ending_on_signals`."""

    @functools.wraps(function)
    def ending(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with ending_on_signals():
            return function(*args, **kwargs)

    return ending


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
