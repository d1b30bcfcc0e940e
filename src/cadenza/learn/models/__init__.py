"""Learned dynamics: networks that predict transitions, and a simulator made of them.

Start at:    `DynamicModel` over `EnsembleOfGaussian`, trained by `ModelLoss`; `ModelEnv` simulates,
             `ModelBasedCollector` fills a memory with rollouts, `BatchSampler` mixes them in.
Promise:     models, normalisers, elites, hold-out data and generators are part of every checkpoint.
May import:  `core`, `learn`.
"""

import importlib
from typing import Any, Final

#: Short names and the modules that define them; imported at first use.
_EXPORTS: Final = {
    "BatchSampler": "batch_sampler",
    "DeterministicModel": "deterministic",
    "DynamicModel": "model",
    "EnsembleOfGaussian": "ensemble",
    "HoldOut": "hold_out",
    "LossProgressCheck": "progress_check",
    "ModelBasedCollector": "collector",
    "ModelEnv": "model_env",
    "ModelLoss": "model_loss",
    "TerminationModel": "termination",
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
