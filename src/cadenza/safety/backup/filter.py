"""The nominal action where a backup stays possible after it, else the next best, else the backup.

Order:   the nominal action, bit for bit; its projection on all rows; blends of that with the
         backup; the robot's own answer to its partner. The first that passes both checks, obstacles
         first, is executed, and its plan remembered.
         None: of the actions that are clear of obstacles, stopping included, the one that leads
         away from the partner most; that step is uncertified. None is clear: stopping.
Memory:  the plan (n, r). Executing r keeps it possible, whatever the partner does, so this needs
         no new test, and measurement errors cannot take the certificate away.
Theorem: A, A2, B, C in docs/safety.md.
Units:   m, m/s, s; actions in the unit of the robot's model.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, TypedDict, cast, get_args

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.checks import is_real, real_array, require_kinds, shown
from cadenza.core.errors import ConfigurationError, InputError, refuse
from cadenza.safety.backup.base import (
    ROUNDING_SHARE,
    Base,
    BaseSettings,
    Partner,
    Plan,
    Scene,
    Vector,
)
from cadenza.safety.backup.unicycle import UnicycleBase
from cadenza.safety.backup.velocity import VelocityBase
from cadenza.safety.backup.watch import MotionCheck
from cadenza.safety.control_models import PartnerBound, UnicycleModel, VelocityModel
from cadenza.safety.geometry import Obstacles, Shape
from cadenza.safety.snapshot import MAX_MAGNITUDE, AgentSnapshot, WheeledSnapshot

#: What is promised about partners.
Guarantee: TypeAlias = Literal["escape", "passive"]
#: Control steps, s, as everywhere in the stack.
_MIN_DT, _MAX_DT = 1e-6, 1e3

#: How much further than an earlier candidate a later one has to lead away, m/s: more than rounding.
EQUAL: Final = 1e-9

#: Robots that the filter knows.
RobotModel: TypeAlias = VelocityModel | UnicycleModel
#: How each of them answers the filter, by the class of its model.
_BASES: Final[dict[type, Any]] = {VelocityModel: VelocityBase, UnicycleModel: UnicycleBase}


@dataclass(frozen=True, slots=True, eq=False)
class BackupStep:
    """One decision.

    Attributes:
        action: What to execute; the nominal object itself if it was certified.
        backup: Where it came from: ``none``, ``rows``, ``blend``, ``radial``, ``escape`` or
            ``brake``.
        uncertified: The promise about the partners does not cover this step.
        static_margin: Gap to every obstacle beyond the margin and errors, shape (K,), m.
        static_uncertified: The promise about obstacles does not cover this step: stopping was not
            clear of them from this state.
        margin: Free distance to every partner, by agent, m.
        bounds_broken: A partner was measured to be faster than it declares.
    """

    action: FloatArray
    backup: str
    uncertified: bool
    static_margin: tuple[float, ...]
    static_uncertified: bool
    margin: dict[str, float]
    bounds_broken: bool = False


class BackupKeywords(TypedDict, total=False):
    """Settings of `BackupFilter`, for those who build it from a robot and its surroundings."""

    guarantee: Guarantee | None
    margin_m: float
    position_error_m: float
    velocity_error: float
    contact_speed: float


class BackupFilter:
    """Keeps one robot clear of obstacles and partners; one call per control step.

    Args:
        robot: Model of the robot.
        partners: Bounds of every partner; exactly these are expected in every step.
        dt: Control step, s.
        obstacles: Shapes that stand still; a call may name more.
        guarantee: ``escape``: never touch a lone partner, in free space; ``passive``: touch none
            except at rest. None: the first where it can be promised, whatever way the robot faces.
        margin_m: Distance kept beside the radii, m.
        position_error_m: Largest error of what is measured relative to the robot: a partner's
            position, an obstacle's surface, m.
        velocity_error: Largest error of a partner's velocity, m/s.
        contact_speed: Own speed at which a passive robot may be touched, m/s; a base with a lag
            never rests exactly, so it needs one.

    Attributes:
        robot: As given.
        bounds: Of the partners, in order.
        settings: What a base's answers depend on besides model and scene.
        kept_m: Distance kept beside the radii, errors included, m.

    Raises:
        ConfigurationError: An argument is of another kind or out of range, or the guarantee cannot
            be given.
    """

    def __init__(
        self,
        robot: RobotModel,
        partners: Sequence[PartnerBound] = (),
        *,
        dt: float,
        obstacles: Sequence[Shape] | Obstacles = (),
        guarantee: Guarantee | None = None,
        margin_m: float = 1e-3,
        position_error_m: float = 0.0,
        velocity_error: float = 0.0,
        contact_speed: float = 0.0,
    ) -> None:
        if type(robot) not in _BASES:
            known = ", ".join(kind.__name__ for kind in _BASES)
            refuse(ConfigurationError, "BackupFilter.robot", expected=known, got=robot)
        self.bounds: tuple[PartnerBound, ...] = _checked_bounds(robot.uid, partners)
        if not (is_real(dt) and _MIN_DT <= dt <= _MAX_DT):
            expected = f"a time in [{_MIN_DT:g}, {_MAX_DT:g}] s"
            refuse(ConfigurationError, "BackupFilter.dt", expected=expected, got=dt)
        lengths = {
            "margin_m": margin_m,
            "position_error_m": position_error_m,
            "velocity_error": velocity_error,
            "contact_speed": contact_speed,
        }
        for name, value in lengths.items():
            if not (is_real(value) and 0.0 <= value <= MAX_MAGNITUDE):
                refuse(ConfigurationError, f"BackupFilter.{name}", expected=">= 0", got=value)
        self.robot = robot
        # A base on wheels that takes time to turn flees only along its heading: in this case
        # the promise would keep it from turning away from its partner, so it has to be wanted.
        if guarantee is None and self.bounds and isinstance(robot, UnicycleModel):
            guarantee = None if robot.is_ideal else "passive"
        self._guarantee: Guarantee = _guarantee(robot.escape_speed(dt), self.bounds, guarantee)
        slows = self._guarantee == "passive" and isinstance(robot, VelocityModel)
        if contact_speed and not slows:
            refuse(
                ConfigurationError,
                "BackupFilter.contact_speed",
                expected="0, except for a passive velocity-commanded base",
                got=contact_speed,
            )
        self.kept_m: float = margin_m + position_error_m
        self.settings: BaseSettings = BaseSettings(
            dt=dt,
            passive=self._guarantee == "passive",
            position_error_m=position_error_m,
            velocity_error=velocity_error,
            contact_speed=contact_speed,
        )
        self._base = self.new_base()
        self._watch = MotionCheck(robot, self.settings)
        self._obstacles = Obstacles(())
        self._obstacles = self.around(obstacles)
        self._plan: Plan | None = None

    @property
    def guarantee(self) -> Guarantee:
        """What is promised about the partners."""
        return self._guarantee

    def new_base(self) -> Base:
        """Return a robot like this filter's that has seen nothing yet."""
        return _BASES[type(self.robot)](self.robot, self.settings)

    def reset(self) -> None:
        """Forget the plan, and commands that have not acted yet, as for a new episode."""
        self._plan = None
        self._base = self.new_base()
        self._watch.forget()

    def filter(
        self,
        nominal: FloatArray,
        agents: Mapping[str, AgentSnapshot],
        *,
        obstacles: Iterable[Shape] | Obstacles | None = None,
    ) -> BackupStep:
        """Return what to execute.

        Args:
            nominal: What the policy wants, shape (action_dim,), in the unit of the model.
            agents: The robot and all partners, by id.
            obstacles: Shapes of this step, e.g. of a scan, besides the filter's own.

        Raises:
            InputError: The action, an agent or an obstacle is malformed, or an agent is missing or
                unknown.
        """
        action = self._checked_action(nominal)
        shapes = self.around(obstacles)
        scene, margin = self._scene(agents, shapes if len(shapes) else None)
        self._watch.look((*scene.position, *scene.velocity, scene.heading, scene.yaw_rate))
        base = self._base
        base.look(scene)
        held = self._plan if self._plan and base.still_holds(self._plan) else None
        chosen, source, plan, static_uncertified = choose(base, action, held)
        broken = base.bounds_broken()
        if broken:
            self._watch.tell_faster(self.bounds, [one.velocity for one in scene.partners])
        # A plan rests on the bounds: the next one is looked for as at the start.
        self._plan = None if broken else plan
        base.executed(chosen)
        executed = nominal if source == "none" else np.array(chosen)
        return BackupStep(
            action=executed,
            backup=source,
            uncertified=plan is None or broken,
            static_margin=base.static_margins(),
            static_uncertified=static_uncertified,
            margin=margin,
            bounds_broken=broken,
        )

    def _checked_action(self, nominal: FloatArray) -> Vector:
        size = self.robot.action_dim
        array = real_array("filter: nominal action", nominal)
        if array.shape != (size,):
            refuse(
                InputError,
                "filter: nominal action",
                expected=f"shape ({size},)",
                got=str(array.shape),
            )
        action: Vector = tuple(map(float, array.tolist()))
        for number in action:
            if not -MAX_MAGNITUDE <= number <= MAX_MAGNITUDE:  # NaN fails too
                expected = f"finite numbers up to {MAX_MAGNITUDE:.0e}"
                refuse(InputError, "filter: nominal action", expected=expected, got=list(action))
        return action

    def around(self, more: Iterable[Shape] | Obstacles | None) -> Obstacles:
        """Return the filter's own obstacles, and more.

        Raises:
            InputError: One is no shape, or of another dimension than the robot's.
        """
        if more is None:
            return self._obstacles
        shapes = self._obstacles.joined(more)
        if shapes.dim not in (None, self.robot.position_dim):
            dim, uid = self.robot.position_dim, self.robot.uid
            expected = f"{dim}-D shapes for the {dim}-D robot {uid!r}"
            refuse(InputError, "obstacles", expected=expected, got=f"{shapes.dim}-D ones")
        return shapes

    def require_known(self, uids: Collection[str]) -> None:
        """Raise unless these are the ids of the robot and its partners.

        Raises:
            InputError: One is missing, or unknown.
        """
        known = self.robot.uid, *(bound.uid for bound in self.bounds)
        if len(uids) != len(known) or not all(uid in uids for uid in known):
            expected, got = f"the states of {list(known)}", f"those of {list(uids)}"
            do = "the robot's model and its partners' bounds have the ids that snapshots have"
            refuse(InputError, "filter: agents", expected=expected, got=got, do=do)

    def require_radius(self, radius: float) -> None:
        """Raise unless a measured disc of the robot is that of its model, if that has one.

        Raises:
            InputError: Its radius, m, is another one.
        """
        if isinstance(self.robot, UnicycleModel) and not math.isclose(
            radius, self.robot.radius, rel_tol=ROUNDING_SHARE
        ):
            uid, model = self.robot.uid, self.robot.radius
            refuse(
                InputError,
                f"filter: radius of {uid!r}",
                expected=f"the {model!r} m of its UnicycleModel",
                got=f"{radius!r} m",
                do="give both the radius of the disc that covers the robot",
            )

    def _scene(
        self, agents: Mapping[str, AgentSnapshot], obstacles: Obstacles | None
    ) -> tuple[Scene, dict[str, float]]:
        """Return what the base reads, and the free distances to partners, m."""
        if not isinstance(cast("object", agents), Mapping):
            refuse(InputError, "filter: agents", expected="snapshots by agent id", got=agents)
        self.require_known(agents)
        ego = self._agent(agents, self.robot.uid)
        self.require_radius(ego.radius)
        heading = yaw_rate = 0.0
        if isinstance(ego, WheeledSnapshot):
            heading, yaw_rate = ego.heading, ego.yaw_rate
        elif isinstance(self.robot, UnicycleModel):
            name = f"filter: agents[{self.robot.uid!r}]"
            expected = "a WheeledSnapshot, which has a heading"
            do = "make it with robot.snapshot(x, y, heading, speed, yaw_rate)"
            refuse(InputError, name, expected=expected, got=type(ego).__name__, do=do)
        if ego.age_s > 0.0:
            name = f"filter: agents[{self.robot.uid!r}].age_s"
            refuse(InputError, name, expected="0: the robot's own state is current", got=ego.age_s)
        position = ego.position_numbers
        partners: list[Partner] = []
        margin: dict[str, float] = {}
        for bound in self.bounds:
            one = self._agent(agents, bound.uid)
            contact = ego.radius + one.radius
            partners.append(
                Partner(
                    one.position_numbers,
                    one.velocity_numbers,
                    contact + self.kept_m,
                    bound.max_speed,
                    bound.max_accel,
                    one.age_s,
                )
            )
            offset = [a - b for a, b in zip(position, one.position_numbers, strict=True)]
            margin[bound.uid] = float(np.hypot.reduce(offset)) - contact
        return (
            Scene(
                position,
                ego.velocity_numbers,
                heading,
                yaw_rate,
                tuple(partners),
                obstacles,
                ego.radius + self.kept_m,
            ),
            margin,
        )

    def _agent(self, agents: Mapping[str, AgentSnapshot], uid: str) -> AgentSnapshot:
        agent = agents.get(uid)
        if not isinstance(agent, AgentSnapshot):
            refuse(InputError, f"filter: agents[{uid!r}]", expected="an AgentSnapshot", got=agent)
        if len(agent.position_numbers) != self.robot.position_dim:
            expected = f"{self.robot.position_dim} dimensions"
            got = len(agent.position_numbers)
            refuse(InputError, f"filter: agents[{uid!r}]", expected=expected, got=got)
        return agent

    def read_plan(self, record: Any) -> Plan | None:
        """Return the plan that `plan_to_json` described, if this filter may make it.

        Raises:
            IndexError, TypeError, ValueError: It is no plan; it moves where the guarantee is to
                stop, it has not one direction of length 1 for each partner, or its command is
                beyond the robot's limits.
        """
        if record is None:
            return None
        dim, size = self.robot.position_dim, self.robot.action_dim
        normals, (command,) = _vectors(record[0], dim), _vectors(record[1], size) or ((),)
        known = bool(command) is self.remembers and len(normals) == (
            len(self.bounds) if self.remembers else 0
        )
        if not known or (self.settings.passive and any(command)):
            raise ValueError("the plan is of another guarantee")
        if any(abs(math.hypot(*n) - 1.0) > EQUAL for n in normals):
            raise ValueError("a direction of the plan has another length than 1")
        if command and np.linalg.norm(self.robot.limited(np.array(command)) - command) > EQUAL:
            raise ValueError("the command of the plan is beyond the robot's limits")
        return Plan(normals, command)

    @property
    def remembers(self) -> bool:
        """Whether plans count in later steps: not those of wheels that flee at once, or alone."""
        wheels = self.robot if isinstance(self.robot, UnicycleModel) else None
        at_once = wheels is not None and (not self.bounds or wheels.is_ideal)
        return self.settings.passive or not at_once

    def state_dict(self) -> dict[str, Any]:
        """Return the memory as JSON can hold it; floats are exact."""
        return {"plan": plan_to_json(self._plan), "base": self._base.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`.

        Raises:
            InputError: It is none of this filter's; the filter is then unchanged.
        """
        try:
            held = self.read_plan(state["plan"])
            self._base.load_state_dict(state["base"])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            got = " ".join(shown(state).split())
            raise InputError(
                f"BackupFilter.load_state_dict: expected what state_dict returned, got {got}."
            ) from error
        self._plan = held
        self._watch.forget()


def _vectors(values: Any, count: int) -> tuple[Vector, ...]:
    """Return vectors of so many finite numbers, written one after the other.

    Raises:
        ValueError: They are others.
    """
    numbers = [float(value) for value in values]
    if len(numbers) % count or not all(map(math.isfinite, numbers)):
        raise ValueError(f"expected finite numbers, a multiple of {count}, got {numbers}")
    return tuple([tuple(numbers[k : k + count]) for k in range(0, len(numbers), count)])


def plan_to_json(plan: Plan | None) -> list[list[float]] | None:
    """Return a plan as JSON can hold it; floats are exact."""
    return None if plan is None else [[k for n in plan.normals for k in n], list(plan.command)]


def choose(base: Base, nominal: Vector, held: Plan | None) -> tuple[Vector, str, Plan | None, bool]:
    """Return the action, its source, the plan after it, and whether obstacles are not promised.

    Args:
        base: The robot, which has looked at the scene.
        nominal: What the policy wants.
        held: The remembered plan.
    """
    admitted = base.admissible(nominal)
    too_close = base.too_close()
    kept: list[tuple[float, Vector, str]] = []  # each leads away further than the one before

    def plan_after(action: Vector) -> Plan | None:
        stays = held is not None and action == held.command
        return held if stays else base.partner_plan(action, held)

    def tried(action: Vector, source: str) -> Plan | None:
        if not base.static_clear(action):
            return None
        plan = plan_after(action)
        if plan is None:
            away = base.separation(action)
            if not kept or away > kept[-1][0] + EQUAL:
                kept.append((away, action, source))
        return plan

    if admitted is nominal:
        plan = tried(nominal, "none")
        if plan is not None:
            return nominal, "none", plan, too_close
    for source, action in base.candidates(admitted, held):
        plan = tried(action, source)
        if plan is not None:
            return action, source, plan, too_close
    stop = base.stop()
    plan = tried(stop, "brake")
    if plan is not None:
        return stop, "brake", plan, too_close
    if not kept:
        return stop, "brake", plan_after(stop), True
    _, action, source = kept[-1]
    return action, source, None, too_close


def _checked_bounds(ego: str, partners: Sequence[PartnerBound]) -> tuple[PartnerBound, ...]:
    """Return the bounds of distinct partners."""
    require_kinds("BackupFilter", partners=(partners, Sequence))
    for index, bound in enumerate(partners):
        require_kinds("BackupFilter", **{f"partners[{index}]": (bound, PartnerBound)})
    uids = [ego, *(bound.uid for bound in partners)]
    if len(set(uids)) != len(uids):
        refuse(ConfigurationError, "BackupFilter: agents", expected="distinct ids", got=uids)
    return tuple(partners)


def _guarantee(
    escape_speed: float, bounds: tuple[PartnerBound, ...], wanted: Guarantee | None
) -> Guarantee:
    """Return the promise about partners that is given.

    Raises:
        ConfigurationError: ``escape`` is wanted and cannot be promised.
    """
    promises: tuple[object, ...] = get_args(Guarantee)
    if wanted is not None and not (isinstance(cast("object", wanted), str) and wanted in promises):
        expected = f"one of {promises} or None"
        refuse(ConfigurationError, "BackupFilter.guarantee", expected=expected, got=wanted)
    lone = len(bounds) <= 1
    slow = all(bound.max_speed <= escape_speed for bound in bounds)
    if wanted == "escape" and not lone:
        refuse(
            ConfigurationError,
            'BackupFilter.guarantee="escape"',
            expected="one partner",
            got=f"{len(bounds)}: what flees from one runs into another",
            do='use "passive"',
        )
    if wanted == "escape" and not slow:
        refuse(
            ConfigurationError,
            'BackupFilter.guarantee="escape"',
            expected=f"a partner no faster than the {escape_speed:g} m/s that the robot flees with",
            got=f"{bounds[0].max_speed:g} m/s: it catches up, whatever the robot does",
            do='use "passive"',
        )
    if wanted is None:
        return "escape" if lone and slow else "passive"
    return wanted
