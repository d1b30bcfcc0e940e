"""Batched: the ego-only filter for thousands of environments at once, in torch.

Start at:    `BatchedEgoFilter` (states to actions); below it `project_batch` (rows to actions),
             above it `BatchedSafetyDriver`, which guards a batch of environments.
Promise:     in float64 the same actions as the filter of one environment, to 1e-12; no answer that
             did not converge; CPU and CUDA; differentiable; with ``capturable`` no read-back.
May import:  the row maths, contracts and solvers of `safety`, `core`, torch.
"""

from typing import TYPE_CHECKING

from cadenza.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from .driver import BatchedSafetyDriver as BatchedSafetyDriver
    from .engine import SafetyBatchStep as SafetyBatchStep
    from .filter import BatchedEgoFilter as BatchedEgoFilter
    from .filter import BatchedStep as BatchedStep
    from .projection import STATUS_NAMES as STATUS_NAMES
    from .projection import BatchProjection as BatchProjection
    from .projection import project_batch as project_batch
else:
    __dir__, __getattr__ = lazy_names(__name__)
