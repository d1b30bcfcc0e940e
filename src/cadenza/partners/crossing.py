"""Common part of the partners of the crossing task: reading the state, writing the action.

State:   own position (2), own velocity (2), goal minus position (2), then for every other robot,
         ego first, relative position (2) and relative velocity (2): 6 + 4 (n - 1) numbers, float32.
Action:  acceleration (2), m/s^2, float32; each component within `ACCELERATION_LIMIT`.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np

from cadenza.core.arrays import Float32Array, FloatArray, require_finite
from cadenza.core.errors import InputError
from cadenza.partners.crossing_motion import (
    ACCELERATION_LIMIT,
    ARRAY,
    SCALAR,
    Arithmetic,
    Real,
    Sight,
)
from cadenza.partners.interface import PartnerBase, PartnerCard
from cadenza.partners.observations import read_state
from cadenza.partners.options import NumberOption, refuse_unknown_options
from cadenza.partners.spec import PartnerSpec

#: Numbers in the state about the robot itself, and about each other robot.
_OWN_SIZE: Final = 6
_OTHER_SIZE: Final = 4
#: Numbers the partners read: themselves and the ego.
_SIGHT_SIZE: Final = _OWN_SIZE + _OTHER_SIZE

#: Option of every crossing partner.
MAX_ACCELERATION: Final = NumberOption(
    key="max_acceleration",
    default=ACCELERATION_LIMIT,
    low=0.0,
    high=ACCELERATION_LIMIT,
    summary="bound on each acceleration component, m/s^2",
)


def crossing_card(
    summary: str, options: tuple[NumberOption, ...], *, leaves_way: bool = True
) -> PartnerCard:
    """Return the card of a crossing partner with ``options`` beyond the common ones."""
    described = {
        option.key: f"{option.summary} (default {option.default:g})"
        for option in (MAX_ACCELERATION, *options)
    }
    return PartnerCard(
        summary=summary,
        tasks=("crossing",),
        leaves_way=leaves_way,
        options={"uid": "robot it drives (default partner)", **described},
    )


class CrossingPartner(PartnerBase):
    """Base of the crossing partners; a subclass adds its options and one acceleration law.

    Attributes:
        number_options: Options of the subclass beyond `MAX_ACCELERATION`.

    Raises:
        ConfigurationError: An option is unknown or out of range.
    """

    number_options: ClassVar[tuple[NumberOption, ...]] = ()

    def __init__(self, spec: PartnerSpec) -> None:
        super().__init__(spec)
        owner = type(self).__name__
        known = (MAX_ACCELERATION, *self.number_options)
        refuse_unknown_options(owner, spec.extra, [option.key for option in known])
        self._uid = spec.extra.get("uid", "partner")
        self._options = {option.key: option.read(owner, spec.extra) for option in known}
        self._limit = self._options[MAX_ACCELERATION.key]

    def reset(self, *, seed: int | None = None) -> None:
        """Start an episode; most laws depend on the current observation only."""

    def act(self, obs: Mapping[str, Any], *, deterministic: bool = True) -> Float32Array:
        """Return the acceleration for the state that ``obs`` holds.

        Args:
            obs: Nested observation; only ``obs["agent"][uid]["state"]`` is read.
            deterministic: Without effect: what is random in a partner is drawn at ``reset``.

        Returns:
            Acceleration, m/s^2, shape (2,), or (N, 2) for a state of shape (N, D).

        Raises:
            InputError: The state is missing, of another layout or not finite.
        """
        del deterministic
        state = read_state(obs, self._uid)
        others, rest = divmod(state.shape[-1] - _OWN_SIZE, _OTHER_SIZE)
        if others < 1 or rest:
            raise InputError(
                f"{type(self).__name__}: expected a state of 6 + 4 (n - 1) numbers for n >= 2 "
                f"robots, got shape {state.shape}; is {self._uid!r} a robot of the crossing task?"
            )
        if state.ndim == 1:
            numbers = state[:_SIGHT_SIZE].tolist()
            if not math.isfinite(sum(numbers)):
                require_finite(f"obs['agent'][{self._uid!r}]['state']", state)
            action = np.array(self.acceleration(Sight(*numbers), SCALAR), dtype=np.float32)
        else:
            require_finite(f"obs['agent'][{self._uid!r}]['state']", state)
            columns: FloatArray = state[:, :_SIGHT_SIZE].T.astype(np.float64)
            action = np.stack(self.acceleration(Sight(*columns), ARRAY), axis=1).astype(np.float32)
        return self.checked(action)

    @abstractmethod
    def acceleration(self, sight: Sight, math_of: Arithmetic) -> tuple[Real, Real]:
        """Return the two acceleration components, floats or arrays (N,) as in ``sight``."""
