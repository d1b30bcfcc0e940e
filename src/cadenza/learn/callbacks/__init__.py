"""Callbacks: losses, loggers, checkpoints and stops that any algorithm uses.

Start at:    `LossCallback` (one optimiser step per batch), `Checkpointer` and `CheckpointLoader`.
Promise:     ``state_dict`` of every callback is complete, so a restored run equals an unbroken one.
May import:  `core` and `learn.callback`, `learn.trainer`.  Must not import: any algorithm.
Adding one:  one module; the hooks it overrides name what they read.
"""

from typing import Final

from cadenza.core.lazy_names import lazy_names

#: Short names and the modules that define them; imported at first use.
_EXPORTS: Final = {
    "BackPropStepsTerminator": "generic",
    "CheckpointLoader": "checkpointing",
    "Checkpointer": "checkpointing",
    "JsonlLogger": "logging",
    "LoggingMixin": "logging_mixin",
    "LossCallback": "loss",
    "SystemLogger": "logging",
    "TensorboardLogger": "logging",
    "TerminalLogger": "logging",
}

__dir__, __getattr__ = lazy_names(__name__, _EXPORTS)
