"""Every published episode comes once, whole and in order; what was overwritten is counted."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cadenza.core.errors import InputError, NotReadyError, UnknownNameError
from cadenza.stream.back_pressure import passed_episodes
from cadenza.stream.bridges.episodes import Episode, EpisodeReader
from cadenza.stream.slot_writer import EpisodeWriter
from tests.stream_episodes import fill, new_store, write_episode


def test_episode_is_copied_whole() -> None:
    store = new_store()
    write_episode(store, 3, 10.0)
    (episode,) = EpisodeReader(store).take()
    np.testing.assert_array_equal(episode.field("obs")[:, 0], [10, 11, 12, 13])
    np.testing.assert_array_equal(episode.field("obs")[:, 1], [-10, -11, -12, -13])
    np.testing.assert_array_equal(episode.field("actions")[:, 0], [10, 11, 12])
    np.testing.assert_array_equal(episode.field("segment_id"), [-1, -1, -1])
    assert (episode.length, episode.number, episode.policy_version) == (3, 0, 10)
    assert episode.success is True
    assert episode.is_terminal
    assert episode.written_at_ns == store.written_at_ns[0]
    np.testing.assert_array_equal(episode.dones(), [False, False, True])


def test_episodes_of_a_freed_buffer_are_not_passed_over_in_silence() -> None:
    store = new_store()
    write_episode(store, 2, 1.0)
    reader = EpisodeReader(store)
    store.free()
    with pytest.raises(NotReadyError, match=r"take what is left before stop"):
        reader.take()


def test_episode_that_can_be_read_before_it_is_counted_is_no_other_ones_loss() -> None:
    store = new_store(slots=3)
    for first in range(2):
        write_episode(store, 1, float(first))
    store.producers["episodes"][0] = 1  # as it is in the middle of the second publication
    reader = EpisodeReader(store)
    assert [e.number for e in reader.take()] == [0, 1]
    store.producers["episodes"][0] = 2
    assert reader.take() == []
    assert (reader.read, reader.lost) == (2, 0)


def test_episodes_of_several_producers_come_once_each() -> None:
    store = new_store(slots=6, producers=2)
    writers = [EpisodeWriter(store, store.take_slot(producer)) for producer in (0, 1, 1, 0)]
    for number, writer in enumerate(writers):
        fill(writer, 1, float(number))
    reader = EpisodeReader(store)
    writers[0].publish()
    writers[1].publish()
    assert [e.field("rewards")[0] for e in reader.take()] == [0.0, 1.0]
    writers[2].publish()
    writers[3].publish()
    assert [e.field("rewards")[0] for e in reader.take()] == [2.0, 3.0]
    assert (reader.read, reader.lost, passed_episodes(store)) == (4, 0, 4)


def test_slot_written_again_during_the_copy_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    store = new_store(slots=2)
    write_episode(store, 2, 1.0)
    write_episode(store, 2, 2.0)
    reader = EpisodeReader(store)
    entries = store.entries

    def entries_then_overwritten(name: str, slot: int) -> NDArray[Any]:
        monkeypatch.undo()
        write_episode(store, 2, 3.0)
        return entries(name, slot)

    monkeypatch.setattr(store, "entries", entries_then_overwritten)
    assert [e.number for e in reader.take()] == [1]
    assert (reader.read, reader.lost) == (1, 1)
    assert [e.number for e in reader.take()] == [2]


def test_reading_counts_as_one_drawn_chunk() -> None:
    store = new_store()
    write_episode(store, 3, 0.0)
    write_episode(store, 5, 0.0)
    EpisodeReader(store).take(1)
    assert store.draws.tolist() == [1, 0, 0]
    assert int(store.consumers["chunks"].sum()) == 1
    assert int(store.consumers["frames"].sum()) == 3


def test_only_selected_fields_are_copied() -> None:
    store = new_store()
    write_episode(store, 1, 0.0)
    (episode,) = EpisodeReader(store, select=["obs", "rewards"]).take()
    assert (set(episode.steps), set(episode.states)) == ({"rewards"}, {"obs"})
    with pytest.raises(UnknownNameError, match=r"expected one of .*'obs', .* got 'terminated'"):
        _ = episode.is_terminal


def test_unknown_selected_field_is_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"expected fields among .* got 'ob'"):
        EpisodeReader(new_store(), select=["ob"])


def test_cut_off_and_unjudged_episode_says_so() -> None:
    store = new_store()
    writer = EpisodeWriter(store, store.take_slot(0))
    fill(writer, 5, 0.0, ending=None)
    writer.publish()
    (episode,) = EpisodeReader(store).take()
    assert episode.success is None
    assert not episode.is_terminal
    assert episode.dones()[-1]


@pytest.mark.parametrize("states", [2, 4])
def test_episode_with_unequal_fields_is_refused(states: int) -> None:
    with pytest.raises(InputError, match="expected fields of one length"):
        Episode(steps={"actions": np.zeros((2, 1))}, states={"obs": np.zeros((states, 1))})
