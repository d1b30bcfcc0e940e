"""Gymnasium wrappers that guard robots which take velocities, beside walls and people.

`RobotFilterWrapper` has one environment, `VectorRobotFilterWrapper` a batch. What is not given is
looked up in the environment, by the hooks of `cadenza.safety.runtime.robot_driver`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Unpack

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray
from cadenza.core.checks import require_kinds
from cadenza.safety.backup import (
    BackupFilter,
    BackupKeywords,
    BackupStep,
    BatchedBackupFilter,
    BatchedBackupStep,
    RobotModel,
)
from cadenza.safety.control_models import PartnerBound
from cadenza.safety.geometry import Obstacles, Shape
from cadenza.safety.runtime.env_hooks import Find, batch_hook, optional_hook
from cadenza.safety.runtime.robot_driver import RobotTask
from cadenza.safety.wrappers.action_port import (
    ActionMap,
    ActionPort,
    ObstacleSource,
    SnapshotSource,
    checked_scene,
)
from cadenza.safety.wrappers.single import GuardedEnv, Tell
from cadenza.safety.wrappers.vector import (
    BatchObstacleSource,
    BatchSource,
    BatchTell,
    GuardedBatch,
    agents_of,
)


class RobotKeywords(BackupKeywords, total=False):
    """Options of both wrappers, with those of `BackupFilter`.

    Attributes:
        ego_uid: The robot whose action is filtered, where ``robot`` is not given.
        robot: Its model.
        partner: Bound of its partner, or of each of several; () for nobody.
        control_timestep: Time one ``step`` takes, s.
        action_to_control: From the environment's action unit to the model's.
        action_from_control: The inverse of ``action_to_control``.
    """

    ego_uid: str | None
    robot: RobotModel | None
    partner: PartnerBound | Sequence[PartnerBound] | None
    control_timestep: float | None
    action_to_control: ActionMap | None
    action_from_control: ActionMap | None


class RobotFilterWrapper(GuardedEnv):
    """Keeps a backup command possible in every step; reports in ``info["safety"]``.

    Keys: ``intervened`` (the executed action differs from the given one), ``nominal_action`` and
    ``applied_action`` (in the environment's unit), ``intervention`` (their distance in the model's
    unit), ``backup`` (where the action came from), ``uncertified`` and ``static_uncertified``
    (partners, or obstacles, that the promise does not cover in this step), ``bounds_broken`` (a
    partner was measured to be faster than declared), ``reason`` (the same as a text, empty if
    none was), ``margin`` (free distance by partner, m),
    ``static_margin`` (the same to every obstacle, less the margin, m).

    What is not given is looked up in the environment: ``build_robot_models()`` and ``ego_uid``,
    ``build_partner_bound()``, ``build_obstacles()``, ``build_agent_snapshots()`` and
    ``control_timestep``. An environment without the second or third has nobody, or nothing, beside
    the robot.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        *,
        obstacles: Sequence[Shape] | Obstacles | ObstacleSource | None = None,
        snapshots: SnapshotSource | None = None,
        **robot: Unpack[RobotKeywords],
    ) -> None:
        """Wrap ``env``.

        Args:
            env: Environment whose action is a Box, or a Dict of Boxes by agent.
            obstacles: Shapes that stand still; or a function of (env, observation, info) that
                returns the shapes of a step.
            snapshots: Called with (env, observation, info) before every step; returns the motion of
                the robot and all partners by id.
            **robot: The robot and its partners, see `RobotKeywords`.

        Raises:
            ConfigurationError: The action space does not fit, a wrapper inside changes actions
                after the filter, something is neither given nor offered, or the guarantee cannot
                be given.
        """
        super().__init__(env, snapshots=snapshots)
        self._task, self._filter, self._port = _parts(env, optional_hook, (), obstacles, **robot)
        self._last_step: BackupStep | None = None

    @property
    def backup_filter(self) -> BackupFilter:
        """The filter that decides: its guarantee and resumable state."""
        return self._filter

    @property
    def last_step(self) -> BackupStep | None:
        """The last decision; None before the first."""
        return self._last_step

    def _begin(self, seed: int | None) -> None:
        del seed  # nothing is remembered of the last episode, with a seed or without
        self._task.room.require_same()
        self._filter.reset()

    def _decide(self, nominal: FloatArray) -> tuple[FloatArray, Tell]:
        sources = self._sources()
        scene = checked_scene(self._snapshots(*sources))
        shapes = self._task.room.seen(*sources)
        self._last_step = step = self._filter.filter(nominal, scene, obstacles=shapes)
        change = float(np.linalg.norm(step.action - nominal))
        return step.action, lambda given, applied: {
            "intervened": bool(np.any(applied != given)),
            **_record(step, given, applied, change),
        }


class VectorRobotFilterWrapper(GuardedBatch):
    """Keeps a backup command possible in every environment; reports in ``info["safety"]``.

    The keys are those of `RobotFilterWrapper`, arrays over the environments: ``margin`` has one
    column per partner in the order of their bounds, ``static_margin`` one per obstacle (infinite
    where an environment has fewer than another); ``info["_safety"]`` says where the action was
    executed. A plan is forgotten where an episode ends and where the next one begins.

    What is not given is looked up in the batch (``build_agent_batch()`` and the hooks of
    `RobotFilterWrapper`) or, for batches of single environments such as `SyncVectorEnv`, in the
    environments themselves (``build_agent_snapshots()`` and the same hooks).
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        *,
        obstacles: Sequence[Shape] | Obstacles | BatchObstacleSource | None = None,
        agents: BatchSource | None = None,
        **robot: Unpack[RobotKeywords],
    ) -> None:
        """Wrap ``env``, a batch whose action is a Box, or a Dict of Boxes by agent.

        ``agents`` is called with (env, observation, info) before every step and returns an
        `AgentBatch`, a `WheeledBatch` for robots with a heading. All else is as of
        `RobotFilterWrapper`; maps of actions take batches of them, and a function for ``obstacles``
        returns the shapes of all environments, or one `Obstacles` for each.

        Raises:
            ConfigurationError: As `RobotFilterWrapper`.
        """
        super().__init__(env, agents=agents)
        rows = (env.num_envs,)
        self._task, single, self._port = _parts(env, batch_hook, rows, obstacles, **robot)
        if agents is None:
            self._agents = agents_of(env, ego_uid=single.robot.uid)
        self._filter = BatchedBackupFilter(single, env.num_envs)

    @property
    def backup_filter(self) -> BatchedBackupFilter:
        """The filter that decides: its guarantee and resumable state."""
        return self._filter

    def _begin(self, seed: Any, rows: list[int] | None) -> None:
        del seed
        self._task.room.require_same()
        self._filter.reset(rows)

    def _end(self, rows: list[int]) -> None:
        if rows:
            self._task.room.require_same()
        self._filter.reset(rows)

    def _decide(self, nominal: FloatArray) -> tuple[FloatArray, BatchTell]:
        sources = self._sources()
        shapes = self._task.room.seen(*sources)
        step = self._filter.filter(nominal, self._agents(*sources), obstacles=shapes)
        change = np.linalg.norm(step.action - nominal, axis=1)
        return step.action, lambda given, applied, untouched: {
            "intervened": ~untouched,
            **_record(step, given, applied, change),
        }


def _parts(
    env: Any,
    find: Find,
    rows: tuple[int, ...],
    obstacles: Sequence[Shape] | Obstacles | Callable[..., Any] | None,
    *,
    ego_uid: str | None = None,
    robot: RobotModel | None = None,
    partner: PartnerBound | Sequence[PartnerBound] | None = None,
    control_timestep: float | None = None,
    action_to_control: ActionMap | None = None,
    action_from_control: ActionMap | None = None,
    **settings: Unpack[BackupKeywords],
) -> tuple[RobotTask, BackupFilter, ActionPort]:
    """Return the task and the filter of one environment, and the port of ``rows`` of them."""
    require_kinds(
        "guard",
        action_to_control=(action_to_control, Callable | None),
        action_from_control=(action_from_control, Callable | None),
    )
    task = RobotTask.of(
        env,
        find,
        ego_uid=ego_uid,
        robot=robot,
        partner=partner,
        obstacles=obstacles,
        control_timestep=control_timestep,
    )
    backup = task.build_filter(**settings)
    low, high = (np.broadcast_to(one, (*rows, len(one))) for one in task.robot.action_box())
    port = ActionPort(
        env.action_space,
        ego_uid=task.robot.uid,
        action_dim=task.robot.action_dim,
        c=(low, high),
        to_control=action_to_control,
        from_control=action_from_control,
    )
    return task, backup, port


def _record(
    step: BackupStep | BatchedBackupStep,
    given: NDArray[Any],
    applied: NDArray[Any],
    change: Any,
) -> dict[str, Any]:
    """Return what both kinds of steps tell under the same names."""
    names = (
        *("backup", "uncertified", "bounds_broken"),
        *("static_uncertified", "margin", "static_margin"),
    )
    reason = np.where(step.bounds_broken, "a partner was measured faster than declared", "")
    return {
        "nominal_action": given,
        "applied_action": applied,
        "intervention": change,
        "reason": reason if reason.ndim else str(reason),
        **{name: getattr(step, name) for name in names},
    }
