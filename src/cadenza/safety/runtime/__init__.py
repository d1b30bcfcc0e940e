"""Runtime: what happens around the filter in every control step of a robot.

Start at:    `runtime.SafetyRuntime` (no env needed), or `driver.SafetyDriver` around an env.
Promise:     one call per step; whatever is handed in, an action in the box or one typed error
             comes out; saved and loaded, it goes on to the same bits.
May import:  `filters`, `conformal`, braking, contracts.
Layout:      options, observation and packet ages, forecasts (`predictors`, `kalman`), adaptation
             of lambda, filter, braking, record, saved state.
"""

import importlib
from typing import Any, Final

_EXPORTS: Final = {
    "SafetyDriver": "driver",
    "SafetyOptions": "options",
    "SafetyRuntime": "runtime",
    "SafetyStep": "safety_step",
}


def __getattr__(name: str) -> Any:
    """Import the module that defines ``name`` and return the object."""
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
