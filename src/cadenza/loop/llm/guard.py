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
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, cast

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
#: What is wrong with a reply of white space.
_NO_TEXT: Final = "the reply holds no text"


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
        spent_usd: float = 0.0,
        book: Callable[[ReplyRow], object] = lambda _: None,
    ) -> ReplyRow:
        """Return the reply with what is to be recorded of it; after a failure, with its error.

        What could cost more than ``left_usd``, US dollars, of which killed attempts at this reply
        took ``spent_usd``, is not asked. ``book`` keeps a row without a text before each attempt:
        its cost is the most that all attempts can have cost after this one, None without a price. A
        stop of the run is raised; what was booked stays so, because the call that was left behind
        may be paid for.
        """
        question = Question(
            prompt=prompt,
            system=system,
            max_tokens=max_tokens,
            timeout_s=self.calls.timeout_s,
            schema=wanted_schema(),
        )
        most_usd = self._most_usd(question)
        answer = Answer(text="", problem=self._too_long(question))
        for attempt in range(self.calls.retries + 1) if answer.problem is None else ():
            if self._stop():
                raise self._stopped()
            if most_usd > (left := left_usd - spent_usd):
                told = (
                    f"cost: expected a call within the {max(0.0, left):.4f} US dollars that are "
                    f"left of max_cost_usd, got one of up to {most_usd:.4f}"
                )
                answer = Answer(text="", problem=told)
                break
            book(self._row(question, Answer(text=""), spent_usd + most_usd))
            outcome = self._ask_in_time(question)
            spent_usd += self._cost_usd(outcome, most_usd)
            if isinstance(outcome, Answer):
                empty = outcome.problem is None and not outcome.text.strip()
                answer = replace(outcome, text="", problem=_NO_TEXT) if empty else outcome
                break
            answer = Answer(text="", problem=str(outcome))
            if not outcome.passing or attempt == self.calls.retries:
                break
            asked_s = outcome.retry_after_s
            pause_s = _BACKOFF_S * 2.0**attempt if asked_s is None else asked_s
            self._sleep(min(_MAX_PAUSE_S, pause_s))
        if answer.problem is not None:
            _LOGGER.warning("%s: %s", self._name, answer.problem)
        return self._row(question, answer, spent_usd)

    def _row(self, question: Question, answer: Answer, cost_usd: float) -> ReplyRow:
        return ReplyRow(
            provider=self._asker.provider,
            model=self._asker.model,
            prompt_sha256=question.sha256(),
            text=storable(answer.text),
            tokens_in=answer.tokens_in,
            tokens_out=answer.tokens_out,
            cost_usd=None if self.calls.usd_per_million_input is None else cost_usd,
            error=answer.problem,
        )

    def _too_long(self, question: Question) -> str | None:
        length, most = (
            len(question.prompt) + len(question.system or ""),
            self.calls.max_prompt_chars,
        )
        return (
            f"prompt: expected at most {most} characters, got {length}" if length > most else None
        )

    def _most_usd(self, question: Question) -> float:
        """Return the most that one attempt can cost, US dollars; 0 without prices."""
        form = json.dumps(question.schema) if question.schema else ""
        texts = (question.prompt, question.system or "", form)
        tokens_in = _FRAME_TOKENS + sum(len(text.encode("utf-8", "replace")) for text in texts)
        return self._price_usd(tokens_in, question.max_tokens)

    def _cost_usd(self, outcome: Answer | LLMCallError, most_usd: float) -> float:
        """Return what an attempt cost: the most it can if it was paid for and nobody knows."""
        match outcome:
            case Answer(tokens_in=int(tokens_in), tokens_out=int(tokens_out)):
                return self._price_usd(tokens_in, tokens_out)
            case Answer() | LLMCallError(billed=True):
                return most_usd
            case _:
                return 0.0

    def _price_usd(self, tokens_in: int, tokens_out: int) -> float:
        of_input = (self.calls.usd_per_million_input or 0.0) * tokens_in
        return (of_input + (self.calls.usd_per_million_output or 0.0) * tokens_out) / 1e6

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

    What the run itself cannot go on after is raised: its store or disk refuses, or it is to stop.
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


@dataclass(eq=False)
class RecordedLLM:
    """Gives each call the reply recorded for its place, and asks only where there is none.

    A call that could cost more than is left of ``max_cost_usd``, over all replies of the run, is
    not made: its reply is a recorded failure. One that was killed before counts as booked. What is
    kept is kept under the ``lease`` of the run at work.
    """

    client: GuardedLLM
    replies: "Replies"
    lease: Callable[[], Lease]

    def complete(
        self, prompt: str, *, system: str | None = None, max_tokens: int = DEFAULT_MAX_TOKENS
    ) -> str:
        """Return the reply; a recorded failure is the empty text again."""
        place, kept, lease = current_place(), self.replies, self.lease()
        run_id, key = lease.run_id, (place.cycle, place.purpose, next(place.ordinals))
        question = Question(prompt=prompt, system=system, max_tokens=max_tokens, timeout_s=0.0)
        recorded = kept.get(run_id, *key)
        if recorded is None:
            killed_usd, most_usd = kept.booked_usd(run_id, *key), self.client.calls.max_cost_usd
            others_usd = kept.spent_usd(run_id) - killed_usd
            reply = self.client.reply(
                prompt,
                system=system,
                max_tokens=max_tokens,
                left_usd=math.inf if most_usd is None else most_usd - others_usd,
                spent_usd=killed_usd,
                book=lambda booked: kept.book(lease, *key, booked),
            )
            recorded = kept.record(lease, *key, replace(reply, about=place.about))
        if recorded.prompt_sha256 != question.sha256() or recorded.about is not None:
            place.about = recorded.about
        place.error = recorded.error
        return recorded.text
