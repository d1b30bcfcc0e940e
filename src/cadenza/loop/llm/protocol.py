"""What the loop asks of a language model, where in a run it asks, and what it gets.

Two floors: an `Asker` speaks with one service and raises when the call fails; an `LLMClient`, which
the workers of the loop see, never raises: the empty text says that there is no usable reply.

A worker of the loop names the place around its calls; calls within are counted from 0. The place is
the key under which a reply is kept: a step that is executed again names the same places and so
meets the recorded replies. A client that records nothing does not look at the place.
"""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from cadenza.core.errors import NotReadyError
from cadenza.core.files import sha256_bytes

#: Tokens of a reply unless the caller asks for another number.
DEFAULT_MAX_TOKENS = 1024


class LLMClient(Protocol):
    """A language model as the workers of the loop see it."""

    def complete(
        self, prompt: str, *, system: str | None = None, max_tokens: int = DEFAULT_MAX_TOKENS
    ) -> str:
        """Return the reply; the empty text means "use the fallback".

        Args:
            prompt: What is asked.
            system: Standing instructions; None for none.
            max_tokens: Most tokens of the reply.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One call: what is asked, and what the reply may take, tokens and seconds."""

    prompt: str
    system: str | None
    max_tokens: int
    timeout_s: float

    def sha256(self) -> str:
        """Return the digest of everything the model reads."""
        return sha256_bytes(f"{self.system or ''}\0{self.prompt}".encode("utf-8", "replace"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a service replied.

    Attributes:
        text: The text of the reply.
        tokens_in: Tokens of the prompt; None if not told.
        tokens_out: Tokens of the reply; None if not told.
        problem: Why the reply, which was paid for, is of no use; None if it is.
    """

    text: str
    tokens_in: int | None = None
    tokens_out: int | None = None
    problem: str | None = None


class Asker(Protocol):
    """One model of one service."""

    @property
    def provider(self) -> str:
        """Name of the service in recordings."""
        ...

    @property
    def model(self) -> str:
        """Name of the model."""
        ...

    def ask(self, question: Question) -> Answer:
        """Return the reply to one call, without trying again.

        Raises:
            LLMCallError: There is no usable reply; the message holds no key.
        """
        ...


class NullLLM:
    """No language model: every reply is empty, so every caller takes its fallback."""

    def complete(
        self,
        prompt: str,  # noqa: ARG002  # the protocol's arguments
        *,
        system: str | None = None,  # noqa: ARG002
        max_tokens: int = DEFAULT_MAX_TOKENS,  # noqa: ARG002
    ) -> str:
        """Return the empty text."""
        return ""


@dataclass(slots=True)
class Place:
    """A run of calls; ``purpose`` is unique within the cycle.

    Attributes:
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
    """Return the place of a call; a `NotReadyError` outside of `asking`."""
    place = _PLACE.get()
    if place is None:
        raise NotReadyError(
            "language model: expected a call inside `with asking(cycle, purpose)`, got one "
            "outside; its reply could not be found again."
        )
    return place
