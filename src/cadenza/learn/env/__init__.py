"""Environments: glue between Gymnasium and agents, image wrappers, a small test environment.

Start at:    `DictGymWrapper` (a vector environment as agents with ids) and `ReplayableEnv` (an
             environment that a checkpoint can bring back exactly).
Promise:     truncation is an interruption, never a terminal state; every final observation is the
             one from before the reset, in each of Gymnasium's autoreset modes.
May import:  `core`.  Must not import: `learn.memory`, `learn.algorithms`.
Adding one:  a wrapper is one class; make environments in a function that takes a seed.
"""

import importlib
from typing import Any, Final

#: Short names and the modules that define them; imported at first use.
_EXPORTS: Final = {
    "DictGymWrapper": "dict_gym_wrapper",
    "FrameStack": "wrappers",
    "HitTheMiddle": "hit_the_middle",
    "LazyFrames": "wrappers",
    "ReplayableEnv": "replayable",
    "ScaledFloatFrame": "wrappers",
    "WarpFrame": "wrappers",
    "make_vision_box2d_env": "box2d",
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
