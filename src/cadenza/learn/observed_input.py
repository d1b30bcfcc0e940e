"""Takes the one observation that a model works on out of all that a batch has."""

from collections.abc import Mapping

from torch import Tensor

from cadenza.core.errors import InputError


def observed_input(owner: str, observation: Mapping[str, Tensor], key: str) -> Tensor:
    """Return ``observation[key]``, shape (B, ...).

    Args:
        owner: Who works on it, for the message.
        observation: Observations of the batch by name.
        key: The one that is meant.

    Raises:
        InputError: There is none of that name.
    """
    if key not in observation:
        raise InputError(
            f"{owner}: expected observation[{key!r}], got the keys {sorted(observation)}; set "
            "input_key."
        )
    return observation[key]
