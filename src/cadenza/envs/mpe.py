"""Two robots share the task of covering two landmarks: the cooperative-push task.

Motion:      v = clip(a, -1, 1);  p <- clip(p + v * DT, -1, 1)   (velocity commands, point robots)
Reward:      r = -sum over landmarks k of min over robots u of |p_u - l_k|, after the move
Source:      simple_spread of the multi-agent particle environments, arXiv:1706.02275, with walls,
             two robots and velocity commands instead of forces.
Axes:        positions and actions are (2,), x then y; `state` is (10,).
Units:       one length unit is half the arena's side; velocities per second; DT in seconds.
Arithmetic:  only + - * sqrt min max in float64, in a fixed order, so that
             many copies at once have the bytes of one.
Copies:      on numpy, copy i of `VectorMPECooperativePushEnv` has the bytes of the scalar env with
             the same seeds (`cadenza.envs.vector_base`). The torch backend runs the same code on
             any device; in float64 its observations have the same bytes, and its rewards differ by
             at most the last bit, because torch's square root is not correctly rounded.
Speed:       `perf/bench_envs.py`.
"""

from collections.abc import Mapping
from math import sqrt
from typing import Any, ClassVar, Final, TypeVar

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import Float32Array, FloatArray
from cadenza.core.checks import whole_number
from cadenza.core.errors import NotReadyError
from cadenza.core.seeding import derive_substream
from cadenza.envs import contracts
from cadenza.envs.backends import Precision, array_backend
from cadenza.envs.inputs import (
    checked_agent_uids,
    checked_render_mode,
    planar_action,
)
from cadenza.envs.spaces import planar_action_space, planar_comm_state, state_observation_space
from cadenza.envs.vector_base import (
    Autoreset,
    PlanarVectorEnv,
    Stream,
    TaskLayout,
    VectorOptions,
)

#: Steps per episode.
DEFAULT_EPISODE_LENGTH: Final = 50
#: Landmarks to cover.
N_LANDMARKS: Final = 2
#: The arena is [-POSITION_BOUND, POSITION_BOUND]^2.
POSITION_BOUND: Final = 1.0
#: Largest velocity command per component, length units per second.
VELOCITY_BOUND: Final = 1.0
#: Control step, s.
DT: Final = 0.1
#: Entries of one robot's `state`.
STATE_DIM: Final = 10
#: Uniform draws per episode: two landmarks, then two robots, x and y each.
LAYOUT_DRAWS: Final = 8
#: Name of the stream family; episode k draws from ``f"{STREAM}.episode.{k}"``.
STREAM: Final = "env.mpe_cooperative_push"

#: 2^27 + 1: times this, a float64 splits into two halves whose products are exact.
_SPLITTER: Final = 134217729.0
_OWNER: Final = "MPECooperativePushEnv"

#: A float, a numpy array or a torch tensor.
T = TypeVar("T", float, Any)


class MPECooperativePushEnv(gym.Env[dict[str, Any], dict[str, Any]]):
    """Cooperative push for two robots, one copy.

    ``obs["agent"][uid]["state"]`` is float32: own position (0:2), own velocity (2:4), landmark
    minus own position for both landmarks (4:8), other minus own position (8:10).

    An episode never terminates and truncates after ``episode_length`` steps; stepping on is allowed
    and stays truncated. The task has no success predicate: its score is the return.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 10}  # pyright: ignore[reportIncompatibleVariableOverride] # gymnasium declares an instance variable
    control_timestep: Final = DT

    def __init__(
        self,
        *,
        agent_uids: tuple[str, str] = ("ego", "partner"),
        episode_length: int = DEFAULT_EPISODE_LENGTH,
        root_seed: int = 0,
        render_mode: str | None = None,
    ) -> None:
        """Build the env; call `reset` before `step`.

        Raises:
            InputError: Not exactly two distinct uids, ``episode_length`` < 1, negative
                ``root_seed`` or an unknown ``render_mode``.
        """
        self.agent_uids: tuple[str, ...] = checked_agent_uids(_OWNER, agent_uids, low=2, high=2)
        self.ego_uid: str = self.agent_uids[0]
        self.partner_uid: str = self.agent_uids[1]
        self.episode_length: int = whole_number(f"{_OWNER}.episode_length", episode_length, least=1)
        self.root_seed: int = whole_number(f"{_OWNER}.root_seed", root_seed, least=0)
        self.render_mode: str | None = checked_render_mode(_OWNER, render_mode)
        self.action_space = planar_action_space(dict.fromkeys(self.agent_uids, VELOCITY_BOUND))
        self.observation_space = state_observation_space(self.agent_uids, STATE_DIM)
        self.np_random = derive_substream(STREAM, root_seed=self.root_seed).default_rng()
        self._landmarks: list[float] | None = None  # x0, y0, x1, y1
        self._position = [0.0] * 4  # ego x, ego y, partner x, partner y
        self._velocity = [0.0] * 4
        self._steps = 0
        self._trail: list[list[float]] = []

    @property
    def task_contract(self) -> contracts.Contracts:
        """What the robots' numbers mean, by robot."""
        return contracts.cooperative_push(self.agent_uids)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Episode index under ``root_seed``: equal pairs give equal episodes. None draws on
                from the stream of the last reset.
            options: Part of Gymnasium's interface; this task has none and ignores them.

        Raises:
            InputError: ``seed`` is not an integer >= 0.
        """
        del options
        if seed is not None:
            index = whole_number(f"{_OWNER}.seed", seed, least=0)
            name = f"{STREAM}.episode.{index}"
            self.np_random = derive_substream(name, root_seed=self.root_seed).default_rng()
        draws = self.np_random.uniform(-POSITION_BOUND, POSITION_BOUND, LAYOUT_DRAWS).tolist()
        landmarks: list[float] = draws[:4]
        self._landmarks, self._position = landmarks, draws[4:]
        self._velocity = [0.0] * 4
        self._steps = 0
        self._trail = [self._position]
        return self._observation(landmarks), {}

    def step(
        self, action: Mapping[str, NDArray[Any]]
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Advance by one control step.

        Args:
            action: Velocity command of shape (2,) per uid, clipped to [-1, 1]; other keys are
                ignored.

        Returns:
            Observation, shared reward, terminated (always False), truncated, empty info.

        Raises:
            NotReadyError: `reset` was never called.
            InputError: A uid is missing, or an action has another shape or is not finite.
        """
        landmarks = self._landmarks
        if landmarks is None:
            raise NotReadyError(f"{_OWNER}.step: expected an episode in progress; call reset().")
        ego, partner = self.agent_uids
        commands = (*planar_action(_OWNER, action, ego), *planar_action(_OWNER, action, partner))
        self._velocity = velocity = [min(1.0, max(-1.0, command)) for command in commands]
        self._position = [
            min(1.0, max(-1.0, p + v * DT)) for p, v in zip(self._position, velocity, strict=True)
        ]
        self._steps += 1
        if self.render_mode is not None:
            self._trail.append(self._position)
        reward = coverage_reward(self._position, landmarks)
        return self._observation(landmarks), reward, False, self._steps >= self.episode_length, {}

    def robot_positions(self) -> dict[str, FloatArray]:
        """Return each robot's position, shape (2,)."""
        x0, y0, x1, y1 = self._position
        return {
            self.agent_uids[0]: np.array([x0, y0]),
            self.agent_uids[1]: np.array([x1, y1]),
        }

    def comm_state(self) -> dict[str, Any]:
        """Return what both robots say about themselves: pose and velocity, for a channel."""
        self.landmark_positions()  # raises before the first reset
        return planar_comm_state(
            self.agent_uids,
            (self._position[:2], self._position[2:]),
            (self._velocity[:2], self._velocity[2:]),
        )

    def state_given(self, uid: str, known: Mapping[str, Any]) -> Float32Array:
        """Return the ``state`` of ``uid`` if the other were where it believes it to be.

        Args:
            uid: The robot that observes.
            known: Pose of the other, in the form of `comm_state`; without it, the truth is taken.
        """
        landmarks = self.landmark_positions().ravel().tolist()
        own = slice(0, 2) if uid == self.agent_uids[0] else slice(2, 4)
        other = self.agent_uids[uid == self.agent_uids[0]]
        seen = known["pose"].get(other, self.comm_state()["pose"][other])["xyz"]
        return _state(landmarks, *self._position[own], *self._velocity[own], *seen[:2])

    def landmark_positions(self) -> FloatArray:
        """Return the landmarks, shape (2, 2).

        Raises:
            NotReadyError: `reset` was never called.
        """
        if self._landmarks is None:
            raise NotReadyError(f"{_OWNER}: expected landmarks, got none yet; call reset().")
        return np.array(self._landmarks).reshape(N_LANDMARKS, 2)

    def goal_positions(self) -> dict[str, FloatArray]:
        """Return the landmarks by name (``"landmark_0"``, ``"landmark_1"``), shape (2,) each."""
        return {f"landmark_{k}": row for k, row in enumerate(self.landmark_positions())}

    def render(self) -> NDArray[np.uint8] | None:  # pyright: ignore[reportIncompatibleMethodOverride] # gymnasium leaves the frame type open
        """Return the scene as an image of shape (H, W, 3), or None without a render mode."""
        if self.render_mode is None:
            return None
        from cadenza.envs.rendering import draw_push

        return draw_push(
            landmarks=self.landmark_positions(),
            trail=np.array(self._trail).reshape(-1, 2, 2),
            velocity=np.array(self._velocity).reshape(2, 2),
            time_s=self._steps * DT,
        )

    def _observation(self, landmarks: list[float]) -> dict[str, Any]:
        ax, ay, bx, by = self._position
        avx, avy, bvx, bvy = self._velocity
        ego, partner = self.agent_uids
        return {
            "agent": {
                ego: {"state": _state(landmarks, ax, ay, avx, avy, bx, by)},
                partner: {"state": _state(landmarks, bx, by, bvx, bvy, ax, ay)},
            }
        }


def _state(
    landmarks: list[float], x: float, y: float, vx: float, vy: float, other_x: float, other_y: float
) -> Float32Array:
    """Return the state of a robot at (x, y) that sees the other at (other_x, other_y)."""
    x0, y0, x1, y1 = landmarks
    state = [x, y, vx, vy, x0 - x, y0 - y, x1 - x, y1 - y, other_x - x, other_y - y]
    return np.array(state, dtype=np.float32)


def coverage_reward(position: list[float], landmarks: list[float]) -> float:
    """Return -sum over landmarks of the distance to the nearest robot.

    Args:
        position: Robots as [x, y, x, y].
        landmarks: Landmarks as [x, y, x, y].
    """
    ax, ay, bx, by = position
    x0, y0, x1, y1 = landmarks
    # The root is monotone, so it may be taken after the minimum without changing a bit.
    first = sqrt(min(sum_of_squares(ax - x0, ay - y0), sum_of_squares(bx - x0, by - y0)))
    second = sqrt(min(sum_of_squares(ax - x1, ay - y1), sum_of_squares(bx - x1, by - y1)))
    return -(first + second)


def sum_of_squares(x: T, y: T) -> T:
    """Return ``x * x + y * y`` as a fused multiply-add rounds it: fl(y^2 + fl(x^2)).

    The published rewards of this task came from a dot product on hardware that fuses; this gives
    their last bit on every machine, for floats, numpy arrays and tensors alike.

    Source: exact product and sum, T. J. Dekker, "A floating-point technique for extending the
        available precision", Numer. Math. 18 (1971); D. E. Knuth, TAOCP vol. 2, section 4.2.2.
    """
    a: Any = x * x
    b: Any = y * y
    shifted: Any = y * _SPLITTER
    high = shifted - (shifted - y)
    low = y - high
    product_error = ((high * high - b) + (high + high) * low) + low * low
    total = a + b
    rounded = total - a
    sum_error = (a - (total - rounded)) + (b - rounded)
    return total + (sum_error + product_error)


_BATCH_OWNER: Final = "VectorMPECooperativePushEnv"


class VectorMPECooperativePushEnv(PlanarVectorEnv):
    """N copies of cooperative push; observation, motion and reward as in the scalar env."""

    def __init__(
        self,
        num_envs: int,
        *,
        backend: str = "numpy",
        device: str = "cpu",
        precision: Precision = "float64",
        agent_uids: tuple[str, str] = ("ego", "partner"),
        episode_length: int = DEFAULT_EPISODE_LENGTH,
        root_seed: int = 0,
        autoreset: Autoreset = "same_step",
        rng: Stream = "substream",
    ) -> None:
        """Build N copies; call `reset` before `step`.

        Args:
            num_envs: Copies N, >= 1.
            backend: ``"numpy"`` or ``"torch"``; with torch all arrays in and out are tensors.
            device: Torch device.
            precision: Floats of the state; numpy keeps float64.
            agent_uids: Two distinct names, the ego's first.
            episode_length: Steps until truncation, >= 1.
            root_seed: Experiment seed, >= 0.
            autoreset: See `cadenza.envs.vector_base`.
            rng: See `VectorOptions`.

        Raises:
            InputError: An argument is out of range.
        """
        uids = checked_agent_uids(_BATCH_OWNER, agent_uids, low=2, high=2)
        options = VectorOptions(
            num_envs=num_envs,
            episode_length=episode_length,
            root_seed=root_seed,
            autoreset=autoreset,
            rng=rng,
        )
        task = TaskLayout(
            owner=_BATCH_OWNER,
            stream=STREAM,
            uids=uids,
            limits=dict.fromkeys(uids, VELOCITY_BOUND),
            state_dim=STATE_DIM,
            draws=LAYOUT_DRAWS,
            control_timestep=DT,
        )
        super().__init__(
            task, options, array_backend(_BATCH_OWNER, backend, device=device, precision=precision)
        )
        # Rows: x and y of landmark 0 and 1; x and y of ego and partner.
        self._landmarks = self._backend.states((4, num_envs))
        self._position = self._backend.states((4, num_envs))
        self._velocity = self._backend.states((4, num_envs))

    @property
    def task_contract(self) -> contracts.Contracts:
        """What the robots' numbers mean, by robot."""
        return contracts.cooperative_push(self.agent_uids)

    def _task_memory(self) -> dict[str, Any]:
        return {
            "landmarks": self._landmarks.T,
            "position": self._position.T,
            "velocity": self._velocity.T,
        }

    def _place(self, rows: Any, draws: NDArray[np.float64]) -> None:
        # As Generator.uniform(low, high): low + (high - low) * draw.
        points = self._backend.from_host(
            np.ascontiguousarray((-POSITION_BOUND + 2.0 * POSITION_BOUND * draws).T)
        )
        self._landmarks[:, rows] = points[:4]
        self._position[:, rows] = points[4:]
        self._velocity[:, rows] = 0.0

    def _advance(self, commands: Any) -> tuple[Any, NDArray[np.bool_], dict[str, Any]]:
        xp = self._backend.xp
        self._velocity = commands.reshape(4, self.num_envs)
        self._position = xp.clip(
            self._position + self._velocity * DT, -POSITION_BOUND, POSITION_BOUND
        )
        ax, ay, bx, by = self._position
        x0, y0, x1, y1 = self._landmarks
        first = xp.minimum(sum_of_squares(ax - x0, ay - y0), sum_of_squares(bx - x0, by - y0))
        second = xp.minimum(sum_of_squares(ax - x1, ay - y1), sum_of_squares(bx - x1, by - y1))
        reward = -(xp.sqrt(first) + xp.sqrt(second))
        return reward, np.zeros(self.num_envs, dtype=np.bool_), {}

    def _write_states(self, out: Any, rows: Any) -> None:
        position, velocity = self._position[:, rows], self._velocity[:, rows]
        landmarks = self._landmarks[:, rows]
        for robot, (own, other) in enumerate((((0, 1), (2, 3)), ((2, 3), (0, 1)))):
            for axis in range(2):
                here = position[own[axis]]
                out[robot, rows, axis] = here
                out[robot, rows, 2 + axis] = velocity[own[axis]]
                out[robot, rows, 4 + axis] = landmarks[axis] - here
                out[robot, rows, 6 + axis] = landmarks[2 + axis] - here
                out[robot, rows, 8 + axis] = position[other[axis]] - here

    def _blank_info(self, info: dict[str, Any], rows: NDArray[np.int64]) -> None:
        """Nothing to do: this task reports no info."""
