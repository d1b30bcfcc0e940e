"""Back ends by the name that configurations give them."""

import importlib
from typing import Any, Final, cast

from cadenza.loop.backends.base import Backend
from cadenza.loop.config import LoopConfig

#: Imported at first use: it looks for a LeRobot environment.
_LEROBOT: Final = "cadenza.loop.backends.lerobot"


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


def lerobot_backend(**sections: Any) -> Backend:
    """Return LeRobot's back end for workers that are made without one, as in LeAgents.

    Args:
        sections: Any of ``train``, ``eval``, ``improve`` (sections of `LoopConfig`) and
            ``task_filter``; defaults for the others.

    Raises:
        MissingExtraError: There is no LeRobot environment.
    """
    return cast("Backend", importlib.import_module(_LEROBOT).default_backend(**sections))
