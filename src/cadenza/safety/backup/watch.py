"""Tells, once, of motion that contradicts what was measured or declared.

Own:     the mean of the velocities before and after a step times dt is the way of the step, within
             |v' - v| dt + 2 delta + sigma dt + `SLACK_M` + `SHARE` |way|,
         and the same holds for heading and yaw rate, the angle wrapped. `STEPS` contradictions in
         a row, of one robot, are told: a wrong control step or a wrong unit is in all of them, a
         lost packet in one or two. Steps in which no number changed say nothing.
Others:  a partner that is measured to be faster than declared.
Limits:  a control step that is wrong by less than `SHARE`, a robot slower than `SLACK_M` per step,
         and one that does not follow its commands as declared are not seen.
Axes:    a state has 2 d + 2 rows: position, velocity, heading, yaw rate; each is a number, or an
         array of N environments.
Units:   m, m/s, rad, rad/s, s.
"""

import logging
import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.safety.backup.base import BaseSettings, fastest_seen
from cadenza.safety.control_models import PartnerBound, UnicycleModel, VelocityModel

_log = logging.getLogger(__name__)

#: Contradictions in a row that are told.
STEPS: Final = 3
#: Share of the way, or of the turn, that slip, rounding and steps of uneven length may explain.
SHARE: Final = 0.3
#: What undeclared errors of a good localization explain in one step, m and rad.
SLACK_M: Final = 3e-3
SLACK_RAD: Final = 0.02


def contradiction(
    before: Sequence[Any], now: Sequence[Any], dim: int, dt: float, slack: float
) -> tuple[Any, Any]:
    """Return whether a step contradicts the velocities around it, and how much anything changed.

    States are ``dim`` places and then their velocities; ``slack`` is in the unit of the places.
    """
    way = missed = change = 0.0
    for k in range(dim):
        u, v, step = before[dim + k], now[dim + k], now[k] - before[k]
        off, gained = step - 0.5 * (u + v) * dt, v - u
        way, missed, change = way + step * step, missed + off * off, change + gained * gained
    return missed**0.5 > change**0.5 * dt + slack + SHARE * way**0.5, way + change


class MotionCheck:
    """Watches one robot, or that of every environment; not part of what a filter saves."""

    def __init__(self, robot: VelocityModel | UnicycleModel, settings: BaseSettings) -> None:
        self._robot, self._settings, self._dt = robot, settings, settings.dt
        self._slack = SLACK_M + 2.0 * settings.position_error_m + settings.velocity_error * self._dt
        self._turns, self._dim = isinstance(robot, UnicycleModel), robot.position_dim
        if isinstance(robot, UnicycleModel):
            self._ideal = robot.is_ideal
            if robot.max_yaw_rate * self._dt > 3.0:  # half a turn: nobody knows which way
                self._slack, self._turns = math.inf, False
        else:
            self._ideal = robot.limit == "none" and robot.lag_s is None
            if robot.delay_s and not self._ideal:
                # A command that begins to act within a step may swing the velocity out and back.
                lag_s, top = robot.lag_s, 2.0 * robot.max_speed
                rate = top / lag_s if lag_s else robot.max_accel * math.sqrt(robot.dim)
                self._slack += 0.25 * min(rate * self._dt, top) * self._dt
        self.forget()
        self._told: set[str] = set()

    def forget(self, rows: list[int] | None = None) -> None:
        """Compare the next state with none, of some environments or of all."""
        if rows is None:
            self._before: Any = None
            self._streak: Any = 0
        elif self._before is not None:
            self._before[:, rows] = math.nan  # contradicts nothing

    def look(self, now: Any) -> None:
        """Take in the state of a step, (2 d + 2,) or (2 d + 2, N); later calls compare with it."""
        before, self._before = self._before, now
        if before is None or self._robot.uid in self._told:
            return
        bad, changed = contradiction(before, now, self._dim, self._dt, self._slack)
        if self._ideal:  # follows at once, so that nobody needs its velocity: 0 may stand for it
            bad = bad & (sum(map(abs, before[self._dim : -2])) > 0.0)
        if self._turns:
            turn = (now[-2] - before[-2] + math.pi) % (2.0 * math.pi) - math.pi
            rates = (0.0, before[-1]), (turn, now[-1])
            spins, turned = contradiction(*rates, 1, self._dt, SLACK_RAD)
            if self._ideal:
                spins = spins & (abs(before[-1]) > 0.0)
            bad, changed = bad | spins, changed + turned
        moved = changed != 0.0
        self._streak = streak = self._streak * (1 - moved) + (self._streak + 1) * (bad & moved)
        if (streak if isinstance(streak, int) else streak.max()) >= STEPS:
            self._told.add(self._robot.uid)
            worst = int(np.argmax(streak))
            self._tell(*(np.reshape(np.array(x).T, (-1, len(x)))[worst] for x in (before, now)))

    def _tell(self, before: FloatArray, now: FloatArray) -> None:
        """Log what moved how, in states of shape (2 d + 2,)."""
        dim, moved, mean = self._dim, now - before, 0.5 * (before + now)
        place, speed = (np.round(x, 3).tolist() for x in (moved[:dim], mean[dim:-2]))
        _log.warning(
            "safety: %r moved by %s m and turned by %.3g rad in a step of %g s, measured at %s m/s "
            "and %.3g rad/s. Check control_timestep, the units (rad, m/s, rad/s) and "
            "position_error_m: nothing is promised where one of them is wrong.",
            *(self._robot.uid, place, moved[-2], self._dt, speed, mean[-1]),
        )

    def tell_faster(self, bounds: Sequence[PartnerBound], velocities: Any) -> None:
        """Log which partners of velocities (..., J, d) are faster than declared, each once."""
        speeds = np.linalg.norm(velocities, axis=-1).reshape(-1, len(bounds)).max(axis=0)
        for bound, speed in zip(bounds, speeds.tolist(), strict=True):
            limit = fastest_seen(bound.max_speed, self._settings.velocity_error)
            if speed > limit and bound.uid not in self._told:
                self._told.add(bound.uid)
                _log.warning(
                    "safety: %r moved at %g m/s, declared %g. Such steps are uncertified; "
                    "declare what partners can really do.",
                    *(bound.uid, speed, bound.max_speed),
                )
