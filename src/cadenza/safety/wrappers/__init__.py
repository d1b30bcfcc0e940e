"""Wrappers: the safety filter between anybody's policy and anybody's Gymnasium environment.

Start at:    `SafetyFilterWrapper` (one environment), `VectorSafetyFilterWrapper` (a batch).
Promise:     the action space stays as it was; an action that needs no change reaches the
             environment untouched; what was changed, and why, is in ``info["safety"]``.
May import:  `safety`, `core`, gymnasium.  Must not import: any other folder of the package.
"""

import importlib
from typing import Any, Final

#: Short names and the modules that define them; imported at first use.
_EXPORTS: Final = {
    "SafetyFilterWrapper": "single",
    "VectorSafetyFilterWrapper": "vector",
}


def __getattr__(name: str) -> Any:
    """Import the module that defines ``name`` and return the object."""
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
