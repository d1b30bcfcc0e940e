"""Environments of two arms: one copy of a task, or many, with spaces, seeds and resets around it.

Task:     a subclass of `Copies` has physics, judgement and views; `TwoArmEnv` plays one copy of it,
          `VectorTwoArmEnv` N on a pool of threads, and every copy has the bytes of the former.
Episodes: episode k draws from the stream ``f"{stream}.episode.{k}"`` under ``root_seed``.
Axes:     N = copies, R = rows that begin an episode; robot 0 is the ego, robot 1 the partner.
Units:    m, m/s, rad, rad/s, N, s.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, ClassVar, Final, Generic, TypeVar, get_args

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray
from cadenza.core.checks import whole_number
from cadenza.core.errors import InputError, NotReadyError
from cadenza.envs.batched_streams import named_uniforms
from cadenza.envs.contracts import Contracts
from cadenza.envs.inputs import (
    checked_action,
    checked_agent_uids,
    checked_render_mode,
    checked_seed,
)
from cadenza.envs.mujoco.arm_guard import ArmGuard, Guarding, arm_state
from cadenza.envs.mujoco.panda import (
    JOINT_HIGH,
    JOINT_LOW,
    JOINTS,
    Kinematics,
    kinematics,
    quaternions,
)
from cadenza.envs.mujoco.simulations import (
    Camera,
    ManySimulations,
    OneSimulation,
    Pictures,
    Simulations,
)
from cadenza.envs.vector_base import EpisodeBatch

#: Seconds per tick, and steps of ramp within it.
CONTROL_TIMESTEP: Final = 0.05
CHUNKS: Final = 5
#: Largest step of a joint, rad per tick.
JOINT_STEP: Final = 0.1
#: Limits of both arms' joints, (14,), rad.
LOW: Final[FloatArray] = np.tile(JOINT_LOW, 2)
HIGH: Final[FloatArray] = np.tile(JOINT_HIGH, 2)
#: Signs that turn each arm's base to the world: the partner's looks back.
FACING: Final[FloatArray] = np.array([[1.0, 1.0, 1.0], [-1.0, -1.0, 1.0]])

Flags = NDArray[np.bool_]


def require_choices(options: Any, **kinds: Any) -> None:
    """Raise unless each of some options is one that its `Literal` names.

    Raises:
        InputError: One is not.
    """
    for name, kind in kinds.items():
        if getattr(options, name) not in get_args(kind):
            raise InputError(
                f"{type(options).__name__}: expected {name} to be one of "
                f"{', '.join(get_args(kind))}, got {getattr(options, name)!r}."
            )


class Copies(ABC):
    """N copies of a task; knows no spaces and no seeds.

    Attributes:
        stream: Name of the stream family of its episodes.
        draws: Uniform draws of an episode.
        default_episode_length: Ticks.
        object_class: What the arms hold, as a channel names it.
        camera: From where its pictures are taken.
        options: Choices of the environment; they have ``guard`` and ``base_x``, how far each arm's
            base is from the middle (m), and build their model, ``xml()``.
        copies: N.
        simulations: Their physics.
        grips: Tool centre points in the world, (N, 2, 3), m.
        steps: Ticks of the running episodes, (N,).
    """

    stream: ClassVar[str]
    draws: ClassVar[int]
    default_episode_length: ClassVar[int]
    object_class: ClassVar[str]
    camera: ClassVar[Camera] = Camera()

    def __init__(self, options: Any, copies: int, simulations: Simulations) -> None:
        self.options: Any = options
        self.copies: int = copies
        self.simulations: Simulations = simulations
        self.bases: NDArray[Any] = np.array(
            [[-options.base_x, 0.0, 0.0], [options.base_x, 0.0, 0.0]]
        )
        self.grips: NDArray[np.float64] = np.zeros((copies, 2, 3))
        self.steps: NDArray[np.int64] = np.zeros(copies, dtype=np.int64)
        self._start_joints = np.zeros((copies, 2 * JOINTS))
        self.set_guard(options.guard)

    @classmethod
    @abstractmethod
    def default_options(cls) -> Any:
        """Return the choices of an environment that nobody chose otherwise."""

    @staticmethod
    @abstractmethod
    def sizes(options: Any) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the entries of both robots' states and of their actions."""

    @staticmethod
    @abstractmethod
    def contracts(uids: Sequence[str], options: Any) -> Contracts:
        """Return the task contracts of ego and partner, by robot."""

    @abstractmethod
    def begin(self, rows: NDArray[np.int64], draws: FloatArray) -> None:
        """Start an episode in the copies ``rows`` from uniform draws, (R, ``draws``)."""

    @abstractmethod
    def advance(
        self, ego: FloatArray, partner: FloatArray
    ) -> tuple[FloatArray, Flags, Flags, dict[str, Any]]:
        """Move every copy by one tick.

        Returns:
            Reward, success, failure, each (N,), and the info of `TwoArmEnv.step`.
        """

    @abstractmethod
    def ends(self, success: Flags, failure: Flags, episode_length: int) -> tuple[Flags, Flags]:
        """Return which copies terminate and which truncate, (N,) each, never both."""

    @abstractmethod
    def states(self) -> tuple[FloatArray, FloatArray]:
        """Return what ego and partner see, (N, size) each."""

    def memory(self) -> dict[str, NDArray[Any]]:
        """Return views of what the next tick depends on besides the physics, (N, ...) each."""
        kept = {"steps": self.steps, "start_joints": self._start_joints}
        return kept if self._guard is None else {**kept, "guard": self._guard.last_steps}

    @abstractmethod
    def relocate(self) -> None:
        """Recompute what follows from the joints of all copies."""

    @abstractmethod
    def rotations(self) -> FloatArray:
        """Return the axes of both hands in the world as columns, (N, 2, 3, 3)."""

    @abstractmethod
    def goal_places(self) -> FloatArray:
        """Return where the grips should end up, (N, 2, 3), m."""

    @abstractmethod
    def contact_force(self) -> FloatArray:
        """Return the force that a channel tells, (N,), N."""

    @abstractmethod
    def marker(self) -> tuple[FloatArray, bool]:
        """Return where copy 0's pictures mark the goal, (3,), m, and if it keeps the limits."""

    def model_state(self, row: int) -> FloatArray:
        """Return what of the future of one copy lives in its model."""
        del row
        return np.zeros(0)

    def unseen_motion(self) -> float:
        """Return how far the other arm may have moved since the ego saw it, m."""
        return 0.0

    def set_guard(self, guarding: Guarding) -> None:
        """Watch, guard or leave alone the ego's arm from now on."""
        self._guard = None
        if guarding != "off":
            self._guard = ArmGuard(
                base_x=self.options.base_x,
                dt=CONTROL_TIMESTEP,
                copies=self.copies,
                active=guarding == "on",
                growth=self.unseen_motion(),
            )

    def ramp(self, target: FloatArray, substeps: int) -> Iterator[None]:
        """Move the control to ``target``, (N, 14), within the tick; yield after every chunk."""
        simulations, old = self.simulations, self.simulations.ctrl.copy()
        for chunk in range(1, CHUNKS + 1):
            simulations.ctrl[:] = old + (chunk / CHUNKS) * (target - old)
            simulations.step(substeps)
            yield

    def locate(self) -> Kinematics:
        """Note where the grips are and return the arms' kinematics, 2 N rows."""
        joints = self.simulations.qpos[:, : 2 * JOINTS].reshape(-1, JOINTS)
        now = kinematics(joints)
        self.grips = now.tcp.reshape(-1, 2, 3) * FACING + self.bases
        return now

    def arm(self, robot: int) -> FloatArray:
        """Return joint angles and rates of one robot, (N, 14)."""
        return arm_state(self.simulations, robot)

    def guard_report(self) -> dict[str, Any]:
        """Return what the arm's guard tells of the last tick; nothing where there is none."""
        return {} if self._guard is None else self._guard.report(self.arm(0), self.arm(1))


CopiesT = TypeVar("CopiesT", bound=Copies)


class TwoArms(Generic[CopiesT]):
    """What both environments tell beside `step`; a scalar one tells of its only copy."""

    #: The task.
    task: type[CopiesT]
    agent_uids: tuple[str, ...]
    options: Any
    _copies: CopiesT
    _ready: bool = False
    #: Picks the only copy, or all of them.
    _pick: Any = slice(None)

    @property
    def task_contract(self) -> Contracts:
        """What the robots' numbers mean, by robot."""
        return self.task.contracts(self.agent_uids, self.options)

    def guard_arm(self) -> None:
        """Put the operational-space filter in front of the ego's arm, see `arm_guard`."""
        self.options = replace(self.options, guard="on")
        self._copies.set_guard(self.options.guard)

    def state_hash(self, row: int = 0) -> str:
        """Return SHA-256 over everything that determines the future of one copy.

        What lives in its model, as the poses of welds, is part of it.
        """
        copies = self._require_reset()
        digest = sha256(copies.simulations.state(row).tobytes())
        digest.update(copies.model_state(row).tobytes())
        return digest.hexdigest()

    def comm_state(self) -> Any:
        """Return poses and predicates of both robots, as a channel sends them; a list for copies.

        Each uid has its tool centre point, ``xyz`` (m) and ``quat_wxyz``, in the world, and the
        force at what the arms hold.
        """
        copies = self._require_reset()
        turns, forces = quaternions(copies.rotations()), copies.contact_force().tolist()
        states: Any = [
            {
                "pose": {
                    uid: {"xyz": tuple(grips[k].tolist()), "quat_wxyz": tuple(turn[k].tolist())}
                    for k, uid in enumerate(self.agent_uids)
                },
                "task_state": {
                    uid: {"object_class": copies.object_class, "contact_force": force}
                    for uid in self.agent_uids
                },
            }
            for grips, turn, force in zip(copies.grips, turns, forces, strict=True)
        ]
        return states[self._pick]

    def robot_positions(self) -> dict[str, FloatArray]:
        """Return where each robot's grip is on the floor, (2,) or (N, 2), m."""
        return self._on_the_floor(self._require_reset().grips)

    def goal_positions(self) -> dict[str, FloatArray]:
        """Return where the grips should end up, on the floor, (2,) or (N, 2), m."""
        return self._on_the_floor(self._require_reset().goal_places())

    def _on_the_floor(self, points: FloatArray) -> dict[str, FloatArray]:
        picked = points[self._pick]
        return {uid: picked[..., k, :2].copy() for k, uid in enumerate(self.agent_uids)}

    def _require_reset(self) -> CopiesT:
        if not self._ready:
            raise NotReadyError(
                f"{type(self).__name__}: expected a state, got none yet; call reset() first."
            )
        return self._copies

    def _take(
        self, options: Any, agent_uids: tuple[str, ...], episode_length: int | None, root_seed: int
    ) -> tuple[gym.spaces.Dict, gym.spaces.Dict]:
        """Keep what both environments are built with; return the spaces of one copy."""
        owner, task = type(self).__name__, self.task
        if episode_length is None:
            episode_length = task.default_episode_length
        self.options = task.default_options() if options is None else options
        self.agent_uids = checked_agent_uids(owner, agent_uids, low=2, high=2)
        self.ego_uid: str = self.agent_uids[0]
        self.partner_uid: str = self.agent_uids[1]
        self.episode_length: int = whole_number(f"{owner}.episode_length", episode_length, least=1)
        self.root_seed: int = whole_number(f"{owner}.root_seed", root_seed, least=0)
        dims, sizes = task.sizes(self.options)
        states: dict[str, gym.Space[Any]] = {
            uid: gym.spaces.Dict({"state": gym.spaces.Box(-np.inf, np.inf, (dim,), np.float32)})
            for uid, dim in zip(self.agent_uids, dims, strict=True)
        }
        actions: dict[str, gym.Space[Any]] = {
            uid: gym.spaces.Box(-1.0, 1.0, (size,), np.float32)
            for uid, size in zip(self.agent_uids, sizes, strict=True)
        }
        return gym.spaces.Dict({"agent": gym.spaces.Dict(states)}), gym.spaces.Dict(actions)

    def _actions(self, given: Mapping[str, Any], *lead: int) -> tuple[FloatArray, FloatArray]:
        """Return the clipped actions of ego and partner, shape ``lead`` and their size."""
        owner, sizes = type(self).__name__, self.task.sizes(self.options)[1]
        ego, partner = (
            np.clip(checked_action(owner, given, uid, (*lead, size)), -1.0, 1.0)
            for uid, size in zip(self.agent_uids, sizes, strict=True)
        )
        return ego, partner

    def _draws(self, prefix: str, episodes: NDArray[np.int64]) -> FloatArray:
        return named_uniforms(prefix, episodes, root_seed=self.root_seed, count=self.task.draws)

    def _observation(self) -> dict[str, Any]:
        states = zip(self.agent_uids, self._copies.states(), strict=True)
        return {
            "agent": {uid: {"state": state[self._pick].astype(np.float32)} for uid, state in states}
        }


class TwoArmEnv(TwoArms[CopiesT], gym.Env[dict[str, Any], dict[str, Any]]):
    """One copy of a task."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 20}  # pyright: ignore[reportIncompatibleVariableOverride] # gymnasium declares an instance variable
    control_timestep: Final = CONTROL_TIMESTEP
    _pick = 0

    def __init__(
        self,
        options: Any = None,
        *,
        agent_uids: tuple[str, ...] = ("ego", "partner"),
        episode_length: int | None = None,
        root_seed: int = 0,
        render_mode: str | None = None,
    ) -> None:
        """Build the env; call `reset` before `step`.

        None takes the task's default options and episode length.

        Raises:
            InputError: An argument is out of range.
            MissingExtraError: MuJoCo is not installed.
        """
        self.observation_space, self.action_space = self._take(
            options, agent_uids, episode_length, root_seed
        )
        self.render_mode: str | None = checked_render_mode(type(self).__name__, render_mode)
        self.simulation: OneSimulation = OneSimulation(self.options.xml())
        self._copies = self.task(self.options, 1, self.simulation)
        self._episode_name = f"{self.task.stream}.episode"
        self._auto_episodes = 0
        self._running = False
        self._pictures: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode; equal ``seed`` and ``root_seed`` give equal episodes.

        None starts the next of the unnumbered episodes that follow the last numbered one;
        ``options`` are ignored.

        Raises:
            InputError: ``seed`` is not an integer >= 0.
        """
        del options
        if seed is None:
            prefix, index = f"{self._episode_name}.auto.", self._auto_episodes
            self._auto_episodes += 1
        else:
            prefix = f"{self.task.stream}.episode."
            index = checked_seed(type(self).__name__, seed)
            self._episode_name, self._auto_episodes = f"{prefix}{index}", 0
        draws = self._draws(prefix, np.array([index], dtype=np.int64))
        self._copies.begin(np.zeros(1, dtype=np.int64), draws)
        self._running = self._ready = True
        return self._observation(), {}

    def step(
        self, action: Mapping[str, NDArray[Any]]
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Advance by one tick; return observation, shared reward, ends and info.

        ``action`` has an array per uid, clipped to [-1, 1]; sizes and info are in the task's
        module.

        Raises:
            NotReadyError: No episode is in progress.
            InputError: A uid is missing, or an action has another shape or is not finite.
        """
        if not self._running:
            raise NotReadyError(
                f"{type(self).__name__}.step: expected an episode in progress; call reset()."
            )
        ego, partner = self._actions(action)
        reward, success, failure, info = self._copies.advance(ego[None], partner[None])
        terminated, truncated = self._copies.ends(success, failure, self.episode_length)
        self._running = not (terminated[0] or truncated[0])
        return (
            self._observation(),
            float(reward[0]),
            bool(terminated[0]),
            bool(truncated[0]),
            {name: values[0].item() for name, values in info.items()},
        )

    def render(self) -> NDArray[np.uint8] | None:  # pyright: ignore[reportIncompatibleMethodOverride] # gymnasium leaves the frame type open
        """Return the scene as an image of shape (H, W, 3), or None without a render mode.

        Raises:
            NotReadyError: `reset` was never called.
        """
        if self.render_mode is None:
            return None
        place, within = self._require_reset().marker()
        if self._pictures is None:
            self._pictures = Pictures(self.simulation, self.task.camera)
        return self._pictures.draw(place, within_limits=within)

    def close(self) -> None:
        """Close the renderer."""
        if self._pictures is not None:
            self._pictures.close()
            self._pictures = None


class VectorTwoArmEnv(TwoArms[CopiesT], EpisodeBatch):
    """N copies of a task on a pool of threads; every copy has the bytes of the scalar environment.

    Copy i plays episodes seed_i + e N, e = 0, 1, ..., of the scalar env; ``reset(seed=s)`` sets
    seed_i = s + i and e = 0, ``reset()`` moves every copy to its next episode. The step that ends
    an episode returns the next one's first observation, and ``info["final_observation"]`` holds
    those before the reset.
    """

    control_timestep: Final = CONTROL_TIMESTEP

    def __init__(
        self,
        num_envs: int,
        options: Any = None,
        *,
        agent_uids: tuple[str, ...] = ("ego", "partner"),
        episode_length: int | None = None,
        root_seed: int = 0,
        threads: int = 1,
    ) -> None:
        """Build N copies, see `TwoArmEnv`; call `reset` before `step`.

        ``threads`` step the physics; the bytes do not depend on their number.

        Raises:
            InputError: An argument is out of range.
            MissingExtraError: MuJoCo or mjbatch is not installed.
        """
        self.owner: str = type(self).__name__
        self._open(num_envs, *self._take(options, agent_uids, episode_length, root_seed))
        threads = whole_number(f"{self.owner}.threads", threads, least=1)
        self._simulations = ManySimulations(self.options.xml(), num_envs, threads=threads)
        self._copies = self.task(self.options, num_envs, self._simulations)

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[dict[str, Any], FloatArray, Flags, Flags, dict[str, Any]]:
        """Advance every copy by one tick; see `PlanarVectorEnv.step`.

        ``actions`` has an array (N, size) per uid, clipped to [-1, 1].

        Raises:
            NotReadyError: `reset` was never called.
            InputError: A uid is missing, or its actions have another shape or are not finite.
        """
        copies = self._require_reset()
        reward, success, failure, info = copies.advance(*self._actions(actions, self.num_envs))
        terminated, truncated = copies.ends(success, failure, self.episode_length)
        finished = terminated | truncated
        if finished.any() and not self._prescribed:
            self._restart(finished, self._observation(), info)
        return self._observation(), reward, terminated, truncated, info

    def _memory(self) -> dict[str, Any]:
        return {**super()._memory(), **self._simulations.memory(), **self._copies.memory()}

    def _restored(self) -> None:
        self._copies.relocate()

    def _start(self, rows: NDArray[np.int64]) -> None:
        episodes = self._episodes_of(rows)
        self._copies.begin(rows, self._draws(f"{self.task.stream}.episode.", episodes))

    def _observe(self) -> dict[str, Any]:
        return self._observation()
