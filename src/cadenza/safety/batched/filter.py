"""The ego-only filter for many environments at once.

The same rows, hierarchy and flags as `cadenza.safety.filters.ego_only.EgoOnlyCBFQP`, environment by
environment; in float64 the same actions to 1e-12 where the rows can be met, and to 1e-8 where the
least violation is returned.

Axes:     B environments, N partners, n action components, d Cartesian dimensions.
Units:    actions in the ego's action unit, everything else SI.
Raising:  never because of one environment's rows: a step without an admissible action is a status.
          A caller that reproduces the published filter (``compat="upstream"``), which raises
          there, looks at the status.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from cadenza.core.errors import ConfigurationError
from cadenza.safety.batched.constants import ActionMap, ConstantsSource, EgoConstants
from cadenza.safety.batched.ego_rows import (
    BatchRowRule,
    EgoRowsBatch,
    Motion,
    build_ego_rows_batch,
)
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
from cadenza.safety.batched.levels import root, sampled_level, wae_level_batch
from cadenza.safety.batched.projection import Rescue, chunk_size, project_batch
from cadenza.safety.batched.stale import derated_batch
from cadenza.safety.batched.status import BAD_INPUT, INFEASIBLE, NOT_CONVERGED, OPTIMAL
from cadenza.safety.bounds import Bounds
from cadenza.safety.budget_split import BudgetSplitStrategy
from cadenza.safety.filters.arguments import MAX_DT, MIN_DT
from cadenza.safety.filters.ego_options import (
    Barrier,
    Compat,
    EgoOnlyOptions,
    MultiPartner,
    RateLimit,
)
from cadenza.safety.filters.projection import FEASIBILITY_ROOM, SLACK_WEIGHT
from cadenza.safety.protocols import AgentControlModel
from cadenza.safety.rows.barrier import DEFAULT_CBF_GAMMA, Plant
from cadenza.safety.rows.passive import PASSIVE_MET, PassiveScene, passive_action
from cadenza.safety.rows.wae import CbfPower


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
    """Return lambda, (B, N), no tighter than each row allows; see `ego_rows.feasible_lambda`."""
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
        cbf_gamma: See `EgoOnlyOptions`, as for all down to ``rate_limit``.
        plant: How the plant integrates.
        margin_m: Distance beside the radii, m.
        prediction_error: Trust in forecasts, m/s^2.
        barrier: Which row.
        compat: Reproduce the published filter, except that nothing is raised.
        cbf_power: Exponent of the classical row.
        max_age_s: Packet age the guarantee covers, s.
        budget_split: Share rows with partners that run the same filter.
        rate_limit: What ``bounds.action_rate`` does.
        multi_partner: What several partners are met by.
        contact_speed: Own speed tolerated at a contact, m/s.
        rescue: See `project_batch`.
        fixed_shape: See `project_batch`.
        validate: Raise for bad numbers, which waits for the device. Without it an environment
            with bad numbers gets the status `BAD_INPUT` and a zero action.

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
        cbf_gamma: float = DEFAULT_CBF_GAMMA,
        plant: Plant = "zoh",
        margin_m: float = 0.0,
        prediction_error: float | None = None,
        barrier: Barrier = "sampled",
        compat: Compat | None = None,
        cbf_power: CbfPower = 1,
        max_age_s: float = 0.0,
        budget_split: BudgetSplitStrategy | str | None = None,
        rate_limit: RateLimit = "off",
        multi_partner: MultiPartner = "rows",
        contact_speed: float = 0.0,
        rescue: Rescue = "daqp",
        fixed_shape: bool | None = None,
        validate: bool = True,
    ) -> None:
        if not MIN_DT <= dt <= MAX_DT:
            raise ConfigurationError(
                f"BatchedEgoFilter: dt: expected seconds in [{MIN_DT:g}, {MAX_DT:g}], got {dt}."
            )
        self._options = EgoOnlyOptions(
            cbf_gamma=cbf_gamma,
            plant=plant,
            margin_m=margin_m,
            prediction_error=prediction_error,
            barrier=barrier,
            compat=compat,
            cbf_power=cbf_power,
            max_age_s=max_age_s,
            budget_split=budget_split,
            rate_limit=rate_limit,
            multi_partner=multi_partner,
            contact_speed=contact_speed,
        )
        self._rule = BatchRowRule(
            level=sampled_level if barrier == "sampled" else wae_level_batch(cbf_power),
            prediction_error=0.0 if self._options.upstream else prediction_error,
            max_age_s=max_age_s,
            always_feasible=self._options.always_feasible,
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
