"""The ego-only filter for many environments at once.

The same rows, hierarchy and flags as `cadenza.safety.filters.ego_only.EgoOnlyCBFQP`, environment by
environment; in float64 the same actions to 1e-12 where the rows can be met, and to 1e-8 where the
least violation is returned.

Axes:     B environments, N partners, n action components, d Cartesian dimensions.
Units:    actions in the ego's action unit, everything else SI.
Raising:  never because of one environment's rows: a step without an admissible action is a status.
          A caller that reproduces the published filter (``compat="upstream"``), which raises
          there, looks at the status.

Rows of one step on the ego's action in many environments: `filters.ego_only` on tensors.

Axes:  B environments, N partners, n action components, d Cartesian dimensions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cadenza.core.errors import ConfigurationError
from cadenza.safety.batched.cbf import (
    BatchLevelFunction,
    PairGeometry,
    derated_batch,
    pair_geometry_batch,
    root,
    sampled_level,
    stale_levels,
    staleness_batch,
    time_left,
    wae_level_batch,
    worst_closing_speed_batch,
)
from cadenza.safety.batched.constants import ActionMap, ConstantsSource, EgoConstants
from cadenza.safety.batched.extremes import first_largest
from cadenza.safety.batched.inputs import (
    StepInput,
    marked,
    require_authority,
    require_numbers,
    require_short_step,
    require_step,
    require_tensor,
    tensor_like,
)
from cadenza.safety.batched.projection import Rescue, chunk_size, project_batch
from cadenza.safety.batched.status import BAD_INPUT, INFEASIBLE, NOT_CONVERGED, OPTIMAL
from cadenza.safety.bounds import Bounds
from cadenza.safety.cbf import (
    CERTIFICATE_TOLERANCE,
    OVERLAP_TOLERANCE,
    braking_meets_row,
)
from cadenza.safety.filter_options import (
    EgoOnlyOptions,
)
from cadenza.safety.filters.arguments import MAX_DT, MIN_DT
from cadenza.safety.filters.ego_only import AGE_ROUNDING
from cadenza.safety.filters.projection import FEASIBILITY_ROOM, SLACK_WEIGHT
from cadenza.safety.passive import PASSIVE_MET, PassiveScene, passive_action
from cadenza.safety.protocols import AgentControlModel


class Motion(NamedTuple):
    """Motion of one ego and its partners in every environment.

    Attributes:
        ego_position: Shape (B, d), m.
        ego_velocity: Shape (B, d), m/s.
        positions: Last reported centres of the partners, shape (B, N, d), m.
        velocities: Their velocities, shape (B, N, d), m/s.
        contact: Sums of the radii and the safety margin, broadcasting to (B, N), m.
        age_s: Ages of the reports, shape (B, N), s; None if all are current.
        predicted: The partners' velocities one step ahead, shape (B, N, d); None for unchanged.
    """

    ego_position: Tensor
    ego_velocity: Tensor
    positions: Tensor
    velocities: Tensor
    contact: Tensor
    age_s: Tensor | None
    predicted: Tensor | None


class EgoRowsBatch(NamedTuple):
    """Rows before lambda.

    Attributes:
        a: Row vectors on the ego's action, shape (B, N, n).
        level: Right-hand sides at lambda = 0, shape (B, N), m/s^2.
        h: Barrier values at the best estimate of the state, shape (B, N), m/s.
        margin: Free distance less the safety margin, shape (B, N), m.
        time_left: Time until the margin is used up at today's speed, shape (B, N), s.
        uncovered: The certificate does not cover the step, shape (B,).
        outside: A state is outside the safe set, shape (B,).
    """

    a: Tensor
    level: Tensor
    h: Tensor
    margin: Tensor
    time_left: Tensor
    uncovered: Tensor
    outside: Tensor


@dataclass(frozen=True, slots=True)
class BatchRowRule:
    """How rows are built, the same in every step."""

    level: BatchLevelFunction
    prediction_error: float | None
    max_age_s: float
    always_feasible: bool = True


def build_ego_rows_batch(
    motion: Motion, constants: EgoConstants, rule: BatchRowRule
) -> EgoRowsBatch:
    """Return the rows against all partners in every environment."""
    positions = motion.positions
    if motion.age_s is not None:
        positions = positions + motion.velocities * motion.age_s.unsqueeze(-1)
    geometry = pair_geometry_batch(
        motion.ego_position.unsqueeze(1) - positions,
        motion.ego_velocity.unsqueeze(1) - motion.velocities,
    )
    normal, distance, closing, tangential = geometry
    contact = motion.contact.expand_as(distance)
    push, broken = _push(geometry, motion, constants, rule)
    level, h = rule.level(distance, contact, closing, tangential, constants.pair)
    level = level if constants.shares is None else constants.shares * level
    level = level - push
    outside = (h < -CERTIFICATE_TOLERANCE) | (distance - contact < -OVERLAP_TOLERANCE)
    if motion.age_s is not None:
        old_level, old_h, old_uncovered = _stale(
            geometry, motion.age_s, contact, push, constants, rule
        )
        old = motion.age_s > 0.0
        level, h = torch.where(old, old_level, level), torch.where(old, old_h, h)
        outside, broken = outside & ~old, broken | (old & old_uncovered)
    if constants.bias is not None:
        level = level + (normal * constants.bias.unsqueeze(1)).sum(-1)
    margin = distance - contact
    a = -normal if constants.jacobian is None else -(normal @ constants.jacobian)
    lost = broken.any(1) | ~constants.covered
    return EgoRowsBatch(a, level, h, margin, time_left(margin, closing), lost, outside.any(1))


def _push(
    geometry: PairGeometry, motion: Motion, constants: EgoConstants, rule: BatchRowRule
) -> tuple[Tensor, Tensor]:
    """Return the assumed partner acceleration towards the ego, m/s^2, and who breaks a bound."""
    nobody = torch.zeros_like(geometry.distance, dtype=torch.bool)
    if constants.shares is not None:
        return torch.zeros_like(geometry.distance), nobody
    if motion.predicted is None:
        push = torch.zeros_like(geometry.distance)
    else:
        change = (geometry.normal * (motion.predicted - motion.velocities)).sum(-1)
        elapsed = constants.pair.dt if motion.age_s is None else constants.pair.dt + motion.age_s
        push = change / elapsed
    if rule.prediction_error is not None:
        return push + rule.prediction_error, nobody
    bound = constants.pair.partner_accel
    return torch.maximum(push, bound), push > bound


def _stale(
    geometry: PairGeometry,
    age: Tensor,
    contact: Tensor,
    push: Tensor,
    constants: EgoConstants,
    rule: BatchRowRule,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return level less push, h and what is uncovered for partners known from the past."""
    _, distance, closing, tangential = geometry
    pair = constants.pair
    open_ = staleness_batch(age, pair.partner_accel, pair.dt, distance, contact)
    # Both accelerations act along the true normal; the worst push needs no correction.
    tilting = constants.reach
    if rule.prediction_error is not None:
        tilting = tilting + pair.partner_accel
    loss = push + tilting * open_.tilt
    if rule.level is not sampled_level:
        worst = worst_closing_speed_batch(closing, tangential, open_)
        still = torch.zeros_like(tangential)
        level, _ = rule.level(distance - open_.position, contact, worst, still, pair)
        _, h = rule.level(distance, contact, closing, tangential, pair)
        shared = level if constants.shares is None else constants.shares * level
        return shared - loss, h, torch.zeros_like(h, dtype=torch.bool)
    stale = stale_levels(distance, contact, closing, tangential, pair, open_)
    level = stale.level if constants.shares is None else constants.shares * stale.level
    level = level - loss
    too_old = age > rule.max_age_s * (1.0 + AGE_ROUNDING)
    overlapping = distance - contact + open_.position < -OVERLAP_TOLERANCE
    outside = too_old | (stale.h_best < -CERTIFICATE_TOLERANCE) | overlapping
    floored = torch.maximum(level, -constants.every_direction)
    lone = rule.always_feasible and distance.shape[1] == 1
    sure = braking_meets_row(pair, contact) & lone
    uncovered = outside | ((level < -constants.every_direction) & ~sure)
    return torch.where(outside, level, floored), stale.h, uncovered


@dataclass(frozen=True, slots=True, eq=False)
class Box:
    """Bounds of the action, shape (B, n) each."""

    lower: Tensor
    upper: Tensor

    def holds(self, u: Tensor) -> Tensor:
        """Return where ``u``, shape (B, n), lies inside, shape (B,)."""
        return ((self.lower <= u) & (u <= self.upper)).all(1)


def rate_box(previous: Tensor, rate: float, box: Box) -> Box:
    """Return the part of the box within ``rate`` of the previous action, all of it without one.

    Args:
        previous: Shape (B, n); a row of NaN where there was none.
        rate: Largest change of a component in one step.
        box: The box.
    """
    known = ~previous.isnan().any(1, keepdim=True)
    lower = torch.minimum(torch.maximum(previous - rate, box.lower), box.upper)
    upper = torch.maximum(torch.minimum(previous + rate, box.upper), box.lower)
    return Box(torch.where(known, lower, box.lower), torch.where(known, upper, box.upper))


def feasible_lambda_batch(wanted: Tensor, rows: EgoRowsBatch, box: Box) -> Tensor:
    """Return lambda, (B, N), no tighter than each row allows; see `projection.feasible_lambda`."""
    low, high = box.lower.unsqueeze(1), box.upper.unsqueeze(1)
    lowest = (rows.a * torch.where(rows.a > 0.0, low, high)).sum(-1)
    tightest = lowest - rows.level + FEASIBILITY_ROOM
    return torch.where(wanted >= 0.0, wanted, torch.maximum(wanted, tightest).clamp_max(0.0))


def most_urgent(rows: EgoRowsBatch) -> Tensor:
    """Return the row with the smallest (h, time left, index), shape (B,)."""
    if rows.h.shape[1] == 0:
        return torch.zeros(rows.h.shape[:1], dtype=torch.int64, device=rows.h.device)
    lowest = rows.h == rows.h.amin(1, keepdim=True)
    time_left = torch.where(lowest, rows.time_left, torch.inf)
    soonest = lowest & (time_left == time_left.amin(1, keepdim=True))
    return first_largest(soonest.to(torch.int8).T)


class BatchedStep(NamedTuple):
    """What the filter decided in every environment.

    Attributes:
        action: Shape (B, n); the nominal values, bit for bit, where nothing was active.
        status: Codes of `cadenza.safety.batched.status`, shape (B,), int8.
        slack: How far the action misses each row, shape (B, N), m/s^2; 0 where it was solved.
        h: Barrier values before the action, shape (B, N), m/s.
        margin: Free distance less the safety margin, shape (B, N), m.
        lambda_: Slack that entered each row, shape (B, N), m/s^2.
        intervention: Euclidean distance between action and nominal action, shape (B,).
        uncertified: The invariance certificate does not cover the step, shape (B,), bool.
        rate_active: The nominal action changes more in one step than the rate limit allows, (B,).
        rate_exceeded: The returned action does, because of the rows, shape (B,), bool.
    """

    action: Tensor
    status: Tensor
    slack: Tensor
    h: Tensor
    margin: Tensor
    lambda_: Tensor
    intervention: Tensor
    uncertified: Tensor
    rate_active: Tensor
    rate_exceeded: Tensor


class _Solution(NamedTuple):
    """Action (B, n), status (B,), slack lambda that was used and levels with it (B, N).

    ``proved``, (B,): the action keeps what is guaranteed although it misses a row.
    """

    u: Tensor
    status: Tensor
    lambda_: Tensor
    b: Tensor
    proved: Tensor

    @property
    def failed(self) -> Tensor:
        """Where no action meets every row, shape (B,)."""
        return (self.status == INFEASIBLE) | (self.status == NOT_CONVERGED)

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
        ego_model: The ego's control model: a double integrator, or any other whose action map is
            then given per environment and step.
        partner_models: The partners' control models, in the order of the tensors, N >= 0.
        bounds: Box of the actions, shared capacity, and the rate limit if that is on.
        dt: Control step, s.
        rescue: See `project_batch`.
        fixed_shape: See `project_batch`.
        validate: Raise for bad numbers, which waits for the device. Without it an environment
            with bad numbers gets the status `BAD_INPUT` and a zero action.
        options: Fields of `EgoOnlyOptions`; ``on_infeasible`` is left out, nothing is raised.

    Raises:
        ConfigurationError: Options out of range or without effect beside each other, dt out of
            range, or no authority against a partner.
    """

    def __init__(
        self,
        *,
        ego_model: AgentControlModel,
        partner_models: Sequence[AgentControlModel],
        bounds: Bounds,
        dt: float,
        rescue: Rescue = "daqp",
        fixed_shape: bool | None = None,
        validate: bool = True,
        **options: Any,
    ) -> None:
        if not MIN_DT <= dt <= MAX_DT:
            raise ConfigurationError(
                f"BatchedEgoFilter: dt: expected seconds in [{MIN_DT:g}, {MAX_DT:g}], got {dt}."
            )
        self._options = of_options = EgoOnlyOptions(**options, on_infeasible="least_violation")
        self._rule = BatchRowRule(
            level=sampled_level
            if of_options.barrier == "sampled"
            else wae_level_batch(of_options.cbf_power),
            prediction_error=0.0 if of_options.upstream else of_options.prediction_error,
            max_age_s=of_options.max_age_s,
            always_feasible=of_options.always_feasible,
        )
        self._source = ConstantsSource(
            ego_model=ego_model,
            partner_models=partner_models,
            bounds=bounds,
            options=self._options,
            dt=dt,
        )
        self._sizes = (len(partner_models), ego_model.position_dim, ego_model.action_dim)
        self._bounds = bounds
        lone = len(partner_models) == 1 and self._source.fixed_map
        self._credit = min(ego_model.max_cartesian_accel(bounds), bounds.action_linf_component)
        self._radial_accel = self._credit if lone and self._options.brakes_radially else None
        self._passive = self._options.passive and len(partner_models) > 1
        self._rescue: Rescue = rescue
        self._fixed_shape, self._validate = fixed_shape, validate

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
        predicted_velocities: Tensor | None = None,
        previous_action: Tensor | None = None,
        jacobian: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> BatchedStep:
        """Return the actions closest to the nominal ones that keep the egos in the safe set.

        Args:
            nominal: Shape (B, n), float64 or float32; every other tensor has its dtype.
            ego_position: Shape (B, d), m.
            ego_velocity: Shape (B, d), m/s.
            partner_positions: Last reported centres, shape (B, N, d), m.
            partner_velocities: Last reported velocities, shape (B, N, d), m/s.
            ego_radius: A number or shape (B,), m, > 0.
            partner_radii: Shape (N,) or (B, N), m, > 0; a tensor when captured in a CUDA graph.
            lambda_: Slack per pair, shape (B, N), m/s^2; None for zero.
            age_s: Time since the reports were true, shape (B, N), s; None if they are current.
            predicted_velocities: The partners' velocities one step ahead of now, shape (B, N, d);
                None forecasts constant velocity.
            previous_action: Action executed in the last step, shape (B, n); None, or a row of NaN,
                where there was none. Not looked at while the rate limit is off.
            jacobian: J of the ego's action map, shape (B, d, n); for an ego that is no double
                integrator, and then required.
            bias: Acceleration of that ego under a zero action, shape (B, d), m/s^2.

        Raises:
            InputError: Shapes or dtypes disagree; with ``validate`` also numbers that are not
                finite or out of range.
            ConfigurationError: With ``validate``: packets as old as declared leave no authority.
        """
        require_tensor("filter: nominal", nominal)
        step = self._checked(
            StepInput(
                nominal=nominal,
                ego_position=ego_position,
                ego_velocity=ego_velocity,
                partner_positions=partner_positions,
                partner_velocities=partner_velocities,
                ego_radius=tensor_like("filter: ego_radius", ego_radius, nominal),
                partner_radii=tensor_like("filter: partner_radii", partner_radii, nominal),
                lambda_=lambda_,
                age_s=age_s,
                predicted_velocities=predicted_velocities,
                previous_action=previous_action,
                jacobian=jacobian,
                bias=bias,
            ),
        )
        parts = [self._filter(part) for part in self._passes(step)]
        if len(parts) == 1:
            return parts[0]
        return BatchedStep(*(torch.cat(column) for column in zip(*parts, strict=True)))

    def _checked(self, step: StepInput) -> StepInput:
        """Return ``step``, radii per environment, after checking it."""
        step = require_step(step, self._sizes, fixed_map=self._source.fixed_map)
        if self._validate:
            require_numbers(step)
        return step

    def _passes(self, step: StepInput) -> list[StepInput]:
        """Return the step in parts that suit the cache of a CPU; see `chunk_size`."""
        partners, d, n = self._sizes
        batch = step.nominal.shape[0]
        size = batch if self._is_fixed(step.nominal) else chunk_size(partners, max(d, n))
        if batch <= size:
            return [step]
        return [step.between(start, start + size) for start in range(0, batch, size)]

    def _filter(self, step: StepInput) -> BatchedStep:
        """Filter one pass."""
        if not self._validate:
            step = marked(step)
        nominal, lambda_, previous_action = step.nominal, step.lambda_, step.previous_action
        rows = self._rows(step)
        c = self._bounds.action_linf_component
        box = Box(torch.full_like(nominal, -c), torch.full_like(nominal, c))
        if self._options.rate_limit == "off" or previous_action is None:
            nobody = torch.zeros_like(rows.uncovered)
            solution = self._solve(nominal, rows, lambda_, box)
            if self._passive:
                solution = self._passively(step, solution, rows)
                rows = rows._replace(outside=nobody)
            return _report(nominal, rows, self._braked(solution, rows), nobody, nobody)
        narrow = rate_box(previous_action, self._bounds.action_rate, box)
        solution = self._solve(nominal, rows, lambda_, narrow)
        if self._options.rate_limit == "soft":
            freed = self._solve(nominal, rows, lambda_, box)
            solution = solution.where(solution.failed, freed)
        solution = self._braked(solution, rows)
        limited = ~previous_action.isnan().any(1)
        active, exceeded = ~narrow.holds(nominal), ~narrow.holds(solution.u)
        return _report(nominal, rows, solution, active & limited, exceeded & limited)

    def _rows(self, step: StepInput) -> EgoRowsBatch:
        """Return the rows of one step at lambda = 0."""
        margin = self._options.margin_m
        contact = step.ego_radius + margin + step.partner_radii
        action_map = None if step.jacobian is None else ActionMap(step.jacobian, step.bias)
        constants = self._source.of_step(step.nominal, action_map)
        if self._options.max_age_s > 0.0:
            constants = self._with_ages(constants, contact)
        if self._options.barrier == "sampled" and self._options.plant == "zoh":
            constants = self._with_contacts(constants, contact)
        motion = Motion(
            step.ego_position,
            step.ego_velocity,
            step.partner_positions,
            step.partner_velocities,
            contact,
            None if self._options.upstream else step.age_s,
            step.predicted_velocities,
        )
        return build_ego_rows_batch(motion, constants, self._rule)

    def _with_ages(self, constants: EgoConstants, contact: Tensor) -> EgoConstants:
        """Return the constants less what the declared packet age costs."""
        pair, left = derated_batch(
            constants.pair, constants.reach, contact, self._options.max_age_s
        )
        fixed = self._source.fixed_map
        if fixed and self._validate:
            require_authority(left, self._options.max_age_s)
        # The reach of a state-dependent map, and so alpha, varies from step to step.
        covered = constants.covered & left.all(-1) if fixed else constants.covered & False
        return replace(constants, pair=pair, covered=covered)

    def _with_contacts(self, constants: EgoConstants, contact: Tensor) -> EgoConstants:
        """Return the constants, not covered where a partner may outturn the ego in a step."""
        dt, unheld = constants.pair.dt, constants.pair.unheld_accel
        short = (unheld * dt * dt <= 6.0 * contact).all(-1)
        if self._validate:
            require_short_step(short, dt)
        return replace(constants, covered=constants.covered & short)

    def _solve(self, u: Tensor, rows: EgoRowsBatch, wanted: Tensor | None, box: Box) -> _Solution:
        """Solve with lambda as tight as each row allows, then without it if the rows conflict."""
        if wanted is None:
            return self._project(u, rows, torch.zeros_like(rows.level), box)
        if self._options.upstream:
            return self._project(u, rows, wanted, box)
        used = feasible_lambda_batch(wanted, rows, box)
        solution = self._project(u, rows, used, box)
        again = solution.failed & (used < 0.0).any(1)
        if not self._is_fixed(u):
            index = again.nonzero().squeeze(1)
            if index.numel() == 0:
                return solution
        relaxed = self._project(u, rows, used.clamp_min(0.0), box)
        return solution.where(again, relaxed)

    def _is_fixed(self, u: Tensor) -> bool:
        return u.is_cuda if self._fixed_shape is None else self._fixed_shape

    def _project(self, u: Tensor, rows: EgoRowsBatch, lambda_: Tensor, box: Box) -> _Solution:
        """Project with the given slack."""
        b = rows.level + lambda_
        answer = project_batch(
            u,
            rows.a,
            b,
            box.lower,
            box.upper,
            first=most_urgent(rows),
            weight=SLACK_WEIGHT * (1.0 + 1.0 / rows.time_left.clamp_min(1e-3)),
            rescue=self._rescue,
            fixed_shape=self._fixed_shape,
            validate=False,  # the filter has checked its own input
        )
        return _Solution(answer.u, answer.status, lambda_, b, answer.status < INFEASIBLE)

    def _passively(self, step: StepInput, solution: _Solution, rows: EgoRowsBatch) -> _Solution:
        """Return the solution where it keeps passive safety, and elsewhere what does."""
        pair = self._source.of_step(step.nominal, None).pair
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
        u, kept = passive_action(torch, scene, solution.u, look=not self._is_fixed(step.nominal))
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
        braked = (solution.status == INFEASIBLE) & ~(rows.uncovered | rows.outside)
        radial = -self._radial_accel * rows.a[:, 0]
        u = torch.where(braked.unsqueeze(1), radial, solution.u)
        return solution._replace(u=u, proved=solution.proved | braked)


def _report(
    nominal: Tensor,
    rows: EgoRowsBatch,
    solution: _Solution,
    rate_active: Tensor,
    rate_exceeded: Tensor,
) -> BatchedStep:
    """Return the record of one step."""
    solved = (solution.status < INFEASIBLE).unsqueeze(1)
    missed = ((rows.a * solution.u.unsqueeze(1)).sum(-1) - solution.b).clamp_min(0.0)
    relaxed = (solution.lambda_ > 0.0).any(1)
    return BatchedStep(
        action=solution.u,
        status=solution.status,
        slack=torch.where(solved, 0.0, missed),
        h=rows.h,
        margin=rows.margin,
        lambda_=solution.lambda_,
        intervention=root((solution.u - nominal).square().sum(1)),
        uncertified=~solution.proved | relaxed | rows.uncovered | rows.outside,
        rate_active=rate_active,
        rate_exceeded=rate_exceeded,
    )
