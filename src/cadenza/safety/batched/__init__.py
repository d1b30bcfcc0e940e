"""Batched: the ego-only filter for thousands of environments at once, in torch.

Start at:    `BatchedEgoFilter`; below it `pair_rows_batch` (states to rows) and `project_batch`
             (rows to actions).
Promise:     in float64 the same actions as the filter of one environment, to 1e-12; no answer that
             did not converge; CPU and CUDA; differentiable; with ``fixed_shape`` no read-back.
May import:  the row maths, contracts and solvers of `safety`, `core`, torch.
"""

from typing import Final

from cadenza.core.lazy_names import lazy_names

#: Short names and the modules that define them; imported at first use, for torch is slow to load.
_EXPORTS: Final = {
    "BatchProjection": "projection",
    "BatchedEgoFilter": "filter",
    "BatchedSafetyDriver": "driver",
    "BatchedStep": "filter",
    "PairRowsBatch": "cbf",
    "SafetyBatchStep": "step",
    "STATUS_NAMES": "projection",
    "pair_rows_batch": "cbf",
    "project_batch": "projection",
}

__dir__, __getattr__ = lazy_names(__name__, _EXPORTS)
