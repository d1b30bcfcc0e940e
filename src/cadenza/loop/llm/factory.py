"""From ``"provider:model"`` to a client.

================================  ===========================================================
``None``, ``""``                  `NullLLM`
``anthropic:<model>``             `AnthropicLLM`; key and address as its package finds them
``openai:<model>[@<address>]``    `OpenAICompatibleLLM`; ``OPENAI_API_KEY``, or no key
``gemini:<model>[@<address>]``    the same at Google's address; ``GEMINI_API_KEY``, else
                                  ``GOOGLE_API_KEY``
================================  ===========================================================

The text is split at the first ``:`` and the rest at the first ``@``.
"""

import os
from collections.abc import Callable, Mapping
from typing import Final

from cadenza.core.errors import ConfigurationError
from cadenza.loop.llm.anthropic_client import AnthropicLLM
from cadenza.loop.llm.openai_client import OpenAICompatibleLLM
from cadenza.loop.llm.protocol import NullLLM

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
    provider, _, model = spec.partition(":")
    if provider not in _MAKERS:
        raise ConfigurationError(
            f"llm: expected provider:model with a provider of {', '.join(sorted(_MAKERS))}, got "
            f"provider {provider!r}; correct it, or set llm to null."
        )
    return _MAKERS[provider](model)


def _anthropic(model: str) -> AnthropicLLM:
    return AnthropicLLM(_required(model, "anthropic"))


def _openai(rest: str) -> OpenAICompatibleLLM:
    model, _, address = rest.partition("@")
    return OpenAICompatibleLLM(_required(model, "openai"), address or None)


def _gemini(rest: str) -> OpenAICompatibleLLM:
    model, _, address = rest.partition("@")
    _required(model, "gemini")
    key = os.environ.get("GEMINI_API_KEY") or os.environ.get("GOOGLE_API_KEY")
    if not key:
        raise ConfigurationError(
            "llm: expected GEMINI_API_KEY or GOOGLE_API_KEY in the environment for a gemini "
            "model, got neither; set one of them."
        )
    return OpenAICompatibleLLM(model, address or GEMINI_BASE_URL, key, provider="gemini")


def _required(model: str, provider: str) -> str:
    if not model:
        raise ConfigurationError(
            f"llm: expected provider:model, got no model after {provider!r}; name one, e.g. "
            f"'{provider}:<model>'."
        )
    return model


_MAKERS: Final[Mapping[str, Callable[[str], AnthropicLLM | OpenAICompatibleLLM]]] = {
    "anthropic": _anthropic,
    "gemini": _gemini,
    "openai": _openai,
}
