"""A partner that moves its arm to and fro, slowly, whoever is beside it.

Law:    a_j = amplitude min(1, n / 20) sin(2 pi n / period + phase_j) for the seven arm joints j, n
        steps after the reset; every other entry 0. The ramp starts the swing without a jerk.
Units:  the action's own; for an arm that takes joint steps of 0.1 rad per unit, the default moves
        each joint by less than 0.05 rad.
Limits: looks at nothing and avoids nobody.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np

from cadenza.core.arrays import Float32Array, FloatArray
from cadenza.core.seeding import derive_substream
from cadenza.partners.interface import PartnerBase, PartnerCard
from cadenza.partners.observations import find_state
from cadenza.partners.options import NumberOption, refuse_unknown_options
from cadenza.partners.registry import register_partner
from cadenza.partners.spec import PartnerSpec

#: Steps until the swing has its full size.
RAMP_STEPS: Final = 20
#: Joints that move: the first entries of the action of an arm.
ARM_JOINTS: Final = 7

_AMPLITUDE: Final = NumberOption(
    key="amplitude", default=0.1, low=0.0, high=1.0, low_excluded=False,
    summary="largest action of a joint; 0 stands still",
)  # fmt: skip
_PERIOD: Final = NumberOption(
    key="period", default=80.0, low=4.0, high=1e4, low_excluded=False,
    summary="control steps of one swing to and fro",
)  # fmt: skip
_ACTION_DIM: Final = NumberOption(
    key="action_dim", default=8.0, low=1.0, high=64.0, low_excluded=False,
    summary="length of its action until it is bound to an environment",
)  # fmt: skip


@register_partner("arm_sway")
class ArmSwayPartner(PartnerBase):
    """Sways its arm; partners of different seeds move their joints in different phases.

    Raises:
        ConfigurationError: An option is unknown or out of range.
    """

    card: ClassVar[PartnerCard | None] = PartnerCard(
        summary="Sways its arm slowly and looks at nobody.",
        tasks=("stage1_pickplace", "stage0_smoke"),
        options={
            "uid": "robot it drives",
            **{o.key: f"{o.summary} (default {o.default:g})" for o in (_AMPLITUDE, _PERIOD)},
            _ACTION_DIM.key: f"{_ACTION_DIM.summary} (default {_ACTION_DIM.default:g})",
        },
    )

    def __init__(self, spec: PartnerSpec) -> None:
        super().__init__(spec)
        owner = type(self).__name__
        refuse_unknown_options(owner, spec.extra, [_AMPLITUDE.key, _PERIOD.key, _ACTION_DIM.key])
        self._uid = spec.extra.get("uid", "partner")
        self._amplitude = _AMPLITUDE.read(owner, spec.extra)
        self._period = _PERIOD.read(owner, spec.extra)
        self._action_dim = int(_ACTION_DIM.read(owner, spec.extra))
        rng = derive_substream("partner.arm_sway.phases", root_seed=spec.seed).default_rng()
        self._phases: FloatArray = rng.uniform(0.0, 2.0 * math.pi, ARM_JOINTS)
        self._steps: FloatArray = np.zeros(1)

    def reset(self, *, seed: int | None = None) -> None:
        """Begin the swing anew; it is the same in every episode."""
        del seed
        self._steps = np.zeros(1)

    def reset_row(self, row: int, *, seed: int) -> None:
        """Begin the swing anew in one row of a batch."""
        del seed
        self._grow(row + 1)
        self._steps[row] = 0.0

    def act(self, obs: Mapping[str, Any], *, deterministic: bool = True) -> Float32Array:
        """Return the next action of the swing.

        Args:
            obs: Nested observation; only the number of rows of the robot's own state is read.
            deterministic: Without effect: nothing is drawn.

        Returns:
            Action, shape (A,), or (N, A) for a state of shape (N, D).
        """
        del deterministic
        state = find_state(obs, self._uid)
        rows = None if state is None or state.ndim == 1 else len(state)
        self._grow(rows or 1)
        steps = self._steps[: rows or 1]
        dim = self._action_dim if self._low is None else len(self._low)
        joints = min(ARM_JOINTS, dim)
        angle = 2.0 * math.pi / self._period * steps[:, None] + self._phases[:joints]
        action = np.zeros((len(steps), dim), dtype=np.float32)
        size = self._amplitude * np.minimum(1.0, steps[:, None] / RAMP_STEPS)
        action[:, :joints] = size * np.sin(angle)
        steps += 1.0
        return self.checked(action[0] if rows is None else action)

    def _grow(self, rows: int) -> None:
        if len(self._steps) < rows:
            self._steps = np.append(self._steps, np.zeros(rows - len(self._steps)))
