"""Where a run stands: the one value that the controller reads from the store and writes back.

What a step needs is either in the state or on disk under the cycle's folder. A killed run goes on
from the last committed state by doing the step it names, whose jobs are not repeated.
"""

from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import BeforeValidator, Field

from cadenza.loop.config import LoopConfig
from cadenza.loop.contracts.records import (
    CheckpointRecord,
    DatasetRef,
    EvalReport,
    Proposal,
    Record,
)

_Value = TypeVar("_Value")

Step: TypeAlias = Literal[
    "references",
    "propose",
    "data",
    "train",
    "adapt",
    "select",
    "evaluate",
    "decide",
    "approve",
    "learn",
    "harvest",
    "merge",
    "finished",
]


class Comparison(Record):
    """The rule of one comparison, fixed before its first episode.

    Attributes:
        level: Probability that it blesses a candidate that is no better.
        bar_level: The same of a first candidate whose own mean is below ``min_promote``.
        spent: Part of the run's error budget that was spent before it.
        most: Most episodes per policy in each task.
        first: Episodes before a candidate may be given up; ``growth`` to the next such look.
        per_job: Episodes that a job plays of one policy in each task.
        score_range: Least and most of a score; None for success and wins.
    """

    level: float = Field(ge=0.0, le=1.0)
    bar_level: float = Field(ge=0.0, le=1.0)
    spent: float = Field(ge=0.0)
    most: int = Field(ge=1)
    first: int = Field(ge=1)
    growth: float = Field(gt=1.0)
    per_job: int = Field(ge=1)
    score_range: tuple[float, float] | None = None


class CycleState(Record):
    """What the present cycle has made so far.

    Attributes:
        adapted: The same, trained on with harvested episodes.
        comparison: Rule of the comparison; None before it.
        look: Jobs of the comparison played so far, from 0.
        candidate_report: Latest evaluation of the candidate, without outcomes, raw data cut.
        baseline_report: Latest evaluation of the reference on the same seeds, outcomes and raw data
            left out.
        decision: What was decided; None before.
    """

    proposal: Proposal | None = None
    dataset: DatasetRef | None = None
    candidate: CheckpointRecord | None = None
    adapted: CheckpointRecord | None = None
    comparison: Comparison | None = None
    look: int = Field(default=0, ge=0)
    candidate_report: EvalReport | None = None
    baseline_report: EvalReport | None = None
    decision: str | None = None
    reason: str = ""


class PastCandidate(Record):
    """How a candidate that was not promoted compared with the reference in its own cycle.

    Scores of different cycles were measured on different initial states, so only the difference
    tells how near a candidate came to the reference.

    Attributes:
        score: Its success or score, on the initial states of its cycle.
        difference: Mean of candidate - reference on the same initial states; None if it is not
            known, as of a candidate without reference.
        half_width: Half the width of the bounds of the difference; None if they are open.
        likely_half_width: The same of the likely bounds; None if they were not asked for, too.
    """

    score: float
    difference: float | None = None
    half_width: float | None = Field(default=None, ge=0.0)
    likely_half_width: float | None = Field(default=None, ge=0.0)


def _none_as_0(count: object) -> object:
    """Take the null that states hold before the first decision as no failure."""
    return 0 if count is None else count


class LoopState(Record):
    """Everything the controller knows about a run.

    Attributes:
        cycle: Present cycle, from 0.
        rung: Index into the policy ladder.
        rung_cycles: Cycles completed on this rung.
        blessed: Best policy so far; None before a promotion.
        references: Policies that the run starts from, until the best of them is blessed; then none.
        provisional: Policy that is the reference until one is blessed; not shown good enough.
        baseline: Success of the reference when last measured; None before.
        history: Candidates of this rung that were not promoted, oldest first.
        unmerged: Harvests that still wait to be joined to ``mix``.
        last_report: Evaluation of the last cycle, for the proposer.
        spent: Part of the run's error budget that its comparisons spent.
        failed: Comparisons that ended without a promotion on bounds.
        deviation: Standard deviation of paired scores as measured last, a share of the range.
        stop_reason: Why the run ended; None while it goes on. A run that a budget ended keeps the
            step that is to be done when there is more.
        restarts: Times the run went on after a failure or the end of a budget.
    """

    run_id: str
    cycle: int = Field(default=0, ge=0)
    step: Step = "propose"
    rung: int = Field(default=0, ge=0)
    rung_cycles: int = Field(default=0, ge=0)
    blessed: CheckpointRecord | None = None
    references: tuple[CheckpointRecord, ...] = ()
    provisional: CheckpointRecord | None = None
    baseline: float | None = None
    history: tuple[PastCandidate, ...] = ()
    mix: DatasetRef | None = None
    unmerged: tuple[DatasetRef, ...] = ()
    last_report: EvalReport | None = None
    decisions: tuple[str, ...] = ()
    spent: float = Field(default=0.0, ge=0.0)
    failed: Annotated[int, BeforeValidator(_none_as_0), Field(ge=0)] = 0
    deviation: float | None = Field(default=None, ge=0.0)
    current: CycleState = CycleState()
    stop_reason: str | None = None
    restarts: int = Field(default=0, ge=0)

    @property
    def reference(self) -> CheckpointRecord | None:
        """Policy that candidates are compared with; None before the first evaluation."""
        return self.blessed or self.provisional


def needed(value: _Value | None) -> _Value:
    """Return what an earlier step made; that it is not there can only be our own mistake."""
    if value is None:
        raise AssertionError("expected what an earlier step of the cycle makes, got None")
    return value


#: Reason of a run that was asked to stop; it can be resumed.
STOP_REQUESTED = "stop requested"


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The outcome of a run; fields of the blessed policy are None if none is blessed."""

    run_id: str
    cycles_run: int = 0
    decisions: list[str] = field(default_factory=list[str])
    final_policy: str | None = None
    baseline_success_rate: float | None = None
    stop_reason: str = "budget: max_cycles"
    final_rung: str | None = None
    blessed_checkpoint: str | None = None
    blessed_cycle: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return all of it, for JSON."""
        return asdict(self)


def summarize(
    state: LoopState, config: LoopConfig, *, stop_reason: str | None = None
) -> RunSummary:
    """Return the outcome so far; ``stop_reason`` is why, where the state does not say."""
    blessed = state.blessed
    return RunSummary(
        run_id=state.run_id,
        cycles_run=len(state.decisions),
        decisions=list(state.decisions),
        final_policy=None if blessed is None else blessed.policy_type,
        baseline_success_rate=state.baseline,
        stop_reason=state.stop_reason or stop_reason or STOP_REQUESTED,
        final_rung=config.policy_ladder[state.rung].name,
        blessed_checkpoint=None if blessed is None else blessed.path,
        blessed_cycle=None if blessed is None or blessed.cycle < 0 else blessed.cycle,
    )
