"""Processes: who a number belongs to, which rank of a training one is, and how producers begin.

Numbers come again, the moment of their start does not.
Producers come from Python's fork server, see `cadenza.core.fork_server`.
"""

import multiprocessing
import os
import sys
from multiprocessing import process
from pathlib import Path
from typing import Final, NamedTuple

from torch import distributed

from cadenza.core.errors import ConfigurationError
from cadenza.core.seeding import Substream, derive_substream

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
    """Refuse to start processes that could not import the program's main module.

    That is one that comes from standard input or is gone, or that this process still imports: a
    producer tells its owner of that by its exit code, because it cannot report yet.

    Raises:
        ConfigurationError: There is no file of the module, or it starts an engine at import, in
            another process than a producer's.
    """
    main = sys.modules["__main__"]
    script = getattr(main, "__file__", None)  # none at a prompt, where nothing is imported
    place = Path(getattr(process, "ORIGINAL_DIR", None) or "", script or "")
    if script is not None and getattr(main, "__spec__", None) is None and not place.is_file():
        raise ConfigurationError(
            f"OnlineDataEngine.start: expected the program in a file, which producers import, got "
            f"{script!r}; save the script and run it as `python FILE`."
        )
    mine = multiprocessing.current_process()
    if not getattr(mine, "_inheriting", False):  # as multiprocessing itself finds out
        return
    if mine.name.startswith(PRODUCER_NAME):
        os._exit(UNGUARDED_EXIT)
    raise ConfigurationError(f"OnlineDataEngine.start: expected to run once, got: {UNGUARDED}.")


class Rank(NamedTuple):
    """Which of how many processes of a distributed training this is."""

    number: int = 0
    world: int = 1

    @classmethod
    def here(cls, otherwise: "Rank") -> "Rank":
        """Return what `torch.distributed` says, or RANK and WORLD_SIZE, or else ``otherwise``.

        Raises:
            ConfigurationError: The variables are no numbers.
        """
        if distributed.is_available() and distributed.is_initialized():
            return cls(distributed.get_rank(), distributed.get_world_size())
        told = {name: os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE")}
        if not any(told.values()):
            return otherwise
        try:
            return cls(int(told["RANK"] or 0), int(told["WORLD_SIZE"] or 1))
        except ValueError as error:
            raise ConfigurationError(
                f"stream: expected numbers in the variables RANK and WORLD_SIZE, got {told}; set "
                "or unset both."
            ) from error

    def stream(self, name: str, seed: int) -> Substream:
        """Return the random stream of this rank; a single process has the seed's own."""
        if self == ALONE:
            return derive_substream(name, root_seed=seed)
        root = derive_substream(f"{name}.rank", root_seed=seed)
        return root.child(self.world).child(self.number)


#: The only process of a training.
ALONE: Final = Rank()
