"""The controller of a run: does the step that the state names, commits, and goes on.

The store is the only memory. Whatever is killed, `LoopController.run` with the same id goes on from
the last committed state; a step that was begun is done again and finds its jobs, seeds, replies and
events where it left them.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, cast

from cadenza.core.errors import ConfigurationError, NotReadyError
from cadenza.core.strict_json import parse_json_object
from cadenza.loop.agents import DataAgent, EvalAgent, ImproveAgent, KnowledgeAgent, TrainAgent
from cadenza.loop.config import LoopConfig
from cadenza.loop.contracts.records import JobRunner
from cadenza.loop.errors import (
    BudgetExceededError,
    DuplicateRunError,
    EventLogHeldError,
    LeaseHeldError,
    StaleLeaseError,
    StaleStateError,
    StopRequestedError,
    StoreAccessError,
    StoreUnavailableError,
    UnansweredError,
)
from cadenza.loop.events.bus import EventBus, EventJournal, LogFile, require_free_log
from cadenza.loop.incidents import who_stopped
from cadenza.loop.jobs.terms import (
    BudgetMeter,
    StopCheck,
    StopLevel,
    asked_in_store,
    most_urgent,
    never,
)
from cadenza.loop.notify import notifications
from cadenza.loop.orchestrator import machine
from cadenza.loop.orchestrator.proposer import Proposer
from cadenza.loop.orchestrator.steps import CycleSteps, RunSession, Workers, name_of
from cadenza.loop.processes import is_frozen, is_gone, readable, this_process
from cadenza.loop.resuming import initial_references, placed, require_place
from cadenza.loop.retention import between_cycles
from cadenza.loop.state import STOP_REQUESTED, RunSummary, summarize
from cadenza.loop.store import changes
from cadenza.loop.store.jobstore import JobStore
from cadenza.loop.store.rows import Lease, Row
from cadenza.loop.store.tables import LeaseKeeper

#: Seconds after which a run counts as left by a controller that gives no sign of life.
LEASE_TTL_S: Final = 30.0

#: Longest message of an error that is stored as the reason why a run failed, characters.
_REASON_WIDTH: Final = 600

#: Makes the runner of a session's jobs, given how urgently the run is asked to stop.
JobsOpener = Callable[[RunSession, StopCheck], JobRunner]

#: Keys of a configuration that may differ when a run is resumed: how and where it runs, and how
#: much it may spend, but not what it does; and where its rules lie, as their digest is compared.
#: The folder of all runs may be written in another way, but must be the one that the run began in.
_MAY_CHANGE: Final = frozenset(
    {"constitution", "workdir", "store", "jobs", "approval", "llm_calls", "budgets"}
    | {"notify", "retention"}
)
#: Keys that count for the next comparison: one under way keeps what it began with.
_OF_COMPARISONS: Final = frozenset(
    ("eval.max_episodes", "eval.episodes_per_job", "eval.extension_growth")
)
#: Stages whose failure does not end a run: nobody asks for their jobs again.
_WITHOUT: Final = ("harvest", "merge")


class LoopController:
    """Runs the loop: once from the start, or on from where a run was left."""

    def __init__(
        self,
        cfg: LoopConfig,
        store: JobStore,
        bus: EventBus,
        data_agent: DataAgent,
        train_agent: TrainAgent,
        eval_agent: EvalAgent,
        proposer: Proposer,
        knowledge_agent: KnowledgeAgent | None = None,
        improve_agent: ImproveAgent | None = None,
        *,
        open_jobs: JobsOpener | None = None,
        stop: StopCheck = never,
        lease_ttl_s: float = LEASE_TTL_S,
        poll_s: float = 1.0,
    ) -> None:
        """Put the parts together; the log of ``bus``, where the workers emit, is that of the run.

        ``knowledge_agent`` writes pages, ``improve_agent`` harvests; None for neither.
        ``open_jobs`` makes the runner of all jobs; None lets each worker's own runner do them.
        ``stop`` says whether the run is asked to stop, beside requests in the store. The run stays
        ours for ``lease_ttl_s`` without a sign of life; ``poll_s`` is the pause between looks at a
        question.
        """
        self.cfg = cfg
        self.store = store
        self.bus = bus
        self._workers = Workers(
            data=data_agent,
            train=train_agent,
            evaluate=eval_agent,
            proposer=proposer,
            knowledge=knowledge_agent,
            improve=improve_agent if cfg.improve.enabled else None,
        )
        self._open_jobs = open_jobs
        self._stop = stop
        self._stop_at_work = stop
        self._lease_ttl_s = lease_ttl_s
        self._poll_s = poll_s
        self._lease: Lease | None = None

    @property
    def lease(self) -> Lease:
        """The right to change the run that is at work."""
        if self._lease is None:
            raise NotReadyError("LoopController: expected a run at work, got none; call run first.")
        return self._lease

    def asked_to_stop(self) -> StopLevel:
        """Return how urgently the run at work is asked to stop, here or in the store."""
        return self._stop_at_work()

    def run(self, run_id: str, workdir: Path | str) -> RunSummary:
        """Run, or resume, ``run_id`` until it ends or is asked to stop.

        Args:
            run_id: The run; one that the store has is resumed.
            workdir: Folder of the run itself.

        Raises:
            LeaseHeldError: Another live controller works on the run.
            EventLogHeldError: One that shows no sign of life still holds its event log.
            EventLogError: The log is another run's; a new run was not created.
            StaleLeaseError: Another controller took the run over meanwhile; nothing was changed.
            ConfigurationError: The run was started with another configuration or constitution, or
                in another folder; nothing was changed.
            ConstitutionError: A command was refused; the run has failed.
            CadenzaError: Whatever made a step fail; the run has failed, and can be resumed.
        """
        folder = Path(workdir).absolute()
        self.bus.close()  # the run's journal owns the log from here on
        self._create_or_check(run_id, folder)
        lease = take(self.store, run_id, self.bus.log_path, ttl_s=self._lease_ttl_s)
        with (
            LeaseKeeper(self.store.leases, lease),
            EventJournal(self.store, lease, self.bus) as journal,
        ):
            self._lease = lease
            device = self._workers.train.backend.capabilities.get("device", "cpu")
            spent_s, on_gpu = self.store.jobs.spent_s, device != "cpu"
            budget = BudgetMeter(spent_s, run_id, self.cfg.budgets, uses_gpu=on_gpu)
            session = RunSession(self.store, lease, journal, folder, budget)
            try:
                with notifications(self.cfg, session.incidents.note, self.store, folder) as look:
                    journal.subscribe(look)
                    return self._drive(session)
            finally:
                self._lease = None

    def _create_or_check(self, run_id: str, folder: Path) -> None:
        train = self._workers.train
        if not self.store.has_run(run_id):
            require_free_log(self.bus.log_path, run_id)
        try:
            self.store.create_run(
                run_id,
                placed(self.cfg, folder).model_dump_json(),
                constitution_sha256=train.constitution.sha256,
                capabilities=train.backend.capabilities,
                references=initial_references(self.cfg),
            )
        except DuplicateRunError:
            self._require_same(self.store.get_run(run_id), folder)

    def _require_same(self, row: Row, folder: Path) -> None:
        """Raise unless the run was started to do, there, what this controller would do."""
        stored = parse_json_object(row["config_json"].encode(), source=f"configuration {row['id']}")
        require_place(row["id"], stored, folder)
        before, now = _lasting(stored), _lasting(self.cfg.model_dump(mode="json"))
        # a run begun before a key existed takes the key's default, or another value
        changed = sorted(key for key in before if before[key] != now.get(key))
        if changed:
            raise ConfigurationError(
                f"run {row['id']!r}: expected the configuration it was started with, got other "
                f"values for {', '.join(changed)}; restore them, or start a new run."
            )
        rules = self._workers.train.constitution.sha256
        if row["constitution_sha256"] not in (None, rules):
            raise ConfigurationError(
                f"run {row['id']!r}: expected the constitution with SHA-256 "
                f"{row['constitution_sha256']}, got {rules}; restore its file, name it under "
                "constitution in the file of `cadenza loop resume --config`, or start a new run."
            )

    def _drive(self, session: RunSession) -> RunSummary:
        try:
            if not self._begin(session):
                return summarize(session.state, self.cfg)
            self._work(session)
        except UnansweredError as error:
            return self._stopped(session, str(error), reason=str(error).rstrip("."))
        except StopRequestedError as error:
            why, reason = self._why_stopped(session, error)
            return self._stopped(session, why, reason=reason)
        except BudgetExceededError as error:
            with session.step("budget"):
                session.commit(machine.out_of_budget(session.state, self.cfg, error.limit))
        except StaleLeaseError:
            raise  # the run is another controller's; whatever we wrote would be refused
        except KeyboardInterrupt:
            self._stopped(session, "interrupted from the keyboard")
            raise
        except Exception as error:  # whatever a worker raises ends the run: told, and raised again
            self._failed(session, error)
            raise
        return summarize(session.state, self.cfg)

    def _begin(self, session: RunSession) -> bool:
        """Bring a run that was left before back to work; False if it has come to its end."""
        session.journal.publish()
        state, row = session.state, self.store.get_run(session.run_id)
        if session.lease.epoch > 1:
            session.incidents.note(
                "resumed", f"controller {session.lease.epoch} continues at {name_of(state)}"
            )
        settings = placed(self.cfg, session.folder)
        self.store.apply(session.lease, changes.set_config(settings.model_dump_json()))
        if state.step == "finished":
            if not machine.may_extend(state, self.cfg):
                return False
            with session.step("extended"):
                session.commit(machine.extended(state, self.cfg))
            return True
        if state.stop_reason is not None:
            try:
                session.budget.require(session.device)
            except BudgetExceededError:
                return False
        if row["status"] == "failed" or state.stop_reason is not None:
            self._reopen_jobs(session)
            session.commit(machine.restarted(state))
        else:
            self.store.apply(session.lease, changes.set_run_status("running"))
        return True

    def _reopen_jobs(self, session: RunSession) -> None:
        """Let the jobs that made the present step fail run again."""
        for job in self.store.jobs.of_run(session.run_id):
            failed = job.status in ("failed", "cancelled") and job.key.stage not in _WITHOUT
            if failed and job.key.cycle == session.state.cycle:
                self.store.jobs.reopen(session.lease, job.key)

    def _work(self, session: RunSession) -> None:
        asked = asked_in_store(lambda: self.store.stop_requested(session.run_id))
        stop = self._stop_at_work = most_urgent(self._stop, asked)
        steps = CycleSteps(
            session=session,
            config=self.cfg,
            workers=self._workers,
            jobs=None if self._open_jobs is None else self._open_jobs(session, stop),
            stop=stop,
            poll_s=self._poll_s,
        )
        outages = Outages(session, stop, pause_s=self._poll_s)
        while session.state.step != "finished":
            if stop():
                raise StopRequestedError(f"run {session.run_id!r}: asked to stop.")
            try:
                with session.step():
                    session.commit(steps.perform())
            except StoreUnavailableError as error:
                outages.outlast(error)
            else:
                outages.over()
                if session.state.step in ("propose", "finished"):
                    between_cycles(self.cfg.retention, self.store, session.folder)

    # Ends

    def _why_stopped(self, session: RunSession, error: StopRequestedError) -> tuple[str, str]:
        """Return what stopped the run and who asked for it, and the reason that the store keeps."""
        why = str(error).rstrip(".")
        if self.store.stop_requested(session.run_id):
            who = who_stopped(session.folder)
            told = who or "a request in the store asked for it"
            return f"{why}; {told}.", who or STOP_REQUESTED
        if self._stop():
            why += (
                "; a signal to the controller asked for it (Ctrl-C, SIGTERM, or its terminal was "
                "closed)"
            )
        return f"{why}.", STOP_REQUESTED

    def _stopped(
        self, session: RunSession, why: str, *, reason: str = STOP_REQUESTED
    ) -> RunSummary:
        session.incidents.note("stopped", why)
        self.store.apply(session.lease, changes.set_run_status("stopped", reason))
        return summarize(session.state, self.cfg, stop_reason=reason)

    def _failed(self, session: RunSession, error: Exception) -> None:
        """Note the failure, unless the store failed or has a commit that it did not confirm."""
        try:
            with session.step("failed"):
                session.commit(machine.failed(session.state, _failure_of(error)))
        except (StaleLeaseError, StaleStateError, StoreUnavailableError) as second:
            error.add_note(f"The store does not record it: {second}")


def _failure_of(error: Exception) -> str:
    """Return in one sentence what failed and what to do; a job's log has the rest.

    The command that resumes it depends on where the store is; the caller adds it.
    """
    what = " ".join(str(error).split()).rstrip(".")
    shown = what if len(what) <= _REASON_WIDTH else f"{what[: _REASON_WIDTH - 3]}..."
    return f"{type(error).__name__}: {shown or 'no message'}; fix the cause and resume the run."


def _lasting(document: dict[str, Any]) -> dict[str, Any]:
    """Return what of a configuration must not change during a run, by dotted key."""
    flat: dict[str, Any] = {}
    for key in document.keys() - _MAY_CHANGE:
        value = document[key]
        section = cast("dict[str, Any]", value) if isinstance(value, dict) else None
        flat |= {key: value} if section is None else {f"{key}.{k}": v for k, v in section.items()}
    return {key: value for key, value in flat.items() if key not in _OF_COMPARISONS}


_logger = logging.getLogger(__name__)

#: Longest outage that a run waits for, s: servers restart in seconds and fail over in minutes; what
#: takes longer needs a person, who resumes the run.
PATIENCE_S: Final = 600.0


@dataclass
class Outages:
    """Waits for the store of one run; the step is then done again, as it would be after a kill.

    A step waits for a server that restarts or cannot be reached, a locked file, a full disk, for
    ``patience_s`` at most; never for a refused password, which waiting does not mend. It asks every
    ``pause_s``, until ``stop`` says no.
    """

    session: RunSession
    stop: StopCheck
    _: KW_ONLY
    pause_s: float
    patience_s: float = PATIENCE_S
    _since: float | None = field(default=None, init=False)

    def outlast(self, error: StoreUnavailableError) -> None:
        """Wait until the store answers, and take up the state that it has, or raise the error."""
        moment = time.monotonic()
        since = self._since = moment if self._since is None else self._since
        _logger.warning("the store does not answer; the step will be repeated: %s", error)
        while not (
            isinstance(error, StoreAccessError)
            or self.stop()
            or time.monotonic() - since > self.patience_s
        ):
            time.sleep(self.pause_s)
            try:
                self.session.reload()
            except StoreUnavailableError as again:
                error = again
                continue
            told = f"the store did not answer for {time.monotonic() - moment:.1f} s; it does again"
            return self.session.incidents.note("store_away", told)
        raise error

    def over(self) -> None:
        """Note that a step was committed."""
        self._since = None


def take(store: JobStore, run_id: str, log_path: Path, *, ttl_s: float) -> Lease:
    """Return the lease, for ``ttl_s``, of a run whose log is free; errors as `LoopController.run`.

    A controller that is frozen loses its lease after a while but not the lock of its log. The run
    is then left as it is: thawed, it goes on.
    """
    row, holder = store.get_run(run_id), store.leases.holder(run_id)
    owner = row["lease_owner"]
    try:
        if holder is None:
            LogFile(log_path).close()
        return store.leases.acquire(run_id, this_process(), ttl_s=ttl_s, to_work=True)
    except EventLogHeldError as error:
        if store.get_run(run_id)["lease_epoch"] != row["lease_epoch"]:
            return take(store, run_id, log_path, ttl_s=ttl_s)  # taken, with its log, meanwhile
        if owner is None or is_gone(owner):
            raise
        raise EventLogHeldError(_who_has_it(row, owner, "event log", ttl_s)) from error
    except LeaseHeldError as error:
        if owner is None or not is_frozen(owner):
            raise
        raise LeaseHeldError(_who_has_it(row, owner, "lease", ttl_s)) from error


def _who_has_it(row: Row, owner: str, what: str, ttl_s: float) -> str:
    """Return who holds a run without a sign of life, since when, and what to do."""
    since = ""
    if row["lease_expires_at"] is not None:
        renewed = datetime.fromtimestamp(row["lease_expires_at"] - ttl_s, UTC)
        since = f", silent since {renewed:%Y-%m-%d %H:%M:%S UTC}"
    if is_frozen(owner):
        pid = owner.split("/")[-2]
        state = " and is stopped (SIGSTOP, Ctrl-Z)"
        remedy = f"continue it with `kill -CONT {pid}`, or end it with `kill -KILL {pid}`"
    else:
        state, remedy = "", "see there whether it hangs, and end it"
    return (
        f"run {row['id']!r}: expected a free {what}, got one that {readable(owner)} "
        f"holds{since}{state}; {remedy}, then resume the run."
    )
