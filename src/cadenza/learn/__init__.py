"""Learning: the engine (callbacks, trainer, memory, algorithms, networks) behind every learner.

Start at:    `api` and its neighbours, one object per algorithm; beneath them `Callback` and
             `Trainer`, and `algorithms` for what can be learned with them;
             `docs/learning-engine.md` for the ideas.
Promise:     equal inputs and generators give equal bits on the CPU; no global random state is read.
May import:  `core`.  Must not import: `safety`, `envs`, `aht` or anything above them.
Adding one:  one module under `algorithms`, its paper and score in the folder's README.
"""

import importlib
from typing import Any, Final

#: Short names and the modules that define them; imported at first use.
_EXPORTS: Final = {
    "BatchCallback": "cadenza.learn.callback",
    "Callback": "cadenza.learn.callback",
    "StateDict": "cadenza.learn.trainer",
    "Trainer": "cadenza.learn.trainer",
    "TrainingShutdownException": "cadenza.learn.trainer",
    "WeakReference": "cadenza.core.types",
}
#: Modules that are reached under a short name.
_MODULES: Final = {"sac": "cadenza.learn.algorithms.sac"}

__all__ = sorted(_EXPORTS)  # pyright: ignore[reportUnsupportedDunderAll] -- imported at first use


def __dir__() -> list[str]:
    """Return what the module offers, the lazy names included."""
    return sorted({*globals(), *_EXPORTS, *_MODULES})


def __getattr__(name: str) -> Any:
    """Import the module that defines ``name`` and return the object."""
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTS[name]), name)
