"""Two robots in a batch of environments, as arrays: what populations train and are measured in.

Rows:    states are padded with zeros to the wider robot's; actions are in [−1, 1], scaled to the
         robot's bounds and clipped here, or numbers of choices.
Axes:    2 = ego and partner, N = environments, O = state, A = action, M = episodes, E = events.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from cadenza.aht.config import EnvConfig
from cadenza.benchmark.builders import build_env
from cadenza.benchmark.zoo.config import ZooConfig
from cadenza.benchmark.zoo.events import TaskEvents
from cadenza.core.arrays import Float32Array, FloatArray, require_finite
from cadenza.core.checks import WIDEST_RANGE, is_scalable
from cadenza.core.contracts import TaskContract, contract_at
from cadenza.core.errors import ConfigurationError, InputError, refuse
from cadenza.core.proportions import wilson_interval
from cadenza.core.seeding import derive_substream
from cadenza.envs.vector_base import Snapshot
from cadenza.evaluation.statistics.cluster_means import StudentT
from cadenza.evaluation.statistics.estimate import mean_estimate
from cadenza.partners.zoo_manifest import Skill


class PairStep(NamedTuple):
    """Result of one step.

    Attributes:
        states: What the next actions are decided on, (2, N, O).
        following: What the actions led to, before any reset, (2, N, O).
        rewards: Shared rewards, (N,).
        terminated: The task ended the episode, (N,).
        boundaries: The episode ended in either way, (N,).
        success: Whether the ego is successful, (N,); None where the task does not say.
    """

    states: Float32Array
    following: Float32Array
    rewards: FloatArray
    terminated: NDArray[np.bool_]
    boundaries: NDArray[np.bool_]
    success: NDArray[np.bool_] | None

    @property
    def cut(self) -> NDArray[np.int64]:
        """Environments that a time limit ended and the task did not, (K,)."""
        return np.flatnonzero(self.boundaries & ~self.terminated)


class PairEnv:
    """Drives a batch of a task with two robots; both act by Boxes, or both choose.

    Attributes:
        num_envs: N.
        uids: Ego and partner.
        observation_dims: O of each robot; `observation_dim` is the larger.
        action_dims: A of each robot; `action_dim` is the larger, None for choices.
        choices: Number of choices; None for continuous actions.
        low: Smallest action of each robot; of choices, the first one's number.
        high: Largest.
        contracts: What each robot's numbers mean; None if the task does not say it.
    """

    def __init__(self, env: Any) -> None:
        if len(env.agent_uids) != 2:
            raise ConfigurationError(
                f"zoo: expected a task with two robots, got {', '.join(env.agent_uids)}."
            )
        self.env: Any = env
        self.num_envs: int = int(env.num_envs)
        self.uids: tuple[str, str] = tuple(env.agent_uids)
        self.contracts: list[TaskContract | None] = [contract_at(env, uid) for uid in self.uids]
        states = [env.single_observation_space["agent"][uid]["state"] for uid in self.uids]
        actions = [env.single_action_space[uid] for uid in self.uids]
        self.observation_dims: list[int] = [int(space.shape[0]) for space in states]
        self.observation_dim: int = max(self.observation_dims)
        if all(isinstance(space, spaces.Box) for space in actions):
            self.choices: int | None = None
            self.action_dims: list[int] = [int(space.shape[0]) for space in actions]
            self.action_dim: int | None = max(self.action_dims)
            self.low: list[Float32Array] = [np.asarray(space.low, np.float32) for space in actions]
            self.high: list[Float32Array] = [
                np.asarray(space.high, np.float32) for space in actions
            ]
            if not all(map(is_scalable, self.low, self.high)):
                raise ConfigurationError(
                    f"zoo: expected actions with finite bounds, at most {WIDEST_RANGE:.0e} apart, "
                    f"got {actions}."
                )
        elif (
            all(isinstance(space, spaces.Discrete) for space in actions)
            and actions[0].n == actions[1].n
        ):
            self.choices, self.action_dims, self.action_dim = int(actions[0].n), [1, 1], None
            self.low = [np.full(1, space.start, np.float32) for space in actions]
            self.high = [low + np.float32(self.choices - 1) for low in self.low]
        else:
            raise ConfigurationError(
                f"zoo: expected two Boxes or two equal Discrete action spaces, got {actions}."
            )

    def close(self) -> None:
        """Let go of the environment."""
        self.env.close()

    def reset(self, seed: int | Sequence[int]) -> Float32Array:
        """Begin every episode; return states, (2, N, O)."""
        observation, _ = self.env.reset(seed=seed)
        return self._states(observation)

    def scaled(self, robot: int, unit: NDArray[Any]) -> Float32Array:
        """Return actions of ``robot`` (0 or 1), (N, A_i), from what a learner decides, (N, ...)."""
        low, high = self.low[robot], self.high[robot]
        if self.choices is not None:
            return unit.reshape(-1, 1).astype(np.float32) + low
        share = (np.clip(unit[:, : len(low)], -1.0, 1.0) + 1.0) * 0.5
        return (low + share * (high - low)).astype(np.float32)

    def snapshot(self, rows: Sequence[int]) -> Snapshot:
        """Return what the environments ``rows`` are like; see `EpisodeBatch.snapshot`."""
        return self.env.snapshot(rows)

    def restore(self, rows: Sequence[int], snapshot: Snapshot) -> Float32Array:
        """Put the environments ``rows`` back there; return states of all, (2, N, O)."""
        return self._states(self.env.restore(rows, snapshot))

    def step(self, actions: Sequence[Float32Array]) -> PairStep:
        """Advance every environment; ``actions`` are both robots', (N, A_i), within their bounds.

        Raises:
            InputError: A reward is NaN or infinite, or an episode ended whose last observation is
                not in the info.
        """
        acted = dict(zip(self.uids, actions, strict=True))
        observation, reward, terminated, truncated, info = self.env.step(acted)
        ends = np.array(terminated, dtype=np.bool_)
        boundaries = ends | np.asarray(truncated, dtype=np.bool_)
        states = following = self._states(observation)
        if boundaries.any():
            if "final_observation" not in info:
                raise InputError(
                    "zoo: expected info['final_observation'] of the episodes that ended, got none; "
                    "use an environment that resets itself within the step."
                )
            following = states.copy()
            following[:, boundaries] = self._states(info["final_observation"])[:, boundaries]
            info = info.get("final_info", info)
        success = info.get("success")
        rewards = np.array(reward, dtype=np.float64)
        require_finite("zoo: rewards of the environment", rewards)
        return PairStep(
            states,
            following,
            rewards,
            ends,
            boundaries,
            None if success is None else np.array(success, dtype=np.bool_),
        )

    def observation(self, states: Float32Array) -> dict[str, Any]:
        """Return ``states``, (2, N, O), in the form that partners read."""
        pairs = zip(self.uids, states, self.observation_dims, strict=True)
        return {"agent": {uid: {"state": rows[:, :dim]} for uid, rows, dim in pairs}}

    def _states(self, observation: Any) -> Float32Array:
        states = np.zeros((2, self.num_envs, self.observation_dim), dtype=np.float32)
        for robot, (uid, dim) in enumerate(zip(self.uids, self.observation_dims, strict=True)):
            states[robot, :, :dim] = observation["agent"][uid]["state"]
        return states


def open_pairs(config: ZooConfig, num_envs: int, *, stride: int | None = None) -> PairEnv:
    """Return ``num_envs`` copies of the task, stepped as one.

    Episode numbers grow by ``stride``, ``num_envs`` if it is None; see
    `cadenza.envs.vector_base.EpisodeBatch`.
    """
    settings = EnvConfig(
        task=config.task,
        episode_length=config.horizon,
        num_envs=num_envs,
        options=config.options,
    )
    env = build_env(settings, root_seed=config.seed)
    if stride is not None:
        if not hasattr(env, "stride"):  # somebody else's batch
            refuse(
                ConfigurationError,
                f"zoo {config.method} on {config.task!r}",
                expected="a batch that goes back and has a stride, as vector_base.EpisodeBatch",
                got=type(env).__name__,
                do="derive it from that, or leave batches to processes: supports_batches=False",
            )
        env.stride = stride
    return PairEnv(env)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairEpisodes:
    """Episodes of one pair.

    Attributes:
        returns: Undiscounted, (M,).
        successes: (M,); None where the task has no success.
        events: Counts, (M, E).
        states: The partner's states, those of the first steps, (T, M, O).
    """

    returns: FloatArray
    successes: NDArray[np.bool_] | None
    events: FloatArray
    states: Float32Array

    @property
    def scores(self) -> FloatArray:
        """Successes if there are any, else returns, (M,)."""
        return self.returns if self.successes is None else self.successes.astype(np.float64)

    def skill(self) -> Skill:
        """Return the mean score with its 95 % interval; no seeds: Wilson, or t on episodes."""
        scores, count = self.scores, len(self.returns)
        if self.successes is not None:
            low, high = wilson_interval(int(scores.sum()), count)
            value = float(scores.mean())
            return Skill(metric="success", value=value, low=low, high=high, episodes=count)
        estimate = mean_estimate({k: [x] for k, x in enumerate(scores)}, method=StudentT())
        return Skill(
            metric="return",
            value=float(scores.mean()),
            low=estimate.low,
            high=estimate.high,
            episodes=count,
        )


#: Both robots' states of a batch, (2, N, O), to one robot's actions within its bounds, (N, A_i).
PairPolicy = Callable[[Float32Array], Float32Array]


def play(
    env: PairEnv,
    ego: PairPolicy,
    partner: PairPolicy,
    *,
    horizon: int,
    events: TaskEvents,
    seed: int,
) -> PairEpisodes:
    """Play one episode in each environment; see `play_pairs`."""
    return play_pairs(env, [(ego, partner)], horizon=horizon, events=events, seed=seed)[0]


def play_pairs(
    env: PairEnv,
    pairs: Sequence[tuple[PairPolicy, PairPolicy]],
    *,
    horizon: int,
    events: TaskEvents,
    seed: int,
) -> list[PairEpisodes]:
    """Play M episodes of each pair; equal seeds begin alike, whoever plays and in whose company.

    Args:
        env: M copies of the task for each pair, one pair's after another's.
        pairs: Egos, who play the first robot, and partners.
        horizon: Control steps of an episode, at most.
        events: What is counted.
        seed: Root of the episodes' seeds, the stream ``zoo.episodes``.
    """
    rng = derive_substream("zoo.episodes", root_seed=seed).default_rng()
    count = env.num_envs // len(pairs)
    states = env.reset(rng.integers(0, 2**31 - 1, size=count).tolist() * len(pairs))
    running = np.ones(env.num_envs, dtype=np.bool_)
    returns = np.zeros(env.num_envs)
    counts = np.zeros((env.num_envs, len(events.names)))
    successes = np.zeros(env.num_envs, dtype=np.bool_)
    lengths = np.zeros(len(pairs), dtype=np.int64)
    known = False
    seen: list[Float32Array] = []
    own = [slice(k * count, (k + 1) * count) for k in range(len(pairs))]
    for _ in range(horizon):
        actions = [
            np.concatenate(
                [pair[robot](states[:, at]) for pair, at in zip(pairs, own, strict=True)]
            )
            for robot in range(2)
        ]
        step = env.step(actions)
        seen.append(states[1])
        lengths += running.reshape(len(pairs), count).any(axis=1)
        counted = events.count(states, actions, step.following)
        returns += np.where(running, step.rewards, 0.0)
        counts += np.where(running[:, None], counted, 0.0)
        if step.success is not None:
            known = True
            successes |= step.success & running
        running &= ~step.boundaries
        states = step.states
        if not running.any():
            break
    met = np.stack(seen)
    return [
        PairEpisodes(
            returns=returns[at],
            successes=successes[at] if known else None,
            events=counts[at],
            states=met[:length, at],
        )
        for at, length in zip(own, lengths.tolist(), strict=True)
    ]
