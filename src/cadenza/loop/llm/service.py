"""What the clients of all services share: one call, from the question to an answer.

A client says how its package sends a question and where a reply holds text and numbers of tokens.
The packages make the request (address, key, headers, proxies); the body is read and checked here,
because they accept any shape and keep a body of any size in memory.
"""

import importlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, ClassVar, Final, Protocol, cast

from cadenza.core.errors import IntegrityError
from cadenza.core.strict_json import parse_json_object
from cadenza.loop.errors import LLMCallError, LLMPackageMissingError
from cadenza.loop.llm.protocol import DEFAULT_MAX_TOKENS, Answer, Question
from cadenza.loop.llm.redaction import error_text, redacted

#: Longest body of a reply, bytes: a hundred times the longest text a model writes at once.
MAX_BODY_BYTES: Final = 4 << 20
#: Statuses after which another try may succeed: time-out, conflict, too early, rate limit.
_PASSING_STATUSES: Final = frozenset({408, 409, 425, 429})
#: First status of the server's own errors; overload is among them (529).
_SERVER_ERRORS: Final = 500


class StreamedResponse(Protocol):
    """The part of the packages' responses that we use."""

    def iter_bytes(self) -> Iterator[bytes]:
        """Yield the body."""
        ...


def load_package(name: str) -> ModuleType:
    """Import the official package of a service.

    Raises:
        LLMPackageMissingError: It is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise LLMPackageMissingError(
            f"language model: expected the package {name!r}, got none; install it with "
            "`pip install 'cadenza[llm]'`, or set llm to null."
        ) from error


def fetch(
    send: Callable[[], AbstractContextManager[StreamedResponse]],
    package: ModuleType,
    base_error: type[Exception],
    secrets: Iterable[str],
) -> dict[str, Any]:
    """Return the JSON object that a request brings.

    Args:
        send: Starts the request; the package raises on a status that is no success.
        package: The official package, for its types of errors.
        base_error: Its most general error.
        secrets: Keys that no message may hold.

    Raises:
        LLMCallError: The request failed, or its body is too long or no JSON object.
    """
    import httpx2

    failure: LLMCallError
    try:
        with send() as response:
            return parse_json_object(_bounded_body(response), source="reply")
    except IntegrityError as error:
        text = error_text(f"no JSON: {error}", secrets)
        failure = LLMCallError(text, passing=True, billed=True)
    except package.APIStatusError as error:
        failure = _status_failure(error, secrets)
    except package.APITimeoutError:
        failure = LLMCallError("time-out", passing=True, billed=True)
    except (package.APIConnectionError, httpx2.HTTPError) as error:
        message = f"connection failed: {type(error).__name__}: {error}"
        failure = LLMCallError(
            error_text(message, secrets),
            passing=True,
            billed=not isinstance(error.__cause__, httpx2.ConnectError),
        )
    except (base_error, httpx2.StreamError, httpx2.InvalidURL, TypeError, ValueError) as error:
        # TypeError and ValueError: how the packages refuse missing keys and unusable addresses
        failure = LLMCallError(error_text(f"{type(error).__name__}: {error}", secrets))
    raise failure  # outside the handlers, so that no traceback shows the package's own message


def count_or_none(value: object) -> int | None:
    """Return a number of tokens; None if the service sent no such number."""
    return value if type(value) is int and 0 <= value < 2**31 else None


def mapping_or_empty(value: object) -> dict[str, Any]:
    """Return a JSON object; an empty one if the service sent something else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _bounded_body(response: StreamedResponse) -> bytes:
    body = bytearray()
    for chunk in response.iter_bytes():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise IntegrityError(f"expected at most {MAX_BODY_BYTES} bytes, got more")
    return bytes(body)


def _status_failure(error: Any, secrets: Iterable[str]) -> LLMCallError:
    status = int(error.status_code)
    return LLMCallError(
        error_text(f"status {status}: {error}", secrets),
        passing=status in _PASSING_STATUSES or status >= _SERVER_ERRORS,
        retry_after_s=_seconds(error.response.headers.get("retry-after")),
    )


def _seconds(text: str | None) -> float | None:
    """Return the seconds of a ``retry-after`` header; None for a date or none at all."""
    if text is None or re.fullmatch(r"[0-9]{1,15}", text.strip()) is None:
        return None
    return float(text)


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
