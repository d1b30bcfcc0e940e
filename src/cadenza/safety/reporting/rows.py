"""Rows of the three tables.

Every row checks itself and is immutable. Field names and their order are a file format.

Table 1, assumptions: what the guarantee rests on, and in how many steps it did not hold.
    A1  the gradient of the barrier is bounded
    A2  the error of the partner forecast is bounded
    A3  some action meets every row
    A4  is reserved for the limits of ISO 10218-2.
Table 2, conditions: violations and fallbacks of each way of running.
Table 3, gap: how far lambda lies from that of an oracle that forecasts perfectly and does not
    learn; what the adaptation costs.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Literal, TypeAlias

from cadenza.core.errors import InputError
from cadenza.safety.reporting.fields import (
    as_choice,
    as_count,
    as_number,
    as_optional_number,
    as_text,
    require_keys,
)

#: Whether partners were forecast by the ground truth or by a predictor.
PREDICTORS: Final = ("gt", "pred")
#: Whether lambda adapted.
CONFORMAL_MODES: Final = ("noLearn", "Learn")

Predictor: TypeAlias = Literal["gt", "pred"]
ConformalMode: TypeAlias = Literal["noLearn", "Learn"]


@dataclass(frozen=True, slots=True)
class AssumptionRow:
    """One row of table 1.

    Attributes:
        assumption: Label: A1, A2, A3, or a further one.
        description: What is assumed and how it was counted.
        violations: Steps in which it did not hold, 0 ... ``n_steps``.
        n_steps: Steps in which it was checked, >= 0.

    Raises:
        InputError: A field is out of range.
    """

    assumption: str
    description: str
    violations: int
    n_steps: int

    def __post_init__(self) -> None:
        as_text("AssumptionRow.assumption", self.assumption)
        as_text("AssumptionRow.description", self.description)
        steps = as_count("AssumptionRow.n_steps", self.n_steps)
        violations = as_count("AssumptionRow.violations", self.violations, high=steps)
        object.__setattr__(self, "n_steps", steps)
        object.__setattr__(self, "violations", violations)

    def to_jsonable(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        return asdict(self)

    @classmethod
    def from_jsonable(cls, payload: Mapping[str, Any]) -> "AssumptionRow":
        """Return the row that `to_jsonable` described; other keys are ignored.

        Raises:
            UnknownNameError: A key is missing.
            InputError: A value is malformed.
        """
        require_keys("AssumptionRow", payload, _names(cls))
        return cls(**{name: payload[name] for name in _names(cls)})


@dataclass(frozen=True, slots=True)
class ConditionRow:
    """One row of table 2.

    Attributes:
        predictor: How partners were forecast, one of `PREDICTORS`.
        conformal_mode: Whether lambda adapted, one of `CONFORMAL_MODES`.
        vendor_compliance: Compliance statement of the robot's vendor; None without one.
        n_episodes: Episodes, >= 0.
        violations: Steps that began outside the safe set, >= 0.
        fallback_fires: Steps in which braking replaced the action, >= 0.
        max_slack: Largest slack of the inner filter (OSCBF), >= 0; 0 where it does not run.
        slack_l2: Its mean Euclidean norm per step, >= 0.

    Raises:
        InputError: A field is out of range.
    """

    predictor: str
    conformal_mode: str
    vendor_compliance: str | None
    n_episodes: int
    violations: int
    fallback_fires: int
    max_slack: float = 0.0
    slack_l2: float = 0.0

    def __post_init__(self) -> None:
        as_choice("ConditionRow.predictor", self.predictor, PREDICTORS)
        as_choice("ConditionRow.conformal_mode", self.conformal_mode, CONFORMAL_MODES)
        if self.vendor_compliance is not None:
            as_text("ConditionRow.vendor_compliance", self.vendor_compliance)
        for name in ("n_episodes", "violations", "fallback_fires"):
            count = as_count(f"ConditionRow.{name}", getattr(self, name))
            object.__setattr__(self, name, count)
        if self.n_episodes == 0 and (self.violations or self.fallback_fires):
            raise InputError(
                "ConditionRow: expected no violations and no fallbacks without an episode, got "
                f"{self.violations} and {self.fallback_fires}."
            )
        for name in ("max_slack", "slack_l2"):
            value = as_number(f"ConditionRow.{name}", getattr(self, name))
            if value < 0.0:
                raise InputError(f"ConditionRow.{name}: expected a slack >= 0, got {value}.")
            object.__setattr__(self, name, value)

    def to_jsonable(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        return asdict(self)

    @classmethod
    def from_jsonable(cls, payload: Mapping[str, Any]) -> "ConditionRow":
        """Return the row that `to_jsonable` described; other keys are ignored.

        The slack may be missing, as in version 1; it is then 0.

        Raises:
            UnknownNameError: A key is missing.
            InputError: A value is malformed.
        """
        require_keys("ConditionRow", payload, _names(cls)[:6])
        return cls(**{name: payload[name] for name in _names(cls) if name in payload})


@dataclass(frozen=True, slots=True)
class GapRow:
    """One row of table 3. NaN means missing: it becomes None, and null in the file.

    Attributes:
        condition: Name of the condition.
        lambda_mean: Mean of lambda over its steps, m/s^2; None if not recorded.
        lambda_var: Variance over its steps, (m/s^2)^2, >= 0; None if not recorded.
        oracle_lambda_mean: Mean of lambda of the oracle, m/s^2; None without an oracle run.

    Raises:
        InputError: A field is out of range.
    """

    condition: str
    lambda_mean: float | None
    lambda_var: float | None
    oracle_lambda_mean: float | None

    def __post_init__(self) -> None:
        as_text("GapRow.condition", self.condition)
        for name in ("lambda_mean", "lambda_var", "oracle_lambda_mean"):
            value = as_optional_number(f"GapRow.{name}", getattr(self, name))
            object.__setattr__(self, name, value)
        if self.lambda_var is not None and self.lambda_var < 0.0:
            raise InputError(f"GapRow.lambda_var: expected >= 0, got {self.lambda_var}.")

    @property
    def gap(self) -> float | None:
        """Distance of the two means, m/s^2; None if either is missing."""
        if self.lambda_mean is None or self.oracle_lambda_mean is None:
            return None
        return abs(self.lambda_mean - self.oracle_lambda_mean)

    def to_jsonable(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        return asdict(self)

    @classmethod
    def from_jsonable(cls, payload: Mapping[str, Any]) -> "GapRow":
        """Return the row that `to_jsonable` described; other keys are ignored.

        Raises:
            UnknownNameError: A key is missing.
            InputError: A value is malformed.
        """
        require_keys("GapRow", payload, _names(cls))
        return cls(**{name: payload[name] for name in _names(cls)})


def _names(row: type[AssumptionRow] | type[ConditionRow] | type[GapRow]) -> tuple[str, ...]:
    """Return the field names of a row in their order."""
    return tuple(field.name for field in fields(row))
