"""What the loop asks of a language model, and what it gets.

Two floors: an `Asker` speaks with one service and raises when the call fails; an `LLMClient`, which
the workers of the loop see, never raises: the empty text says that there is no usable reply.
"""

from dataclasses import dataclass
from typing import Protocol

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
    """One call.

    Attributes:
        prompt: What is asked.
        system: Standing instructions; None for none.
        max_tokens: Most tokens of the reply.
        timeout_s: Seconds before the caller gives up.
    """

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
