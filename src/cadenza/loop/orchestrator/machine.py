"""The state machine of a run: pure functions from a state and what a step brought to the next one.

A transition is the next state, what is told of it, and what is changed beside it; all of it is
committed at once.

Steps:    [references ->] propose -> data -> train -> [adapt -> select] -> evaluate <-> decide
          -> [approve] -> learn -> [harvest] -> [merge] -> propose of the next cycle, or finished.
Promise:  at most one policy is blessed; the baseline is what the reference was last measured at; a
          run has at most ``max_cycles`` decisions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from cadenza.loop.config import LoopConfig, PolicyRung
from cadenza.loop.contracts.records import CheckpointRecord, DatasetRef, EvalReport, Proposal
from cadenza.loop.events.bus import Event
from cadenza.loop.orchestrator.comparison import outlook, spends
from cadenza.loop.orchestrator.decision import Decision, Judgement, past_candidate
from cadenza.loop.orchestrator.evidence import Evidence, bare_report, told_report
from cadenza.loop.state import CycleState, LoopState, Step, needed, summarize
from cadenza.loop.store import changes
from cadenza.loop.store.changes import Change


@dataclass(frozen=True, slots=True)
class Transition:
    """What is committed after a step, in one transaction: a state, events and changes beside it."""

    state: LoopState
    parts: tuple[Event | Change, ...] = ()


def _to(state: LoopState, *parts: Event | Change) -> Transition:
    return Transition(state, parts)


def _told(state: LoopState, stage: str, kind: str, **payload: object) -> Event:
    """Return an event of the present cycle."""
    return Event(state.run_id, stage, kind, state.cycle, payload)


def _of_run(state: LoopState, kind: str, **payload: object) -> Event:
    """Return an event of the run itself."""
    return Event(state.run_id, "orchestrator", kind, payload=payload)


def moved(state: LoopState, step: Step, **update: object) -> LoopState:
    """Return ``state`` at another step, with other values of its fields."""
    return state.model_copy(update={"step": step, **update})


def in_cycle(state: LoopState, step: Step, **update: object) -> LoopState:
    """Return ``state`` at another step, with other values of its cycle's fields."""
    return moved(state, step, current=state.current.model_copy(update=update))


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


def cycle_started(state: LoopState, config: LoopConfig) -> Event:
    """Return the event at the beginning of a cycle."""
    policy = rung_of(state, config).name
    return _told(state, "orchestrator", "cycle_started", policy=policy)


def reference_chosen(
    state: LoopState, reports: Sequence[EvalReport], values: Sequence[float]
) -> Transition:
    """Bless the best of the policies that the run starts from; of equal ones, the first."""
    best = values.index(max(values))
    blessed = state.references[best]
    played = {one.path: value for one, value in zip(state.references, values, strict=True)}
    played_by = enumerate(one.outcomes for one in reports)
    return _to(
        moved(state, "propose", blessed=blessed, references=(), baseline=values[best]),
        _told(state, "eval", "reference_chosen", chosen=blessed.path, played=played),
        *(changes.record_episodes(state.cycle, f"reference_{n}", 0, them) for n, them in played_by),
        changes.bless(blessed.path),
    )


def proposed(state: LoopState, config: LoopConfig, proposal: Proposal) -> Transition:
    """Begin the cycle with a proposal, which may move the run to another rung of the ladder."""
    ladder = [rung.name for rung in config.policy_ladder]
    told: list[Event] = []
    if proposal.rung in ladder and proposal.rung != ladder[state.rung]:
        update = {"rung": ladder.index(proposal.rung), "rung_cycles": 0, "history": ()}
        state = state.model_copy(update=update)
        told = [_told(state, "orchestrator", "rung_proposed", to=proposal.rung)]
    rung, text = rung_of(state, config).name, proposal.model_dump_json()
    return _to(
        moved(state, "data", current=CycleState(proposal=proposal)),
        *told,
        changes.start_cycle(state.cycle, rung=rung, proposal_json=text),
    )


def data_found(state: LoopState, dataset: DatasetRef) -> Transition:
    """Take the data of the cycle."""
    row = changes.set_stage(state.cycle, "train", dataset_json=dataset.model_dump_json())
    return _to(in_cycle(state, "train", dataset=dataset), row)


def trained(state: LoopState, config: LoopConfig, checkpoint: CheckpointRecord) -> Transition:
    """Take a trained policy as the candidate."""
    adapts = state.mix is not None and config.improve.adapt_steps > 0
    return _to(
        in_cycle(state, "adapt" if adapts else "evaluate", candidate=checkpoint),
        _checkpoint_row(state, checkpoint),
        changes.set_stage(state.cycle, "train" if adapts else "eval"),
    )


def adapted(state: LoopState, checkpoint: CheckpointRecord) -> Transition:
    """Take a copy of the candidate that was trained on with harvested episodes."""
    row, stage = _checkpoint_row(state, checkpoint), changes.set_stage(state.cycle, "eval")
    return _to(in_cycle(state, "select", adapted=checkpoint), row, stage)


def selected(
    state: LoopState, plain: EvalReport, other: EvalReport, values: tuple[float, float]
) -> Transition:
    """Keep the better of candidate and adapted copy; the candidate if they are equal."""
    wins, current = values[1] > values[0], state.current
    chosen = needed(current.adapted if wins else current.candidate)
    told = {"candidate": values[0], "adapted": values[1]}
    which = "adapted" if wins else "candidate"
    return _to(
        in_cycle(state, "evaluate", candidate=chosen),
        _told(state, "eval", "candidate_selected", chosen=which, **told),
        changes.record_episodes(state.cycle, "select_candidate", 0, plain.outcomes),
        changes.record_episodes(state.cycle, "select_adapted", 0, other.outcomes),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One policy after one look: that look, and all looks of the cycle together."""

    latest: EvalReport
    total: EvalReport


def evaluated(state: LoopState, candidate: Measured, baseline: Measured | None) -> Transition:
    """Take the evaluations of one look; ``baseline`` is None while there is no reference."""
    cycle, look = state.cycle, state.current.look
    rows = [
        changes.record_episodes(cycle, "candidate", look, candidate.latest.outcomes),
        changes.attach_eval(
            needed(state.current.candidate).path,
            candidate.total.model_copy(update={"outcomes": ()}).model_dump_json(),
        ),
    ]
    if baseline is not None:
        rows.append(changes.record_episodes(cycle, "baseline", look, baseline.latest.outcomes))
    new = in_cycle(
        state,
        "decide",
        candidate_report=told_report(candidate.total),
        baseline_report=None if baseline is None else bare_report(baseline.total),
    )
    return _to(new, *rows, changes.set_stage(cycle, "decide"))


def learned(state: LoopState, config: LoopConfig, *, improves: bool) -> Transition:
    """Go on to a harvest, if a worker ``improves``, to a merge that is due, or to the end."""
    report = needed(state.current.candidate_report)
    promoted = state.current.decision == Decision.PROMOTE.value
    worth_it = promoted and report.success_rate > 0.0
    if config.improve.starts == "failed":
        worth_it = state.reference is not None
    if improves and worth_it:
        return _to(moved(state, "harvest"))
    return _merge_or_end(state, config, improves=improves)


def harvested(
    state: LoopState, config: LoopConfig, dataset: DatasetRef | None, *, error: str | None = None
) -> Transition:
    """Take what a harvest kept; None, for nothing or an ``error``, leaves everything as it was."""
    if dataset is not None:
        state = state.model_copy(update={"unmerged": (*state.unmerged, dataset)})
    return _after_improving(state, _merge_or_end(state, config, improves=True), error)


def merged(
    state: LoopState, config: LoopConfig, dataset: DatasetRef | None, *, error: str | None = None
) -> Transition:
    """Take the joined harvests; after an ``error`` the next cycle tries again."""
    if dataset is not None:
        state = state.model_copy(update={"mix": dataset, "unmerged": ()})
    return _after_improving(state, end_cycle(state, config), error)


def _after_improving(state: LoopState, done: Transition, error: str | None) -> Transition:
    if error is None:
        return done
    notice = _told(state, "improve", "improve_failed", error=error)
    return replace(done, parts=(notice, *done.parts))


def _merge_or_end(state: LoopState, config: LoopConfig, *, improves: bool) -> Transition:
    if not improves or not state.unmerged:
        return end_cycle(state, config)
    if state.mix is None and len(state.unmerged) == 1:
        return merged(state, config, state.unmerged[0])
    return _to(moved(state, "merge"))


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
    told: list[Event] = []
    if climbs:
        told = [_told(state, "orchestrator", "policy_escalated", to=rung_of(new, config).name)]
    if not exhausted and new.cycle < config.budgets.max_cycles:
        return _to(new, *told)
    reason = LADDER_EXHAUSTED if exhausted else CYCLES_SPENT
    return _ended(moved(new, "finished"), config, reason, *told)


def out_of_budget(state: LoopState, config: LoopConfig, limit: str) -> Transition:
    """End the run at its present step, which is done when the budget ``limit`` is raised."""
    return _ended(state, config, f"budget: {limit}")


def _ended(state: LoopState, config: LoopConfig, reason: str, *told: Event) -> Transition:
    state = state.model_copy(update={"stop_reason": reason})
    last = _of_run(state, "run_finished", **summarize(state, config).to_dict())
    return _to(state, *told, last, changes.set_run_status("finished", reason))


def failed(state: LoopState, error: str) -> Transition:
    """Note that the present step failed; it is done again when the run is resumed."""
    row = changes.set_run_status("failed", error)
    return _to(state, _of_run(state, "run_failed", error=error), row)


def restarted(state: LoopState) -> Transition:
    """Go on after a failure or the end of a budget; the step's events are told anew."""
    update = {"restarts": state.restarts + 1, "stop_reason": None}
    return _to(state.model_copy(update=update), changes.set_run_status("running"))


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
    return _to(
        moved(state, "propose", stop_reason=None),
        _of_run(state, "run_extended", **payload),
        changes.set_run_status("running"),
    )


def _checkpoint_row(state: LoopState, checkpoint: CheckpointRecord) -> Change:
    return changes.add_checkpoint(
        state.cycle, checkpoint.policy_type, checkpoint.path, sha256=checkpoint.sha256
    )


def judged(
    state: LoopState, config: LoopConfig, judgement: Judgement, evidence: Evidence
) -> Transition:
    """Act on a judgement: look again, ask a person, or carry the decision out."""
    decision, told = judgement.decision, {"reason": judgement.reason}
    shown = {**told, "evidence": evidence.model_dump()}
    if decision is None:
        return _to(
            in_cycle(state, "evaluate", look=state.current.look + 1),
            _told(state, "decide", "undecided", **shown),
            changes.set_stage(state.cycle, "eval"),
        )
    if decision.value not in config.approval.gates:
        return _carry_out(state, config, decision, judgement.reason, evidence)
    gate = decision.value
    return _to(
        in_cycle(state, "approve", decision=gate, **told),
        _told(state, "decide", "approval_requested", gate=gate, **shown),
        changes.request_approval(state.cycle, gate, timeout_s=config.approval.timeout_s),
        changes.set_stage(state.cycle, "approve"),
        changes.set_run_status("pending_approval"),
    )


def answered(
    state: LoopState,
    config: LoopConfig,
    evidence: Evidence,
    *,
    approved: bool,
    by: str,
    reason: str,
) -> Transition:
    """Carry out what a person answered; a refused decision becomes ``iterate``."""
    asked = Decision(needed(state.current.decision))
    told = {"gate": asked.value, "approved": approved, "by": by, "reason": reason}
    why, decision = f"{state.current.reason} Approved: {reason}", asked
    if not approved:
        why = f"{state.current.reason} But {by} refused to {asked.value}: {reason}"
        decision = Decision.ITERATE
    done = _carry_out(state, config, decision, why, evidence)
    asked_for = _told(state, "decide", "approval_decided", **told)
    return _to(done.state, asked_for, *done.parts, changes.set_run_status("running"))


def _carry_out(
    state: LoopState, config: LoopConfig, decision: Decision, reason: str, evidence: Evidence
) -> Transition:
    """Decide: the decision, the blessing, the baseline, the error spent and their event."""
    candidate = needed(state.current.candidate)
    report = needed(state.current.candidate_report)
    failed, spent = state.failed, state.spent
    if spends(decision, evidence):
        failed += 1
        spent = spent if evidence.spent is None else evidence.spent
    deviation = state.deviation if evidence.deviation is None else evidence.deviation
    if evidence.most is not None:
        ahead = outlook(config, spent=spent, failed=failed, most=evidence.most, deviation=deviation)
        reason = f"{reason.rstrip('.')}. {ahead}"
    update: dict[str, Any] = {
        "step": "learn",
        "decisions": (*state.decisions, decision.value),
        "current": state.current.model_copy(update={"decision": decision.value, "reason": reason}),
        "failed": failed,
        "spent": spent,
        "deviation": deviation,
        "history": (),
        "baseline": evidence.baseline,
    }
    rows = [changes.finish_cycle(state.cycle, decision.value)]
    match decision:
        case Decision.PROMOTE:
            blessed = candidate.model_copy(update={"blessed": True})
            update |= {"blessed": blessed, "provisional": None, "baseline": evidence.candidate}
            rows.append(changes.bless(candidate.path))
        case Decision.PROVISIONAL:
            update |= {"provisional": candidate, "baseline": evidence.candidate}
        case Decision.ESCALATE:
            pass
        case Decision.ITERATE | Decision.ROLLBACK:
            # the very first candidate can be refused by a person: there is no baseline then
            update["history"] = (*state.history, past_candidate(evidence))
    payload = {
        "decision": decision.value,
        "success_rate": report.success_rate,
        "baseline": evidence.baseline,
        "reason": reason,
        "evidence": evidence.model_dump(),
    }
    told = _told(state, "decide", "decision", **payload)
    return _to(state.model_copy(update=update), told, *rows)
