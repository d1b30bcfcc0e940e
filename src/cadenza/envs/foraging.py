"""Level-based foraging of the package `lbforaging`, for two agents who share what is eaten.

Source:       arXiv:2006.07869 (rules and names); ``Foraging-8x8-2p-3f-coop-v3`` is the default.
Observation:  row, column and level of every food left, then of oneself, then of the other, float32,
              (3 F + 6,); food that is gone is (−1, −1, 0). Both see the whole field.
Action:       0 nothing, 1 north, 2 south, 3 west, 4 east, 5 load.
Reward:       for both the share of all food, by level, that was eaten in the step; 1 in the end.
Departures:   the package's episode limit is left to the task, so that running out of time truncates
              instead of terminating; players are taken off the field before a reset, because the
              package keeps new ones away from where the last episode left them.
"""

from collections.abc import Mapping
from typing import Any, Final

import gymnasium as gym
import numpy as np

from cadenza.core.arrays import Float32Array
from cadenza.core.extras import load_extra

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

    Attributes:
        game: `lbforaging.foraging.ForagingEnv`.

    Raises:
        MissingExtraError: `lbforaging` is not installed.
    """

    metadata: Final = {"name": "foraging", "is_parallelizable": True, "has_success": True}

    def __init__(self, *, size: int = 8, foods: int = 3, levels: int = 2, coop: int = 1) -> None:
        environment = load_extra("lbforaging.foraging.environment")
        self.possible_agents = ("player_0", "player_1")
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
