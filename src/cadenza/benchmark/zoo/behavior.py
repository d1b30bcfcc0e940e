"""Behavior-preferring partners: self-play that also seeks or shuns events of the task.

A policy learns from r + w·φ, with φ the counts of `events` and w drawn from a declared set, not all
zero. Such partners are for judging: they are held out, and no ego trains with them.

Source:  arXiv:2302.01605 (hidden-utility self-play); as evaluation partners arXiv:2310.05208.
Axes:    E = events.
"""

from collections.abc import Sequence
from itertools import product

import numpy as np

from cadenza.benchmark.zoo.config import ZooConfig
from cadenza.benchmark.zoo.events import events_of
from cadenza.benchmark.zoo.fcp import SelfPlay
from cadenza.benchmark.zoo.pairs import PairEnv
from cadenza.benchmark.zoo.stacked import Moment, shared_reward
from cadenza.core.arrays import FloatArray
from cadenza.core.errors import ConfigurationError
from cadenza.core.seeding import derive_substream


def draw_preferences(choices: Sequence[float], events: int, count: int, *, seed: int) -> FloatArray:
    """Return ``count`` different weights of the events, none all zero, (count, E)."""
    every: list[tuple[float, ...]] = [
        w for w in product(sorted(set(choices)), repeat=events) if any(w)
    ]
    if len(every) < count:
        raise ConfigurationError(
            f"population: expected at most {len(every)} behavior-preferring partners, as many as "
            f"there are weights of {events} events from {sorted(set(choices))}, got {count}; "
            "declare more preferences."
        )
    rng = derive_substream("zoo.behavior.preferences", root_seed=seed).default_rng()
    table = np.array(every, dtype=np.float64)
    return table[rng.permutation(len(table))[:count]]


class PreferringSelfPlay(SelfPlay):
    """Self-play of policies with preferences; a job's last number says whose it has."""

    def __init__(self, config: ZooConfig, env: PairEnv, keys: Sequence[str]) -> None:
        super().__init__(config, env, keys)
        self._events = events_of(config.task)
        own = [int(key.rpartition("-")[2]) for key in keys]
        self._weights = preferences_of(config)[own, None]  # (G, 1, events)

    def reward(self, moment: Moment) -> FloatArray:
        """Return the task's rewards plus the worth of the events, (E,)."""
        counted = self._events.count(moment.before, moment.actions, moment.step.following)
        own = counted.reshape(len(self.keys), -1, counted.shape[1])
        return shared_reward(moment) + (own * self._weights).sum(axis=-1).reshape(-1)


def preferences_of(config: ZooConfig) -> FloatArray:
    """Return the weights of the population's policies, (K, E)."""
    events = events_of(config.task)
    choices = events.preferences if config.preferences is None else config.preferences
    return draw_preferences(choices, len(events.names), config.population, seed=config.seed)
