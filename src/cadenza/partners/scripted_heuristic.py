"""A partner that goes straight to one fixed point with a proportional velocity command.

Law:    a_i = clip(gain * (target_i - position_i), -max_speed, max_speed) for x and y, rest 0.
Units:  positions in m, action in the velocity unit of the environment (m/s for MPE).
Limits: plans no path and avoids nobody.
"""

import logging
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import Float32Array, FloatArray
from cadenza.core.errors import ConfigurationError
from cadenza.partners.interface import PartnerBase, PartnerCard, find_position, find_state
from cadenza.partners.options import NumberOption, refuse_unknown_options
from cadenza.partners.registry import register_partner
from cadenza.partners.spec import PartnerSpec

_LOGGER = logging.getLogger(__name__)

_GAIN: Final = NumberOption(
    key="gain", default=1.0, low=0.0, high=1e3, summary="speed per metre of distance, 1/s"
)
_MAX_SPEED: Final = NumberOption(
    key="max_speed", default=1.0, low=0.0, high=1e3, summary="bound on each component, m/s"
)


@register_partner("scripted_heuristic")
class ScriptedHeuristicPartner(PartnerBase):
    """Moves greedily to ``target_xy``.

    The position comes from ``obs["comm"]["pose"][uid]["xyz"]``, else from the first two entries of
    ``obs["agent"][uid]["state"]``, else it is taken as the origin, once with a warning and always
    counted in `fallback_count`. Malformed or non-finite pieces are skipped; ``act`` never raises
    for them. Options: ``uid``, ``target_xy`` "x,y", ``action_dim`` >= 2, ``gain``, ``max_speed``.
    """

    card: ClassVar[PartnerCard | None] = PartnerCard(
        summary="Goes straight to one fixed point (proportional velocity command).",
        tasks=("mpe_cooperative_push",),
        options={
            "uid": "robot it drives",
            "target_xy": "point it goes to, 'x,y' in m (default 0.0,0.0)",
            "action_dim": "length of its action, >= 2 (default 2)",
            "gain": "speed per metre of distance, 1/s (default 1)",
            "max_speed": "bound on each component, m/s (default 1)",
        },
    )

    def __init__(self, spec: PartnerSpec) -> None:
        super().__init__(spec)
        known = ("target_xy", "action_dim", _GAIN.key, _MAX_SPEED.key)
        refuse_unknown_options(type(self).__name__, spec.extra, known)
        self._uid = spec.extra.get("uid", "")
        self._target = _parse_target(spec.extra.get("target_xy", "0.0,0.0"))
        self._action_dim = _parse_action_dim(spec.extra.get("action_dim", "2"))
        self._gain = _GAIN.read(type(self).__name__, spec.extra)
        self._max_speed = _MAX_SPEED.read(type(self).__name__, spec.extra)
        self._fallback_count = 0

    @property
    def fallback_count(self) -> int:
        """How often ``act`` found no position and used the origin."""
        return self._fallback_count

    def reset(self, *, seed: int | None = None) -> None:
        """Do nothing: the action depends on the current observation only."""

    def act(self, obs: Mapping[str, Any], *, deterministic: bool = True) -> Float32Array:
        """Return the command towards the target, (action_dim,), or (N, action_dim) for N rows."""
        del deterministic
        position = self._find_planar_position(obs)
        return self.checked(self._command(position))

    def _find_planar_position(self, obs: Mapping[str, Any]) -> FloatArray:
        """Return x and y, shape (2,) or (N, 2), by the chain comm, state, origin."""
        state = find_state(obs, self._uid)
        pose = _as_rows_of(find_position(obs, self._uid), state)
        for candidate in (pose, state):
            if candidate is not None and candidate.shape[-1] >= 2:
                position = candidate[..., :2].astype(np.float64)
                if math.isfinite(float(position.sum())) or np.isfinite(position).all():
                    return position
        if state is None or state.shape[-1] < 2:
            position = np.zeros((*(() if state is None else state.shape[:-1]), 2))
            self._count_fallbacks(position.size // 2)
            return position
        position = state[..., :2].astype(np.float64)
        known = np.isfinite(position).all(axis=-1, keepdims=True)
        self._count_fallbacks(int(known.size - known.sum()))
        return np.where(known, position, 0.0)

    def _count_fallbacks(self, rows: int) -> None:
        if self._fallback_count == 0:
            _LOGGER.warning(
                "%s: no position of robot %r in the observation; using the origin wherever that "
                "happens, counted in fallback_count.",
                type(self).__name__,
                self._uid,
            )
        self._fallback_count += rows

    def _command(self, position: FloatArray) -> Float32Array:
        action = np.zeros((*position.shape[:-1], self._action_dim), dtype=np.float32)
        wanted = self._gain * (self._target - position)
        action[..., :2] = np.minimum(np.maximum(wanted, -self._max_speed), self._max_speed)
        return action


def _as_rows_of(pose: NDArray[Any] | None, state: NDArray[Any] | None) -> NDArray[Any] | None:
    """Return ``pose`` in the leading shape of ``state``, or None if it cannot serve every row."""
    if pose is None or state is None or pose.shape[:-1] == state.shape[:-1]:
        return pose
    if pose.size == pose.shape[-1] and state.size == state.shape[-1]:  # (d,) against (1, d)
        return pose.reshape(*state.shape[:-1], -1)
    return None


def _parse_target(text: str) -> FloatArray:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if len(values) != 2 or not all(math.isfinite(value) for value in values):
        raise ConfigurationError(
            f"ScriptedHeuristicPartner: option 'target_xy': expected two finite numbers 'x,y', "
            f"got {text!r}."
        )
    return np.array(values)


def _parse_action_dim(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 2:
        raise ConfigurationError(
            f"ScriptedHeuristicPartner: option 'action_dim': expected an integer >= 2, "
            f"got {text!r}."
        )
    return value
