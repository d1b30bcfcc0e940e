"""What the clients of all services share: one call, from the question to an answer.

A client says how its package sends a question and where a reply holds text and numbers of tokens.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from cadenza.loop.errors import LLMCallError
from cadenza.loop.llm.protocol import DEFAULT_MAX_TOKENS, Answer, Question
from cadenza.loop.llm.redaction import redacted
from cadenza.loop.llm.wire import (
    StreamedResponse,
    count_or_none,
    fetch,
    load_package,
    mapping_or_empty,
)

#: Seconds before `ServiceClient.complete` gives up.
_TIMEOUT_S = 120.0


class ServiceClient(ABC):
    """One model of one service, through the service's official package.

    Attributes:
        provider: Name of the service in recordings.
        model: Name of the model.
    """

    #: The package, and its most general error.
    _package_name: ClassVar[str]
    _base_error: ClassVar[str]
    #: Keys of the numbers of tokens of prompt and reply, below ``usage``.
    _counts: ClassVar[tuple[str, str]]

    def __init__(self, provider: str, model: str) -> None:
        """Import the package; nothing is sent.

        Raises:
            LLMPackageMissingError: It is not installed.
        """
        self._package = load_package(self._package_name)
        self.provider = provider
        self.model = model

    @abstractmethod
    def _send(self, question: Question) -> AbstractContextManager[StreamedResponse]:
        """Start the request."""

    @abstractmethod
    def _text(self, document: dict[str, Any]) -> str:
        """Return the text of a reply.

        Raises:
            LLMCallError: The model refused, or the reply has another shape.
        """

    @abstractmethod
    def _secrets(self) -> Iterable[str]:
        """Return the keys that the client may send; empty texts do not count."""

    def ask(self, question: Question) -> Answer:
        """Return the reply to one call.

        Raises:
            LLMCallError: There is none.
        """
        secrets = [secret for secret in self._secrets() if secret]
        base_error = getattr(self._package, self._base_error)
        document = fetch(lambda: self._send(question), self._package, base_error, secrets)
        problem = None
        try:
            text = redacted(self._text(document), secrets)
        except LLMCallError as failure:
            text, problem = "", str(failure)
        usage = mapping_or_empty(document.get("usage"))
        tokens_in, tokens_out = (count_or_none(usage.get(key)) for key in self._counts)
        return Answer(text=text, tokens_in=tokens_in, tokens_out=tokens_out, problem=problem)

    def complete(
        self, prompt: str, *, system: str | None = None, max_tokens: int = DEFAULT_MAX_TOKENS
    ) -> str:
        """Return the reply to one call; wrap in `GuardedLLM` for retries and no errors.

        Raises:
            LLMCallError: There is no usable reply.
        """
        answer = self.ask(
            Question(prompt=prompt, system=system, max_tokens=max_tokens, timeout_s=_TIMEOUT_S)
        )
        if answer.problem is not None:
            raise LLMCallError(answer.problem, billed=True)
        return answer.text
