"""Batched: the ego-only filter for thousands of environments at once, in torch.

Start at:    `BatchedEgoFilter`; below it `pair_rows_batch` (states to rows) and `project_batch`
             (rows to actions).
Promise:     in float64 the same actions as the filter of one environment, to 1e-12; no answer that
             did not converge; CPU and CUDA; differentiable; with ``fixed_shape`` no read-back.
May import:  the row maths, contracts and solvers of `safety`, `core`, torch.
"""

import importlib
from typing import Any, Final

#: Short names and the modules that define them; imported at first use, for torch is slow to load.
_EXPORTS: Final = {
    "BatchProjection": "projection",
    "BatchedEgoFilter": "filter",
    "BatchedSafetyDriver": "driver",
    "BatchedStep": "filter",
    "PairRowsBatch": "rows",
    "SafetyBatchStep": "step",
    "STATUS_NAMES": "status",
    "pair_rows_batch": "rows",
    "project_batch": "projection",
}


def __getattr__(name: str) -> Any:
    """Import the module that defines ``name`` and return the object."""
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
