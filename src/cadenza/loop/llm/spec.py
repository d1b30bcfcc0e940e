"""How a configuration names a language model.

================================  ===========================================================
``anthropic:<model>``             at Anthropic
``openai:<model>[@<address>]``    at OpenAI, or at a server that speaks its format
``gemini:<model>[@<address>]``    at Google
================================  ===========================================================

The text is split at the first ``:`` and, where an address may follow, the rest at the first ``@``.
It is stored with a run and shown: what a client proves itself with stands in the environment.
"""

import re
from dataclasses import dataclass
from typing import Final

from cadenza.core.errors import ConfigurationError

#: Providers, and whether an address may follow the model.
_TAKES_ADDRESS: Final = {"anthropic": False, "gemini": True, "openai": True}
#: Marks of a user, a query and a fragment in an address; each may hold a password or key.
_MAY_HOLD_SECRETS: Final = "@?#"
#: Where each provider's client looks for what must not stand in the text.
_INSTEAD: Final = {
    "anthropic": "a key in ANTHROPIC_API_KEY, or the whole address in ANTHROPIC_BASE_URL",
    "gemini": "a key in GEMINI_API_KEY",
    "openai": "a key in OPENAI_API_KEY, or the whole address in OPENAI_BASE_URL",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A language model.

    Attributes:
        provider: Name of its service.
        model: Name of the model there.
        address: Where the service is; None for its own address.
    """

    provider: str
    model: str
    address: str | None = None

    @property
    def shown(self) -> str:
        """The text that names it."""
        place = "" if self.address is None else f"@{self.address}"
        return f"{self.provider}:{self.model}{place}"


def parse_spec(text: str) -> ModelSpec:
    """Return the model that ``text`` names.

    Raises:
        ConfigurationError: The provider is unknown, the model is missing, or the address may hold
            a password or key, which the message does not quote.
    """
    provider, _, rest = text.partition(":")
    if provider not in _TAKES_ADDRESS:
        raise ConfigurationError(
            f"llm: expected provider:model with a provider of {', '.join(_TAKES_ADDRESS)}, got "
            f"provider {provider!r}; correct it, or set llm to null."
        )
    place = re.split("@|//", rest, maxsplit=1)[1:]  # the latter: the model was forgotten
    if any(mark in text for text in place for mark in _MAY_HOLD_SECRETS):
        raise ConfigurationError(
            f"llm: expected an address without user, password and query, got one with '@', '?' or "
            f"'#', which would be stored and shown; give {_INSTEAD[provider]}, as an environment "
            "variable."
        )
    model, address = rest, ""
    if _TAKES_ADDRESS[provider]:
        model, _, address = rest.partition("@")
    if not model:
        raise ConfigurationError(
            f"llm: expected provider:model, got no model after {provider!r}; name one, e.g. "
            f"'{provider}:<model>'."
        )
    return ModelSpec(provider=provider, model=model, address=address or None)
