"""One evaluation episode: its record and line-per-episode format, and the types of all archives."""

from typing import Annotated, Any, Final, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StrictBool, model_validator

from cadenza.core.files import canonical_json

#: Version of the result archive; independent of the packet and safety-report versions.
SCHEMA_VERSION: Final = 3

#: Identity of the estimator behind archives that carry none: the interquartile mean of pooled
#: episodes with a looped two-level percentile bootstrap.
LEGACY_ESTIMATOR: Final = "iqm/cluster/percentile-loop/v0"

#: Fewest resamples whose 2.5 % tail holds enough replicates (25) for a stable bound.
MIN_RESAMPLES: Final = 1000

SubStage = Literal["1a", "1b", "2", "3"]

Integer = Annotated[int, Field(strict=True)]
Count = Annotated[int, Field(strict=True, ge=0)]
Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0.0)]
Rate = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0.0, le=1.0)]
Identifier = Annotated[str, Field(min_length=1)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
PartnerHash = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
SchemaVersion = Annotated[int, Field(strict=True, ge=1, le=SCHEMA_VERSION)]


class Archive(BaseModel):
    """Settings every archive model shares."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def unique_seeds(name: str, seeds: list[int]) -> list[int]:
    """Return ``seeds`` if they are a non-empty list of different integers."""
    if not seeds or len(set(seeds)) != len(seeds):
        raise ValueError(f"{name}: expected at least one seed and no repeats, got {seeds}.")
    return seeds


#: Typed fields that older archives kept in ``metadata``, with the keys they used there.
_LIFTED_KEYS: Final = {
    "condition": ("condition",),
    "partner": ("partner", "member"),
    "n_steps": ("n_steps",),
}


class SafetyRecord(Archive):
    """What the safety filter's assumptions and lambda did in one filtered episode.

    Attributes:
        control_timestep_s: Control step, s.
        overlapping_steps: Steps that began with robots closer than radii and safety margin allow.
        accel_checks: Steps in which every partner's acceleration could be measured.
        accel_breaches: Of these, those with a partner beyond its declared bound.
        lambda_mean: Mean of lambda over steps and pairs, m/s^2.
        lambda_var: Variance over steps of its mean over pairs, (m/s^2)^2.
        slack_peak: Most by which the filter's action missed a row, m/s^2; 0 if every row was met.
        brake_reasons: Dangerous pairs in steps that braked, by reason.
    """

    control_timestep_s: Annotated[float, Field(strict=True, gt=0.0, allow_inf_nan=False)]
    overlapping_steps: Count
    accel_checks: Count
    accel_breaches: Count
    lambda_mean: Finite
    lambda_var: NonNegative
    slack_peak: NonNegative
    brake_reasons: dict[str, Count]

    @model_validator(mode="after")
    def _breaches_were_checked(self) -> Self:
        if self.accel_breaches > self.accel_checks:
            raise ValueError(
                f"SafetyRecord.accel_breaches: expected at most accel_checks = "
                f"{self.accel_checks}, got {self.accel_breaches}."
            )
        return self


class EpisodeResult(Archive):
    """One evaluation episode.

    ``condition``, ``partner`` and ``n_steps`` are also read from ``metadata`` of older archives;
    the typed field is the one to use, and the two must not disagree.

    Attributes:
        seed: Root seed; the cluster of every interval.
        episode_idx: Index inside the (seed, condition) cell.
        initial_state_seed: Seed of the initial state; equal seeds pair episodes across conditions.
        success: Whether the task's success predicate held.
        constraint_violation_peak: Largest barrier gap of the episode, 0 when none was violated.
        fallback_fired: Steps on which the braking fallback acted.
        force_peak: Peak contact or coupling force, N; ``None`` where the task has no such channel.
        metadata: Anything else that JSON can express.
        condition: Condition identifier, e.g. ``"filter_on"``.
        partner: Partner identifier.
        n_steps: Control steps played.
        truncated: Whether the time limit, not the task, ended the episode.
        episode_return: Undiscounted sum of rewards.
        contact: Whether the ego touched anyone.
        min_distance_m: Smallest centre distance between the ego and anyone, m.
        goal_distance_m: Distance of the ego to its goal at the end, m.
        violating_steps: Steps on which a barrier constraint was violated.
        interventions: Steps on which the filter changed the action; ``None`` without a filter.
        intervention_mean: Mean size of those changes, in the unit of the action.
        intervention_peak: Largest such change, in the unit of the action.
        infeasible_steps: Steps on which no action satisfied every constraint.
        uncertified_steps: Steps on which the filter acted without its guarantee.
        safety: Assumptions and lambda of a filtered episode; ``None`` without a filter, and in
            older archives.
    """

    seed: Integer
    episode_idx: Count
    initial_state_seed: Integer
    success: StrictBool
    constraint_violation_peak: Finite = 0.0
    fallback_fired: Count = 0
    force_peak: Finite | None = None
    metadata: dict[str, JsonValue] = Field(default_factory=dict)
    condition: Identifier | None = None
    partner: Identifier | None = None
    n_steps: Count | None = None
    truncated: StrictBool | None = None
    episode_return: Finite | None = None
    contact: StrictBool | None = None
    min_distance_m: NonNegative | None = None
    goal_distance_m: NonNegative | None = None
    violating_steps: Count | None = None
    interventions: Count | None = None
    intervention_mean: NonNegative | None = None
    intervention_peak: NonNegative | None = None
    infeasible_steps: Count | None = None
    uncertified_steps: Count | None = None
    safety: SafetyRecord | None = None

    @model_validator(mode="before")
    @classmethod
    def _lift_metadata(cls, data: Any) -> Any:
        """Fill typed fields from the metadata keys that older archives used."""
        if not isinstance(data, dict):
            return data
        values: dict[str, Any] = {**data}
        raw: object = values.get("metadata")
        if not isinstance(raw, dict):
            return values
        metadata = cast("dict[str, Any]", raw)
        for field, keys in _LIFTED_KEYS.items():
            for key in keys:
                if key not in metadata:
                    continue
                old: Any = metadata[key]
                if field == "n_steps" and not isinstance(old, int):
                    continue  # some archives stored numbers as text
                if values.get(field) is None:
                    values[field] = old
                elif values[field] != old:
                    raise ValueError(
                        f"EpisodeResult: expected {field} and metadata[{key!r}] to agree, got "
                        f"{values[field]!r} and {old!r}; drop the metadata entry."
                    )
        return values

    @model_validator(mode="after")
    def _counts_fit_the_episode(self) -> Self:
        if self.n_steps is None:
            return self
        for name in ("violating_steps", "interventions", "infeasible_steps", "uncertified_steps"):
            count: int | None = getattr(self, name)
            if count is not None and count > self.n_steps:
                raise ValueError(
                    f"EpisodeResult.{name}: expected at most n_steps = {self.n_steps}, got {count}."
                )
        record = self.safety
        if record is not None and max(record.overlapping_steps, record.accel_checks) > self.n_steps:
            raise ValueError(
                f"EpisodeResult.safety: expected at most n_steps = {self.n_steps} steps, got "
                f"{record.overlapping_steps} and {record.accel_checks}."
            )
        return self


def episode_line(episode: EpisodeResult) -> bytes:
    """Return ``episode`` as one line of canonical JSON: equal episodes, equal bytes.

    What was not recorded is left out; None is the default of every such field.
    """
    fields = episode.model_dump(mode="json")
    return canonical_json({k: v for k, v in fields.items() if v is not None}) + b"\n"
