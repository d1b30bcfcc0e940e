"""The ego-only filter for many environments at once.

The same rows, hierarchy and flags as `cadenza.safety.filters.ego_only.EgoOnlyCBFQP`, environment by
environment; in float64 the same actions to 1e-12 where the rows can be met with room, and to 1e-8
where the least violation is returned. On a CPU its code solves the environments of a small batch
that clipping to the box does not, and the hardest of a large one. Where rows leave room of only
1e-9, or two partners are equally urgent, rounding decides.

Axes:     B environments, N partners, d Cartesian dimensions, which are those of the action.
Units:    actions in m/s^2, everything else SI.
Raising:  never because of one environment's rows: a step without an admissible action is a status.
Numbers:  looked at in every call, but naming a bad one waits for the device; with
          ``capturable`` its environment is only marked.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import Final, NamedTuple, Unpack

import numpy as np
import torch
from torch import Tensor

from cadenza.core.checks import require_kinds
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety.authority import measure_authority, pair_constants
from cadenza.safety.batched.cbf import (
    PairGeometry,
    PairTensors,
    barrier_values,
    derated_batch,
    offers_batch,
    pair_geometry_batch,
    root,
    sampled_level,
    stale_levels,
    staleness_batch,
    time_left,
)
from cadenza.safety.batched.projection import (
    BAD_INPUT,
    FEW,
    INACTIVE,
    INFEASIBLE,
    NOT_CONVERGED,
    OPTIMAL,
    chunk_size,
    code_of,
    first_largest,
    numbers_of,
    project_ranked,
    require_tensor,
    tensor_like,
)
from cadenza.safety.cbf import (
    CERTIFICATE_TOLERANCE,
    LEAST_CREDIT,
    OVERLAP_TOLERANCE,
    braking_meets_row,
    measurement_errors,
)
from cadenza.safety.contracts import AgentControlModel, Bounds
from cadenza.safety.control_models import DoubleIntegratorControlModel
from cadenza.safety.filter_options import BatchedKeywords, EgoOnlyOptions
from cadenza.safety.filters.arguments import checked_timestep, require_one_space
from cadenza.safety.filters.ego_rows import AGE_ROUNDING, ROW_MET
from cadenza.safety.filters.projection import (
    FEASIBILITY_ROOM,
    SLACK_WEIGHT,
    PairRows,
    project,
)
from cadenza.safety.passive import PASSIVE_MET, PassiveScene, passive_action
from cadenza.safety.snapshot import MAX_MAGNITUDE, AgentSnapshot
from cadenza.safety.solvers import DaqpSolver

#: Shortfall of a row, over 1 + |level|, with which a solver's answer is accepted, by precision.
_ROW_MET: Final = {torch.float64: ROW_MET, torch.float32: 1e-5}
#: What a message adds to the range of all numbers.
_WANTED: Final = {
    "ego_radius": ", > 0 m",
    "partner_radii": ", > 0 m",
    "age_s": ", >= 0 s",
}


class StepInput(NamedTuple):
    """Arguments of `BatchedEgoFilter.filter`; once checked, radii are (B, 1) and (B, N)."""

    nominal: Tensor
    ego_position: Tensor
    ego_velocity: Tensor
    partner_positions: Tensor
    partner_velocities: Tensor
    ego_radius: Tensor
    partner_radii: Tensor
    lambda_: Tensor | None
    age_s: Tensor | None
    directions: Tensor | None
    partner_accel: Tensor | None

    def checked(self, partners: int, d: int) -> "StepInput":
        """Return the arguments with radii per environment, after checking all but the numbers.

        Raises:
            InputError: No tensor, or another shape, dtype or device.
        """
        nominal = self.nominal
        if nominal.dtype not in (torch.float64, torch.float32):
            raise InputError(f"filter: nominal: expected float64 or float32, got {nominal.dtype}.")
        if nominal.ndim != 2:
            raise InputError(
                f"filter: nominal: expected shape (B, {d}), got {tuple(nominal.shape)}."
            )
        size = nominal.shape[0]
        each = (size, partners)
        for name, shapes in (
            ("nominal", ((size, d),)),
            ("ego_position", ((size, d),)),
            ("ego_velocity", ((size, d),)),
            ("partner_positions", ((*each, d),)),
            ("partner_velocities", ((*each, d),)),
            ("ego_radius", ((), (size,))),
            ("partner_radii", ((partners,), each)),
            ("lambda_", (each,)),
            ("age_s", (each,)),
            ("directions", ((*each, d),)),
            ("partner_accel", (each,)),
        ):
            values: Tensor | None = getattr(self, name)
            if values is None and name in ("lambda_", "age_s", "directions", "partner_accel"):
                continue
            values = require_tensor(f"filter: {name}", values)
            if values.dtype != nominal.dtype or values.device != nominal.device:
                raise InputError(
                    f"filter: {name}: expected {nominal.dtype} on {nominal.device} like the "
                    f"nominal actions, got {values.dtype} on {values.device}."
                )
            if tuple(values.shape) not in shapes:
                raise InputError(
                    f"filter: {name}: expected shape {' or '.join(map(str, shapes))}, got "
                    f"{tuple(values.shape)}."
                )
        ego_radius = self.ego_radius.expand(size).unsqueeze(1)
        return self._replace(ego_radius=ego_radius, partner_radii=self.partner_radii.expand(each))

    def require_numbers(self) -> None:
        """Raise InputError for a number not finite or out of range; waits for the device."""
        for name, values, fine in self._looked_at():
            if not bool(fine.all()):
                found = tuple(int(i) for i in (~fine).nonzero()[0])
                raise InputError(
                    f"filter: {name}: expected finite numbers up to {MAX_MAGNITUDE:.0e}"
                    f"{_WANTED.get(name, '')}, got {float(values.detach()[found]):g} at index "
                    f"{found}."
                )

    def marked(self) -> "StepInput":
        """Return harmless numbers for bad ones, and NaN as nominal action of such environments."""
        looked_at = list(self._looked_at())
        # One tensor at a time: torch would spread the conjunction of all over threads.
        rows = [fine.flatten(1).all(1, keepdim=True) for _, _, fine in looked_at]
        good = reduce(torch.logical_and, rows)
        clean = {name: torch.where(fine, values, 1.0) for name, values, fine in looked_at}
        clean["nominal"] = torch.where(good, self.nominal, torch.nan)
        return self._replace(**clean)

    def _looked_at(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Yield names and tensors, and where their numbers are finite and in range."""
        for name, values in zip(self._fields, self, strict=True):
            if values is None:
                continue
            fine = values.abs() <= MAX_MAGNITUDE  # written this way round so that NaN fails too
            if name in ("ego_radius", "partner_radii"):
                fine = fine & (values > 0.0)
            elif name == "age_s":
                fine = fine & (values >= 0.0)
            yield name, values, fine


class EgoRowsBatch(NamedTuple):
    """Rows before lambda; the first five fields are those of `PairRows`."""

    a: Tensor  # Row vectors on the ego's action, shape (B, N, d)
    level: Tensor  # Right-hand sides at lambda = 0, shape (B, N), m/s^2
    h: Tensor  # Barrier values at the best estimate of the state, shape (B, N), m/s
    margin: Tensor  # Free distance less the safety margin, shape (B, N), m
    closing: Tensor  # Closing speeds, shape (B, N), m/s
    uncovered: Tensor  # The certificate does not cover the step, shape (B,)
    outside: Tensor  # A state is outside the safe set, shape (B,)
    #: Directions of rows whose pair is known to be safe, else zero, (B, N, d); None without errors
    directions: Tensor | None = None


class BatchedStep(NamedTuple):
    """What the filter decided in every environment.

    Attributes:
        action: Shape (B, d); the nominal values, bit for bit, where nothing was active.
        status: Codes of `cadenza.safety.batched.projection`, shape (B,), int8.
        slack: How far the action misses each row, shape (B, N), m/s^2; 0 where it was solved.
        h: Barrier values before the action, shape (B, N), m/s.
        margin: Free distance less the safety margin, shape (B, N), m.
        lambda_: Slack that entered each row, shape (B, N), m/s^2.
        intervention: Euclidean distance between action and nominal action, shape (B,).
        uncertified: The invariance certificate does not cover the step, shape (B,), bool.
        directions: What the next step's ``directions`` are, if this action is executed, shape
            (B, N, d); (B, 0, d) where no errors of measurement are stated.
    """

    action: Tensor
    status: Tensor
    slack: Tensor
    h: Tensor
    margin: Tensor
    lambda_: Tensor
    intervention: Tensor
    uncertified: Tensor
    directions: Tensor


class _Solution(NamedTuple):
    """Action (B, d), status (B,), slack lambda that was used and levels with it (B, N).

    ``proved``, (B,): the action keeps what is guaranteed although it misses a row.
    """

    u: Tensor
    status: Tensor
    lambda_: Tensor
    b: Tensor
    proved: Tensor

    def where(self, mask: Tensor, other: "_Solution") -> "_Solution":
        """Return ``other`` where ``mask``, shape (B,), is true, and this one elsewhere."""
        return _Solution(
            *(
                torch.where(mask if new.ndim == 1 else mask.unsqueeze(1), new, old)
                for new, old in zip(other, self, strict=True)
            )
        )


class BatchedEgoFilter:
    """Ego-only filter over batches; the options are those of `EgoOnlyOptions`.

    Args:
        ego_model: The ego's control model, a double integrator.
        partner_models: The partners' control models, in the order of the tensors, N >= 0.
        bounds: Box of the actions and shared capacity.
        dt: Control step, s.
        capturable: Read nothing back from the device, so that calls can be captured in a CUDA
            graph: see `cadenza.safety.batched.projection.project_batch`. Nothing is raised for
            numbers then; an environment with bad ones gets the status `BAD_INPUT` and a zero
            action.
        max_rows: Most environments decided in one pass; with at most `FEW` an environment's bits
            depend on no other one. None takes as many as memory allows.
        options: Fields of `EgoOnlyOptions` but for ``rate_limit``, ``prediction_error`` and what
            belongs to the classical row, which only the filter of one environment follows;
            ``on_infeasible`` is left out, nothing is raised.

    Raises:
        ConfigurationError: Another ego; options out of range, without effect beside each other or
            not followed here; dt out of range; or no authority against a partner.
    """

    def __init__(
        self,
        *,
        ego_model: AgentControlModel,
        partner_models: Sequence[AgentControlModel],
        bounds: Bounds,
        dt: float,
        capturable: bool = False,
        max_rows: int | None = None,
        **options: Unpack[BatchedKeywords],
    ) -> None:
        dt = checked_timestep("BatchedEgoFilter: dt", dt)
        require_kinds(
            "BatchedEgoFilter",
            partner_models=(partner_models, [AgentControlModel]),
            bounds=(bounds, Bounds),
            capturable=(capturable, bool),
            max_rows=(max_rows, int | None),
        )
        self._max_rows = max_rows
        self._options = EgoOnlyOptions(**options, on_infeasible="least_violation")
        _require_followed(self._options, ego_model, partner_models)
        self._partners, self._dim = len(partner_models), ego_model.action_dim
        self._bounds, self._dt = bounds, dt
        lone = len(partner_models) == 1
        self._credit = min(ego_model.max_cartesian_accel(bounds), bounds.action_linf_component)
        self._radial_accel = self._credit if lone and self._options.brakes_radially else None
        self._passive = self._options.passive and len(partner_models) > 1
        self._capturable = capturable
        snapshot = AgentSnapshot(np.zeros(self._dim), np.zeros(self._dim), 1.0)
        self._authority = measure_authority(ego_model, snapshot, bounds)
        # Ages and contact distances are accounted for per environment, where radii are known.
        self._known = pair_constants(
            ego_model,
            self._authority,
            partner_models,
            [snapshot] * len(partner_models),
            [math.inf] * len(partner_models),
            bounds,
            replace(self._options, max_age_s=0.0),
            dt=dt,
        )
        self._kept: dict[tuple[torch.dtype, torch.device], PairTensors] = {}

    @property
    def options(self) -> EgoOnlyOptions:
        """The options the filter was built with."""
        return self._options

    def filter(
        self,
        nominal: Tensor,
        ego_position: Tensor,
        ego_velocity: Tensor,
        partner_positions: Tensor,
        partner_velocities: Tensor,
        ego_radius: Tensor | float,
        partner_radii: Tensor | Sequence[float],
        *,
        lambda_: Tensor | None = None,
        age_s: Tensor | None = None,
        directions: Tensor | None = None,
        partner_accel: Tensor | None = None,
    ) -> BatchedStep:
        """Return the actions closest to the nominal ones that keep the egos in the safe set.

        Args:
            nominal: Shape (B, d), float64 or float32; every other tensor has its dtype.
            ego_position: Shape (B, d), m.
            ego_velocity: Shape (B, d), m/s.
            partner_positions: Last reported centres, shape (B, N, d), m.
            partner_velocities: Last reported velocities, shape (B, N, d), m/s.
            ego_radius: A number or shape (B,), m, > 0.
            partner_radii: Shape (N,) or (B, N), m, > 0; a tensor when captured in a CUDA graph.
            lambda_: Slack per pair, shape (B, N), m/s^2; None for zero.
            age_s: Time since the reports were true, shape (B, N), s; None if they are current.
            directions: What the last step returned, shape (B, N, d); zero where an episode begins
                or another action was executed, None where all do.
            partner_accel: What partners showed, shape (B, N), m/s^2. Where it is more than what
                they declare, rows are built on it and nothing is certified; None where it never is.

        Raises:
            InputError: Shapes or dtypes disagree; unless ``capturable`` also numbers that are not
                finite or out of range.
            ConfigurationError: Unless ``capturable``: packets as old as declared leave no
                authority, or the control step is too long.
        """
        require_tensor("filter: nominal", nominal)
        step = StepInput(
            nominal=nominal,
            ego_position=ego_position,
            ego_velocity=ego_velocity,
            partner_positions=partner_positions,
            partner_velocities=partner_velocities,
            ego_radius=tensor_like("filter: ego_radius", ego_radius, nominal),
            partner_radii=tensor_like("filter: partner_radii", partner_radii, nominal),
            lambda_=lambda_,
            age_s=age_s,
            directions=directions if self._options.measures else None,
            partner_accel=partner_accel,
        ).checked(self._partners, self._dim)
        if not self._capturable:
            step.require_numbers()
        return self._in_passes(step)

    def _in_passes(self, step: StepInput) -> BatchedStep:
        """Filter as many environments at once as the device likes, or as were allowed."""
        batch = step.nominal.shape[0]
        size = batch if self._masks(step.nominal) else chunk_size(self._partners, self._dim)
        size = size if self._max_rows is None else min(size, self._max_rows)
        if batch <= size:
            return self._filter(step)
        parts = [
            self._filter(step._make(None if x is None else x[k : k + size] for x in step))
            for k in range(0, batch, size)
        ]
        return BatchedStep(*(torch.cat(column) for column in zip(*parts, strict=True)))

    def barrier_values(
        self,
        ego: tuple[Tensor, Tensor],
        partners: tuple[Tensor, Tensor],
        contact: Tensor,
        partner_accel: Tensor | None = None,
    ) -> Tensor:
        """Return h of the pairs, as current packets tell them, shape (..., B, N), m/s.

        Args:
            ego: Positions, m, and velocities, m/s, shape (B, d) each.
            partners: Likewise, shape (..., B, N, d) each.
            contact: Sums of the radii and the safety margin, broadcasting to (B, N), m.
            partner_accel: As for `filter`.

        Raises:
            ConfigurationError: One of them is no tensor.
        """
        require_kinds(
            "barrier_values",
            ego=(ego, [Tensor]),
            partners=(partners, [Tensor]),
            contact=(contact, Tensor),
        )
        _, distance, closing, _ = pair_geometry_batch(
            ego[0].unsqueeze(1) - partners[0], ego[1].unsqueeze(1) - partners[1]
        )
        pair = self._pairs(ego[0])
        if self._options.max_age_s > 0.0 and not self._options.measures:
            pair = self._covering(pair, contact.expand(distance.shape[-2:]))
        pair = self._as_seen(pair, partner_accel)
        return barrier_values(distance - contact, closing, pair.alpha, pair.dt, pair.gamma)

    def _pairs(self, like: Tensor) -> PairTensors:
        """Return the constants in the dtype and on the device of ``like``.

        They are moved to the device once: a graph capture allows no copy.
        """
        key = (like.dtype, like.device)
        if key not in self._kept:

            def row(values: Sequence[float]) -> Tensor:
                return torch.tensor(values, dtype=like.dtype, device=like.device)

            known = self._known
            self._kept[key] = PairTensors(
                alpha=row([pair.alpha for pair in known.parameters]),
                partner_accel=row([pair.partner_accel for pair in known.parameters]),
                relative_accel=row([pair.relative_accel for pair in known.parameters]),
                dt=self._dt,
                gamma=self._options.cbf_gamma,
                plant=self._options.plant,
                unheld_accel=row([pair.unheld_accel for pair in known.parameters]),
                shares=None if known.shares is None else row(known.shares),
                covered=torch.tensor([known.covered], device=like.device),
            )
        return self._kept[key]

    def _filter(self, step: StepInput) -> BatchedStep:
        """Filter one pass."""
        if self._capturable:
            step = step.marked()
        nominal = step.nominal
        rows = self._rows(step)
        solution = self._solve(nominal, rows, step.lambda_)
        if self._passive:
            solution = self._passively(step, solution, rows)
            rows = rows._replace(outside=torch.zeros_like(rows.outside))
        solution = self._braked(solution, rows)
        solved = (solution.status < INFEASIBLE).unsqueeze(1)
        missed = ((rows.a * solution.u.unsqueeze(1)).sum(-1) - solution.b).clamp_min(0.0)
        relaxed = (solution.lambda_ > 0.0).any(1)
        directions = nominal.new_empty((len(nominal), 0, self._dim))
        if rows.directions is not None:  # those that the action keeps to
            above = (rows.a * solution.u.unsqueeze(1)).sum(-1) - rows.level
            met = above <= _ROW_MET[nominal.dtype] * (1.0 + rows.level.abs())
            directions = torch.where(met.unsqueeze(-1), rows.directions, 0.0)
        return BatchedStep(
            action=solution.u,
            status=solution.status,
            slack=torch.where(solved, 0.0, missed),
            h=rows.h,
            margin=rows.margin,
            lambda_=solution.lambda_,
            intervention=root((solution.u - nominal).square().sum(1)),
            uncertified=~solution.proved | relaxed | rows.uncovered | rows.outside,
            directions=directions,
        )

    def _rows(self, step: StepInput) -> EgoRowsBatch:
        """Return the rows against all partners in every environment, at lambda = 0."""
        contact = step.ego_radius + self._options.margin_m + step.partner_radii
        pair = self._covering(self._pairs(step.nominal), contact)
        pair = self._as_seen(pair, step.partner_accel)
        age = step.age_s
        positions = step.partner_positions
        if age is not None:
            positions = positions + step.partner_velocities * age.unsqueeze(-1)
        motion = (
            step.ego_position.unsqueeze(1) - positions,
            step.ego_velocity.unsqueeze(1) - step.partner_velocities,
        )
        geometry = pair_geometry_batch(*motion)
        if self._options.measures:
            return self._measured_rows(step, motion, geometry, contact, pair)
        normal, distance, closing, tangential = geometry
        level, h = sampled_level(distance, contact, closing, tangential, pair)
        level = pair.shared(level) - pair.push
        margin = distance - contact
        outside = (h < -CERTIFICATE_TOLERANCE) | (margin < -OVERLAP_TOLERANCE)
        lost = ~pair.covered
        if age is not None:
            old_level, old_h, old_uncovered = self._stale(geometry, age, contact, pair)
            old = age > 0.0
            level, h = torch.where(old, old_level, level), torch.where(old, old_h, h)
            outside, lost = outside & ~old, (old & old_uncovered).any(1) | lost
        lost = lost.expand(distance.shape[:1])
        return EgoRowsBatch(-normal, level, h, margin, closing, lost, outside.any(1))

    def _measured_rows(
        self,
        step: StepInput,
        motion: tuple[Tensor, Tensor],
        geometry: PairGeometry,
        contact: Tensor,
        pair: PairTensors,
    ) -> EgoRowsBatch:
        """Return the rows along remembered directions."""
        normal, distance, closing, _ = geometry
        options, c = self._options, self._bounds.action_linf_component
        age = torch.zeros_like(distance) if step.age_s is None else step.age_s
        offers = offers_batch(
            motion,
            normal,
            contact,
            measurement_errors(
                age, pair.partner_accel, pair.dt, options.position_error, options.velocity_error
            ),
            pair,
            self._authority.every_direction,
            step.directions,
            step.nominal.clamp(-c, c),
        )
        too_old = age > options.max_age_s * (1.0 + AGE_ROUNDING)
        covered = pair.covered.expand(distance.shape[:1])
        margin = distance - contact
        return EgoRowsBatch(
            -offers.direction,
            offers.level,
            barrier_values(margin, closing, pair.alpha, pair.dt, pair.gamma),
            margin,
            closing,
            (offers.uncovered | too_old).any(1) | ~covered,
            torch.zeros_like(covered),
            torch.where(
                (offers.proved & covered.unsqueeze(1)).unsqueeze(-1), offers.direction, 0.0
            ),
        )

    def _as_seen(self, pair: PairTensors, accel: Tensor | None) -> PairTensors:
        """Return the constants for what partners showed: `cadenza.safety.cbf.expecting`."""
        if accel is None:
            return pair
        credit = self._authority.every_direction
        more = (accel - pair.partner_accel).clamp_min(0.0)
        covered = pair.covered & (more == 0.0).all(-1)
        if pair.shares is not None:
            return replace(pair, covered=covered)
        alpha = torch.minimum(pair.alpha, (credit - accel).clamp_min(LEAST_CREDIT * credit))
        return replace(
            pair,
            alpha=torch.where(more > 0.0, alpha, pair.alpha),
            partner_accel=pair.partner_accel + more,
            relative_accel=pair.relative_accel + more,
            unheld_accel=pair.unheld_accel + more,
            covered=covered,
        )

    def _covering(self, pair: PairTensors, contact: Tensor) -> PairTensors:
        """Return the constants less what the declared packet age costs, and where they hold."""
        covered, options = pair.covered, self._options
        if options.measures:  # as `cadenza.safety.authority.pair_constants`
            return pair
        if options.max_age_s > 0.0:
            reach = torch.full_like(pair.alpha[:1], self._authority.reach)
            pair, left = derated_batch(pair, reach, contact, options.max_age_s)
            if not self._capturable and not bool(left.all()):
                raise ConfigurationError(
                    f"ego-only filter: expected authority left at max_age_s = "
                    f"{options.max_age_s:.4g} s against every partner, got none against some; "
                    "lower max_age_s or the partner's bound, or raise margin_m."
                )
            covered = covered & left.all(-1)
        if options.plant == "zoh":
            short = (pair.unheld_accel * self._dt * self._dt <= 6.0 * contact).all(-1)
            if not self._capturable and not bool(short.all()):
                raise ConfigurationError(
                    "ego-only filter: expected a_p dt^2 <= 6 D for every partner, got dt = "
                    f"{self._dt:.4g} s, too long for some bound a_p and contact distance D; "
                    "shorten the control step."
                )
            covered = covered & short
        return replace(pair, covered=covered)

    def _stale(
        self,
        geometry: PairGeometry,
        age: Tensor,
        contact: Tensor,
        pair: PairTensors,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return level less push, h and what is uncovered for partners known from the past."""
        _, distance, closing, tangential = geometry
        every_direction = self._authority.every_direction
        open_ = staleness_batch(age, pair.partner_accel, pair.dt, distance, contact)
        # The ego accelerates along the true normal; the worst push needs no correction.
        loss = pair.push + self._authority.reach * open_.tilt
        level, h, h_best = stale_levels(distance, contact, closing, tangential, pair, open_)
        level = pair.shared(level) - loss
        too_old = age > self._options.max_age_s * (1.0 + AGE_ROUNDING)
        overlapping = distance - contact + open_.position < -OVERLAP_TOLERANCE
        outside = too_old | (h_best < -CERTIFICATE_TOLERANCE) | overlapping
        lone = self._options.always_feasible and distance.shape[1] == 1
        sure = braking_meets_row(pair, contact) & lone
        uncovered = outside | ((level < -every_direction) & ~sure)
        floored = level.clamp_min(-every_direction)
        return torch.where(outside, level, floored), h, uncovered

    def _solve(self, u: Tensor, rows: EgoRowsBatch, wanted: Tensor | None) -> _Solution:
        """Solve with lambda as tight as each row allows, then without it if the rows conflict."""
        used = self._granted(rows, wanted)
        if self._are_few(u, rows, wanted):
            return self._solve_few(u, rows, used)
        if wanted is None:
            return self._project(u, rows, used, None)
        tightened = (used < 0.0).any(1)
        solution = self._project(u, rows, used, ~tightened)
        failed = (solution.status == INFEASIBLE) | (solution.status == NOT_CONVERGED)
        again = failed & tightened
        if not self._masks(u) and not bool(again.any()):
            return solution
        return solution.where(again, self._project(u, rows, used.clamp_min(0.0), again))

    def _are_few(self, u: Tensor, rows: EgoRowsBatch, wanted: Tensor | None) -> bool:
        """Return whether the code of one environment solves those that clipping leaves.

        It follows no gradients and makes no allowance for float32's rounding.
        """
        tracked = torch.is_grad_enabled() and any(
            x is not None and x.requires_grad for x in (u, rows.a, rows.level, wanted)
        )
        plain = u.dtype == torch.float64 and not self._masks(u)
        return plain and not tracked and u.shape[0] <= FEW

    def _granted(self, rows: EgoRowsBatch, wanted: Tensor | None) -> Tensor:
        """Return the lambda that enters the rows: `filters.projection.granted` on tensors."""
        if wanted is None:
            return torch.zeros_like(rows.level)
        # As `filters.projection.feasible_lambda`; the box is symmetric.
        lowest = -(rows.a.abs() * self._bounds.action_linf_component).sum(-1)
        tightest = lowest - rows.level + FEASIBILITY_ROOM
        tight = torch.maximum(wanted, tightest).clamp_max(0.0)
        return torch.where(wanted >= 0.0, wanted, tight)

    def _solve_few(self, u: Tensor, rows: EgoRowsBatch, used: Tensor) -> _Solution:
        """Clip to the box where that meets all rows, and solve the others one after the other."""
        c, n = self._bounds.action_linf_component, u.shape[1]
        b, x = rows.level + used, u.clamp(-c, c)
        missed = -b
        for a_k, x_k in zip(rows.a.unbind(-1), x.unsqueeze(1).unbind(-1), strict=True):
            missed = missed + a_k * x_k
        status = torch.where((x == u).all(1), INACTIVE, OPTIMAL).to(torch.int8)
        hard = (missed > 0.0).any(1).nonzero().squeeze(1)
        if len(hard) > 0:
            box, solver = ([-c] * n, [c] * n), DaqpSolver()
            found: list[tuple[list[float], int, list[float], list[float]]] = []
            for u_i, used_i, *pairs in zip(
                *(numbers_of(values[hard]) for values in (u, used, *rows[:5])), strict=True
            ):
                answer = project(u_i, PairRows(*pairs), used_i, box, solver)
                code = code_of(answer.status)
                code = INACTIVE if code == OPTIMAL and answer.x == u_i else code
                found.append((answer.x, code, answer.lambda_, answer.b))
            actions, codes, lambdas, levels = zip(*found, strict=True)
            x = x.index_copy(0, hard, u.new_tensor(actions))
            status = status.index_copy(0, hard, status.new_tensor(codes))
            used = used.index_copy(0, hard, u.new_tensor(lambdas))
            b = b.index_copy(0, hard, u.new_tensor(levels))
        return _Solution(x, status, used, b, status < INFEASIBLE)

    def _masks(self, u: Tensor) -> bool:
        """Return whether every stage runs for all environments, and a mask chooses."""
        return u.is_cuda or self._capturable

    def _project(
        self, u: Tensor, rows: EgoRowsBatch, lambda_: Tensor, final: Tensor | None
    ) -> _Solution:
        """Project with the given slack; see `project_ranked` for ``final``."""
        b, urgency = rows.level + lambda_, time_left(rows.margin, rows.closing)
        box = torch.full_like(u, self._bounds.action_linf_component)
        answer = project_ranked(
            u,
            rows.a,
            b,
            -box,
            box,
            torch.ones_like(b, dtype=torch.bool),
            first=most_urgent(rows.h, urgency),
            weight=SLACK_WEIGHT * (1.0 + 1.0 / urgency.clamp_min(1e-3)),
            final=final,
            capturable=self._capturable,
        )
        return _Solution(answer.u, answer.status, lambda_, b, answer.status < INFEASIBLE)

    def _passively(self, step: StepInput, solution: _Solution, rows: EgoRowsBatch) -> _Solution:
        """Return the solution where it keeps passive safety, and elsewhere what does."""
        pair = self._as_seen(self._pairs(step.nominal), step.partner_accel)
        scene = PassiveScene(
            step.ego_position.unsqueeze(1) - step.partner_positions,
            step.ego_velocity,
            step.partner_velocities,
            pair.partner_accel,
            step.ego_radius + self._options.margin_m + step.partner_radii,
            self._credit,
            pair.dt,
            self._options.contact_speed,
        )
        u, kept = passive_action(torch, scene, solution.u, look=not self._masks(step.nominal))
        missed = ((rows.a * u.unsqueeze(1)).sum(-1) - solution.b).amax(1) > PASSIVE_MET
        status = torch.where(missed, INFEASIBLE, OPTIMAL).to(torch.int8)
        bad = solution.status == BAD_INPUT
        same = bad | (u == solution.u).all(1)
        return solution._replace(
            u=torch.where(same.unsqueeze(1), solution.u, u),
            status=torch.where(same, solution.status, status),
            proved=kept & ~bad,
        )

    def _braked(self, solution: _Solution, rows: EgoRowsBatch) -> _Solution:
        """Return the solution with a lone row that cannot be met answered by a push straight away.

        It keeps the safe set, see docs/safety.md.
        """
        if self._radial_accel is None:
            return solution
        lost = solution.status == INFEASIBLE
        if not self._masks(solution.u) and not bool(lost.any()):
            return solution
        braked = lost & ~(rows.uncovered | rows.outside)
        radial = -self._radial_accel * rows.a[:, 0]
        u = torch.where(braked.unsqueeze(1), radial, solution.u)
        return solution._replace(u=u, proved=solution.proved | braked)


def _require_followed(
    options: EgoOnlyOptions,
    ego_model: AgentControlModel,
    partner_models: Sequence[AgentControlModel],
) -> None:
    """Raise ConfigurationError for what only the filter of one environment follows."""
    if not isinstance(ego_model, DoubleIntegratorControlModel):
        raise ConfigurationError(
            "BatchedEgoFilter: expected a DoubleIntegratorControlModel as the ego, got "
            f"{type(ego_model).__name__}; use the filter of one environment."
        )
    require_one_space([ego_model, *partner_models])
    if options.rate_limit != "off" or options.prediction_error is not None:
        raise ConfigurationError(
            "BatchedEgoFilter: expected neither rate_limit nor prediction_error; use the "
            "filter of one environment for them."
        )
    if options.barrier != "sampled":
        raise ConfigurationError(
            f'BatchedEgoFilter: expected barrier="sampled", got {options.barrier!r}; use '
            "ExpCBFQP.ego_only, the filter of one environment, for the classical row and the "
            "published filter."
        )
    if options.strategy is not None and not all(
        isinstance(model, DoubleIntegratorControlModel) for model in partner_models
    ):
        raise ConfigurationError(
            "BatchedEgoFilter: budget_split needs double integrators on both sides, whose "
            "shares are the same in every environment; use the filter of one environment."
        )


def most_urgent(h: Tensor, urgency: Tensor) -> Tensor:
    """Return the row with the smallest (h, time left, index), shape (B,)."""
    if h.shape[1] == 0:
        return torch.zeros(h.shape[:1], dtype=torch.int64, device=h.device)
    lowest = h == h.amin(1, keepdim=True)
    left = torch.where(lowest, urgency, torch.inf)
    soonest = lowest & (left == left.amin(1, keepdim=True))
    return first_largest(soonest.to(torch.int8).T)
