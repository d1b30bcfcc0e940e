"""Files of memories under random damage, and proxies under random lives of agents."""

import io
import logging
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.errors import ConfigurationError, IntegrityError
from cadenza.core.types import EpisodeState
from cadenza.learn.memory.proxy import MemoryTableProxy
from tests.unit.learn.memory.memory_episodes import observation, response, table
from tests.unit.learn.memory.memory_file_parts import (
    V2_FILES,
    assert_equal,
    memory,
    restored,
    write_v1,
)

#: What was written, and by which version.
FILES = ("v1.zip", "v2.zip", "v2_deflated.zip", "v3.safetensors", "v3_deflated.zip")
ANY_FILE = st.sampled_from(FILES)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    write_v1(memory(), folder / "v1.zip")
    memory().store(folder / "v3")
    memory().store(folder / "v3_deflated", compress=True)
    folders = {name: V2_FILES if name.startswith("v2") else folder for name in FILES}
    return {name: (where / name).read_bytes() for name, where in folders.items()}


@pytest.fixture(autouse=True, scope="module")
def _no_warnings_about_settings():
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def assert_refused_or_unharmed(folder, name, content):
    file = folder / f"damaged{name[name.index('.') :]}"
    file.write_bytes(content)
    try:
        got = restored(file)
    except (IntegrityError, ConfigurationError):
        return
    finally:
        file.unlink()
    assert_equal(got, memory())


@given(
    name=ANY_FILE,
    changes=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4
    ),
)
def test_changed_bytes_are_refused_or_change_nothing(tmp_path_factory, stored, name, changes):
    content = bytearray(stored[name])
    for place, value in changes:
        content[int(place * len(content))] = value
    assert_refused_or_unharmed(tmp_path_factory.getbasetemp(), name, bytes(content))


@given(name=ANY_FILE, share=st.floats(0, 1, exclude_max=True))
def test_truncated_files_are_refused(tmp_path_factory, stored, name, share):
    file = tmp_path_factory.getbasetemp() / f"damaged{name[name.index('.') :]}"
    file.write_bytes(stored[name][: int(share * len(stored[name]))])
    with pytest.raises(IntegrityError, match=r"damaged\.(zip|safetensors): expected"):
        restored(file)
    file.unlink()


@given(
    name=st.sampled_from([name for name in FILES if name.endswith("zip")]),
    entry=st.integers(0, 8),
    data=st.binary(max_size=200),
)
def test_entries_of_anything_are_refused_or_change_nothing(
    tmp_path_factory, stored, name, entry, data
):
    with zipfile.ZipFile(io.BytesIO(stored[name])) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    spoiled = list(entries)[entry % len(entries)]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for each, content in entries.items():
            archive.writestr(each, data if each == spoiled else content)
    assert_refused_or_unharmed(tmp_path_factory.getbasetemp(), name, buffer.getvalue())


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
