"""What calls cost; prices change, so they come from a configuration and never from here.

Bound:    a token is at least one byte of text, so a prompt has at most as many tokens as bytes, and
          some for the frame that a service puts around it; a reply has at most what was asked for.
Booking:  an attempt is booked at the most it can cost before it is made, and settled afterwards: a
          call that was killed while it waited stays booked.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cadenza.core.errors import ConfigurationError
from cadenza.loop.errors import LLMCallError
from cadenza.loop.llm.protocol import Answer, Question

#: Tokens that services put around a prompt and its instructions, rounded up.
_FRAME_TOKENS: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Price of one model.

    Attributes:
        input_usd: US dollars per million tokens of prompts, >= 0.
        output_usd: US dollars per million tokens of replies, >= 0.
    """

    input_usd: float
    output_usd: float

    def __post_init__(self) -> None:
        for name in ("input_usd", "output_usd"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise ConfigurationError(
                    f"Price.{name}: expected US dollars per million tokens, >= 0, got {value}."
                )


def cost_usd(price: Price | None, tokens_in: int | None, tokens_out: int | None) -> float | None:
    """Return the cost of a call, US dollars; None if the price or a count is not known."""
    if price is None or tokens_in is None or tokens_out is None:
        return None
    return (tokens_in * price.input_usd + tokens_out * price.output_usd) / 1e6


def most_usd(price: Price, question: Question) -> float:
    """Return the most that asking ``question`` once can cost, US dollars."""
    texts = (question.prompt, question.system or "")
    tokens_in = _FRAME_TOKENS + sum(len(text.encode("utf-8", "replace")) for text in texts)
    return (tokens_in * price.input_usd + question.max_tokens * price.output_usd) / 1e6


class Bill:
    """What the attempts at one reply cost, within what is left.

    An attempt that was paid for, but whose tokens nobody told, counts as the most it can cost.
    """

    def __init__(
        self,
        price: Price | None,
        question: Question,
        left_usd: float,
        book: Callable[[float | None], object] | None = None,
    ) -> None:
        """Begin with nothing spent.

        Args:
            price: Price of the model; without one nothing is counted.
            question: What is asked.
            left_usd: Most that may be spent, US dollars.
            book: Keeps, before an attempt, what all attempts can have cost after it, US dollars;
                None without a price.
        """
        self._book = book
        self._price = price
        self._most_usd = 0.0 if price is None else most_usd(price, question)
        self._left_usd = left_usd
        self._spent_usd = 0.0

    @property
    def total_usd(self) -> float | None:
        """What was spent, US dollars; None without a price."""
        return None if self._price is None else self._spent_usd

    def reserve(self) -> None:
        """Book one more attempt at the most it can cost, or raise if that does not fit.

        Raises:
            LLMCallError: It does not.
        """
        left_usd = self._left_usd - self._spent_usd
        if self._most_usd > left_usd:
            raise LLMCallError(
                f"cost: expected a call within the {max(0.0, left_usd):.4f} US dollars that are "
                f"left of max_cost_usd, got one of up to {self._most_usd:.4f}"
            )
        if self._book is not None:
            self._book(None if self._price is None else self._spent_usd + self._most_usd)

    def settle(self, outcome: Answer | LLMCallError) -> None:
        """Count what the attempt really cost."""
        if isinstance(outcome, Answer):
            told = cost_usd(self._price, outcome.tokens_in, outcome.tokens_out)
            self._spent_usd += self._most_usd if told is None else told
        elif outcome.billed:
            self._spent_usd += self._most_usd
