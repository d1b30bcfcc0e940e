"""Admission of a task: the rules by which intervals become outcomes, and outcomes a verdict.

A1:       the reference pair solves it.          PASS  low >= tau_solv         FAIL  high < tau_solv
A2:       without a partner nobody does.         PASS  high <= tau_infeasible  FAIL  low > it
A3:       a partner-blind ego is worse.          PASS  low of the gap >= delta_min  FAIL  high < it
A4:       the ego that measures the contrast is itself robust: beside every admitted partner.
          PASS  every low >= c_min_ego; FAIL  any high < c_min_ego. An intersection of tests: no
          correction for their number is needed.
Between:  INDETERMINATE. Measured checks can be extended; evidence that was wrapped cannot, and its
          straddle is final: FAIL.
Evidence: committed files, pinned by their digests; figures are computed from them again, and no
          other file is read.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, TypeAlias

from pydantic import Field, ValidationError

from cadenza.core.errors import ConfigurationError, InputError, IntegrityError, StorageError
from cadenza.core.files import confined_path, sha256_bytes
from cadenza.core.strict_json import MAX_JSON_BYTES, parse_json_object
from cadenza.evaluation.prereg import LockedRegistration, PreregDocument
from cadenza.evaluation.results import Archive, EpisodeResult, Finite, Rate, Sha256
from cadenza.evaluation.statistics.estimate import group_by_seed, rate_estimate

Outcome: TypeAlias = Literal["PASS", "FAIL", "INDETERMINATE"]
Verdict: TypeAlias = Literal[
    "ADMITTED", "CONTROL", "NOT_SOLVABLE", "UNINSTRUMENTABLE", "INDETERMINATE"
]
#: Key of the block in a registration.
ADMISSION_BLOCK: Final = "admission"
_EPISODES: Final = "episodes_seed"


class WrappedEvidence(Archive):
    """A committed bundle instead of new episodes.

    Attributes:
        files: Paths in the repository, with the SHA-256 of their bytes.
        stress_limit: Largest force that complies, N; None for a task without one.
    """

    files: dict[str, Sha256] = Field(min_length=1)
    stress_limit: Finite | None = None


class AdmissionThresholds(Archive):
    """What is registered: the limits of the checks, and evidence for A4, if it exists already."""

    tau_solv: Rate
    tau_infeasible: Rate
    delta_min: Rate
    c_min_ego: Rate
    a4: WrappedEvidence | None = None


def thresholds_in(registration: LockedRegistration, task_id: str) -> AdmissionThresholds:
    """Return what ``parameters.admission`` of a registration fixes for a task.

    Raises:
        ConfigurationError: There is no such block, it is malformed, or is of another task.
    """
    document = registration.protocol
    if not isinstance(document, PreregDocument) or document.task_id != task_id:
        raise ConfigurationError(
            f"{registration.path}: expected a protocol of task {task_id!r}, got another."
        )
    try:
        return AdmissionThresholds.model_validate(document.parameters.get(ADMISSION_BLOCK))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in (ADMISSION_BLOCK, *first["loc"]))
        raise ConfigurationError(f"parameters.{place}: {first['msg']}.") from error


def a1_outcome(low: float, high: float, tau_solv: float) -> Outcome:
    """Return whether the reference succeeds often enough."""
    return _at_least(low, high, tau_solv)


def a2_outcome(low: float, high: float, tau_infeasible: float) -> Outcome:
    """Return whether success without a partner is rare enough."""
    if high <= tau_infeasible:
        return "PASS"
    return "FAIL" if low > tau_infeasible else "INDETERMINATE"


def a3_outcome(low: float, high: float, delta_min: float) -> Outcome:
    """Return whether the paired difference to a partner-blind ego is large enough."""
    return _at_least(low, high, delta_min)


def a4_outcome(bounds: Mapping[str, tuple[float, float]], c_min_ego: float) -> Outcome:
    """Return whether the ego clears the floor beside every admitted partner.

    Raises:
        InputError: There is no partner.
    """
    if not bounds:
        raise InputError("A4: expected bounds of every admitted partner, got none.")
    outcomes = {_at_least(low, high, c_min_ego) for low, high in bounds.values()}
    if "FAIL" in outcomes:
        return "FAIL"
    return "INDETERMINATE" if "INDETERMINATE" in outcomes else "PASS"


def final(outcome: Outcome) -> Outcome:
    """Return the outcome of evidence that nobody can extend."""
    return "PASS" if outcome == "PASS" else "FAIL"


def overall_verdict(a1: Outcome, a2: Outcome, a3: Outcome, a4: Outcome | None = None) -> Verdict:
    """Return the verdict; None for a check that was not registered."""
    if a1 == "FAIL":
        return "NOT_SOLVABLE"
    if "INDETERMINATE" in (a1, a2, a3, a4):
        return "INDETERMINATE"
    if "FAIL" in (a2, a3):
        return "CONTROL"
    return "UNINSTRUMENTABLE" if a4 == "FAIL" else "ADMITTED"


def wrapped_profile(evidence: WrappedEvidence, repo_path: Path) -> dict[str, tuple[float, float]]:
    """Return the bounds of the success rate beside every partner of a committed bundle.

    Where a force limit is registered, only a success that keeps it counts.

    Raises:
        IntegrityError: A file is missing, has other bytes, or holds no episodes with partners.
    """
    episodes: list[EpisodeResult] = []
    for name, digest in sorted(evidence.files.items()):
        try:
            with confined_path(repo_path, name).open("rb") as file:
                data = file.read(MAX_JSON_BYTES + 1)
        except (OSError, StorageError) as error:
            raise IntegrityError(f"{name}: expected pinned evidence, got '{error}'.") from error
        if sha256_bytes(data) != digest:
            raise IntegrityError(f"{name}: expected SHA-256 {digest[:12]}..., got other bytes.")
        if Path(name).name.startswith(_EPISODES):
            lines = data.splitlines()
            episodes += [_episode(line, f"{name}, line {k}") for k, line in enumerate(lines, 1)]
    groups: dict[str, list[tuple[int, float]]] = {}
    for episode in episodes:
        if episode.partner is None or (
            evidence.stress_limit is not None and episode.force_peak is None
        ):
            raise IntegrityError("evidence: expected partner and force in every episode, got none.")
        complies = evidence.stress_limit is None or (episode.force_peak or 0.0) <= (
            evidence.stress_limit
        )
        row = (episode.seed, float(episode.success and complies))
        groups.setdefault(episode.partner, []).append(row)
    profile: dict[str, tuple[float, float]] = {}
    for partner, rows in sorted(groups.items()):
        rate = rate_estimate(group_by_seed(rows))
        profile[partner] = (rate.low or 0.0, 1.0 if rate.high is None else rate.high)
    return profile


def _at_least(low: float, high: float, limit: float) -> Outcome:
    if low >= limit:
        return "PASS"
    return "FAIL" if high < limit else "INDETERMINATE"


def _episode(line: bytes, source: str) -> EpisodeResult:
    try:
        return EpisodeResult.model_validate(parse_json_object(line, source=source))
    except ValidationError as error:
        raise IntegrityError(f"{source}: expected an episode, got another object.") from error
