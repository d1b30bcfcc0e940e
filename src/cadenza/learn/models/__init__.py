"""Learned dynamics: networks that predict transitions, and a simulator made of them.

Start at:    `DynamicModel` over `EnsembleOfGaussian`, trained by `ModelLoss`; `ModelEnv` simulates,
             `ModelBasedCollector` fills a memory with rollouts, `BatchSampler` mixes them in.
Promise:     models, normalisers, elites, hold-out data and generators are part of every checkpoint.
May import:  `core`, `learn`.
"""

from typing import TYPE_CHECKING

from cadenza.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from .callbacks import BatchSampler as BatchSampler
    from .callbacks import LossProgressCheck as LossProgressCheck
    from .callbacks import ModelBasedCollector as ModelBasedCollector
    from .callbacks import ModelLoss as ModelLoss
    from .ensemble import EnsembleOfGaussian as EnsembleOfGaussian
    from .hold_out import HoldOut as HoldOut
    from .model import DeterministicModel as DeterministicModel
    from .model import DynamicModel as DynamicModel
    from .model import TerminationModel as TerminationModel
    from .model_env import ModelEnv as ModelEnv
else:
    __dir__, __getattr__ = lazy_names(__name__)
