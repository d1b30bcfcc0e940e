"""The operational-space filter around the ego's arm in the tasks of two arms.

Before every tick `VelocityOSCBF` changes the steps that the task asks of the ego's joints as little
as possible so that

    gap of every pair (own link, link of the other arm) >= MARGIN
    gap of every own link to the floor                  >= MARGIN
    gap of every pair of own links                      >= 0
    joints within their limits

each approached no faster than `h' >= -GAIN h`. Where no such step exists the arm brakes. What the
two arms hold is no obstacle: they are meant to touch it, and it keeps their hands apart.

An arm does not follow its command: its joints move by `RESPONSE` times the step, and by load and
momentum, w = q' - RESPONSE * last step. A row with gradient g counts w where it goes the wrong way:
h' = g RESPONSE step + min(g w, 0) + what the obstacle does. A step that pulls a loaded arm back may
so be larger than any that the task asks for; the motors' torque limits it.

Axes:    N = copies, 7 = joints of an arm.
Units:   m, rad, s.
Limits:  the proof is that of a plant which does what the last line says (docs/oscbf.md); w is that
         of the tick before, and the margin is for the difference. Links are covered by balls up to
         a tenth thicker than the capsules, and gaps are those of the balls.
"""

from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray
from cadenza.envs.mujoco.panda import JOINTS, arm_body
from cadenza.envs.mujoco.simulations import Simulations
from cadenza.safety.arms import MujocoArm
from cadenza.safety.arms.arm import ArmState
from cadenza.safety.geometry import HalfSpace
from cadenza.safety.oscbf import (
    ArmConstraints,
    HalfSpaceRule,
    Obstacle,
    ObstacleRule,
    SelfCollisionRule,
    VelocityOSCBF,
)
from cadenza.safety.oscbf.rules import BarrierRows, Priority

#: ``"off"``; ``"watch"``: contacts are reported; ``"on"``: and prevented.
Guarding = Literal["off", "watch", "on"]
#: Gap that is kept from the other arm and the floor, m.
MARGIN: Final = 0.01
#: Share of a gap that one second of approach may take, 1/s.
GAIN: Final = 5.0
#: Speed of an unloaded joint over its commanded step, 1/s: measured at `STIFFNESS_SCALE`.
RESPONSE: Final = 4.85
#: Links whose balls overlap in every pose.
_ALWAYS_NEAR: Final = (("ego_link5", "ego_link7"),)


def arm_state(simulations: Simulations, robot: int) -> FloatArray:
    """Return joint angles and rates of robot 0 or 1, (N, 14)."""
    own = slice(robot * JOINTS, (robot + 1) * JOINTS)
    return np.concatenate((simulations.qpos[:, own], simulations.qvel[:, own]), axis=1)


class ArmGuard:
    """Filter of the ego's arm in N copies, and what it tells of every tick.

    Args:
        base_x: Distance of the bases from the middle, m.
        dt: Tick, s.
        copies: N.
        active: Whether steps are changed; else contacts are only reported.
        growth: By how much the other arm's links grow because it is seen late, m.
    """

    def __init__(
        self, *, base_x: float, dt: float, copies: int, active: bool, growth: float = 0.0
    ) -> None:
        self._arms = tuple(
            MujocoArm(
                '<mujoco><compiler angle="radian"/><worldbody>'
                + arm_body(name, x, faces_back=name == "partner", color="0 0 0 1")
                + "</worldbody></mujoco>",
                f"{name}_grip",
                exclude=_ALWAYS_NEAR if name == "ego" else (),
            )
            for name, x in (("ego", -base_x), ("partner", base_x))
        )
        self._dt, self._active, self._growth = dt, active, growth
        near = Priority(gain=GAIN)
        floor = HalfSpace(np.array([0.0, 0.0, 1.0]), MARGIN)
        self._filter = VelocityOSCBF(
            self._arms[0],
            dt=dt,
            constraints=ArmConstraints(
                obstacles=ObstacleRule(margin_m=MARGIN, priority=near),
                half_spaces=(HalfSpaceRule(name="floor", solid=floor, priority=near),),
                self_collision=SelfCollisionRule(priority=near),
                joint_gain=GAIN,
            ),
        )
        self._last = np.zeros((copies, JOINTS))
        self._changed: NDArray[np.bool_] = np.zeros(copies, dtype=np.bool_)
        self._certified: NDArray[np.bool_] = np.zeros(copies, dtype=np.bool_)

    @property
    def last_steps(self) -> FloatArray:
        """The last steps of the ego's joints, (N, 7), rad; may be written."""
        return self._last

    def restart(self, rows: NDArray[np.int64]) -> None:
        """Forget the last steps of the copies ``rows``, which begin an episode at rest."""
        self._last[rows] = 0.0

    def step(self, own: FloatArray, other: FloatArray, moves: FloatArray) -> FloatArray:
        """Return the steps to take, (N, 7), rad: where nothing is near, ``moves`` bit for bit.

        ``own`` are joint angles and rates of the ego, (N, 14), ``other`` those of the other arm as
        the ego sees it, ``moves`` the steps that the task asks for.
        """
        moves = moves.copy()
        if not self._active:
            return moves
        for row in range(len(moves)):
            nominal = RESPONSE * moves[row]
            state = self._state(0, own[row])
            rows = self._filter.rows(state, self._obstacles(self._state(1, other[row])))
            load = rows.gradient @ (state.q_dot - RESPONSE * self._last[row])
            loaded = BarrierRows(
                gradient=rows.gradient,
                h=rows.h,
                drift=rows.drift + np.minimum(load, 0.0),
                bias=rows.bias,
                priorities=rows.priorities,
                names=rows.names,
            )
            result = self._filter.solve(state, q_dot_nom=nominal, rows=loaded)
            self._certified[row] = result.certified
            self._changed[row] = not np.array_equal(result.q_dot, nominal)
            if self._changed[row]:
                moves[row] = result.q_dot / RESPONSE
        self._last[:] = moves
        return moves

    def report(self, own: FloatArray, other: FloatArray) -> dict[str, NDArray[Any]]:
        """Return what a tick's info tells, (N,) each, from the joints at its end, (N, 14).

        ``arm_gap`` is the smallest gap of an own link to the other arm or the floor, m, and
        ``contact`` whether it is negative; an active guard also tells whether it changed the step
        (``guard_changed``), and whether the step met every row and ended without a contact
        (``guard_certified``).
        """
        rows = range(len(own))
        gap = np.array([self._gap(self._state(0, own[k]), self._state(1, other[k])) for k in rows])
        told: dict[str, NDArray[Any]] = {"arm_gap": gap, "contact": gap < 0.0}
        if self._active:
            told["guard_changed"] = self._changed.copy()
            told["guard_certified"] = self._certified & (gap >= 0.0)
        return told

    def _state(self, arm: int, joints: FloatArray) -> ArmState:
        return self._arms[arm].state(joints[:JOINTS], joints[JOINTS:])

    def _gap(self, own: ArmState, other: ArmState) -> float:
        radii, radii_there = (arm.sphere_radii for arm in self._arms)
        ways = own.sphere_centers[:, None] - other.sphere_centers
        between = np.linalg.norm(ways, axis=2) - radii[:, None] - radii_there
        moving = self._arms[0].movable_spheres
        above = own.sphere_centers[:, 2] - radii
        return float(min(between[moving].min(), above[moving].min()))

    def _obstacles(self, other: ArmState) -> list[Obstacle]:
        arm = self._arms[1]
        return [
            Obstacle.ball(link, center, float(radius) + self._growth, velocity=velocity)
            for link, center, radius, velocity in zip(
                arm.sphere_links,
                other.sphere_centers,
                arm.sphere_radii,
                other.sphere_velocities,
                strict=True,
            )
        ]
