"""Loading weights that were saved without the state of a noise generator.

A module that owns a generator saves it as torch's extra state. Weights from elsewhere have none;
with this hook they load strictly all the same, and the noise goes on where it is.
"""

from typing import Any, Final

from torch import nn

#: What torch appends to a module's path for state that is neither parameter nor buffer.
EXTRA_STATE: Final = "_extra_state"


def let_noise_go_on(module: nn.Module) -> None:
    """Let weights without a generator's state load strictly into ``module``.

    Args:
        module: Has `get_extra_state`; its constructor calls this.
    """
    module.register_load_state_dict_pre_hook(_complete)  # pyright: ignore[reportUnknownMemberType] -- torch leaves it untyped


def _complete(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: object) -> None:
    """Give ``state_dict``, torch's copy of what is loaded, the module's own extra state."""
    state_dict.setdefault(prefix + EXTRA_STATE, module.get_extra_state())
