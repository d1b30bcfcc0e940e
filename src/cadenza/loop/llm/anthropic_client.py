"""Anthropic's Messages API through its official package."""

import os
from functools import cached_property
from typing import Any, ClassVar, cast

from cadenza.loop.errors import LLMCallError
from cadenza.loop.llm.protocol import Question
from cadenza.loop.llm.redaction import secrets_of
from cadenza.loop.llm.service import ServiceClient


class AnthropicLLM(ServiceClient):
    """One model at Anthropic; the key and the address are the package's own business."""

    _package_name: ClassVar = "anthropic"
    _base_error: ClassVar = "AnthropicError"
    _counts: ClassVar = ("input_tokens", "output_tokens")

    def __init__(
        self, model: str, api_key: str | None = None, *, base_url: str | None = None
    ) -> None:
        """Remember where to ask; nothing is sent.

        Args:
            model: Name of the model.
            api_key: Key; None takes what the package finds (``ANTHROPIC_API_KEY``, a profile).
            base_url: Address; None takes ``ANTHROPIC_BASE_URL`` or the service's own.

        Raises:
            LLMPackageMissingError: The package is not installed.
        """
        super().__init__("anthropic", model)
        self._api_key = api_key
        self._base_url = base_url

    @cached_property
    def _client(self) -> Any:
        return self._package.Anthropic(
            api_key=self._api_key, base_url=self._base_url, max_retries=0
        )

    def _send(self, question: Question) -> Any:
        return self._client.messages.with_streaming_response.create(
            model=self.model,
            timeout=question.timeout_s,
            max_tokens=question.max_tokens,
            messages=[{"role": "user", "content": question.prompt}],
            **({} if question.system is None else {"system": question.system}),
        )

    def _text(self, document: dict[str, Any]) -> str:
        """Return the text blocks, joined."""
        if document.get("stop_reason") == "refusal":
            raise LLMCallError("the model refused to reply")
        blocks = document.get("content")
        if not isinstance(blocks, list):
            raise LLMCallError("expected a list of content blocks, got none")
        return "".join(_block_text(block) for block in cast("list[object]", blocks))

    def _secrets(self) -> tuple[str, ...]:
        names = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")
        keys = (self._api_key or "", *(os.environ.get(name, "") for name in names))
        return (*keys, *secrets_of(self._base_url or os.environ.get("ANTHROPIC_BASE_URL")))


def _block_text(block: object) -> str:
    """Return the text of a text block; nothing of other kinds."""
    match block:
        case {"type": "text", "text": str(text)}:
            return text
        case _:
            return ""
