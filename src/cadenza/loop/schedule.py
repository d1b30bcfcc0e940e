"""What a cycle trains on, by a fixed schedule.

Schedule:  n(cycle) = floor(initial * growth^cycle), at least 1, at most the cap; the cap alone
           without an initial number, and all there are without either.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, Literal, Protocol, TypeAlias, TypeVar, get_args, runtime_checkable

from cadenza.core.errors import ConfigurationError, InputError
from cadenza.core.seeding import derive_substream
from cadenza.loop.config import LoopConfig
from cadenza.loop.constitution import Constitution
from cadenza.loop.constitution.constitution import ProposalBounds
from cadenza.loop.contracts.records import MAX_NOTES, EvalReport, Proposal, SeedRange

#: Most episodes that any proposal asks for, even without a cap: beyond any dataset of this kind.
MAX_EPISODES: Final = 1_000_000
#: Most failing tasks that a proposal names.
MAX_FOCUS: Final = 5
#: Longest name of a task that a record takes, characters.
MAX_NAME: Final = 200

_Number = TypeVar("_Number", int, float)


@runtime_checkable
class Proposer(Protocol):
    """Says what the next cycle trains on; control flow never depends on how."""

    def propose(self, cycle: int, last_report: EvalReport | None) -> Proposal:
        """Return what cycle ``cycle`` trains on, given the evaluation of the cycle before."""
        ...


@dataclass(eq=False)
class DeterministicProposer:
    """Grows the data from cycle to cycle and names the tasks that fail.

    Attributes:
        initial_episodes: Episodes of cycle 0; None for as many as the cap allows, in every cycle.
        growth: Factor from cycle to cycle.
        max_episodes: Most a cycle gets; None for no limit.
        failing_threshold: Success below which a task fails.
        most_proposed: Most episodes that a language model may ask for; None for what the schedule
            or the cap allows.
        moves: What else proposals may move, and how far.
    """

    seed_dataset: str
    initial_episodes: int | None = None
    growth: float = 2.0
    max_episodes: int | None = None
    failing_threshold: float = 0.5
    _: KW_ONLY
    most_proposed: int | None = None
    moves: ProposalBounds = field(default_factory=ProposalBounds)

    def __post_init__(self) -> None:
        for name in ("initial_episodes", "max_episodes", "most_proposed"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise ConfigurationError(
                    f"{name}: expected at least 1 episode, or None, got {count}."
                )
        if not (math.isfinite(self.growth) and self.growth >= 1.0):
            raise ConfigurationError(f"growth: expected a factor of at least 1, got {self.growth}.")
        if not 0.0 <= self.failing_threshold <= 1.0:
            raise ConfigurationError(
                f"failing_threshold: expected a share in [0, 1], got {self.failing_threshold}."
            )

    def propose(self, cycle: int, last_report: EvalReport | None) -> Proposal:
        """Return the schedule's count, with a focus on the tasks that failed last."""
        episodes = self.scheduled_episodes(cycle)
        if last_report is None or not last_report.per_task:
            return Proposal(action="reuse_seed", dataset=self.seed_dataset, num_episodes=episodes)
        named = sorted(self._failing(last_report))[:MAX_FOCUS]
        notes = f"focus tasks: {named}" if named else "no failing tasks"
        return Proposal(
            action="recollect_failing",
            dataset=self.seed_dataset,
            num_episodes=episodes,
            notes=notes[:MAX_NOTES],
            focus=self.focus(last_report),
        )

    def scheduled_episodes(self, cycle: int) -> int | None:
        """Return the episodes of a cycle; None for all there are."""
        if self.initial_episodes is None:
            return self.max_episodes
        cap = MAX_EPISODES if self.max_episodes is None else self.max_episodes
        try:
            return max(1, min(int(self.initial_episodes * self.growth**cycle), cap))
        except OverflowError:  # the power of a late cycle is beyond a float
            return cap

    def allowed_episodes(self, cycle: int, count: int | None) -> int | None:
        """Return what a cycle gets that a language model proposes ``count`` episodes for.

        At least one and at most the cap, which None asks for; without a cap at most the schedule's
        count, and all there are where there is no schedule either: nobody knows then how many that
        is.
        """
        most = self.most_episodes(cycle)
        if most is None or count is None:
            return most
        return max(1, min(count, most))

    def most_episodes(self, cycle: int) -> int | None:
        """Return the most that a model may ask for; None for all there are."""
        cap = self.scheduled_episodes(cycle) if self.max_episodes is None else self.max_episodes
        return cap if cap is None or self.most_proposed is None else min(cap, self.most_proposed)

    def within(self, proposal: Proposal) -> Proposal:
        """Return ``proposal`` with what it moves within the bounds, and nothing else moved."""
        moves, near = self.moves, _nearest
        return proposal.model_copy(
            update={
                "learning_rate": near(proposal.learning_rate, moves.learning_rate),
                "steps": near(proposal.steps, moves.steps),
                "batch_size": near(proposal.batch_size, moves.batch_size),
                "rung": proposal.rung if proposal.rung in moves.rungs else None,
            }
        )

    def told_moves(self) -> str:
        """Return what a language model may move, as a line for it; empty for nothing."""
        named = self.moves.model_dump(exclude_none=True, exclude_defaults=True, mode="json")
        return f"May also be set, within [least, most]: {json.dumps(named)}" if named else ""

    def focus(self, report: EvalReport) -> tuple[str, ...]:
        """Return the tasks that failed, worst first, equally bad ones by name, at most five."""
        worst_first = sorted(self._failing(report), key=lambda task: (report.per_task[task], task))
        return tuple(worst_first[:MAX_FOCUS])

    def _failing(self, report: EvalReport) -> list[str]:
        return [
            task
            for task, rate in report.per_task.items()
            if rate < self.failing_threshold and 1 <= len(task) <= MAX_NAME
        ]


def _nearest(value: _Number | None, bounds: tuple[_Number, _Number] | None) -> _Number | None:
    """Return the allowed value next to ``value``; None where none may be set."""
    return None if value is None or bounds is None else min(max(value, bounds[0]), bounds[1])


#: What initial states are used for: collecting data, harvesting the policy's own successes,
#: choosing between a candidate and its adapted copy, and comparing it with the reference.
Purpose: TypeAlias = Literal["data", "harvest", "select", "compare"]

#: What seeds are reserved for: a purpose of the run, or because its seed dataset has them.
SeedUse: TypeAlias = Purpose | Literal["seed_data"]

#: Seeds of one purpose.
REGION: Final = 2**28
#: Seeds of one purpose in one cycle; one episode needs one.
BLOCK: Final = 2**16
#: Cycles before the blocks of a region repeat.
MAX_CYCLES: Final = REGION // BLOCK

_PURPOSES: Final[tuple[str, ...]] = get_args(Purpose)


def seed_range(
    root_seed: int, purpose: Purpose, cycle: int, *, count: int, skip: int = 0
) -> SeedRange:
    """Return ``count`` seeds of a purpose in a cycle, 0..4095, after ``skip`` that it used.

    They are those of the run with ``root_seed``, >= 0; no two purposes and cycles share one.
    """
    if purpose not in _PURPOSES:
        raise InputError(
            f"seed_range: expected a purpose of {', '.join(_PURPOSES)}, got {purpose!r}."
        )
    if not 0 <= cycle < MAX_CYCLES:
        raise InputError(f"seed_range: expected a cycle in 0..{MAX_CYCLES - 1}, got {cycle}.")
    if count < 1 or skip < 0 or skip + count > BLOCK:
        raise InputError(
            f"seed_range: expected count >= 1, skip >= 0 and at most {BLOCK} {purpose} seeds per "
            f"cycle, got {count} after {skip}; ask for fewer episodes."
        )
    first = derive_substream("loop.seed_blocks", root_seed=root_seed).integer_seed()
    block = (first + cycle) % MAX_CYCLES
    start = _PURPOSES.index(purpose) * REGION + block * BLOCK + skip
    return SeedRange(start=start, count=count)


def hulls(seeds: Iterable[int]) -> tuple[SeedRange, ...]:
    """Return ranges that hold ``seeds``, one in each block that has some, ascending.

    A use of a block begins at its first seed, so it meets such a range only if it meets a seed.
    """
    ends: dict[int, tuple[int, int]] = {}
    for seed in seeds:
        first, last = ends.get(seed // BLOCK, (seed, seed))
        ends[seed // BLOCK] = min(first, seed), max(last, seed)
    return tuple(
        SeedRange(start=first, count=last - first + 1) for _, (first, last) in sorted(ends.items())
    )


#: Most episodes that one argument names: Linux limits it to 128 KiB, and numbers below a million
#: take at most eight characters each.
MOST_LISTED: Final = 16_000
#: Attempts per wanted success; LeAgents gives up after as many.
ATTEMPTS_PER_SUCCESS: Final = 5


def attempts_for(episodes: int) -> int:
    """Return how many attempts a harvest of ``episodes`` successes may take."""
    return min(BLOCK, ATTEMPTS_PER_SUCCESS * episodes)


def collects(config: LoopConfig) -> bool:
    """Return whether the data of a cycle is collected rather than chosen."""
    return config.backend == "native" and config.seed_root is None


def schedule_of(config: LoopConfig, rules: Constitution) -> DeterministicProposer:
    """Return the schedule of a run, within which a language model may propose."""
    data = config.data
    return DeterministicProposer(
        config.seed_dataset,
        data.initial_episodes,
        data.growth,
        data.max_episodes,
        most_proposed=most_proposed(config, rules),
        moves=moves_of(config, rules),
    )


def moves_of(config: LoopConfig, rules: Constitution) -> ProposalBounds:
    """Return what proposals of a run may move beside its data.

    No rung where a person is asked before the ladder is climbed, none that is not on it, no more
    steps than a job may make, and a step size natively alone: LeRobot's policies have their own.
    """
    moves = rules.rules.proposals or ProposalBounds()
    ladder = {rung.name for rung in config.policy_ladder}
    asked = "escalate" in config.approval.gates
    limit, steps = rules.rules.max_train_steps or 1, moves.steps
    native = config.backend == "native"
    return moves.model_copy(
        update={
            "rungs": () if asked else tuple(name for name in moves.rungs if name in ladder),
            "steps": steps and (min(steps[0], limit), min(steps[1], limit)),
            "learning_rate": moves.learning_rate if native else None,
        }
    )


def most_proposed(config: LoopConfig, rules: Constitution) -> int:
    """Return the most episodes that a proposal other than the schedule's may ask for, >= 1."""
    if not collects(config):
        return MOST_LISTED
    return max(1, attempts_within(rules, None) // ATTEMPTS_PER_SUCCESS)


def attempts_within(rules: Constitution, episodes: int | None) -> int:
    """Return how many attempts ``episodes`` successes may take, or any number of them.

    What the rule ``max_collect_episodes`` does not allow is not asked for; without that rule the
    constitution refuses the job.
    """
    attempts = BLOCK if episodes is None else attempts_for(episodes)
    limit = rules.rules.max_collect_episodes
    return attempts if limit is None else max(1, min(attempts, limit))


def bounded(proposal: Proposal, schedule: DeterministicProposer, cycle: int) -> Proposal:
    """Return ``proposal`` with no more episodes than the schedule has or anybody may ask for.

    What it moves beside the data is within its bounds, too.
    """
    proposal = schedule.within(proposal)
    most = max(schedule.scheduled_episodes(cycle) or 1, schedule.most_proposed or 1)
    asked = proposal.num_episodes
    if asked is None or asked <= most:
        return proposal
    return proposal.model_copy(update={"num_episodes": most})
