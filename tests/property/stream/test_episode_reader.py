"""However writing, dropping and reading interleave, every episode is read or lost, exactly once."""

from hypothesis import given
from hypothesis import strategies as st

from cadenza.stream.back_pressure import passed_episodes
from cadenza.stream.bridges.episodes import EpisodeReader
from cadenza.stream.slot_writer import EpisodeWriter
from tests.stream_episodes import fill, new_store

#: Environments that are in an episode at the same time.
WRITERS = 2

actions = st.one_of(
    st.tuples(st.just("publish"), st.integers(0, WRITERS - 1)),
    st.tuples(st.just("drop"), st.integers(0, WRITERS - 1)),
    st.tuples(st.just("take"), st.sampled_from([1, 2, None])),
)


@given(slots=st.integers(WRITERS + 1, 5), script=st.lists(actions, max_size=40))
def test_every_published_episode_is_read_or_lost_exactly_once(
    slots: int, script: list[tuple[str, int | None]]
) -> None:
    store = new_store(slots=slots)
    reader = EpisodeReader(store)
    writers = [EpisodeWriter(store, store.take_slot(0)) for _ in range(WRITERS)]
    contents: list[float] = []  # what episode n begins with
    read: list[int] = []
    made = 0
    for kind, argument in [*script, ("publish", 0), ("take", None)]:
        if kind == "take":
            episodes = reader.take(argument)
            read += [episode.number for episode in episodes]
            for episode in episodes:
                assert episode.field("obs")[0, 0] == contents[episode.number]
            continue
        assert argument is not None
        made += 1
        fill(writers[argument], 1 + made % 5, float(made))
        if kind == "publish":
            writers[argument].publish()
            contents.append(float(made))
        else:
            writers[argument].drop()
        writers[argument] = EpisodeWriter(store, store.take_slot(0))
    assert read == sorted(set(read))
    assert read[-1] == len(contents) - 1  # the newest is always there
    assert reader.read == len(read)
    assert reader.read + reader.lost == len(contents) == passed_episodes(store)
