"""Encoders before networks, decisions behind them, and modules that own their noise.

The state of a module's generator is saved as torch's extra state, so a resumed run draws on as an
unbroken one. Weights from elsewhere have none; after `let_noise_go_on` they load strictly all the
same, and the noise goes on where it is.

Axes:  B = batch, O = observation.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import torch
from torch import Tensor, nn

#: Makes a module that maps flat observations, (B, O), to features, (B, ``module.width``).
EncoderFactory = Callable[[], nn.Module]
Network = TypeVar("Network", bound=nn.Module)


def with_encoder(
    make: EncoderFactory | None, observation_dim: int, build: Callable[[int], Network]
) -> tuple[Network, list[nn.Module]]:
    """Return what ``build`` makes of a width, and the encoder before it, if there is one."""
    if make is None:
        return build(observation_dim), []
    encoder = make()
    return build(int(cast("Any", encoder).width)), [encoder]


class EncodedNetwork(nn.Module):
    """A network that sees the features of an encoder of ``obs``; other arguments pass."""

    def __init__(self, encoder: nn.Module, network: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.network = network

    def forward(self, *inputs: Any, obs: Tensor, **options: Any) -> Any:
        """Return what the network does for the features of ``obs``."""
        return self.network(*inputs, obs=self.encoder(obs), **options)


class Decision(nn.Module):
    """A function as the last layer of a policy."""

    def __init__(self, decide: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.decide = decide

    def forward(self, output: Tensor) -> Tensor:
        """Return the actions."""
        return self.decide(output)


#: What torch appends to a module's path for state that is neither parameter nor buffer.
EXTRA_STATE: Final = "_extra_state"


class NoisyModule(nn.Module):
    """Base of modules that draw; without a generator, each makes one on the CPU, seeded 0."""

    def __init__(self, generator: torch.Generator | None) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(0) if generator is None else generator

    def get_extra_state(self) -> Tensor:
        """Return the generator's state, for `torch.nn.Module.state_dict`."""
        return self.generator.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        """Continue the draws where `get_extra_state` was taken."""
        self.generator.set_state(state.cpu())


def let_noise_go_on(module: nn.Module) -> None:
    """Let weights without a generator's state load strictly; the constructor calls this."""
    module.register_load_state_dict_pre_hook(_complete)  # pyright: ignore[reportUnknownMemberType] -- torch leaves it untyped


def _complete(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: object) -> None:
    """Give ``state_dict``, torch's copy of what is loaded, the module's own extra state."""
    state_dict.setdefault(prefix + EXTRA_STATE, module.get_extra_state())
