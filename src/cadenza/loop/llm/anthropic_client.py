"""Anthropic's Messages API through its official package."""

import os
from functools import cached_property
from typing import Any, cast

from cadenza.loop.errors import LLMCallError
from cadenza.loop.llm.protocol import DEFAULT_MAX_TOKENS, Answer, Question
from cadenza.loop.llm.redaction import redacted
from cadenza.loop.llm.wire import count_or_none, fetch, load_package, mapping_or_empty

#: Seconds before `AnthropicLLM.complete` gives up.
_TIMEOUT_S = 120.0


class AnthropicLLM:
    """One model at Anthropic; the key and the address are the package's own business."""

    provider = "anthropic"

    def __init__(
        self, model: str, *, api_key: str | None = None, base_url: str | None = None
    ) -> None:
        """Remember where to ask; nothing is sent.

        Args:
            model: Name of the model.
            api_key: Key; None takes what the package finds (``ANTHROPIC_API_KEY``, a profile).
            base_url: Address; None takes ``ANTHROPIC_BASE_URL`` or the service's own.

        Raises:
            LLMPackageMissingError: The package is not installed.
        """
        self._package = load_package("anthropic")
        self.model = model
        self._api_key = api_key
        self._base_url = base_url

    @cached_property
    def _client(self) -> Any:
        return self._package.Anthropic(
            api_key=self._api_key, base_url=self._base_url, max_retries=0
        )

    def ask(self, question: Question) -> Answer:
        """Return the text blocks of the reply, joined.

        Raises:
            LLMCallError: There is no usable reply.
        """
        secrets = [
            self._api_key or "",
            os.environ.get("ANTHROPIC_API_KEY", ""),
            os.environ.get("ANTHROPIC_AUTH_TOKEN", ""),
        ]

        def send() -> Any:
            return self._client.messages.with_streaming_response.create(
                model=self.model,
                timeout=question.timeout_s,
                max_tokens=question.max_tokens,
                messages=[{"role": "user", "content": question.prompt}],
                **({} if question.system is None else {"system": question.system}),
            )

        document = fetch(send, self._package, self._package.AnthropicError, secrets)
        return _answer(document, secrets)

    def complete(
        self, prompt: str, *, system: str | None = None, max_tokens: int = DEFAULT_MAX_TOKENS
    ) -> str:
        """Return the reply to one call; wrap in `GuardedLLM` for retries and no errors.

        Raises:
            LLMCallError: There is no usable reply.
        """
        question = Question(
            prompt=prompt, system=system, max_tokens=max_tokens, timeout_s=_TIMEOUT_S
        )
        return self.ask(question).text


def _answer(document: dict[str, Any], secrets: list[str]) -> Answer:
    if document.get("stop_reason") == "refusal":
        raise LLMCallError("the model refused to reply")
    blocks = document.get("content")
    if not isinstance(blocks, list):
        raise LLMCallError("expected a list of content blocks, got none")
    text = "".join(_block_text(block) for block in cast("list[object]", blocks))
    counts = mapping_or_empty(document.get("usage"))
    return Answer(
        text=redacted(text, secrets),
        tokens_in=count_or_none(counts.get("input_tokens")),
        tokens_out=count_or_none(counts.get("output_tokens")),
    )


def _block_text(block: object) -> str:
    """Return the text of a text block; nothing of other kinds."""
    match block:
        case {"type": "text", "text": str(text)}:
            return text
        case _:
            return ""
