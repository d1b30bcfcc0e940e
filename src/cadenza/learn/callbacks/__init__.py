"""Callbacks: losses, loggers, checkpoints and stops that any algorithm uses.

Start at:    `LossCallback` (one optimiser step per batch), `Checkpointer` and `CheckpointLoader`.
Promise:     ``state_dict`` of every callback is complete, so a restored run equals an unbroken one.
May import:  `core` and `learn.callback`, `learn.trainer`.  Must not import: any algorithm.
Adding one:  one module; the hooks it overrides name what they read.
"""

from typing import TYPE_CHECKING

from cadenza.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from .checkpointing import Checkpointer as Checkpointer
    from .checkpointing import CheckpointLoader as CheckpointLoader
    from .generic import BackPropStepsTerminator as BackPropStepsTerminator
    from .logging import JsonlLogger as JsonlLogger
    from .logging import SystemLogger as SystemLogger
    from .logging import TensorboardLogger as TensorboardLogger
    from .logging import TerminalLogger as TerminalLogger
    from .logging_mixin import LoggingMixin as LoggingMixin
    from .loss import LossCallback as LossCallback
else:
    __dir__, __getattr__ = lazy_names(__name__)
