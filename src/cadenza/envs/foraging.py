"""Level-based foraging of the package `lbforaging`, for two agents who share what is eaten.

Source:       arXiv:2006.07869 (rules and names); ``Foraging-8x8-2p-3f-coop-v3`` is the default.
Observation:  row, column and level of every food left, then of oneself, then of the other, float32,
              (3 F + 6,); food that is gone is (−1, −1, 0). Both see the whole field.
Action:       0 nothing, 1 north, 2 south, 3 west, 4 east, 5 load.
Reward:       for both the share of all food, by level, that was eaten in the step; 1 in the end.
Departures:   the package's episode limit is left to the task, so that running out of time truncates
              instead of terminating; players are taken off the field before a reset, because the
              package keeps new ones away from where the last episode left them.

Copy i of `VectorForaging` has the bytes of `Foraging` inside a `ParallelTask` with the same seeds:
fields are laid out by the package itself, one after the other, and moves and meals are computed for
all copies at once. Identities and automatic resets are those of `cadenza.envs.vector_base`.

Rules of a step, for every copy:
    a move off the field or onto food does nothing; if both would end in one cell, neither moves;
    food is eaten if the levels of those beside it who load reach its own, and each of them gets
    level / (sum of their levels) of its share of all food.
Axes:   N = copies, 2 players, F = food in the beginning. Cells are (row, column).
Speed:  `perf/bench_envs.py`.
"""

from collections.abc import Mapping
from typing import Any, Final

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from cadenza.core.arrays import Float32Array
from cadenza.core.errors import InputError
from cadenza.core.extras import load_extra
from cadenza.core.seeding import derive_substream
from cadenza.envs import contracts
from cadenza.envs.backends import array_backend
from cadenza.envs.inputs import checked_agent_uids, missing_uid_message
from cadenza.envs.parallel_task import EPISODE_STREAM, ParallelTask
from cadenza.envs.vector_base import Autoreset, PlanarVectorEnv, TaskLayout, VectorOptions

#: Names of the actions by number.
ACTIONS: Final = ("none", "north", "south", "west", "east", "load")
#: Steps no episode reaches: the task's own limit ends it.
_NO_LIMIT: Final = 2**62


class Foraging:
    """One field, as a PettingZoo parallel environment.

    Args:
        size: Rows and columns of the field.
        foods: How much food it holds in the beginning.
        levels: Highest level of a player; 1 is the game without levels.
        coop: 1: every food needs both players at once; 0: food has levels from 1 to their sum
            (without levels: 1, so that each can eat alone).

    Raises:
        MissingExtraError: `lbforaging` is not installed.
    """

    metadata: Final = {"name": "foraging", "is_parallelizable": True, "has_success": True}

    def __init__(self, *, size: int = 8, foods: int = 3, levels: int = 2, coop: int = 1) -> None:
        environment = load_extra("lbforaging.foraging.environment")
        self.possible_agents: tuple[str, str] = ("player_0", "player_1")
        self.agents: tuple[str, ...] = ()
        self.game: Any = environment.ForagingEnv(
            players=2,
            min_player_level=1,
            max_player_level=levels,
            min_food_level=1,
            max_food_level=None if coop or levels > 1 else 1,
            field_size=(size, size),
            max_num_food=foods,
            sight=size,
            max_episode_steps=_NO_LIMIT,
            force_coop=bool(coop),
        )

    @property
    def task_contract(self) -> contracts.Contracts:
        """What the robots' numbers mean, by robot."""
        return contracts.foraging(self.possible_agents, foods=self.game.max_num_food)

    @property
    def unwrapped(self) -> "Foraging":
        """Itself."""
        return self

    def observation_space(self, agent: str) -> gym.Space[Any]:
        """Return the space of the agent's observation."""
        return self.game.observation_space[self.possible_agents.index(agent)]

    def action_space(self, agent: str) -> gym.Space[Any]:
        """Return Discrete(6)."""
        return self.game.action_space[self.possible_agents.index(agent)]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Float32Array], dict[str, dict[str, Any]]]:
        """Lay out a new field."""
        del options
        for player in self.game.players:
            player.position = None
        observations, _ = self.game.reset(seed=seed)
        self.agents = self.possible_agents
        return self._by_agent(observations), {agent: {} for agent in self.agents}

    def lay_out(self, seed: int) -> Any:
        """Return the game with the field that `reset` lays out, without beginning an episode.

        The package's own reset also looks at the new field for everybody, which costs twice as
        much; what is drawn, and in which order, is the same.
        """
        game = self.game
        for player in game.players:
            player.position = None
        game.seed(seed)
        game.field = np.zeros(game.field_size, np.int32)
        game.spawn_players(game.min_player_level, game.max_player_level)
        highest = game.max_food_level
        if highest is None:
            highest = np.full(game.max_num_food, sum(player.level for player in game.players))
        game.spawn_food(game.max_num_food, min_levels=game.min_food_level, max_levels=highest)
        return game

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[
        dict[str, Float32Array],
        dict[str, float],
        dict[str, bool],
        dict[str, bool],
        dict[str, dict[str, Any]],
    ]:
        """Move both; ``success`` in the info is whether everything is eaten."""
        seen, rewards, over, _, _ = self.game.step([int(actions[agent]) for agent in self.agents])
        alive = self.agents
        if over:
            self.agents = ()
        return (
            self._by_agent(seen),
            dict.fromkeys(alive, float(np.sum(rewards))),
            dict.fromkeys(alive, bool(over)),
            dict.fromkeys(alive, False),
            {agent: {"success": bool(over)} for agent in alive},
        )

    def close(self) -> None:
        """Nothing to let go of."""

    def _by_agent(self, observations: Any) -> dict[str, Float32Array]:
        return dict(zip(self.possible_agents, observations, strict=True))


_OWNER: Final = "VectorForaging"
_LOAD: Final = ACTIONS.index("load")
#: Change of row and column by every action.
_MOVES: Final = np.array([(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1), (0, 0)])


class VectorForaging(PlanarVectorEnv):
    """N fields; observation, actions and reward as in `cadenza.envs.foraging`."""

    def __init__(
        self,
        num_envs: int,
        *,
        size: int = 8,
        foods: int = 3,
        levels: int = 2,
        coop: int = 1,
        agent_uids: tuple[str, str] = ("ego", "partner"),
        episode_length: int = 50,
        root_seed: int = 0,
        autoreset: Autoreset = "same_step",
    ) -> None:
        """Build N copies; call `reset` before `step`.

        Args:
            num_envs: Copies N, >= 1.
            size: See `Foraging`.
            foods: See `Foraging`.
            levels: See `Foraging`.
            coop: See `Foraging`.
            agent_uids: Two distinct names, the ego's first.
            episode_length: Steps until truncation, >= 1.
            root_seed: Experiment seed, >= 0.
            autoreset: See `cadenza.envs.vector_base`.

        Raises:
            InputError: An argument is out of range.
            MissingExtraError: `lbforaging` is not installed.
        """
        uids = checked_agent_uids(_OWNER, agent_uids, low=2, high=2)
        options = VectorOptions(
            num_envs=num_envs,
            episode_length=episode_length,
            root_seed=root_seed,
            autoreset=autoreset,
            rng="substream",
        )
        task = TaskLayout(
            owner=_OWNER,
            stream=EPISODE_STREAM,
            uids=uids,
            limits=dict.fromkeys(uids, 1.0),
            state_dim=3 * foods + 6,
            draws=0,
            control_timestep=ParallelTask.control_timestep,
        )
        super().__init__(task, options, array_backend(_OWNER, "numpy"))
        self._maker = Foraging(size=size, foods=foods, levels=levels, coop=coop)
        one = ParallelTask(self._maker, agent_uids=agent_uids)
        self.single_action_space: Any = one.action_space
        self.single_observation_space: Any = one.observation_space
        self.action_space: Any = batch_space(self.single_action_space, num_envs)
        self.observation_space: gym.Space[Any] = batch_space(one.observation_space, num_envs)
        self._size = size
        self._players = np.zeros((num_envs, 2, 2), np.int64)
        self._levels = np.zeros((num_envs, 2), np.int64)
        self._foods = np.zeros((num_envs, foods, 2), np.int64)  # by row, then column
        self._powers = np.zeros((num_envs, foods), np.int64)  # levels; 0 is gone
        self._spawned = np.zeros(num_envs, np.int64)

    @property
    def task_contract(self) -> contracts.Contracts:
        """What the robots' numbers mean, by robot."""
        return contracts.foraging(self.agent_uids, foods=self._foods.shape[1])

    def _task_memory(self) -> dict[str, Any]:
        return {
            "players": self._players,
            "levels": self._levels,
            "foods": self._foods,
            "powers": self._powers,
            "spawned": self._spawned,
        }

    def _start(self, rows: NDArray[np.int64]) -> None:
        self._steps[rows] = 0
        for row, seed in zip(rows.tolist(), self._episodes_of(rows).tolist(), strict=True):
            stream = derive_substream(f"{EPISODE_STREAM}{seed}", root_seed=self.root_seed)
            game = self._maker.lay_out(stream.integer_seed())
            cells = np.argwhere(game.field)
            self._players[row] = [player.position for player in game.players]
            self._levels[row] = [player.level for player in game.players]
            self._powers[row] = 0
            self._foods[row, : len(cells)] = cells
            self._powers[row, : len(cells)] = game.field[tuple(cells.T)]
            self._spawned[row] = self._powers[row].sum()

    def _commands(self, actions: Mapping[str, Any]) -> NDArray[np.int64]:
        """Return the numbers of the actions, (N, 2)."""
        chosen = np.zeros((self.num_envs, 2), np.int64)
        for player, uid in enumerate(self.agent_uids):
            if uid not in actions:
                raise InputError(missing_uid_message(_OWNER, actions, uid))
            value = np.asarray(actions[uid], dtype=np.float64)
            if value.size != self.num_envs or not np.isin(value, range(len(ACTIONS))).all():
                raise InputError(
                    f"{_OWNER}: expected {self.num_envs} whole numbers from 0 to "
                    f"{len(ACTIONS) - 1} as the actions of {uid!r}, got {value.tolist()}."
                )
            chosen[:, player] = value.reshape(-1)
        return chosen

    def _advance(
        self, commands: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_], dict[str, Any]]:
        is_left = self._powers > 0
        wanted = self._players + _MOVES[commands]
        outside = ((wanted < 0) | (wanted >= self._size)).any(axis=-1)
        onto = (wanted[:, :, None] == self._foods[:, None]).all(axis=-1) & is_left[:, None]
        stays = outside | onto.any(axis=-1)  # (N, 2)
        wanted = np.where(stays[..., None], self._players, wanted)
        meet = (wanted[:, 0] == wanted[:, 1]).all(axis=-1)
        self._players = np.where(meet[:, None, None], self._players, wanted)

        steps = np.abs(self._players[:, :, None] - self._foods[:, None]).sum(axis=-1)
        loads = (steps == 1) & is_left[:, None] & (commands == _LOAD)[..., None]  # (N, 2, F)
        together = (loads * self._levels[..., None]).sum(axis=1)  # (N, F)
        eaten = loads.any(axis=1) & (together >= self._powers)
        whole = np.where(eaten, together * self._spawned[:, None], 1)[:, None]
        parts = self._levels[..., None] * self._powers[:, None] / whole  # (N, 2, F)
        own = np.where(loads & eaten[:, None], parts, 0.0).sum(axis=-1)  # beside one food at most
        self._powers[eaten] = 0
        over = (self._powers == 0).all(axis=1)
        return own[:, 0] + own[:, 1], over, {"success": over.copy()}

    def _write_states(self, out: Any, rows: Any) -> None:
        powers = self._powers[rows]
        order = np.argsort(powers == 0, axis=1, kind="stable")  # food that is gone comes last
        powers = np.take_along_axis(powers, order, axis=1)
        cells = np.take_along_axis(self._foods[rows], order[..., None], axis=1)
        foods = np.concatenate((np.where(powers[..., None] > 0, cells, -1), powers[..., None]), -1)
        players = np.concatenate((self._players[rows], self._levels[rows][..., None]), axis=-1)
        for player in range(2):
            out[player, rows, :-6] = foods.reshape(len(foods), -1)
            out[player, rows, -6:-3] = players[:, player]
            out[player, rows, -3:] = players[:, 1 - player]

    def _blank_info(self, info: dict[str, Any], rows: NDArray[np.int64]) -> None:
        info["success"][rows] = False

    def _place(self, rows: Any, draws: NDArray[np.float64]) -> None:
        """Nothing to do: `_start` asks the package for whole fields."""
