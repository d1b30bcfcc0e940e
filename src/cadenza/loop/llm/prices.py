"""What a call costs; prices change, so they come from a configuration and never from here."""

import math
from dataclasses import dataclass

from cadenza.core.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Price of one model.

    Attributes:
        input_usd: US dollars per million tokens of prompts, >= 0.
        output_usd: US dollars per million tokens of replies, >= 0.
    """

    input_usd: float
    output_usd: float

    def __post_init__(self) -> None:
        for name in ("input_usd", "output_usd"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise ConfigurationError(
                    f"Price.{name}: expected US dollars per million tokens, >= 0, got {value}."
                )


def cost_usd(price: Price | None, tokens_in: int | None, tokens_out: int | None) -> float | None:
    """Return the cost of a call, US dollars; None if the price or a count is not known."""
    if price is None or tokens_in is None or tokens_out is None:
        return None
    return (tokens_in * price.input_usd + tokens_out * price.output_usd) / 1e6
