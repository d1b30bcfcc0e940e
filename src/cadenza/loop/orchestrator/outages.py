"""Going on after an outage of the store: the step is done again, as it would be after a kill.

Waited for:  a server that restarts or cannot be reached, a file that another program locks, a full
             disk; at most `PATIENCE_S` for one step.
Not so:      a password that the server refuses, which waiting does not mend.
"""

import logging
import time
from typing import Final

from cadenza.loop.errors import StoreAccessError, StoreUnavailableError
from cadenza.loop.jobs.stopping import StopCheck
from cadenza.loop.orchestrator.session import RunSession

_logger = logging.getLogger(__name__)

#: Longest outage that a run waits for, s: servers restart in seconds and fail over in minutes; what
#: takes longer needs a person, who resumes the run.
PATIENCE_S: Final = 600.0


class Outages:
    """Waits for the store of one run."""

    def __init__(
        self,
        session: RunSession,
        stop: StopCheck,
        *,
        pause_s: float,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Wait for the store of ``session``.

        Args:
            session: The controller's session.
            stop: Says whether the run is asked to stop, which ends the wait.
            pause_s: Pause between two questions to the store, s.
            patience_s: Longest time that one step may wait, s.
        """
        self._session = session
        self._stop = stop
        self._pause_s = pause_s
        self._patience_s = patience_s
        self._since: float | None = None

    def outlast(self, error: StoreUnavailableError) -> None:
        """Wait until the store answers, and take up the state that it has; then do the step again.

        Args:
            error: What the step met.

        Raises:
            StoreUnavailableError: ``error`` again, as the wait was too long, a wait does not help
                or the run is asked to stop.
        """
        moment = time.monotonic()
        since = self._since = moment if self._since is None else self._since
        _logger.warning("the store does not answer; the step is done again when it does: %s", error)
        while not isinstance(error, StoreAccessError):
            if self._stop() or time.monotonic() - since > self._patience_s:
                break
            time.sleep(self._pause_s)
            try:
                self._session.reload()
            except StoreUnavailableError as again:
                error = again
            else:
                away_s = time.monotonic() - moment
                self._session.incidents.note(
                    "store_away", f"the store did not answer for {away_s:.1f} s; it does again"
                )
                return
        raise error

    def over(self) -> None:
        """Note that a step was committed."""
        self._since = None
