"""Producers and draws of a running engine that each need the other to go on first."""

from collections.abc import Callable

import numpy as np
import pytest

from cadenza.core.errors import InputError
from cadenza.stream import OnlineDataEngine
from cadenza.stream.bridges.episodes import EpisodeReader
from tests.stream_engines import eventually, small_cfg

#: Longest time that a draw, or what follows from it, may take, s; before it, all would wait.
LIMIT_S = 800.0
#: Environment i plays episodes of 8 and 2 steps in turn.
LONG_AND_SHORT = {"lengths": [8, 2]}


def drawing(engine: OnlineDataEngine, c: int, episodes: int) -> Callable[[], bool]:
    """Return what draws 8 chunks and says whether so many episodes are published."""

    def draw() -> bool:
        engine.sample_batch(8, c, timeout=LIMIT_S)
        return engine.status()["episodes"] >= episodes

    return draw


def test_first_batch_beyond_the_ratio_waits_for_the_steps_that_it_needs() -> None:
    cfg = small_cfg(mode="fixed_ratio", max_replay_ratio=0.5)
    with OnlineDataEngine(cfg) as engine:
        assert engine.status()["frames"] < 32
        engine.sample_batch(16, 1, timeout=LIMIT_S)
        assert engine.status()["frames"] >= 32
        engine.sample_batch(16, 1, timeout=LIMIT_S)
        with pytest.raises(InputError, match=r"batch_size <= 16, because max_replay_ratio = 0\.5"):
            engine.sample_batch(17, 1)


@pytest.mark.parametrize("flow", [{"mode": "continuous"}, {"refill_threshold": 1}])
def test_episodes_too_short_to_be_drawn_do_not_stop_production(flow) -> None:
    with OnlineDataEngine(small_cfg(high_water=2, worlds=LONG_AND_SHORT, **flow)) as engine:
        eventually(drawing(engine, 5, 40), "production goes on")


@pytest.mark.parametrize(
    "flow",
    [
        {"mode": "fixed_ratio", "max_replay_ratio": 8.0},
        {"mode": "continuous", "high_water": 1},
        {"refill_threshold": 99, "high_water": 1},
    ],
)
def test_draw_that_waits_for_a_long_episode_gets_one(flow) -> None:
    worlds = {"lengths": [2, 2, 2, 2, 2, 8]}
    with OnlineDataEngine(small_cfg(worlds=worlds, **flow)) as engine:
        assert engine.store.length.max() == 2
        engine.sample_batch(4, 5, timeout=LIMIT_S)


def test_most_drawn_keeps_the_episodes_that_draws_can_use() -> None:
    cfg = small_cfg(
        buffer_size=8,
        mode="continuous",
        reuse="most_drawn",
        worlds=LONG_AND_SHORT | {"pause_s": 0.002},
    )
    with OnlineDataEngine(cfg) as engine:
        draw = drawing(engine, 5, 60)

        def is_of_use() -> bool:
            return draw() and np.count_nonzero(engine.store.length >= 5) >= 5

        eventually(is_of_use, "most of the buffer can be drawn from")


def test_readers_of_whole_episodes_get_new_ones_under_a_fixed_ratio() -> None:
    cfg = small_cfg(mode="fixed_ratio", max_replay_ratio=4.0)
    with OnlineDataEngine(cfg) as engine:
        reader = EpisodeReader(engine.store)
        eventually(lambda: bool(reader.take()) and reader.read >= 40, "episodes come")
        assert reader.lost == 0
        assert engine.status()["chunks"] == reader.read
