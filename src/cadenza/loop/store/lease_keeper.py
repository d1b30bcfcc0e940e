"""Renews a lease while its holder works or waits."""

import logging
import threading
from typing import Final, Self

from cadenza.loop.errors import StaleLeaseError, StoreUnavailableError
from cadenza.loop.store.leases import Leases
from cadenza.loop.store.rows import Lease

_LOGGER: Final = logging.getLogger(__name__)
#: Renewals per duration of a lease: two may fail before it runs out.
_RENEWALS_PER_TTL: Final = 3.0


class LeaseKeeper:
    """Keeps a lease within a ``with`` block, from a thread of its own, and releases it at the end.

    It need not be watched: the store refuses what the holder of a lost lease wants to write.
    """

    def __init__(self, leases: Leases, lease: Lease) -> None:
        """Prepare to keep ``lease``."""
        self.lease = lease
        self._leases = leases
        self._stop = threading.Event()
        self._lost = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease-keeper", daemon=True)

    @property
    def lost(self) -> bool:
        """Whether another controller was seen to have taken the run over."""
        return self._lost.is_set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        try:
            self._leases.release(self.lease)
        except StoreUnavailableError as error:  # then it runs out
            _LOGGER.warning("the lease of run %s is not released: %s", self.lease.run_id, error)

    def _keep(self) -> None:
        while not self._stop.wait(self.lease.ttl_s / _RENEWALS_PER_TTL):
            try:
                self._leases.renew(self.lease)
            except StaleLeaseError:
                _LOGGER.warning("the lease of run %s was lost", self.lease.run_id)
                self._lost.set()
                return
            except StoreUnavailableError as error:
                _LOGGER.warning("the lease of run %s is not renewed: %s", self.lease.run_id, error)
