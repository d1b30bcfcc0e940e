"""The verification: every scenario of a configuration, its episodes at once, each step judged.

Per step: packets -> nominal action -> filter -> judgement -> opponents -> exact motion.

Axes:  B episodes of a batch, N partners, d Cartesian dimensions, T steps.
Units: m, m/s, m/s^2, s.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError
from cadenza.core.provenance import compute_run_metadata
from cadenza.core.seeding import Substream, derive_substream
from cadenza.safety.cbf import Plant
from cadenza.safety.verifier.adversaries import BoolArray, length, unit
from cadenza.safety.verifier.casts import Cast, draw_cast
from cadenza.safety.verifier.conditions import SHORTFALL_TOLERANCE, Condition
from cadenza.safety.verifier.config import Scenario, VerifierConfig, plan_scenarios
from cadenza.safety.verifier.episodes import EpisodeRecord, StepRecord
from cadenza.safety.verifier.guards import (
    Answer,
    Guard,
    GuardFactory,
    Sight,
    SingleFilter,
    batched_guard,
    scenario_condition,
)
from cadenza.safety.verifier.motion import (
    Motion,
    PacketLink,
    advance,
    draw_starts,
    smallest_distance,
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

#: Called after every step with the number of steps it played.
StepReport = Callable[[int], None]
#: Called with (steps played, steps in all, scenario).
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """What does not change during a scenario."""

    scenario: Scenario
    config: VerifierConfig
    condition: Condition
    guard: Guard
    single: SingleFilter | None


def verify(
    config: VerifierConfig,
    progress: Progress | None = None,
    *,
    make_guard: GuardFactory = batched_guard,
) -> VerificationReport:
    """Play adversarial partners against a filter and return what happened.

    Args:
        config: Filter, opponents, size and seed; equal configurations give equal reports.
        progress: Called after every step of a batch.
        make_guard: Builds the filter under test; by default the batched one.

    Raises:
        ConfigurationError: The filter refuses its options, as when the ego has no authority left.
    """
    scenarios = playable_scenarios(config)
    steps_in_all = sum(scenario.steps for scenario in scenarios)
    done, contact_m = 0, config.contact_m
    results: list[ScenarioResult] = []
    worst: EpisodeRecord | None = None
    for scenario in scenarios:

        def report(steps: int, name: str = scenario.name) -> None:
            nonlocal done
            done += steps
            if progress is not None:
                progress(done, steps_in_all, name)

        result, episode = play_scenario(scenario, config, make_guard, report)
        results.append(result)
        if worst is None or _rank(episode, contact_m) < _rank(worst, contact_m):
            worst = episode
    if worst is None:
        raise AssertionError("a configuration has at least one scenario")
    origin = compute_run_metadata(
        seed=config.seed,
        run_kind="safety_verification",
        repo_root=None,
        config_fingerprint=config.fingerprint(),
    )
    return VerificationReport(config=config, origin=origin, results=results, worst=worst)


def playable_scenarios(config: VerifierConfig) -> list[Scenario]:
    """Return the scenarios of ``config``; what cannot be played is refused before anything is.

    Raises:
        ConfigurationError: The ego has no authority left in one of them.
    """
    scenarios = plan_scenarios(config)
    for scenario in scenarios:
        scenario_condition(scenario, config)
    return scenarios


def play_scenario(
    scenario: Scenario,
    config: VerifierConfig,
    make_guard: GuardFactory,
    progress: StepReport,
) -> tuple[ScenarioResult, EpisodeRecord]:
    """Return the row of ``scenario`` and its episode with the smallest free distance."""
    stage = Stage(
        scenario,
        config,
        scenario_condition(scenario, config),
        make_guard(scenario, config),
        SingleFilter(scenario, config) if config.compared_share > 0.0 else None,
    )
    root = derive_substream(f"safety.verify.{scenario.name}", root_seed=config.seed)
    largest = max(1, _BATCH_STEPS // scenario.horizon)
    result = ScenarioResult(
        name=scenario.name,
        kind=scenario.kind,
        partners=scenario.partners,
        dim=scenario.dim,
        plant=scenario.plant,
        dt=scenario.dt,
        delay=scenario.delay,
        counts=Counts(),
    )
    worst: EpisodeRecord | None = None
    for index, first in enumerate(range(0, scenario.episodes, largest)):
        episodes = min(largest, scenario.episodes - first)
        worse = _play_batch(stage, episodes, first, root.child(index), result, progress)
        worst = worst if worse is None else worse
    if worst is None:
        raise AssertionError("a scenario has at least one episode")
    return result, worst


def _play_batch(
    stage: Stage,
    episodes: int,
    first: int,
    stream: Substream,
    result: ScenarioResult,
    progress: StepReport,
) -> EpisodeRecord | None:
    """Play ``episodes`` episodes, of which the first has number ``first``, into ``result``.

    Returns:
        The one with the smallest free distance, if that is the smallest so far.
    """
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
        motion, record = _play_step(stage, cast, link, motion, step, draws, samples, result.counts)
        records.append(record)
        progress(episodes)
    return _close_batch(stage, cast, records, motion, result)


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
    stage: Stage, cast: Cast, records: list[StepRecord], end: Motion, result: ScenarioResult
) -> EpisodeRecord | None:
    """Count the batch's episodes and return the worst one, if it is the worst so far."""
    scenario, contact = stage.scenario, stage.config.contact_m
    counts, record = result.counts, None
    nearest = np.stack([record.nearest for record in records]).min(axis=(0, 2))  # (B,)
    overlapped = nearest < contact - ROUNDING_M
    counts.episodes += len(nearest)
    counts.steps += len(nearest) * scenario.horizon
    counts.penetrated_episodes += _count(overlapped)
    worst = int(nearest.argmin())
    if nearest[worst] < counts.min_distance_m:
        record = EpisodeRecord.of(scenario, stage.condition, cast, records, end, worst)
    counts.min_distance_m = min(counts.min_distance_m, float(nearest[worst]))
    counts.min_margin_m = counts.min_distance_m - contact
    for name, rows in cast.episodes_by_adversary().items():
        hits, played = result.by_adversary.get(name, (0, 0))
        result.by_adversary[name] = (hits + _count(overlapped[rows]), played + len(rows))
    return record


def _count(flags: BoolArray) -> int:
    return int(np.count_nonzero(flags))


def ask(guard: Guard, sight: Sight) -> tuple[Answer, BoolArray]:
    """Return what ``guard`` answers, and in which episodes that is an action, shape (B,).

    Elsewhere, where a component is not finite or beyond 1e6 m/s^2, the action is replaced by
    zero, so that the other episodes can go on. The guard may keep or change what it was given.

    Raises:
        InputError: The answer has other shapes or kinds than `Answer` asks for.
    """
    copies = {field.name: getattr(sight, field.name).copy() for field in fields(sight)}
    answer = guard(Sight(**copies))
    action = _array("action", answer.action, sight.nominal.shape, "fiu").astype(np.float64)
    flags = [
        _array(name, getattr(answer, name), sight.nominal.shape[:1], "b").copy()
        for name in ("solved", "uncertified")
    ]
    usable: BoolArray = np.abs(action).max(axis=1) <= _LARGEST  # false for NaN
    action[~usable] = 0.0
    return Answer(action, *flags), usable


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


def _rank(episode: EpisodeRecord, contact_m: float) -> tuple[bool, bool, float]:
    """Order episodes, the most telling first.

    The claim is about one partner; and an ego that stops in front of a standing partner always
    ends at contact distance, which says nothing unless it goes on.
    """
    overlaps = episode.min_distance < contact_m - ROUNDING_M
    calm = episode.scenario.kind == "stationary" and not overlaps
    return episode.scenario.partners > 1, calm, episode.min_distance
