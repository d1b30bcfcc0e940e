"""The state machine of a run: pure functions from a state and what a step brought to the next one.

Steps:    propose -> data -> train -> [adapt -> select] -> evaluate <-> decide -> [approve] -> learn
          -> [harvest] -> [merge] -> propose of the next cycle, or finished.
Promise:  at most one policy is blessed; the baseline is what the reference was last measured at; a
          run has at most ``max_cycles`` decisions.
Limits:   does no work and reads no clock; `cadenza.loop.orchestrator.steps` does the work, the
          controller commits a transition in one transaction. What follows from a judgement is in
          `cadenza.loop.orchestrator.verdicts`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cadenza.loop.config import LoopConfig, PolicyRung
from cadenza.loop.contracts.records import (
    CheckpointRecord,
    DatasetRef,
    EpisodeOutcome,
    EvalReport,
    Proposal,
)
from cadenza.loop.orchestrator.decision import Decision
from cadenza.loop.orchestrator.reports import bare_report, told_report
from cadenza.loop.orchestrator.summary import summarize
from cadenza.loop.orchestrator.transitions import Notice, Transition, in_cycle, moved
from cadenza.loop.state import CycleState, LoopState, needed
from cadenza.loop.store import changes
from cadenza.loop.store.changes import Change

#: Why a run ends by itself.
LADDER_EXHAUSTED: Final = "policy ladder exhausted"
CYCLES_SPENT: Final = "budget: max_cycles"


def rung_of(state: LoopState, config: LoopConfig) -> PolicyRung:
    """Return the rung of the policy ladder that the run is on."""
    return config.policy_ladder[state.rung]


def initial_weights(state: LoopState, config: LoopConfig) -> CheckpointRecord | None:
    """Return the blessed policy if training goes on from it; None for the rung's own weights."""
    blessed = state.blessed
    if blessed is None or not config.train.continue_from_blessed:
        return None
    return blessed if blessed.policy_type == rung_of(state, config).name else None


def cycle_started(state: LoopState, config: LoopConfig) -> Notice:
    """Return the event at the beginning of a cycle."""
    payload = {"policy": rung_of(state, config).name}
    return Notice(stage="orchestrator", kind="cycle_started", cycle=state.cycle, payload=payload)


def proposed(state: LoopState, config: LoopConfig, proposal: Proposal) -> Transition:
    """Begin the cycle with a proposal, which may move the run to another rung of the ladder."""
    ladder = [rung.name for rung in config.policy_ladder]
    events: tuple[Notice, ...] = ()
    if proposal.rung in ladder and proposal.rung != ladder[state.rung]:
        update = {"rung": ladder.index(proposal.rung), "rung_cycles": 0, "history": ()}
        state = state.model_copy(update=update)
        payload = {"to": proposal.rung}
        events = (
            Notice(stage="orchestrator", kind="rung_proposed", cycle=state.cycle, payload=payload),
        )
    row = changes.start_cycle(
        state.cycle,
        rung=rung_of(state, config).name,
        proposal_json=proposal.model_dump_json(),
    )
    return Transition(
        state=moved(state, "data", current=CycleState(proposal=proposal)),
        events=events,
        rows=(row,),
    )


def data_found(state: LoopState, dataset: DatasetRef) -> Transition:
    """Take the data of the cycle."""
    row = changes.set_stage(state.cycle, "train", dataset_json=dataset.model_dump_json())
    return Transition(state=in_cycle(state, "train", dataset=dataset), rows=(row,))


def trained(state: LoopState, config: LoopConfig, checkpoint: CheckpointRecord) -> Transition:
    """Take a trained policy as the candidate."""
    adapts = state.mix is not None and config.improve.adapt_steps > 0
    return Transition(
        state=in_cycle(state, "adapt" if adapts else "evaluate", candidate=checkpoint),
        rows=(
            _checkpoint_row(state, checkpoint),
            changes.set_stage(state.cycle, "train" if adapts else "eval"),
        ),
    )


def adapted(state: LoopState, checkpoint: CheckpointRecord) -> Transition:
    """Take a copy of the candidate that was trained on with harvested episodes."""
    return Transition(
        state=in_cycle(state, "select", adapted=checkpoint),
        rows=(_checkpoint_row(state, checkpoint), changes.set_stage(state.cycle, "eval")),
    )


def selected(
    state: LoopState, plain: EvalReport, other: EvalReport, values: tuple[float, float]
) -> Transition:
    """Keep the better of candidate and adapted copy; the candidate if they are equal.

    Args:
        state: State at the step ``select``.
        plain: Evaluation of the candidate on the cycle's selection seeds.
        other: Evaluation of the adapted copy on the same ones.
        values: What of the two is compared, in this order.
    """
    candidate, copy = (
        needed(state.current.candidate, "a candidate"),
        needed(state.current.adapted, "an adapted copy"),
    )
    wins = values[1] > values[0]
    notice = Notice(
        stage="eval",
        kind="candidate_selected",
        cycle=state.cycle,
        payload={
            "chosen": "adapted" if wins else "candidate",
            "candidate": values[0],
            "adapted": values[1],
        },
    )
    return Transition(
        state=in_cycle(state, "evaluate", candidate=copy if wins else candidate),
        events=(notice,),
        rows=(
            changes.record_episodes(state.cycle, "select_candidate", 0, plain.outcomes),
            changes.record_episodes(state.cycle, "select_adapted", 0, other.outcomes),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One policy after one look.

    Attributes:
        latest: The look's own evaluation.
        total: All looks of the cycle together.
    """

    latest: EvalReport
    total: EvalReport


def evaluated(state: LoopState, candidate: Measured, baseline: Measured | None) -> Transition:
    """Take the evaluations of one look; ``baseline`` is None while there is no reference."""
    cycle, look = state.cycle, state.current.look
    rows = [
        _episodes_row(cycle, "candidate", look, candidate.latest.outcomes),
        changes.attach_eval(
            needed(state.current.candidate, "a candidate").path,
            candidate.total.model_copy(update={"outcomes": ()}).model_dump_json(),
        ),
    ]
    if baseline is not None:
        rows.append(_episodes_row(cycle, "baseline", look, baseline.latest.outcomes))
    new = in_cycle(
        state,
        "decide",
        candidate_report=told_report(candidate.total),
        baseline_report=None if baseline is None else bare_report(baseline.total),
    )
    return Transition(state=new, rows=(*rows, changes.set_stage(cycle, "decide")))


def learned(state: LoopState, config: LoopConfig, *, improves: bool) -> Transition:
    """Go on after the pages were written: to a harvest, to a merge that is due, or to the end.

    Args:
        state: State at the step ``learn``.
        config: Configuration of the run.
        improves: Whether there is a worker that harvests.
    """
    report = needed(state.current.candidate_report, "a report")
    promoted = state.current.decision == Decision.PROMOTE.value
    worth_it = promoted and report.success_rate > 0.0
    if config.improve.starts == "failed":
        worth_it = state.reference is not None
    if improves and worth_it:
        return Transition(state=moved(state, "harvest"))
    return _merge_or_end(state, config, improves=improves)


def harvested(state: LoopState, config: LoopConfig, dataset: DatasetRef | None) -> Transition:
    """Take what a harvest kept; None, for nothing, leaves everything as it was."""
    if dataset is None:
        return _merge_or_end(state, config, improves=True)
    kept = state.model_copy(update={"unmerged": (*state.unmerged, dataset)})
    return _merge_or_end(kept, config, improves=True)


def harvest_failed(state: LoopState, config: LoopConfig, error: str) -> Transition:
    """Go on without a harvest."""
    done = _merge_or_end(state, config, improves=True)
    return _with_notice(done, _improve_failed(state, error))


def merged(state: LoopState, config: LoopConfig, dataset: DatasetRef) -> Transition:
    """Take the joined harvests."""
    joined = state.model_copy(update={"mix": dataset, "unmerged": ()})
    return end_cycle(joined, config)


def merge_failed(state: LoopState, config: LoopConfig, error: str) -> Transition:
    """Keep the mix and what waits to be joined to it; the next cycle tries again."""
    return _with_notice(end_cycle(state, config), _improve_failed(state, error))


def _merge_or_end(state: LoopState, config: LoopConfig, *, improves: bool) -> Transition:
    if not improves or not state.unmerged:
        return end_cycle(state, config)
    if state.mix is None and len(state.unmerged) == 1:
        return merged(state, config, state.unmerged[0])
    return Transition(state=moved(state, "merge"))


def end_cycle(state: LoopState, config: LoopConfig) -> Transition:
    """Go to the next cycle, or end the run."""
    escalates = state.current.decision == Decision.ESCALATE.value
    exhausted = escalates and state.rung + 1 >= len(config.policy_ladder)
    climbs = escalates and not exhausted
    new = state.model_copy(
        update={
            "cycle": state.cycle + 1,
            "step": "propose",
            "rung": state.rung + int(climbs),
            "rung_cycles": 0 if climbs else state.rung_cycles + 1,
            "last_report": state.current.candidate_report,
            "current": CycleState(),
        }
    )
    events: tuple[Notice, ...] = ()
    if climbs:
        payload = {"to": rung_of(new, config).name}
        events = (
            Notice(
                stage="orchestrator", kind="policy_escalated", cycle=state.cycle, payload=payload
            ),
        )
    if exhausted or new.cycle >= config.budgets.max_cycles:
        last = finished(new, config, LADDER_EXHAUSTED if exhausted else CYCLES_SPENT)
        return Transition(state=last.state, events=(*events, *last.events), rows=last.rows)
    return Transition(state=new, events=events)


def finished(state: LoopState, config: LoopConfig, reason: str) -> Transition:
    """End the run for good."""
    return _ended(moved(state, "finished", stop_reason=reason), config, reason)


def out_of_budget(state: LoopState, config: LoopConfig, limit: str) -> Transition:
    """End the run at its present step, which is done when the budget ``limit`` is raised."""
    reason = f"budget: {limit}"
    return _ended(state.model_copy(update={"stop_reason": reason}), config, reason)


def _ended(state: LoopState, config: LoopConfig, reason: str) -> Transition:
    summary = summarize(state, config).to_dict()
    return Transition(
        state=state,
        events=(Notice(stage="orchestrator", kind="run_finished", payload=summary),),
        rows=(changes.set_run_status("finished", reason),),
    )


def failed(state: LoopState, error: str) -> Transition:
    """Note that the present step failed; it is done again when the run is resumed."""
    return Transition(
        state=state,
        events=(Notice(stage="orchestrator", kind="run_failed", payload={"error": error}),),
        rows=(changes.set_run_status("failed", error),),
    )


def restarted(state: LoopState) -> Transition:
    """Go on after a failure or the end of a budget; the step's events are told anew."""
    update = {"restarts": state.restarts + 1, "stop_reason": None}
    return Transition(
        state=state.model_copy(update=update), rows=(changes.set_run_status("running"),)
    )


def may_extend(state: LoopState, config: LoopConfig) -> bool:
    """Return whether a run that ended after its last cycle may make more of them now."""
    return state.stop_reason == CYCLES_SPENT and state.cycle < config.budgets.max_cycles


def extended(state: LoopState, config: LoopConfig) -> Transition:
    """Go on after the last cycle of a run that now may have more; its error budget stays."""
    payload = {
        "max_cycles": config.budgets.max_cycles,
        "alpha": config.thresholds.alpha,
        "spent": state.spent,
    }
    return Transition(
        state=moved(state, "propose", stop_reason=None),
        events=(Notice(stage="orchestrator", kind="run_extended", payload=payload),),
        rows=(changes.set_run_status("running"),),
    )


def _with_notice(transition: Transition, notice: Notice) -> Transition:
    return Transition(
        state=transition.state, events=(notice, *transition.events), rows=transition.rows
    )


def _improve_failed(state: LoopState, error: str) -> Notice:
    return Notice(
        stage="improve", kind="improve_failed", cycle=state.cycle, payload={"error": error}
    )


def _checkpoint_row(state: LoopState, checkpoint: CheckpointRecord) -> Change:
    return changes.add_checkpoint(
        state.cycle, checkpoint.policy_type, checkpoint.path, sha256=checkpoint.sha256
    )


def _episodes_row(
    cycle: int, subject: str, look: int, outcomes: Sequence[EpisodeOutcome]
) -> Change:
    return changes.record_episodes(cycle, subject, look, outcomes)
