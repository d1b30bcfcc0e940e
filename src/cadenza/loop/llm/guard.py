"""A language model that cannot harm the loop: bounded in time, tries and cost; replies recorded.

A call runs in a thread of its own, which is left behind when its time is up or the run is asked to
stop: no package bounds the time in which a slow server trickles its headers.

Prices:   come from a configuration. A token is at least one byte of text, so a prompt has at most
          as many tokens as bytes, and some for the frame that a service puts around it.
Booking:  an attempt is booked at the most it can cost before it is made, and settled afterwards: a
          call that was killed while it waited stays booked. So attempts are made here, one by one,
          and not by the packages, whose own repetitions nobody could book.
"""

import json
import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from cadenza.core.errors import StorageError
from cadenza.loop.config import LLMCallsConfig
from cadenza.loop.errors import LLMCallError, StopRequestedError, StoreError
from cadenza.loop.jobs.terms import StopCheck, never
from cadenza.loop.llm.protocol import (
    DEFAULT_MAX_TOKENS,
    Answer,
    Asker,
    LLMClient,
    Question,
    current_place,
    storable,
    wanted_schema,
)
from cadenza.loop.store.rows import Lease, ReplyRow

if TYPE_CHECKING:
    from cadenza.loop.store.tables import Replies

_LOGGER: Final = logging.getLogger(__name__)

#: Tokens that services put around a prompt and its instructions, rounded up.
_FRAME_TOKENS: Final = 256
#: Pause before the first further call, doubled each time, and longest pause, s.
_BACKOFF_S, _MAX_PAUSE_S = 1.0, 60.0
#: Pause between two looks at whether the run is asked to stop, s.
_LOOK_EVERY_S: Final = 0.2


class Bill:
    """What the attempts at one reply cost, US dollars; nothing is counted without prices.

    An attempt that was paid for, but whose tokens are unknown, counts as the most it can cost.
    """

    def __init__(self, calls: LLMCallsConfig, question: Question, left_usd: float) -> None:
        """Begin with nothing spent of ``left_usd``."""
        form = json.dumps(question.schema) if question.schema else ""
        texts = (question.prompt, question.system or "", form)
        tokens_in = _FRAME_TOKENS + sum(len(text.encode("utf-8", "replace")) for text in texts)
        self._calls = calls
        self._most_usd = self._cost_usd(tokens_in, question.max_tokens)
        self._left_usd = left_usd
        self._spent_usd = 0.0

    def total_usd(self, more_usd: float = 0.0) -> float | None:
        """Return what was spent, and ``more_usd``; None without a price."""
        return None if self._calls.usd_per_million_input is None else self._spent_usd + more_usd

    def with_another(self) -> float | None:
        """Return the most that one more attempt brings the total to.

        Raises:
            LLMCallError: It does not fit into what is left.
        """
        left_usd = self._left_usd - self._spent_usd
        if self._most_usd > left_usd:
            raise LLMCallError(
                f"cost: expected a call within the {max(0.0, left_usd):.4f} US dollars that are "
                f"left of max_cost_usd, got one of up to {self._most_usd:.4f}"
            )
        return self.total_usd(self._most_usd)

    def settle(self, outcome: Answer | LLMCallError) -> None:
        """Count what the attempt really cost."""
        match outcome:
            case Answer(tokens_in=int(tokens_in), tokens_out=int(tokens_out)):
                self._spent_usd += self._cost_usd(tokens_in, tokens_out)
            case Answer() | LLMCallError(billed=True):
                self._spent_usd += self._most_usd
            case _:
                pass

    def _cost_usd(self, tokens_in: int, tokens_out: int) -> float:
        of_input = (self._calls.usd_per_million_input or 0.0) * tokens_in
        return (of_input + (self._calls.usd_per_million_output or 0.0) * tokens_out) / 1e6


class GuardedLLM:
    """Asks, tries again where that may help, and turns every failure into the empty text."""

    def __init__(
        self,
        asker: Asker,
        calls: LLMCallsConfig | None = None,
        *,
        stop: StopCheck = never,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        """Guard ``asker``; ``stop`` ends every wait, and ``sleep`` may replace the pauses."""
        self.calls: LLMCallsConfig = calls or LLMCallsConfig()
        self._asker = asker
        self._name = f"{asker.provider}:{asker.model}"
        self._stop = stop
        self._sleep = sleep or self._sleep_unless_stopped

    def complete(
        self, prompt: str, *, system: str | None = None, max_tokens: int = DEFAULT_MAX_TOKENS
    ) -> str:
        """Return the reply; the empty text after any failure. A stop of the run is raised."""
        return self.reply(prompt, system=system, max_tokens=max_tokens).text

    def reply(
        self,
        prompt: str,
        *,
        system: str | None = None,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        left_usd: float = math.inf,
        book: Callable[[ReplyRow], object] = lambda _: None,
    ) -> ReplyRow:
        """Return the reply with what is to be recorded of it; after a failure, with its error.

        What could cost more than ``left_usd``, US dollars, is not asked. ``book`` keeps a row
        without a text before each attempt: its cost is the most that all attempts can have cost
        after this one, None without a price.

        Raises:
            StopRequestedError: The run is asked to stop; what was booked stays so, because the
                call that was left behind may be paid for.
        """
        question = Question(
            prompt=prompt,
            system=system,
            max_tokens=max_tokens,
            timeout_s=self.calls.timeout_s,
            schema=wanted_schema(),
        )
        bill = Bill(self.calls, question, left_usd)

        def row(answer: Answer, cost_usd: float | None) -> ReplyRow:
            return ReplyRow(
                provider=self._asker.provider,
                model=self._asker.model,
                prompt_sha256=question.sha256(),
                text=storable(answer.text),
                tokens_in=answer.tokens_in,
                tokens_out=answer.tokens_out,
                cost_usd=cost_usd,
                error=answer.problem,
            )

        try:
            answer = self._answer(question, bill, lambda usd: book(row(Answer(text=""), usd)))
        except LLMCallError as failure:
            answer = Answer(text="", problem=str(failure))
        if answer.problem is not None:
            _LOGGER.warning("%s: %s", self._name, answer.problem)
        return row(answer, bill.total_usd())

    def _answer(
        self, question: Question, bill: Bill, book: Callable[[float | None], object]
    ) -> Answer:
        """Return an answer; one without a text tells its problem. Errors as `Asker.ask`."""
        length, most = len(question.prompt) + len(question.system or ""), self.calls.retries
        if length > self.calls.max_prompt_chars:
            raise LLMCallError(
                f"prompt: expected at most {self.calls.max_prompt_chars} characters, got {length}"
            )
        for attempt in range(most + 1):
            if self._stop():
                raise self._stopped()
            book(bill.with_another())
            outcome = self._ask_in_time(question)
            bill.settle(outcome)
            if isinstance(outcome, Answer):
                if outcome.problem is None and not outcome.text.strip():
                    return replace(outcome, text="", problem="the reply holds no text")
                return outcome
            if not outcome.passing or attempt == most:
                raise outcome
            asked_s = outcome.retry_after_s
            self._sleep(
                min(_MAX_PAUSE_S, _BACKOFF_S * 2.0**attempt if asked_s is None else asked_s)
            )
        raise AssertionError("the last attempt returns or raises")

    def _sleep_unless_stopped(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._stop() and (left_s := end - time.monotonic()) > 0.0:
            time.sleep(min(left_s, _LOOK_EVERY_S))

    def _stopped(self) -> StopRequestedError:
        return StopRequestedError(
            f"asked to stop while {self._name} was asked; its call is abandoned, and a resumed "
            "run asks again."
        )

    def _ask_in_time(self, question: Question) -> Answer | LLMCallError:
        """Return the answer in time, or why there is none; a stop of the run is raised."""
        results: list[Answer | LLMCallError] = []
        thread = threading.Thread(
            target=lambda: results.append(_outcome(self._asker, question)),
            name="language-model-call",
            daemon=True,
        )
        thread.start()
        end = time.monotonic() + question.timeout_s
        while thread.is_alive() and (left_s := end - time.monotonic()) > 0.0:
            thread.join(min(left_s, _LOOK_EVERY_S))
            if self._stop() and not results:  # in this order: it may have come meanwhile
                raise self._stopped()
        late = f"no reply within {question.timeout_s:g} s"
        return results[0] if results else LLMCallError(late, passing=True, billed=True)


def _outcome(asker: Asker, question: Question) -> Answer | LLMCallError:
    """Return the answer to a question, or why there is none."""
    try:
        return asker.ask(question)
    except LLMCallError as failure:
        return failure
    except Exception as error:  # noqa: BLE001  # foreign code; a traceback may hold its key
        return LLMCallError(f"client failed with {type(error).__name__}", billed=True)


def ask_safely(
    llm: LLMClient, prompt: str, *, system: str | None = None, max_tokens: int = DEFAULT_MAX_TOKENS
) -> str:
    """Return the reply of any client; the empty text if it raises or returns something else.

    Raises:
        StoreError: The run itself cannot go on, e.g. another controller took it over.
        StorageError: The file system refused a recording.
        StopRequestedError: The run is asked to stop.
    """
    complete = cast("Callable[..., object]", llm.complete)
    try:
        text = complete(prompt, system=system, max_tokens=max_tokens)
    except (StoreError, StorageError, StopRequestedError):
        raise
    except Exception as error:  # noqa: BLE001  # a client may fail in any way; a traceback may hold its key
        _LOGGER.warning("language model: client failed with %s", type(error).__name__)
        return ""
    return text if isinstance(text, str) else ""


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
        """Keep a reply and return it, or return the one that is there."""
        return self._replies.record(self._lease(), *key, reply)

    def book(self, key: ReplyKey, reply: ReplyRow) -> None:
        """Keep what asking for a reply can cost."""
        self._replies.book(self._lease(), *key, reply)

    def booked_usd(self, key: ReplyKey) -> float:
        """Return what is booked for a reply that is not there, US dollars."""
        return self._replies.booked_usd(self._lease().run_id, *key)

    def spent_usd(self) -> float:
        """Return what the run's replies cost together, booked ones included, US dollars."""
        return self._replies.spent_usd(self._lease().run_id)


class RecordedLLM:
    """Gives each call the reply recorded for its place, and asks only where there is none.

    A call that could cost more than is left of ``max_cost_usd``, over all replies of the log, is
    not made: its reply is a recorded failure. One that was killed before counts as booked.
    """

    def __init__(self, client: GuardedLLM, log: StoreReplies) -> None:
        """Ask ``client`` and record in ``log``."""
        self._client = client
        self._log = log

    def complete(
        self, prompt: str, *, system: str | None = None, max_tokens: int = DEFAULT_MAX_TOKENS
    ) -> str:
        """Return the reply; a recorded failure is the empty text again.

        Raises:
            NotReadyError: The call stands in no `cadenza.loop.llm.protocol.asking` block.
            StoreError: The log refused, e.g. because another controller took the run over.
            StopRequestedError: The run is asked to stop, and there is no recorded reply.
        """
        place, log = current_place(), self._log
        key = (place.cycle, place.purpose, place.next_ordinal())
        question = Question(prompt=prompt, system=system, max_tokens=max_tokens, timeout_s=0.0)
        recorded = log.get(key)
        if recorded is None:
            before_usd, most_usd = log.booked_usd(key), self._client.calls.max_cost_usd

            def with_killed(reply: ReplyRow) -> ReplyRow:
                cost_usd = None if reply.cost_usd is None else before_usd + reply.cost_usd
                return replace(reply, cost_usd=cost_usd)

            reply = self._client.reply(
                prompt,
                system=system,
                max_tokens=max_tokens,
                left_usd=math.inf if most_usd is None else most_usd - log.spent_usd(),
                book=lambda booked: log.book(key, with_killed(booked)),
            )
            recorded = log.record(key, replace(with_killed(reply), about=place.about))
        if recorded.prompt_sha256 != question.sha256() or recorded.about is not None:
            place.about = recorded.about
        place.error = recorded.error
        return recorded.text
