"""Learned dynamics: networks that predict transitions, and a simulator made of them.

Start at:    `DynamicModel` over `EnsembleOfGaussian`, trained by `ModelLoss`; `ModelEnv` simulates,
             `ModelBasedCollector` fills a memory with rollouts, `BatchSampler` mixes them in.
Promise:     models, normalisers, elites, hold-out data and generators are part of every checkpoint.
May import:  `core`, `learn`.
"""

from typing import Final

from cadenza.core.lazy_names import lazy_names

#: Short names and the modules that define them; imported at first use.
_EXPORTS: Final = {
    "BatchSampler": "callbacks",
    "DeterministicModel": "model",
    "DynamicModel": "model",
    "EnsembleOfGaussian": "ensemble",
    "HoldOut": "hold_out",
    "LossProgressCheck": "callbacks",
    "ModelBasedCollector": "callbacks",
    "ModelEnv": "model_env",
    "ModelLoss": "callbacks",
    "TerminationModel": "model",
}

__dir__, __getattr__ = lazy_names(__name__, _EXPORTS)
