"""Callbacks: losses, loggers, checkpoints and stops that any algorithm uses.

Start at:    `LossCallback` (one optimiser step per batch), `Checkpointer` and `CheckpointLoader`.
Promise:     ``state_dict`` of every callback is complete, so a restored run equals an unbroken one.
May import:  `core` and `learn.callback`, `learn.trainer`.  Must not import: any algorithm.
Adding one:  one module; the hooks it overrides name what they read.
"""

import importlib
from typing import Any, Final

#: Short names and the modules that define them; imported at first use.
_EXPORTS: Final = {
    "BackPropStepsTerminator": "generic",
    "CheckpointLoader": "checkpointing",
    "Checkpointer": "checkpointing",
    "JsonlLogger": "jsonl_logger",
    "LoggingMixin": "logging_mixin",
    "LossCallback": "loss",
    "SystemLogger": "system_logger",
    "TensorboardLogger": "logging",
    "TerminalLogger": "logging",
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
