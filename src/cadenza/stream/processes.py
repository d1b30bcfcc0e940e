"""Processes: who a number belongs to, and how those of producers begin.

Numbers come again, the moment of their start does not.

Producers come from Python's fork server, of which a program has one. Each imports the program's
main module before it does anything else; the variables of its environment are those of the moment
when the server started, until it is given others.
"""

import multiprocessing
import os
from collections.abc import Mapping
from multiprocessing import forkserver
from pathlib import Path
from typing import Final

from cadenza.core.errors import ConfigurationError

#: Names of producers' processes begin so.
PRODUCER_NAME: Final = "cadenza-producer-"
#: Exit code of a producer whose main module starts an engine when it is imported; EX_CONFIG of
#: ``sysexits.h``, which nothing else here uses.
UNGUARDED_EXIT: Final = 78
UNGUARDED: Final = (
    'the main module starts its engine without `if __name__ == "__main__":`; new processes import '
    "that module, so put the start below such a line"
)


def started_at(pid: int) -> int:
    """Return when process ``pid`` started, in clock ticks since boot; 0 when it does not run.

    A process that has ended and waits to be collected does not run.
    """
    if pid <= 0:
        return 0
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    # The name in parentheses may hold anything; the state is the first word after it.
    words = text.rpartition(")")[2].split()
    return 0 if words[0] in "ZX" else int(words[19])


def is_same_process(pid: int, start: int) -> bool:
    """Return whether the process ``pid`` that started at ``start`` still runs."""
    return start > 0 and started_at(pid) == start


def require_imported_main() -> None:
    """Refuse to start processes while this one still imports the program's main module.

    A producer tells its owner by its exit code; it cannot report yet.

    Raises:
        ConfigurationError: The module does so at import, in another process than a producer's.
    """
    process = multiprocessing.current_process()
    if not getattr(process, "_inheriting", False):  # as multiprocessing itself finds out
        return
    if process.name.startswith(PRODUCER_NAME):
        os._exit(UNGUARDED_EXIT)
    raise ConfigurationError(f"OnlineDataEngine.start: expected to run once, got: {UNGUARDED}.")


def preload(module: str) -> None:
    """Let the fork server import ``module`` besides what the program chose; a running one stays."""
    server = getattr(forkserver, "_forkserver", None)
    chosen: list[str] | None = getattr(server, "_preload_modules", None)
    if chosen is not None and module not in chosen:
        multiprocessing.get_context("forkserver").set_forkserver_preload([*chosen, module])


def set_environment(variables: Mapping[str, str]) -> None:
    """Replace the environment variables of this process."""
    os.environ.clear()
    os.environ.update(variables)
