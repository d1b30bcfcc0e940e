"""What a verification found: counts, what they say about rates, and one record of everything.

Bounds per episode:  Clopper and Pearson's exact two-sided 95 % interval; episodes are independent.
Bounds per step:     one-sided 95 %: 1 - 0.05^(1 / n) after no event, about 3 / n (the rule of
                     three); the same exact binomial bound otherwise. Steps of one episode are not
                     independent, so after events it describes these runs and no more.
File:                no times and no paths: the same configuration and code give the same bytes.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from cadenza.core.files import atomic_write_bytes, canonical_json, finite_or_none, sha256_bytes
from cadenza.core.proportions import clopper_pearson_interval
from cadenza.core.provenance import RunContext
from cadenza.safety.record import Figures
from cadenza.safety.verifier.config import VerifierConfig
from cadenza.safety.verifier.episodes import EpisodeRecord, draw_episode

#: Coverage of the intervals.
CONFIDENCE: Final = 0.95
#: Version of the file's layout.
SCHEMA_VERSION: Final = 1
#: Names of the files in a result folder.
REPORT_NAME: Final = "verification.json"
PICTURE_NAME: Final = "worst_episode.png"


@dataclass(slots=True)
class Counts(Figures):
    """What happened in some episodes."""

    episodes: int = 0  # Episodes played
    steps: int = 0  # Control steps played
    penetrated_episodes: int = 0  # Episodes in which balls overlapped at any moment
    penetrated_steps: int = 0  # Steps in which they did
    #: Steps in which the nominal action was executed although it misses the safety condition
    unfiltered_steps: int = 0
    #: Other steps whose action misses the condition of the most urgent partner by more than the box
    #: forces it to, or leaves the box
    missed_steps: int = 0
    #: Steps with several partners and old packets, to which the former does not apply except for
    #: the box: which partner is the most urgent depends on what one knows
    unjudged_steps: int = 0
    malformed_steps: int = 0  # Steps in which the filter returned no finite action
    infeasible_steps: int = 0  # Steps in which the filter found no action that meets every row
    exited_steps: int = 0  # Steps with one partner that led out of the safe set of the sampled row
    min_barrier: float = math.inf  # Smallest barrier value after such a step, m/s; negative outside
    #: Steps of which the filter says that its guarantee does not cover them
    uncertified_steps: int = 0
    changed_steps: int = 0  # Steps in which the filter changed the action
    #: Smallest free distance between the balls, m; negative on overlap
    min_margin_m: float = math.inf
    min_distance_m: float = math.inf  # Smallest distance of the centres, m
    compared_steps: int = 0  # Steps repeated through the single-environment filter
    disagreements: int = 0  # Of those, steps whose actions or verdicts differ
    largest_difference: float = 0.0  # Largest difference of an action component, m/s^2
    #: Largest own speed while overlapping a partner, m/s; counted where that is the filter's claim
    largest_contact_speed: float = 0.0
    fast_steps: int = 0  # Steps with a larger one than tolerated

    def episode_interval(self) -> tuple[float, float]:
        """Return the bounds on the rate of episodes with an overlap; (0, 1) without episodes."""
        if self.episodes == 0:
            return 0.0, 1.0
        return clopper_pearson_interval(
            self.penetrated_episodes, self.episodes, confidence=CONFIDENCE
        )

    def step_bound(self, events: int) -> float:
        """Return the upper bound on the rate of steps with an event; 1 without steps."""
        if self.steps == 0:
            return 1.0
        two_sided = 2.0 * CONFIDENCE - 1.0
        return clopper_pearson_interval(events, self.steps, confidence=two_sided)[1]

    def share(self, steps: int) -> float:
        """Return ``steps`` as a share of all steps."""
        return steps / self.steps if self.steps else 0.0

    def to_jsonable(self) -> dict[str, Any]:
        """Return counts, rates and bounds as JSON values."""
        low, high = self.episode_interval()
        values = asdict(self)
        for name in ("min_margin_m", "min_distance_m", "min_barrier", "largest_difference"):
            values[name] = finite_or_none(values[name])
        return values | {
            "penetrated_episode_interval": [low, high],
            "penetrated_step_bound": self.step_bound(self.penetrated_steps),
            "unfiltered_step_bound": self.step_bound(self.unfiltered_steps),
            "intervention_share": self.share(self.changed_steps),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioResult:
    """One row of the table."""

    name: str  # The scenario's name
    kind: str  # "adversarial" or "stationary"
    partners: int  # Number of partners
    dim: int  # Cartesian dimension
    plant: str  # Simulated plant
    dt: float  # Control step, s
    delay: str  # Age of the partners' numbers
    counts: Counts  # What happened
    #: One partner: episodes with an overlap and episodes, by opponent
    by_adversary: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])

    def to_jsonable(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        return {
            "name": self.name,
            "kind": self.kind,
            "partners": self.partners,
            "dim": self.dim,
            "plant": self.plant,
            "dt_s": self.dt,
            "delay": self.delay,
            "by_adversary": {name: list(pair) for name, pair in self.by_adversary.items()},
            **self.counts.to_jsonable(),
        }


def total(results: Sequence[ScenarioResult]) -> Counts:
    """Return the sum of the counts of ``results``."""
    counts = Counts()
    for result in results:
        counts.add(result.counts)
    return counts


def failures(results: Sequence[ScenarioResult]) -> list[str]:
    """Return what contradicts the claim, one sentence each; empty if it holds.

    One partner: no overlap, and no step out of the safe set. Any number of partners: the filter
    returns actions, the unfiltered one is never executed, with one partner or fresh packets the
    most urgent partner's condition is met as far as the box allows, and the single-environment
    filter agrees.
    """
    single = total([result for result in results if result.partners == 1])
    everything = total(results)
    found: list[str] = []
    if single.penetrated_steps:
        found.append(
            f"{single.penetrated_episodes} of {single.episodes} episodes with one partner had an "
            f"overlap, {-single.min_margin_m:.3g} m at the deepest"
        )
    if single.exited_steps:
        found.append(
            f"{single.exited_steps} of {single.steps} steps with one partner led out of the safe "
            f"set, to a barrier of {single.min_barrier:.3g} m/s"
        )
    if everything.fast_steps:
        found.append(
            f"the ego was faster in a contact than tolerated in {everything.fast_steps} steps, "
            f"{everything.largest_contact_speed:.3g} m/s at most"
        )
    if everything.malformed_steps:
        found.append(
            f"the filter returned no finite action in {everything.malformed_steps} of "
            f"{everything.steps} steps"
        )
    if everything.unfiltered_steps:
        found.append(
            f"the unfiltered action was executed in {everything.unfiltered_steps} of "
            f"{everything.steps} steps although it misses the safety condition"
        )
    if everything.missed_steps:
        found.append(
            f"{everything.missed_steps} of {everything.steps} actions miss the condition of the "
            "most urgent partner although the box holds one that meets it"
        )
    if everything.disagreements:
        found.append(
            f"{everything.disagreements} of {everything.compared_steps} compared actions differ "
            "from the single-environment filter, "
            + (
                f"by up to {everything.largest_difference:.3g} m/s^2"
                if math.isfinite(everything.largest_difference)
                else "some in whether the rows can be met"
            )
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VerificationReport:
    """Outcome of one verification."""

    config: VerifierConfig  # What was run
    origin: RunContext  # Code, dependencies and seed
    results: list[ScenarioResult]  # One row per scenario
    #: The episode with the smallest free distance; with one partner, if there were such
    worst: EpisodeRecord

    @property
    def failures(self) -> list[str]:
        """What contradicts the claim, one sentence each."""
        return failures(self.results)

    @property
    def holds(self) -> bool:
        """Whether the claim holds."""
        return not self.failures

    def single_adversarial(self) -> Counts:
        """Return the total of the adversarial scenarios with one partner."""
        return total([r for r in self.results if r.partners == 1 and r.kind == "adversarial"])

    def everything(self) -> Counts:
        """Return the total of all scenarios."""
        return total(self.results)

    def stationary(self) -> Counts:
        """Return the total of the scenarios with a standing partner."""
        return total([r for r in self.results if r.kind == "stationary"])

    def several(self, partners: int | None = None) -> Counts:
        """Return the total of the scenarios with ``partners`` partners; None: with two or more."""
        return total([r for r in self.results if r.partners > 1 and partners in (None, r.partners)])

    def to_jsonable(self) -> dict[str, Any]:
        """Return the report as JSON values, without its hash."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "safety_verification",
            "holds": self.holds,
            "failures": self.failures,
            "confidence": CONFIDENCE,
            "config": self.config.to_jsonable(),
            "origin": {**self.origin.log_fields(), **self.origin.origin_fields()},
            "scenarios": [result.to_jsonable() for result in self.results],
            "totals": {
                "one_partner_adversarial": self.single_adversarial().to_jsonable(),
                "one_partner_stationary": self.stationary().to_jsonable(),
                "several_partners": self.several().to_jsonable(),
            },
            "worst_episode": self.worst.summary(),
        }

    def to_bytes(self) -> bytes:
        """Return the file: canonical JSON with the SHA-256 of the rest as ``content_hash``."""
        return sealed(self.to_jsonable())

    def save(self, folder: Path) -> tuple[Path, Path]:
        """Write report and picture below ``folder``, each in one durable step; return their paths.

        Raises:
            StorageError: The file system refused.
        """
        return save_report(folder, self.to_bytes(), draw_episode(self.worst, self.config))


def sealed(values: dict[str, Any]) -> bytes:
    """Return canonical JSON with the SHA-256 of ``values`` as ``content_hash``, and a newline."""
    digest = sha256_bytes(canonical_json(values))
    return canonical_json({**values, "content_hash": digest}) + b"\n"


def save_report(folder: Path, report: bytes, picture: bytes) -> tuple[Path, Path]:
    """Write a report and its picture, the picture first; return their paths."""
    paths = folder / REPORT_NAME, folder / PICTURE_NAME
    atomic_write_bytes(paths[1], picture)
    atomic_write_bytes(paths[0], report)
    return paths
