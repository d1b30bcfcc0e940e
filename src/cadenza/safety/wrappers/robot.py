"""A Gymnasium wrapper that guards a robot which takes velocities, beside walls and people."""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from cadenza.core.checks import require_kinds
from cadenza.core.environments import values_of
from cadenza.core.errors import NotReadyError
from cadenza.safety.backup import BackupFilter, BackupStep, Guarantee, RobotModel
from cadenza.safety.control_models import PartnerBound
from cadenza.safety.geometry import Obstacles, Shape
from cadenza.safety.runtime.env_hooks import hook, require_untouched_actions
from cadenza.safety.wrappers.action_port import (
    ActionMap,
    ActionPort,
    ObstacleSource,
    SnapshotSource,
    checked_scene,
)


class RobotFilterWrapper(gym.Wrapper[Any, Any, Any, Any]):
    """Keeps a backup command possible in every step; reports in ``info["safety"]``.

    Keys: ``intervened`` (the executed action differs from the given one), ``nominal_action`` and
    ``applied_action`` (in the environment's unit), ``intervention`` (their distance in the model's
    unit), ``backup`` (where the action came from), ``uncertified`` and ``static_uncertified``
    (partners, or obstacles, that the promise does not cover in this step), ``margin`` (free
    distance by partner, m), ``static_margin`` (the same to every obstacle, less the margin, m).
    An action that needs no change is handed on as the caller's own object.

    What is not given is looked up in the environment: ``build_agent_snapshots()`` and
    ``control_timestep``.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        *,
        robot: RobotModel,
        partner: PartnerBound | Sequence[PartnerBound] = (),
        obstacles: Sequence[Shape] | Obstacles | ObstacleSource = (),
        snapshots: SnapshotSource | None = None,
        control_timestep: float | None = None,
        guarantee: Guarantee | None = None,
        margin_m: float = 1e-3,
        position_error_m: float = 0.0,
        velocity_error: float = 0.0,
        contact_speed: float = 0.0,
        action_to_control: ActionMap | None = None,
        action_from_control: ActionMap | None = None,
    ) -> None:
        """Wrap ``env``.

        Args:
            env: Environment whose action is a Box, or a Dict of Boxes by agent.
            robot: Model of the robot whose action is filtered.
            partner: Bound of its partner, or of each of several.
            obstacles: Shapes that stand still; or a function of (env, observation, info) that
                returns the shapes of a step.
            snapshots: Called with (env, observation, info) before every step; returns the motion of
                the robot and all partners by id.
            control_timestep: Time one ``step`` takes, s.
            guarantee: See `BackupFilter`, as for the following four.
            margin_m: Distance kept beside the radii, m.
            position_error_m: m.
            velocity_error: m/s.
            contact_speed: m/s.
            action_to_control: From the environment's action unit to the model's.
            action_from_control: The inverse of ``action_to_control``.

        Raises:
            ConfigurationError: The action space does not fit, a wrapper inside changes actions
                after the filter, something is neither given nor offered, or the guarantee cannot
                be given.
        """
        super().__init__(env)
        require_untouched_actions(env)
        if snapshots is None:
            build = hook(env, "build_agent_snapshots")
            snapshots = lambda _env, _obs, _info: build()  # noqa: E731
        require_kinds(
            "RobotFilterWrapper",
            robot=(robot, RobotModel),
            snapshots=(snapshots, Callable),
            action_to_control=(action_to_control, Callable | None),
            action_from_control=(action_from_control, Callable | None),
        )
        self._snapshots: SnapshotSource = snapshots
        self._scan = obstacles if callable(obstacles) else None
        self._filter = BackupFilter(
            robot,
            (partner,) if isinstance(partner, PartnerBound) else partner,
            dt=hook(env, "control_timestep") if control_timestep is None else control_timestep,
            obstacles=() if callable(obstacles) else obstacles,
            guarantee=guarantee,
            margin_m=margin_m,
            position_error_m=position_error_m,
            velocity_error=velocity_error,
            contact_speed=contact_speed,
        )
        low, high = robot.action_box()
        self._port = ActionPort(
            env.action_space,
            ego_uid=robot.uid,
            action_dim=robot.action_dim,
            c=(np.array(low), np.array(high)),
            to_control=action_to_control,
            from_control=action_from_control,
        )
        self._last: tuple[Any, dict[str, Any]] | None = None
        self._last_step: BackupStep | None = None

    @property
    def backup_filter(self) -> BackupFilter:
        """The filter that decides: its guarantee and resumable state."""
        return self._filter

    @property
    def last_step(self) -> BackupStep | None:
        """The last decision; None before the first."""
        return self._last_step

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode; nothing is remembered of the last one."""
        observation, info = values_of(self.env, "reset", self.env.reset(seed=seed, options=options))
        self._filter.reset()
        self._last = (observation, info)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Filter the robot's action, step, and add the record to the info.

        Raises:
            NotReadyError: `reset` was never called.
            InputError: The action or the scene is malformed.
        """
        if self._last is None:
            raise NotReadyError(
                "RobotFilterWrapper.step: expected an episode in progress; call reset()."
            )
        given = self._port.ego_action(action)
        nominal = self._port.nominal(given)
        sources = (self.env, *self._last)
        scene = checked_scene(self._snapshots(*sources))
        shapes = None if self._scan is None else self._scan(*sources)
        self._last_step = step = self._filter.filter(nominal, scene, obstacles=shapes)
        untouched = step.action is nominal
        applied = given if untouched else self._port.applied(step.action)
        executed = action if untouched else self._port.put(action, applied)
        answer = values_of(self.env, "step", self.env.step(executed))
        observation, reward, terminated, truncated, info = answer
        info = dict(info)
        info["safety"] = {
            "intervened": not untouched,
            "nominal_action": given.copy(),
            "applied_action": applied.copy(),
            "intervention": float(np.linalg.norm(step.action - nominal)),
            "backup": step.backup,
            "uncertified": step.uncertified,
            "static_uncertified": step.static_uncertified,
            "margin": step.margin,
            "static_margin": step.static_margin,
        }
        self._last = (observation, info)
        return observation, reward, bool(terminated), bool(truncated), info
