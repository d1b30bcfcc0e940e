"""Filter of a control-affine robot: the action nearest to the nominal one that keeps every barrier.

Problem:   min |u - u_nominal|^2  s.t.  L_g psi_j u + level_j >= margin_j (all j),  u in the box
Promise:   1. u is in the box, always;
           2. u is the nominal action, bit for bit, if that is in the box and meets every row;
           3. where every row can be met, it is, to 1e-9 relative;
           4. where not, u is that of the fallback, never the nominal one.
Certified: in the guaranteed set (every psi_k >= 0) with every row met, h stays >= 0 in continuous
           time; for a held action only with `SampledData` and a true bound of the rates.
Axes:      n = state, k = action, m = barriers, B = batch.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from cadenza.core.arrays import FloatArray, require_finite, require_shape
from cadenza.core.checks import real_array
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety.affine.barriers import Barrier
from cadenza.safety.affine.batch import filter_states
from cadenza.safety.affine.box import Box, parse_box
from cadenza.safety.affine.disturbances import Disturbance
from cadenza.safety.affine.dynamics import ControlAffineDynamics, generic_states
from cadenza.safety.affine.fallbacks import (
    FALLBACKS,
    FallbackRequest,
    rest_action,
    run_fallback,
)
from cadenza.safety.affine.info import AffineBatchInfo, AffineInfo
from cadenza.safety.affine.lifting import (
    DEFAULT_MAX_DEGREE,
    AffineRow,
    LiftedBarrier,
    lift,
)
from cadenza.safety.affine.rows import missed, scaled, stacked_rows, traced
from cadenza.safety.affine.sampling import SampledData
from cadenza.safety.filters.projection import RowSet, project
from cadenza.safety.solvers import QPSolver, SolveStatus, as_solver

#: Time left of every row: the order of urgency comes from how far the rows are missed.
_NO_DEADLINE: Final = float("inf")


class AffineCBFFilter:
    """Safety filter for x' = f(x) + g(x) u with barriers lifted by autodiff.

    The functions of robot and barriers are recorded once, at construction: they must not depend on
    anything that changes later. What changes belongs into the state.

    Args:
        dynamics: The robot.
        barriers: What must stay >= 0; names must differ.
        box: Bounds of the action; None for none.
        disturbances: What else moves the robot; each costs every row its worst case.
        sampled_data: Margin for an action held for a control step; None promises nothing between
            samples.
        fallback: Name in `FALLBACKS` of what a step without a solution does.
        solver: Solves what one row cannot; None takes DAQP.
        max_degree: Largest relative degree that is tried.
        samples: States at which the degree is decided, shape (M, n), see `lift`.
        min_share: See `lift`.

    Raises:
        ConfigurationError: No barrier, two of one name, a barrier `lift` refuses, a malformed box,
            rates of other barriers, or "brake" for a robot without `brake`.
        UnknownNameError: No such fallback.
    """

    def __init__(
        self,
        dynamics: ControlAffineDynamics,
        barriers: Sequence[Barrier],
        *,
        box: Box = None,
        disturbances: Sequence[Disturbance] = (),
        sampled_data: SampledData | None = None,
        fallback: str = "least_violation",
        solver: QPSolver | None = None,
        max_degree: int = DEFAULT_MAX_DEGREE,
        samples: Tensor | None = None,
        min_share: float = 1.0,
    ) -> None:
        self._names = tuple(barrier.name for barrier in barriers)
        if not self._names or len(set(self._names)) < len(self._names):
            raise ConfigurationError(
                "AffineCBFFilter: expected at least one barrier and different names, got "
                f"{list(self._names)}."
            )
        self._dynamics = dynamics
        self._lifted = tuple(
            lift(
                barrier,
                dynamics,
                max_degree,
                samples=samples,
                disturbances=disturbances,
                min_share=min_share,
            )
            for barrier in barriers
        )
        self._lower, self._upper = parse_box(box, dynamics.action_dim)
        self._fallback_name = fallback
        self._fallback = FALLBACKS.get(fallback, dynamics)
        self._solver = as_solver(solver)
        margins = sampled_data.margins(self._names) if sampled_data else [0.0] * len(self._names)
        self._margins = torch.tensor(margins, dtype=torch.float64)
        self._weights = torch.tensor([b.weight for b in barriers], dtype=torch.float64)
        self._rows = stacked_rows(self._lifted)
        example = generic_states(dynamics.state_dim, 1)[0] if samples is None else samples[0]
        self._traced_rows = traced(self._rows, example.clone())

    @property
    def lifted(self) -> tuple[LiftedBarrier, ...]:
        """The barriers with their relative degrees and rows."""
        return self._lifted

    def filter(self, x: FloatArray, u_nominal: FloatArray) -> tuple[FloatArray, AffineInfo]:
        """Return the safe action, shape (k,), and what happened.

        Args:
            x: State, shape (n,).
            u_nominal: Proposed action, shape (k,).

        Raises:
            InputError: Wrong shape, no real numbers, NaN or infinity; or a fallback of the user's
                returned something else than k finite numbers.
        """
        state = _checked("x", x, self._dynamics.state_dim)
        nominal = _checked("u_nominal", u_nominal, self._dynamics.action_dim)
        x_tensor = torch.as_tensor(state)
        row = self._with_margin(self._traced_rows(x_tensor))
        parts = scaled(row, self._weights)
        lost = tuple(
            name
            for name, gone in zip(self._names, parts.lost.numpy().tolist(), strict=True)
            if gone
        )
        reference = rest_action(self._dynamics, x_tensor).numpy() if lost else nominal
        on = parts.active
        rows = self._row_set(parts.a[on].numpy().tolist(), parts.b[on].numpy().tolist(), reference)
        numbers, solved = project(
            reference.tolist(), rows, self._lower.tolist(), self._upper.tolist(), self._solver
        )
        if not lost and solved is SolveStatus.OPTIMAL and numbers == nominal.tolist():
            return nominal, self._info(row, nominal, nominal, "inactive", lost)
        if not lost and solved is SolveStatus.OPTIMAL:
            return np.array(numbers), self._info(row, nominal, np.array(numbers), "optimal", lost)
        status = solved.value if solved is not SolveStatus.OPTIMAL else "infeasible"
        request = FallbackRequest(
            dynamics=self._dynamics,
            state=state,
            nominal=nominal,
            least_violation=np.array(numbers),
            lower=self._lower,
            upper=self._upper,
            status=status,
        )
        action = run_fallback(self._fallback_name, self._fallback, request)
        return action, self._info(row, nominal, action, status, lost)

    def filter_batch(self, X: Tensor, U_nominal: Tensor) -> tuple[Tensor, AffineBatchInfo]:
        """Return the safe actions of many states, shape (B, k), and what happened.

        The same actions as `filter` to rounding. A fallback other than "least_violation" runs one
        by one for the states that need it.

        Args:
            X: States, shape (B, n), float64.
            U_nominal: Proposed actions, shape (B, k), float64.

        Raises:
            InputError: Wrong shape or dtype, NaN or infinity; or a malformed fallback action.
        """
        _require_batch("X", X, self._dynamics.state_dim, X.shape[:1])
        _require_batch("U_nominal", U_nominal, self._dynamics.action_dim, X.shape[:1])
        row = self._with_margin(torch.func.vmap(self._rows)(X))

        def fallback(request: FallbackRequest) -> FloatArray:
            return run_fallback(self._fallback_name, self._fallback, request)

        return filter_states(
            row,
            X,
            U_nominal,
            names=self._names,
            dynamics=self._dynamics,
            weights=self._weights.to(X.device),
            box=(self._lower, self._upper),
            fallback=None if self._fallback_name == "least_violation" else fallback,
        )

    def _with_margin(self, row: AffineRow) -> AffineRow:
        return row._replace(level=row.level - self._margins.to(row.level.device))

    def _row_set(self, a: list[list[float]], b: list[float], reference: FloatArray) -> RowSet:
        """Return the rows; the one that is missed most inside the box is the most urgent."""
        inside = np.minimum(np.maximum(reference, self._lower), self._upper).tolist()
        rows = RowSet(a=a, b=b, h=[], time_left=[_NO_DEADLINE] * len(b))
        rows.h.extend(-rows.residual(j, inside) for j in range(len(b)))
        return rows

    def _info(
        self,
        row: AffineRow,
        nominal: FloatArray,
        action: FloatArray,
        status: str,
        lost: tuple[str, ...],
    ) -> AffineInfo:
        lowest = row.lowest.numpy()
        met = status in ("inactive", "optimal")
        return AffineInfo(
            names=self._names,
            status=status,
            intervened=bool((action != nominal).any()),
            intervention=float(np.linalg.norm(action - nominal)),
            fallback=None if met else self._fallback_name,
            certified=met and bool((lowest >= 0.0).all()),
            h=row.h.numpy(),
            lowest=lowest,
            slack=missed(row, torch.as_tensor(action)).numpy(),
            lost=lost,
        )


def _checked(name: str, values: FloatArray, size: int) -> FloatArray:
    """Return a copy in float64 after checking kind, shape and numbers."""
    array = real_array(f"filter: {name}", values)
    require_shape(f"filter: {name}", array, (size,))
    numbers = np.array(array, dtype=np.float64)
    require_finite(f"filter: {name}", numbers)
    return numbers


def _require_batch(name: str, values: Tensor, size: int, batch: torch.Size) -> None:
    if values.dtype != torch.float64 or values.shape != (*batch, size):
        raise InputError(
            f"filter_batch: {name}: expected float64 of shape (B, {size}) with one B, got "
            f"{values.dtype} {tuple(values.shape)}."
        )
    if not bool(torch.isfinite(values).all()):
        first = int((~torch.isfinite(values)).nonzero()[0, 0])
        raise InputError(
            f"filter_batch: {name}: expected finite numbers, got "
            f"{values[first].numpy(force=True)} in row {first}."
        )
