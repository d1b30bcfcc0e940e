"""The last stage of a step: what was chosen is executed if the ego can stop after it.

Else the next best action takes its place, in the order of `cadenza.safety.backup.filter.choose`,
with the rows of the step's partners: no obstacle is touched whatever partners do, and partners are
promised what rows can promise beside walls. Theorems A and A2 in docs/safety.md.

Clearance: the ego's radius, ``margin_m`` and, where errors are stated, ``position_error``.
Units:     m, m/s, m/s^2, s.
"""

import math
from collections.abc import Iterable

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import ConfigurationError, InputError, refuse
from cadenza.safety.backup.acceleration import AccelerationBase, PartnerRow
from cadenza.safety.backup.base import BaseSettings, Scene
from cadenza.safety.backup.filter import choose
from cadenza.safety.contracts import AgentControlModel, Bounds, FilterInfo
from cadenza.safety.control_models import DoubleIntegratorControlModel
from cadenza.safety.filter_options import EgoOnlyOptions
from cadenza.safety.filters.ego_rows import EgoRows
from cadenza.safety.filters.projection import Box, clipped, residual
from cadenza.safety.geometry import Obstacles, Shape
from cadenza.safety.runtime.options import SafetyOptions
from cadenza.safety.snapshot import AgentSnapshot
from cadenza.safety.solvers import ROUNDING, make_solver


class ObstacleGuard:
    """Keeps one ego clear of obstacles, whatever was chosen for it.

    Args:
        model: The ego's; its action is its acceleration.
        bounds: Envelope of the task.
        dt: Control step, s.
        options: Obstacles that are always there, and what was configured besides.

    Raises:
        ConfigurationError: The ego's action is not its acceleration, shapes are of another
            dimension, the rate limit may not give way, the row is shared, or the solver takes too
            few rows.
    """

    def __init__(
        self,
        model: AgentControlModel,
        bounds: Bounds,
        dt: float,
        options: SafetyOptions,
    ) -> None:
        name = "SafetyRuntime.obstacles"
        if not isinstance(model, DoubleIntegratorControlModel):
            expected = "an ego whose action is its acceleration"
            do = "a base that takes velocities has `cadenza.safety.backup.BackupFilter`"
            refuse(ConfigurationError, name, expected=expected, got=type(model).__name__, do=do)
        if options.rate_limit == "hard":
            expected, got = "rate_limit 'off' or 'soft'", "'hard', which may forbid to stop"
            refuse(ConfigurationError, name, expected=expected, got=got)
        if options.budget_split is not None:
            expected = "no budget_split: a wall may keep a partner from taking its part"
            refuse(ConfigurationError, name, expected=expected, got=options.budget_split)
        if options.solver == "closed_form":
            expected = "a solver that takes many rows, such as 'daqp'"
            refuse(ConfigurationError, name, expected=expected, got="'closed_form'")
        self._dim = model.action_dim
        limit = bounds.action_linf_component
        credit = min(limit, model.max_cartesian_accel(bounds))
        settings = BaseSettings(dt=dt, passive=False)
        solver = make_solver(options.solver)
        self._base = AccelerationBase(limit, credit, settings, solver=solver)
        self._kept_m = options.margin_m + options.position_error
        self._radial = EgoOnlyOptions(**options.filter_options()).brakes_radially
        #: Those that are always there.
        self.lasting: Obstacles = Obstacles(options.obstacles)
        if self.lasting.dim not in (None, self._dim):
            expected, got = f"{self._dim}-D shapes", f"{self.lasting.dim}-D"
            refuse(ConfigurationError, name, expected=expected, got=got)

    def around(self, given: Iterable[Shape] | Obstacles) -> Obstacles:
        """Return the lasting obstacles and those of one step.

        Raises:
            InputError: One is no shape, or of another dimension than the ego's.
        """
        found = self.lasting.joined(given)
        if found.dim not in (None, self._dim):
            refuse(InputError, "obstacles", expected=f"{self._dim}-D shapes", got=f"{found.dim}-D")
        return found

    def keep_clear(
        self,
        action: FloatArray,
        info: FilterInfo,
        nominal: list[float],
        ego: AgentSnapshot,
        rows: EgoRows,
        obstacles: Obstacles,
        narrow: Box | None,
    ) -> FloatArray:
        """Return the action to execute, ``action`` itself if it is clear, and fill its record in.

        Args:
            action: What filter and braking layer chose, shape (A,), m/s^2.
            info: Its record; changed here.
            nominal: What the policy wants, m/s^2.
            ego: The ego as it is now.
            rows: Rows of its partners, before lambda.
            obstacles: What stands around.
            narrow: Actions that a soft rate limit leaves, which are searched first; None for all.
        """
        base, kept_m = self._base, ego.radius + self._kept_m
        levels = [b + used for b, used in zip(rows.level, info["lambda"].values(), strict=True)]
        partners = [
            PartnerRow(tuple([-a for a in rows.a[j]]), levels[j], True, self._radial)
            for j in sorted(range(len(levels)), key=rows.margin.__getitem__)
        ]
        motion = (ego.position_numbers, ego.velocity_numbers)
        base.look(Scene(*motion, 0.0, 0.0, (), obstacles, kept_m), partners, rows.passive)
        info["static_margin"] = base.static_excess
        if base.static_clear(tuple(action.tolist())):
            info["static_uncertified"] = base.too_close()
            info["backup"] = _source(info)
            return action
        wish = nominal if narrow is None else clipped(nominal, *narrow)
        found, info["backup"], plan, info["static_uncertified"] = choose(base, tuple(wish), None)
        missed = [
            max(0.0, residual(row, b, list(found))) for row, b in zip(rows.a, levels, strict=True)
        ]
        info["slack"] = np.array(missed)
        info["uncertified"] = info["uncertified"] or plan is None
        info["fallback_fired"] = False
        info["intervention"] = math.dist(found, nominal)
        if any(m > ROUNDING * (1.0 + abs(b)) for m, b in zip(missed, levels, strict=True)):
            info["status"] = "infeasible"
        else:
            info["status"] = "inactive" if info["intervention"] == 0.0 else "optimal"
        return np.array(found)


def _source(info: FilterInfo) -> str:
    """Return where an action came from that obstacles did not change."""
    if info["fallback_fired"]:
        return "brake"
    return "none" if info["intervention"] == 0.0 else "rows"
