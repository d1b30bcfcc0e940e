"""Collectors: callbacks that let an agent act in environments while training runs.

Start at:    `SimpleGymCollector` (in the training loop, reproducible and resumable) and
             `ThreadedGymCollector` (beside it, for slow simulators).
Promise:     a checkpoint that holds collector and memory goes on bit for bit; an error of a thread
             stops the training and is raised there.
May import:  `core`, `learn.callback`, `learn.env`, `learn.proxies`.  Must not import: algorithms.
Adding one:  derive from `GymCollector` and decide when `collect_data` runs.
"""

import importlib
from typing import Any, Final

#: Short names and the modules that define them; imported at first use.
_EXPORTS: Final = {
    "GymCollector": "sync",
    "PolicySnapshots": "snapshots",
    "SampleInsertRatio": "back_pressure",
    "SimpleGymCollector": "sync",
    "ThreadedGymCollector": "threaded",
}

__all__ = sorted(_EXPORTS)  # pyright: ignore[reportUnsupportedDunderAll] -- imported at first use


def __dir__() -> list[str]:
    """Return what the module offers, the lazy names included."""
    return sorted({*globals(), *_EXPORTS})


def __getattr__(name: str) -> Any:
    """Import the module that defines ``name`` and return the object."""
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
