"""Environments with more than two robots, seen as a game for two.

Training and evaluation loops know an ego and a partner. Here every further robot is driven by its
own copy of the partner, so that the loops see two seats; filters and pictures still see all robots.

Seeds:  the copy in seat u starts an episode of seed s from the first integer of the stream
        ``benchmark.background_robot.{u}.episode`` under root s, so copies differ from each other
        and from the partner, and an episode is repeated by its seed. Row i of N batched
        environments counts its own episodes e = 0, 1, ...: their seeds are s + i + e N, as in the
        environments.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cadenza.benchmark.tasks import TaskEnv
from cadenza.core.errors import NotReadyError
from cadenza.core.seeding import derive_substream
from cadenza.core.types import ActionDict, Observation
from cadenza.partners.interface import PartnerBase

#: Loops see this many seats: ego and partner.
SEATS: Final = 2
#: Keys of a batch's info that hold the observation before an automatic reset.
_FINAL_KEYS: Final = ("final_observation", "final_obs")


class BackgroundRobots:
    """Two-seat view of one environment; every other attribute is the environment's own.

    Attributes:
        agent_uids: Ego and partner.
        robot_uids: All robots, ego first.
    """

    def __init__(self, env: TaskEnv, robots: Mapping[str, PartnerBase]) -> None:
        """Wrap ``env``.

        Args:
            env: Environment with more than two robots.
            robots: One copy of the partner for each uid after the first two.
        """
        self._env = env
        self._robots = dict(robots)
        self.robot_uids = env.agent_uids
        self.agent_uids = env.agent_uids[:SEATS]
        self._obs: Observation | None = None
        self._automatic_episodes = 0
        self.action_space = _seats_of(env.action_space, self.agent_uids)
        self.observation_space = _seats_of_agents(env.observation_space, self.agent_uids)

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
            automatic = derive_substream(name, root_seed=self._env.root_seed)
            seed = automatic.child(self._automatic_episodes).integer_seed()
            self._automatic_episodes += 1
        for uid, robot in self._robots.items():
            robot.reset(seed=background_seed(uid, seed))

    def _all_actions(self, action: ActionDict) -> dict[str, NDArray[Any]]:
        obs = self._obs
        if obs is None:
            raise NotReadyError("BackgroundRobots.step: expected an episode; call reset() first.")
        return {**action, **{uid: robot.act(obs) for uid, robot in self._robots.items()}}


class BatchedBackgroundRobots(BackgroundRobots):
    """Two-seat view of N environments that reset themselves in the step that ends an episode.

    Attributes:
        num_envs: N.
    """

    def __init__(self, env: TaskEnv, robots: Mapping[str, PartnerBase], *, num_envs: int) -> None:
        """Wrap ``env``; see `BackgroundRobots`."""
        super().__init__(env, robots)
        self.num_envs = num_envs
        self._next_seeds: NDArray[np.int64] = np.arange(num_envs, dtype=np.int64)

    def step(self, action: ActionDict) -> tuple[Any, Any, Any, Any, Mapping[str, Any]]:
        """Advance every environment; background robots begin anew where an episode ended."""
        obs, reward, terminated, truncated, info = super().step(action)
        self._begin_rows(np.flatnonzero(terminated | truncated))
        final = {key: two_seats(info[key], self.agent_uids) for key in _FINAL_KEYS if key in info}
        return obs, reward, terminated, truncated, {**info, **final}

    def _begin(self, seed: int | None) -> None:
        if seed is not None:
            self._next_seeds = seed + np.arange(self.num_envs, dtype=np.int64)
        self._begin_rows(np.arange(self.num_envs))

    def _begin_rows(self, rows: NDArray[np.intp]) -> None:
        for row in rows.tolist():
            seed = int(self._next_seeds[row])
            for uid, robot in self._robots.items():
                robot.reset_row(row, seed=background_seed(uid, seed))
            self._next_seeds[row] += self.num_envs


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
