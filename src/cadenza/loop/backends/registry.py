"""Back ends by the name that configurations give them."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, cast, runtime_checkable

from cadenza.loop.backends.base import Backend
from cadenza.loop.config import LoopConfig
from cadenza.loop.jobs.programs import ProgramTable

#: Imported at first use: it looks for a LeRobot environment.
_LEROBOT: Final = "cadenza.loop.backends.lerobot"


@runtime_checkable
class OwnPrograms(Protocol):
    """A back end whose programs lie in an environment of their own."""

    @property
    def programs(self) -> Mapping[str, Sequence[str]]:
        """Absolute executable and first arguments by name."""
        ...


def make_backend(config: LoopConfig) -> Backend:
    """Return the back end of a run.

    Raises:
        ConfigurationError: Its settings do not fit it.
        MissingExtraError: There is no LeRobot environment.
    """
    if config.backend == "lerobot":
        return cast("Backend", importlib.import_module(_LEROBOT).LeRobotBackend(config))
    from cadenza.loop.backends.native import NativeBackend

    return NativeBackend(config)


def program_table(backend: Backend) -> ProgramTable:
    """Return what the names in the commands of a back end stand for.

    Raises:
        MissingExtraError: Its programs are not installed.
        ConfigurationError: Their environment lacks one of them.
    """
    table = ProgramTable.native()
    return table.extended(backend.programs) if isinstance(backend, OwnPrograms) else table


def lerobot_backend(**sections: Any) -> Backend:
    """Return LeRobot's back end for workers that are made without one, as in LeAgents.

    Args:
        sections: Any of ``train``, ``eval``, ``improve`` (sections of `LoopConfig`) and
            ``task_filter``; defaults for the others.

    Raises:
        MissingExtraError: There is no LeRobot environment.
    """
    return cast("Backend", importlib.import_module(_LEROBOT).default_backend(**sections))
