"""From the name of a language model to its client; `cadenza.loop.config` tells the names.

============================  ===============================================================
``None``, ``""``              `NullLLM`
``anthropic``                 `AnthropicLLM`; key and address as its package finds them
``openai``                    `OpenAICompatibleLLM`; ``OPENAI_API_KEY``, or no key
``gemini``                    the same at Google's address; ``GEMINI_API_KEY``, else
                              ``GOOGLE_API_KEY``
============================  ===============================================================
"""

import os
from collections.abc import Callable, Mapping
from typing import Final

from cadenza.core.errors import ConfigurationError
from cadenza.loop.config import ModelSpec, parse_spec
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
    named = parse_spec(spec)
    return _MAKERS[named.provider](named)


def _anthropic(named: ModelSpec) -> AnthropicLLM:
    return AnthropicLLM(named.model)


def _openai(named: ModelSpec) -> OpenAICompatibleLLM:
    return OpenAICompatibleLLM(named.model, named.address)


def _gemini(named: ModelSpec) -> OpenAICompatibleLLM:
    key = os.environ.get("GEMINI_API_KEY") or os.environ.get("GOOGLE_API_KEY")
    if not key:
        raise ConfigurationError(
            "llm: expected GEMINI_API_KEY or GOOGLE_API_KEY in the environment for a gemini "
            "model, got neither; set one of them."
        )
    address = named.address or GEMINI_BASE_URL
    return OpenAICompatibleLLM(named.model, address, key, provider="gemini")


_MAKERS: Final[Mapping[str, Callable[[ModelSpec], AnthropicLLM | OpenAICompatibleLLM]]] = {
    "anthropic": _anthropic,
    "gemini": _gemini,
    "openai": _openai,
}
