"""The filter with a backup for many environments at once: `BackupFilter` in each of them.

Order:   as in `filter`: the nominal actions of all environments at once; only those that fail go on
         to the next candidate together.
Few:     below `FEW` robots the scalar base decides one after the other, which is faster then; so it
         does where a path bends around a corner, and for bases that act with a delay.
Equal:   a property test proves sources and flags equal to `BackupFilter`'s, and actions and plans
         to 1e-12, or to 1e-10 where a command was moved so little that its direction is rounded.
Axes:    N environments, J partners, K parts of obstacles, A action components, d dimensions.
Units:   m, m/s, s; actions in the unit of the robot's model.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray, require_shape
from cadenza.core.checks import is_whole, real_array, require_kinds, shown
from cadenza.core.errors import ConfigurationError, InputError, refuse
from cadenza.safety.backup.base import Base, Partner, Plan, Scene, fastest_seen
from cadenza.safety.backup.batched_reach import (
    BatchedPlans,
    BatchedScene,
    BatchedStatics,
    Flags,
    Rows,
    norm,
)
from cadenza.safety.backup.batched_velocity import BatchedVelocityBase
from cadenza.safety.backup.filter import EQUAL, BackupFilter, choose, plan_to_json
from cadenza.safety.backup.watch import MotionCheck
from cadenza.safety.control_models import UnicycleModel, VelocityModel
from cadenza.safety.geometry import Obstacles, Shape
from cadenza.safety.snapshot import MAX_MAGNITUDE, AgentBatch, WheeledBatch

#: Robots below which the scalar base is faster: one pass over arrays costs as much as these.
FEW = 32
#: Steps that are watched for wrong units and control steps: in simulations they are wrong from the
#: first step on, and few environments decide in the time that looking takes.
WATCHED_STEPS = 1_000
#: Obstacles of all environments, or of each.
BatchedObstacles: TypeAlias = Sequence[Shape] | Obstacles | Sequence[Obstacles]


def obstacles_of_each(obstacles: BatchedObstacles, num_envs: int) -> list[Obstacles]:
    """Return the obstacles of each of ``num_envs`` environments; one object where all share it.

    Raises:
        InputError: Not shapes, or not one `Obstacles` for each environment.
    """
    if not isinstance(obstacles, Sequence) or not obstacles:
        shapes = cast("Sequence[Shape] | Obstacles", obstacles)
        return [Obstacles(()).joined(shapes)] * num_envs
    each = [one for one in obstacles if isinstance(one, Obstacles)]
    if len(each) < len(obstacles):
        return [Obstacles(cast("Sequence[Shape]", obstacles))] * num_envs
    if len(each) != num_envs:
        expected = f"one for each of {num_envs} environments"
        refuse(InputError, "obstacles", expected=expected, got=len(each))
    return each


#: Obstacles, each with the environments that have them.
_Groups: TypeAlias = Sequence[tuple[Obstacles, Rows]]


@dataclass(frozen=True, slots=True, eq=False)
class BatchedBackupStep:
    """One decision in every environment; see `BackupStep`.

    Attributes:
        action: What to execute, shape (N, A); the nominal bits where they were certified.
        backup: Where it came from, shape (N,), text.
        uncertified: Shape (N,).
        static_margin: Gap to every obstacle, shape (N, K), m; infinite where an environment has
            fewer than another.
        static_uncertified: Shape (N,).
        margin: Free distance to every partner, shape (N, J), m.
        bounds_broken: A partner was measured to be faster than it declares, shape (N,).
    """

    action: FloatArray
    backup: NDArray[np.str_]
    uncertified: Flags
    static_margin: FloatArray
    static_uncertified: Flags
    margin: FloatArray
    bounds_broken: Flags


class BatchedBackupFilter:
    """Keeps the robots of many environments clear of obstacles and partners.

    Args:
        single: The filter of one environment. Every environment is decided as by a copy of it;
            itself it is left as it is.
        num_envs: N, >= 1.
        together: Decide many robots at once; else one after the other, with the bits of `single`,
            which then depend neither on N nor on the other environments.

    Raises:
        ConfigurationError: An argument is of another kind or out of range.
    """

    def __init__(self, single: BackupFilter, num_envs: int, *, together: bool = True) -> None:
        require_kinds("BatchedBackupFilter", single=(single, BackupFilter))
        if not (is_whole(num_envs) and num_envs >= 1):
            expected = "a whole number >= 1"
            refuse(
                ConfigurationError, "BatchedBackupFilter.num_envs", expected=expected, got=num_envs
            )
        self._single, self._robot, self._partners = single, single.robot, single.bounds
        #: Decides one row; commands that act later in its environment are put into it before.
        self._base = single.new_base()
        self._states = [self._base.state_dict() for _ in range(num_envs)]
        self._batch = _batch_of(single) if together else None
        self._watch, self._watched = MotionCheck(single.robot, single.settings), 0
        self._shape = num_envs, self._robot.action_dim
        self._plans = self._no_plans()

    @property
    def num_envs(self) -> int:
        """Environments N."""
        return self._shape[0]

    @property
    def single(self) -> BackupFilter:
        """The filter that every environment is decided as by."""
        return self._single

    def _no_plans(self) -> BatchedPlans:
        normals = np.zeros((self.num_envs, len(self._partners), self._robot.position_dim))
        exists = np.zeros(self.num_envs, dtype=np.bool_)
        return BatchedPlans(exists, normals, np.zeros(self._shape))

    def reset(self, rows: Iterable[int] | None = None) -> None:
        """Forget what is remembered of the environments ``rows``, or of all."""
        begun = list(range(len(self._states)) if rows is None else rows)
        self._plans.exists[begun] = False
        for row in begun:
            self._states[row] = self._single.new_base().state_dict()
        self._watch.forget(begun)

    def filter(
        self,
        nominal: FloatArray,
        agents: AgentBatch,
        *,
        obstacles: BatchedObstacles | None = None,
    ) -> BatchedBackupStep:
        """Return what to execute in every environment.

        Args:
            nominal: What the policies want, shape (N, A), in the unit of the model.
            agents: The robot and all partners; a `WheeledBatch` for one with a heading.
            obstacles: Shapes of this step besides the filter's own: of all environments, or one
                `Obstacles` for each.

        Raises:
            InputError: Actions, agents or obstacles are malformed, or an agent is missing or
                unknown.
        """
        actions = self._checked_actions(nominal)
        groups = self._groups(obstacles)
        scene, contacts = self._scene(agents)
        if self._watched < WATCHED_STEPS:
            self._watched += 1
            own = scene.positions.T, scene.velocities.T, scene.headings, scene.yaw_rates
            self._watch.look(np.vstack(own))
        remembers = self._single.remembers
        step = _Decision(self._base, self._batch, remembers, self._states, scene, groups, actions)
        step.decide(self._plans)
        offset = scene.positions[:, None] - scene.partner_positions
        broken = self._bounds_broken(scene)
        if broken.any():
            self._watch.tell_faster(self._partners, scene.partner_velocities)
        # A plan rests on the bounds: the next one is looked for as at the start.
        self._plans = step.plans._replace(exists=step.plans.exists & ~broken)
        return BatchedBackupStep(
            action=step.actions,
            backup=step.sources,
            uncertified=~step.plans.exists | broken,
            static_margin=step.static_margin,
            static_uncertified=step.static_uncertified,
            margin=norm(offset) - contacts,
            bounds_broken=broken,
        )

    def _bounds_broken(self, scene: BatchedScene) -> Flags:
        """Return where a partner was measured to be faster than it declares."""
        bounds = np.array([bound.max_speed for bound in self._partners])
        fastest = fastest_seen(bounds, self._single.settings.velocity_error)
        return np.any(norm(scene.partner_velocities) > fastest, axis=1)

    def _checked_actions(self, nominal: FloatArray) -> FloatArray:
        name = "filter: nominal actions"
        actions = np.array(real_array(name, nominal), dtype=np.float64)
        require_shape(name, actions, self._shape)
        if not bool((np.abs(actions) <= MAX_MAGNITUDE).all()):  # NaN fails too
            refuse(
                InputError, name, expected=f"finite numbers up to {MAX_MAGNITUDE:.0e}", got=nominal
            )
        return actions

    def _groups(self, obstacles: BatchedObstacles | None) -> _Groups:
        """Return the obstacles, each with the environments that have them."""
        if obstacles is None:
            return [(self._single.around(None), np.arange(self.num_envs))]
        each = obstacles_of_each(obstacles, self.num_envs)
        rows: dict[int, list[int]] = {}
        for row, one in enumerate(each):
            rows.setdefault(id(one), []).append(row)
        return [(self._single.around(each[some[0]]), np.array(some)) for some in rows.values()]

    def _scene(self, agents: AgentBatch) -> tuple[BatchedScene, FloatArray]:
        """Return what bases read, and the sum of radii with each partner, shape (J,), m."""
        count, dim = self.num_envs, self._robot.position_dim
        require_kinds("filter", agents=(agents, AgentBatch))
        known = [self._robot.uid, *(bound.uid for bound in self._partners)]
        self._single.require_known(agents.uids)
        require_shape("filter: agents.positions", agents.positions, (count, len(known), dim))
        ego, *others = (agents.uids.index(uid) for uid in known)
        self._single.require_radius(float(agents.radii[ego]))
        ages = np.zeros((count, len(known))) if agents.ages_s is None else agents.ages_s
        if ages[:, ego].any():
            name = f"filter: agents.ages_s of {self._robot.uid!r}"
            refuse(
                InputError, name, expected="0: the robot's own state is current", got=ages[:, ego]
            )
        headings = yaw_rates = np.zeros(count)
        if isinstance(agents, WheeledBatch):
            headings, yaw_rates = agents.headings, agents.yaw_rates
        elif isinstance(self._robot, UnicycleModel):
            expected = "a WheeledBatch, which has headings"
            refuse(InputError, "filter: agents", expected=expected, got=type(agents).__name__)
        contacts = agents.radii[ego] + agents.radii[others]
        return (
            BatchedScene(
                positions=agents.positions[:, ego],
                velocities=agents.velocities[:, ego],
                headings=headings,
                yaw_rates=yaw_rates,
                partner_positions=agents.positions[:, others],
                partner_velocities=agents.velocities[:, others],
                partners=self._partners,
                contacts_m=contacts + self._single.kept_m,
                ages_s=ages[:, others],
                clearance_m=float(agents.radii[ego]) + self._single.kept_m,
            ),
            contacts,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the memory as JSON can hold it, one `BackupFilter.state_dict` per environment."""
        return {
            "rows": [
                {"plan": plan_to_json(self.plan(row)), "base": state}
                for row, state in enumerate(self._states)
            ]
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`.

        Raises:
            InputError: It is none of this filter's; the filter is then unchanged.
        """
        try:
            records, plans = list(state["rows"]), self._no_plans()
            for row, record in zip(range(self.num_envs), records, strict=True):
                _put(plans, row, self._single.read_plan(record["plan"]))
                self._base.load_state_dict(record["base"])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise InputError(
                "BatchedBackupFilter.load_state_dict: expected what state_dict gave for "
                f"{self.num_envs} environments, got {shown(state)}."
            ) from error
        self._plans, self._states = plans, [record["base"] for record in records]
        self._watch.forget()

    def plan(self, row: int) -> Plan | None:
        """Return the remembered plan of an environment."""
        return _get(self._plans, row, self._single.remembers)


def _batch_of(single: BackupFilter) -> BatchedVelocityBase | None:
    """Return what decides all rows at once; None where the scalar base decides each."""
    robot = single.robot
    if isinstance(robot, VelocityModel) and robot.delay_s == 0.0:
        return BatchedVelocityBase(robot, single.settings)
    return None


def _get(plans: BatchedPlans, row: int, remembers: bool) -> Plan | None:
    if not plans.exists[row]:
        return None
    if not remembers:
        return Plan((), ())
    normals = tuple([tuple(n) for n in plans.normals[row].tolist()])
    return Plan(normals, tuple(plans.commands[row].tolist()))


def _put(plans: BatchedPlans, row: int, plan: Plan | None) -> None:
    """Remember the plan of a row."""
    plans.exists[row] = plan is not None
    if plan is not None and plan.normals:
        plans.normals[row] = plan.normals
    if plan is not None and plan.command:
        plans.commands[row] = plan.command


class _Decision:
    """One decision of all environments.

    Attributes:
        actions: The chosen ones, shape (N, A).
        sources: Shape (N,).
        plans: After this step.
        static_margin: Shape (N, K), m.
        static_uncertified: Shape (N,).
    """

    def __init__(
        self,
        base: Base,
        batch: BatchedVelocityBase | None,
        remembers: bool,
        states: list[dict[str, object]],
        scene: BatchedScene,
        groups: _Groups,
        nominal: FloatArray,
    ) -> None:
        count = len(nominal)
        self._base, self._batch, self._states = base, batch, states
        self._remembers = remembers
        self._scene, self._groups, self._nominal = scene, groups, nominal
        self._obstacles = [groups[0][0]] * count
        for obstacles, rows in groups:
            for row in rows.tolist():
                self._obstacles[row] = obstacles
        self.actions = nominal.copy()
        self.sources: NDArray[np.str_] = np.full(count, "none", dtype="<U6")
        parts = max(len(one) for one, _ in groups)
        self.static_margin = np.full((count, parts), math.inf)
        self.static_uncertified: Flags = np.zeros(count, dtype=np.bool_)
        #: Of the actions that are clear of obstacles only: how far the best leads away; which it is
        self._away = np.full(count, -math.inf)
        self._kept, self._kept_source = nominal.copy(), self.sources.copy()
        self._is_kept: Flags = np.zeros(count, dtype=np.bool_)

    def decide(self, plans: BatchedPlans) -> None:
        """Choose an action for every environment; ``plans`` are those remembered."""
        self._remembered = plans
        count = len(self._nominal)
        self.plans = plans.at(np.arange(count))
        batch = self._batch
        if batch is None or count < FEW:
            self._one_by_one(np.arange(count))
            return
        statics = None
        if self.static_margin.size:
            statics = BatchedStatics(self._groups, self._scene.positions, self._scene.clearance_m)
            self.static_margin = statics.excess
            self.static_uncertified = statics.too_close.copy()
        batch.look(self._scene, statics)
        self._held = plans._replace(exists=batch.still_holds(plans))
        admitted, intact = batch.admissible(self._nominal)
        self._left: Flags = np.ones(count, dtype=np.bool_)
        (rows,) = np.nonzero(intact)
        self._try(batch, rows, self._nominal[rows], "none")
        (rows,) = np.nonzero(self._left)
        if len(rows) >= FEW:
            for candidate in batch.candidates(rows, admitted[rows], self._held.at(rows)):
                source, actions, offered = candidate
                some = offered & self._left[rows]
                self._try(batch, rows[some], actions[some], source)
                if np.count_nonzero(self._left) < FEW:
                    break
            else:
                self._rest(batch)
        self._one_by_one(np.flatnonzero(self._left))

    def _try(
        self,
        batch: BatchedVelocityBase,
        rows: Rows,
        actions: FloatArray,
        source: str,
        *,
        resting: bool = False,
    ) -> None:
        """Execute actions where they pass both checks; keep in mind those that pass the first."""
        if not len(rows):
            return
        clear, unsure = batch.static_clear(rows, actions, resting=resting)
        for k in np.flatnonzero(unsure).tolist():
            self._look(int(rows[k]))
            base = self._base
            clear[k] = base.static_clear(base.stop() if resting else tuple(actions[k].tolist()))
        rows, actions = rows[clear], actions[clear]
        plans = self._plans_after(batch, rows, actions)
        passed = plans.exists
        done = rows[passed]
        self._execute(done, actions[passed], source, plans.at(passed))
        rows, actions = rows[~passed], actions[~passed]
        away = batch.separation(rows, actions)
        better = ~self._is_kept[rows] | (away > self._away[rows] + EQUAL)
        rows = rows[better]
        self._is_kept[rows], self._away[rows] = True, away[better]
        self._kept[rows], self._kept_source[rows] = actions[better], source

    def _plans_after(
        self, batch: BatchedVelocityBase, rows: Rows, actions: FloatArray
    ) -> BatchedPlans:
        """Return the plans that are possible after actions: the remembered ones after their own."""
        plans = self._held.at(rows)
        (new,) = np.nonzero(~plans.exists | (actions != plans.commands).any(axis=1))
        if len(new):
            plans.put(new, batch.partner_plan(rows[new], actions[new], plans.at(new)))
        return plans

    def _execute(self, rows: Rows, actions: FloatArray, source: str, plans: BatchedPlans) -> None:
        self._left[rows] = False
        self.actions[rows], self.sources[rows] = actions, source
        self.plans.put(rows, plans)

    def _rest(self, batch: BatchedVelocityBase) -> None:
        """Stop where no candidate passed, or execute the best of those clear of obstacles."""
        (rows,) = np.nonzero(self._left)
        self._try(batch, rows, np.zeros_like(self.actions[rows]), "brake", resting=True)
        (rows,) = np.nonzero(self._left & self._is_kept)
        none = self._held.at(rows)._replace(exists=np.zeros(len(rows), dtype=np.bool_))
        self._execute(rows, self._kept[rows], "", none)
        self.sources[rows] = self._kept_source[rows]
        (rows,) = np.nonzero(self._left)
        stops = np.zeros_like(self.actions[rows])
        self._execute(rows, stops, "brake", self._plans_after(batch, rows, stops))
        self.static_uncertified[rows] = True

    def _one_by_one(self, rows: Rows) -> None:
        """Decide some environments by the scalar base."""
        base = self._base
        for row in rows.tolist():
            self._look(row)
            held = _get(self._remembered, row, self._remembers)
            held = held if held and base.still_holds(held) else None
            nominal = tuple(self._nominal[row].tolist())
            chosen, source, plan, static_uncertified = choose(base, nominal, held)
            self.actions[row], self.sources[row] = chosen, source
            _put(self.plans, row, plan)
            base.executed(chosen)
            self._states[row] = base.state_dict()
            margins = base.static_margins()
            self.static_margin[row, : len(margins)] = margins
            self.static_uncertified[row] = static_uncertified

    def _look(self, row: int) -> None:
        """Show one environment to the scalar base."""
        scene = self._scene
        self._base.load_state_dict(self._states[row])
        partners = [
            Partner(tuple(x), tuple(v), contact, bound.max_speed, bound.max_accel, age)
            for x, v, contact, age, bound in zip(
                scene.partner_positions[row].tolist(),
                scene.partner_velocities[row].tolist(),
                scene.contacts_m.tolist(),
                scene.ages_s[row].tolist(),
                scene.partners,
                strict=True,
            )
        ]
        self._base.look(
            Scene(
                tuple(scene.positions[row].tolist()),
                tuple(scene.velocities[row].tolist()),
                float(scene.headings[row]),
                float(scene.yaw_rates[row]),
                tuple(partners),
                self._obstacles[row],
                scene.clearance_m,
            )
        )
