"""Chat completions of OpenAI, and of the many servers that speak its format.

OpenAI's own service takes the limit of a reply as ``max_completion_tokens`` and its newer models
refuse the older ``max_tokens``; other servers know the older name at least.
"""

import os
from functools import cached_property
from typing import Any

from cadenza.loop.errors import LLMCallError
from cadenza.loop.llm.protocol import DEFAULT_MAX_TOKENS, Answer, Question
from cadenza.loop.llm.redaction import redacted
from cadenza.loop.llm.wire import count_or_none, fetch, load_package, mapping_or_empty

#: Seconds before `OpenAICompatibleLLM.complete` gives up.
_TIMEOUT_S = 120.0
#: Key for servers of one's own, which ask for none.
NO_KEY = "not-needed"


class OpenAICompatibleLLM:
    """One model behind a chat-completions endpoint."""

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
        self._package = load_package("openai")
        self.provider = provider
        self.model = model
        self._base_url = base_url or os.environ.get("OPENAI_BASE_URL") or None
        self._api_key = api_key or os.environ.get("OPENAI_API_KEY") or NO_KEY

    @cached_property
    def _client(self) -> Any:
        return self._package.OpenAI(api_key=self._api_key, base_url=self._base_url, max_retries=0)

    def ask(self, question: Question) -> Answer:
        """Return the content of the first choice.

        Raises:
            LLMCallError: There is no usable reply.
        """
        secrets = [] if self._api_key == NO_KEY else [self._api_key]
        limit = "max_completion_tokens" if self._base_url is None else "max_tokens"
        messages = [{"role": "user", "content": question.prompt}]
        if question.system is not None:
            messages.insert(0, {"role": "system", "content": question.system})

        def send() -> Any:
            return self._client.chat.completions.with_streaming_response.create(
                model=self.model,
                messages=messages,
                timeout=question.timeout_s,
                **{limit: question.max_tokens},
            )

        document = fetch(send, self._package, self._package.OpenAIError, secrets)
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
    match document.get("choices"):
        case [{"message": {"refusal": str(refusal)}}, *_] if refusal:
            raise LLMCallError("the model refused to reply")
        case [{"message": {"content": str(text)}}, *_]:
            pass
        case [{"message": {"content": None}}, *_]:
            text = ""
        case _:
            raise LLMCallError("expected a choice with a message, got none")
    counts = mapping_or_empty(document.get("usage"))
    return Answer(
        text=redacted(text, secrets),
        tokens_in=count_or_none(counts.get("prompt_tokens")),
        tokens_out=count_or_none(counts.get("completion_tokens")),
    )
