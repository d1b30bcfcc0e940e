"""Filter of a control-affine robot: the action nearest to the nominal one that keeps every barrier.

Problem:   min |u - u_nominal|^2  s.t.  L_g psi_j u + level_j >= margin_j (all j),  u in the box
Promise:   1. u is in the box, always;
           2. u is the nominal action, bit for bit, if that is in the box and meets every row;
           3. where every row can be met, it is, to 1e-9 relative;
           4. where not, u is that of the fallback, never the nominal one.
Certified: in the guaranteed set (every psi_k >= 0) with every row met, h stays >= 0 in continuous
           time; for a held action only with `SampledData` and a true bound of the rates.
Axes:      n = state, k = action, m = barriers, B = batch.

Margin for an action that is held for a whole control step.

Why:       a row c(x, u) >= 0 is met when u is chosen; while u is held, x moves on and c with it. If
           c falls by at most ``rate`` per second, c(x, u) >= rate dt at the start keeps it >= 0 for
           the whole step, and the continuous-time promise of the barrier holds between samples too.
Bound:     the rate is the caller's to prove. `estimate_rates` looks at states and corners of the
           box; the largest value seen there times a factor is an estimate and no proof.
Source:    after Breeden, Garg and Panagou, Control barrier functions in sampled-data systems,
           arXiv:2103.03677; here with a given bound of the row's own rate.

What one call of the control-affine filter reports. m = barriers, B = states of a batch.

Rows of all barriers at one state or at many, ready for a projection.

Scaling:  a row is divided by |gain| and multiplied by its weight, so that missing it by 1 means the
          action is 1 away from meeting it, times the weight. The scale changes no feasible action.
Left out: rows on which the action does not act (|gain| at most `AUTHORITY_TOLERANCE` of what it
          could be) and rows that are not finite. Of these the ones that are not met anyway are
          ``lost``.
Tracing:  for one state the rows are recorded once as a flat list of tensor operations, which spares
          the set-up of nested derivatives in every call.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from cadenza.core.arrays import FloatArray, require_finite, require_shape
from cadenza.core.checks import real_array
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety.affine.barriers import Barrier
from cadenza.safety.affine.disturbances import Disturbance, total_cost
from cadenza.safety.affine.dynamics import ControlAffineDynamics, generic_states
from cadenza.safety.affine.fallbacks import (
    FALLBACKS,
    FallbackRequest,
    rest_action,
    run_fallback,
)
from cadenza.safety.affine.lifting import (
    AUTHORITY_TOLERANCE,
    DEFAULT_MAX_DEGREE,
    AffineRow,
    LiftedBarrier,
    lift,
)
from cadenza.safety.batched.projection import project_batch
from cadenza.safety.batched.status import INFEASIBLE, OPTIMAL, STATUS_NAMES
from cadenza.safety.bounds import Bounds
from cadenza.safety.filters.projection import RowSet, project, residual
from cadenza.safety.solvers import QPSolver, SolveStatus, as_solver
from cadenza.safety.solvers.interface import UNBOUNDED


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AffineInfo:
    """Record of one filtered action.

    Attributes:
        names: Names of the barriers, in the order of the arrays.
        status: "inactive" (action unchanged), "optimal" (changed, every row met), "infeasible", or
            why the solver failed on rows it should have met ("max_iter", "numerical",
            "bad_input"). With the last four the action is the fallback's.
        intervened: The returned action is not the proposed one.
        intervention: Euclidean distance of the two, in the unit of the action.
        fallback: Name of the fallback that made the action; None if none was needed.
        certified: The state is in the guaranteed set and every row is met.
        h: Barrier values, shape (m,).
        lowest: min over k < r of psi_k, shape (m,); negative outside the guaranteed set.
        slack: How far the returned action misses each row, shape (m,), in the unit of psi_{r-1}
            per second; 0 when met, inf where the row is not finite.
        lost: Barriers whose row nothing can meet, for the action does not act on it here or the row
            is not finite.
    """

    names: tuple[str, ...]
    status: str
    intervened: bool
    intervention: float
    fallback: str | None
    certified: bool
    h: FloatArray
    lowest: FloatArray
    slack: FloatArray
    lost: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AffineBatchInfo:
    """Record of a batch of filtered actions; the fields mean what those of `AffineInfo` do.

    Attributes:
        names: Names of the barriers.
        status: Codes of `cadenza.safety.batched.status`, shape (B,), int8.
        intervened: Shape (B,), bool.
        intervention: Shape (B,).
        fallback: A fallback made the action, shape (B,), bool.
        certified: Shape (B,), bool.
        h: Shape (B, m).
        lowest: Shape (B, m).
        slack: Shape (B, m).
        lost: Shape (B, m), bool.
    """

    names: tuple[str, ...]
    status: Tensor
    intervened: Tensor
    intervention: Tensor
    fallback: Tensor
    certified: Tensor
    h: Tensor
    lowest: Tensor
    slack: Tensor
    lost: Tensor


class ScaledRows(NamedTuple):
    """Rows a @ u <= b. The leading axes are those of the states.

    Attributes:
        a: Shape (..., m, k); zero where left out.
        b: Shape (..., m); 1 where left out.
        active: Rows that count, shape (..., m), bool.
        lost: Rows that nothing can meet, shape (..., m), bool.
    """

    a: Tensor
    b: Tensor
    active: Tensor
    lost: Tensor


def stacked_rows(lifted: Sequence[LiftedBarrier]) -> Callable[[Tensor], AffineRow]:
    """Return the function from a state (n,) to the rows of all barriers, stacked on axis 0."""
    functions = [barrier.row for barrier in lifted]

    def rows(x: Tensor) -> AffineRow:
        parts = [row(x) for row in functions]
        return AffineRow(*(torch.stack(column) for column in zip(*parts, strict=True)))

    return rows


def traced(rows: Callable[[Tensor], AffineRow], state: Tensor) -> Callable[[Tensor], AffineRow]:
    """Return ``rows`` as recorded at ``state``: the same numbers, without the set-up."""

    def as_tuple(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(rows(x))

    graph: Any = make_fx(as_tuple)(state)
    return lambda x: AffineRow(*graph(x))


def scaled(row: AffineRow, weights: Tensor) -> ScaledRows:
    """Return the rows in the form of the projections.

    Args:
        row: Stacked rows; the leading axes of the states may come first.
        weights: Shape (m,).
    """
    finite = torch.isfinite(row.gain).all(-1) & torch.isfinite(row.level)
    finite = finite & torch.isfinite(row.authority)
    acts = row.authority > AUTHORITY_TOLERANCE
    active = finite & acts
    length = row.gain.square().sum(-1).sqrt()
    scale = weights / torch.where(active, length, 1.0)
    a = torch.where(active.unsqueeze(-1), -row.gain * scale.unsqueeze(-1), 0.0)
    b = torch.where(active, row.level * scale, 1.0)
    return ScaledRows(a, b, active, ~finite | (~acts & (row.level < 0.0)))


def missed(row: AffineRow, u: Tensor) -> Tensor:
    """Return how far actions (..., k) miss the rows, shape (..., m); inf where not finite."""
    value = (row.gain * u.unsqueeze(-2)).sum(-1) + row.level
    return torch.where(torch.isfinite(value), torch.where(value < 0.0, -value, 0.0), torch.inf)


#: A fallback whose answer is already checked and in the box.
CheckedFallback: TypeAlias = Callable[[FallbackRequest], FloatArray]


def filter_states(
    row: AffineRow,
    X: Tensor,
    U_nominal: Tensor,
    *,
    names: tuple[str, ...],
    dynamics: ControlAffineDynamics,
    weights: Tensor,
    box: tuple[FloatArray, FloatArray],
    fallback: CheckedFallback | None,
) -> tuple[Tensor, AffineBatchInfo]:
    """Return the actions, shape (B, k), and the record of the batch.

    Args:
        row: Rows of the states, with B first.
        X: States, shape (B, n).
        U_nominal: Proposed actions, shape (B, k).
        names: Of the barriers.
        dynamics: The robot.
        weights: Of the barriers, shape (m,).
        box: Bounds, shape (k,) each.
        fallback: For states without a solution; None keeps the least violation.
    """
    lower, upper = (torch.as_tensor(bound, device=X.device) for bound in box)
    parts = scaled(row, weights)
    gone = parts.lost.any(-1)

    def rest(x: Tensor) -> Tensor:
        return rest_action(dynamics, x)

    resting = torch.func.vmap(rest)(X)
    reference = torch.where(gone.unsqueeze(-1), resting, U_nominal)
    answer = project_batch(reference, parts.a, parts.b, lower, upper, parts.active)
    status = torch.where(gone, torch.full_like(answer.status, INFEASIBLE), answer.status)
    failed = status > OPTIMAL
    actions = answer.u.clone()
    if fallback is not None:
        for i in failed.nonzero().flatten().numpy(force=True).tolist():
            request = FallbackRequest(
                dynamics=dynamics,
                state=X[i].numpy(force=True),
                nominal=U_nominal[i].numpy(force=True),
                least_violation=answer.u[i].numpy(force=True),
                lower=box[0],
                upper=box[1],
                status=STATUS_NAMES[int(status[i])],
            )
            actions[i] = torch.as_tensor(fallback(request), device=X.device)
    info = AffineBatchInfo(
        names=names,
        status=status,
        intervened=(U_nominal != actions).any(-1),
        intervention=(actions - U_nominal).square().sum(-1).sqrt(),
        fallback=failed,
        certified=~failed & (row.lowest >= 0.0).all(-1),
        h=row.h,
        lowest=row.lowest,
        slack=missed(row, actions),
        lost=parts.lost,
    )
    return actions, info


#: Lower and upper bounds, numbers or shape (k,), infinite for none; or the agents' bounds, whose
#: `action_linf_component` bounds every component; None for no box.
Box: TypeAlias = tuple[ArrayLike, ArrayLike] | Bounds | None


def parse_box(box: Box, k: int) -> tuple[FloatArray, FloatArray]:
    """Return lower and upper bounds, shape (k,); `UNBOUNDED` in place of infinity.

    Raises:
        ConfigurationError: Shapes that do not fit, NaN, or a lower bound above its upper one.
    """
    if box is None:
        low, high = -np.inf, np.inf
    elif isinstance(box, Bounds):
        low, high = -box.action_linf_component, box.action_linf_component
    else:
        low, high = box
    lower, upper = _expanded("lower", low, k), _expanded("upper", high, k)
    if not (lower <= upper).all():
        raise ConfigurationError(
            f"AffineCBFFilter.box: expected lower <= upper, got {lower.tolist()} and "
            f"{upper.tolist()}."
        )
    return lower, upper


def _expanded(name: str, bound: ArrayLike, k: int) -> FloatArray:
    values = np.asarray(bound, dtype=np.float64)
    if values.shape not in ((), (k,)) or np.isnan(values).any():
        raise ConfigurationError(
            f"AffineCBFFilter.box: {name}: expected a number or shape ({k},), got "
            f"{values.tolist()}."
        )
    return np.clip(np.broadcast_to(values, (k,)), -UNBOUNDED, UNBOUNDED)


#: Most action components whose 2^k box corners `estimate_rates` visits.
_MAX_CORNER_DIM: Final = 10


@dataclass(frozen=True, slots=True)
class SampledData:
    """How long an action is held, and how fast each row can fall meanwhile.

    Attributes:
        dt: Control step, s, > 0.
        rates: By barrier name, the largest rate at which c = gain @ u + level can fall in the
            region and box of use, in the unit of c per second, >= 0.

    Raises:
        ConfigurationError: A number out of range.
    """

    dt: float
    rates: Mapping[str, float] = field(default_factory=dict[str, float])

    def __post_init__(self) -> None:
        if not 0.0 < self.dt < math.inf:
            raise ConfigurationError(
                f"SampledData.dt: expected a finite control step > 0 s, got {self.dt}."
            )
        for name, rate in self.rates.items():
            if not 0.0 <= rate < math.inf:
                raise ConfigurationError(
                    f"SampledData.rates[{name!r}]: expected a finite rate >= 0, got {rate}."
                )

    def margins(self, names: Sequence[str]) -> list[float]:
        """Return rate dt for each barrier.

        Raises:
            ConfigurationError: The rates are not those of exactly these barriers.
        """
        if set(self.rates) != set(names):
            raise ConfigurationError(
                f"SampledData.rates: expected one rate for each of {sorted(names)}, got "
                f"{sorted(self.rates)}."
            )
        return [self.dt * self.rates[name] for name in names]


def estimate_rates(
    lifted: Sequence[LiftedBarrier],
    dynamics: ControlAffineDynamics,
    states: Tensor,
    lower: FloatArray,
    upper: FloatArray,
    *,
    disturbances: Sequence[Disturbance] = (),
    factor: float = 2.0,
) -> dict[str, float]:
    """Return by name the fastest fall of each row over states and box corners, times a factor.

    An estimate: between the states, inside the box and beyond them the rate may be larger.

    Args:
        lifted: The barriers, see `AffineCBFFilter.lifted`.
        dynamics: The robot.
        states: States of the region of use, shape (M, n), float64.
        lower: Lower bounds of the action, shape (k,), finite.
        upper: Upper bounds, likewise.
        disturbances: What else moves the robot.
        factor: Room for what the states do not show, >= 1.

    Raises:
        InputError: Malformed states, a box that is not finite, or more than ten components.
        ConfigurationError: A factor below 1.
    """
    if not 1.0 <= factor < math.inf:
        raise ConfigurationError(
            f"estimate_rates: factor: expected a finite number >= 1, got {factor}."
        )
    shaped = states.ndim == 2 and states.shape[0] > 0 and states.shape[1] == dynamics.state_dim
    if not (shaped and bool(torch.isfinite(states).all())):
        raise InputError(
            f"estimate_rates: states: expected finite states, shape (M, {dynamics.state_dim}), got "
            f"shape {tuple(states.shape)}."
        )
    corners = _corners(lower, upper, dynamics.action_dim)
    rates: dict[str, float] = {}
    for barrier in lifted:
        fall = _fall(barrier, dynamics, disturbances)
        pairs = torch.func.vmap(torch.func.vmap(fall, in_dims=(None, 0)), in_dims=(0, None))
        rates[barrier.name] = factor * max(0.0, float(pairs(states, corners).max()))
    return rates


def _fall(
    barrier: LiftedBarrier, dynamics: ControlAffineDynamics, disturbances: Sequence[Disturbance]
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the function of state and held action that says how fast the row's value falls."""

    def value(x: Tensor, u: Tensor) -> Tensor:
        row = barrier.row(x)
        return row.gain @ u + row.level

    def fall(x: Tensor, u: Tensor) -> Tensor:
        gradient = torch.func.grad(value)(x, u)
        motion = dynamics.drift(x) + dynamics.input_map(x) @ u
        return total_cost(disturbances, gradient, x) - gradient @ motion

    return fall


def _corners(lower: FloatArray, upper: FloatArray, k: int) -> Tensor:
    """Return the corners of the box, shape (2^k, k)."""
    low, high = (
        torch.as_tensor(lower, dtype=torch.float64),
        torch.as_tensor(upper, dtype=torch.float64),
    )
    shaped = low.shape == (k,) and high.shape == (k,) and k <= _MAX_CORNER_DIM
    if not (shaped and bool(torch.isfinite(low).all() and torch.isfinite(high).all())):
        raise InputError(
            f"estimate_rates: expected finite bounds of shape ({k},) and at most "
            f"{_MAX_CORNER_DIM} components, got shapes {tuple(low.shape)} and {tuple(high.shape)}."
        )
    choices = list(itertools.product((False, True), repeat=k))
    return torch.where(torch.tensor(choices), high, low)


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
        rows.h.extend(-residual(a[j], b_j, inside) for j, b_j in enumerate(b))
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
