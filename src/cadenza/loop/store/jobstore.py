"""The job store: everything a loop run must not forget, in one database.

The methods that LeAgents has keep their names and rows. The state of a run is one JSON document
with a version; `JobStore.commit` replaces it together with rows and events, or changes nothing.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError
from sqlalchemy import insert, select, update
from sqlalchemy.exc import IntegrityError as KeyTakenError

from cadenza.core.errors import InputError, IntegrityError
from cadenza.core.files import sha256_bytes
from cadenza.core.strict_json import parse_json_object
from cadenza.loop.config import NAME_PATTERN
from cadenza.loop.contracts.records import CheckpointRecord, EpisodeOutcome, SeedRange
from cadenza.loop.errors import DuplicateRunError, StaleStateError, UnknownRowError
from cadenza.loop.state import LoopState
from cadenza.loop.store import changes
from cadenza.loop.store.changes import Change
from cadenza.loop.store.database import Database, config_to_keep, now, unknown_run
from cadenza.loop.store.rows import Lease, Row, StoredEvent
from cadenza.loop.store.schema import HEAD, checkpoints, cycles, episodes, runs, seed_ranges
from cadenza.loop.store.tables import (
    Approvals,
    EventTable,
    JobTable,
    Leases,
    Replies,
    append_events,
)


class JobStore:
    """Runs, cycles, policies and state; its parts hold jobs, events, leases and approvals."""

    def __init__(self, location: Path | str, *, create: bool = True) -> None:
        """Open the store; arguments and errors as `cadenza.loop.store.database.Database`."""
        #: Connections, also for the queries in `cadenza.loop.store.overview`.
        self.database: Database = Database(location, create=create)
        self.leases: Leases = Leases(self.database)
        self.jobs: JobTable = JobTable(self.database)
        self.events: EventTable = EventTable(self.database)
        self.approvals: Approvals = Approvals(self.database)
        self.replies: Replies = Replies(self.database)

    @classmethod
    def open_existing(cls, location: Path | str) -> Self:
        """Open a store that is there; errors as the constructor with ``create`` off."""
        return cls(location, create=False)

    @property
    def is_up_to_date(self) -> bool:
        """Whether no migration is left to do; off only for stores opened with ``create`` off."""
        return self.database.version == HEAD

    def close(self) -> None:
        """Close all connections."""
        self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Runs

    def create_run(
        self,
        run_id: str,
        config_json: str,
        *,
        constitution_sha256: str | None = None,
        capabilities: Mapping[str, str] | None = None,
        references: Sequence[CheckpointRecord] = (),
    ) -> None:
        """Add a run with a fresh state, its configuration without the passwords in ``store``.

        ``constitution_sha256`` is the digest of the rules that its commands are judged by,
        ``capabilities`` what its back end says of itself, ``references`` the policies that it
        starts from: the first is blessed until a better one is, which may be another of them.

        Raises:
            DuplicateRunError: There is a run of this id.
            InputError: The id is no plain name.
            IntegrityError: The configuration is no JSON object.
            ConfigurationError: Its ``store`` is a malformed URL.
        """
        if re.fullmatch(NAME_PATTERN, run_id) is None:
            raise InputError(
                f"run id: expected letters, digits, '.', '_' and '-', at most 100, got {run_id!r}; "
                "it names a folder."
            )
        kept = config_to_keep(config_json)
        blessed = references[0] if references else None
        state = LoopState(run_id=run_id, blessed=blessed, spent=0.0)
        if len(references) > 1:
            update = {"step": "references", "references": tuple(references)}
            state = state.model_copy(update=update)
        with self.database.write() as connection:
            fresh = insert(runs).values(
                id=run_id,
                created_at=now(connection),
                config_json=kept,
                config_sha256=sha256_bytes(kept.encode()),
                constitution_sha256=constitution_sha256,
                capabilities_json=json.dumps(dict(capabilities or {}), sort_keys=True),
                state_json=state.model_dump_json(),
            )
            try:
                connection.execute(fresh)
            except KeyTakenError as error:
                raise DuplicateRunError(
                    f"run {run_id!r}: expected a new id, got one that the store has; resume that "
                    "run, or choose another id."
                ) from error
            for one in references:
                added = changes.add_checkpoint(
                    one.cycle, one.policy_type, one.path, sha256=one.sha256
                )(connection, run_id)
                if one is blessed:
                    changes.bless(added)(connection, run_id)

    def finish_run(
        self, run_id: str, status: str = "finished", stop_reason: str | None = None
    ) -> None:
        """Say how the run stands and why it ended; see `changes.RUN_STATUSES`."""
        self._apply(run_id, changes.set_run_status(status, stop_reason))

    def list_runs(self) -> list[Row]:
        """Return all runs, oldest first."""
        return self.database.rows(select(runs).order_by(runs.c.created_at, runs.c.id))

    def has_run(self, run_id: str) -> bool:
        """Return whether there is such a run."""
        return bool(self.database.rows(select(runs.c.id).filter_by(id=run_id)))

    def get_run(self, run_id: str) -> Row:
        """Return one run, or raise `UnknownRowError`."""
        rows = self.database.rows(select(runs).filter_by(id=run_id))
        if not rows:
            raise unknown_run(run_id)
        return rows[0]

    def request_stop(self, run_id: str) -> None:
        """Ask the run's controller to stop; the first request's time is kept."""
        with self.database.write(run_id) as connection:
            unasked = update(runs).filter_by(id=run_id, stop_requested_at=None)
            connection.execute(unasked.values(stop_requested_at=now(connection)))

    def stop_requested(self, run_id: str) -> bool:
        """Return whether the run was asked to stop and has not been resumed since."""
        return self.get_run(run_id)["stop_requested_at"] is not None

    # Cycles and checkpoints, one change at a time

    def start_cycle(self, run_id: str, idx: int, *, rung: str | None = None) -> None:
        """Add a cycle, at stage ``collect``."""
        self._apply(run_id, changes.start_cycle(idx, rung=rung))

    def set_stage(self, run_id: str, idx: int, stage: str) -> None:
        """Say what the cycle does now."""
        self._apply(run_id, changes.set_stage(idx, stage))

    def finish_cycle(self, run_id: str, idx: int, decision: str) -> None:
        """Close the cycle with its decision, at stage ``done``."""
        self._apply(run_id, changes.finish_cycle(idx, decision))

    def cycles_for(self, run_id: str) -> list[Row]:
        """Return the run's cycles in order."""
        return self.database.rows(select(cycles).filter_by(run_id=run_id).order_by(cycles.c.idx))

    def add_checkpoint(
        self, run_id: str, cycle_idx: int, policy_type: str, path: str, *, sha256: str | None = None
    ) -> int:
        """Add a policy and return its number."""
        return self._apply(
            run_id, changes.add_checkpoint(cycle_idx, policy_type, path, sha256=sha256)
        )

    def attach_eval(self, checkpoint_id: int, eval_report: Mapping[str, Any]) -> None:
        """Store an evaluation, JSON by name, with a policy."""
        owner = self.database.rows(select(checkpoints.c.run_id).filter_by(id=checkpoint_id))
        if not owner:
            raise UnknownRowError(
                f"checkpoint {checkpoint_id}: expected one of this store, got none."
            )
        self._apply(owner[0]["run_id"], changes.attach_eval(checkpoint_id, json.dumps(eval_report)))

    def bless(self, run_id: str, checkpoint_id: int) -> None:
        """Make a policy the only blessed one of its run; an `UnknownRowError` for another's."""
        self._apply(run_id, changes.bless(checkpoint_id))

    def checkpoints_for(self, run_id: str) -> list[Row]:
        """Return the run's policies in the order they were added."""
        of_run = select(checkpoints).filter_by(run_id=run_id)
        return self.database.rows(of_run.order_by(checkpoints.c.id))

    def blessed_checkpoint(self, run_id: str) -> Row | None:
        """Return the run's blessed policy; None before the first promotion."""
        rows = self.database.rows(select(checkpoints).filter_by(run_id=run_id, blessed=1))
        return rows[0] if rows else None

    # Evidence

    def episodes(
        self, run_id: str, cycle: int, subject: str, *, look: int | None = None
    ) -> list[EpisodeOutcome]:
        """Return recorded episodes in the order played, of one look or of all."""
        columns = [episodes.c[name] for name in EpisodeOutcome.model_fields]
        played = select(*columns).filter_by(run_id=run_id, cycle=cycle, subject=subject)
        if look is not None:
            played = played.filter_by(look=look)
        rows = self.database.rows(played.order_by(episodes.c.look, episodes.c.idx))
        return [EpisodeOutcome.model_validate(row) for row in rows]

    def seed_ranges(self, run_id: str) -> dict[tuple[int, str, int], SeedRange]:
        """Return the run's reserved seeds by (cycle, purpose, look)."""
        return {
            (row["cycle"], row["purpose"], row["look"]): SeedRange(
                start=row["start"], count=row["count"]
            )
            for row in self.database.rows(select(seed_ranges).filter_by(run_id=run_id))
        }

    # State

    def load_state(self, run_id: str) -> tuple[LoopState, int]:
        """Return the run's state and its version; an `IntegrityError` for one that is no state."""
        row = self.get_run(run_id)
        source = f"state of run {run_id!r}"
        document = parse_json_object(row["state_json"].encode(), source=source)
        try:
            return LoopState.model_validate(document), row["state_version"]
        except ValidationError as error:
            raise IntegrityError(f"{source}: expected a loop state, got {error}") from error

    def commit(
        self,
        lease: Lease,
        expected_version: int,
        new_state: LoopState,
        *,
        events: Sequence[StoredEvent] = (),
        rows: Sequence[Change] = (),
    ) -> int:
        """Replace the state, change rows in order and append events: all of it or nothing.

        ``expected_version`` is that of the state that ``new_state`` was made from; the version of
        the new one is returned. Events that are there already are skipped.

        Raises:
            StaleLeaseError: Another controller took the run over.
            StaleStateError: The state was changed since ``expected_version``.
            StoreError: One of ``rows`` was refused.
        """
        if new_state.run_id != lease.run_id:
            raise InputError(
                f"commit: expected a state of run {lease.run_id!r}, got {new_state.run_id!r}."
            )
        with self.database.write(lease) as connection:
            known = update(runs).filter_by(id=lease.run_id, state_version=expected_version)
            version = expected_version + 1
            new = known.values(state_json=new_state.model_dump_json(), state_version=version)
            if connection.execute(new).rowcount != 1:
                raise StaleStateError(
                    f"run {lease.run_id!r}: expected its state at version {expected_version}, got "
                    "another; load it again before deciding."
                )
            for change in rows:
                change(connection, lease.run_id)
            append_events(connection, lease.run_id, events)
        return version

    def apply(self, lease: Lease, *rows: Change) -> None:
        """Make changes that belong to no new state, all of them or none; errors as `commit`."""
        with self.database.write(lease) as connection:
            for change in rows:
                change(connection, lease.run_id)

    def _apply(self, run_id: str, change: Change) -> Any:
        with self.database.write(run_id) as connection:
            return change(connection, run_id)
