"""Plays the episodes of one scenario, all at once, and judges every step independently.

Per step: packets -> nominal action -> filter -> judgement -> opponents -> exact motion.

Axes:  B episodes of a batch, N partners, d Cartesian dimensions, T steps.
Units: m, m/s, m/s^2, s.

What the filter gets to know about the partners: their state some time ago.

A packet carries position and velocity at the time it was measured. Its age is 0, the declared
bound, or wanders: packets are lost, late or fresh, but a measurement never replaces a later one,
so an age grows by at most one control step per step.

Axes:  B episodes, N partners, d Cartesian dimensions, K + 1 remembered steps.
Units: m, m/s, m/s^2, s.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError
from cadenza.core.seeding import Substream, derive_substream
from cadenza.safety.cbf import Plant
from cadenza.safety.verifier.casts import Cast, draw_cast
from cadenza.safety.verifier.conditions import SHORTFALL_TOLERANCE, Condition
from cadenza.safety.verifier.config import VerifierConfig
from cadenza.safety.verifier.episodes import EpisodeRecord, StepRecord
from cadenza.safety.verifier.guards import (
    Answer,
    Guard,
    GuardFactory,
    Sight,
    SingleFilter,
    scenario_condition,
)
from cadenza.safety.verifier.motion import advance, smallest_distance
from cadenza.safety.verifier.results import Counts, ScenarioResult
from cadenza.safety.verifier.scenarios import Scenario
from cadenza.safety.verifier.starts import Motion, draw_starts, standing_starts
from cadenza.safety.verifier.views import BoolArray, length, unit


class PacketLink:
    """Remembers where partners were and hands out packets of a scenario's age.

    Args:
        scenario: Decides the ages.
        positions: Partners' centres now, shape (B, N, d), m.
        velocities: Their velocities now, shape (B, N, d), m/s.
        rng: Source of the ages and of the motion before the episode began.
    """

    def __init__(
        self,
        scenario: Scenario,
        positions: FloatArray,
        velocities: FloatArray,
        rng: np.random.Generator,
    ) -> None:
        self._delay = scenario.delay
        self._dt = scenario.dt
        self._plant: Plant = scenario.plant
        self._bound_s = scenario.max_age_s
        self._rng = rng
        self._length = 1 + math.ceil(self._bound_s / self._dt - 1e-9)
        oldest = self._bound_s
        if scenario.plant == "semi_implicit":  # it has no states between its steps
            oldest = math.floor(oldest / self._dt + 1e-9) * self._dt
        self._ages = np.full(positions.shape[:2], oldest)
        accel = scenario.partner_accel * unit(rng.normal(size=positions.shape))
        # Ring of (position, velocity, acceleration of the step that begins there), oldest first.
        self._ring = [(positions, velocities, accel)]
        for _ in range(self._length - 1):
            earlier = _before(*self._ring[0][:2], accel, self._dt, scenario.plant)
            self._ring.insert(0, (*earlier, accel))

    def record(self, positions: FloatArray, velocities: FloatArray, accel: FloatArray) -> None:
        """Remember the partners' state now and the acceleration of the step that led here."""
        last = self._ring[-1]
        self._ring[-1] = (last[0], last[1], accel)
        self._ring.append((positions, velocities, accel))
        del self._ring[: -self._length]

    def packets(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return positions, velocities and ages of the newest packets, and let time pass.

        Returns:
            Positions (B, N, d), velocities (B, N, d) as measured, and ages (B, N), s.
        """
        ages = self._ages
        positions, velocities = self._state_at(ages)
        if self._delay == "varying":
            self._ages = self._next_ages(ages)
        return positions, velocities, ages

    def _next_ages(self, ages: FloatArray) -> FloatArray:
        """Return the ages one step later; every second packet is lost."""
        oldest = np.minimum(ages + self._dt, self._bound_s)
        drawn = oldest * self._rng.random(size=ages.shape)
        lost = self._rng.random(size=ages.shape) < 0.5
        ages = np.where(lost & (ages + self._dt <= self._bound_s), ages + self._dt, drawn)
        if self._plant == "semi_implicit":
            ages = np.floor(ages / self._dt + 1e-9) * self._dt
        return np.minimum(ages, self._bound_s)

    def _state_at(self, ages: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the states ``ages`` ago: from the step before, moved on by the rest."""
        if self._length == 1:
            return self._ring[0][:2]
        back = np.ceil(ages / self._dt - 1e-9)
        rest = np.maximum(back * self._dt - ages, 0.0)
        index = (len(self._ring) - 1 - back).astype(np.intp)
        stacked = [np.stack([entry[part] for entry in self._ring]) for part in range(3)]
        rows, columns = np.indices(index.shape)
        position, velocity, accel = (part[index, rows, columns] for part in stacked)
        moves = rest > 1e-12
        if not moves.any():
            return position, velocity
        # Only reached under zero-order hold: other plants are measured at whole steps.
        moved = advance(position, velocity, accel, rest[..., None], self._plant)
        return (
            np.where(moves[..., None], moved[0], position),
            np.where(moves[..., None], moved[1], velocity),
        )


def _before(
    position: FloatArray, velocity: FloatArray, accel: FloatArray, dt: float, plant: Plant
) -> tuple[FloatArray, FloatArray]:
    """Return the state one step earlier."""
    earlier = velocity - accel * dt
    mean = velocity if plant == "semi_implicit" else 0.5 * (velocity + earlier)
    return position - mean * dt, earlier


#: Largest component that counts as an action, m/s^2; the box is checked by the judge.
_LARGEST: Final = 1e6


def ask(guard: Guard, sight: Sight) -> tuple[Answer, BoolArray]:
    """Return what ``guard`` answers, and in which episodes that is an action, shape (B,).

    Elsewhere, where a component is not finite or beyond 1e6 m/s^2, the action is replaced by
    zero, so that the other episodes can go on. The guard may keep or change what it was given.

    Raises:
        InputError: The answer has other shapes or kinds than `Answer` asks for.
    """
    answer = guard(_copy(sight))
    action = _array("action", answer.action, sight.nominal.shape, "fiu").astype(np.float64)
    flags = [
        _array(name, getattr(answer, name), sight.nominal.shape[:1], "b").copy()
        for name in ("solved", "uncertified")
    ]
    usable: BoolArray = np.abs(action).max(axis=1) <= _LARGEST  # false for NaN
    action[~usable] = 0.0
    return Answer(action, *flags), usable


def _copy(sight: Sight) -> Sight:
    return Sight(
        nominal=sight.nominal.copy(),
        ego_position=sight.ego_position.copy(),
        ego_velocity=sight.ego_velocity.copy(),
        positions=sight.positions.copy(),
        velocities=sight.velocities.copy(),
        ages_s=sight.ages_s.copy(),
    )


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

#: Called after every step with the number of steps it played.
StepReport = Callable[[int], None]


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """What does not change during a scenario."""

    scenario: Scenario
    config: VerifierConfig
    condition: Condition
    guard: Guard
    single: SingleFilter | None


@dataclass(slots=True)
class ScenarioOutcome:
    """A finished scenario.

    Attributes:
        result: Its row.
        worst: The episode with the smallest free distance.
    """

    result: ScenarioResult
    worst: EpisodeRecord


@dataclass(slots=True)
class _Tally:
    """Sums over the batches of a scenario."""

    counts: Counts = field(default_factory=Counts)
    by_adversary: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    worst: EpisodeRecord | None = None


def play_scenario(
    scenario: Scenario,
    config: VerifierConfig,
    make_guard: GuardFactory,
    progress: StepReport,
) -> ScenarioOutcome:
    """Return what happened in every episode of ``scenario``.

    Args:
        scenario: What is played.
        config: Opponents, filter options and seed.
        make_guard: Builds the filter under test.
        progress: Called after every step of a batch.
    """
    stage = Stage(
        scenario,
        config,
        scenario_condition(scenario, config),
        make_guard(scenario, config),
        SingleFilter(scenario, config) if config.compared_share > 0.0 else None,
    )
    root = derive_substream(f"safety.verify.{scenario.name}", root_seed=config.seed)
    largest = max(1, _BATCH_STEPS // scenario.horizon)
    tally = _Tally()
    for index, first in enumerate(range(0, scenario.episodes, largest)):
        episodes = min(largest, scenario.episodes - first)
        _play_batch(stage, episodes, first, root.child(index), tally, progress)
    if tally.worst is None:
        raise AssertionError("a scenario has at least one episode")
    result = ScenarioResult(
        name=scenario.name,
        kind=scenario.kind,
        partners=scenario.partners,
        dim=scenario.dim,
        plant=scenario.plant,
        dt=scenario.dt,
        delay=scenario.delay,
        counts=tally.counts,
        by_adversary=tally.by_adversary,
    )
    return ScenarioOutcome(result, tally.worst)


def _play_batch(
    stage: Stage,
    episodes: int,
    first: int,
    stream: Substream,
    tally: _Tally,
    progress: StepReport,
) -> None:
    """Play ``episodes`` episodes, of which the first has number ``first``, into ``tally``."""
    scenario, config = stage.scenario, stage.config
    starts, links, draws, samples, casting = (s.default_rng() for s in stream.spawn(5))
    if scenario.kind == "stationary":
        motion = standing_starts(scenario, episodes, starts)
    else:
        motion = draw_starts(scenario, stage.condition, episodes, starts)
    cast = draw_cast(scenario, config, motion, first, casting)
    link = PacketLink(scenario, motion.positions, motion.velocities, links)
    records: list[StepRecord] = []
    for step in range(scenario.horizon):
        motion, record = _play_step(stage, cast, link, motion, step, draws, samples, tally.counts)
        records.append(record)
        progress(episodes)
    _close_batch(stage, cast, records, motion, tally)


def _play_step(
    stage: Stage,
    cast: Cast,
    link: PacketLink,
    motion: Motion,
    step: int,
    draws: np.random.Generator,
    samples: np.random.Generator,
    counts: Counts,
) -> tuple[Motion, StepRecord]:
    """Play one step of a batch; return the motion after it and what happened."""
    positions, velocities, ages = link.packets()
    nominal = cast.nominal(motion, draws)
    sight = Sight(nominal, motion.ego_position, motion.ego_velocity, positions, velocities, ages)
    answer, usable = ask(stage.guard, sight)
    counts.malformed_steps += _count(~usable)
    action = answer.action
    if stage.config.compat == "upstream":  # whose runner executes the nominal after a failed solve
        action = np.where(answer.solved[:, None], action, nominal)
    urgent = judge(stage, motion, sight, answer, action, usable, counts)
    box = stage.condition.box
    action = np.clip(action, -box, box)  # what the plant can do; the judge has seen more
    compare(stage, sight, answer, urgent, samples, counts)
    after, nearest, push, contact_speed = _move(stage, cast, motion, sight, action, step, draws)
    counts.largest_contact_speed = max(counts.largest_contact_speed, float(contact_speed.max()))
    counts.fast_steps += _count(contact_speed > stage.config.contact_speed + ROUNDING_M)
    counts.penetrated_steps += _count(nearest.min(axis=1) < stage.config.contact_m - ROUNDING_M)
    _count_exits(stage, motion, after, counts)
    link.record(after.positions, after.velocities, push)
    return after, StepRecord(motion, nominal, action, nearest, answer.solved)


def _move(
    stage: Stage,
    cast: Cast,
    motion: Motion,
    sight: Sight,
    action: FloatArray,
    step: int,
    draws: np.random.Generator,
) -> tuple[Motion, FloatArray, FloatArray, FloatArray]:
    """Play one step's motion, in as many pieces as the partners decide.

    Returns:
        The motion after it, the smallest distances of the centres within it, shape (B, N), m, the
        last accelerations of the partners, shape (B, N, d), m/s^2, and the ego's largest own speed
        in a contact, looked at after each piece, shape (B,), m/s; 0 where that is no claim.
    """
    scenario = stage.scenario
    plant, pieces = scenario.plant, scenario.pieces
    dt = scenario.dt / pieces
    nearest = np.full(motion.positions.shape[:2], np.inf)
    push, fastest = np.zeros_like(motion.positions), np.zeros(len(nearest))
    for piece in range(pieces):
        part = (piece + 0.5) / pieces if pieces > 1 else 0.0
        push = cast.push(motion, sight, step + part, draws)
        nearest = np.minimum(nearest, _nearest(plant, motion, action, push, dt))
        motion = Motion(
            *advance(motion.ego_position, motion.ego_velocity, action, dt, plant),
            *advance(motion.positions, motion.velocities, push, dt, plant),
        )
        if scenario.passive:
            distance = length(motion.ego_position[:, None] - motion.positions).min(axis=1)
            speed = length(motion.ego_velocity) * (distance < stage.config.contact_m - ROUNDING_M)
            fastest = np.maximum(fastest, speed)
    return motion, nearest, push, fastest


def _count_exits(stage: Stage, before: Motion, after: Motion, counts: Counts) -> None:
    """Count the steps that led a lone pair out of the safe set in which it began."""
    if stage.condition.barrier != "sampled" or stage.scenario.partners > 1:
        return
    h, h_after = (
        stage.condition.barrier_values(
            motion.ego_position - motion.positions[:, 0],
            motion.ego_velocity - motion.velocities[:, 0],
        )
        for motion in (before, after)
    )
    inside = h >= _EXIT
    counts.exited_steps += _count(inside & (h_after < _EXIT))
    counts.min_barrier = min(counts.min_barrier, float(h_after[inside].min(initial=np.inf)))


def judge(
    stage: Stage,
    motion: Motion,
    sight: Sight,
    answer: Answer,
    action: FloatArray,
    usable: BoolArray,
    counts: Counts,
) -> BoolArray:
    """Count what is wrong with the executed actions.

    Returns:
        Which partners are the most urgent, shape (B, N): one, or several to rounding.
    """
    shape = motion.positions.shape
    condition = stage.condition
    offset, velocity = _relative_motion(stage, motion, sight)
    repeated = np.repeat(action, shape[1], axis=0)
    short, least = (
        part.reshape(shape[:2]) for part in condition.shortfall(offset, velocity, repeated)
    )
    h = condition.barrier_values(offset, velocity).reshape(shape[:2])
    held = _held_to(stage, sight, h)
    unchanged = np.abs(action - sight.nominal).max(axis=1) <= _SAME_ACTION
    unfiltered = unchanged & (held & (short > SHORTFALL_TOLERANCE)).any(axis=1)
    urgent = h <= h.min(axis=1, keepdims=True) + _SAME_URGENCY
    # Of several equally urgent partners, the condition of one has to be met.
    forced = np.maximum(least, 0.0) + SHORTFALL_TOLERANCE
    misses = ((short > forced) | ~urgent).all(axis=1) & held.all(axis=1)
    if shape[1] == 1 and condition.barrier == "sampled":
        # A push straight away keeps a lone partner's safe set, whether it meets the row or not.
        astray = np.abs(action - condition.box * unit(offset)).max(axis=1)
        misses &= (astray > _SAME_ACTION) | (h[:, 0] < -_SAFE_SET_EDGE)
    if stage.scenario.passive:  # the claim is another one
        unfiltered, misses = unfiltered & False, misses & False
    if shape[1] > 1 and stage.config.compat is None:
        judged = (sight.ages_s == 0.0).all(axis=1)  # else urgency is a matter of what one knows
        misses &= judged
        counts.unjudged_steps += _count(~judged)
    misses |= np.abs(action).max(axis=1) > condition.box * (1.0 + _SAME_ACTION)
    counts.unfiltered_steps += _count(unfiltered & usable)
    counts.missed_steps += _count(misses & ~unfiltered & usable)
    counts.changed_steps += _count(~unchanged)
    counts.infeasible_steps += _count(~answer.solved)
    counts.uncertified_steps += _count(answer.uncertified)
    return urgent


def _held_to(stage: Stage, sight: Sight, h: FloatArray) -> BoolArray:
    """Return which partners' conditions the filter promises to meet, shape (B, N).

    With an old packet: those of true states in the safe set, as long as the row has a guarantee.
    From outside, where a conflict of several rows may lead, it cannot know what is needed.
    """
    if stage.config.compat == "upstream":
        return np.ones(h.shape, bool)
    fresh = sight.ages_s == 0.0
    if stage.condition.barrier == "wae":
        return fresh
    return fresh | (h >= -_SAFE_SET_EDGE)


def _relative_motion(stage: Stage, motion: Motion, sight: Sight) -> tuple[FloatArray, FloatArray]:
    """Return the relative positions and velocities that the condition is about, shapes (B N, d).

    The condition must hold for the true state, however old the packets are. Only the filter as
    the original has it takes every packet for current, and is held to what it takes for true.
    """
    dim = motion.positions.shape[2]
    positions, velocities = motion.positions, motion.velocities
    if stage.config.compat == "upstream":
        positions, velocities = sight.positions, sight.velocities
    offset = (motion.ego_position[:, None] - positions).reshape(-1, dim)
    return offset, (motion.ego_velocity[:, None] - velocities).reshape(-1, dim)


def compare(
    stage: Stage,
    sight: Sight,
    answer: Answer,
    urgent: BoolArray,
    samples: np.random.Generator,
    counts: Counts,
) -> None:
    """Repeat a few episodes' step through the single filter, half of them where it intervened.

    Where no action meets every row and two partners are equally urgent, rounding decides whose
    row comes first; both answers are right, so those steps are left out.
    """
    if stage.single is None:
        return
    episodes = len(sight.nominal)
    wanted = int(stage.config.compared_share * episodes + samples.random())
    if wanted == 0:
        return
    chosen = samples.integers(episodes, size=wanted)
    active = np.flatnonzero((answer.action != sight.nominal).any(axis=1))
    if active.size:
        chosen[::2] = active[samples.integers(active.size, size=len(chosen[::2]))]
    clear = answer.solved | (urgent.sum(axis=1) == 1)
    for episode in chosen[clear[chosen]].tolist():
        difference = stage.single.disagreement(sight, answer, episode)
        counts.compared_steps += 1
        limit = AGREEMENT if answer.solved[episode] else AGREEMENT_UNSOLVED
        counts.disagreements += not difference <= limit
        counts.largest_difference = max(counts.largest_difference, difference)


def _nearest(
    plant: Plant, motion: Motion, action: FloatArray, push: FloatArray, dt: float
) -> FloatArray:
    """Return the smallest distance of the centres within ``dt``, shape (B, N), m."""
    shape = push.shape
    flat = (-1, shape[2])
    return smallest_distance(
        (motion.ego_position[:, None] - motion.positions).reshape(flat),
        (motion.ego_velocity[:, None] - motion.velocities).reshape(flat),
        (action[:, None] - push).reshape(flat),
        dt,
        plant,
    ).reshape(shape[:2])


def _close_batch(
    stage: Stage, cast: Cast, records: list[StepRecord], end: Motion, tally: _Tally
) -> None:
    """Count the batch's episodes and keep the worst one."""
    scenario, contact = stage.scenario, stage.config.contact_m
    counts = tally.counts
    nearest = np.stack([record.nearest for record in records]).min(axis=(0, 2))  # (B,)
    overlapped = nearest < contact - ROUNDING_M
    counts.episodes += len(nearest)
    counts.steps += len(nearest) * scenario.horizon
    counts.penetrated_episodes += _count(overlapped)
    worst = int(nearest.argmin())
    if nearest[worst] < counts.min_distance_m:
        tally.worst = EpisodeRecord.of(stage.scenario, stage.condition, cast, records, end, worst)
    counts.min_distance_m = min(counts.min_distance_m, float(nearest[worst]))
    counts.min_margin_m = counts.min_distance_m - contact
    for name, rows in cast.episodes_by_adversary().items():
        hits, played = tally.by_adversary.get(name, (0, 0))
        tally.by_adversary[name] = (hits + _count(overlapped[rows]), played + len(rows))


def _count(flags: BoolArray) -> int:
    return int(np.count_nonzero(flags))
