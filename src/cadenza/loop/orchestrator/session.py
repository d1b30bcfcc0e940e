"""One controller at work on one run: its lease, its journal, and the state it committed last."""

import json
import logging
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cadenza.core.files import make_folder
from cadenza.loop.contracts.records import SeedRange
from cadenza.loop.events.bus import Event
from cadenza.loop.events.journal import EventJournal
from cadenza.loop.jobs.outcomes import Incident
from cadenza.loop.orchestrator.machine import Notice, Transition
from cadenza.loop.seeds import SeedUse
from cadenza.loop.state import LoopState
from cadenza.loop.store import changes
from cadenza.loop.store.jobstore import JobStore
from cadenza.loop.store.rows import Lease

#: Name of the file in the folder of a run.
INCIDENTS_FILE = "incidents.jsonl"
_logger = logging.getLogger(__name__)


class IncidentLog:
    """Appends what a run survived to a file of its own, beside the events.

    The events of a disturbed run equal those of an undisturbed one; takeovers, adopted jobs, killed
    attempts, stops and resumptions are told here. A kill may lose or repeat a line; on a full disk,
    which the run itself may outlast, it stands in the log alone.
    """

    def __init__(self, folder: Path) -> None:
        """Append below ``folder``, the run's own."""
        self._path = folder / INCIDENTS_FILE

    def note(self, kind: str, message: str, **details: Any) -> None:
        """Append an incident; what cannot be written is told in the log alone.

        Args:
            kind: What happened.
            message: In one sentence.
            details: Further facts that JSON can express.
        """
        line = {"ts": time.time(), "kind": kind, "message": message, **details}
        try:
            make_folder(self._path.parent)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, allow_nan=False) + "\n")
        except OSError as error:  # a run that survives a full disk must not end of telling so
            _logger.warning("%s: %r is not noted there: %s", self._path, message, error)

    def note_job(self, incident: Incident) -> None:
        """Append what a runner tells of a job."""
        self.note(
            incident.kind,
            incident.message,
            cycle=incident.key.cycle,
            stage=incident.key.stage,
            attempt=incident.attempt,
        )


class RunSession:
    """What the steps of a run share; every write names the lease.

    Attributes:
        store: The job store.
        lease: The right to change the run.
        folder: Folder of the run, absolute.
        incidents: What the run survived.
    """

    def __init__(self, store: JobStore, lease: Lease, journal: EventJournal, folder: Path) -> None:
        """Load the state of the lease's run."""
        self.store = store
        self.lease = lease
        self.folder = folder
        self.incidents = IncidentLog(folder)
        self._journal = journal
        self._state, self._version = store.load_state(lease.run_id)

    @property
    def run_id(self) -> str:
        """The run."""
        return self.lease.run_id

    @property
    def state(self) -> LoopState:
        """The state as committed last."""
        return self._state

    @contextmanager
    def step(self, name: str) -> Generator[None]:
        """Name the events inside the block after a step; equal whenever it is repeated."""
        restarts = self._state.restarts
        suffix = f"~{restarts}" if restarts else ""
        with self._journal.step(f"{name}{suffix}"):
            yield

    def emit(self, notice: Notice) -> None:
        """Record and publish an event now, before the step is committed."""
        self._journal.emit(self._event(notice))

    def commit(self, transition: Transition) -> None:
        """Make a transition in one transaction, then publish its events.

        Raises:
            StaleLeaseError: Another controller took the run over; nothing changed.
            StoreError: The store refused; nothing changed.
        """
        drafts = [self._journal.draft(self._event(notice)) for notice in transition.events]
        self._version = self.store.commit(
            self.lease,
            self._version,
            transition.state,
            events=drafts,
            rows=transition.rows,
        )
        self._state = transition.state
        self._journal.publish()

    def reload(self) -> None:
        """Take up the state that the store has, after a commit that it may have made unheard.

        Raises:
            StoreUnavailableError: The store does not answer.
        """
        self._state, self._version = self.store.load_state(self.run_id)
        self._journal.publish()

    def publish(self) -> None:
        """Publish what an earlier controller recorded and did not come to publish."""
        self._journal.publish()

    def reserve(
        self, purpose: SeedUse, seeds: SeedRange, *, look: int = 0, cycle: int | None = None
    ) -> SeedRange:
        """Reserve initial states for a cycle, the present one if None, and return them.

        Raises:
            SeedOverlapError: The run uses some of them for something else.
        """
        number = self._state.cycle if cycle is None else cycle
        row = changes.reserve_seeds(number, purpose, look, seeds)
        self.store.apply(self.lease, row)
        return seeds

    def _event(self, notice: Notice) -> Event:
        return Event(self.run_id, notice.stage, notice.kind, notice.cycle, notice.payload)
