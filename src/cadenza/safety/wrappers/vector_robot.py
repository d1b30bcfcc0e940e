"""A Gymnasium vector wrapper that guards robots which take velocities, all environments at once.

Automatic resets: a plan is forgotten where an episode ends and where the next one begins, in every
                  mode; ``info["_safety"]`` says where the action was executed.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from numpy.typing import NDArray

from cadenza.core.checks import require_kinds
from cadenza.core.environments import values_of
from cadenza.core.errors import NotReadyError
from cadenza.safety.backup import BackupFilter, BatchedBackupFilter, Guarantee, RobotModel
from cadenza.safety.backup.batched import BatchedObstacles
from cadenza.safety.control_models import PartnerBound
from cadenza.safety.geometry import Obstacles, Shape
from cadenza.safety.runtime.env_hooks import (
    require_untouched_actions,
    require_untouched_batch_actions,
)
from cadenza.safety.wrappers.action_port import ActionMap, ActionPort
from cadenza.safety.wrappers.vector import BatchSource, agents_of, look_up

#: Returns the shapes of one step, of all environments or of each, from environment, last
#: observation and last info.
BatchObstacleSource: TypeAlias = Callable[[Any, Any, dict[str, Any]], BatchedObstacles]


class VectorRobotFilterWrapper(VectorWrapper[Any, Any, Any, Any, Any]):
    """Keeps a backup command possible in every environment; reports in ``info["safety"]``.

    The keys are those of `RobotFilterWrapper`, arrays over the environments: ``margin`` has one
    column per partner in the order of their bounds, ``static_margin`` one per obstacle (infinite
    where an environment has fewer than another).

    What is not given is looked up in the batch (``build_agent_batch()`` and ``control_timestep``)
    or, for batches of single environments such as `SyncVectorEnv`, in the environments themselves
    (``build_agent_snapshots()`` and the same).
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        *,
        robot: RobotModel,
        partner: PartnerBound | Sequence[PartnerBound] = (),
        obstacles: Sequence[Shape] | Obstacles | BatchObstacleSource = (),
        agents: BatchSource | None = None,
        control_timestep: float | None = None,
        guarantee: Guarantee | None = None,
        margin_m: float = 1e-3,
        position_error_m: float = 0.0,
        velocity_error: float = 0.0,
        contact_speed: float = 0.0,
        action_to_control: ActionMap | None = None,
        action_from_control: ActionMap | None = None,
    ) -> None:
        """Wrap ``env``, a batch whose action is a Box, or a Dict of Boxes by agent.

        ``agents`` is called with (env, observation, info) before every step and returns an
        `AgentBatch`, a `WheeledBatch` for robots with a heading. All else is as of
        `RobotFilterWrapper`; maps of actions take batches of them, and a function for ``obstacles``
        returns the shapes of all environments, or one `Obstacles` for each.

        Raises:
            ConfigurationError: As `RobotFilterWrapper`.
        """
        super().__init__(env)
        require_untouched_batch_actions(env)
        for single in cast("Sequence[object]", getattr(env.unwrapped, "envs", ())):
            require_untouched_actions(single)
        require_kinds(
            "VectorRobotFilterWrapper",
            robot=(robot, RobotModel),
            agents=(agents, Callable | None),
            action_to_control=(action_to_control, Callable | None),
            action_from_control=(action_from_control, Callable | None),
        )
        self._agents = agents_of(env) if agents is None else agents
        self._scan = obstacles if callable(obstacles) else None
        dt = look_up(env, "control_timestep") if control_timestep is None else control_timestep
        single = BackupFilter(
            robot,
            (partner,) if isinstance(partner, PartnerBound) else partner,
            dt=dt,
            obstacles=() if callable(obstacles) else obstacles,
            guarantee=guarantee,
            margin_m=margin_m,
            position_error_m=position_error_m,
            velocity_error=velocity_error,
            contact_speed=contact_speed,
        )
        self._filter = BatchedBackupFilter(single, env.num_envs)
        low, high = (np.tile(one, (env.num_envs, 1)) for one in robot.action_box())
        self._port = ActionPort(
            cast("Any", env).action_space,
            ego_uid=robot.uid,
            action_dim=robot.action_dim,
            c=(low, high),
            to_control=action_to_control,
            from_control=action_from_control,
        )
        self._mode = cast("Any", env.metadata).get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self._done: NDArray[np.bool_] = np.zeros(env.num_envs, dtype=np.bool_)
        self._last: tuple[Any, dict[str, Any]] | None = None

    @property
    def backup_filter(self) -> BatchedBackupFilter:
        """The filter that decides: its guarantee and resumable state."""
        return self._filter

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start episodes, with ``options["reset_mask"]``, shape (B,), those that it names."""
        mask = (options or {}).get("reset_mask")  # read first: batches take it out
        observation, info = values_of(self.env, "reset", self.env.reset(seed=seed, options=options))
        started = np.ones(self.num_envs, dtype=np.bool_) if mask is None else np.asarray(mask)
        self._filter.reset(np.flatnonzero(started).tolist())
        self._done = self._done & ~started
        self._last = (observation, info)
        return observation, info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Filter the robots' actions, step, and add the record to the info.

        Raises:
            NotReadyError: `reset` was never called.
            InputError: The actions or the scene are malformed.
        """
        if self._last is None:
            raise NotReadyError(
                "VectorRobotFilterWrapper.step: expected episodes in progress; call reset()."
            )
        given = self._port.ego_action(actions)
        nominal = self._port.nominal(given)
        sources = (self.env, *self._last)
        shapes = None if self._scan is None else self._scan(*sources)
        step = self._filter.filter(nominal, self._agents(*sources), obstacles=shapes)
        untouched = step.backup == "none"
        applied = self._port.applied(step.action)
        if untouched.any():  # rounding to the space's dtype must not touch them
            applied[untouched] = given[untouched]
        executed = actions if untouched.all() else self._port.put(actions, applied)
        resets = self._done if self._mode is AutoresetMode.NEXT_STEP else np.zeros_like(self._done)
        answer = values_of(self.env, "step", self.env.step(executed))
        observation, reward, terminated, truncated, info = answer
        info = dict(info)
        info["safety"] = {
            "intervened": ~untouched,
            "nominal_action": given.copy(),
            "applied_action": applied.copy(),
            "intervention": np.linalg.norm(step.action - nominal, axis=1),
            "backup": step.backup,
            "uncertified": step.uncertified,
            "static_uncertified": step.static_uncertified,
            "margin": step.margin,
            "static_margin": step.static_margin,
        }
        info["_safety"] = ~resets
        self._done = np.asarray(terminated) | np.asarray(truncated)
        self._filter.reset(np.flatnonzero(resets | self._done).tolist())
        self._last = (observation, info)
        return observation, reward, terminated, truncated, info
