"""Partners that look at nobody: random, constant, still, or swaying their arm.

The first two play any task, within the action space they are bound to; unbound, as when partners
are listed, they act within [−1, 1] with two components. Partners that do nothing are the ablation
that tells whether a partner matters at all.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np

from cadenza.core.arrays import Float32Array, FloatArray
from cadenza.core.checks import is_scalable
from cadenza.core.errors import InputError
from cadenza.core.seeding import derive_substream
from cadenza.partners.interface import (
    DrawingPartner,
    FrozenPartner,
    PartnerBase,
    PartnerCard,
    find_state,
    read_state,
)
from cadenza.partners.options import (
    FamilyPartner,
    NumberOption,
    refuse_unknown_options,
    whole_option,
)
from cadenza.partners.registry import register_partner
from cadenza.partners.spec import PartnerSpec

_VALUE: Final = NumberOption(
    key="value", default=0.0, low=-1e6, high=1e6, low_excluded=False,
    summary="every component of its action, or the number of its choice",
)  # fmt: skip
#: Components of an action while no space is bound.
_UNBOUND: Final = 2


class _AnyTaskPartner(PartnerBase):
    """Base: keeps the uid, whose state only tells how many environments there are."""

    def __init__(self, spec: PartnerSpec, known: tuple[str, ...] = ()) -> None:
        super().__init__(spec)
        refuse_unknown_options(type(self).__name__, spec.extra, known)
        self._uid = spec.extra.get("uid", "partner")

    def _bounds(self) -> tuple[Float32Array, Float32Array]:
        if self._low is None or self._high is None:
            return -np.ones(_UNBOUND, np.float32), np.ones(_UNBOUND, np.float32)
        return self._low, self._high


@register_partner("random_actions")
class RandomActions(_AnyTaskPartner, DrawingPartner):
    """Acts uniformly at random within its bounds, anew in every step."""

    card: ClassVar[PartnerCard | None] = PartnerCard(
        summary="Acts uniformly at random.", options={"uid": "seat it plays (default partner)"}
    )

    def act(self, obs: Mapping[str, Any], *, deterministic: bool = True) -> Float32Array:
        """Return a uniform draw, (A,), or (N, A) for a batch of states.

        Raises:
            InputError: The bound space is not bounded.
        """
        del deterministic  # it has no preferred action
        low, high = self._bounds()
        if not is_scalable(low, high):
            raise InputError(
                f"random_actions: expected finite action bounds, got {low} and {high}; choose "
                "another partner or bound the environment's actions."
            )
        ahead, rows = read_state(obs, self._uid).shape[:-1], self.generators
        drawn = np.array([rows[row].random(len(low)) for row in range(int(np.prod(ahead)))])
        share = drawn.reshape(*ahead, len(low))
        if self.chooses:
            action = np.floor(low + share * (high - low + 1.0))
        else:
            action = low + share * (high - low)
        return self.checked(action.astype(np.float32))


@register_partner("constant_action")
class ConstantAction(_AnyTaskPartner):
    """Does the same in every step; what clips its action is its bounds."""

    card: ClassVar[PartnerCard | None] = PartnerCard(
        summary="Does the same in every step, by default as little as it can.",
        options={"uid": "seat it plays (default partner)", _VALUE.key: _VALUE.summary},
    )

    def __init__(self, spec: PartnerSpec) -> None:
        super().__init__(spec, (_VALUE.key,))
        self._value = _VALUE.read("ConstantAction", spec.extra)

    def reset(self, *, seed: int | None = None) -> None:
        """Nothing to forget."""
        del seed

    def act(self, obs: Mapping[str, Any], *, deterministic: bool = True) -> Float32Array:
        """Return the action, (A,), or (N, A) for a batch of states."""
        del deterministic
        ahead, size = read_state(obs, self._uid).shape[:-1], len(self._bounds()[0])
        return self.checked(np.full((*ahead, size), self._value, dtype=np.float32))


@register_partner("partner_ablated_zero")
class PartnerAblatedZero(PartnerBase):
    """Always acts with zeros.

    Raises:
        ConfigurationError: The option ``action_dim`` is missing or no integer >= 1.
    """

    card: ClassVar[PartnerCard | None] = PartnerCard(
        summary="Always acts with zeros (ablation).",
        options={"uid": "robot it drives", "action_dim": "length of its action, >= 1"},
    )

    def __init__(self, spec: PartnerSpec) -> None:
        super().__init__(spec)
        refuse_unknown_options(type(self).__name__, spec.extra, ("action_dim",))
        self._uid = spec.extra.get("uid", "")
        given = {"action_dim": "", **spec.extra}
        self._action_dim = whole_option("PartnerAblatedZero", given, "action_dim", low=1) or 0

    def reset(self, *, seed: int | None = None) -> None:
        """Do nothing: no episode differs from another."""

    def act(self, obs: Mapping[str, Any], *, deterministic: bool = True) -> Float32Array:
        """Return zeros, (action_dim,), or (N, action_dim) for N states.

        Args:
            obs: Only the number of rows is read.
            deterministic: Without effect: there is nothing to draw.
        """
        del deterministic
        state = find_state(obs, self._uid)
        rows = () if state is None else state.shape[:-1]
        return self.checked(np.zeros((*rows, self._action_dim), dtype=np.float32))


class ExploratoryStaticPartnerOverride(PartnerBase):
    """Stands in for another partner under its identity, and does nothing.

    For exploring only: results with it say nothing about the partner whose spec it carries, so the
    class has no registered name and no configuration can ask for it.
    """

    def __init__(self, inner: FrozenPartner) -> None:
        super().__init__(inner.spec)
        self._inner = inner

    def reset(self, *, seed: int | None = None) -> None:
        """Reset the partner it stands in for."""
        self._inner.reset(seed=seed)

    def reset_row(self, row: int, *, seed: int) -> None:
        """Restart a row of the partner it stands in for."""
        if isinstance(self._inner, PartnerBase):
            self._inner.reset_row(row, seed=seed)

    def act(self, obs: Mapping[str, Any], *, deterministic: bool = True) -> Float32Array:
        """Return zeros in the shape of the other partner's action."""
        action = self._inner.act(obs, deterministic=deterministic)
        return self.checked(np.zeros(action.shape, dtype=np.float32))


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
class ArmSwayPartner(FamilyPartner):
    """Sways its arm slowly and looks at nobody.

    Law:    a_j = amplitude min(1, n / 20) sin(2 pi n / period + phase_j) for the seven arm joints
            j, n steps after the reset; every other entry 0. The ramp starts the swing without a
            jerk.
    Units:  the action's own; for an arm that takes joint steps of 0.1 rad per unit, the default
            moves each joint by less than 0.05 rad.
    Phases: drawn from the seed of the spec, so partners of different seeds differ.
    """

    tasks: ClassVar[tuple[str, ...]] = ("stage1_pickplace", "stage0_smoke")
    number_options: ClassVar[tuple[NumberOption, ...]] = (_AMPLITUDE, _PERIOD, _ACTION_DIM)

    def __init__(self, spec: PartnerSpec) -> None:
        super().__init__(spec)
        self._amplitude, self._period = (self._options[o.key] for o in (_AMPLITUDE, _PERIOD))
        self._action_dim = int(self._options[_ACTION_DIM.key])
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
