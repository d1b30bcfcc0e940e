"""Tables and their files: round trips, foreign files, failures half-way, kills while storing."""

import io
import multiprocessing
import os
import signal
import time

import numpy as np
import pytest
import torch

from cadenza.core.errors import ConfigurationError, InputError, IntegrityError, PreconditionError
from cadenza.core.types import EpisodeState
from cadenza.learn.memory.column import Column
from cadenza.learn.memory.proxy import MemoryTableProxy
from cadenza.learn.memory.strategy import FifoEjectionStrategy, UniformEjectionStrategy
from cadenza.learn.memory.table import ArrayMemoryTable
from tests.unit.learn.memory.memory_episodes import play, table
from tests.unit.learn.memory.memory_file_parts import npy, reseal, rewrite, write_v1


def filled(agents=range(5), steps=10, **options):
    memory = table(**options)
    proxy = MemoryTableProxy(memory, use_terminal=True)
    for agent in agents:
        ending = EpisodeState.TERMINAL if agent % 2 else EpisodeState.INTERRUPTED
        play(proxy, agent, steps, ending)
    return memory


def episodes(memory):
    return {
        identity: {name: rows.tolist() for name, rows in memory.episode(identity).items()}
        for identity in memory.identities()
    }


@pytest.mark.parametrize("kind", ["one_step", "n_step"])
def test_round_trip_keeps_every_identity_and_column(tmp_path, kind):
    memory = filled(kind=kind)
    assert memory.store(str(tmp_path / "memory")) is True
    other = table(kind)
    assert other.restore(str(tmp_path / "memory")) is True
    assert other.identities() == [0, 1, 2, 3, 4]
    assert episodes(other) == episodes(memory)
    assert other.size() == 50


def test_restored_table_samples_what_the_stored_one_would(tmp_path):
    memory = filled(seed=6)
    memory.sample(7, 2)
    memory.store(str(tmp_path / "memory"))
    other = table(seed=99)
    other.restore(str(tmp_path / "memory"))
    for _ in range(3):
        mine, theirs = memory.sample(9, 3), other.sample(9, 3)
        assert torch.equal(mine["rewards"], theirs["rewards"])
        assert torch.equal(mine["masks"], theirs["masks"])


def test_fresh_ids_can_be_added_and_old_ones_ejected_after_a_restore(tmp_path):
    filled().store(str(tmp_path / "memory"))
    other = table(maxlen=50)
    other.restore(str(tmp_path / "memory"))
    play(MemoryTableProxy(other, use_terminal=True, whole_episodes=True), 100, 15)
    assert other.identities() == [2, 3, 4, 100]
    assert other.full()


def test_file_of_a_stateless_ejector_restores_into_a_fifo_table(tmp_path):
    """The ejector's order is rebuilt from the data, so that later ejection works."""
    columns = [Column("actions", (), np.float32)]
    source = ArrayMemoryTable(columns=columns, maxlen=20, ejector=UniformEjectionStrategy())
    for identity in range(3):
        source.add_sequence(identity, {"actions": [1.0] * 5})
    source.store(str(tmp_path / "memory"))
    target = ArrayMemoryTable(columns=columns, maxlen=20, ejector=FifoEjectionStrategy())
    target.restore(str(tmp_path / "memory"))
    target.add_sequence(9, {"actions": [1.0] * 12})
    assert target.identities() == [2, 9]  # 15 + 12 - 20 = 7: the two oldest have to go
    assert target.size() == 17


def test_kept_ids_meet_new_agents_and_remapped_ones_do_not(tmp_path):
    filled(range(2)).store(str(tmp_path / "memory"))
    kept, fresh = table(), table()
    kept.restore(str(tmp_path / "memory"))
    before = episodes(kept)
    with pytest.raises(PreconditionError, match="expected an id that is not stored"):
        play(MemoryTableProxy(kept, use_terminal=True), 0, 3)
    assert episodes(kept) == before
    fresh.restore(str(tmp_path / "memory"), id_policy="remap")
    play(MemoryTableProxy(fresh, use_terminal=True), 0, 3)
    assert fresh.identities() == [-1, -2, 0]
    assert episodes(fresh)[-2] == before[1]


def test_compressed_file_is_smaller_and_goes_round(tmp_path):
    memory = filled(steps=100)
    memory.store(str(tmp_path / "plain"))
    memory.store(str(tmp_path / "small"), compress=True)
    names = ("plain.safetensors", "small.zip")
    sizes = [(tmp_path / name).stat().st_size for name in names]
    assert sizes[1] < sizes[0] / 2
    other = table()
    with pytest.raises(IntegrityError, match="at most 1000 bytes unpacked"):
        other.restore(str(tmp_path / "small"), max_unpacked_bytes=1000)
    other.restore(str(tmp_path / "small"))
    assert episodes(other) == episodes(memory)


# -- files as the original writes them, made here with zipfile and numpy alone


# -- failures


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_file_with_numbers_that_are_not_finite_is_refused_as_episodes_are(tmp_path, value):
    source = filled(range(2), check_finite=False)
    rows = source.episode(1)
    rows["rewards"][3] = value
    source.add_sequence(9, rows)
    source.store(tmp_path / "memory")
    memory = filled(range(20, 22))
    before = episodes(memory)
    with pytest.raises(InputError, match="column 'rewards' of the loaded rows: expected finite"):
        memory.restore(tmp_path / "memory")
    assert episodes(memory) == before
    lenient = table(check_finite=False)
    lenient.restore(tmp_path / "memory")
    assert lenient.identities() == [0, 1, 9]


def spoil_rows(file):
    content = file.read_bytes()
    file.write_bytes(content[:2000] + b"\xff\xff\xff\xff" + content[2004:])


def nothing(manifest):
    pass


@pytest.mark.parametrize(
    "spoil",
    [
        spoil_rows,
        lambda file: file.write_bytes(file.read_bytes()[:-100]),
        lambda file: reseal(file, nothing, rows__rewards=np.zeros((49, 1), np.float32)),
        lambda file: reseal(file, nothing, rows__terminal=None, counts__terminal=None),
    ],
    ids=["checksum", "truncated file", "truncated column", "missing last column"],
)
def test_restore_that_fails_leaves_the_old_table_intact(tmp_path, spoil):
    filled().store(str(tmp_path / "memory"))
    spoil(tmp_path / "memory.safetensors")
    memory = filled(range(20, 23), seed=5)
    twin = filled(range(20, 23), seed=5)
    before = episodes(memory)
    with pytest.raises((IntegrityError, ConfigurationError), match=r"memory\.saf|of the columns"):
        memory.restore(str(tmp_path / "memory"))
    assert episodes(memory) == before
    assert torch.equal(memory.sample(20, 2)["rewards"], twin.sample(20, 2)["rewards"])
    play(MemoryTableProxy(memory, use_terminal=True), 30, 5)
    assert memory.identities() == [20, 21, 22, 30]


def test_episodes_that_do_not_fit_the_columns_leave_the_old_table_intact(tmp_path):
    """Version 1 cannot say that observations must be one longer; the table checks it."""
    write_v1(filled(), tmp_path / "memory.zip")

    def change(name, content):
        if name not in ("obs.ranges.npy", "obs.npy"):
            return content
        array = np.load(io.BytesIO(content))
        if name == "obs.npy":
            return npy(array[:50])  # five times 10 instead of 11 rows
        return npy(np.array([(i, 10 * i, 10) for i in range(5)]))

    rewrite(tmp_path / "memory.zip", change)
    memory = filled(range(20, 22))
    with pytest.raises(ValueError, match="obs"):
        memory.restore(str(tmp_path / "memory"))
    assert memory.identities() == [20, 21]


def _store_and_stop_half_way(path, ready):
    """Store other content, and stand still while the bytes become durable."""

    def stop(descriptor):
        ready.set()
        time.sleep(600)

    os.fsync = stop
    filled(range(3), steps=400).store(path)


def test_kill_while_storing_leaves_the_old_file(tmp_path):
    filled(range(2)).store(str(tmp_path / "memory"))
    before = (tmp_path / "memory.safetensors").read_bytes()
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    arguments = (str(tmp_path / "memory"), ready)
    writer = context.Process(target=_store_and_stop_half_way, args=arguments)
    writer.start()
    assert ready.wait(timeout=800)
    (half,) = tmp_path.glob(".*")
    assert half.stat().st_size > 1000
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()
    assert (tmp_path / "memory.safetensors").read_bytes() == before
    filled(range(3)).store(str(tmp_path / "memory"))  # the rest is no obstacle
    memory = table()
    memory.restore(str(tmp_path / "memory"))
    assert memory.identities() == [0, 1, 2]


def test_adding_goes_on_while_a_file_is_written(tmp_path, monkeypatch):
    """The file is written from a copy: an episode added meanwhile is not in it, and is not lost."""
    memory = filled(range(2))
    from cadenza.learn.memory import table as module

    write = module.write_snapshot

    def add_first(snapshot, path, **options):
        play(MemoryTableProxy(memory, use_terminal=True), 50, 4)
        write(snapshot, path, **options)

    monkeypatch.setattr(module, "write_snapshot", add_first)
    memory.store(str(tmp_path / "memory"))
    other = table()
    other.restore(str(tmp_path / "memory"))
    assert other.identities() == [0, 1]
    assert memory.identities() == [0, 1, 50]
