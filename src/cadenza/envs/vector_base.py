"""Many copies of a planar task stepped as one: episode identities, automatic resets, observations.

Identity:    copy i plays episodes seed_i + e * stride, e = 0, 1, ..., of the scalar task: with
             ``rng="substream"`` each of them has exactly the bytes of
             ``ScalarEnv(root_seed=...).reset(seed=seed_i + e * stride)``. ``reset(seed=s)`` sets
             seed_i = s + i and e = 0; ``reset()`` moves every copy to its next episode. ``stride``
             is N unless it is set: K blocks of N / K copies play what K batches of their own play
             if it is N / K and a block's seeds are those of its batch.
Auto-reset:  "same_step": the step that ends an episode returns the next episode's first
             observation, and ``info["final_observation"]`` holds those before the reset.
             "next_step": the following step ignores that copy's action, returns the next episode's
             first observation, reward 0 and no flags.
Prescribed:  `EpisodeBatch.reset_rows` says which episode each copy plays, under which root seed;
             from then on no copy resets itself, so that nothing depends on N.
Going back:  `EpisodeBatch.snapshot` keeps what copies are like, `EpisodeBatch.restore` puts them
             back there, or others with the same parameters: what follows has the same bytes.
Axes:        N = copies, n = robots, D = entries of one `state`. Coordinates are stored with N last,
             so that every operation runs over contiguous memory.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from cadenza.core.checks import whole_number
from cadenza.core.errors import InputError, NotReadyError, refuse
from cadenza.envs.backends import ArrayBackend
from cadenza.envs.batched_streams import counter_uniforms, named_uniforms
from cadenza.envs.inputs import checked_seeds
from cadenza.envs.spaces import planar_action_space, state_observation_space

Autoreset = Literal["same_step", "next_step"]
Stream = Literal["substream", "philox"]

#: What copies are like between two steps: arrays by name, with one row per copy.
Snapshot: TypeAlias = dict[str, Any]

_MODES = {"same_step": AutoresetMode.SAME_STEP, "next_step": AutoresetMode.NEXT_STEP}
#: Every copy at once, where an index of copies is wanted.
_ALL = slice(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorOptions:
    """Choices common to all vector tasks.

    Attributes:
        num_envs: Copies N, >= 1.
        episode_length: Steps until truncation, >= 1.
        root_seed: Experiment seed, >= 0.
        autoreset: When a finished copy starts its next episode.
        rng: ``"substream"`` replays the scalar task; ``"philox"`` draws layouts from a
            counter-based generator keyed by (experiment, seed_i, e): cheaper, and another stream.
    """

    num_envs: int
    episode_length: int
    root_seed: int
    autoreset: Autoreset
    rng: Stream

    def __post_init__(self) -> None:
        for name, low in (("num_envs", 1), ("episode_length", 1), ("root_seed", 0)):
            whole_number(f"VectorOptions.{name}", getattr(self, name), least=low)
        if self.autoreset not in _MODES:
            raise InputError(
                "VectorOptions: expected autoreset 'same_step' or 'next_step', "
                f"got {self.autoreset!r}."
            )
        if self.rng not in ("substream", "philox"):
            raise InputError(
                f"VectorOptions: expected rng 'substream' or 'philox', got {self.rng!r}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLayout:
    """What the shared part of a vector environment must know about its task.

    Attributes:
        owner: Environment name for messages.
        stream: Stream family of the scalar task.
        uids: Robots in order.
        limits: Largest action by uid, of every component or (2,).
        state_dim: Entries of one `state`, D.
        draws: Uniform draws per episode.
        control_timestep: Seconds per step.
    """

    owner: str
    stream: str
    uids: tuple[str, ...]
    limits: Mapping[str, Any]
    state_dim: int
    draws: int
    control_timestep: float


class EpisodeBatch(gym.vector.VectorEnv[dict[str, Any], dict[str, Any], Any]):
    """N copies of any task that count their episodes; see the module for identities and resets.

    Attributes:
        stride: By how much the number of a copy's episode grows from one to the next, >= 1.
    """

    owner: str
    root_seed: int
    stride: int
    _ready = False
    _prescribed = False

    def _open(self, num_envs: int, states: gym.spaces.Dict, actions: gym.spaces.Dict) -> None:
        """Take the number of copies and the spaces of one."""
        self.metadata: dict[str, Any] = {
            "render_modes": [],
            "autoreset_mode": AutoresetMode.SAME_STEP,
        }
        self.num_envs: int = whole_number(f"{self.owner}.num_envs", num_envs, least=1)
        self.stride = self.num_envs
        self.single_observation_space, self.single_action_space = states, actions
        self.action_space: gym.Space[Any] = batch_space(actions, self.num_envs)
        self.observation_space: gym.Space[Any] = batch_space(states, self.num_envs)
        self._seeds: NDArray[np.int64] = np.arange(self.num_envs, dtype=np.int64)
        self._episodes: NDArray[np.int64] = np.full(self.num_envs, -1, dtype=np.int64)

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode in every copy.

        ``seed`` is the first episode index of copy 0, or one per copy; None moves every copy to its
        next episode (to episode i in copy i the first time). ``options`` are ignored.

        Raises:
            InputError: A seed is not an integer in [0, 2^62), or there is not one per copy.
        """
        del options
        self._prescribed = False
        if seed is None:
            self._episodes += 1
        else:
            self._seeds = checked_seeds(self.owner, seed, self.num_envs)
            self._episodes[:] = 0
        self._start(np.arange(self.num_envs, dtype=np.int64))
        self._ready = True
        return self._observe(), {}

    def reset_rows(
        self, rows: Sequence[int], seeds: Sequence[int], roots: Sequence[int]
    ) -> dict[str, Any]:
        """Start prescribed episodes in the copies ``rows``; return what all copies see now.

        Copy ``rows[k]`` begins what the scalar task plays after ``reset(seed=seeds[k])`` under the
        root seed ``roots[k]``. No copy resets itself any more, until `reset` is called; one whose
        episode has ended plays on.

        Raises:
            InputError: A seed is not an integer in [0, 2^62), or there is not one per row.
            NotReadyError: Nothing was started yet, and some copies are left out.
        """
        chosen = np.array(rows, dtype=np.int64)
        if not self._ready and chosen.size < self.num_envs:
            raise NotReadyError(
                f"{self.owner}.reset_rows: expected all {self.num_envs} copies at first, got "
                f"{chosen.size}."
            )
        self._prescribed = True
        self._seeds[chosen] = checked_seeds(self.owner, seeds, chosen.size)
        self._episodes[chosen] = 0
        before, own = self.root_seed, np.array(roots)
        for root in dict.fromkeys(roots):
            self.root_seed = root
            self._start(chosen[own == root])
        self.root_seed = before
        self._ready = True
        return self._observe()

    def snapshot(self, rows: Sequence[int]) -> Snapshot:
        """Return everything that the future of the copies ``rows`` depends on, (R, ...) each.

        That is the state of the simulation, the clock, the number of the episode and what else the
        task remembers; pick rows of a snapshot by indexing its arrays.

        Raises:
            NotReadyError: `reset` was never called.
        """
        self._require_episodes("snapshot")
        chosen = np.array(rows, dtype=np.int64)
        return {name: kept[chosen] for name, kept in self._memory().items()}

    def restore(self, rows: Sequence[int], snapshot: Snapshot) -> dict[str, Any]:
        """Put the copies ``rows`` where `snapshot` was taken; return what all copies see now.

        Raises:
            NotReadyError: `reset` was never called.
            InputError: The snapshot has not one row for each of ``rows``.
        """
        self._require_episodes("restore")
        chosen = np.array(rows, dtype=np.int64)
        if len(snapshot["seeds"]) != chosen.size:
            refuse(
                InputError,
                f"{self.owner}.restore: snapshot",
                expected=f"{chosen.size} rows, as many as copies",
                got=len(snapshot["seeds"]),
            )
        for name, kept in self._memory().items():
            kept[chosen] = snapshot[name]
        self._restored()
        return self._observe()

    def _require_episodes(self, door: str) -> None:
        if not self._ready:
            raise NotReadyError(
                f"{self.owner}.{door}: expected episodes in progress; call reset()."
            )

    @abstractmethod
    def _start(self, rows: NDArray[np.int64]) -> None:
        """Draw and place the current episodes of the copies ``rows``."""

    def _memory(self) -> dict[str, Any]:
        """Return views of everything that `snapshot` keeps, copies first."""
        return {"seeds": self._seeds, "episodes": self._episodes}

    def _restored(self) -> None:
        """Recompute what follows from the memory."""

    @abstractmethod
    def _observe(self) -> dict[str, Any]:
        """Return what all robots of all copies see now."""

    def _episodes_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of the current episodes of the copies ``rows``."""
        return self._seeds[rows] + self._episodes[rows] * self.stride

    def _restart(
        self, finished: NDArray[np.bool_], last: dict[str, Any], info: dict[str, Any]
    ) -> NDArray[np.int64]:
        """Start the next episode of finished copies and return their numbers, (R,).

        What they saw ``last`` and the info of the step go to ``info``.
        """
        rows = np.flatnonzero(finished)
        info["final_info"] = dict(info)
        info["final_observation"] = info["final_obs"] = last
        info["_final_obs"] = info["_final_info"] = finished
        self._episodes[rows] += 1
        self._start(rows)
        return rows


class PlanarVectorEnv(EpisodeBatch):
    """N copies of a planar task; a task adds layout, motion and observation."""

    def __init__(self, task: TaskLayout, options: VectorOptions, backend: ArrayBackend) -> None:
        """Build N copies; call `reset` before `step`."""
        self.owner, self._task, self._options, self._backend = task.owner, task, options, backend
        self._open(
            options.num_envs,
            state_observation_space(task.uids, task.state_dim),
            planar_action_space(task.limits),
        )
        self.metadata: dict[str, Any] = {
            "render_modes": [],
            "autoreset_mode": _MODES[options.autoreset],
        }
        self.agent_uids: tuple[str, ...] = task.uids
        self.ego_uid: str = task.uids[0]
        self.partner_uid: str = task.uids[1]
        self.control_timestep: float = task.control_timestep
        self.episode_length: int = options.episode_length
        self.root_seed: int = options.root_seed
        self._steps: NDArray[np.int64] = np.zeros(self.num_envs, dtype=np.int64)
        self._finished: NDArray[np.bool_] = np.zeros(self.num_envs, dtype=np.bool_)
        robots = len(task.uids)
        self._states_shape = (robots, self.num_envs, task.state_dim)
        limits = np.array([task.limits[uid] for uid in task.uids], dtype=np.float64)
        self._limits = backend.from_host(limits.reshape(robots, -1, 1))

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Any, Any, Any, dict[str, Any]]:
        """Advance every copy by one control step.

        Args:
            actions: Array of shape (N, 2) per uid, clipped to the robot's limit; other keys are
                ignored.

        Returns:
            Batched observation; reward, terminated, truncated of shape (N,); info with arrays of
            shape (N,), and in the step that ends episodes under "same_step" also
            ``final_observation`` (batched, before the reset), its alias ``final_obs``,
            ``final_info`` and the masks ``_final_obs``, ``_final_info``.

        Raises:
            NotReadyError: `reset` was never called.
            InputError: A uid is missing, or its actions have another shape or are not finite.
        """
        self._require_episodes("step")
        reward, terminated, info = self._advance(self._commands(actions))
        self._steps += 1
        truncated = (self._steps >= self.episode_length) & ~terminated
        resets = None if self._prescribed else self._options.autoreset
        if resets == "next_step" and self._finished.any():
            waiting = np.flatnonzero(self._finished)
            self._episodes[waiting] += 1
            self._start(waiting)
            reward[self._backend.rows(waiting)] = 0.0
            terminated[waiting] = truncated[waiting] = False
            self._blank_info(info, waiting)
        self._finished = terminated | truncated
        states = self._seen()
        if resets == "same_step" and self._finished.any():
            states = self._reset_finished(states, info)
        from_host = self._backend.from_host
        return self._observation(states), reward, from_host(terminated), from_host(truncated), info

    def _memory(self) -> dict[str, Any]:
        clock = {"steps": self._steps, "finished": self._finished}
        return {**super()._memory(), **clock, **self._task_memory()}

    @abstractmethod
    def _task_memory(self) -> dict[str, Any]:
        """Return views of what the task keeps of every copy, copies first."""

    @abstractmethod
    def _place(self, rows: Any, draws: NDArray[np.float64]) -> None:
        """Set the start of an episode for the copies ``rows``, from draws of shape (R, K)."""

    @abstractmethod
    def _advance(self, commands: Any) -> tuple[Any, NDArray[np.bool_], dict[str, Any]]:
        """Move every copy by ``commands``, shape (n, 2, N); return reward, terminated, info."""

    @abstractmethod
    def _write_states(self, out: Any, rows: Any) -> None:
        """Write the `state` of the copies ``rows`` to ``out``, shape (n, N, D)."""

    @abstractmethod
    def _blank_info(self, info: dict[str, Any], rows: NDArray[np.int64]) -> None:
        """Set ``info`` of the copies ``rows`` to what a reset leaves."""

    def _commands(self, actions: Mapping[str, Any]) -> Any:
        backend, task = self._backend, self._task
        commands = backend.states((len(task.uids), 2, self.num_envs))
        for robot, uid in enumerate(task.uids):
            commands[robot] = backend.read_action(task.owner, actions, uid, self.num_envs).T
        return backend.xp.clip(commands, -self._limits, self._limits)

    def _start(self, rows: NDArray[np.int64]) -> None:
        """Draw and place the current episodes of the copies ``rows``."""
        task, root_seed = self._task, self.root_seed
        if self._options.rng == "philox":
            keys = self._seeds[rows], self._episodes[rows]
            draws = counter_uniforms(task.stream, *keys, root_seed=root_seed, count=task.draws)
        else:
            family, episodes = f"{task.stream}.episode.", self._episodes_of(rows)
            draws = named_uniforms(family, episodes, root_seed=root_seed, count=task.draws)
        self._steps[rows] = 0
        self._finished[rows] = False
        self._place(self._backend.rows(rows), draws)

    def _observe(self) -> dict[str, Any]:
        return self._observation(self._seen())

    def _seen(self) -> Any:
        """Return every robot's `state`, (n, N, D)."""
        states = self._backend.observations(self._states_shape)
        self._write_states(states, _ALL)
        return states

    def _reset_finished(self, final_states: Any, info: dict[str, Any]) -> Any:
        """Start the next episode of finished copies; return the observations after that."""
        rows = self._restart(self._finished.copy(), self._observation(final_states), info)
        states = self._backend.copy(final_states)
        self._write_states(states, _ALL if rows.size == self.num_envs else rows)
        return states

    def _observation(self, states: Any) -> dict[str, Any]:
        return {
            "agent": {uid: {"state": states[robot]} for robot, uid in enumerate(self.agent_uids)}
        }
