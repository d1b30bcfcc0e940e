"""States of engine and producers, and the words of the store that the engine uses."""

from enum import IntEnum, unique
from typing import Final

from cadenza.stream.slots import LARGEST, SlotStore, StreamWords


@unique
class OnlineDataEngineState(IntEnum):
    """Where an engine stands; FAILED and STOPPED are final."""

    CREATED = 0
    STARTING = 1
    READY = 2
    #: Data keeps coming, from fewer producers than configured.
    DEGRADED = 3
    FAILED = 4
    STOPPED = 5

    @property
    def is_serving(self) -> bool:
        """Whether chunks can be drawn."""
        return self in (OnlineDataEngineState.READY, OnlineDataEngineState.DEGRADED)


@unique
class ProducerState(IntEnum):
    """What a producer is doing."""

    ABSENT = 0
    STARTING = 1
    RUNNING = 2
    PAUSED = 3
    #: Died, and starts anew after a pause.
    WAITING = 4
    FAILED = 5
    ENDED = 6


class EngineWords:
    """Names of further single words of the store, see `StreamWords`."""

    #: Steps that were published when the first fill was complete.
    FRAMES_AT_READY: Final = 16
    #: Producer whose error made the engine fail, plus one.
    FAILED_PRODUCER: Final = 17
    #: Episodes that readers of whole ones were through with when the last fill was asked for.
    PASSED_AT_REQUEST: Final = 18
    #: Since when draws wait while all producers pause, ns of the monotonic clock; 0: they do not.
    FROZEN_SINCE_NS: Final = 19


def engine_state(store: SlotStore) -> OnlineDataEngineState:
    """Return the state that the owner of the engine wrote last."""
    return OnlineDataEngineState(int(store.words[StreamWords.STATE]))


def saturating_sum(a: int, b: int) -> int:
    """Return ``a + b``, at most the largest 64-bit number."""
    return min(a + b, LARGEST)
