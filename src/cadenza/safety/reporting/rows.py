"""Rows of the three tables, and what is recorded beside them: where the numbers come from.

Every record checks itself and is immutable. Field names and their order are a file format.

Table 1, assumptions: what the guarantee rests on, and in how many steps it did not hold.
    A1  the gradient of the barrier is bounded
    A2  the error of the partner forecast is bounded
    A3  some action meets every row
    A4  is reserved for the limits of ISO 10218-2.
    A5  the ego moves as its control model says
Table 2, conditions: violations and fallbacks of each way of running.
Table 3, gap: how far lambda lies from that of an oracle that forecasts perfectly and does not
    learn; what the adaptation costs.
Details: figures that the tables have no column for. They have a key and a hash of their own, so a
    program that knows only the tables reads the file unchanged. None: not recorded.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from numbers import Integral, Real
from typing import Any, Final, Protocol, Self, cast

from cadenza.core.errors import InputError, UnknownNameError

#: Whether partners were forecast by the ground truth or by a predictor.
PREDICTORS: Final = ("gt", "pred")
#: Whether lambda adapted.
CONFORMAL_MODES: Final = ("noLearn", "Learn")

_COUNTS: Final = (
    "n_steps",
    "violating_episodes",
    "contact_episodes",
    "infeasible_steps",
    "uncertified_steps",
    "intervened_steps",
)
_NUMBERS: Final = (
    "min_distance_m",
    "intervention_mean",
    "intervention_peak",
    "slack_peak",
    "latency_p50_ms",
    "latency_p99_ms",
)


class _Stored:
    """A record whose JSON form is its fields; it raises InputError for a field out of range."""

    __slots__ = ()

    def to_jsonable(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        return asdict(cast("Any", self))

    @classmethod
    def from_jsonable(cls, payload: Mapping[str, Any]) -> Self:
        """Return what `to_jsonable` described; other keys are ignored.

        Raises:
            UnknownNameError: A key of a field without a default is missing.
            InputError: A value is malformed.
        """
        known = fields(cast("Any", cls))
        names = [field.name for field in known if field.default is MISSING]
        missing = [name for name in names if name not in payload]
        if missing:
            raise UnknownNameError(
                f"{cls.__name__}: expected the keys {', '.join(names)}, missing "
                f"{', '.join(missing)}."
            )
        return cls(**{f.name: payload[f.name] for f in known if f.name in payload})

    def _keep(self, **values: Any) -> None:
        """Store checked values in a frozen record."""
        for name, value in values.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True, slots=True)
class AssumptionRow(_Stored):
    """One row of table 1."""

    assumption: str  # Label: A1, A2, A3, A5, or a further one
    description: str  # What is assumed and how it was counted
    violations: int  # Steps in which it did not hold, 0 ... ``n_steps``.
    n_steps: int  # Steps in which it was checked, >= 0

    def __post_init__(self) -> None:
        as_text("AssumptionRow.assumption", self.assumption)
        as_text("AssumptionRow.description", self.description)
        steps = as_count("AssumptionRow.n_steps", self.n_steps)
        violations = as_count("AssumptionRow.violations", self.violations, high=steps)
        self._keep(n_steps=steps, violations=violations)


@dataclass(frozen=True, slots=True)
class ConditionRow(_Stored):
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
        for name, choices in (("predictor", PREDICTORS), ("conformal_mode", CONFORMAL_MODES)):
            if getattr(self, name) not in choices:
                raise InputError(
                    f"ConditionRow.{name}: expected one of {', '.join(choices)}, got "
                    f"{getattr(self, name)!r}."
                )
        if self.vendor_compliance is not None:
            as_text("ConditionRow.vendor_compliance", self.vendor_compliance)
        for name in ("n_episodes", "violations", "fallback_fires"):
            self._keep(**{name: as_count(f"ConditionRow.{name}", getattr(self, name))})
        if self.n_episodes == 0 and (self.violations or self.fallback_fires):
            raise InputError(
                "ConditionRow: expected no violations and no fallbacks without an episode, got "
                f"{self.violations} and {self.fallback_fires}."
            )
        for name in ("max_slack", "slack_l2"):
            value = as_number(f"ConditionRow.{name}", getattr(self, name))
            if value < 0.0:
                raise InputError(f"ConditionRow.{name}: expected a slack >= 0, got {value}.")
            self._keep(**{name: value})


@dataclass(frozen=True, slots=True)
class GapRow(_Stored):
    """One row of table 3. NaN means missing: it becomes None, and null in the file."""

    condition: str  # Name of the condition
    lambda_mean: float | None  # Mean of lambda over its steps, m/s^2; None if not recorded
    lambda_var: float | None  # Variance over its steps, (m/s^2)^2, >= 0; None if not recorded
    #: Mean of lambda of the oracle, m/s^2; None without an oracle run
    oracle_lambda_mean: float | None

    def __post_init__(self) -> None:
        as_text("GapRow.condition", self.condition)
        for name in ("lambda_mean", "lambda_var", "oracle_lambda_mean"):
            self._keep(**{name: as_optional_number(f"GapRow.{name}", getattr(self, name))})
        if self.lambda_var is not None and self.lambda_var < 0.0:
            raise InputError(f"GapRow.lambda_var: expected >= 0, got {self.lambda_var}.")

    @property
    def gap(self) -> float | None:
        """Distance of the two means, m/s^2; None if either is missing."""
        if self.lambda_mean is None or self.oracle_lambda_mean is None:
            return None
        return abs(self.lambda_mean - self.oracle_lambda_mean)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionDetails(_Stored):
    """More about one row of table 2."""

    condition: str  # Name of the condition
    n_steps: int | None = None  # Filtered steps
    violating_episodes: int | None = None  # Episodes with a step outside the safe set
    contact_episodes: int | None = None  # Episodes in which the ego touched somebody
    infeasible_steps: int | None = None  # Steps without an action that meets every row
    uncertified_steps: int | None = None  # Steps that the guarantee does not cover
    #: Steps in which the executed action differs from the nominal one
    intervened_steps: int | None = None
    min_distance_m: float | None = None  # Smallest distance of two centres, m
    #: Mean distance between executed and nominal action over the steps that were changed, unit of
    #: the action
    intervention_mean: float | None = None
    intervention_peak: float | None = None  # Largest such distance
    slack_peak: float | None = None  # Most by which an executed action missed a row, m/s^2
    latency_p50_ms: float | None = None  # Median time of one filter step, ms
    latency_p99_ms: float | None = None  # Its 99 % quantile, ms
    #: Dangerous pairs in steps that braked, by reason
    brake_reasons: Mapping[str, int] | None = None

    def __post_init__(self) -> None:
        as_text("ConditionDetails.condition", self.condition)
        for name in _COUNTS:
            if getattr(self, name) is not None:
                high = self.n_steps if name.endswith("_steps") else None
                count = as_count(f"ConditionDetails.{name}", getattr(self, name), high=high)
                self._keep(**{name: count})
        for name in _NUMBERS:
            value = as_optional_number(f"ConditionDetails.{name}", getattr(self, name))
            if value is not None and value < 0.0:
                raise InputError(f"ConditionDetails.{name}: expected >= 0, got {value}.")
            self._keep(**{name: value})
        reasons: Any = {} if self.brake_reasons is None else self.brake_reasons
        if not isinstance(reasons, Mapping):
            raise InputError(
                f"ConditionDetails.brake_reasons: expected an object, got {reasons!r}."
            )
        for reason, count in cast("Mapping[str, int]", reasons).items():
            as_text("ConditionDetails.brake_reasons", reason)
            as_count(f"ConditionDetails.brake_reasons[{reason!r}]", count)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportDetails(_Stored):
    """Where the numbers of a report come from."""

    #: One entry per row of table 2, in its order; empty if there are none
    conditions: tuple[ConditionDetails, ...] = ()
    seeds: tuple[int, ...] = ()  # Seeds the numbers were made with
    config_hash: str | None = None  # Hash of the configuration
    solver: str | None = None  # Name of the solver
    solver_version: str | None = None  # Its version
    control_timestep_s: float | None = None  # Control step, s
    predictor_kind: str | None = None  # How partners were forecast
    notes: tuple[str, ...] = ()  # What a reader must know, one sentence each

    def __post_init__(self) -> None:
        seeds = tuple(as_count("ReportDetails.seeds", seed) for seed in self.seeds)
        self._keep(seeds=seeds)
        for name in ("config_hash", "solver", "solver_version", "predictor_kind"):
            if getattr(self, name) is not None:
                as_text(f"ReportDetails.{name}", getattr(self, name))
        timestep = as_optional_number("ReportDetails.control_timestep_s", self.control_timestep_s)
        if timestep is not None and timestep <= 0.0:
            raise InputError(f"ReportDetails.control_timestep_s: expected > 0 s, got {timestep}.")
        self._keep(control_timestep_s=timestep)
        for note in self.notes:
            as_text("ReportDetails.notes", note)

    def to_jsonable(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        values = asdict(self)
        return values | {name: list(values[name]) for name in ("conditions", "seeds", "notes")}

    @classmethod
    def from_jsonable(cls, payload: Mapping[str, Any]) -> Self:
        """Return what `to_jsonable` described; other keys are ignored, missing ones are None.

        Raises:
            UnknownNameError: A condition has no name.
            InputError: A value is malformed.
        """
        known: dict[str, Any] = {f.name: payload[f.name] for f in fields(cls) if f.name in payload}
        for name in ("conditions", "seeds", "notes"):
            value = known.get(name, [])
            if not isinstance(value, list):
                raise InputError(f"ReportDetails.{name}: expected a list, got {value!r}.")
            known[name] = tuple(cast("list[Any]", value))
        for entry in known["conditions"]:
            if not isinstance(entry, dict):
                raise InputError(f"ReportDetails.conditions: expected objects, got {entry!r}.")
        known["conditions"] = tuple(map(ConditionDetails.from_jsonable, known["conditions"]))
        return cls(**known)


class SlackResult(Protocol):
    """The part of one OSCBF step that table 2 needs; `OSCBFResult` has it."""

    @property
    def max_slack(self) -> float:
        """Largest slack of the step, >= 0."""
        ...

    @property
    def slack_l2(self) -> float:
        """Euclidean norm of its slack, >= 0."""
        ...


@dataclass(frozen=True, slots=True)
class SlackAggregate:
    """Slack over the steps of one condition; 0 without steps."""

    max_slack: float  # Largest of any step
    slack_l2: float  # Mean over steps of the norm


def aggregate_oscbf_slack(results: Iterable[SlackResult]) -> SlackAggregate:
    """Return the slack over ``results``, which are read once, in any order."""
    largest, norm_sum, count = 0.0, 0.0, 0
    for result in results:
        largest = max(largest, result.max_slack)
        norm_sum += result.slack_l2
        count += 1
    return SlackAggregate(max_slack=largest, slack_l2=norm_sum / count if count else 0.0)


def make_condition_row(
    *,
    predictor: str,
    conformal_mode: str,
    vendor_compliance: str | None,
    n_episodes: int,
    violations: int,
    fallback_fires: int,
    oscbf_results: Iterable[SlackResult] = (),
) -> ConditionRow:
    """Return a row of table 2 with the slack of its OSCBF steps, one result per step."""
    slack = aggregate_oscbf_slack(oscbf_results)
    return ConditionRow(
        predictor=predictor,
        conformal_mode=conformal_mode,
        vendor_compliance=vendor_compliance,
        n_episodes=n_episodes,
        violations=violations,
        fallback_fires=fallback_fires,
        max_slack=slack.max_slack,
        slack_l2=slack.slack_l2,
    )


def as_text(name: str, value: object) -> str:
    """Return ``value``, which must be UTF-8 text of at least one character."""
    if not isinstance(value, str) or not value:
        raise InputError(f"{name}: expected text, got {value!r}.")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"{name}: expected text that UTF-8 can express, got {value!r}.") from error
    return value


def as_count(name: str, value: object, *, high: int | None = None) -> int:
    """Return ``value`` as a count, >= 0 and at most ``high``."""
    limit = "" if high is None else f" and <= {high}"
    whole = isinstance(value, Integral) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not whole:
        raise InputError(f"{name}: expected a whole number >= 0{limit}, got {value!r}.")
    count = int(cast("int", value))
    if count < 0 or (high is not None and count > high):
        raise InputError(f"{name}: expected a count >= 0{limit}, got {count}.")
    return count


def as_number(name: str, value: object) -> float:
    """Return ``value`` as a finite float."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise InputError(f"{name}: expected a finite number, got {value!r}.")
    return float(value)


def as_optional_number(name: str, value: object) -> float | None:
    """Return ``value`` as a finite float; None and NaN mean that there is none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    return as_number(name, value)
