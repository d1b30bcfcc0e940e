"""The work of each step of a cycle: asks the workers, hands what they made to the state machine.

Every step may be executed again after a kill: jobs are found by their keys, seeds are reserved
once, and events and pages of a repeated step are those of the first time.
"""

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from cadenza.loop.agents import DataAgent, EvalAgent, ImproveAgent, KnowledgeAgent, TrainAgent
from cadenza.loop.agents.base import CallableRunner, Runner
from cadenza.loop.config import LoopConfig
from cadenza.loop.contracts.records import (
    CheckpointRecord,
    Device,
    EpisodeOutcome,
    EvalReport,
    JobRunner,
    SeedRange,
)
from cadenza.loop.errors import (
    ApprovalDecidedError,
    ImproveError,
    StopRequestedError,
    StoreUnavailableError,
    UnansweredError,
)
from cadenza.loop.events.bus import Event, EventJournal
from cadenza.loop.incidents import IncidentLog
from cadenza.loop.jobs.terms import BudgetMeter, StopCheck
from cadenza.loop.orchestrator import machine
from cadenza.loop.orchestrator.comparison import comparison_of, job_ends, weigh
from cadenza.loop.orchestrator.decision import Judgement
from cadenza.loop.orchestrator.evidence import Evidence, pooled_report, selection_values
from cadenza.loop.orchestrator.machine import Measured, Transition
from cadenza.loop.orchestrator.preflight import seeds_of_seed_data
from cadenza.loop.orchestrator.proposer import Proposer
from cadenza.loop.resuming import require_intact
from cadenza.loop.schedule import (
    BLOCK,
    Purpose,
    SeedUse,
    attempts_within,
    bounded,
    collects,
    schedule_of,
    seed_range,
)
from cadenza.loop.state import Comparison, LoopState, needed
from cadenza.loop.store import changes
from cadenza.loop.store.jobstore import JobStore
from cadenza.loop.store.rows import ApprovalRow, Lease

_logger = logging.getLogger(__name__)


class RunSession:
    """What the steps of a run share; every write names the lease.

    Attributes:
        state: As committed last.
    """

    def __init__(
        self,
        store: JobStore,
        lease: Lease,
        journal: EventJournal,
        folder: Path,
        budget: BudgetMeter,
    ) -> None:
        """Load the state of the lease's run."""
        self.store = store
        self.lease = lease
        self.run_id: str = lease.run_id
        self.folder = folder
        self.journal = journal
        self.budget = budget
        self.device: Device = "gpu" if budget.uses_gpu else "cpu"
        self.incidents: IncidentLog = IncidentLog(folder)
        self.state, self._version = store.load_state(lease.run_id)

    def step(self, end: str = "") -> AbstractContextManager[object]:
        """Name the events inside the block after the present step, or one of its ends.

        The name is unique within the run, and equal whenever the step is repeated.
        """
        state = self.state
        restarts = f"~{state.restarts}" if state.restarts else ""
        return self.journal.step(f"{name_of(state)}{end and f'/{end}'}{restarts}")

    def commit(self, transition: Transition) -> None:
        """Make a transition in one transaction, then publish it; errors as `JobStore.commit`."""
        new, parts = transition.state, transition.parts
        drafts = [self.journal.draft(part) for part in parts if isinstance(part, Event)]
        rows = [part for part in parts if not isinstance(part, Event)]
        self._version = self.store.commit(self.lease, self._version, new, events=drafts, rows=rows)
        self.state = new
        self.journal.publish()

    def reload(self) -> None:
        """Take up the state that the store has, after a commit that it may have made unheard."""
        self.state, self._version = self.store.load_state(self.run_id)
        self.journal.publish()

    def reserve(
        self, purpose: SeedUse, seeds: SeedRange, *, look: int = 0, cycle: int | None = None
    ) -> SeedRange:
        """Reserve initial states for a cycle, the present one if None, and return them."""
        number = self.state.cycle if cycle is None else cycle
        self.store.apply(self.lease, changes.reserve_seeds(number, purpose, look, seeds))
        return seeds


def name_of(state: LoopState) -> str:
    """Return the name of the step that the state is at; unique within the run."""
    name = f"{state.cycle}/{state.step}"
    return f"{name}/{state.current.look}" if state.step in ("evaluate", "decide") else name


#: Who answers a question that nobody answered in time.
_TIMEOUT_NAME: Final = "timeout policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """Who does the work of a cycle; `knowledge` and `improve` may be nobody."""

    data: DataAgent
    train: TrainAgent
    evaluate: EvalAgent
    proposer: Proposer
    knowledge: KnowledgeAgent | None = None
    improve: ImproveAgent | None = None


@dataclass(kw_only=True)
class CycleSteps:
    """Does the steps of one run's cycles.

    Attributes:
        jobs: Runs the jobs of all workers; None lets each worker's own runner do it.
        poll_s: Longest pause between two looks at an open question.
    """

    session: RunSession
    config: LoopConfig
    workers: Workers
    jobs: JobRunner | None
    stop: StopCheck
    poll_s: float

    def perform(self) -> Transition:
        """Do the step that the state names and return what to commit."""
        state = self.session.state
        step: Callable[[LoopState], Transition] = getattr(self, state.step)
        done = step(state)
        if done.state.step != "evaluate" or state.step in ("evaluate", "decide"):
            return done
        comparison = comparison_of(self.config, state)
        return replace(done, state=machine.in_cycle(done.state, "evaluate", comparison=comparison))

    def references(self, state: LoopState) -> Transition:
        """Play the policies that the run may start from."""
        # no copy is compared in cycle 0, whose initial states for that are free
        seeds = self._reserved("select", self.config.eval.n_episodes)
        policies = enumerate(state.references)
        reports = [self._play(f"reference_{number}", one, seeds) for number, one in policies]
        values = selection_values([one.outcomes for one in reports], self.config.eval)
        return machine.reference_chosen(state, reports, values)

    def propose(self, state: LoopState) -> Transition:
        """Ask what the cycle trains on."""
        self.session.budget.require(self.session.device)
        self.session.journal.emit(machine.cycle_started(state, self.config))
        proposal = self.workers.proposer.propose(state.cycle, state.last_report)
        schedule = schedule_of(self.config, self.workers.data.constitution)
        return machine.proposed(state, self.config, bounded(proposal, schedule, state.cycle))

    def data(self, state: LoopState) -> Transition:
        """Find or collect the data."""
        worker = self.workers.data
        proposal = needed(state.current.proposal)
        block = reserve_training_seeds(self.session, self.config)
        seeds = SeedRange(
            start=block.start, count=attempts_within(worker.constitution, proposal.num_episodes)
        )
        dataset = worker.run(proposal=proposal, seeds=seeds, **self._call(worker.runner))
        return machine.data_found(state, dataset)

    def train(self, state: LoopState) -> Transition:
        """Train a candidate."""
        blessed = machine.initial_weights(state, self.config)
        init = None if blessed is None else require_intact(blessed).path
        return machine.trained(state, self.config, self._trained(state, init))

    def adapt(self, state: LoopState) -> Transition:
        """Train a copy of the candidate with the harvests."""
        improve = self.config.improve
        copy = self._trained(
            state,
            _candidate(state).path,
            steps=improve.adapt_steps,
            stage="adapt",
            mix=state.mix,
            mix_ratio=improve.mix_ratio,
        )
        return machine.adapted(state, copy)

    def select(self, state: LoopState) -> Transition:
        """Play candidate and copy."""
        seeds = self._reserved("select", self.config.eval.n_episodes)
        plain = self._play("select_candidate", _candidate(state), seeds)
        copy = needed(state.current.adapted)
        adapted = self._play("select_adapted", copy, seeds)
        values = selection_values([plain.outcomes, adapted.outcomes], self.config.eval)
        return machine.selected(state, plain, adapted, (values[0], values[1]))

    def evaluate(self, state: LoopState) -> Transition:
        """Play one job of the comparison, by both sides."""
        look, sizes = state.current.look, job_ends(_rule(state))
        before = sizes[look - 1] if look else 0
        seeds = self._reserved("compare", sizes[look] - before, skip=before, look=look)
        candidate = self._measure(state, "candidate", _candidate(state), seeds)
        baseline = None
        if state.reference is not None:
            baseline = self._measure(state, "baseline", state.reference, seeds)
        return machine.evaluated(state, candidate, baseline)

    def decide(self, state: LoopState) -> Transition:
        """Judge all episodes of the cycle."""
        judgement, evidence = self._weighed(state)
        _candidate(state)
        return machine.judged(state, self.config, judgement, evidence)

    def approve(self, state: LoopState) -> Transition:
        """Wait for a person."""
        answer = self._wait_for_answer(state, needed(state.current.decision))
        _candidate(state)
        return machine.answered(
            state,
            self.config,
            self._weighed(state)[1],
            approved=answer.status == "approved",
            by=answer.by or "",
            reason=answer.reason or "",
        )

    def learn(self, state: LoopState) -> Transition:
        """Write down what the cycle showed."""
        current, writer = state.current, self.workers.knowledge
        if writer is not None:
            store = self.session.store
            row, refused = store.cycles_for(state.run_id)[state.cycle], store.approvals.refusals
            writer.ingest(
                run_id=state.run_id,
                cycle=state.cycle,
                policy=needed(current.candidate).policy_type,
                report=needed(current.candidate_report),
                decision=needed(current.decision) + refused(state.run_id).get(state.cycle, ""),
                at=row["finished_at"],
            )
        improves = self.workers.improve is not None
        return machine.learned(state, self.config, improves=improves)

    def harvest(self, state: LoopState) -> Transition:
        """Collect the policy's own successes, or what it fails at."""
        worker = needed(self.workers.improve)
        proposal = needed(state.current.proposal)
        attempts = attempts_within(worker.constitution, self.config.improve.episodes)
        try:
            harvest = worker.harvest(
                checkpoint=require_intact(needed(state.reference)),
                seeds=self._reserved("harvest", attempts),
                focus=proposal.focus,
                **self._call(worker.runner),
            )
        except ImproveError as error:
            return machine.harvested(state, self.config, None, error=str(error))
        return machine.harvested(state, self.config, harvest.dataset if harvest.kept else None)

    def merge(self, state: LoopState) -> Transition:
        """Join the harvests."""
        worker = needed(self.workers.improve)
        sources = (*(() if state.mix is None else (state.mix,)), *state.unmerged)
        try:
            dataset = worker.merge(sources=sources, **self._call(worker.runner))
        except ImproveError as error:
            return machine.merged(state, self.config, None, error=str(error))
        return machine.merged(state, self.config, dataset)

    def _trained(self, state: LoopState, init: str | None, **more: Any) -> CheckpointRecord:
        worker = self.workers.train
        checkpoint = worker.run(
            rung=machine.rung_of(state, self.config),
            dataset=needed(state.current.dataset),
            init_override=init,
            proposal=state.current.proposal,
            **more,
            **self._call(worker.runner),
        )
        return require_intact(checkpoint)

    def _measure(
        self, state: LoopState, subject: str, policy: CheckpointRecord, seeds: SeedRange
    ) -> Measured:
        """Return one look at a policy, and all looks of the cycle so far."""
        latest = self._play(f"eval_{subject}_{state.current.look}", policy, seeds)
        earlier: list[EpisodeOutcome] = []
        for look in range(state.current.look):
            earlier += self.session.store.episodes(state.run_id, state.cycle, subject, look=look)
        return Measured(latest=latest, total=pooled_report(latest, [*earlier, *latest.outcomes]))

    def _play(self, stage: str, policy: CheckpointRecord, seeds: SeedRange) -> EvalReport:
        worker, checkpoint = self.workers.evaluate, require_intact(policy)
        call = self._call(worker.runner)
        return worker.run(checkpoint=checkpoint, stage=stage, seeds=seeds, **call)

    def _reserved(self, purpose: Purpose, count: int, *, skip: int = 0, look: int = 0) -> SeedRange:
        """Return fresh initial states of the present cycle."""
        cycle = self.session.state.cycle
        seeds = seed_range(self.config.seed, purpose, cycle, count=count, skip=skip)
        return self.session.reserve(purpose, seeds, look=look)

    def _call(self, own: Runner) -> dict[str, Any]:
        """Return what every call of a worker needs, if there is anything left to spend.

        The jobs are run by the session's runner, or by the worker's ``own``.
        """
        session, jobs = self.session, self.jobs
        if jobs is None:
            self.session.budget.require(self.session.device)
            jobs = CallableRunner(session.store, session.lease, own)
        place = {"run_id": session.run_id, "cycle": session.state.cycle, "workdir": session.folder}
        return {**place, "jobs": jobs}

    def _weighed(self, state: LoopState) -> tuple[Judgement, Evidence]:
        """Return what all episodes of the cycle show."""
        store, reference = self.session.store, None
        candidate = store.episodes(state.run_id, state.cycle, "candidate")
        if state.current.baseline_report is not None:
            reference = store.episodes(state.run_id, state.cycle, "baseline")
        return weigh(_rule(state), self.config, state, candidate, reference)

    def _wait_for_answer(self, state: LoopState, gate: str) -> ApprovalRow:
        """Return the answer of a person, or of the timeout policy, unless the run stops."""
        session = self.session
        session.store.apply(session.lease, changes.set_run_status("pending_approval"))
        while True:
            try:
                row = session.store.approvals.get(state.run_id, state.cycle, gate)
                if row.status != "pending":
                    return row
                if row.overdue:
                    self._answer_late(state, gate)
                    continue
            except StoreUnavailableError as error:  # a question may outlive a restarted server
                _logger.warning("cannot tell whether there was an answer: %s", error)
            if self.stop():
                raise StopRequestedError(f"run {state.run_id!r}: asked to stop while it waits.")
            time.sleep(self.poll_s)

    def _answer_late(self, state: LoopState, gate: str) -> None:
        policy = self.config.approval.on_timeout
        if policy == "stop":
            raise UnansweredError(
                f"no answer in time whether to {gate} in cycle {state.cycle}; answer with "
                "`cadenza loop approve`, then resume the run."
            )
        try:
            self.session.store.approvals.decide(
                state.run_id,
                state.cycle,
                gate,
                "approved" if policy == "approve" else "rejected",
                reason="no answer in time",
                by=_TIMEOUT_NAME,
            )
        except ApprovalDecidedError:
            return  # somebody answered at the last moment: that answer holds


def _candidate(state: LoopState) -> CheckpointRecord:
    return require_intact(needed(state.current.candidate))


def _rule(state: LoopState) -> Comparison:
    return needed(state.current.comparison)


def reserve_training_seeds(session: RunSession, config: LoopConfig) -> SeedRange:
    """Return the initial states to collect from; they, or the seed dataset's, are reserved.

    A `RecordConflictError` says that the run uses some of them for something else, or that the seed
    dataset was another one in an earlier cycle.
    """
    # the first cycle's block for the whole run: more episodes then extend earlier ones
    block = seed_range(config.seed, "data", 0, count=BLOCK)
    if collects(config):
        return session.reserve("data", block, cycle=0)
    known = seeds_of_seed_data(config)
    for number, seeds in enumerate(known or ()):
        session.reserve("seed_data", seeds, look=number, cycle=0)
    if session.state.cycle == 0:
        told: object = "unknown"
        if known is not None:
            told = [[one.start, one.start + one.count - 1] for one in known]
        session.journal.emit(
            Event(session.run_id, "collect", "seed_data_seeds", 0, {"seeds": told})
        )
    return block
