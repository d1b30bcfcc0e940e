"""Where a report comes from, and figures that the three tables have no column for.

They stand beside the tables in the file, under a key and a hash of their own, so a program that
knows only the tables reads the file unchanged and finds their hash valid. None: not recorded.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, cast

from cadenza.core.errors import InputError
from cadenza.safety.reporting.fields import (
    as_count,
    as_optional_number,
    as_text,
    require_keys,
)

_COUNTS = (
    "n_steps",
    "violating_episodes",
    "contact_episodes",
    "infeasible_steps",
    "uncertified_steps",
    "intervened_steps",
)
_NUMBERS = (
    "min_distance_m",
    "intervention_mean",
    "intervention_peak",
    "slack_peak",
    "latency_p50_ms",
    "latency_p99_ms",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionDetails:
    """More about one row of table 2.

    Attributes:
        condition: Name of the condition.
        n_steps: Filtered steps.
        violating_episodes: Episodes with a step outside the safe set.
        contact_episodes: Episodes in which the ego touched somebody.
        infeasible_steps: Steps without an action that meets every row.
        uncertified_steps: Steps that the guarantee does not cover.
        intervened_steps: Steps in which the executed action differs from the nominal one.
        min_distance_m: Smallest distance of two centres, m.
        intervention_mean: Mean distance between executed and nominal action over the steps that
            were changed, unit of the action.
        intervention_peak: Largest such distance.
        slack_peak: Most by which an executed action missed a row, m/s^2.
        latency_p50_ms: Median time of one filter step, ms.
        latency_p99_ms: Its 99 % quantile, ms.
        brake_reasons: Dangerous pairs in steps that braked, by reason.

    Raises:
        InputError: A field is out of range.
    """

    condition: str
    n_steps: int | None = None
    violating_episodes: int | None = None
    contact_episodes: int | None = None
    infeasible_steps: int | None = None
    uncertified_steps: int | None = None
    intervened_steps: int | None = None
    min_distance_m: float | None = None
    intervention_mean: float | None = None
    intervention_peak: float | None = None
    slack_peak: float | None = None
    latency_p50_ms: float | None = None
    latency_p99_ms: float | None = None
    brake_reasons: Mapping[str, int] | None = None

    def __post_init__(self) -> None:
        as_text("ConditionDetails.condition", self.condition)
        for name in _COUNTS:
            if getattr(self, name) is not None:
                high = self.n_steps if name.endswith("_steps") else None
                count = as_count(f"ConditionDetails.{name}", getattr(self, name), high=high)
                object.__setattr__(self, name, count)
        for name in _NUMBERS:
            value = as_optional_number(f"ConditionDetails.{name}", getattr(self, name))
            if value is not None and value < 0.0:
                raise InputError(f"ConditionDetails.{name}: expected >= 0, got {value}.")
            object.__setattr__(self, name, value)
        for reason, count in (self.brake_reasons or {}).items():
            as_text("ConditionDetails.brake_reasons", reason)
            as_count(f"ConditionDetails.brake_reasons[{reason!r}]", count)

    def to_jsonable(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return asdict(self)

    @classmethod
    def from_jsonable(cls, payload: Mapping[str, Any]) -> "ConditionDetails":
        """Return what `to_jsonable` described; other keys are ignored, missing ones are None.

        Raises:
            UnknownNameError: The condition has no name.
            InputError: A value is malformed.
        """
        require_keys("ConditionDetails", payload, ("condition",))
        reasons = payload.get("brake_reasons")
        if reasons is not None and not isinstance(reasons, Mapping):
            raise InputError(
                f"ConditionDetails.brake_reasons: expected an object, got {reasons!r}."
            )
        return cls(**{field.name: payload.get(field.name) for field in fields(cls)})  # pyright: ignore[reportArgumentType] -- __post_init__ checks every value


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportDetails:
    """Where the numbers of a report come from.

    Attributes:
        conditions: One entry per row of table 2, in its order; empty if there are none.
        seeds: Seeds the numbers were made with.
        config_hash: Hash of the configuration.
        solver: Name of the solver.
        solver_version: Its version.
        control_timestep_s: Control step, s.
        predictor_kind: How partners were forecast.
        notes: What a reader must know, one sentence each.

    Raises:
        InputError: A field is out of range.
    """

    conditions: tuple[ConditionDetails, ...] = ()
    seeds: tuple[int, ...] = ()
    config_hash: str | None = None
    solver: str | None = None
    solver_version: str | None = None
    control_timestep_s: float | None = None
    predictor_kind: str | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        seeds = tuple(as_count("ReportDetails.seeds", seed) for seed in self.seeds)
        object.__setattr__(self, "seeds", seeds)
        for name in ("config_hash", "solver", "solver_version", "predictor_kind"):
            if getattr(self, name) is not None:
                as_text(f"ReportDetails.{name}", getattr(self, name))
        timestep = as_optional_number("ReportDetails.control_timestep_s", self.control_timestep_s)
        if timestep is not None and timestep <= 0.0:
            raise InputError(f"ReportDetails.control_timestep_s: expected > 0 s, got {timestep}.")
        object.__setattr__(self, "control_timestep_s", timestep)
        for note in self.notes:
            as_text("ReportDetails.notes", note)

    def to_jsonable(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "conditions": [condition.to_jsonable() for condition in self.conditions],
            "seeds": list(self.seeds),
            "config_hash": self.config_hash,
            "solver": self.solver,
            "solver_version": self.solver_version,
            "control_timestep_s": self.control_timestep_s,
            "predictor_kind": self.predictor_kind,
            "notes": list(self.notes),
        }

    @classmethod
    def from_jsonable(cls, payload: Mapping[str, Any]) -> "ReportDetails":
        """Return what `to_jsonable` described; other keys are ignored, missing ones are None.

        Raises:
            UnknownNameError: A condition has no name.
            InputError: A value is malformed.
        """
        return cls(
            conditions=tuple(
                ConditionDetails.from_jsonable(_as_object("conditions", entry))
                for entry in _as_list("conditions", payload.get("conditions", []))
            ),
            seeds=tuple(_as_list("seeds", payload.get("seeds", []))),
            config_hash=payload.get("config_hash"),
            solver=payload.get("solver"),
            solver_version=payload.get("solver_version"),
            control_timestep_s=payload.get("control_timestep_s"),
            predictor_kind=payload.get("predictor_kind"),
            notes=tuple(_as_list("notes", payload.get("notes", []))),
        )


def _as_list(name: str, value: object) -> list[Any]:
    if not isinstance(value, list):
        raise InputError(f"ReportDetails.{name}: expected a list, got {value!r}.")
    return cast("list[Any]", value)


def _as_object(name: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"ReportDetails.{name}: expected objects, got {value!r}.")
    return cast("Mapping[str, Any]", value)
