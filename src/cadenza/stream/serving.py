"""Whether chunks can be drawn now, and what to raise if not; for every process of an engine."""

import time
from typing import Final

from cadenza.core.errors import NotReadyError, OnlineDataWorkerError
from cadenza.stream.error_envelope import ErrorEnvelope, read_envelope
from cadenza.stream.processes import is_same_process
from cadenza.stream.slots import OnlineDataEngineState, SlotStore, StreamWords, engine_state

#: Time between two looks at the owner of an engine, ns.
_OWNER_CHECK_NS: Final = 500_000_000


class ServingCheck:
    """Looks at the state that the owner writes, and now and then whether there is an owner."""

    def __init__(self, store: SlotStore) -> None:
        """Check the engine of ``store``."""
        self._store = store
        self._owner_checked_ns = 0

    def require(self) -> None:
        """Raise unless chunks can be drawn.

        Raises:
            NotReadyError: The engine has not started, or was stopped.
            OnlineDataWorkerError: It failed, or its owner is gone.
        """
        state = engine_state(self._store)
        if not state.is_serving:
            if state is OnlineDataEngineState.FAILED:
                raise self.failure()
            raise NotReadyError(
                f"OnlineDataEngine: expected a running engine, got {state.name}; draw between "
                "start() and stop()."
            )
        now = time.monotonic_ns()
        if now - self._owner_checked_ns > _OWNER_CHECK_NS:
            self._owner_checked_ns = now
            self._require_owner_alive()

    def failure(self) -> OnlineDataWorkerError:
        """Return the error that made the engine fail, as its producer reported it."""
        number = max(int(self._store.words[StreamWords.FAILED_PRODUCER]) - 1, 0)
        envelope = read_envelope(self._store, number)
        unknown = ErrorEnvelope(kind="unknown", message="it left no report")
        return (envelope or unknown).error(number)

    def _require_owner_alive(self) -> None:
        words = self._store.words
        pid = int(words[StreamWords.OWNER_PID])
        if not is_same_process(pid, int(words[StreamWords.OWNER_STARTED_AT])):
            raise OnlineDataWorkerError(
                f"OnlineDataEngine: expected its owner, process {pid}, to run, got none; no new "
                "data comes. Start an engine again."
            )
