"""Files of memories under random damage, and proxies under random lives of agents."""

import logging
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.errors import ConfigurationError, IntegrityError
from cadenza.core.types import EpisodeState
from cadenza.learn.memory.files import TableSerializationVersion, read_snapshot, write_snapshot
from cadenza.learn.memory.proxy import MemoryTableProxy
from tests.unit.learn.memory.memory_episodes import observation, response, table
from tests.unit.learn.memory.memory_file_parts import assert_equal, options, snapshot, write_v1

VERSIONS = st.sampled_from([TableSerializationVersion.V1, TableSerializationVersion.V2])


@pytest.fixture(autouse=True, scope="module")
def _no_warnings_about_settings():
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def stored(folder, version, compress):
    name = f"{version.name}{compress}"
    if not (folder / f"{name}.zip").exists():
        if version is TableSerializationVersion.V1:
            write_v1(snapshot(), folder / f"{name}.zip")
        else:
            write_snapshot(snapshot(), folder / name, compress=compress)
    return (folder / f"{name}.zip").read_bytes()


def assert_refused_or_unharmed(folder, content):
    (folder / "damaged.zip").write_bytes(content)
    try:
        got = read_snapshot(folder / "damaged", options())
    except (IntegrityError, ConfigurationError):
        return
    assert_equal(got, snapshot())


@given(
    version=VERSIONS,
    compress=st.booleans(),
    changes=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4
    ),
)
def test_changed_bytes_are_refused_or_change_nothing(tmp_path_factory, version, compress, changes):
    folder = tmp_path_factory.getbasetemp()
    content = bytearray(stored(folder, version, compress))
    for place, value in changes:
        content[int(place * len(content))] = value
    assert_refused_or_unharmed(folder, bytes(content))


@given(version=VERSIONS, compress=st.booleans(), share=st.floats(0, 1, exclude_max=True))
def test_truncated_files_are_refused(tmp_path_factory, version, compress, share):
    folder = tmp_path_factory.getbasetemp()
    content = stored(folder, version, compress)
    (folder / "damaged.zip").write_bytes(content[: int(share * len(content))])
    with pytest.raises(IntegrityError, match=r"damaged\.zip: expected"):
        read_snapshot(folder / "damaged", options())


@given(version=VERSIONS, entry=st.integers(0, 8), data=st.binary(max_size=200))
def test_entries_of_anything_are_refused_or_change_nothing(tmp_path_factory, version, entry, data):
    folder = tmp_path_factory.getbasetemp()
    stored(folder, version, False)
    with zipfile.ZipFile(folder / f"{version.name}False.zip") as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    name = list(entries)[entry]
    with zipfile.ZipFile(folder / "spoiled.zip", "w") as archive:
        for each, content in entries.items():
            archive.writestr(each, data if each == name else content)
    assert_refused_or_unharmed(folder, (folder / "spoiled.zip").read_bytes())


@given(
    lives=st.lists(
        st.tuples(st.integers(1, 12), st.sampled_from(["TERMINAL", "INTERRUPTED"])),
        min_size=1,
        max_size=12,
    ),
    order=st.randoms(use_true_random=False),
    maxlen=st.integers(12, 60),
)
def test_interleaved_agents_give_exact_episodes_and_never_too_many(lives, order, maxlen):
    memory = table(maxlen=maxlen)
    proxy = MemoryTableProxy(memory, use_terminal=True, whole_episodes=True)
    steps = dict.fromkeys(range(len(lives)), 0)
    while steps:
        agents = order.sample(sorted(steps), order.randint(1, len(steps)))
        observations, responses = {}, {}
        for agent in agents:
            step, (length, ending) = steps[agent], lives[agent]
            state = EpisodeState.INITIAL if step == 0 else EpisodeState.RUNNING
            if step == length:
                state = EpisodeState[ending]
                del steps[agent]
            else:
                responses[agent] = response(agent, step)
                steps[agent] += 1
            observations[agent] = observation(agent, step, state)
        proxy.add(observations, responses)
        assert memory.size() <= maxlen
    for agent in memory.identities():
        length, ending = lives[agent]
        rows = memory.episode(agent)
        np.testing.assert_array_equal(rows["obs"][:, 0], 100 * agent + np.arange(length + 1))
        np.testing.assert_array_equal(rows["rewards"][:, 0], 1 + np.arange(length))
        assert rows["terminal"].tolist() == [float(ending == "INTERRUPTED")]
    assert proxy.counters()["episodes_added"] == len(lives)
