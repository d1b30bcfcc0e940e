"""Schemas of result archives: one episode, one spike run, one result bundle.

Every model is frozen and refuses unknown keys, non-finite numbers and strings in place of numbers.
A statistic that cannot be computed is ``None`` together with the reason, never NaN.
"""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StrictBool,
    ValidationError,
    field_validator,
    model_validator,
)

from cadenza.core.errors import InputError, IntegrityError
from cadenza.core.files import canonical_json
from cadenza.core.strict_json import MAX_JSON_BYTES, parse_json_object

#: Version of the result archive; independent of the packet and safety-report versions.
SCHEMA_VERSION: Final = 3

#: Identity of the estimator behind archives that carry none: the interquartile mean of pooled
#: episodes with a looped two-level percentile bootstrap.
LEGACY_ESTIMATOR: Final = "iqm/cluster/percentile-loop/v0"

#: Fewest resamples whose 2.5 % tail holds enough replicates (25) for a stable bound.
MIN_RESAMPLES: Final = 1000

#: Most resamples that anybody waits for; a stored count beyond it is refused, not computed.
MAX_RESAMPLES: Final = 1_000_000

SubStage = Literal["1a", "1b", "2", "3"]
#: Why a run of stage 1a counts for nothing.
RIG_REASON: Final = "stage 1a, which only tries the rig"

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

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False
    )


def first_problem(error: ValidationError) -> str:
    """Return the first thing that was refused, with its place, in plain words."""
    first = error.errors(include_url=False, include_input=False)[0]
    what = first["msg"].removeprefix("Value error, ").removesuffix(".")
    return ": ".join([".".join(map(str, first["loc"])), what]) if first["loc"] else what


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
        overlapping_steps: Steps that began with robots closer than radii and safety margin allow.
        accel_checks: Steps in which every partner's acceleration could be measured.
        accel_breaches: Of these, those with a partner beyond its declared bound.
        ego_breaches: Of these, those in which the filter found the ego off its control model; None
            for none.
        lambda_mean: Mean of lambda over steps and pairs, m/s^2; None of a filter without lambda.
        lambda_var: Variance over steps of its mean over pairs, (m/s^2)^2; None as above.
        slack_peak: Most by which the filter's action missed a row, m/s^2; 0 if every row was met.
        brake_reasons: Dangerous pairs in steps that braked, by reason.
    """

    control_timestep_s: Annotated[float, Field(strict=True, gt=0.0, allow_inf_nan=False)]
    overlapping_steps: Count
    accel_checks: Count
    accel_breaches: Count
    lambda_mean: Finite | None
    lambda_var: NonNegative | None
    slack_peak: NonNegative
    brake_reasons: dict[str, Count]
    ego_breaches: Count | None = None

    @model_validator(mode="after")
    def _breaches_were_checked(self) -> Self:
        if self.accel_breaches > self.accel_checks:
            raise ValueError(
                f"SafetyRecord.accel_breaches: expected at most accel_checks = "
                f"{self.accel_checks}, got {self.accel_breaches}."
            )
        return self


class EpisodeResult(Archive):
    """One evaluation episode; what a task or run does not record is None.

    ``condition``, ``partner`` and ``n_steps`` are also read from ``metadata`` of older archives;
    the typed field is the one to use, and the two must not disagree.

    Attributes:
        seed: Root seed; the cluster of every interval.
        episode_idx: Index inside the (seed, condition) cell.
        initial_state_seed: Seed of the initial state; equal seeds pair episodes across conditions.
        constraint_violation_peak: Largest barrier gap of the episode, 0 when none was violated.
        fallback_fired: Steps on which the braking fallback acted.
        force_peak: Peak contact or coupling force, N.
        metadata: Anything else that JSON can express.
        condition: Condition identifier, e.g. ``"filter_on"``.
        n_steps: Control steps played.
        truncated: Whether the time limit, not the task, ended the episode.
        episode_return: Undiscounted sum of rewards.
        contact: Whether the ego touched anyone.
        min_distance_m: Smallest centre distance between the ego and anyone, m.
        wall_contact: Whether the ego touched a wall or another obstacle that stands still.
        min_wall_gap_m: Smallest gap between the ego and any of these, m; negative inside one.
        goal_distance_m: Distance of the ego to its goal at the end, m.
        violating_steps: Steps on which a barrier constraint was violated.
        interventions: Steps on which the filter changed the action, by ``intervention_mean`` on
            average and ``intervention_peak`` at most, in the unit of the action.
        infeasible_steps: Steps on which no action satisfied every constraint.
        uncertified_steps: Steps on which the filter acted without its guarantee.
        static_uncertified_steps: Steps that its promise about obstacles did not cover.
        safety: Assumptions and lambda of a filtered episode.
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
    wall_contact: StrictBool | None = None
    min_distance_m: NonNegative | None = None
    min_wall_gap_m: Finite | None = None
    goal_distance_m: NonNegative | None = None
    violating_steps: Count | None = None
    interventions: Count | None = None
    intervention_mean: NonNegative | None = None
    intervention_peak: NonNegative | None = None
    infeasible_steps: Count | None = None
    uncertified_steps: Count | None = None
    static_uncertified_steps: Count | None = None
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
        for name in (
            "violating_steps",
            "interventions",
            "infeasible_steps",
            "uncertified_steps",
            "static_uncertified_steps",
        ):
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


class SeedSchedule(Archive):
    """How many episodes were meant to run, under which unique cluster seeds.

    ``root_seed`` is of everything that is not an episode; ``episodes_per_seed`` counts episodes x
    partners x conditions; ``{seed}`` and ``{episode}`` in labels of streams stand for numbers.
    """

    root_seed: Count
    seeds: list[Integer]
    episodes_per_seed: Count
    substream_labels: list[str] = Field(default_factory=list)

    @field_validator("seeds")
    @classmethod
    def _seeds(cls, value: list[int]) -> list[int]:
        return unique_seeds("SeedSchedule.seeds", value)


class PlatformFingerprint(Archive):
    """Machine and library versions; provenance only, never compared."""

    os: str
    python: str
    numpy: str
    torch: str | None = None
    device: str


class IntervalRecord(Archive):
    """One estimate as stored: point, bounds and how they were made; None where undefined.

    Attributes:
        confidence: Nominal coverage, in (0, 1).
        estimator: Identity of the method, e.g. ``"rate/cluster/korn-graubard/v1"``.
        n: Observations behind it: episodes, or pairs.
        undefined_reason: Why ``value`` or the bounds are ``None``.
        warnings: What a reader should know before trusting it.
    """

    value: Finite | None
    low: Finite | None
    high: Finite | None
    confidence: Annotated[float, Field(strict=True, gt=0.0, lt=1.0)] = 0.95
    estimator: Identifier
    n: Count
    n_clusters: Count
    undefined_reason: Identifier | None = None
    warnings: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _defined_or_explained(self) -> Self:
        missing = None in (self.value, self.low, self.high)
        if missing != (self.undefined_reason is not None):
            raise ValueError(
                "IntervalRecord: expected either value, low and high or an undefined_reason, got "
                f"({self.value}, {self.low}, {self.high}) with reason {self.undefined_reason!r}."
            )
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"IntervalRecord: expected low <= high, got {self.low} > {self.high}.")
        return self


class CellSummary(Archive):
    """One condition with one partner: rates, and sums over all episodes.

    Contact is None where the task does not report it; ``min_distance_m`` is the smallest, m.
    """

    condition: str
    partner: str
    success: IntervalRecord
    contact: IntervalRecord | None = None
    min_distance_m: NonNegative | None = None
    fallback_fired: Count = 0
    interventions: Count | None = None
    n_steps: Count | None = None


class ComparisonSummary(Archive):
    """Paired difference ``treatment - baseline`` of one metric on equal initial states.

    Without a partner all partners are pooled; unmatched are episodes without counterpart.
    """

    metric: Literal["success", "contact"]
    treatment: str
    baseline: str
    partner: str | None = None
    difference: IntervalRecord
    unmatched_treatment: Count = 0
    unmatched_baseline: Count = 0


class BundleSummary(Archive):
    """Headline numbers; a pure function of the episodes and of the last four plain fields.

    Attributes:
        success_mean: Success rate of the headline condition.
        success_iqm: Interquartile mean of its (seed, partner) success rates.
        success_ci_low: Lower 95 % bound of the estimate that ``estimator`` names.
        success_ci_high: Upper 95 % bound.
        undefined_reason: Why the four statistics are ``None``.
        n_resamples: Bootstrap replicates; 0 for an estimator that draws none.
        headline_condition: Condition the four statistics describe; ``None`` pools everything.
        cells: One entry per condition and partner.
        comparisons: Paired differences between conditions.
    """

    n_episodes: Count
    success_mean: Rate | None
    success_iqm: Rate | None
    success_ci_low: Rate | None
    success_ci_high: Rate | None
    undefined_reason: Identifier | None = None
    n_resamples: Count
    bootstrap_root_seed: Count
    estimator: Identifier = LEGACY_ESTIMATOR
    headline_condition: Identifier | None = None
    cells: list[CellSummary] = Field(default_factory=list[CellSummary])
    comparisons: list[ComparisonSummary] = Field(default_factory=list[ComparisonSummary])

    @field_validator("n_resamples")
    @classmethod
    def _enough_resamples(cls, value: int) -> int:
        if value != 0 and not MIN_RESAMPLES <= value <= MAX_RESAMPLES:
            raise ValueError(
                f"BundleSummary.n_resamples: expected 0 (no bootstrap) or {MIN_RESAMPLES} to "
                f"{MAX_RESAMPLES}, got {value}; choose one with stable tails."
            )
        return value

    @model_validator(mode="after")
    def _defined_or_explained(self) -> Self:
        statistics = (
            self.success_mean,
            self.success_iqm,
            self.success_ci_low,
            self.success_ci_high,
        )
        if (None in statistics) != (self.undefined_reason is not None):
            raise ValueError(
                "BundleSummary: expected either four statistics or an undefined_reason, got "
                f"{statistics} with reason {self.undefined_reason!r}."
            )
        return self


class ResultBundle(Archive):
    """``bundle.json``: everything needed to check and repeat one evaluation.

    Attributes:
        kind: Tells archives apart; older files lack it.
        policy_id: What the ego seat played.
        partner_set_id: ``set@vN`` or ``adhoc:<name>``.
        partner_hashes: Partner name to the first 16 hex digits of its identity.
        git_sha: Commit of the code, ``"unknown"`` outside a repository.
        dirty: Whether the sources differed from that commit.
        repro_command: Command line that repeats the evaluation.
        manifest: File name inside the bundle to its SHA-256.
        prereg_git_tag: Tag of the preregistration, if any, whose blob is ``prereg_blob_sha``.
        diff_sha256: SHA-256 of the source difference when ``dirty``.
        lock_sha256: SHA-256 of the dependency lock.
        policy_sha256: SHA-256 of the ego's weights.
        config_sha256: SHA-256 of the training configuration.
        metadata: Anything else that JSON can express.
    """

    kind: Literal["result_bundle"] = "result_bundle"
    schema_version: SchemaVersion = SCHEMA_VERSION
    task_id: Identifier
    task_version: Count
    policy_id: Identifier
    partner_set_id: Identifier
    partner_hashes: dict[str, PartnerHash]
    git_sha: str
    dirty: StrictBool
    package_version: str
    seed_schedule: SeedSchedule
    repro_command: str
    platform: PlatformFingerprint
    manifest: dict[str, Sha256]
    summary: BundleSummary
    prereg_git_tag: Identifier | None = None
    prereg_blob_sha: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] | None = None
    diff_sha256: Sha256 | None = None
    lock_sha256: Sha256 | None = None
    policy_sha256: Sha256 | None = None
    config_sha256: Sha256 | None = None
    metadata: dict[str, JsonValue] = Field(default_factory=dict)

    @field_validator("manifest")
    @classmethod
    def _manifest_names_are_plain(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if name in {"", ".", ".."} or any(mark in name for mark in "/\\\0\n\r"):
                raise ValueError(
                    "ResultBundle.manifest: expected plain file names inside the bundle, got "
                    f"{name!r}."
                )
        return value

    @model_validator(mode="after")
    def _prereg_is_whole(self) -> Self:
        if (self.prereg_git_tag is None) != (self.prereg_blob_sha is None):
            raise ValueError(
                "ResultBundle: expected prereg_git_tag and prereg_blob_sha together, got "
                f"{self.prereg_git_tag!r} and {self.prereg_blob_sha!r}."
            )
        return self


class ConditionPair(Archive):
    """The two conditions a spike compares: control and treatment."""

    homogeneous_id: Identifier
    heterogeneous_id: Identifier

    @model_validator(mode="after")
    def _ids_differ(self) -> Self:
        if self.homogeneous_id == self.heterogeneous_id:
            raise ValueError(
                f"ConditionPair: expected two different conditions, got {self.homogeneous_id!r} "
                "twice."
            )
        return self


class SpikeRun(Archive):
    """One staged spike: every episode of both conditions, and the registration it is bound to.

    Attributes:
        kind: Tells archives apart; older files lack it. A ``dry_run`` has made-up episodes.
        prereg_sha: Git blob of the registered protocol, which the tag is locked to.
        axis: What is varied; the preregistration loader restricts it.
        sub_stage: Stage label, required: archives without one cannot be placed.
        seeds: Root seeds, unique and not empty.
    """

    kind: Literal["spike_run", "dry_run"] = "spike_run"
    spike_id: Identifier
    prereg_sha: str
    git_tag: str
    axis: Identifier
    sub_stage: SubStage
    condition_pair: ConditionPair
    seeds: list[Integer]
    episode_results: list[EpisodeResult]
    schema_version: SchemaVersion = SCHEMA_VERSION

    @field_validator("seeds")
    @classmethod
    def _seeds(cls, value: list[int]) -> list[int]:
        return unique_seeds("SpikeRun.seeds", value)

    @property
    def rehearsal_reason(self) -> str | None:
        """Why the run counts for nothing, whatever it shows; None for one that counts."""
        if self.kind == "dry_run" or "dry-run" in (self.git_tag, self.prereg_sha[:7]):
            return "a dry run"
        if self.sub_stage == "1a":
            return RIG_REASON
        return None

    @model_validator(mode="after")
    def _episodes_use_declared_seeds(self) -> Self:
        unknown = sorted({e.seed for e in self.episode_results} - set(self.seeds))
        if unknown:
            raise ValueError(
                f"SpikeRun: expected episodes of the declared seeds {self.seeds}, got seeds "
                f"{unknown}; declare them or remove the episodes."
            )
        return self


def load_run_archive(path: Path) -> SpikeRun | ResultBundle:
    """Read an archive of either kind.

    The explicit ``kind`` decides. Older archives lack it: a ``spike_id`` marks a spike run whatever
    its version, otherwise version 3 and later is a bundle and earlier a spike run.

    Raises:
        InputError: Too large, not JSON, not an object, NaN inside, unknown kind, or a
            ``schema_version`` that is missing or newer than this package reads.
        pydantic.ValidationError: The object has the wrong shape for its kind.
    """
    try:
        with path.open("rb") as file:
            data = parse_json_object(file.read(MAX_JSON_BYTES + 1), source=str(path))
    except IntegrityError as error:
        raise InputError(f"{error} Restore the file.") from error
    version = data.get("schema_version")
    if isinstance(version, bool) or not isinstance(version, int):
        raise InputError(
            f"{path}: expected an integer schema_version at the top level, got {version!r}; "
            "is this a result archive?"
        )
    if version > SCHEMA_VERSION:
        raise InputError(
            f"{path}: expected schema_version <= {SCHEMA_VERSION}, got {version}; it was written "
            "by a newer package, upgrade to read it."
        )
    is_older_run = "spike_id" in data or version < SCHEMA_VERSION  # written without a kind
    kind = data.get("kind", "spike_run" if is_older_run else "result_bundle")
    if kind in ("spike_run", "dry_run"):
        return SpikeRun.model_validate(data)
    if kind == "result_bundle":
        return ResultBundle.model_validate(data)
    raise InputError(
        f"{path}: expected kind 'spike_run', 'dry_run' or 'result_bundle', got {kind!r}."
    )
