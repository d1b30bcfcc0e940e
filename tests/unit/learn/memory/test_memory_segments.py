"""Exports that write only what is new: index and segments."""

import itertools
from pathlib import Path

import pytest

from cadenza.core.errors import IntegrityError, StorageError
from cadenza.learn.memory import files
from cadenza.learn.memory.files import SegmentedFile
from cadenza.learn.memory.proxy import MemoryTableProxy
from cadenza.learn.memory.wrappers import MemoryExporterProxyWrapper
from tests.unit.learn.memory.memory_episodes import play, table
from tests.unit.learn.memory.memory_file_parts import manifest, reseal


class Growing:
    """A table that grows, and the files it is exported to."""

    def __init__(self, folder, maxlen=1000, **options):
        self.table = table(maxlen=maxlen)
        self.proxy = MemoryTableProxy(self.table, use_terminal=True, whole_episodes=True)
        self.path = folder / "memory"
        self.file = SegmentedFile(self.path, self.table.changes_since, **options)

    def grow(self, *agents, steps=3):
        for agent in agents:
            play(self.proxy, agent, steps)

    def write(self):
        self.file.write()

    def segments(self):
        return sorted(file.name for file in self.path.with_suffix(".segments").glob("*"))

    @property
    def index(self):
        return self.path.with_suffix(".safetensors")

    def restored(self, **options):
        other = table(**options)
        other.restore(str(self.path))
        return other


@pytest.fixture(params=[False, True], ids=["stored", "deflated"])
def growing(request, tmp_path):
    return Growing(tmp_path, compress=request.param)


def assert_same(got, expected):
    assert got.identities() == expected.identities()
    for identity in expected.identities():
        mine, theirs = got.episode(identity), expected.episode(identity)
        for name, rows in theirs.items():
            assert mine[name].tolist() == rows.tolist()


def test_every_write_gives_the_whole_table_back(growing):
    for agents in ((1, 2), (3,), (), (4, 5, 6)):
        growing.grow(*agents)
        growing.write()
        assert_same(growing.restored(), growing.table)


def test_only_new_episodes_are_written(growing):
    growing.grow(1, 2)
    growing.write()
    first = growing.segments()
    stamps = {n: (growing.path.with_suffix(".segments") / n).stat().st_mtime_ns for n in first}
    growing.grow(3)
    growing.write()
    (new,) = set(growing.segments()) - set(first)
    assert len(growing.segments()) == 2
    folder = growing.path.with_suffix(".segments")
    assert {name: (folder / name).stat().st_mtime_ns for name in first} == stamps
    only = table()
    only.restore((folder / new).with_suffix(""))
    assert only.identities() == [3]


def test_id_that_comes_again_after_its_ejection_brings_its_new_rows(tmp_path):
    growing = Growing(tmp_path, maxlen=6)
    growing.grow(1, 2)
    growing.write()
    growing.grow(3, 1, steps=2)
    growing.write()
    assert growing.table.identities() == [3, 1]
    assert_same(growing.restored(), growing.table)
    assert growing.restored().episode(1)["rewards"].tolist() == [[1.0], [2.0]]


def test_mostly_dead_segments_are_written_anew(tmp_path):
    growing = Growing(tmp_path, maxlen=12)
    growing.grow(1, 2, 3, 4)
    growing.write()
    growing.grow(5, 6, 7)  # three of the four in the first segment are dead
    growing.write()
    assert len(growing.segments()) == 1
    assert_same(growing.restored(), growing.table)


def test_content_that_was_replaced_is_written_anew(tmp_path):
    growing = Growing(tmp_path)
    growing.grow(1, 2)
    growing.table.store(str(tmp_path / "other"))
    growing.grow(3)
    growing.write()
    growing.table.restore(str(tmp_path / "other"))
    growing.grow(9)
    growing.write()
    assert growing.restored().identities() == [1, 2, 9]


def test_another_run_starts_anew_over_the_files_of_the_first(tmp_path):
    first = Growing(tmp_path)
    first.grow(1, 2)
    first.write()
    second = Growing(tmp_path)
    second.grow(1, steps=5)
    second.write()
    assert_same(second.restored(), second.table)
    assert len(second.segments()) == 1


def test_smaller_table_reads_only_the_newest_segments(growing):
    for agent in range(4):
        growing.grow(agent)
        growing.write()
    oldest = manifest(growing.index)["segments"][0]["file"]
    (growing.path.with_suffix(".segments") / oldest).unlink()
    assert growing.restored(maxlen=7).identities() == [2, 3]


def test_failed_write_leaves_the_files_as_they_were(growing, monkeypatch):
    growing.grow(1)
    growing.write()
    growing.grow(2)
    rename = Path.replace

    def full(self, target):
        if target == growing.index:
            raise OSError(28, "no space left")
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(StorageError):
            growing.write()
    assert growing.restored().identities() == [1]
    growing.write()
    assert growing.restored().identities() == [1, 2]
    assert len(growing.segments()) == 2  # the one that was left over is gone


@pytest.fixture
def two(tmp_path):
    growing = Growing(tmp_path)
    for agent in (1, 2):
        growing.grow(agent)
        growing.write()
    return growing


def changed_record(**fields):
    return lambda manifest: manifest["segments"][1].update(fields)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed_record(file="../../../etc/passwd"), "expected segments with file"),
        (
            changed_record(file="0" * 16 + ".safetensors"),
            r"expected its segment .*0\.safetensors, got no such",
        ),
        (changed_record(sha256="0" * 64), "expected the segment with SHA-256 00000"),
        (changed_record(file=3), "expected segments with file"),
        (lambda manifest: manifest["segments"].append(3), "expected segments with file"),
        (
            lambda manifest: manifest["segments"].append(manifest["segments"][1]),
            "expected episodes of the index in segment",
        ),
        (
            lambda manifest: manifest["segments"].pop() and None,
            "expected segments with the ids of the index",
        ),
        (lambda manifest: manifest["segments"].clear(), "with the ids of the index"),
        (lambda manifest: manifest["segments"].reverse(), "with the ids of the index"),
        (lambda manifest: manifest.update(segments={}), "expected 'segments' to be list"),
    ],
)
def test_spoiled_index_is_one_error_and_the_old_table_stays(two, change, message):
    reseal(two.index, change)
    other = table()
    play(MemoryTableProxy(other, use_terminal=True), 50, 2)
    with pytest.raises(IntegrityError, match=message):
        other.restore(str(two.path))
    assert other.identities() == [50]


def flip(file):
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def test_changed_index_or_segment_is_found(two):
    segment = two.path.with_suffix(".segments") / two.segments()[0]
    flip(segment)
    with pytest.raises(IntegrityError, match="expected SHA-256"):
        two.restored()
    flip(segment)
    assert_same(two.restored(), two.table)
    flip(two.index)
    with pytest.raises(IntegrityError, match="expected SHA-256"):
        two.restored()


def test_export_of_an_empty_table_restores(tmp_path):
    growing = Growing(tmp_path)
    growing.write()
    assert growing.restored().size() == 0


def test_exporter_writes_segments(tmp_path):
    memory = MemoryTableProxy(table(), use_terminal=True)
    clock = itertools.count().__next__
    with pytest.warns(UserWarning, match="slow operation"):
        wrapper = MemoryExporterProxyWrapper(
            memory, "memory", 2, str(tmp_path), 0, incremental=True, clock=clock
        )
    for agent in range(4):
        play(wrapper, agent, 3)
    folder = tmp_path / "memory_export.segments"
    # exports at the calls 3, 6, 9, 12 and 15; episodes end at the calls 4, 8, 12 and 16
    assert len(list(folder.iterdir())) == 3
    other = table()
    other.restore(str(tmp_path / "memory_export"))
    assert other.identities() == [0, 1, 2]


def test_many_segments_are_united(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_SEGMENTS", 3)
    growing = Growing(tmp_path)
    for agent in range(4):
        growing.grow(agent)
        growing.write()
    assert len(growing.segments()) == 1
    assert_same(growing.restored(), growing.table)
