"""Schemas of result archives: one episode, one spike run, one result bundle.

Every model is frozen and refuses unknown keys, non-finite numbers and strings in place of numbers.
A statistic that cannot be computed is ``None`` together with the reason, never NaN.
"""

import json
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, Self, cast

from pydantic import field_validator, model_validator

from cadenza.core.errors import InputError
from cadenza.evaluation.bundle_schema import (
    BundleSummary,
    CellSummary,
    ComparisonSummary,
    IntervalRecord,
    PlatformFingerprint,
    ResultBundle,
    SeedSchedule,
)
from cadenza.evaluation.episodes import (
    LEGACY_ESTIMATOR,
    MIN_RESAMPLES,
    SCHEMA_VERSION,
    Archive,
    EpisodeResult,
    Identifier,
    Integer,
    SafetyRecord,
    SchemaVersion,
    SubStage,
    unique_seeds,
)

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
    """The two conditions a spike compares.

    Attributes:
        homogeneous_id: The control.
        heterogeneous_id: The treatment.
    """

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
