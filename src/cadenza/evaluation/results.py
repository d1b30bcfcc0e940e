"""Schemas of result archives: one episode, one spike run, one result bundle.

Every model is frozen and refuses unknown keys, non-finite numbers and strings in place of numbers.
A statistic that cannot be computed is ``None`` together with the reason, never NaN.
"""

import json
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NoReturn, Self, cast

from pydantic import Field, JsonValue, StrictBool, field_validator, model_validator

from cadenza.core.errors import InputError
from cadenza.evaluation.episodes import (
    LEGACY_ESTIMATOR,
    MIN_RESAMPLES,
    SCHEMA_VERSION,
    Archive,
    Count,
    EpisodeResult,
    Finite,
    Identifier,
    Integer,
    NonNegative,
    PartnerHash,
    Rate,
    SafetyRecord,
    SchemaVersion,
    Sha256,
    SubStage,
    unique_seeds,
)


class SeedSchedule(Archive):
    """How many episodes were meant to run, under which seeds.

    Attributes:
        root_seed: Seed of everything that is not an episode.
        seeds: Cluster seeds, unique and not empty.
        episodes_per_seed: Records per seed: episodes x partners x conditions.
        substream_labels: Names of the random streams; ``{seed}`` and ``{episode}`` stand for
            numbers.
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
    """One estimate as stored: point, bounds and how they were made.

    Attributes:
        value: Point estimate; ``None`` when undefined.
        low: Lower bound; ``None`` when undefined.
        high: Upper bound; ``None`` when undefined.
        confidence: Nominal coverage, in (0, 1).
        estimator: Identity of the method, e.g. ``"rate/cluster/korn-graubard/v1"``.
        n: Observations behind it: episodes, or pairs.
        n_clusters: Seeds behind it.
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
    """One condition with one partner.

    Attributes:
        condition: Condition identifier.
        partner: Partner identifier.
        success: Success rate.
        contact: Contact rate; ``None`` where the task does not report contact.
        min_distance_m: Smallest distance over all episodes, m.
        fallback_fired: Braking fallbacks over all episodes.
        interventions: Steps on which the filter acted, over all episodes.
        n_steps: Control steps over all episodes.
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

    Attributes:
        metric: ``"success"`` or ``"contact"``.
        treatment: Condition identifier.
        baseline: Condition identifier.
        partner: Partner identifier; ``None`` pools all partners.
        difference: Mean difference with its interval.
        unmatched_treatment: Treatment episodes without a partner episode.
        unmatched_baseline: Baseline episodes without a partner episode.
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
        n_episodes: Episodes in the bundle.
        success_mean: Success rate of the headline condition.
        success_iqm: Interquartile mean of its (seed, partner) success rates.
        success_ci_low: Lower 95 % bound of the estimate that ``estimator`` names.
        success_ci_high: Upper 95 % bound.
        undefined_reason: Why the four statistics are ``None``.
        n_resamples: Bootstrap replicates; 0 for an estimator that draws none.
        bootstrap_root_seed: Root seed of those draws.
        estimator: Identity of the headline estimator.
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
        if 0 < value < MIN_RESAMPLES:
            raise ValueError(
                f"BundleSummary.n_resamples: expected 0 (no bootstrap) or >= {MIN_RESAMPLES}, "
                f"got {value}; raise it so that the tails are stable."
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
        schema_version: Version of this archive.
        task_id: Task identifier.
        task_version: Version of the task.
        policy_id: What the ego seat played.
        partner_set_id: ``set@vN`` or ``adhoc:<name>``.
        partner_hashes: Partner name to the first 16 hex digits of its identity.
        git_sha: Commit of the code, ``"unknown"`` outside a repository.
        dirty: Whether the sources differed from that commit.
        package_version: Version of this package.
        seed_schedule: Planned seeds and counts.
        repro_command: Command line that repeats the evaluation.
        platform: Machine and library versions.
        manifest: File name inside the bundle to its SHA-256.
        summary: Headline numbers.
        prereg_git_tag: Tag of the preregistration, if any.
        prereg_blob_sha: Git blob of the preregistration, if any.
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


__all__ = [
    "LEGACY_ESTIMATOR",
    "MIN_RESAMPLES",
    "SCHEMA_VERSION",
    "BundleSummary",
    "CellSummary",
    "ComparisonSummary",
    "ConditionPair",
    "EpisodeResult",
    "IntervalRecord",
    "PlatformFingerprint",
    "ResultBundle",
    "SafetyRecord",
    "SeedSchedule",
    "SpikeRun",
    "SubStage",
    "load_run_archive",
]

#: Largest archive read into memory, bytes: 500 000 episodes of 500 bytes.
MAX_ARCHIVE_BYTES: Final = 256 << 20


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
        kind: Tells archives apart; older files lack it.
        spike_id: Free identifier.
        prereg_sha: Git blob of the registered protocol.
        git_tag: Tag that protocol is locked to.
        axis: What is varied; the preregistration loader restricts it.
        sub_stage: Stage label, required: archives without one cannot be placed.
        condition_pair: The two conditions.
        seeds: Root seeds, unique and not empty.
        episode_results: Episodes of both conditions.
        schema_version: Version of this archive.
    """

    kind: Literal["spike_run"] = "spike_run"
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

    Args:
        path: A JSON file.

    Raises:
        InputError: Too large, not JSON, not an object, NaN inside, unknown kind, or a
            ``schema_version`` that is missing or newer than this package reads.
        pydantic.ValidationError: The object has the wrong shape for its kind.
        OSError: The file cannot be read.
    """
    data = _read_object(path)
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
    kind = data.get("kind", _kind_of_older_archive(data, version))
    if kind == "spike_run":
        return SpikeRun.model_validate(data)
    if kind == "result_bundle":
        return ResultBundle.model_validate(data)
    raise InputError(f"{path}: expected kind 'spike_run' or 'result_bundle', got {kind!r}.")


def _kind_of_older_archive(data: dict[str, Any], version: int) -> str:
    """Return the kind of an archive written before ``kind`` existed."""
    if "spike_id" in data or version < SCHEMA_VERSION:
        return "spike_run"
    return "result_bundle"


def _read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in ``path``; errors as `load_run_archive`."""
    size = path.stat().st_size
    if size > MAX_ARCHIVE_BYTES:
        raise InputError(f"{path}: expected at most {MAX_ARCHIVE_BYTES} bytes, got {size}.")
    try:
        data = json.loads(path.read_bytes().decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: expected strict JSON in UTF-8, got {error}; restore the file."
        ) from error
    if not isinstance(data, dict):
        raise InputError(f"{path}: expected a JSON object, got {type(data).__name__}.")
    return cast("dict[str, Any]", data)


def _refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and infinities, which Python's JSON reader accepts."""
    raise ValueError(f"the number {name}")
