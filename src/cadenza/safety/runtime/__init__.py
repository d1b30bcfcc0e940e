"""Runtime: what happens around the filter in every control step of a robot.

Start at:    `runtime.SafetyRuntime` (no env needed), or `driver.SafetyDriver` around an env.
Promise:     one call per step; whatever is handed in, an action in the box or one typed error
             comes out; saved and loaded, it goes on to the same bits.
May import:  `filters`, `conformal`, braking, contracts.
Layout:      `runtime` (the stages of a step), `memory` (all that is remembered and saved),
             `options`, `observation` (what is read, checked once; is everyone as declared?),
             `predictors`, `safety_step` (the record), `driver` and `env_hooks`.
"""

from typing import TYPE_CHECKING

from cadenza.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from .driver import SafetyDriver as SafetyDriver
    from .options import SafetyOptions as SafetyOptions
    from .runtime import SafetyRuntime as SafetyRuntime
    from .safety_step import SafetyStep as SafetyStep
else:
    __dir__, __getattr__ = lazy_names(__name__)
