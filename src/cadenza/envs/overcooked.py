"""Overcooked of the package `overcooked`: two cooks serve onion soups as fast as they can.

Source:       arXiv:1910.05789; the five layouts of that paper.
Observation:  the 26 masks of the field that the package calls lossless, own ones first, float32,
              (26 W H,).
Action:       0 north, 1 south, 2 east, 3 west, 4 stay, 5 interact.
Reward:       for both: 20 for every soup that is served, and ``shaping`` percent of the package's
              rewards for onions put into a pot (3), dishes fetched in time (3) and soups taken (5).
Limits:       it never ends by itself; the task's episode length does, and is the horizon that the
              mask for the last 40 steps reads. Starts are always the same: seeds change nothing.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import gymnasium as gym
import numpy as np

from cadenza.core.arrays import Float32Array
from cadenza.core.extras import load_extra

#: Our names of the layouts, and the package's.
LAYOUTS: Final = {
    "cramped_room": "cramped_room",
    "asymmetric_advantages": "asymmetric_advantages",
    "coordination_ring": "coordination_ring",
    "forced_coordination": "forced_coordination",
    "counter_circuit": "counter_circuit_o_1order",
}
#: Steps per episode, and the horizon of the observation.
HORIZON: Final = 400


class Overcooked:
    """One kitchen, as a PettingZoo parallel environment.

    Args:
        layout: One of `LAYOUTS`.
        shaping: Share of the shaped rewards that is added, percent.
    """

    metadata: Final = {"name": "overcooked", "is_parallelizable": True}

    def __init__(self, layout: str, *, shaping: int = 0) -> None:
        mdp = load_extra("overcooked.mdp")
        self.possible_agents: tuple[str, str] = ("cook_0", "cook_1")
        self.agents: tuple[str, ...] = ()
        self._actions: Any = mdp.Action.ALL_ACTIONS
        self._share = shaping / 100.0
        self.kitchen: Any = mdp.OvercookedGridworld.from_layout_name(LAYOUTS[layout])
        self.state: Any = self.kitchen.get_standard_start_state()
        width, height, masks = self._observations()["cook_0"].shape
        # Counts of onions and remaining cooking time are the only values above 1.
        self._seen = gym.spaces.Box(0.0, np.inf, (width, height, masks), np.float32)
        self._choice = gym.spaces.Discrete(len(self._actions))

    @property
    def unwrapped(self) -> "Overcooked":
        """Itself."""
        return self

    def observation_space(self, agent: str) -> gym.Space[Any]:
        """Return the space of the masks, (W, H, 26)."""
        del agent
        return self._seen

    def action_space(self, agent: str) -> gym.Space[Any]:
        """Return Discrete(6)."""
        del agent
        return self._choice

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Float32Array], dict[str, dict[str, Any]]]:
        """Begin anew at the layout's own start."""
        del seed, options
        self.agents = self.possible_agents
        self.state = self.kitchen.get_standard_start_state()
        return self._observations(), {agent: {} for agent in self.agents}

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[
        dict[str, Float32Array],
        dict[str, float],
        dict[str, bool],
        dict[str, bool],
        dict[str, dict[str, Any]],
    ]:
        """Let both cooks act; ``soups`` in the info counts those served in the step."""
        joint = tuple(self._actions[int(actions[agent])] for agent in self.agents)
        self.state, outcome = self.kitchen.get_state_transition(self.state, joint)
        served = float(sum(outcome["sparse_reward_by_agent"]))
        reward = served + self._share * float(sum(outcome["shaped_reward_by_agent"]))
        soups = sum(outcome["event_infos"]["soup_delivery"])
        return (
            self._observations(),
            dict.fromkeys(self.agents, reward),
            dict.fromkeys(self.agents, False),
            dict.fromkeys(self.agents, False),
            {agent: {"soups": soups} for agent in self.agents},
        )

    def close(self) -> None:
        """Nothing to let go of."""

    def _observations(self) -> dict[str, Float32Array]:
        masks = self.kitchen.lossless_state_encoding(self.state, horizon=HORIZON)
        return {
            agent: np.asarray(own, dtype=np.float32)
            for agent, own in zip(self.possible_agents, masks, strict=True)
        }


def _maker(layout: str) -> Callable[..., Overcooked]:
    """Return what a task names to make the kitchens of one layout."""

    def make(**options: Any) -> Overcooked:
        """Return a kitchen; see `Overcooked`."""
        return Overcooked(layout, **options)

    return make


cramped_room: Callable[..., Overcooked] = _maker("cramped_room")
asymmetric_advantages: Callable[..., Overcooked] = _maker("asymmetric_advantages")
coordination_ring: Callable[..., Overcooked] = _maker("coordination_ring")
forced_coordination: Callable[..., Overcooked] = _maker("forced_coordination")
counter_circuit: Callable[..., Overcooked] = _maker("counter_circuit")
