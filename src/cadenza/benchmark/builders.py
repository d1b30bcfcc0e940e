"""From configurations to live objects: environment, partner, safety driver.

`build_env` and `build_partner` are what training and evaluation share; `build_safety_driver` takes
the very environment that will be stepped, so the filter never watches another scene; `ego_env` is
the ego's seat as a plain Gymnasium environment.

Loops know an ego and a partner. Where there are more robots, each further one is driven by its own
copy of the partner, so that the loops see two seats; filters and pictures still see all robots.

Seeds:  the copy in seat u starts an episode of seed s from the first integer of the stream
        ``benchmark.background_robot.{u}.episode`` under root s, so copies differ from each other
        and from the partner, and an episode is repeated by its seed. Row i of N batched
        environments counts its own episodes e = 0, 1, ...: their seeds are s + i + e N, as in the
        environments.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from cadenza.aht.config import EnvConfig, PartnerConfig, SafetyConfig
from cadenza.benchmark.ego_link import EgoLink
from cadenza.benchmark.populations import Members, Population, population
from cadenza.benchmark.tasks import EnvRequest, TaskEnv, TaskSpec, get_task
from cadenza.core.contracts import contract_at
from cadenza.core.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    NotReadyError,
    UnknownNameError,
    refuse,
)
from cadenza.core.provenance import source_digest
from cadenza.core.seeding import INTEGER_SEED_BOUND, derive_substream
from cadenza.core.types import ActionDict, Observation, companions_of
from cadenza.envs.adapters import EgoGymEnv
from cadenza.learn.sampling import SamplerConfig
from cadenza.partners.interface import FrozenPartner, PartnerBase
from cadenza.partners.mixture import PartnerMixture
from cadenza.partners.registry import (
    list_registered,
    load_partner,
    partner_card,
    partner_class,
)
from cadenza.partners.spec import PartnerSpec
from cadenza.safety.cbf_qp import ExpCBFQP
from cadenza.safety.contracts import AgentControlModel, Bounds, EgoOnlySafetyFilter
from cadenza.safety.control_models import DoubleIntegratorControlModel, JacobianControlModel
from cadenza.safety.emergency import (
    CartesianAccelEmergencyController,
    EmergencyController,
    JacobianEmergencyController,
)
from cadenza.safety.runtime.driver import SafetyDriver
from cadenza.safety.runtime.env_hooks import EnvHooks, optional_hook
from cadenza.safety.runtime.robot_driver import RobotDriver, takes_velocities
from cadenza.safety.snapshot import AgentSnapshot

if TYPE_CHECKING:
    from cadenza.safety.batched.driver import BatchedSafetyDriver
    from cadenza.safety.batched.robot_driver import BatchedRobotDriver

#: Loops see this many seats: ego and partner.
SEATS: Final = 2
#: Keys of a batch's info that hold the observation before an automatic reset.
_FINAL_KEYS: Final = ("final_observation", "final_obs")


class BackgroundRobots:
    """Two-seat view of one environment; every other attribute is the environment's own."""

    def __init__(self, env: TaskEnv, robots: Mapping[str, PartnerBase]) -> None:
        self._env: Any = env
        self._robots = dict(robots)
        self.robot_uids: tuple[str, ...] = env.agent_uids
        self.agent_uids: tuple[str, ...] = env.agent_uids[:SEATS]
        self._obs: Observation | None = None
        self._automatic_root: int | None = None  # the last seed; before any the environment's root
        self._automatic_episodes = 0
        self.action_space: Any = _seats_of(env.action_space, self.agent_uids)
        self.observation_space: Any = _seats_of_agents(env.observation_space, self.agent_uids)

    @property
    def unwrapped(self) -> Any:
        """The environment without wrappers."""
        return getattr(self._env, "unwrapped", self._env)

    def __getattr__(self, name: str) -> Any:
        """Forward what the wrapper does not define: safety hooks, rendering, positions, sizes."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._env, name)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Mapping[str, Any]]:
        """Start an episode of the environment and of every background robot."""
        obs, info = self._env.reset(seed=seed, options=options)
        self._begin(seed)
        self._obs = obs
        return two_seats(obs, self.agent_uids), info

    def step(self, action: ActionDict) -> tuple[Any, Any, Any, Any, Mapping[str, Any]]:
        """Advance one step; the background robots act on the last observation.

        Args:
            action: Actions of ego and partner.

        Raises:
            NotReadyError: No episode was started.
        """
        obs, reward, terminated, truncated, info = self._env.step(self._all_actions(action))
        self._obs = obs
        return two_seats(obs, self.agent_uids), reward, terminated, truncated, info

    def _begin(self, seed: int | None) -> None:
        """Start an episode of every background robot."""
        if seed is None:  # a stream of its own, so that it never repeats a numbered episode
            name = "benchmark.background_robot.automatic"
            root = self._automatic_root
            root = self._env.root_seed if root is None else root
            automatic = derive_substream(name, root_seed=root)
            seed = automatic.child(self._automatic_episodes).integer_seed()
            self._automatic_episodes += 1
        else:  # what follows without a seed is the same each time
            self._automatic_root, self._automatic_episodes = seed, 0
        for uid, robot in self._robots.items():
            robot.reset(seed=background_seed(uid, seed))

    def _all_actions(self, action: ActionDict) -> dict[str, NDArray[Any]]:
        obs = self._obs
        if obs is None:
            raise NotReadyError("BackgroundRobots.step: expected an episode; call reset() first.")
        return {**action, **{uid: robot.act(obs) for uid, robot in self._robots.items()}}


class BatchedBackgroundRobots(BackgroundRobots):
    """Two-seat view of N environments that reset themselves in the step that ends an episode."""

    def __init__(self, env: TaskEnv, robots: Mapping[str, PartnerBase], *, num_envs: int) -> None:
        super().__init__(env, robots)
        self.num_envs = num_envs
        self._next_seeds: NDArray[np.int64] = np.arange(num_envs, dtype=np.int64)
        self._prescribed = False

    @property
    def stride(self) -> int:
        """By how much the number of a copy's episode grows; see `EpisodeBatch`."""
        return getattr(self._env, "stride", self.num_envs)

    @stride.setter
    def stride(self, stride: int) -> None:
        batch: Any = self._env
        batch.stride = stride

    def reset_rows(
        self, rows: Sequence[int], seeds: Sequence[int], roots: Sequence[int]
    ) -> Observation:
        """Start prescribed episodes, see `EpisodeBatch.reset_rows`, and the robots' own."""
        self._obs = obs = self._env.reset_rows(rows, seeds, roots)
        for uid, robot in self._robots.items():
            if not self._prescribed:
                robot.reset(seed=background_seed(uid, seeds[0]))
            for row, seed in zip(rows, seeds, strict=True):
                robot.reset_row(row, seed=background_seed(uid, seed))
        self._prescribed = True
        return two_seats(obs, self.agent_uids)

    def step(self, action: ActionDict) -> tuple[Any, Any, Any, Any, Mapping[str, Any]]:
        """Advance every environment; background robots begin anew where an episode ended."""
        obs, reward, terminated, truncated, info = super().step(action)
        if not self._prescribed:
            self._begin_rows(np.flatnonzero(terminated | truncated))
        final = {key: two_seats(info[key], self.agent_uids) for key in _FINAL_KEYS if key in info}
        return obs, reward, terminated, truncated, {**info, **final}

    def _begin(self, seed: int | None) -> None:
        self._prescribed = False
        if seed is not None:
            self._next_seeds = seed + np.arange(self.num_envs, dtype=np.int64)
        self._begin_rows(np.arange(self.num_envs))

    def _begin_rows(self, rows: NDArray[np.intp]) -> None:
        for row in rows.tolist():
            seed = int(self._next_seeds[row])
            for uid, robot in self._robots.items():
                robot.reset_row(row, seed=background_seed(uid, seed))
            self._next_seeds[row] += self.stride


def background_seed(uid: str, episode_seed: int) -> int:
    """Return the seed with which seat ``uid`` starts the episode of seed ``episode_seed``."""
    name = f"benchmark.background_robot.{uid}.episode"
    return derive_substream(name, root_seed=episode_seed).integer_seed()


def two_seats(obs: Observation, seats: tuple[str, ...]) -> dict[str, Any]:
    """Return ``obs`` with the agents of ``seats`` only; the arrays are shared, not copied."""
    return {**obs, "agent": {uid: obs["agent"][uid] for uid in seats}}


def _seats_of(space: Any, seats: tuple[str, ...]) -> Any:
    """Return a Gymnasium Dict space with the keys ``seats`` only."""
    return type(space)({uid: space[uid] for uid in seats})


def _seats_of_agents(space: Any, seats: tuple[str, ...]) -> Any:
    inner = {key: space[key] for key in space}
    return type(space)({**inner, "agent": _seats_of(space["agent"], seats)})


#: Acceleration that the partner of the pick-and-place task is taken to stay below, m/s^2.
STAGE1_PARTNER_ACCEL: Final = 1.5
#: Methods an environment must have for the safety filter to see what it guards.
_SAFETY_HOOKS: Final = ("build_agent_snapshots", "build_control_models", "build_bounds")
#: Likewise a batch of environments.
_BATCH_SAFETY_HOOKS: Final = ("build_agent_batch", "build_control_models", "build_bounds")


def build_env(
    env_cfg: EnvConfig,
    *,
    root_seed: int,
    render_mode: str | None = None,
    partner: PartnerConfig | None = None,
) -> Any:
    """Return the environment that ``env_cfg`` describes, or a batch of them, with two seats.

    With more than two robots ``partner`` is needed: copies of it drive the further ones.

    Raises:
        ConfigurationError: Unknown task or option, a setting the task does not have, or a partner
            of other tasks.
        UnknownNameError: The partner is not registered.
    """
    try:
        task = get_task(env_cfg.task)
    except UnknownNameError as error:
        raise ConfigurationError(str(error)) from error
    _refuse_unused_settings(task, env_cfg, render_mode)
    if partner is not None:
        require_player(task, partner.class_name)
    request = EnvRequest(
        episode_length=env_cfg.episode_length or task.episode_length,
        seats=env_cfg.agent_uids,
        num_envs=env_cfg.num_envs,
        root_seed=root_seed,
        render_mode=render_mode,
        options=task.complete_options(env_cfg.options),
        condition_id=env_cfg.condition_id or next(iter(task.conditions), None),
    )
    env = task.make_env(request)
    if len(env.agent_uids) == SEATS:
        return env
    if partner is None:
        raise ConfigurationError(
            f"build_env: task {task.task_id!r} with {len(env.agent_uids)} robots: expected the "
            "partner whose copies drive the robots after the first two, got none; pass partner=."
        )
    return _with_background_robots(env, partner, num_envs=env_cfg.num_envs)


def require_player(task: TaskSpec, class_name: str) -> None:
    """Raise unless a partner plays ``task``: its card names the task or none, or the task names it.

    Raises:
        ConfigurationError: The partner is one of other tasks.
        UnknownNameError: The class is not registered.
    """

    def plays(name: str) -> bool:
        declared = partner_card(name).tasks
        return not declared or task.task_id in declared or name in task.partners

    if not plays(class_name):
        players = ", ".join(filter(plays, list_registered()))
        raise ConfigurationError(
            f"partner {class_name!r}: expected one that plays task {task.task_id!r} ({players}), "
            f"got one of {', '.join(partner_card(class_name).tasks)}; choose another partner."
        )


def build_partner(
    partner_cfg: PartnerConfig, *, env: Any = None, weights_sha256: str | None = None
) -> FrozenPartner:
    """Return a new partner as ``partner_cfg`` describes it.

    Its actions are checked against and clipped to the space of ``env``, if given; its weights must
    have ``weights_sha256``, if given.

    Raises:
        UnknownNameError: The class is not registered.
        InputError: A field or an option is malformed.
    """
    spec = partner_spec(partner_cfg)
    if weights_sha256 is not None:
        spec = replace(spec, weights_sha256=weights_sha256)
    partner = load_partner(spec)
    if env is not None and isinstance(partner, PartnerBase):
        _bind(partner, env, env.agent_uids[1])
    return partner


def build_partners(
    partners: Sequence[PartnerConfig], *, env: Any, sampler: SamplerConfig | None = None
) -> FrozenPartner:
    """Return the partner of a training in ``env``: the only one, or a mixture of them all.

    Each episode of a mixture is played by a member that ``sampler`` draws; None draws uniformly.

    Raises:
        ConfigurationError: A partner plays other tasks, or cannot be mixed.
        UnknownNameError: A class is not registered.
        InputError: A field or an option is malformed.
    """
    members = [build_partner(partner, env=env) for partner in partners]
    if len(members) == 1:
        return members[0]
    mixable = [member for member in members if isinstance(member, PartnerBase)]
    if len(mixable) < len(members):
        names = [partner.class_name for partner in partners]
        raise ConfigurationError(
            f"partners: expected subclasses of PartnerBase, got {', '.join(names)}, not all of "
            "which are; train beside one of the others alone."
        )
    return PartnerMixture(mixable, sampler)


def partner_spec(partner_config: PartnerConfig, **extra: str) -> PartnerSpec:
    """Return the identity of the configured partner, with ``extra`` on top of its options."""
    return PartnerSpec(
        class_name=partner_config.class_name,
        seed=partner_config.seed,
        checkpoint_step=partner_config.checkpoint_step,
        weights_uri=partner_config.weights_uri,
        extra={**partner_config.extra, **extra},
        weights_sha256=partner_config.weights_sha256,
    )


def code_digest(task: TaskSpec, partners: Iterable[str]) -> str:
    """Return the digest of the code that plays ``task``, plug-ins included.

    Args:
        task: The task.
        partners: Classes of its partners.

    Raises:
        ConfigurationError: The task's factory does not exist.
        UnknownNameError: The class of a partner is not registered.
    """
    return source_digest(task.load_factory(), *map(partner_class, partners))


def build_safety_driver(
    env: Any,
    safety_config: SafetyConfig,
    *,
    link: EgoLink | None = None,
) -> SafetyDriver | RobotDriver | None:
    """Return the safety driver of the scalar env that will be stepped; None without a filter.

    The environment's hooks say which one: that of robots that take velocities, or that of robots
    that take accelerations. Over ``link`` the filter hears of the other robots; without one it sees
    the truth.

    Raises:
        ConfigurationError: The filter is enabled for a task without the hooks, or has settings that
            are not for its robots.
    """
    if not safety_config.enabled:
        return None
    if takes_velocities(env):
        return RobotDriver.from_env(
            env,
            snapshots=None if link is None else link.snapshots,
            **safety_config.to_backup_settings(),
        )
    _require_hooks(env, _SAFETY_HOOKS)
    hooks = EnvHooks.of(env)
    if link is not None:
        hooks = link.hooks(hooks)
    return SafetyDriver(env, hooks, ego_uid=env.ego_uid, options=safety_config.to_options())


def build_batched_safety_driver(
    env: Any, safety_config: SafetyConfig, *, max_rows: int | None = None
) -> "BatchedSafetyDriver | BatchedRobotDriver | None":
    """Build the safety driver of a batch of environments, the one that will be stepped.

    Args:
        env: Batch with the safety hooks, which say which driver it is.
        safety_config: Settings of the filter.
        max_rows: Most environments that the filter decides in one pass, so that none depends on its
            neighbors; robots that take velocities are decided one by one then.

    Returns:
        The driver; None if the filter is disabled.

    Raises:
        ConfigurationError: As `build_safety_driver`.
    """
    if not safety_config.enabled:
        return None
    if takes_velocities(env):
        from cadenza.safety.batched.robot_driver import BatchedRobotDriver

        settings = safety_config.to_backup_settings()
        return BatchedRobotDriver.from_env(env, together=max_rows is None, **settings)
    from cadenza.safety.batched.driver import BatchedSafetyDriver

    _require_hooks(env, _BATCH_SAFETY_HOOKS)
    return BatchedSafetyDriver.from_env(
        env, ego_uid=env.ego_uid, options=safety_config.to_options(), max_rows=max_rows
    )


def decides_in_lanes(env: Any, safety_config: SafetyConfig) -> bool:
    """Return whether the filter of ``env`` can guard lanes with these settings.

    Raises:
        ConfigurationError: They are not for its robots.
    """
    if not safety_config.enabled:
        return True
    if takes_velocities(env):
        safety_config.to_backup_settings()
        return True
    from cadenza.safety.batched.engine import follows

    return follows(safety_config.to_options())


def _require_hooks(env: Any, hooks: tuple[str, ...]) -> None:
    """Raise unless ``env`` has all ``hooks``."""
    missing = [name for name in hooks if not callable(getattr(env, name, None))]
    if missing:
        raise ConfigurationError(
            f"safety.enabled: expected an environment with {', '.join(hooks)}, got "
            f"{type(env).__name__} without {missing[0]}; disable the filter or choose a task that "
            "supports it (`cadenza tasks list`)."
        )


def build_control_models(env: Any) -> Mapping[str, AgentControlModel]:
    """Return the control model of every robot: the environment's, else double integrators.

    Raises:
        ConfigurationTypeError: No such hook, and a space that is no Dict of boxes.
        ConfigurationError: No such hook, and a box of more than one dimension.
    """
    own = optional_hook(env, "build_control_models")
    if own is not None:
        return own()
    return {
        uid: DoubleIntegratorControlModel(uid, box.shape[0])
        for uid, box in _action_boxes(env).items()
    }


def build_bounds_for_env(env: Any) -> Bounds:
    """Return the environment's bounds, else those of its action boxes taken for accelerations.

    Errors as `build_control_models`.
    """
    own = optional_hook(env, "build_bounds")
    if own is not None:
        return own()
    largest = max(float(np.abs([b.low, b.high]).max()) for b in _action_boxes(env).values())
    limit = largest if np.isfinite(largest) else 1.0
    return Bounds(limit, limit, 2.0 * limit, 0.0, 0.0)


def build_emergency_controllers(env: Any) -> dict[str, EmergencyController]:
    """Return how every robot brakes: through its Jacobian where its model has one."""
    return {
        uid: JacobianEmergencyController(control_model=model)
        if isinstance(model, JacobianControlModel)
        else CartesianAccelEmergencyController()
        for uid, model in build_control_models(env).items()
    }


def build_safety_filter(env: Any) -> EgoOnlySafetyFilter:
    """Return the filter of the ego's actions with the control models of ``env``."""
    return ExpCBFQP.ego_only(control_models=build_control_models(env))


def build_safety_dt(env: Any, *, fallback: float = 0.02) -> float:
    """Return the environment's control step, s."""
    own = optional_hook(env, "control_timestep")
    return fallback if own is None else float(own)


def build_safety_snapshot_builder(env: Any) -> Callable[[Any], dict[str, AgentSnapshot]] | None:
    """Return what reads every robot's motion from the environment; None where nothing does."""
    own = optional_hook(env, "build_agent_snapshots")
    return None if own is None else lambda _: own()


def _action_boxes(env: Any) -> dict[str, Any]:
    """Return the one-dimensional box of every robot's action."""
    spaces = getattr(env.action_space, "spaces", None)
    if not isinstance(spaces, Mapping):
        raise ConfigurationTypeError(
            f"env.action_space: expected a Dict by robot, got {type(env.action_space).__name__}."
        )
    boxes = dict(cast("Mapping[str, Any]", spaces))
    for uid, box in boxes.items():
        if not hasattr(box, "high"):
            raise ConfigurationTypeError(
                f"env.action_space[{uid!r}]: expected a Box, got {type(box).__name__}."
            )
        if len(box.shape) != 1:
            raise ConfigurationError(
                f"env.action_space[{uid!r}]: expected one dimension, got {box.shape}; offer "
                "build_control_models()."
            )
    return boxes


def make_crossing_env(request: EnvRequest) -> Any:
    """Build the crossing task; see `EnvRequest`."""
    from cadenza.envs.crossing import CrossingEnv, VectorCrossingEnv

    num_robots = int(request.options["num_robots"])
    uids = (*request.seats, *(f"robot_{k}" for k in range(SEATS, num_robots)))
    robots: dict[str, Any] = {"num_robots": num_robots, "agent_uids": uids}
    return _one_or_many(request, CrossingEnv, VectorCrossingEnv, **robots)


def make_doorway_env(request: EnvRequest) -> Any:
    """Build the door task for holonomic bases; see `EnvRequest`."""
    from cadenza.envs.doorway import DoorwayEnv, VectorDoorwayEnv

    given: dict[str, Any] = dict(request.options)
    return _one_or_many(request, DoorwayEnv, VectorDoorwayEnv, **given)


def make_doorway_diffdrive_env(request: EnvRequest) -> Any:
    """Build the door task for robots on wheels; see `EnvRequest`."""
    from cadenza.envs.doorway import DoorwayDiffDriveEnv, VectorDoorwayDiffDriveEnv

    given: dict[str, Any] = dict(request.options)
    return _one_or_many(request, DoorwayDiffDriveEnv, VectorDoorwayDiffDriveEnv, **given)


def make_mpe_cooperative_push_env(request: EnvRequest) -> Any:
    """Build the cooperative-push task; see `EnvRequest`."""
    from cadenza.envs.mpe import MPECooperativePushEnv, VectorMPECooperativePushEnv

    return _one_or_many(request, MPECooperativePushEnv, VectorMPECooperativePushEnv)


def make_cocarry_env(request: EnvRequest) -> Any:
    """Build the co-carry task; see `EnvRequest`."""
    from cadenza.envs.mujoco import CoCarryEnv, CoCarryOptions, VectorCoCarryEnv

    given: dict[str, Any] = {**request.options, "training": bool(request.options["training"])}
    return _one_or_many(request, CoCarryEnv, VectorCoCarryEnv, options=CoCarryOptions(**given))


def make_handover_env(request: EnvRequest) -> Any:
    """Build the handover task; see `EnvRequest`."""
    from cadenza.envs.mujoco import HandoverEnv, HandoverOptions, VectorHandoverEnv

    given: dict[str, Any] = dict(request.options)
    return _one_or_many(request, HandoverEnv, VectorHandoverEnv, options=HandoverOptions(**given))


def _one_or_many(request: EnvRequest, scalar: Any, batched: Any, **own: Any) -> Any:
    settings = {**request.settings(), **own}
    if request.wants_batch:
        return batched(request.num_envs, **settings)
    return scalar(**settings, render_mode=request.render_mode)


def make_stage0_smoke_env(request: EnvRequest) -> Any:
    """Build the three-robot scene, of which ego and partner are driven; see `EnvRequest`."""
    from cadenza.envs.maniskill.stage0 import make_stage0_training_env

    _refuse_pictures(request)
    return make_stage0_training_env(
        agent_uids=_fixed_seats(request, ("panda_wristcam", "fetch")),
        episode_length=request.episode_length,
        root_seed=request.root_seed,
    )


def make_stage1_pickplace_task_env(request: EnvRequest) -> Any:
    """Build the pick-and-place task of one condition; see `EnvRequest`.

    The filter takes a partner's ball to accelerate by at most `STAGE1_PARTNER_ACCEL`: with the
    whole strength of a second Panda it would be the ego's equal, and nothing could be guaranteed.
    """
    from cadenza.envs.maniskill.simulator import ScalarManiSkillEnv
    from cadenza.envs.maniskill.stage1_pickplace import make_stage1_pickplace_env, resolve_condition

    _refuse_pictures(request)
    condition = resolve_condition(str(request.condition_id))
    _fixed_seats(request, condition.agent_uids)
    return ScalarManiSkillEnv(
        make_stage1_pickplace_env(
            condition_id=condition.condition_id,
            episode_length=request.episode_length,
            root_seed=request.root_seed,
            partner_accel_capacity=STAGE1_PARTNER_ACCEL,
        )
    )


def _fixed_seats(request: EnvRequest, uids: tuple[str, str]) -> tuple[str, str]:
    """Return ``uids``, the robots of a task that cannot be renamed."""
    if request.seats not in (uids, ("ego", "partner")):
        raise ConfigurationError(
            f"env.agent_uids: expected {uids}, the robots of this task, got {request.seats}."
        )
    return uids


def _refuse_pictures(request: EnvRequest) -> None:
    """Raise for a render mode that a ManiSkill task has only through its own factory."""
    if request.render_mode is not None:
        raise ConfigurationError(
            f"build_env: expected render_mode None, got {request.render_mode!r}; draw a ManiSkill "
            "env of its own factory, e.g. cadenza.envs.make_stage1_pickplace_env(render_mode=...)."
        )


def _refuse_unused_settings(task: TaskSpec, env_config: EnvConfig, render_mode: str | None) -> None:
    """Raise for a setting that this task would silently ignore."""
    if env_config.mask_partner_obs:
        raise ConfigurationError(
            f"env.mask_partner_obs: expected False, got True; task {task.task_id!r} cannot hide "
            "the partner."
        )
    if env_config.condition_id not in (None, *task.conditions):
        expected = f"one of {task.conditions}" if task.conditions else "None"
        raise ConfigurationError(
            f"env.condition_id: expected {expected}, got {env_config.condition_id!r}; task "
            f"{task.task_id!r} comes in {len(task.conditions) or 'one'} condition(s)."
        )
    if env_config.num_envs > 1 and render_mode is not None:
        raise ConfigurationError(
            f"build_env: expected render_mode None for a batch of {env_config.num_envs}, got "
            f"{render_mode!r}; draw a scalar environment."
        )


def _with_background_robots(env: Any, partner_config: PartnerConfig, *, num_envs: int) -> Any:
    """Wrap ``env`` so that copies of the partner drive the robots beyond ego and partner."""
    robots: dict[str, PartnerBase] = {}
    for uid in env.agent_uids[SEATS:]:
        robot = load_partner(partner_spec(partner_config, uid=uid))
        if not isinstance(robot, PartnerBase):
            raise ConfigurationError(
                f"partner.class_name: expected a subclass of PartnerBase to drive {uid!r}, got "
                f"{type(robot).__name__}; a background robot must restart row by row."
            )
        _bind(robot, env, uid)
        robots[uid] = robot
    if num_envs > 1:
        return BatchedBackgroundRobots(env, robots, num_envs=num_envs)
    return BackgroundRobots(env, robots)


def _bind(partner: PartnerBase, env: Any, uid: str) -> None:
    space = getattr(env, "single_action_space", env.action_space)
    partner.bind(space[uid])
    partner.bind_contract(contract_at(env, uid))


class DrawnSeat(EgoGymEnv):
    """The ego's seat beside a partner that is drawn anew, uniformly, for every episode.

    Attributes:
        drawn: Number of the partner of this episode.
    """

    def __init__(self, env: Any, partners: Sequence[FrozenPartner], *, stream: str) -> None:
        super().__init__(env, partners[0])
        self.drawn: int = 0
        self._choices, self._partner_uid = tuple(partners), env.agent_uids[1]
        self._stream = stream

    @property
    def companions(self) -> list[str]:
        """How those are known who may play beside the ego."""
        return companions_of(self._choices)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Start an episode with the partner that ``seed`` draws; None draws a seed first."""
        if seed is None:
            seed = int(self.np_random.integers(INTEGER_SEED_BOUND))
        rng = derive_substream(self._stream, root_seed=seed).default_rng()
        self.drawn = int(rng.integers(len(self._choices)))
        self.partners = {self._partner_uid: self._choices[self.drawn]}
        return super().reset(seed=seed, options=options)


#: Stream that draws who plays a seat in an episode, in batches and in single environments.
SEAT_STREAM: Final = "benchmark.stream.{uid}"


def ego_env(
    task: str = "",
    *,
    partner: str | None = None,
    partner_options: Mapping[str, str] | None = None,
    partners: Members | None = None,
    agent_uids: tuple[str, str] = ("ego", "partner"),
    condition_id: str | None = None,
    episode_length: int | None = None,
    root_seed: int = 0,
    render_mode: str | None = None,
    **options: Any,
) -> EgoGymEnv:
    """Return the ego's seat of a task; what ``gym.make("cadenza/Crossing-v1", ...)`` calls.

    Args:
        task: Name of the task, also ``pettingzoo:module:env``.
        partner: Registered name of the partner inside; None takes the one that training uses.
        partner_options: Options of the partner.
        partners: Instead of one: who may play the partner's seat, drawn anew for every episode;
            see `cadenza.benchmark.populations`. Settings of a zoo are the task's.
        agent_uids: Names of the seats, the ego's first.
        condition_id: The one of the task's conditions; None takes the usual one.
        episode_length: Control steps until truncation; None takes the task's.
        root_seed: Experiment seed that scopes every episode.
        render_mode: None or ``"rgb_array"``.
        **options: Options of the task, e.g. ``num_robots``; those of a PettingZoo environment are
            the keywords of its constructor.

    Raises:
        ConfigurationError: Unknown task, option or render mode, or a partner of other tasks.
        UnknownNameError: The partner is not registered.
    """
    spec = get_task(task)
    crowd = seat_players(spec, partner, partner_options, partners)
    config = EnvConfig(
        task=task,
        condition_id=condition_id,
        episode_length=episode_length or crowd.episode_length,
        agent_uids=agent_uids,
        options={**(crowd.options or {}), **options},
    )
    first = crowd.partners[0]
    env = build_env(config, root_seed=root_seed, render_mode=render_mode, partner=first)
    uid = env.agent_uids[1]
    seated = [p.model_copy(update={"extra": {"uid": uid, **p.extra}}) for p in crowd.partners]
    built = [build_partner(player, env=env) for player in seated]
    if len(built) == 1:
        return EgoGymEnv(env, built[0])
    return DrawnSeat(env, built, stream=SEAT_STREAM.format(uid=uid))


def seat_players(
    task: TaskSpec,
    partner: str | None,
    options: Mapping[str, str] | None,
    partners: Members | None,
) -> Population:
    """Return who may play the partner's seat; by default the partner that training uses.

    Raises:
        ConfigurationError: As `population`; a partner is one of other tasks; or one is given beside
            several.
    """
    if partners is None:
        one = PartnerConfig(class_name=partner or task.seen_partner, extra=dict(options or {}))
        crowd = Population((one,), (), None, None)
    elif partner is not None or options is not None:
        expected, got = "partner or partners", "both"
        refuse(ConfigurationError, "partners", expected=expected, got=got)
    else:
        crowd = population(task.task_id, partners)
    for player in crowd.partners:
        require_player(task, player.class_name)
    return crowd
