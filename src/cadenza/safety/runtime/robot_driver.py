"""One object that guards one robot which takes velocities, fed from the env that is stepped.

What `SafetyDriver` is to robots that take accelerations, with `BackupFilter` inside: it is told
about runs and episodes in the same way, and answers with the same `SafetyStep`, so that whoever
plays episodes need not know which robot is guarded. It forecasts nothing and adapts to nobody:
lambda is 0, and who the partner is does not matter, because a bound holds whoever moves within it.

Hooks:   ``build_robot_models()``, the model of every robot by id, or of the ego at least;
         ``build_agent_snapshots()`` and ``control_timestep``. Where others move,
         ``build_partner_bound()``: a `PartnerBound`, or one for each; where something stands,
         ``build_obstacles()``: shapes. An env without these two has nobody, or nothing, beside the
         robot.
Record:  ``braked`` says that the backup itself is executed, stopping or escaping; ``infeasible`` is
         never set, since no action has to meet rows; ``breached`` names partners if one was seen
         beyond its bound.
Units:   m, m/s, s; interventions in the unit of the action.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, Unpack

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import ConfigurationError
from cadenza.safety.backup import BackupFilter, BackupKeywords, BatchedBackupFilter, RobotModel
from cadenza.safety.contracts import FilterInfo, LambdaDict, canonical_pair_key
from cadenza.safety.control_models import PartnerBound
from cadenza.safety.runtime.env_hooks import (
    Find,
    Given,
    Room,
    hook,
    optional_hook,
    require_untouched_actions,
    unwrapped,
)
from cadenza.safety.runtime.safety_step import SafetyStep, blank_info
from cadenza.safety.snapshot import AgentSnapshot

#: The hook by which an environment says that its robots take velocities.
MODELS_HOOK: Final = "build_robot_models"
#: Change of an action that is rounding, in its unit.
ROUNDING: Final = 1e-9
#: Where an action comes from that is the backup itself.
BACKUPS: Final = ("brake", "escape")
#: The filter of one environment, or of a batch.
Guard = TypeVar("Guard", BackupFilter, BatchedBackupFilter)


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotTask:
    """What is around a robot that takes velocities, once.

    Attributes:
        robot: Its model.
        partners: Bounds of all others that move.
        room: What stands around.
        control_timestep: Time one ``step`` takes, s.
    """

    robot: RobotModel
    partners: Sequence[PartnerBound]
    room: Room
    control_timestep: float

    @classmethod
    def of(
        cls,
        env: object,
        find: Find = optional_hook,
        *,
        ego_uid: str | None = None,
        robot: RobotModel | None = None,
        partner: PartnerBound | Sequence[PartnerBound] | None = None,
        obstacles: Given = None,
        control_timestep: float | None = None,
    ) -> "RobotTask":
        """Return the task of ``env``; what is None is looked up in the environment.

        Args:
            env: The environment, or the batch.
            find: Returns a hook of it, None where nobody has it.
            ego_uid: The robot to guard, where ``robot`` is not given.
            robot: Its model.
            partner: Bound of its partner, or of each of several; () for nobody.
            obstacles: See `Room`.
            control_timestep: Time one ``step`` takes, s.

        Raises:
            ConfigurationError: Something is neither given nor offered by the environment, or it has
                no model of the ego.
        """
        if robot is None:
            models: Mapping[str, RobotModel] = hook(env, MODELS_HOOK, find)()
            uid = hook(env, "ego_uid", find) if ego_uid is None else ego_uid
            if uid not in models:
                raise ConfigurationError(
                    f"guard: {MODELS_HOOK}: expected a model of the ego {uid!r}, got "
                    f"{sorted(models)}."
                )
            robot = models[uid]
        bounds = partner
        if bounds is None:
            build = find(env, "build_partner_bound")
            bounds = () if build is None else build()
        dt = control_timestep
        if dt is None:
            dt = hook(env, "control_timestep", find)
        return cls(
            robot=robot,
            partners=(bounds,) if isinstance(bounds, PartnerBound) else bounds,
            room=Room(env, find, obstacles),
            control_timestep=dt,
        )

    def build_filter(self, **settings: Unpack[BackupKeywords]) -> BackupFilter:
        """Return the filter of one environment.

        Raises:
            ConfigurationError: See `BackupFilter`.
        """
        return BackupFilter(
            self.robot,
            self.partners,
            dt=self.control_timestep,
            obstacles=self.room.shapes,
            **settings,
        )


def takes_velocities(env: object, find: Find = optional_hook) -> bool:
    """Return whether ``env`` says that its robots take velocities."""
    return find(env, MODELS_HOOK) is not None


class VelocityDriver(Generic[Guard]):
    """What the driver of one environment and that of a batch have in common.

    Attributes:
        env: The environment whose state it reads, or the batch.
        task: What is around the robot.
        backup_filter: The filter that decides.
        lambda_bound: None: nothing to clamp.
    """

    lambda_bound: Final[None] = None
    _find = staticmethod(optional_hook)

    def __init__(self, env: object, task: RobotTask, backup_filter: Guard) -> None:
        self.env: object = env
        self.task: RobotTask = task
        self.backup_filter: Guard = backup_filter

    @property
    def cartesian_accel_capacity(self) -> float:
        """What a command may ask for in one step, m/s^2; lambda, 0, is compared with it."""
        return self.task.robot.max_speed / self.task.control_timestep

    def reachable(self, nominal: FloatArray) -> FloatArray:
        """Return what a robot would make of an action without the filter, (..., A)."""
        return self.task.robot.limited(nominal)

    def drives(self, env: object) -> bool:
        """Whether stepping ``env`` moves what the driver reads, at the step it assumes."""
        if unwrapped(env) is not unwrapped(self.env):
            return False
        return self._find(env, "control_timestep") == self.task.control_timestep

    def begin_run(self, seed: int) -> None:
        """Forget everything; nothing is drawn, so that every ``seed`` is the same."""
        del seed
        self.begin_episode()

    def begin_episode(self) -> None:
        """Forget plans, which a reset disconnects from the next state.

        Raises:
            ConfigurationError: The obstacles that are offered are others than before.
        """
        self.task.room.require_same()
        self.backup_filter.reset()

    def state_dict(self) -> dict[str, Any]:
        """Return everything a resumed run needs, JSON-able; floats survive exactly."""
        return self.backup_filter.state_dict()

    def load_state_dict(self, payload: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken.

        Raises:
            InputError: Malformed content; the driver is then unchanged.
        """
        self.backup_filter.load_state_dict(payload)


class RobotDriver(VelocityDriver[BackupFilter]):
    """Guards the ego of one env.

    Build it with `from_env` from the very env that will be stepped: a driver that looks at
    another env sees a frozen scene.

    Attributes:
        lambda_: Slack per pair, 0: nothing adapts.
    """

    def __init__(
        self,
        env: object,
        task: RobotTask,
        snapshots: Callable[[], Mapping[str, AgentSnapshot]],
        **settings: Unpack[BackupKeywords],
    ) -> None:
        super().__init__(env, task, task.build_filter(**settings))
        self._snapshots = snapshots
        self.lambda_: LambdaDict = {
            canonical_pair_key(task.robot.uid, bound.uid): 0.0 for bound in task.partners
        }

    @classmethod
    def from_env(
        cls,
        env: object,
        *,
        ego_uid: str | None = None,
        snapshots: Callable[[], Mapping[str, AgentSnapshot]] | None = None,
        **settings: Unpack[BackupKeywords],
    ) -> "RobotDriver":
        """Return the driver of ``env``; None means what the environment offers.

        Raises:
            ConfigurationError: A hook is missing, a wrapper would change the filtered action, or
                the guarantee cannot be given.
        """
        require_untouched_actions(env)
        task = RobotTask.of(env, ego_uid=ego_uid)
        seen = hook(env, "build_agent_snapshots") if snapshots is None else snapshots
        return cls(env, task, seen, **settings)

    def step(self, nominal_action: FloatArray, partner_id: str | None = None) -> SafetyStep:
        """Return the action to execute in the env's current state.

        Args:
            nominal_action: The policy's action, shape (A,), any real dtype.
            partner_id: Who the partner is; it does not matter, see the module.

        Raises:
            InputError: Action or scene is malformed.
        """
        del partner_id
        nominal = np.asarray(nominal_action, dtype=np.float64)
        found = self.backup_filter.filter(nominal, self._snapshots())
        kept = self.backup_filter.kept_m
        info: FilterInfo = {
            **blank_info(self.lambda_),
            "status": "inactive" if found.backup == "none" else "optimal",
            "fallback_fired": found.backup in BACKUPS,
            "margin": np.array([margin - kept for margin in found.margin.values()]),
            "intervention": float(changes(found.action, self.reachable(nominal))),
            "uncertified": found.uncertified,
            "static_margin": np.array(found.static_margin),
            "static_uncertified": found.static_uncertified,
            "backup": found.backup,
        }
        broken = tuple(found.margin) if found.bounds_broken else ()
        return SafetyStep(found.action, info, dict(self.lambda_), {}, breached=broken)


def changes(executed: FloatArray, reachable: FloatArray) -> Any:
    """Return the distances between actions, (...,); 0 where they are rounding."""
    size = np.linalg.norm(executed - reachable, axis=-1)
    return np.where(size > ROUNDING, size, 0.0)
