"""Clients of language models, where LeAgents has them: one call, from question to answer.

A client says how its package sends a question and where a reply holds text and numbers of tokens.
The packages make the request; the body is read and checked here, because they accept any shape and
keep a body of any size in memory.

Form:   where a question has a schema, the service's structured output holds the model to it; after
        a refusal a client asks without, then and, if that is taken, later.
Keys:   `KEYS`; none for other servers that speak as OpenAI's does.
Limit:  OpenAI's newer models want ``max_completion_tokens``, other servers know ``max_tokens``.
"""

import importlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Final, cast

from cadenza.core.errors import ConfigurationError, IntegrityError
from cadenza.core.strict_json import parse_json_object
from cadenza.loop.config import parse_spec
from cadenza.loop.errors import LLMCallError, LLMPackageMissingError
from cadenza.loop.llm.protocol import (
    DEFAULT_MAX_TOKENS,
    Answer,
    LLMClient,
    NullLLM,
    Question,
    error_text,
    redacted,
    secrets_of,
)

__all__ = ["AnthropicLLM", "LLMClient", "NullLLM", "OpenAICompatibleLLM", "make_llm"]


#: Environment variables that hold the key of a provider; any of them will do, the first one counts.
KEYS: Final = {
    "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
    "openai": ("OPENAI_API_KEY",),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
}
#: Longest body of a reply, bytes: a hundred times the longest text a model writes at once.
MAX_BODY_BYTES: Final = 4 << 20
#: Statuses after which another try may succeed: time-out, conflict, too early, rate limit.
_PASSING_STATUSES: Final = frozenset({408, 409, 425, 429})
#: The server's own errors, overload (529) among them; but for what it does not implement.
_SERVER_ERRORS: Final = frozenset(range(500, 600)) - {501}


def _bounded_body(response: Any) -> bytes:
    body = bytearray()
    for chunk in response.iter_bytes():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise IntegrityError(f"expected at most {MAX_BODY_BYTES} bytes, got more")
    return bytes(body)


def _status_failure(error: Any, secrets: Iterable[str]) -> LLMCallError:
    status = int(error.status_code)
    after = (error.response.headers.get("retry-after") or "").strip()  # may be a date, too
    return LLMCallError(
        error_text(f"status {status}: {error}", secrets),
        passing=status in _PASSING_STATUSES | _SERVER_ERRORS,
        retry_after_s=float(after) if re.fullmatch(r"[0-9]{1,15}", after) else None,
    )


#: Seconds before `ServiceClient.complete` gives up.
_TIMEOUT_S = 120.0


class ServiceClient(ABC):
    """One model of one service, by its official package; ``provider`` names it in recordings."""

    #: The package, and its most general error.
    _package_name: ClassVar[str]
    _base_error: ClassVar[str]
    #: Keys of the numbers of tokens of prompt and reply, below ``usage``.
    _counts: ClassVar[tuple[str, str]]

    def __init__(self, provider: str, model: str) -> None:
        """Import the package; nothing is sent."""
        try:
            self._package = importlib.import_module(self._package_name)
        except ImportError as error:
            raise LLMPackageMissingError(
                f"language model: expected the package {self._package_name!r}, got none; install "
                "it with `pip install 'cadenza[llm]'`, or set llm to null."
            ) from error
        self.provider = provider
        self.model = model
        self._takes_schemas = True

    @abstractmethod
    def _send(self, question: Question) -> AbstractContextManager[Any]:
        """Start the request; a schema is there only where the service takes them."""

    @abstractmethod
    def _text(self, document: dict[str, Any]) -> str:
        """Return the text of a reply, or raise `LLMCallError` if it was refused."""

    @abstractmethod
    def _secrets(self) -> Iterable[str]:
        """Return the keys that the client may send; empty texts do not count."""

    def ask(self, question: Question) -> Answer:
        """Return the reply to one call.

        Raises:
            LLMCallError: There is none.
        """
        secrets = [secret for secret in self._secrets() if secret]
        if not self._takes_schemas:
            question = replace(question, schema=None)
        try:
            document = self._fetch(question, secrets)
        except LLMCallError as failure:
            if question.schema is None or failure.passing:
                raise
            document = self._fetch(replace(question, schema=None), secrets)
            self._takes_schemas = False
        problem = None
        try:
            text = redacted(self._text(document), secrets)
        except LLMCallError as failure:
            text, problem = "", str(failure)
        usage: Any = document.get("usage")
        told = cast("dict[str, Any]", usage) if isinstance(usage, dict) else {}
        tokens_in, tokens_out = (
            count if type(count := told.get(key)) is int and 0 <= count < 2**31 else None
            for key in self._counts
        )
        return Answer(text=text, tokens_in=tokens_in, tokens_out=tokens_out, problem=problem)

    def _fetch(self, question: Question, secrets: list[str]) -> dict[str, Any]:
        """Return the JSON object that a request brings, or raise `LLMCallError`."""
        import httpx2

        package = self._package
        unsent = (getattr(package, self._base_error), httpx2.StreamError, httpx2.InvalidURL)
        failure: LLMCallError
        try:
            with self._send(question) as response:
                return parse_json_object(_bounded_body(response), source="reply")
        except IntegrityError as error:
            text = error_text(f"no JSON: {error}", secrets)
            failure = LLMCallError(text, passing=True, billed=True)
        except package.APIStatusError as error:
            failure = _status_failure(error, secrets)
        except package.APITimeoutError:
            failure = LLMCallError("time-out", passing=True, billed=True)
        except (package.APIConnectionError, httpx2.HTTPError) as error:
            failure = LLMCallError(
                error_text(f"connection failed: {type(error).__name__}: {error}", secrets),
                passing=True,
                billed=not isinstance(error.__cause__, httpx2.ConnectError),
            )
        except (*unsent, TypeError, ValueError) as error:
            # TypeError and ValueError: how the packages refuse missing keys and unusable addresses
            failure = LLMCallError(error_text(f"{type(error).__name__}: {error}", secrets))
        raise failure  # outside the handlers, so that no traceback shows the package's own message

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


class AnthropicLLM(ServiceClient):
    """One model at Anthropic; the key and the address are the package's own business."""

    _package_name: ClassVar = "anthropic"
    _base_error: ClassVar = "AnthropicError"
    _counts: ClassVar = ("input_tokens", "output_tokens")

    def __init__(self, model: str, api_key: str | None = None) -> None:
        """Remember the key, None for what the package finds; nothing is sent."""
        super().__init__("anthropic", model)
        self._api_key = api_key

    @cached_property
    def _client(self) -> Any:
        return self._package.Anthropic(api_key=self._api_key, max_retries=0)

    def _send(self, question: Question) -> Any:
        more: dict[str, Any] = {} if question.system is None else {"system": question.system}
        if question.schema is not None:
            form = {"type": "json_schema", "schema": question.schema}
            more["output_config"] = {"format": form}
        return self._client.messages.with_streaming_response.create(
            model=self.model,
            timeout=question.timeout_s,
            max_tokens=question.max_tokens,
            messages=[{"role": "user", "content": question.prompt}],
            **more,
        )

    def _text(self, document: dict[str, Any]) -> str:
        """Return the text blocks, joined."""
        if document.get("stop_reason") == "refusal":
            raise LLMCallError("the model refused to reply")
        blocks = document.get("content")
        if not isinstance(blocks, list):
            raise LLMCallError("expected a list of content blocks, got none")
        return "".join(_text_of(block) for block in cast("list[object]", blocks))

    def _secrets(self) -> tuple[str, ...]:
        keys = (self._api_key or "", *(os.environ.get(name, "") for name in KEYS["anthropic"]))
        return (*keys, *secrets_of(os.environ.get("ANTHROPIC_BASE_URL")))


def _text_of(block: object) -> str:
    match block:
        case {"type": "text", "text": str(text)}:
            return text
        case _:
            return ""


#: Key for self-hosted servers, which ask for none.
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

        ``base_url`` None takes ``OPENAI_BASE_URL`` or OpenAI's own, ``api_key`` None
        ``OPENAI_API_KEY`` or a placeholder without it.
        """
        super().__init__(provider, model)
        self._base_url = base_url or os.environ.get("OPENAI_BASE_URL") or None
        self._api_key = api_key or os.environ.get("OPENAI_API_KEY") or NO_KEY

    @cached_property
    def _client(self) -> Any:
        return self._package.OpenAI(api_key=self._api_key, base_url=self._base_url, max_retries=0)

    def _send(self, question: Question) -> Any:
        limit = "max_completion_tokens" if self._base_url is None else "max_tokens"
        more: dict[str, Any] = {limit: question.max_tokens}
        if question.schema is not None:
            form = {"name": "reply", "schema": question.schema, "strict": True}
            more["response_format"] = {"type": "json_schema", "json_schema": form}
        messages = [{"role": "user", "content": question.prompt}]
        if question.system is not None:
            messages.insert(0, {"role": "system", "content": question.system})
        return self._client.chat.completions.with_streaming_response.create(
            model=self.model,
            messages=messages,
            timeout=question.timeout_s,
            **more,
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


#: Google's endpoint that speaks OpenAI's format.
GEMINI_BASE_URL: Final = "https://generativelanguage.googleapis.com/v1beta/openai/"


def make_llm(spec: str | None) -> NullLLM | AnthropicLLM | OpenAICompatibleLLM:
    """Return the client that ``spec`` names; nothing is sent.

    Raises:
        ConfigurationError: The provider is unknown, the model is missing, or Gemini has no key.
        LLMPackageMissingError: The provider's package is not installed.
    """
    if not spec:
        return NullLLM()
    named = parse_spec(spec)
    if named.provider == "anthropic":
        return AnthropicLLM(named.model)
    if named.provider == "openai":
        return OpenAICompatibleLLM(named.model, named.address)
    key = next(filter(None, map(os.environ.get, KEYS["gemini"])), None)
    if key is None:
        raise ConfigurationError(
            f"llm: expected {' or '.join(KEYS['gemini'])} in the environment for a gemini model, "
            "got neither; set one of them."
        )
    address = named.address or GEMINI_BASE_URL
    return OpenAICompatibleLLM(named.model, address, key, provider="gemini")
