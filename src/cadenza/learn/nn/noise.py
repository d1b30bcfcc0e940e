"""Modules that own the generator of their noise.

The generator's state is saved as torch's extra state, so a resumed run draws on as an unbroken one.
Weights from elsewhere have none; after `let_noise_go_on` they load strictly all the same, and the
noise goes on where it is.
"""

from typing import Any, Final

import torch
from torch import Tensor, nn

#: What torch appends to a module's path for state that is neither parameter nor buffer.
EXTRA_STATE: Final = "_extra_state"


class NoisyModule(nn.Module):
    """Base of modules that draw.

    Args:
        generator: Source of the draws; None makes one on the CPU that belongs to this module,
            seeded 0.
    """

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
    """Let weights without a generator's state load strictly into ``module``.

    Args:
        module: Has `get_extra_state`; its constructor calls this.
    """
    module.register_load_state_dict_pre_hook(_complete)  # pyright: ignore[reportUnknownMemberType] -- torch leaves it untyped


def _complete(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: object) -> None:
    """Give ``state_dict``, torch's copy of what is loaded, the module's own extra state."""
    state_dict.setdefault(prefix + EXTRA_STATE, module.get_extra_state())
