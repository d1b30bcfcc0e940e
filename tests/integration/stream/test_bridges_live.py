"""Bridges out of a running stream: nothing torn, nothing twice, nothing lost unseen."""

import numpy as np
import pytest

from cadenza.core.errors import NotReadyError
from cadenza.core.spaces import BoxSpace, DictSpace, MDPSpace
from cadenza.learn.callback import Callback
from cadenza.learn.memory.builder import DictObsMemoryTable
from cadenza.learn.memory.loader import MemoryLoader
from cadenza.learn.trainer import Trainer, TrainingShutdownException
from cadenza.stream import OnlineDataEngine
from cadenza.stream.bridges.episodes import Episode, EpisodeReader
from cadenza.stream.bridges.memory import StreamToMemory
from cadenza.stream.serving import ServingCheck
from tests.stream_engines import eventually, small_cfg

#: Steps of the worlds' episodes, in turn.
LENGTHS = (5, 3, 8)


def live_engine(**settings) -> OnlineDataEngine:
    """Return an engine whose two producers never wait, unless the settings say so."""
    defaults = {"buffer_size": 8, "producers": 2, "mode": "continuous"}
    return OnlineDataEngine(small_cfg(worlds={"lengths": list(LENGTHS)}, **(defaults | settings)))


def take(reader: EpisodeReader, count: int) -> list[Episode]:
    """Read until there are ``count`` episodes."""
    episodes: list[Episode] = []

    def enough() -> bool:
        episodes.extend(reader.take())
        return len(episodes) >= count

    eventually(enough, f"{count} episodes")
    return episodes


def assert_whole(episode: Episode) -> None:
    """Check the numbers of the worlds: one episode, all of its steps, aligned."""
    length = episode.length
    assert length in LENGTHS
    np.testing.assert_array_equal(episode.states["obs"][:, 1], np.arange(length + 1))
    assert len(set(episode.states["obs"][:, 0])) == 1
    np.testing.assert_array_equal(episode.steps["rewards"], np.arange(1, length + 1))
    np.testing.assert_array_equal(episode.steps["terminated"], episode.dones())


def assert_rising(episodes: list[Episode]) -> None:
    """Check that no two episodes have one number, and that each producer's come in order."""
    for producer in range(2):
        numbers = [e.number for e in episodes if e.number % 2 == producer]
        assert numbers == sorted(set(numbers))


def test_no_episode_is_lost_when_producers_wait_for_readers() -> None:
    with live_engine(high_water=4) as engine:
        reader = EpisodeReader(engine.store)
        episodes = take(reader, 150)
    assert_rising(episodes)
    assert (reader.read, reader.lost) == (len(episodes), 0)
    for episode in episodes:
        assert_whole(episode)


class _StopAfter(Callback):
    """Ends training when a feeder has read ``episodes``."""

    def __init__(self, reader: EpisodeReader, episodes: int) -> None:
        super().__init__()
        self.reader = reader
        self.episodes = episodes
        self.errors = 0

    def backward(self, default: dict) -> None:
        step = default["observation"]["obs"][:, 1]
        following = default["next_observation"]["obs"][:, 1]
        self.errors += int((following != step + 1).sum())
        self.errors += int((default["rewards"].flatten() != step + 1).sum())
        if self.reader.read >= self.episodes:
            raise TrainingShutdownException("enough")


def new_table() -> DictObsMemoryTable:
    spaces = MDPSpace(
        rewards=None,
        actions=BoxSpace(np.float32, (1,)),
        state=DictSpace({"obs": BoxSpace(np.float32, (2,))}),
    )
    return DictObsMemoryTable(
        spaces=spaces, use_terminal_column=True, maxlen=300, device="cpu", seed=1
    )


def test_memory_trains_while_producers_go_on() -> None:
    table = new_table()
    with live_engine(high_water=4) as engine:
        reader = EpisodeReader(engine.store)
        check = ServingCheck(engine.store).require
        feeder = StreamToMemory(reader, table, warmup_steps=40, check=check)
        stop = _StopAfter(reader, 100)
        Trainer([feeder, stop], MemoryLoader(table, 16, 1, "batch_size")).train()
    assert stop.errors == 0
    assert reader.lost == 0
    assert table.full()  # the first episodes have made room for the last ones
    assert len(table.identities()) < 100 <= max(table.identities()) + 1
    with pytest.raises(NotReadyError, match="expected a running engine, got STOPPED"):
        feeder.pull()
