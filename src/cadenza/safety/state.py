"""State of the conformal layer, and the record of one filter call."""

import math
from dataclasses import dataclass
from typing import Any, Final, NotRequired, TypedDict, cast

from cadenza.core.arrays import FloatArray
from cadenza.core.checks import is_real, is_whole
from cadenza.core.errors import InputError
from cadenza.safety.pairs import LambdaDict, lambda_from_jsonable, lambda_to_jsonable

#: Target mean loss of the one-sided conformal rule, m/s. Negative, so that rule tightens for ever
#: and needs a clamp; the two-sided rule of `cadenza.safety.conformal` replaces it in the driver.
DEFAULT_EPSILON: Final = -0.05
#: Step size of the conformal rules.
DEFAULT_ETA: Final = 0.01
#: Control steps of stricter adaptation after a partner was exchanged.
DEFAULT_WARMUP_STEPS: Final = 50

#: Version of `SafetyState.to_dict`; a reader refuses any other.
STATE_SCHEMA_VERSION: Final = 1


@dataclass(slots=True)
class SafetyState:
    """What the conformal layer remembers between steps; only that layer changes it.

    Attributes:
        lambda_: Slack per pair, m/s^2, on the right-hand side of the pair's row: > 0 relaxes
            the row (and voids the certificate), < 0 tightens it.
        epsilon: Target mean loss, m/s, or target miss rate; see the rule that is used.
        eta: Step size of the rule, > 0 or 0 to freeze it.
        warmup_steps_remaining: Steps of stricter adaptation that are left, >= 0.

    Raises:
        InputError: A number is not finite or out of range.
    """

    lambda_: LambdaDict
    epsilon: float = DEFAULT_EPSILON
    eta: float = DEFAULT_ETA
    warmup_steps_remaining: int = 0

    def __post_init__(self) -> None:
        slack = cast("object", self.lambda_)
        if not isinstance(slack, dict):
            raise InputError(
                "SafetyState.lambda_: expected a number by agent pair, as make_lambda_dict "
                f"returns it, got {type(slack).__name__}."
            )
        if not (is_real(self.epsilon) and math.isfinite(self.epsilon)):
            raise InputError(f"SafetyState.epsilon: expected a finite number, got {self.epsilon}.")
        if not (is_real(self.eta) and 0.0 <= self.eta < math.inf):
            raise InputError(f"SafetyState.eta: expected a finite number >= 0, got {self.eta}.")
        if not (is_whole(self.warmup_steps_remaining) and self.warmup_steps_remaining >= 0):
            raise InputError(
                "SafetyState.warmup_steps_remaining: expected a whole number >= 0, "
                f"got {self.warmup_steps_remaining}."
            )

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able copy that `from_dict` turns back into an equal state."""
        return {
            "schema_version": STATE_SCHEMA_VERSION,
            "lambda": lambda_to_jsonable(self.lambda_),
            "epsilon": self.epsilon,
            "eta": self.eta,
            "warmup_steps_remaining": self.warmup_steps_remaining,
        }

    @classmethod
    def from_dict(cls, payload: dict[str, Any]) -> "SafetyState":
        """Return the state that `to_dict` described.

        Raises:
            InputError: Unknown schema version, missing key or malformed slack list.
        """
        version = payload.get("schema_version")
        if version != STATE_SCHEMA_VERSION:
            raise InputError(
                f"SafetyState: expected schema version {STATE_SCHEMA_VERSION}, got {version!r}."
            )
        missing = sorted(
            {"lambda", "epsilon", "eta", "warmup_steps_remaining"} - payload.keys(),
        )
        if missing:
            raise InputError(f"SafetyState: expected a complete record, missing {missing}.")
        return cls(
            lambda_=lambda_from_jsonable(payload["lambda"]),
            epsilon=float(payload["epsilon"]),
            eta=float(payload["eta"]),
            warmup_steps_remaining=int(payload["warmup_steps_remaining"]),
        )


#: What one filter call reports. Arrays have one entry per partner, shape (n,), in the string
#: order of the partner ids; those of a joint filter one per pair, in canonical order.
#:
#: lambda: slack per pair that entered the rows of this step, m/s^2.
#: constraint_violation: max(0, -h), m/s, at the state before the action; 0 in the safe set, and at
#:     least cbf_gamma times the overlap where the sampled row finds balls overlapping.
#: prediction_gap_loss: forecast error of the safe set, m/s; None unless a driver fills it in.
#: fallback_fired: braking replaced the action; False unless a driver sets it.
#: qp_solve_ms: time in the solver, ms.
#: slack: how far the returned action misses each row, m/s^2; 0 when met.
#: margin: free distance between the balls, less the safety margin, m; negative on overlap.
#: status: "inactive" (action unchanged), "optimal" (changed, every row met), "infeasible"
#:     (least-violation action), or why the solver failed on rows it should have met, "max_iter",
#:     "numerical" or "bad_input" (least-violation action too).
#: intervention: Euclidean distance between returned and proposed action.
#: uncertified: the invariance certificate does not cover this step.
#: rate_active: the proposed action changes more in one step than the rate limit allows.
#: rate_exceeded: the returned action does, because the rows could not be met otherwise.
#: Beside obstacles, from the runtime only:
#: static_margin: distance to every obstacle less radius and safety margin, m, shape (K,); empty
#:     while no state is known.
#: static_uncertified: the promise about obstacles does not cover this step.
#: backup: where the action came from: "none", "rows", "blend", "radial" or "brake".
FilterInfo = TypedDict(
    "FilterInfo",
    {
        "lambda": LambdaDict,
        "constraint_violation": FloatArray,
        "prediction_gap_loss": LambdaDict | None,
        "fallback_fired": bool,
        "qp_solve_ms": float,
        "slack": FloatArray,
        "margin": FloatArray,
        "status": str,
        "intervention": float,
        "uncertified": bool,
        "rate_active": bool,
        "rate_exceeded": bool,
        "static_margin": NotRequired[FloatArray],
        "static_uncertified": NotRequired[bool],
        "backup": NotRequired[str],
    },
)
