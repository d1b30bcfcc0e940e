"""What both wrappers know of an environment: its scene, and the ego's action.

Two vocabularies: the environment's action (any real dtype, any scale, perhaps one entry of a Dict
of agents) and the control model's action (float64, box |u_k| <= c). A port translates one ego
action, shape (n,), or a batch of them, shape (B, n).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray, require_shape
from cadenza.core.checks import real_array
from cadenza.core.errors import ConfigurationError, InputError, NotReadyError
from cadenza.safety.contracts import LambdaDict
from cadenza.safety.geometry import Obstacles, Shape
from cadenza.safety.snapshot import AgentSnapshot

#: Maps an action to another unit, component by component or as a whole; batches included.
ActionMap: TypeAlias = Callable[[NDArray[Any]], NDArray[Any]]

#: Relative difference between an action and its way there and back that is rounding to float32.
_ROUNDING: Final = 1e-5


class ActionPort:
    """Takes the ego's action out of an environment's action, and puts a filtered one back.

    Args:
        space: The environment's action space: a Box, or a Dict with a Box under the ego's id.
        ego_uid: The ego's id.
        action_dim: Components of the control model's action, n.
        c: Half width of the filter's box, in the control model's unit; or its least and largest
            components, shape (n,) each.
        to_control: From the environment's unit to the control model's; None for equal units.
        from_control: The inverse; given together with ``to_control``.

    Raises:
        ConfigurationError: The space does not fit, the environment would clip a filtered action,
            or the maps are no inverses of each other.
    """

    def __init__(
        self,
        space: Space[Any],
        *,
        ego_uid: str,
        action_dim: int,
        c: float | tuple[FloatArray, FloatArray],
        to_control: ActionMap | None = None,
        from_control: ActionMap | None = None,
    ) -> None:
        if (to_control is None) != (from_control is None):
            raise ConfigurationError(
                "SafetyFilterWrapper: expected action_to_control and action_from_control together, "
                "got one of them."
            )
        self._key = ego_uid if isinstance(space, spaces.Dict) else None
        self._box = _ego_box(cast("Space[Any]", space), ego_uid, action_dim)
        self._to: ActionMap = _unchanged if to_control is None else to_control
        self._from: ActionMap = _unchanged if from_control is None else from_control
        if not isinstance(c, tuple):
            c = np.full(self.shape, -c), np.full(self.shape, c)
        for corner in c:
            self._require_room(corner)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the ego's action."""
        return self._box.shape

    def ego_action(self, action: Any) -> NDArray[Any]:
        """Return the ego's part of an environment action, in the environment's unit.

        Raises:
            InputError: The ego has no action, or one of another shape or kind.
        """
        part = action
        if self._key is not None:
            if not isinstance(action, Mapping) or self._key not in action:
                raise InputError(
                    f"SafetyFilterWrapper: expected a mapping with an action of the ego "
                    f"{self._key!r}, got {action!r}."
                )
            part = cast("Mapping[str, Any]", action)[self._key]
        values = real_array("SafetyFilterWrapper: the ego's action", part)
        require_shape("SafetyFilterWrapper: the ego's action", values, self.shape)
        return values

    def nominal(self, ego_action: NDArray[Any]) -> FloatArray:
        """Return an ego action in the control model's unit."""
        return np.asarray(self._to(ego_action), dtype=np.float64)

    def applied(self, control: FloatArray) -> NDArray[Any]:
        """Return a filtered action in the environment's unit and dtype, inside its box."""
        values = np.asarray(self._from(control)).astype(self._box.dtype)
        # Rounding to the box's dtype may step over a bound by one unit in the last place.
        return np.clip(values, self._box.low, self._box.high)

    def put(self, action: Any, ego_action: NDArray[Any]) -> Any:
        """Return the environment's action with the ego's part replaced."""
        if self._key is None:
            return ego_action
        return {**cast("Mapping[str, Any]", action), self._key: ego_action}

    def _require_room(self, corner: FloatArray) -> None:
        """Raise unless the environment executes a corner of the filter's box as it is."""
        values = np.asarray(self._from(corner), dtype=np.float64)
        if values.shape != self.shape:
            raise ConfigurationError(
                f"SafetyFilterWrapper: action_from_control: expected shape {self.shape}, got "
                f"{values.shape}."
            )
        room = _ROUNDING * (1.0 + np.abs(values))
        if bool(((values < self._box.low - room) | (values > self._box.high + room)).any()):
            raise ConfigurationError(
                "SafetyFilterWrapper: expected an action space that holds the filter's whole "
                f"box up to {_components(corner)}, got low {_components(self._box.low)} and high "
                f"{_components(self._box.high)}: the environment would clip a filtered action; "
                "lower the box (Bounds.action_linf_component, or the speeds of the robot's model), "
                "or pass action_to_control and action_from_control if the units differ."
            )
        back = np.asarray(self._to(values), dtype=np.float64)
        if back.shape != self.shape or not np.allclose(back, corner, _ROUNDING, 1e-9):
            raise ConfigurationError(
                "SafetyFilterWrapper: expected action_to_control to undo action_from_control, "
                f"got {_components(back)} back from {_components(corner)}."
            )


def _ego_box(space: Space[Any], ego_uid: str, action_dim: int) -> "spaces.Box[Any]":
    part: Any = space
    if isinstance(part, spaces.Dict):
        part = dict(cast("Mapping[str, Any]", part)).get(ego_uid)
    if not isinstance(part, spaces.Box):
        raise ConfigurationError(
            f"SafetyFilterWrapper: expected a Box of actions, or a Dict with a Box under "
            f"{ego_uid!r}, got {space}; discrete actions cannot be projected."
        )
    box = cast("spaces.Box[Any]", part)
    if box.dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise ConfigurationError(
            f"SafetyFilterWrapper: expected a Box of float32 or float64, got {box.dtype}, which "
            "cannot hold a filtered action."
        )
    if not box.shape or box.shape[-1] != action_dim:
        raise ConfigurationError(
            f"SafetyFilterWrapper: expected {action_dim} action components like the ego's control "
            f"model, got shape {box.shape}."
        )
    return box


def _unchanged(action: NDArray[Any]) -> NDArray[Any]:
    return action


def _components(values: NDArray[Any]) -> str:
    """Return one number where all are equal, one per component where all environments agree."""
    rows = np.atleast_2d(values)
    if (rows == rows[0, 0]).all():
        return f"{rows[0, 0]:g}"
    texts = [f"[{', '.join(f'{number:g}' for number in row)}]" for row in rows]
    return texts[0] if len(set(texts)) == 1 else f"[{', '.join(texts)}]"


#: Returns every agent's snapshot from environment, last observation and last info.
SnapshotSource: TypeAlias = Callable[[Any, Any, dict[str, Any]], dict[str, AgentSnapshot]]
#: Returns the partner's identity, or None if unknown, from the same.
PartnerSource: TypeAlias = Callable[[Any, Any, dict[str, Any]], str | None]
#: Returns measured contact forces per pair, N, from the same.
ForceSource: TypeAlias = Callable[[Any, Any, dict[str, Any]], LambdaDict]
#: Returns the shapes of one step, of a scan for example, from the same.
ObstacleSource: TypeAlias = Callable[[Any, Any, dict[str, Any]], Sequence[Shape] | Obstacles]


class InEpisode:
    """Where the wrapped environment is: what sources of scenes and shapes are called with."""

    env: Any
    _port: ActionPort
    _last: tuple[Any, dict[str, Any]] | None = None

    def _sources(self) -> tuple[Any, Any, dict[str, Any]]:
        """Return environment, last observation and last info.

        Raises:
            NotReadyError: `reset` was never called.
        """
        if self._last is None:
            raise NotReadyError(
                f"{type(self).__name__}.step: expected an episode in progress; call reset()."
            )
        return (self.env, *self._last)


def checked_scene(snapshots: object) -> dict[str, AgentSnapshot]:
    """Return what the source of snapshots gave, if it is a scene at all.

    Raises:
        InputError: It is no mapping.
    """
    if not isinstance(snapshots, Mapping):
        raise InputError(
            "SafetyFilterWrapper: snapshots: expected every agent's snapshot by id, got "
            f"{snapshots!r}."
        )
    return dict(cast("Mapping[str, AgentSnapshot]", snapshots))
