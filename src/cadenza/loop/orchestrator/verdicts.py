"""From a judgement to a decision: look again, ask a person, or carry it out.

A decision, the blessing, the baseline and the event that tells them are one transition.
"""

from typing import Any

from cadenza.loop.config import LoopConfig
from cadenza.loop.orchestrator.decision import Decision, Judgement, past_candidate
from cadenza.loop.orchestrator.evidence import Evidence
from cadenza.loop.orchestrator.transitions import Notice, Transition, in_cycle
from cadenza.loop.state import LoopState, needed
from cadenza.loop.store import changes
from cadenza.loop.store.changes import request_approval


def judged(
    state: LoopState, config: LoopConfig, judgement: Judgement, evidence: Evidence
) -> Transition:
    """Act on a judgement: look again, ask a person, or carry the decision out."""
    if judgement.decision is None:
        notice = Notice(
            stage="decide",
            kind="undecided",
            cycle=state.cycle,
            payload={"reason": judgement.reason, "evidence": evidence.model_dump()},
        )
        new = in_cycle(state, "evaluate", look=state.current.look + 1)
        row = changes.set_stage(state.cycle, "eval")
        return Transition(state=new, events=(notice,), rows=(row,))
    decision = judgement.decision
    if decision.value in config.approval.gates:
        return _ask(state, config, decision, judgement.reason, evidence)
    return _carry_out(state, decision, judgement.reason, evidence)


def _ask(
    state: LoopState, config: LoopConfig, gate: Decision, reason: str, evidence: Evidence
) -> Transition:
    notice = Notice(
        stage="decide",
        kind="approval_requested",
        cycle=state.cycle,
        payload={"gate": gate.value, "reason": reason, "evidence": evidence.model_dump()},
    )
    return Transition(
        state=in_cycle(state, "approve", decision=gate.value, reason=reason),
        events=(notice,),
        rows=(
            request_approval(state.cycle, gate.value, timeout_s=config.approval.timeout_s),
            changes.set_stage(state.cycle, "approve"),
            changes.set_run_status("pending_approval"),
        ),
    )


def answered(
    state: LoopState, evidence: Evidence, *, approved: bool, by: str, reason: str
) -> Transition:
    """Carry out what a person answered; a refused decision becomes ``iterate``."""
    asked = Decision(needed(state.current.decision, "a decision"))
    notice = Notice(
        stage="decide",
        kind="approval_decided",
        cycle=state.cycle,
        payload={"gate": asked.value, "approved": approved, "by": by, "reason": reason},
    )
    if approved:
        done = _carry_out(state, asked, f"{state.current.reason} Approved: {reason}", evidence)
    else:
        why = f"{state.current.reason} But {by} refused to {asked.value}: {reason}"
        done = _carry_out(state, Decision.ITERATE, why, evidence)
    return Transition(
        state=done.state,
        events=(notice, *done.events),
        rows=(*done.rows, changes.set_run_status("running")),
    )


def _carry_out(state: LoopState, decision: Decision, reason: str, evidence: Evidence) -> Transition:
    """Decide: the decision, the blessing, the baseline and their event together."""
    candidate = needed(state.current.candidate, "a candidate")
    report = needed(state.current.candidate_report, "a report")
    update: dict[str, Any] = {
        "step": "learn",
        "decisions": (*state.decisions, decision.value),
        "current": state.current.model_copy(update={"decision": decision.value, "reason": reason}),
    }
    shown_better = decision is Decision.PROMOTE and (evidence.lower or 0.0) > 0.0
    if evidence.spent is not None and not shown_better:
        update["spent"] = evidence.spent
    rows = [changes.finish_cycle(state.cycle, decision.value)]
    match decision:
        case Decision.PROMOTE:
            blessed = candidate.model_copy(update={"blessed": True})
            update |= {"blessed": blessed, "provisional": None, "history": ()}
            update["baseline"] = evidence.candidate
            rows.append(changes.bless(candidate.path))
        case Decision.PROVISIONAL:
            update |= {"provisional": candidate, "history": ()}
            update["baseline"] = evidence.candidate
        case Decision.ESCALATE:
            update |= {"history": (), "baseline": evidence.baseline}
        case Decision.ITERATE | Decision.ROLLBACK:
            # the very first candidate can be refused by a person: there is no baseline then
            update |= {"history": (*state.history, past_candidate(evidence))}
            update["baseline"] = evidence.baseline
    payload = {
        "decision": decision.value,
        "success_rate": report.success_rate,
        "baseline": evidence.baseline,
        "reason": reason,
        "evidence": evidence.model_dump(),
    }
    notice = Notice(stage="decide", kind="decision", cycle=state.cycle, payload=payload)
    return Transition(state=state.model_copy(update=update), events=(notice,), rows=tuple(rows))
