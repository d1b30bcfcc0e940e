"""The verification: every scenario of a configuration, its episodes at once, each step judged.

Per step: packets -> nominal action -> filter -> judgement -> opponents -> exact motion.

Axes:  B episodes of a batch, N partners, d Cartesian dimensions, T steps.
Units: m, m/s, m/s^2, s.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Final

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError
from cadenza.core.progress import ProgressReport
from cadenza.core.seeding import Substream, derive_substream
from cadenza.safety.cbf import measurement_errors
from cadenza.safety.verifier.adversaries import (
    ADVERSARIES,
    EGO_NOMINALS,
    BoolArray,
    EgoView,
    IndexArray,
    Motion,
    Opponents,
    dot,
    length,
    nominal_action,
    unit,
)
from cadenza.safety.verifier.conditions import SHORTFALL_TOLERANCE, Condition
from cadenza.safety.verifier.config import (
    STATIONARY_NOMINAL,
    Scenario,
    VerifierConfig,
    plan_scenarios,
)
from cadenza.safety.verifier.episodes import EpisodeRecord
from cadenza.safety.verifier.guards import (
    Answer,
    Guard,
    GuardFactory,
    Sight,
    SingleFilter,
    built_guard,
    scenario_condition,
)
from cadenza.safety.verifier.motion import (
    PacketLink,
    advance,
    draw_starts,
    smallest_distance,
    standing_aim,
    standing_starts,
)
from cadenza.safety.verifier.report import Counts, ScenarioResult, VerificationReport

#: Largest component that counts as an action, m/s^2; the box is checked by the judge.
_LARGEST: Final = 1e6
#: Episodes times steps of one batch; bounds memory to about 100 MB at 5 partners in 3-D.
_BATCH_STEPS: Final = 200_000
#: Overlap that float64 rounding of positions of a few metres explains, m.
ROUNDING_M: Final = 1e-9
#: Difference at which two actions are not the same, m/s^2: where the rows can be met, and where
#: two iterative solvers looked for the least violation.
AGREEMENT: Final = 1e-10
AGREEMENT_UNSOLVED: Final = 1e-8
#: Difference at which the executed action is still the nominal one, m/s^2.
_SAME_ACTION: Final = 1e-12
#: How far outside the safe set rounding may put a state, m/s, as the filter sees it.
_SAFE_SET_EDGE: Final = 1e-6
#: Barrier value below which rounding does not explain that a step ends outside the safe set, m/s.
_EXIT: Final = -1e-9
#: Difference of barrier values below which two partners are equally urgent, m/s.
_SAME_URGENCY: Final = 1e-9
#: How far behind the partner the ego's goal lies, relative to the partner's distance.
_GOAL_BEYOND: Final = 2.5
#: Spread of the goals, m.
_GOAL_SPREAD_M: Final = 0.5
#: Share of the episodes with several partners in which each of them has a strategy of its own.
_MIXED_SHARE: Final = 0.5

#: Called after every step with the number of steps it played.
StepReport = Callable[[int], None]


def verify(
    config: VerifierConfig,
    progress: ProgressReport | None = None,
    *,
    make_guard: GuardFactory = built_guard,
) -> VerificationReport:
    """Play adversarial partners against a filter and return what happened.

    Args:
        config: Filter, opponents, size and seed; equal configurations give equal reports.
        progress: Called with steps played, steps in all and the scenario, after every step of a
            batch.
        make_guard: Builds the filter under test; by default the one that the options ask for.

    Raises:
        ConfigurationError: The filter refuses its options, as when the ego has no authority left.
    """
    scenarios = playable_scenarios(config)
    steps_in_all = sum(scenario.steps for scenario in scenarios)
    done = 0
    results: list[ScenarioResult] = []
    worst: EpisodeRecord | None = None
    for scenario in scenarios:

        def report(steps: int, name: str = scenario.name) -> None:
            nonlocal done
            done += steps
            if progress is not None:
                progress(done, steps_in_all, name)

        result, episode = Stage.of(scenario, config, make_guard).play(report)
        results.append(result)
        if worst is None or episode.rank < worst.rank:
            worst = episode
    return VerificationReport.of(config, results, worst)


def playable_scenarios(config: VerifierConfig) -> list[Scenario]:
    """Return the scenarios of ``config``; what cannot be played is refused before anything is.

    Raises:
        ConfigurationError: The ego has no authority left in one of them.
    """
    scenarios = plan_scenarios(config)
    for scenario in scenarios:
        scenario_condition(scenario, config)
    return scenarios


class Cast:
    """Who plays in a batch: one nominal controller and N opponents per episode.

    Opponents and controllers take turns through all pairings; ``first`` is the number of the
    batch's first episode within its scenario, and ``motion`` where everybody starts.
    """

    def __init__(
        self,
        scenario: Scenario,
        config: VerifierConfig,
        motion: Motion,
        first: int,
        rng: np.random.Generator,
    ) -> None:
        self._scenario, self._config = scenario, config
        episodes, dim = motion.ego_position.shape
        kinds, partners = len(ADVERSARIES), scenario.partners
        numbers: IndexArray = first + np.arange(episodes, dtype=np.intp)
        shared: IndexArray = (numbers % kinds)[:, None]
        others: IndexArray = rng.integers(kinds, size=(episodes, partners))
        mixed = rng.random((episodes, 1)) < (_MIXED_SHARE if partners > 1 else 0.0)
        centre = motion.positions.mean(axis=1) - motion.ego_position
        spread = _GOAL_SPREAD_M * rng.normal(size=(episodes, dim))
        self._goals = motion.ego_position + _GOAL_BEYOND * centre + spread
        self._nominals = (numbers // kinds) % len(config.ego_nominals)
        self._standing = scenario.kind == "stationary"
        self._aim = standing_aim(motion) if self._standing else spread
        self._opponents = Opponents(
            ADVERSARIES,
            np.where(mixed, others, shared),
            dim=dim,
            contact_m=config.contact_m,
            rng=rng,
        )

    def nominal(self, motion: Motion, draws: np.random.Generator) -> FloatArray:
        """Return the nominal actions, shape (B, d), m/s^2."""
        if self._standing:
            return STATIONARY_NOMINAL * self._aim
        offsets = motion.positions - motion.ego_position[:, None]
        target = length(offsets).argmin(axis=1)
        rows = np.arange(len(target))
        ahead = unit(offsets[rows, target], np.eye(offsets.shape[2])[:1])
        relative = motion.ego_velocity - motion.velocities[rows, target]
        view = EgoView(
            ahead=ahead,
            velocity=motion.ego_velocity,
            sideways=relative - dot(relative, ahead)[:, None] * ahead,
            to_goal=self._goals - motion.ego_position,
            draw=draws.uniform(-1.0, 1.0, size=motion.ego_position.shape),
            chance=draws.random(size=len(target)),
            dt=self._scenario.dt,
            limit=self._scenario.ego_accel,
        )
        actions = np.zeros_like(motion.ego_position)
        for k, name in enumerate(self._config.ego_nominals):
            rows = np.flatnonzero(self._nominals == k)
            if rows.size:
                actions[rows] = nominal_action(view.take(rows), EGO_NOMINALS[name])
        return actions

    def push(
        self, motion: Motion, sight: Sight, step: float, draws: np.random.Generator
    ) -> FloatArray:
        """Return the partners' accelerations, shape (B, N, d), m/s^2; ``step`` as in their view."""
        if self._standing:
            return np.zeros_like(motion.positions)
        dt, bound = self._scenario.dt, self._scenario.partner_accel
        return self._opponents.commands(
            motion, sight.positions, sight.ages_s, step, draws, dt=dt, bound=bound
        )

    def measured(
        self, motion: Motion, positions: FloatArray, velocities: FloatArray, step: int
    ) -> tuple[FloatArray, FloatArray]:
        """Return the partners' positions and velocities with errors chosen against the ego."""
        if not self._config.measures:
            return positions, velocities
        errors = self._opponents.errors(motion, step)
        return (
            positions + self._config.position_error * errors[0],
            velocities + self._config.velocity_error * errors[1],
        )

    def players(self, episode: int) -> tuple[str, list[str]]:
        """Return the names of an episode's nominal controller and opponents."""
        if self._standing:
            return "straight_on", ["standing"]
        nominal = self._config.ego_nominals[int(self._nominals[episode])]
        return nominal, self._opponents.names(episode)


@dataclass(frozen=True, slots=True, eq=False)
class StepRecord:
    """One step of a batch of B episodes."""

    motion: Motion  # Where everyone is at its start
    nominal: FloatArray  # Nominal actions, shape (B, d), m/s^2
    action: FloatArray  # Executed actions, shape (B, d), m/s^2
    nearest: FloatArray  # Smallest distance of the centres within it, shape (B, N), m
    solved: BoolArray  # Whether the filter met every row, shape (B,)


@dataclass(slots=True, kw_only=True, eq=False)
class Stage:
    """One scenario, its filter, and what has happened so far."""

    scenario: Scenario  # What is played
    config: VerifierConfig  # Opponents, filter options and seed
    condition: Condition  # What the filter promises
    guard: Guard  # The filter under test
    #: The filter of one environment that it must agree with; None compares nothing
    single: SingleFilter | None
    counts: Counts = field(default_factory=Counts)  # What happened
    worst: EpisodeRecord | None = None  # The episode with the smallest free distance

    @classmethod
    def of(cls, scenario: Scenario, config: VerifierConfig, make_guard: GuardFactory) -> "Stage":
        """Build the filters of a scenario."""
        # The row of the original is only in the filter of one environment.
        compared = config.compared_share > 0.0 and config.barrier == "sampled"
        return cls(
            scenario=scenario,
            config=config,
            condition=scenario_condition(scenario, config),
            guard=make_guard(scenario, config),
            single=SingleFilter(scenario, config) if compared else None,
        )

    def play(self, progress: StepReport) -> tuple[ScenarioResult, EpisodeRecord]:
        """Return the row of the scenario and its episode with the smallest free distance."""
        scenario = self.scenario
        root = derive_substream(f"safety.verify.{scenario.name}", root_seed=self.config.seed)
        largest = max(1, _BATCH_STEPS // scenario.horizon)
        for index, first in enumerate(range(0, scenario.episodes, largest)):
            episodes = min(largest, scenario.episodes - first)
            self._play_batch(episodes, first, root.child(index), progress)
        if self.worst is None:
            raise AssertionError("a scenario has at least one episode")
        result = ScenarioResult(
            name=scenario.name,
            kind=scenario.kind,
            partners=scenario.partners,
            dim=scenario.dim,
            plant=scenario.plant,
            dt=scenario.dt,
            delay=scenario.delay,
            counts=self.counts,
        )
        return result, self.worst

    def _lost(self) -> tuple[float, float] | None:
        """Return by how much what measurements show may be worse than the truth, m and m/s."""
        config, age = self.config, self.scenario.max_age_s
        if not config.measures:
            return None
        position, velocity = measurement_errors(
            age,
            self.scenario.partner_accel,
            self.scenario.dt,
            config.position_error,
            config.velocity_error,
        )
        return 2.0 * position, 2.0 * velocity

    def _play_batch(
        self, episodes: int, first: int, stream: Substream, progress: StepReport
    ) -> None:
        """Play ``episodes`` episodes, of which the first has number ``first``."""
        scenario = self.scenario
        starts, links, draws, samples, casting = (s.default_rng() for s in stream.spawn(5))
        if scenario.kind == "stationary":
            motion = standing_starts(scenario, episodes, starts)
        else:
            motion = draw_starts(scenario, self.condition, episodes, starts, self._lost())
        cast = Cast(scenario, self.config, motion, first, casting)
        link = PacketLink(scenario, motion.positions, motion.velocities, links)
        records: list[StepRecord] = []
        for step in range(scenario.horizon):
            motion, record = self._play_step(cast, link, motion, step, draws, samples)
            records.append(record)
            progress(episodes)
        self._close_batch(cast, records, motion)

    def _play_step(
        self,
        cast: Cast,
        link: PacketLink,
        motion: Motion,
        step: int,
        draws: np.random.Generator,
        samples: np.random.Generator,
    ) -> tuple[Motion, StepRecord]:
        """Play one step of a batch; return the motion after it and what happened."""
        counts, config = self.counts, self.config
        positions, velocities, ages = link.packets()
        packets = cast.measured(motion, positions, velocities, step)
        nominal = cast.nominal(motion, draws)
        begins = np.full(len(nominal), step == 0)
        sight = Sight(nominal, motion.ego_position, motion.ego_velocity, *packets, ages, begins)
        answer, usable = ask(self.guard, sight)
        counts.malformed_steps += _count(~usable)
        action = answer.action
        if config.compat == "upstream":  # its runner executes the nominal after a failed solve
            action = np.where(answer.solved[:, None], action, nominal)
        urgent = self.judge(motion, sight, answer, action, usable)
        box = self.condition.box
        action = np.clip(action, -box, box)  # what the plant can do; the judge has seen more
        self.compare(sight, answer, urgent, samples)
        after, nearest, push = self._move(cast, motion, sight, action, step, draws)
        overlapped = nearest.min(axis=1) < config.contact_m - ROUNDING_M
        counts.penetrated_steps += _count(overlapped)
        self._count_exits(motion, after)
        link.record(after.positions, after.velocities, push)
        return after, StepRecord(motion, nominal, action, nearest, answer.solved)

    def _move(
        self,
        cast: Cast,
        motion: Motion,
        sight: Sight,
        action: FloatArray,
        step: int,
        draws: np.random.Generator,
    ) -> tuple[Motion, FloatArray, FloatArray]:
        """Play one step's motion, in as many pieces as the partners decide.

        Where that is the claim, the ego's own speed in a contact is looked at after each piece.

        Returns:
            The motion after it, the smallest distances of the centres within it, shape (B, N), m,
            and the last accelerations of the partners, shape (B, N, d), m/s^2.
        """
        scenario, contact = self.scenario, self.config.contact_m - ROUNDING_M
        plant, pieces = scenario.plant, scenario.pieces
        dt = scenario.dt / pieces
        nearest = np.full(motion.positions.shape[:2], np.inf)
        push, fastest = np.zeros_like(motion.positions), np.zeros(len(nearest))
        for piece in range(pieces):
            part = (piece + 0.5) / pieces if pieces > 1 else 0.0
            push = cast.push(motion, sight, step + part, draws)
            offset, relative = motion.offset, motion.relative
            within = smallest_distance(offset, relative, action[:, None] - push, dt, plant)
            nearest = np.minimum(nearest, within)
            motion = Motion(
                *advance(motion.ego_position, motion.ego_velocity, action, dt, plant),
                *advance(motion.positions, motion.velocities, push, dt, plant),
            )
            if scenario.passive:
                touching = length(motion.offset).min(axis=1) < contact
                fastest = np.maximum(fastest, length(motion.ego_velocity) * touching)
        counts, tolerated = self.counts, self.config.contact_speed + ROUNDING_M
        counts.largest_contact_speed = max(counts.largest_contact_speed, float(fastest.max()))
        counts.fast_steps += _count(fastest > tolerated)
        return motion, nearest, push

    def _count_exits(self, before: Motion, after: Motion) -> None:
        """Count the steps that led a lone pair out of the safe set in which it began."""
        if self.scenario.partners > 1 or self.config.measures:
            return
        h, h_after = (
            self.condition.barrier_values(motion.offset[:, 0], motion.relative[:, 0])
            for motion in (before, after)
        )
        counts, inside = self.counts, h >= _EXIT
        counts.exited_steps += _count(inside & (h_after < _EXIT))
        lowest = float(h_after[inside].min(initial=np.inf))
        counts.min_barrier = min(counts.min_barrier, lowest)

    def judge(
        self,
        motion: Motion,
        sight: Sight,
        answer: Answer,
        action: FloatArray,
        usable: BoolArray,
    ) -> BoolArray:
        """Count what is wrong with the executed actions.

        Returns:
            Which partners are the most urgent, shape (B, N): one, or several to rounding.
        """
        shape, counts = motion.positions.shape, self.counts
        condition = self.condition
        offset, velocity = (x.reshape(-1, shape[2]) for x in (motion.offset, motion.relative))
        repeated = np.repeat(action, shape[1], axis=0)
        short, least = (
            part.reshape(shape[:2]) for part in condition.shortfall(offset, velocity, repeated)
        )
        h = condition.barrier_values(offset, velocity).reshape(shape[:2])
        # True states count, however old the packets are; but from outside the safe set, where a
        # conflict of several rows may lead, the filter cannot know what an old packet does not say.
        fresh = sight.ages_s == 0.0
        held = fresh | (h >= -_SAFE_SET_EDGE)
        unchanged = np.abs(action - sight.nominal).max(axis=1) <= _SAME_ACTION
        unfiltered = unchanged & (held & (short > SHORTFALL_TOLERANCE)).any(axis=1)
        urgent = h <= h.min(axis=1, keepdims=True) + _SAME_URGENCY
        # Of several equally urgent partners, the condition of one has to be met.
        forced = np.maximum(least, 0.0) + SHORTFALL_TOLERANCE
        misses = ((short > forced) | ~urgent).all(axis=1) & held.all(axis=1)
        if shape[1] == 1:
            # A push straight away keeps a lone partner's safe set, whether it meets the row or not.
            astray = np.abs(action - condition.box * unit(offset)).max(axis=1)
            misses &= (astray > _SAME_ACTION) | (h[:, 0] < -_SAFE_SET_EDGE)
        if self.scenario.passive or self.config.measures:  # the claim is another one
            unfiltered, misses = unfiltered & False, misses & False
        if shape[1] > 1:
            judged = fresh.all(axis=1)  # else urgency is a matter of what one knows
            misses &= judged
            counts.unjudged_steps += _count(~judged)
        misses |= np.abs(action).max(axis=1) > condition.box * (1.0 + _SAME_ACTION)
        counts.unfiltered_steps += _count(unfiltered & usable)
        counts.missed_steps += _count(misses & ~unfiltered & usable)
        counts.changed_steps += _count(~unchanged)
        counts.infeasible_steps += _count(~answer.solved)
        counts.uncertified_steps += _count(answer.uncertified)
        return urgent

    def compare(
        self,
        sight: Sight,
        answer: Answer,
        urgent: BoolArray,
        samples: np.random.Generator,
    ) -> None:
        """Repeat a few episodes' step through the single filter, half of them where it intervened.

        Where no action meets every row and two partners are equally urgent, rounding decides whose
        row comes first; both answers are right, so those steps are left out.
        """
        if self.single is None:
            return
        counts, episodes = self.counts, len(sight.nominal)
        wanted = int(self.config.compared_share * episodes + samples.random())
        if wanted == 0:
            return
        chosen = samples.integers(episodes, size=wanted)
        active = np.flatnonzero((answer.action != sight.nominal).any(axis=1))
        if active.size:
            chosen[::2] = active[samples.integers(active.size, size=len(chosen[::2]))]
        clear = answer.solved | (urgent.sum(axis=1) == 1)
        for episode in chosen[clear[chosen]].tolist():
            difference = self.single.disagreement(sight, answer, episode)
            counts.compared_steps += 1
            limit = AGREEMENT if answer.solved[episode] else AGREEMENT_UNSOLVED
            counts.disagreements += not difference <= limit
            counts.largest_difference = max(counts.largest_difference, difference)

    def _close_batch(self, cast: Cast, records: list[StepRecord], end: Motion) -> None:
        """Count the batch's episodes and keep the worst one."""
        scenario, counts, contact = self.scenario, self.counts, self.config.contact_m
        nearest = np.stack([record.nearest for record in records]).min(axis=(0, 2))  # (B,)
        overlapped = nearest < contact - ROUNDING_M
        counts.episodes += len(nearest)
        counts.steps += len(nearest) * scenario.horizon
        counts.penetrated_episodes += _count(overlapped)
        worst = int(nearest.argmin())
        if nearest[worst] < counts.min_distance_m:
            self.worst = self._record(cast, records, end, worst)
        counts.min_distance_m = min(counts.min_distance_m, float(nearest[worst]))
        counts.min_margin_m = counts.min_distance_m - contact

    def _record(
        self, cast: Cast, records: list[StepRecord], end: Motion, index: int
    ) -> EpisodeRecord:
        """Return one episode of a batch, which ended in ``end``."""
        scenario, config = self.scenario, self.config
        motions = [*(record.motion for record in records), end]
        ego_path, paths, offset, relative = (
            np.stack([getattr(motion, name)[index] for motion in motions])
            for name in ("ego_position", "positions", "offset", "relative")
        )
        wanted, done, nearest, solved = (
            np.stack([getattr(record, name)[index] for record in records])
            for name in ("nominal", "action", "nearest", "solved")
        )
        nominal_name, adversary_names = cast.players(index)
        step, partner = np.unravel_index(int(nearest.argmin()), nearest.shape)
        overlaps = nearest.min() < config.contact_m - ROUNDING_M
        closing = -dot(offset, relative) / np.maximum(length(offset), 1e-12)
        ahead = unit(paths[:-1, partner] - ego_path[:-1])
        towards = {"nominal": dot(ahead, wanted), "executed": dot(ahead, done)}
        rows = config.barrier + ("" if config.compat is None else f", compat={config.compat}")
        return EpisodeRecord(
            summary={
                "scenario": scenario.name,
                "nominal": nominal_name,
                "adversaries": adversary_names,
                "closest_partner": int(partner),
                "closest_at_s": float(step * scenario.dt),
                "min_distance_m": float(nearest.min()),
            },
            # The claim is about one partner; and an ego that stops in front of a standing partner
            # always ends at contact distance, which says nothing unless it goes on.
            rank=(
                scenario.partners > 1,
                scenario.kind == "stationary" and not overlaps,
                float(nearest.min()),
            ),
            scene=f"{scenario.dim}-D, plant {scenario.plant}, control step {scenario.dt:g} s, "
            f"packet age {scenario.delay}, row {rows}",
            nominal_name=nominal_name,
            adversary_names=adversary_names,
            dt=scenario.dt,
            radii=(config.ego_radius, config.partner_radius),
            ego_path=ego_path,
            partner_paths=paths,
            nearest=nearest,
            bound=self.condition.bound_m(closing),
            curves=towards,
            quantity="acceleration / (m/s²)",
            shades={
                "filter changed it": np.abs(towards["nominal"] - towards["executed"]) > 1e-9,
                "no action meets every row": ~solved,
            },
        )


def _count(flags: BoolArray) -> int:
    return int(np.count_nonzero(flags))


def ask(guard: Guard, sight: Sight) -> tuple[Answer, BoolArray]:
    """Return what ``guard`` answers, and in which episodes that is an action, shape (B,).

    Elsewhere, where a component is not finite or beyond 1e6 m/s^2, the action is replaced by
    zero, so that the other episodes can go on. The guard may keep or change what it was given.
    """
    copies: Any = {f.name: copy.copy(getattr(sight, f.name)) for f in fields(sight)}
    answer = guard(Sight(**copies))
    action = _array("action", answer.action, sight.nominal.shape, "fiu").astype(np.float64)
    flags = [
        _array(name, getattr(answer, name), sight.nominal.shape[:1], "b").copy()
        for name in ("solved", "uncertified")
    ]
    usable: BoolArray = np.abs(action).max(axis=1) <= _LARGEST  # false for NaN
    action[~usable] = 0.0
    return Answer(action, flags[0], flags[1], answer.directions), usable


def _array(name: str, value: object, shape: tuple[int, ...], kinds: str) -> np.ndarray:
    """Return ``value`` as an array of this shape and one of these kinds of numbers."""
    array = np.asarray(value)
    if array.shape != shape or array.dtype.kind not in kinds:
        wanted = "bool" if kinds == "b" else "real numbers"
        raise InputError(
            f"verifier: guard's {name}: expected {wanted} of shape {shape}, got {array.dtype} "
            f"{array.shape}."
        )
    return array
