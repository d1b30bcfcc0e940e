"""Chat completions of OpenAI, and of the many servers that speak its format.

OpenAI's own service takes the limit of a reply as ``max_completion_tokens`` and its newer models
refuse the older ``max_tokens``; other servers know the older name at least.
"""

import os
from functools import cached_property
from typing import Any, ClassVar

from cadenza.loop.errors import LLMCallError
from cadenza.loop.llm.protocol import Question
from cadenza.loop.llm.redaction import secrets_of
from cadenza.loop.llm.service import ServiceClient

#: Key for servers of one's own, which ask for none.
NO_KEY = "not-needed"


class OpenAICompatibleLLM(ServiceClient):
    """One model behind a chat-completions endpoint."""

    _package_name: ClassVar = "openai"
    _base_error: ClassVar = "OpenAIError"
    _counts: ClassVar = ("prompt_tokens", "completion_tokens")

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        provider: str = "openai",
    ) -> None:
        """Remember where to ask; nothing is sent.

        Args:
            model: Name of the model.
            base_url: Address; None takes ``OPENAI_BASE_URL`` or OpenAI's own.
            api_key: Key; None takes ``OPENAI_API_KEY``, or a placeholder without it.
            provider: Name of the service in recordings.

        Raises:
            LLMPackageMissingError: The package is not installed.
        """
        super().__init__(provider, model)
        self._base_url = base_url or os.environ.get("OPENAI_BASE_URL") or None
        self._api_key = api_key or os.environ.get("OPENAI_API_KEY") or NO_KEY

    @cached_property
    def _client(self) -> Any:
        return self._package.OpenAI(api_key=self._api_key, base_url=self._base_url, max_retries=0)

    def _send(self, question: Question) -> Any:
        limit = "max_completion_tokens" if self._base_url is None else "max_tokens"
        messages = [{"role": "user", "content": question.prompt}]
        if question.system is not None:
            messages.insert(0, {"role": "system", "content": question.system})
        return self._client.chat.completions.with_streaming_response.create(
            model=self.model,
            messages=messages,
            timeout=question.timeout_s,
            **{limit: question.max_tokens},
        )

    def _text(self, document: dict[str, Any]) -> str:
        """Return the content of the first choice."""
        match document.get("choices"):
            case [{"message": {"refusal": str(refusal)}}, *_] if refusal:
                raise LLMCallError("the model refused to reply")
            case [{"message": {"content": str(text)}}, *_]:
                return text
            case [{"message": {"content": None}}, *_]:
                return ""
            case _:
                raise LLMCallError("expected a choice with a message, got none")

    def _secrets(self) -> tuple[str, ...]:
        keys = () if self._api_key == NO_KEY else (self._api_key,)
        return (*keys, *secrets_of(self._base_url))
