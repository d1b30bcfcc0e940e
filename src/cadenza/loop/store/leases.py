"""Leases: at most one controller changes a run.

A lease lasts for a while by the database's clock and is renewed before it runs out. Taking a run
over raises its epoch; every write names the epoch of its lease, so a controller that was taken
over, however long it slept, changes nothing.
"""

import logging
import threading
from collections.abc import Callable
from typing import Final, Self

from sqlalchemy import Connection, select, update

from cadenza.core.errors import InputError
from cadenza.loop.errors import LeaseHeldError, StaleLeaseError, StoreUnavailableError
from cadenza.loop.processes import is_gone, readable
from cadenza.loop.store.database import Part, lock_run, now, unknown_run
from cadenza.loop.store.rows import Lease
from cadenza.loop.store.schema import runs


class Leases(Part):
    """Who works on which run."""

    def acquire(
        self,
        run_id: str,
        owner: str,
        *,
        ttl_s: float,
        gone: Callable[[str], bool] = is_gone,
        to_work: bool = False,
    ) -> Lease:
        """Take the run for ``ttl_s``: free, run out, or left by a process that is gone.

        ``owner`` is who asks, see `cadenza.loop.processes.this_process`; ``gone`` tells whether the
        present one is known to be dead. ``to_work`` forgets that the run was asked to stop: later
        requests are for the new owner.

        Raises:
            LeaseHeldError: Another controller holds the run.
            UnknownRowError: There is no such run.
        """
        if not (owner and ttl_s > 0.0):
            raise InputError(f"lease: expected an owner and ttl_s > 0, got {owner!r}, {ttl_s}.")
        with self._database.write() as connection:
            lock_run(connection, run_id)
            moment = now(connection)
            columns = (runs.c.lease_owner, runs.c.lease_epoch, runs.c.lease_expires_at)
            row = connection.execute(select(*columns).filter_by(id=run_id)).one()
            left_s = (row.lease_expires_at or 0.0) - moment
            if row.lease_owner is not None and left_s > 0.0 and not gone(row.lease_owner):
                raise LeaseHeldError(
                    f"run {run_id!r}: expected a free run, got one that "
                    f"{readable(row.lease_owner)} works on for another {left_s:.0f} s at least; "
                    "wait, or ask it to stop with `cadenza loop stop`."
                )
            lease = Lease(run_id=run_id, owner=owner, epoch=row.lease_epoch + 1, ttl_s=ttl_s)
            values = {"lease_owner": owner, "lease_epoch": lease.epoch}
            values |= {"lease_expires_at": moment + ttl_s}
            values |= {"stop_requested_at": None} if to_work else {}
            connection.execute(update(runs).filter_by(id=run_id).values(values))
        return lease

    def renew(self, lease: Lease) -> None:
        """Let the lease last ``ttl_s`` from now; one that ran out lives on if nobody took the run.

        Raises:
            StaleLeaseError: It was released, or another controller took the run over.
        """
        with self._database.write() as connection:
            require_lease(connection, lease)
            renewed = update(runs).filter_by(id=lease.run_id)
            connection.execute(renewed.values(lease_expires_at=now(connection) + lease.ttl_s))

    def release(self, lease: Lease) -> None:
        """Give the run free; nothing happens if another controller has it."""
        with self._database.write() as connection:
            held = {"id": lease.run_id, "lease_epoch": lease.epoch, "lease_owner": lease.owner}
            freed = update(runs).filter_by(**held).values(lease_owner=None, lease_expires_at=None)
            connection.execute(freed)

    def holder(self, run_id: str) -> str | None:
        """Return who works on the run now; None if its lease is free or ran out."""
        with self._database.read() as connection:
            lasting = runs.c.lease_expires_at > now(connection)
            return connection.scalar(select(runs.c.lease_owner).where(runs.c.id == run_id, lasting))


def require_lease(connection: Connection, lease: Lease) -> None:
    """Lock the lease's run; a `StaleLeaseError` unless the lease is still the run's."""
    owned = select(runs.c.lease_owner, runs.c.lease_epoch).filter_by(id=lease.run_id)
    row = connection.execute(owned.with_for_update()).one_or_none()
    if row is None:
        raise unknown_run(lease.run_id)
    if (row.lease_owner, row.lease_epoch) != (lease.owner, lease.epoch):
        raise StaleLeaseError(
            f"run {lease.run_id!r}: expected the lease of epoch {lease.epoch}, got epoch "
            f"{row.lease_epoch} of {row.lease_owner or 'nobody'}; this controller was replaced "
            "and must end."
        )


_LOGGER: Final = logging.getLogger(__name__)
#: Renewals per duration of a lease: two may fail before it runs out.
_RENEWALS_PER_TTL: Final = 3.0


class LeaseKeeper:
    """Keeps a lease within a ``with`` block, from a thread of its own, and releases it at the end.

    It need not be watched: the store refuses what the holder of a lost lease wants to write.
    """

    def __init__(self, leases: Leases, lease: Lease) -> None:
        self.lease = lease
        self._leases = leases
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease-keeper", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        try:
            self._leases.release(self.lease)
        except StoreUnavailableError as error:  # then it runs out
            _LOGGER.warning("could not release the lease of run %s: %s", self.lease.run_id, error)

    def _keep(self) -> None:
        while not self._stop.wait(self.lease.ttl_s / _RENEWALS_PER_TTL):
            try:
                self._leases.renew(self.lease)
            except StaleLeaseError:
                _LOGGER.warning("the lease of run %s was lost", self.lease.run_id)
                return
            except StoreUnavailableError as error:
                _LOGGER.warning("could not renew the lease of run %s: %s", self.lease.run_id, error)
