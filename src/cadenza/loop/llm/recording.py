"""Replies that were given once and hold for ever, in the store of a run."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from cadenza.core.errors import ConfigurationError
from cadenza.loop.jobs.terms import StopCheck, never
from cadenza.loop.llm.adapter import make_llm
from cadenza.loop.llm.guard import CallLimits, GuardedLLM, Price
from cadenza.loop.llm.protocol import (
    DEFAULT_MAX_TOKENS,
    LLMClient,
    NullLLM,
    Place,
    Question,
    current_place,
)
from cadenza.loop.store.rows import Lease, ReplyRow

if TYPE_CHECKING:
    from cadenza.loop.store.replies import Replies

#: Cycle, purpose, ordinal.
ReplyKey: TypeAlias = tuple[int, str, int]


class StoreReplies:
    """The replies of the run that a lease is for."""

    def __init__(self, replies: "Replies", lease: Callable[[], Lease] | Lease) -> None:
        """Use ``JobStore.replies`` under a lease, or under the one that a call returns."""
        self._replies = replies
        self._lease = (lambda: lease) if isinstance(lease, Lease) else lease

    def get(self, key: ReplyKey) -> ReplyRow | None:
        """Return a reply; None if there is none yet."""
        return self._replies.get(self._lease().run_id, *key)

    def record(self, key: ReplyKey, reply: ReplyRow) -> ReplyRow:
        """Keep a reply and return it, or return the one that is there.

        Raises:
            StaleLeaseError: Another controller took the run over.
        """
        return self._replies.record(self._lease(), *key, reply)

    def book(self, key: ReplyKey, reply: ReplyRow) -> None:
        """Keep what asking for a reply can cost.

        Raises:
            StaleLeaseError: Another controller took the run over.
        """
        self._replies.book(self._lease(), *key, reply)

    def booked_usd(self, key: ReplyKey) -> float:
        """Return what is booked for a reply that is not there, US dollars."""
        return self._replies.booked_usd(self._lease().run_id, *key)

    def spent_usd(self) -> float:
        """Return what the run's replies cost together, booked ones included, US dollars."""
        return self._replies.totals(self._lease().run_id).cost_usd


class RecordedLLM:
    """Gives each call the reply recorded for its place, and asks only where there is none."""

    def __init__(
        self, client: GuardedLLM, log: StoreReplies, *, max_cost_usd: float = math.inf
    ) -> None:
        """Ask ``client`` and record in ``log``.

        Args:
            client: The model.
            log: Where replies are kept.
            max_cost_usd: Most that all replies of the log may cost, US dollars. A call that could
                cost more than is left of it is not made: its reply is a recorded failure.

        Raises:
            ConfigurationError: There is a limit, but no price.
        """
        if client.price is None and max_cost_usd < math.inf:
            raise ConfigurationError(
                f"max_cost_usd: expected the prices of the model beside it, got {max_cost_usd} "
                "without them; name them, or set no limit."
            )
        self._client = client
        self._log = log
        self._max_cost_usd = max_cost_usd

    def complete(
        self, prompt: str, *, system: str | None = None, max_tokens: int = DEFAULT_MAX_TOKENS
    ) -> str:
        """Return the reply; a recorded failure is the empty text again.

        Raises:
            NotReadyError: The call stands in no `cadenza.loop.llm.protocol.asking` block.
            StoreError: The log refused, e.g. because another controller took the run over.
            StopRequestedError: The run is asked to stop, and there is no recorded reply.
        """
        place: Place = current_place()
        key = (place.cycle, place.purpose, place.next_ordinal())
        question = Question(prompt=prompt, system=system, max_tokens=max_tokens, timeout_s=0.0)
        recorded = self._log.get(key)
        if recorded is None:
            reply = self._asked(key, question)
            recorded = self._log.record(key, replace(reply, about=place.about))
        if recorded.prompt_sha256 != question.sha256() or recorded.about is not None:
            place.about = recorded.about
        place.error = recorded.error
        return recorded.text

    def _asked(self, key: ReplyKey, question: Question) -> ReplyRow:
        """Return the model's reply; it costs what killed calls for it can have cost, too."""
        before_usd = self._log.booked_usd(key)

        def with_killed(reply: ReplyRow) -> ReplyRow:
            cost_usd = None if reply.cost_usd is None else before_usd + reply.cost_usd
            return replace(reply, cost_usd=cost_usd)

        reply = self._client.reply(
            question.prompt,
            system=question.system,
            max_tokens=question.max_tokens,
            left_usd=self._max_cost_usd - self._log.spent_usd(),
            book=lambda booked: self._log.book(key, with_killed(booked)),
        )
        return with_killed(reply)


def recorded_llm(
    spec: str | None,
    log: StoreReplies,
    *,
    limits: CallLimits | None = None,
    price: Price | None = None,
    max_cost_usd: float = math.inf,
    stop: StopCheck = never,
) -> LLMClient:
    """Return the client of a run: guarded, its replies recorded; `NullLLM` for no model.

    Args:
        spec: ``"provider:model"``, or None; see `cadenza.loop.llm.adapter`.
        log: Where replies are kept.
        limits: What a reply may take; the defaults if None.
        price: Price of the model; None if it is not known.
        max_cost_usd: Most that all replies of the log may cost, US dollars.
        stop: Says whether the run is asked to stop; a call then ends with `StopRequestedError`.

    Raises:
        ConfigurationError: The provider is unknown, the model is missing, Gemini has no key, or
            there is a limit without a price.
        LLMPackageMissingError: The provider's package is not installed.
    """
    client = make_llm(spec)
    if isinstance(client, NullLLM):
        return client
    guarded = GuardedLLM(client, limits, price, stop=stop)
    return RecordedLLM(guarded, log, max_cost_usd=max_cost_usd)
