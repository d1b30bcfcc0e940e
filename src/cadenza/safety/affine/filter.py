"""Filter of a control-affine robot: the action nearest to the nominal one that keeps every barrier.

Problem:   min (u - u_nominal)^T W (u - u_nominal)
           s.t.  L_g psi_j u + level_j >= margin_j (all j),  u in the box
Metric:    W = diag(action_weights), also where "nearest" stands below. The problem is solved in
           y = W^(1/2) u, with rows and box scaled alike.
Promise:   1. u is in the box, always;
           2. u is the nominal action, bit for bit, if that is in the box and meets every row;
           3. where every row can be met, it is, to 1e-9 relative;
           4. where not, u is that of the fallback, never the nominal one.
Certified: in the guaranteed set (every psi_k >= 0) with every row met, h stays >= 0 in continuous
           time; for a held action only with `SampledData` and a true bound of the rates: if a row
           falls by at most ``rate`` per second, rate dt at the start lasts for the whole step.
           After Breeden, Garg and Panagou, arXiv:2103.03677, with a given bound of the row's rate.
Scaling:   a row in y is divided by its length and multiplied by its barrier's weight: to miss it by
           1 is to be 1 away from the actions that meet it, times the weight. No feasible action
           changes.
Left out:  rows on which the action does not act (|gain| at most `AUTHORITY_TOLERANCE` of what it
           could be) and rows that are not finite. Of these the ones that are not met anyway are
           ``lost``.
Axes:      n = state, k = action, m = barriers, B = batch.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from cadenza.core.arrays import FloatArray, require_finite, require_shape
from cadenza.core.checks import is_real, real_array, require_kinds, shown
from cadenza.core.errors import ConfigurationError, InputError, UnknownNameError, refuse
from cadenza.safety.affine.barriers import (
    AUTHORITY_TOLERANCE,
    DEFAULT_MAX_DEGREE,
    AffineRow,
    Barrier,
    LiftedBarrier,
    lift,
)
from cadenza.safety.affine.dynamics import (
    BrakingDynamics,
    ControlAffineDynamics,
    Disturbance,
    float_array,
    generic_states,
    require_at_least_zero,
    total_cost,
)
from cadenza.safety.batched.projection import (
    INACTIVE,
    INFEASIBLE,
    OPTIMAL,
    STATUS_NAMES,
    project_batch,
)
from cadenza.safety.contracts import Bounds
from cadenza.safety.filters.projection import PairRows, project, residual
from cadenza.safety.solvers import UNBOUNDED, QPSolver, SolveStatus, as_solver


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
    """Record of a batch; the fields mean what those of `AffineInfo` do, with an axis B before m.

    ``status`` holds codes of `cadenza.safety.batched.projection`, int8; ``fallback`` says where a
    fallback made the action.
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
    """Rows a @ u <= b. The leading axes are those of the states."""

    a: Tensor  # Shape (..., m, k); zero where left out
    b: Tensor  # Shape (..., m); 1 where left out
    active: Tensor  # Rows that count, shape (..., m), bool
    lost: Tensor  # Rows that nothing can meet, shape (..., m), bool


def scaled(row: AffineRow, weights: Tensor, roots: Tensor) -> ScaledRows:
    """Return stacked rows on y = ``roots`` u, with leading axes or without, for the projections."""
    finite = torch.isfinite(row.gain).all(-1) & torch.isfinite(row.level)
    finite = finite & torch.isfinite(row.authority)
    acts = row.authority > AUTHORITY_TOLERANCE
    active = finite & acts
    gain = row.gain / roots
    length = gain.square().sum(-1).sqrt()
    scale = weights / torch.where(active, length, 1.0)
    a = torch.where(active.unsqueeze(-1), -gain * scale.unsqueeze(-1), 0.0)
    b = torch.where(active, row.level * scale, 1.0)
    return ScaledRows(a, b, active, ~finite | (~acts & (row.level < 0.0)))


def missed(row: AffineRow, u: Tensor) -> Tensor:
    """Return how far actions (..., k) miss the rows, shape (..., m); inf where not finite."""
    value = (row.gain * u.unsqueeze(-2)).sum(-1) + row.level
    return torch.where(torch.isfinite(value), torch.where(value < 0.0, -value, 0.0), torch.inf)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FallbackRequest:
    """What a fallback may look at."""

    dynamics: ControlAffineDynamics  # The robot
    state: FloatArray  # Shape (n,)
    nominal: FloatArray  # The proposed action, shape (k,)
    least_violation: FloatArray  # The action that misses the rows least, shape (k,)
    lower: FloatArray  # Lower bounds of the box, shape (k,)
    upper: FloatArray  # Upper bounds of the box, shape (k,)
    status: str  # Why there is no solution; see `AffineInfo.status`


#: Returns an action, shape (k,).
Fallback: TypeAlias = Callable[[FallbackRequest], FloatArray]


class FallbackRegistry:
    """What to do in a step whose rows no action of the box meets, by name."""

    def __init__(self) -> None:
        self._by_name: dict[str, Fallback] = {}

    def register(self, name: str, fallback: Fallback) -> None:
        """Add a fallback; its answers are checked and moved into the box.

        Raises:
            ConfigurationError: The name is empty or taken.
        """
        if not name or name in self._by_name:
            known = f"known: {', '.join(self._by_name)}"
            refuse(ConfigurationError, "FALLBACKS", expected="a new name", got=repr(name), do=known)
        self._by_name[name] = fallback

    def get(self, name: str, dynamics: ControlAffineDynamics) -> Fallback:
        """Return a fallback for a robot.

        Raises:
            UnknownNameError: No such name.
            ConfigurationError: "brake" for a robot that cannot brake.
        """
        if name not in self._by_name:
            known = f"one of {', '.join(self._by_name)}"
            refuse(UnknownNameError, "FALLBACKS", expected=known, got=repr(name))
        if name == "brake" and not isinstance(dynamics, BrakingDynamics):
            refuse(
                ConfigurationError,
                "fallback 'brake'",
                expected="dynamics with a brake method",
                got=type(dynamics).__name__,
                do="add one or choose another fallback",
            )
        return self._by_name[name]


def rest_action(dynamics: ControlAffineDynamics, state: Tensor) -> Tensor:
    """Return the action a robot rests with, shape (k,): its own brake, or zero."""
    if isinstance(dynamics, BrakingDynamics):
        return dynamics.brake(state)
    return torch.zeros(dynamics.action_dim, dtype=state.dtype, device=state.device)


#: The registry of the package. "least_violation": the most violated row as far as the box allows,
#: the others as well as they can be met around it; where a row has no direction to push in, around
#: the action of rest. "brake": the robot's own `brake`. "hold_zero": the zero action.
FALLBACKS: Final = FallbackRegistry()
FALLBACKS.register("least_violation", lambda request: request.least_violation)
FALLBACKS.register(
    "brake", lambda request: rest_action(request.dynamics, torch.as_tensor(request.state)).numpy()
)
FALLBACKS.register("hold_zero", lambda request: np.zeros_like(request.lower))


#: Lower and upper bounds, numbers or shape (k,), infinite for none; or the agents' bounds, whose
#: `action_linf_component` bounds every component; None for no box.
Box: TypeAlias = tuple[ArrayLike, ArrayLike] | Bounds | None


def parse_box(box: Box, k: int) -> tuple[FloatArray, FloatArray]:
    """Return lower and upper bounds, shape (k,); `UNBOUNDED` in place of infinity."""
    if box is None:
        low, high = -np.inf, np.inf
    elif isinstance(box, Bounds):
        low, high = -box.action_linf_component, box.action_linf_component
    else:
        try:
            low, high = box
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                "AffineCBFFilter.box: expected Bounds, a pair of lower and upper bounds or None, "
                f"got {shown(box)}."
            ) from error
    bounds: list[FloatArray] = []
    for name, bound in (("lower", low), ("upper", high)):
        values = float_array(f"AffineCBFFilter.box: {name}", bound)
        if values.shape not in ((), (k,)) or np.isnan(values).any():
            owner, expected = f"AffineCBFFilter.box: {name}", f"a number or shape ({k},)"
            refuse(ConfigurationError, owner, expected=expected, got=values.tolist())
        bounds.append(np.clip(np.broadcast_to(values, (k,)), -UNBOUNDED, UNBOUNDED))
    lower, upper = bounds
    if not (lower <= upper).all():
        got = f"{lower.tolist()} and {upper.tolist()}"
        refuse(ConfigurationError, "AffineCBFFilter.box", expected="lower <= upper", got=got)
    return lower, upper


def _roots(weights: Sequence[float] | None, k: int) -> FloatArray:
    """Return W^(1/2), shape (k,)."""
    if weights is None:
        return np.ones(k)
    values = float_array("AffineCBFFilter.action_weights", weights)
    if values.shape != (k,) or not ((values > 0.0) & (values < np.inf)).all():
        refuse(
            ConfigurationError,
            "AffineCBFFilter.action_weights",
            expected=f"{k} finite numbers > 0, the diagonal of W",
            got=values.tolist(),
        )
    return np.sqrt(values)


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
        if not (is_real(self.dt) and 0.0 < self.dt < math.inf):
            expected = "a finite control step > 0 s"
            refuse(ConfigurationError, "SampledData.dt", expected=expected, got=shown(self.dt))
        require_kinds("SampledData", rates=(self.rates, Mapping))
        for name, rate in self.rates.items():
            require_at_least_zero(f"SampledData.rates[{name!r}]", rate)

    def margins(self, names: Sequence[str]) -> list[float]:
        """Return rate dt for each barrier; ConfigurationError unless the rates are theirs."""
        if set(self.rates) != set(names):
            expected = f"one rate for each of {sorted(names)}"
            got = str(sorted(self.rates))
            refuse(ConfigurationError, "SampledData.rates", expected=expected, got=got)
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
    if not (is_real(factor) and 1.0 <= factor < math.inf):
        expected = "a finite number >= 1"
        refuse(ConfigurationError, "estimate_rates: factor", expected=expected, got=shown(factor))
    shaped = states.ndim == 2 and states.shape[0] > 0 and states.shape[1] == dynamics.state_dim
    if not (shaped and bool(torch.isfinite(states).all())):
        expected, got = f"finite states, shape (M, {dynamics.state_dim})", str(tuple(states.shape))
        refuse(InputError, "estimate_rates: states", expected=expected, got=got)
    k = dynamics.action_dim
    low, high = (torch.as_tensor(bound, dtype=torch.float64) for bound in (lower, upper))
    shaped = low.shape == (k,) and high.shape == (k,) and k <= _MAX_CORNER_DIM
    if not (shaped and bool(torch.isfinite(low).all() and torch.isfinite(high).all())):
        expected = f"finite bounds of shape ({k},) and at most {_MAX_CORNER_DIM} components"
        got = f"shapes {tuple(low.shape)} and {tuple(high.shape)}"
        refuse(InputError, "estimate_rates", expected=expected, got=got)
    choices = torch.tensor(list(itertools.product((False, True), repeat=k)))
    corners = torch.where(choices, high, low)  # (2^k, k)

    def fall(barrier: LiftedBarrier, x: Tensor, u: Tensor) -> Tensor:
        """Return how fast the row's value falls while ``u`` is held."""

        def value(x: Tensor) -> Tensor:
            row = barrier.row(x)
            return row.gain @ u + row.level

        gradient = torch.func.grad(value)(x)
        motion = dynamics.drift(x) + dynamics.input_map(x) @ u
        return total_cost(disturbances, gradient, x) - gradient @ motion

    rates: dict[str, float] = {}
    for barrier in lifted:
        of_pair = torch.func.vmap(partial(fall, barrier), in_dims=(None, 0))
        falls = torch.func.vmap(of_pair, in_dims=(0, None))(states, corners)
        rates[barrier.name] = factor * max(0.0, float(falls.max()))
    return rates


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
        action_weights: Diagonal of W, what a squared change of each action component costs, shape
            (k,), > 0; None for ones. For a unicycle with a point l ahead, (1, l^2) measures the
            change of that point's velocity.

    Raises:
        ConfigurationError: No barrier, two of one name, a barrier `lift` refuses, a malformed box,
            weights that are no k finite numbers > 0, rates of other barriers, or "brake" for a
            robot without `brake`.
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
        action_weights: Sequence[float] | None = None,
    ) -> None:
        require_kinds(
            "AffineCBFFilter",
            dynamics=(dynamics, ControlAffineDynamics),
            barriers=(barriers, [Barrier]),
            sampled_data=(sampled_data, SampledData | None),
            fallback=(fallback, str),
        )
        self._names = tuple(barrier.name for barrier in barriers)
        if not self._names or len(set(self._names)) < len(self._names):
            expected = "at least one barrier and different names"
            refuse(ConfigurationError, "AffineCBFFilter", expected=expected, got=list(self._names))
        self._dynamics = dynamics
        self._lifted = tuple(
            lift(barrier, dynamics, max_degree, samples=samples, disturbances=disturbances)
            for barrier in barriers
        )
        self._lower, self._upper = parse_box(box, dynamics.action_dim)
        self._roots = _roots(action_weights, dynamics.action_dim)
        self._scaled_box = (self._lower * self._roots, self._upper * self._roots)
        self._fallback = fallback
        FALLBACKS.get(fallback, dynamics)
        self._solver = as_solver(solver)
        margins = sampled_data.margins(self._names) if sampled_data else [0.0] * len(self._names)
        self._margins = torch.tensor(margins, dtype=torch.float64)
        self._weights = torch.tensor([b.weight for b in barriers], dtype=torch.float64)
        example = generic_states(dynamics.state_dim, 1)[0] if samples is None else samples[0]

        def rows(x: Tensor) -> tuple[Tensor, ...]:
            """Return the fields of the rows of all barriers, stacked on axis 0, for a state."""
            parts = [barrier.row(x) for barrier in self._lifted]
            return tuple(torch.stack(column) for column in zip(*parts, strict=True))

        self._rows = rows
        # Recorded as a flat list of operations: spares one call the set-up of nested derivatives.
        self._traced_rows: Any = make_fx(rows)(example.clone())

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
        row = self._with_margin(*self._traced_rows(x_tensor))
        parts = scaled(row, self._weights, torch.as_tensor(self._roots))
        lost = tuple(
            name
            for name, gone in zip(self._names, parts.lost.numpy().tolist(), strict=True)
            if gone
        )
        wanted = rest_action(self._dynamics, x_tensor).numpy() if lost else nominal
        reference, (lower, upper) = wanted * self._roots, self._scaled_box
        on = parts.active
        a, b = parts.a[on].numpy().tolist(), parts.b[on].numpy().tolist()
        inside = np.minimum(np.maximum(reference, lower), upper).tolist()
        # The row that is missed most inside the box is the most urgent.
        missing = [-residual(a_j, b_j, inside) for a_j, b_j in zip(a, b, strict=True)]
        rows = PairRows(a, b, missing, [math.inf] * len(b), [0.0] * len(b))
        box = lower.tolist(), upper.tolist()
        solution = project(reference.tolist(), rows, None, box, self._solver)
        numbers, solved = np.array(solution.x), solution.status
        nearest = np.minimum(np.maximum(numbers / self._roots, self._lower), self._upper)
        if not lost and solved is SolveStatus.OPTIMAL:
            same = solution.x == reference.tolist()
            action = nominal if same else nearest
            return action, self._info(row, nominal, action, "inactive" if same else "optimal", lost)
        status = solved.value if solved is not SolveStatus.OPTIMAL else "infeasible"
        action = self._fall_back(state, nominal, nearest, status)
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
        row = self._with_margin(*torch.func.vmap(self._rows)(X))
        roots, lower, upper = (
            torch.as_tensor(v, device=X.device) for v in (self._roots, self._lower, self._upper)
        )
        parts = scaled(row, self._weights.to(X.device), roots)
        gone = parts.lost.any(-1)
        resting = torch.func.vmap(partial(rest_action, self._dynamics))(X)
        reference = torch.where(gone.unsqueeze(-1), resting, U_nominal)
        answer = project_batch(
            reference * roots, parts.a, parts.b, lower * roots, upper * roots, parts.active
        )
        nearest = torch.clamp(answer.u / roots, lower, upper)
        status = torch.where(gone, torch.full_like(answer.status, INFEASIBLE), answer.status)
        failed = status > OPTIMAL
        unchanged = (status == INACTIVE).unsqueeze(-1)
        actions = torch.where(unchanged, U_nominal, nearest)
        if self._fallback != "least_violation":
            for i in failed.nonzero().flatten().numpy(force=True).tolist():
                x, u, least = (v[i].numpy(force=True) for v in (X, U_nominal, nearest))
                action = self._fall_back(x, u, least, STATUS_NAMES[int(status[i])])
                actions[i] = torch.as_tensor(action, device=X.device)
        return actions, AffineBatchInfo(
            names=self._names,
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

    def _fall_back(
        self, state: FloatArray, nominal: FloatArray, least: FloatArray, status: str
    ) -> FloatArray:
        """Return the fallback's action, moved into the box, shape (k,)."""
        request = FallbackRequest(
            dynamics=self._dynamics,
            state=state,
            nominal=nominal,
            least_violation=least,
            lower=self._lower,
            upper=self._upper,
            status=status,
        )
        fallback = FALLBACKS.get(self._fallback, self._dynamics)
        action = np.asarray(fallback(request), dtype=np.float64)
        if action.shape != self._lower.shape or not np.isfinite(action).all():
            expected = f"finite numbers of shape {self._lower.shape}"
            owner = f"fallback {self._fallback!r}"
            refuse(InputError, owner, expected=expected, got=action.tolist())
        return np.minimum(np.maximum(action, self._lower), self._upper)

    def _with_margin(self, *fields: Tensor) -> AffineRow:
        row = AffineRow(*fields)
        return row._replace(level=row.level - self._margins.to(row.level.device))

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
            fallback=None if met else self._fallback,
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
    owner = f"filter_batch: {name}"
    if values.dtype != torch.float64 or values.shape != (*batch, size):
        expected = f"float64 of shape (B, {size}) with one B"
        got = f"{values.dtype} {tuple(values.shape)}"
        refuse(InputError, owner, expected=expected, got=got)
    finite = torch.isfinite(values).all(-1)
    if not bool(finite.all()):
        first = int((~finite).nonzero()[0, 0])
        got = f"{values[first].numpy(force=True)} in row {first}"
        refuse(InputError, owner, expected="finite numbers", got=got)
