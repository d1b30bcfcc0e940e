"""What a verification found: counts, what they say about rates, and one record of everything.

Bounds per episode:  Clopper and Pearson's exact two-sided 95 % interval; episodes are independent.
Bounds per step:     one-sided 95 %: 1 - 0.05^(1 / n) after no event, about 3 / n (the rule of
                     three); the same exact binomial bound otherwise. Steps of one episode are not
                     independent, so after events it describes these runs and no more.
File:                no times and no paths: the same configuration and code give the same bytes.
"""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, Self, TypeVar

from cadenza.core.files import atomic_write_bytes, canonical_json, finite_or_none, sha256_bytes
from cadenza.core.proportions import clopper_pearson_interval
from cadenza.core.provenance import RunContext, compute_run_metadata
from cadenza.safety.record import Figures
from cadenza.safety.verifier.config import AttackConfig, VerifierConfig
from cadenza.safety.verifier.episodes import EpisodeRecord, draw_episode
from cadenza.safety.verifier.robots import Claim

#: Coverage of the intervals.
CONFIDENCE: Final = 0.95
#: Version of the file's layout.
SCHEMA_VERSION: Final = 1
#: Names of the files in a result folder.
REPORT_NAME: Final = "verification.json"
PICTURE_NAME: Final = "worst_episode.png"
#: What was run, and a row of what was found.
Settings = TypeVar("Settings", VerifierConfig, AttackConfig)
Row = TypeVar("Row")


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
        return _finite(self) | {
            "penetrated_episode_interval": [low, high],
            "penetrated_step_bound": self.step_bound(self.penetrated_steps),
            "unfiltered_step_bound": self.step_bound(self.unfiltered_steps),
            "intervention_share": self.share(self.changed_steps),
        }


@dataclass(slots=True)
class AttackCounts(Figures):
    """What happened in some episodes beside obstacles."""

    episodes: int = 0  # Episodes played
    steps: int = 0  # Control steps played
    vain_starts: int = 0  # Starts that were drawn and not certified
    touched_episodes: int = 0  # Episodes in which a partner touched the robot
    goals: int = 0  # Goals reached
    wall_contacts: int = 0  # Steps in which an obstacle was touched
    static_uncertified: int = 0  # Steps for which the filter does not promise that
    uncertified: int = 0  # Steps for which it promises nothing about partners
    certified_contacts: int = 0  # Steps certified to escape in which it touched the robot
    fast_contacts: int = 0  # Steps in which the robot moved while it was touched
    excessive_steps: int = 0  # Steps whose action is beyond the limits of the robot
    #: Steps certified to escape that began or ended outside the safe set of the sampled row
    exited_steps: int = 0
    largest_contact_speed: float = 0.0  # Its speed then, m/s
    min_wall_m: float = math.inf  # Smallest gap to an obstacle, m
    min_gap_m: float = math.inf  # Smallest gap to a partner in steps certified to escape, m
    sources: Counter[str] = field(default_factory=Counter[str])  # Steps by the action's source

    def to_jsonable(self) -> dict[str, Any]:
        """Return the counts as JSON values."""
        return {**_finite(self), "sources": dict(sorted(self.sources.items()))}


def _finite(counts: Counts | AttackCounts) -> dict[str, Any]:
    """Return counts as JSON values; None for the least or largest of nothing."""
    return {
        name: finite_or_none(value) if isinstance(value, float) else value
        for name, value in asdict(counts).items()
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
    differs = (
        f"by up to {everything.largest_difference:.3g} m/s^2"
        if math.isfinite(everything.largest_difference)
        else "some in whether the rows can be met"
    )
    return _said(
        (
            single.penetrated_steps,
            f"{single.penetrated_episodes} of {single.episodes} episodes with one partner had an "
            f"overlap, {-single.min_margin_m:.3g} m at the deepest",
        ),
        (
            single.exited_steps,
            f"{single.exited_steps} of {single.steps} steps with one partner led out of the safe "
            f"set, to a barrier of {single.min_barrier:.3g} m/s",
        ),
        (
            everything.fast_steps,
            f"the ego was faster in a contact than tolerated in {everything.fast_steps} steps, "
            f"{everything.largest_contact_speed:.3g} m/s at most",
        ),
        (
            everything.malformed_steps,
            f"the filter returned no finite action in {everything.malformed_steps} of "
            f"{everything.steps} steps",
        ),
        (
            everything.unfiltered_steps,
            f"the unfiltered action was executed in {everything.unfiltered_steps} of "
            f"{everything.steps} steps although it misses the safety condition",
        ),
        (
            everything.missed_steps,
            f"{everything.missed_steps} of {everything.steps} actions miss the condition of the "
            "most urgent partner although the box holds one that meets it",
        ),
        (
            everything.disagreements,
            f"{everything.disagreements} of {everything.compared_steps} compared actions differ "
            f"from the single-environment filter, {differs}",
        ),
    )


def _said(*events: tuple[int, str]) -> list[str]:
    """Return the sentences of what happened at all."""
    return [sentence for count, sentence in events if count]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackResult:
    """One row of the table: one scheme in free space, or among obstacles."""

    scheme: str  # Its name
    claim: Claim
    world: str  # Kind of world, or name of the map
    counts: AttackCounts
    free: bool  # Whether there are no obstacles
    errors: bool = False  # Whether obstacles are measured wrongly
    #: Whether partners are measured wrongly by a robot that remembers no escape, so that a packet
    #: may take a certificate away which the next one gives back
    wavers: bool = False

    def failures(self) -> list[str]:
        """Return what contradicts the claim, one sentence each."""
        counts, where = self.counts, f"{self.scheme} in {self.world}"
        escapes, passive = self.claim == "escape", self.claim == "passive"
        return _said(
            (
                counts.wall_contacts,
                f"{where}: an obstacle was touched in {counts.wall_contacts} of {counts.steps} "
                f"steps, {-counts.min_wall_m:.3g} m at the deepest",
            ),
            # An obstacle that is measured too near is not promised in that step, and not touched.
            (
                0 if self.errors else counts.static_uncertified,
                f"{where}: obstacles were not promised in {counts.static_uncertified} of "
                f"{counts.steps} steps, although the first one was certified",
            ),
            (
                counts.excessive_steps,
                f"{where}: {counts.excessive_steps} actions are beyond the limits of the robot",
            ),
            (
                escapes * counts.certified_contacts,
                f"{where}: a partner touched the robot in {counts.certified_contacts} certified "
                f"steps, {-counts.min_gap_m:.3g} m at the deepest",
            ),
            (
                counts.exited_steps,
                f"{where}: {counts.exited_steps} certified steps began or ended outside the safe "
                "set",
            ),
            (
                (escapes and self.free and not self.wavers) * counts.uncertified,
                f"{where}: {counts.uncertified} of {counts.steps} steps were uncertified, although "
                "the first one was certified and nothing stood in the way",
            ),
            (
                passive * counts.fast_contacts,
                f"{where}: the robot moved in {counts.fast_contacts} contacts, with up to "
                f"{counts.largest_contact_speed:.3g} m/s",
            ),
        )

    def to_jsonable(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        row = {"scheme": self.scheme, "claim": self.claim, "world": self.world}
        return {**row, **self.counts.to_jsonable()}


@dataclass(frozen=True, kw_only=True, eq=False)
class Report(ABC, Generic[Settings, Row]):
    """Outcome of one run: what was played, what was found, and its most telling episode."""

    kind: ClassVar[str]  # What the run, and its file, call themselves
    config: Settings  # What was run
    origin: RunContext  # Code, dependencies and seed
    results: list[Row]  # What happened, in parts
    worst: EpisodeRecord  # The episode of the lowest rank

    @classmethod
    def of(cls, config: Settings, results: list[Row], worst: EpisodeRecord | None) -> Self:
        """Return the report of a run that ends now; it played at least one episode."""
        if worst is None:
            raise AssertionError("a run has at least one episode")
        origin = compute_run_metadata(
            seed=config.seed,
            run_kind=cls.kind,
            repo_root=None,
            config_fingerprint=config.fingerprint(),
        )
        return cls(config=config, origin=origin, results=results, worst=worst)

    @property
    @abstractmethod
    def failures(self) -> list[str]:
        """What contradicts the claim, one sentence each."""

    @abstractmethod
    def found(self) -> dict[str, Any]:
        """Return rows and totals as JSON values, by name."""

    @property
    def holds(self) -> bool:
        """Whether the claim holds."""
        return not self.failures

    def to_jsonable(self) -> dict[str, Any]:
        """Return the report as JSON values, without its hash."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": self.kind,
            "holds": self.holds,
            "failures": self.failures,
            "config": self.config.to_jsonable(),
            "origin": {**self.origin.log_fields(), **self.origin.origin_fields()},
            **self.found(),
            "worst_episode": self.worst.summary,
        }

    def to_bytes(self) -> bytes:
        """Return the file: canonical JSON with the SHA-256 of the rest as ``content_hash``."""
        values = self.to_jsonable()
        digest = sha256_bytes(canonical_json(values))
        return canonical_json({**values, "content_hash": digest}) + b"\n"

    def save(self, folder: Path) -> tuple[Path, Path]:
        """Write report and picture below ``folder``, each in one durable step; return their paths.

        Raises:
            StorageError: The file system refused.
        """
        paths = folder / REPORT_NAME, folder / PICTURE_NAME
        atomic_write_bytes(paths[1], draw_episode(self.worst))
        atomic_write_bytes(paths[0], self.to_bytes())
        return paths


class VerificationReport(Report[VerifierConfig, ScenarioResult]):
    """Outcome of one verification, scenario by scenario.

    Its worst episode has the smallest free distance; with one partner, if there were such.
    """

    kind = "safety_verification"

    @property
    def failures(self) -> list[str]:
        """What contradicts the claim, one sentence each."""
        return failures(self.results)

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

    def found(self) -> dict[str, Any]:
        """Return rows and totals as JSON values, by name."""
        return {
            "confidence": CONFIDENCE,
            "scenarios": [result.to_jsonable() for result in self.results],
            "totals": {
                "one_partner_adversarial": self.single_adversarial().to_jsonable(),
                "one_partner_stationary": self.stationary().to_jsonable(),
                "several_partners": self.several().to_jsonable(),
            },
        }


class AttackReport(Report[AttackConfig, AttackResult]):
    """Outcome of one attack on robots beside obstacles, by scheme and kind of world.

    Its worst episode broke a claim, or came nearest.
    """

    kind = "safety_attack"

    @property
    def failures(self) -> list[str]:
        """What contradicts the claims, one sentence each."""
        return [failure for result in self.results for failure in result.failures()]

    def totals(self) -> dict[str, dict[str, AttackCounts]]:
        """Return the counts by scheme, and in free space, among drawn "walls", or in the map."""
        totals: dict[str, dict[str, AttackCounts]] = {}
        for result in self.results:
            drawn = "free" if result.free else "walls"
            where = drawn if self.config.map is None else result.world
            of_scheme = totals.setdefault(result.scheme, {})
            of_scheme.setdefault(where, AttackCounts()).add(result.counts)
        return totals

    def everything(self) -> AttackCounts:
        """Return the total of all rows."""
        counts = AttackCounts()
        for result in self.results:
            counts.add(result.counts)
        return counts

    def found(self) -> dict[str, Any]:
        """Return rows and totals as JSON values, by name."""
        return {
            "rows": [result.to_jsonable() for result in self.results],
            "totals": {
                scheme: {where: counts.to_jsonable() for where, counts in parts.items()}
                for scheme, parts in self.totals().items()
            },
        }
