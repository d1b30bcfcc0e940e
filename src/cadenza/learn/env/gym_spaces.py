"""Gymnasium's spaces as the plain shapes and types that memory and networks are sized from."""

from typing import Any, Final, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from cadenza.core.errors import InputError
from cadenza.core.spaces import BoxSpace, DictSpace, MDPSpace

#: Name of an observation that is a single array.
SINGLE_OBSERVATION: Final = "obs"

_ARRAYS: Final = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def mdp_space(
    observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
) -> MDPSpace:
    """Return what one agent exchanges with an environment of these spaces.

    Observations of one array are called ``obs``, those of a `Dict` keep their keys. A number has
    shape () as an observation and (1,) as an action. Rewards are float32, (1,).

    Raises:
        InputError: Nested or variable-size observations, or actions of several arrays.
    """
    if not isinstance(action_space, _ARRAYS):
        raise InputError(
            "DictGymWrapper: expected actions of one array (Box, Discrete, MultiDiscrete, "
            f"MultiBinary), got {action_space}; flatten the actions first."
        )
    actions = cast("gymnasium.Space[Any]", action_space)
    if isinstance(observation_space, spaces.Dict):
        entries = cast("dict[str, gymnasium.Space[Any]]", cast("Any", observation_space).spaces)
    else:
        entries = {SINGLE_OBSERVATION: observation_space}
    return MDPSpace(
        rewards=BoxSpace(np.float32, (1,)),
        actions=BoxSpace(_dtype(actions), actions.shape or (1,)),
        state=DictSpace({key: _box(key, space) for key, space in entries.items()}),
    )


def _box(key: str, space: gymnasium.Space[Any]) -> BoxSpace:
    if not isinstance(space, _ARRAYS):
        raise InputError(
            f"DictGymWrapper: expected observation {key!r} to be one array (Box, Discrete, "
            f"MultiDiscrete, MultiBinary), got {space}; use gymnasium.wrappers.FlattenObservation "
            "or a wrapper that names every array."
        )
    shape = cast("tuple[int, ...]", space.shape)
    return BoxSpace(_dtype(cast("gymnasium.Space[Any]", space)), shape)


def _dtype(space: gymnasium.Space[Any]) -> type[np.generic]:
    return cast("np.dtype[Any]", np.dtype(space.dtype)).type


def env_actions(rows: list[object], space: gymnasium.Space[Any]) -> NDArray[Any]:
    """Return one action per environment, (N, *action shape), in the type of the action space.

    Args:
        rows: What each agent answered, in the order of the environments; (1,) for a number is fine.
        space: Action space of one environment.

    Raises:
        InputError: A shape that does not fit, a number that is not finite, or a fraction where the
            space holds integers.
    """
    shape = cast("tuple[int, ...]", space.shape)
    try:
        given = np.array(rows).reshape(len(rows), *shape)
    except ValueError as error:
        raise InputError(
            f"DictGymWrapper: expected 'actions' of shape {shape}, got shapes "
            f"{sorted({np.shape(cast('Any', row)) for row in rows})}; correct the policy's output."
        ) from error
    if not np.isfinite(given).all():
        raise InputError(
            f"DictGymWrapper: expected finite 'actions', got {given.tolist()}; the policy has "
            "diverged: lower its learning rate or clip its gradients."
        )
    actions = given.astype(space.dtype)
    if np.issubdtype(actions.dtype, np.integer) and not np.array_equal(actions, given):
        raise InputError(
            f"DictGymWrapper: expected whole numbers as 'actions' of {space}, got "
            f"{given.tolist()}; round or sample before responding."
        )
    return actions
