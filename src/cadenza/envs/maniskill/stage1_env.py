"""The pick-and-place env itself: imports ManiSkill, so only the factory imports this module.

Task:        the ego, a Panda, grasps a cube on a table and holds it still at a goal in the air. Its
             partner shares the table.
Success:     |goal - cube| <= 0.025 m and every arm joint of the ego slower than 0.2 rad/s.
Reward:      R = [1 - tanh(5 d_tc)] + g + g [1 - tanh(5 d_cg)] + placed [1 - tanh(5 |qvel|)], 5 on
             success; the env returns R / 5, in [0, 1]. d_tc and d_cg are the distances tool centre
             to cube and cube to goal, g says whether the cube is grasped.
Forces:      ``extra.force_torque`` is the net contact force on both finger tips (left, then right)
             plus Gaussian noise: a synthesised signal, no wrist sensor. At a reset nothing touches
             the fingers, so it is noise alone.
Randomness:  episode k draws from ``env.stage1_pickplace.episode.{k}.layout`` and ``.ft_noise``, or
             with several envs from ``env.stage1_pickplace.env{i:04d}.episode.{k}...``.
Units:       m, rad, s, N; quaternions (w, x, y, z); N = number of envs, the first axis of tensors.
"""

import math
from collections.abc import Iterable
from functools import partial
from typing import Any, Final

import numpy as np
import torch

from cadenza.core.arrays import FloatArray
from cadenza.core.checks import whole_number
from cadenza.core.extras import load_extra
from cadenza.core.seeding import derive_substream
from cadenza.envs.inputs import vector_action
from cadenza.envs.maniskill.base_env import BaseEnv, sapien
from cadenza.envs.maniskill.panda_partner import PandaPartner
from cadenza.envs.maniskill.simulator import name_robots_plainly
from cadenza.envs.maniskill.stage1_conditions import (
    EGO_UID,
    FETCH_SAFETY_RADIUS_M,
    FETCH_UID,
    PANDA_CARTESIAN_ACCEL_CAPACITY_MS2,
    PANDA_PARTNER_UID,
    PANDA_SAFETY_RADIUS_M,
    ConditionConfig,
    build_control_models_for_condition,
)
from cadenza.envs.panda_kinematics import (
    PANDA_ARM_DOF,
    PandaJacobianProvider,
    quaternion_rotation,
)
from cadenza.safety.contracts import AgentControlModel, Bounds
from cadenza.safety.snapshot import AgentSnapshot

_actors: Final[Any] = load_extra("mani_skill.utils.building.actors")
_table: Final[Any] = load_extra("mani_skill.utils.scene_builder.table")
_camera: Final[Any] = load_extra("mani_skill.sensors.camera")
_utils: Final[Any] = load_extra("mani_skill.utils.sapien_utils")
_Pose: Final[Any] = load_extra("mani_skill.utils.structs.pose").Pose

_OWNER: Final = "Stage1PickPlaceEnv"
#: Name of the stream family.
STREAM: Final = "env.stage1_pickplace"
#: Half an edge of the cube, m.
CUBE_HALF_SIZE: Final = 0.02
#: Distance at which the cube counts as placed, and radius of the goal marker, m.
GOAL_THRESHOLD: Final = 0.025
#: Cube and goal start within this of the table's origin in x and in y, m.
SPAWN_HALF_WIDTH: Final = 0.05
#: Largest height of the goal above the resting cube, m.
MAX_GOAL_HEIGHT: Final = 0.3
#: Largest speed of an arm joint at rest, rad/s.
STATIC_SPEED: Final = 0.2
#: Distance of both bases from the origin along x, m.
BASE_DISTANCE: Final = 0.615
#: Joint step that an arm's action of 1 asks for, rad.
ARM_STEP: Final = 0.1
#: Stiffness over damping of the arms' drives, 1/s: 1000 N m / rad over 100 N m s / rad.
ARM_RATE: Final = 10.0
#: Entries of a Fetch's action that drive its base: forward velocity (m/s at 1), and yaw rate.
FETCH_BASE_ACTION: Final = (11, 12)

_READY_PANDA: Final = (
    *(0.0, math.pi / 8, 0.0, -5 * math.pi / 8, 0.0, 3 * math.pi / 4, -math.pi / 4),
    *(0.04, 0.04),
)
_READY_FETCH: Final = (
    *(0.0, 0.0, 0.0, 0.386, 0.0, 0.0, 0.0, -math.pi / 4, 0.0, math.pi / 4, 0.0, math.pi / 3),
    *(0.0, 0.015, 0.015),
)
#: A Panda that faces the ego begins with its arm drawn back, 0.5 m from the ego's hand: in the
#: ego's own posture the two hands would start inside one another.
_BACK_PANDA: Final = (
    *(0.0, -math.pi / 4, 0.0, -3 * math.pi / 4, 0.0, math.pi / 2, -math.pi / 4),
    *(0.04, 0.04),
)
#: Joint positions at the start of every episode, grippers open.
READY_QPOS: Final = {EGO_UID: _READY_PANDA, PANDA_PARTNER_UID: _BACK_PANDA, FETCH_UID: _READY_FETCH}
#: The same for a partner that faces away.
UPSTREAM_QPOS: Final = {**READY_QPOS, PANDA_PARTNER_UID: _READY_PANDA}
_FINGERS: Final = ("panda_leftfinger", "panda_rightfinger")


class Stage1PickPlaceEnv(BaseEnv):
    """Pick and place beside a partner; made by `make_stage1_pickplace_env`.

    ``obs["agent"][uid]`` holds ``qpos`` and ``qvel``, ``obs["extra"]`` the task: ``tcp_pose`` and
    ``cube_pose`` (N, 7), ``goal_pos``, ``cube_to_tcp_pos`` and ``cube_to_goal_pos`` (N, 3),
    ``force_torque`` (N, 6). All are float32 tensors.

    Attributes:
        plant: How the safety filter takes one control step to act. The drives need a few steps to
            reach a target, so the filter's certificate does not cover this env.
        episode_length: Steps until truncation.
        root_seed: Experiment seed that scopes every episode.
        force_torque_noise_sigma: Standard deviation of the noise on the finger forces, N.
        safety_radius_m: Radius of each robot's ball, m.
    """

    plant: Final = "zoh"

    def __init__(
        self,
        condition: ConditionConfig,
        *,
        episode_length: int,
        root_seed: int,
        force_torque_noise_sigma: float,
        partner_accel_capacity: float | None,
        partner_faces_away: bool,
        num_envs: int,
        **simulator: Any,
    ) -> None:
        # ManiSkill resets inside its constructor: what a reset reads must be there before it.
        self._condition = condition
        self.episode_length = episode_length
        self.root_seed = root_seed
        self.force_torque_noise_sigma = force_torque_noise_sigma
        self._partner_accel_capacity = partner_accel_capacity
        self._partner_yaw = 0.0 if partner_faces_away else math.pi
        self._ready_qpos = UPSTREAM_QPOS if partner_faces_away else READY_QPOS
        self.safety_radius_m: dict[str, float] = {
            uid: FETCH_SAFETY_RADIUS_M if uid == FETCH_UID else PANDA_SAFETY_RADIUS_M
            for uid in condition.agent_uids
        }
        self._kinematics = PandaJacobianProvider()
        envs = range(num_envs)
        self._prefixes = [STREAM] if num_envs == 1 else [f"{STREAM}.env{i:04d}" for i in envs]
        self._numbered = [f"{prefix}.episode" for prefix in self._prefixes]
        self._auto_episodes = [0] * num_envs
        self._layout: dict[int, np.random.Generator] = {}
        self._noise: dict[int, np.random.Generator] = {}
        self._open_streams(envs, None)
        agents = {PANDA_PARTNER_UID: PandaPartner}
        super().__init__(
            robot_uids=tuple(agents.get(uid, uid) for uid in condition.agent_uids),
            obs_mode=condition.obs_mode,
            control_mode="pd_joint_delta_pos",
            reward_mode="normalized_dense",
            num_envs=num_envs,
            **simulator,
        )
        self._auto_episodes = [0] * num_envs

    @property
    def condition_id(self) -> str:
        """Id of the condition."""
        return self._condition.condition_id

    @property
    def condition_config(self) -> ConditionConfig:
        """The condition."""
        return self._condition

    @property
    def agent_uids(self) -> tuple[str, str]:
        """Ego and partner."""
        return self._condition.agent_uids

    @property
    def ego_uid(self) -> str:
        """The robot that is trained and guarded."""
        return self._condition.agent_uids[0]

    @property
    def partner_uid(self) -> str:
        """The other one."""
        return self._condition.agent_uids[1]

    @property
    def num_envs_requested(self) -> int:
        """Scenes that are stepped together."""
        return self.num_envs

    @property
    def xy_action_indices(self) -> dict[str, tuple[int, int]]:
        """Entries of each action that move a robot in the plane; only a Fetch has such."""
        return {FETCH_UID: FETCH_BASE_ACTION} if FETCH_UID in self.agent_uids else {}

    def reset(
        self, seed: "int | list[int] | None" = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode in all envs, or in those of ``options["env_idx"]``.

        Args:
            seed: Episode index under ``root_seed``: equal pairs give equal episodes, whatever came
                before. None starts the next of the unnumbered episodes after the last numbered one.
            options: ``env_idx`` and ``reconfigure`` of ManiSkill.

        Raises:
            InputError: ``seed`` is not an integer >= 0.
        """
        if not isinstance(seed, list):  # a list is ManiSkill's own first reset
            if seed is not None:
                seed = whole_number(f"{_OWNER}.seed", seed, least=0)
            chosen: Any = (options or {}).get("env_idx", range(self.num_envs))
            self._open_streams([int(i) for i in chosen], seed)
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[dict[str, Any], Any, Any, Any, dict[str, Any]]:
        """Advance by one control step.

        Args:
            action: One array (A,) or (N, A) per uid, in [-1, 1]; other keys are ignored.

        Returns:
            Observation, reward, terminated, truncated, info; reward and flags are (N,). The info
            holds ``success``, ``is_obj_placed``, ``is_robot_static`` and ``is_grasped``, (N,).

        Raises:
            InputError: A uid is missing, or its action has another shape or is not finite.
        """
        spaces, n = self.single_action_space, self.num_envs
        checked = {
            uid: vector_action(_OWNER, action, uid, spaces[uid].shape[0], rows=n).astype(np.float32)
            for uid in self.agent_uids
        }
        obs, reward, terminated, truncated, info = super().step(checked)
        late = self.elapsed_steps >= self.episode_length
        return obs, reward, terminated, torch.logical_or(truncated, late), info

    def evaluate(self) -> dict[str, torch.Tensor]:
        """Return success and what it is made of, (N,) each."""
        ego = self._robot(self.ego_uid)
        placed = length(self._cube_to_goal()) <= GOAL_THRESHOLD
        static = ego.is_static(STATIC_SPEED)
        return {
            "is_obj_placed": placed,
            "is_robot_static": static,
            "is_grasped": torch.logical_and(ego.is_grasping(self.cube), self.elapsed_steps > 0),
            "success": torch.logical_and(placed, static),
        }

    def compute_dense_reward(
        self, obs: Any, action: Any, info: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """Return R of the module's header, (N,)."""
        del obs, action
        ego = self._robot(self.ego_uid)
        grasped = info["is_grasped"].float()
        speed = length(ego.robot.get_qvel()[:, :PANDA_ARM_DOF])
        reward = closeness(length(self.cube.pose.p - ego.tcp.pose.p))
        reward += grasped + grasped * closeness(length(self._cube_to_goal()))
        reward += info["is_obj_placed"].float() * closeness(speed)
        return torch.where(info["success"], 5.0, reward)

    def compute_normalized_dense_reward(
        self, obs: Any, action: Any, info: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """Return R / 5, (N,)."""
        return self.compute_dense_reward(obs, action, info) / 5.0

    def build_control_models(self) -> dict[str, AgentControlModel]:
        """Return how each robot's action moves its ball, at its own joints and in the world frame.

        An arm's action is a joint step within the control step, a Fetch's base takes a velocity.
        """
        uids = self.agent_uids
        dims = {uid: self.single_action_space[uid].shape[0] for uid in uids}
        return build_control_models_for_condition(
            self.condition_id,
            jacobian_fn={uid: partial(self._action_jacobian, uid) for uid in uids},
            bias_fn={uid: partial(self._bias_accel, uid) for uid in uids if uid != FETCH_UID},
            panda_action_dim=dims[self.ego_uid],
            fetch_action_dim=dims.get(FETCH_UID),
            control_timestep_s=self.control_timestep,
            partner_accel_capacity=self._partner_accel_capacity,
        )

    def build_agent_snapshots(self) -> dict[str, AgentSnapshot]:
        """Return each robot's ball: around the tool centre of a Panda, the base of a Fetch.

        Velocities are J(q) q' of this instant, so asking twice changes nothing.

        Raises:
            RuntimeError: There are several envs.
        """
        self._require_one_env()
        return {
            uid: AgentSnapshot(*self._ball_of(uid), self.safety_radius_m[uid])
            for uid in self.agent_uids
        }

    def build_bounds(self) -> Bounds:
        """Return the envelope of the ego; its action is normalised, so the box is [-1, 1]."""
        return Bounds(
            action_linf_component=1.0,
            cartesian_accel_capacity=PANDA_CARTESIAN_ACCEL_CAPACITY_MS2,
            action_rate=10.0,
            comm_latency_ms=0.0,
            force_limit=50.0,
        )

    def robot_positions(self) -> dict[str, FloatArray]:
        """Return the centre of each robot's ball, x and y, shape (2,), m."""
        self._require_one_env()
        return {uid: self._ball_of(uid)[0][:2] for uid in self.agent_uids}

    def goal_positions(self) -> dict[str, FloatArray]:
        """Return where the cube is to go and where it is, x and y, shape (2,), m."""
        self._require_one_env()
        return {"goal": _row(self.goal_site.pose.p)[:2], "cube": _row(self.cube.pose.p)[:2]}

    def _open_streams(self, indices: Iterable[int], seed: int | None) -> None:
        """Open the streams of the next episode of each env in ``indices``."""
        for i in indices:
            if seed is None:
                name = f"{self._numbered[i]}.auto.{self._auto_episodes[i]}"
                self._auto_episodes[i] += 1
            else:
                name = self._numbered[i] = f"{self._prefixes[i]}.episode.{seed}"
                self._auto_episodes[i] = 0
            for streams, purpose in ((self._layout, "layout"), (self._noise, "ft_noise")):
                stream = derive_substream(f"{name}.{purpose}", root_seed=self.root_seed)
                streams[i] = stream.default_rng()

    def _load_agent(self, options: dict[str, Any], initial_agent_poses: Any = None) -> None:
        del initial_agent_poses
        half = self._partner_yaw / 2
        turned = [math.cos(half), 0.0, 0.0, math.sin(half)]
        poses = [
            sapien.Pose(p=[-BASE_DISTANCE, 0.0, 0.0]),
            sapien.Pose(p=[BASE_DISTANCE, 0.0, 0.0], q=turned),
        ]
        super()._load_agent(options, poses)
        name_robots_plainly(self.agent)
        self._base_rotation = {
            uid: quaternion_rotation(pose.q)
            for uid, pose in zip(self.agent_uids, poses, strict=True)
        }

    def _load_scene(self, options: dict[str, Any]) -> None:
        del options
        self._table_scene: Any = _table.TableSceneBuilder(self, robot_init_qpos_noise=0.0)
        self._table_scene.build()
        self.cube: Any = _actors.build_cube(
            self.scene,
            half_size=CUBE_HALF_SIZE,
            color=[1, 0, 0, 1],
            name="cube",
            initial_pose=sapien.Pose(p=[0, 0, CUBE_HALF_SIZE]),
        )
        self.goal_site: Any = _actors.build_sphere(
            self.scene,
            radius=GOAL_THRESHOLD,
            color=[0, 1, 0, 1],
            name="goal_site",
            body_type="kinematic",
            add_collision=False,
            initial_pose=sapien.Pose(),
        )
        self._hidden_objects = [self.goal_site]

    def _initialize_episode(self, env_idx: torch.Tensor, options: dict[str, Any]) -> None:
        del options
        self._table_scene.initialize(env_idx)
        rows = [int(i) for i in env_idx]
        for uid in self.agent_uids:
            qpos = np.tile(np.array(self._ready_qpos[uid], dtype=np.float32), (len(rows), 1))
            self._robot(uid).reset(torch.as_tensor(qpos, device=self.device))
        layout = np.stack([draw_layout(self._layout[i]) for i in rows])
        points = torch.as_tensor(layout, dtype=torch.float32, device=self.device)
        self.cube.set_pose(_Pose.create_from_pq(points[:, 0]))
        self.goal_site.set_pose(_Pose.create_from_pq(points[:, 1]))

    def _get_obs_extra(self, info: dict[str, Any]) -> dict[str, torch.Tensor]:
        del info
        tcp, cube = self._robot(self.ego_uid).tcp.pose, self.cube.pose
        return {
            "tcp_pose": tcp.raw_pose,
            "goal_pos": self.goal_site.pose.p,
            "cube_pose": cube.raw_pose,
            "cube_to_tcp_pos": cube.p - tcp.p,
            "cube_to_goal_pos": self._cube_to_goal(),
            "force_torque": self._force_torque(),
        }

    def _get_obs_sensor_data(self, apply_texture_transforms: bool = True) -> dict[str, Any]:
        """Return the images; depth is in mm, and 0 where nothing is near enough to be measured."""
        images = super()._get_obs_sensor_data(apply_texture_transforms)
        for camera in images.values():
            if "depth" in camera:  # what is farther than 32.8 m overflows to negative numbers
                camera["depth"] = camera["depth"].clamp(min=0)
        return images

    def _force_torque(self) -> torch.Tensor:
        """Return the finger forces with noise, (N, 6), N."""
        robot = self._robot(self.ego_uid).robot
        forces: torch.Tensor = robot.get_net_contact_forces(_FINGERS).reshape(self.num_envs, 6)
        # Before its first step an episode would show the contacts of the last one.
        forces = forces * (self.elapsed_steps > 0)[:, None]
        sigma = self.force_torque_noise_sigma
        if sigma > 0.0:
            noise = np.stack([self._noise[i].normal(0.0, sigma, 6) for i in range(self.num_envs)])
            forces = forces + torch.as_tensor(noise, dtype=torch.float32, device=self.device)
        return forces

    @property
    def _default_human_render_camera_configs(self) -> Any:
        pose = _utils.look_at(eye=[0.7, 0.7, 0.6], target=[0.0, 0.0, 0.1])
        return _camera.CameraConfig("render_camera", pose, 640, 480, 1.0, 0.01, 100.0)

    def _cube_to_goal(self) -> torch.Tensor:
        return self.goal_site.pose.p - self.cube.pose.p

    def _robot(self, uid: str) -> Any:
        return self.agent.agents_dict[uid]

    def _joints(self, uid: str) -> tuple[FloatArray, FloatArray]:
        """Return positions and velocities of all joints of a robot in the only env."""
        robot = self._robot(uid).robot
        return _row(robot.get_qpos()), _row(robot.get_qvel())

    def _ball_of(self, uid: str) -> tuple[FloatArray, FloatArray]:
        """Return position and velocity of a robot's ball, shape (3,) each."""
        qpos, qvel = self._joints(uid)
        rotation = self._base_rotation[uid]
        if uid == FETCH_UID:
            base = _row(self._robot(uid).base_link.pose.p)
            return base, rotation @ np.array([qvel[0], qvel[1], 0.0])
        arm = slice(0, PANDA_ARM_DOF)
        velocity = self._kinematics.world_jacobian(qpos[arm], rotation) @ qvel[arm]
        return _row(self._robot(uid).tcp.pose.p), velocity

    def _action_jacobian(self, uid: str, state: AgentSnapshot) -> FloatArray:
        """Return metres (of a Fetch: m/s) of the ball per action unit, shape (3, A)."""
        del state  # it holds no joints, so the robot is asked
        qpos, rotation = self._joints(uid)[0], self._base_rotation[uid]
        jacobian = np.zeros((3, self.single_action_space[uid].shape[0]))
        if uid == FETCH_UID:
            heading = np.array([math.cos(qpos[2]), math.sin(qpos[2]), 0.0])
            jacobian[:, FETCH_BASE_ACTION[0]] = rotation @ heading
        else:
            # A drive is an overdamped spring: it makes this share of the step it is asked for.
            share = 1.0 - math.exp(-ARM_RATE * self.control_timestep)
            arm = self._kinematics.world_jacobian(qpos[:PANDA_ARM_DOF], rotation)
            jacobian[:, :PANDA_ARM_DOF] = share * ARM_STEP * arm
        return jacobian

    def _bias_accel(self, uid: str, state: AgentSnapshot) -> FloatArray:
        """Return J' q' of an arm, shape (3,), m/s^2."""
        del state
        qpos, qvel = (values[:PANDA_ARM_DOF] for values in self._joints(uid))
        return self._base_rotation[uid] @ self._kinematics.bias_accel(qpos, qvel)

    def _require_one_env(self) -> None:
        if self.num_envs > 1:
            raise RuntimeError(
                f"{_OWNER}: expected one env, got {self.num_envs}; snapshots describe one scene, "
                "so guard envs one by one."
            )


def draw_layout(rng: np.random.Generator) -> FloatArray:
    """Return where cube and goal start, shape (2, 3), m: x and y of both, then the height."""
    cube = rng.uniform(-SPAWN_HALF_WIDTH, SPAWN_HALF_WIDTH, 2)
    goal = rng.uniform(-SPAWN_HALF_WIDTH, SPAWN_HALF_WIDTH, 2)
    height = rng.uniform(0.0, MAX_GOAL_HEIGHT)
    return np.array([[*cube, CUBE_HALF_SIZE], [*goal, CUBE_HALF_SIZE + height]])


def length(vectors: torch.Tensor) -> torch.Tensor:
    """Return the Euclidean norm of each row, (N,)."""
    return vectors.square().sum(dim=1).sqrt()


def closeness(distance: torch.Tensor) -> torch.Tensor:
    """Return 1 - tanh(5 x): 1 at x = 0, near 0 from x = 0.5."""
    return 1.0 - torch.tanh(5.0 * distance)


def _row(tensor: Any) -> FloatArray:
    """Return the only row of a tensor, float64."""
    return tensor[0].detach().cpu().numpy().astype(np.float64)
