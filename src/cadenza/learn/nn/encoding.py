"""Encoders before networks, and decisions behind them.

Axes:  B = batch, O = observation.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from torch import Tensor, nn

#: Makes a module that maps flat observations, (B, O), to features, (B, ``module.width``).
EncoderFactory = Callable[[], nn.Module]
Network = TypeVar("Network", bound=nn.Module)


def with_encoder(
    make: EncoderFactory | None, observation_dim: int, build: Callable[[int], Network]
) -> tuple[Network, list[nn.Module]]:
    """Return a network, and the encoder of its own that comes before it, if there is one.

    Args:
        make: Makes the encoder; None lets the network see the observation.
        observation_dim: O.
        build: Makes the network from the width of what it sees.
    """
    if make is None:
        return build(observation_dim), []
    encoder = make()
    return build(int(cast("Any", encoder).width)), [encoder]


class EncodedNetwork(nn.Module):
    """A network that sees the features of an encoder instead of the observation.

    Args:
        encoder: Maps observations (B, O) to features.
        network: Called with the features as ``obs``, and with all other arguments as they are.
    """

    def __init__(self, encoder: nn.Module, network: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.network = network

    def forward(self, *inputs: Any, obs: Tensor, **options: Any) -> Any:
        """Return what the network does for the features of ``obs``."""
        return self.network(*inputs, obs=self.encoder(obs), **options)


class Decision(nn.Module):
    """A function as the last layer of a policy.

    Args:
        decide: Makes actions of the layers' output.
    """

    def __init__(self, decide: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.decide = decide

    def forward(self, output: Tensor) -> Tensor:
        """Return the actions."""
        return self.decide(output)
