"""Checks that precede the construction of an ego learner: frozen partner, spaces."""

from typing import Any, Final, cast

from gymnasium.spaces import Box

from cadenza.core.errors import ConfigurationError, InputError
from cadenza.core.types import PartnerLike

#: Axes of a space that describes a whole batch of environments: (N, D).
_BATCHED_RANK: Final = 2


def assert_partner_is_frozen(partner: PartnerLike) -> None:
    """Raise if ``partner`` exposes a trainable parameter; call before allocating anything.

    A partner without ``named_parameters``, or whose shield refuses the look-up, is accepted: what
    cannot be reached cannot be trained.

    Raises:
        ConfigurationError: A parameter has ``requires_grad=True``; the message names it.
    """
    try:
        named_parameters = cast("Any", partner).named_parameters
    except AttributeError:
        return
    for name, parameter in named_parameters():
        if parameter.requires_grad:
            raise ConfigurationError(
                f"{type(partner).__name__}: expected a frozen partner, got parameter {name!r} with "
                "requires_grad=True (ADR-009 §Consequences); call requires_grad_(False) on it "
                "before training."
            )


def ego_spaces(env: Any, ego_uid: str) -> tuple[Box, Box]:
    """Return observation and action space of the ego's seat, for one environment.

    Args:
        env: Environment with Gymnasium spaces; ``observation_space["agent"][uid]["state"]`` and
            ``action_space[uid]``, batched (N, D) or not (D,).
        ego_uid: The ego's seat.

    Raises:
        TypeError: A space is not a ``gym.spaces.Box``.
    """
    spaces: dict[str, Any] = {
        "observation": env.observation_space["agent"][ego_uid]["state"],
        "action": env.action_space[ego_uid],
    }
    for name, space in spaces.items():
        if not isinstance(space, Box):
            raise TypeError(
                f"ego {name} space of {ego_uid!r}: expected gym.spaces.Box, "
                f"got {type(space).__name__}."
            )
    return _single(spaces["observation"]), _single(spaces["action"])


def flat_size(name: str, space: Box) -> int:
    """Return D of a space of shape (D,).

    Raises:
        InputError: The space has another rank.
    """
    if len(space.shape) != 1:
        raise InputError(
            f"EgoPPOTrainer: expected a flat {name} space of shape (D,), got {space.shape}."
        )
    return space.shape[0]


def _single(space: Box) -> Box:
    """Return the first row of a batched space, or ``space`` itself."""
    if len(space.shape) != _BATCHED_RANK:
        return space
    return Box(low=space.low[0], high=space.high[0], dtype=space.dtype.type)
