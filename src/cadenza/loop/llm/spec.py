"""How a configuration names a language model.

================================  ===========================================================
``anthropic:<model>``             at Anthropic
``openai:<model>[@<address>]``    at OpenAI, or at a server that speaks its format
``gemini:<model>[@<address>]``    at Google
================================  ===========================================================

The text is split at the first ``:`` and, where an address may follow, the rest at the first ``@``.
"""

from dataclasses import dataclass
from typing import Final

from cadenza.core.errors import ConfigurationError

#: Providers, and whether an address may follow the model.
_TAKES_ADDRESS: Final = {"anthropic": False, "gemini": True, "openai": True}


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
        """The name without a password that may stand in the address."""
        if self.address is None:
            return f"{self.provider}:{self.model}"
        scheme, slashes, rest = self.address.rpartition("//")
        return f"{self.provider}:{self.model}@{scheme}{slashes}{rest.rpartition('@')[2]}"


def parse_spec(text: str) -> ModelSpec:
    """Return the model that ``text`` names.

    Raises:
        ConfigurationError: The provider is unknown, or the model is missing.
    """
    provider, _, rest = text.partition(":")
    if provider not in _TAKES_ADDRESS:
        raise ConfigurationError(
            f"llm: expected provider:model with a provider of {', '.join(_TAKES_ADDRESS)}, got "
            f"provider {provider!r}; correct it, or set llm to null."
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
