"""Where in a run a language model is asked: the key under which its reply is kept.

A worker of the loop names the place around its calls; calls within are counted from 0. A step that
is executed again names the same places and so meets the recorded replies. A client that records
nothing does not look at the place.
"""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count

from cadenza.core.errors import NotReadyError


@dataclass(slots=True)
class Place:
    """A run of calls.

    Attributes:
        cycle: Cycle of the run.
        purpose: What the calls are for; unique within the cycle.
        about: What the next prompt draws on, as JSON, for whoever asks; after a call, what the
            prompt of its reply drew on, which is another one where the reply was recorded before.
            None if nobody said or knows.
        error: Why the last call gave no reply; None if it did.
    """

    cycle: int
    purpose: str
    about: str | None = None
    error: str | None = None
    _ordinals: "count[int]" = field(default_factory=count, compare=False, repr=False)

    def next_ordinal(self) -> int:
        """Return the number of the next call, from 0."""
        return next(self._ordinals)


_PLACE: ContextVar[Place | None] = ContextVar("language_model_place", default=None)


@contextmanager
def asking(cycle: int, purpose: str) -> Generator[Place]:
    """Say what the calls inside the block are for."""
    place = Place(cycle, purpose)
    token = _PLACE.set(place)
    try:
        yield place
    finally:
        _PLACE.reset(token)


def current_place() -> Place:
    """Return the place of a call.

    Raises:
        NotReadyError: The call stands in no `asking` block.
    """
    place = _PLACE.get()
    if place is None:
        raise NotReadyError(
            "language model: expected a call inside `with asking(cycle, purpose)`, got one "
            "outside; its reply could not be found again."
        )
    return place
