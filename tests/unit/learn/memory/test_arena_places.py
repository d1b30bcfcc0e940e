"""Where a table's rows lie: on the host, behind page-locked memory, or on the device."""

import numpy as np
import pytest
import torch

from cadenza.core.errors import ConfigurationError, DeviceUnavailableError
from cadenza.learn.memory.builder import DictMemoryTable
from cadenza.learn.memory.column import Column
from cadenza.learn.memory.places import PinnedTransfer
from cadenza.learn.memory.table import ArrayMemoryTable
from tests.unit.learn.memory.memory_episodes import SPACES, TABLES

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class LateCopies:
    """Copies that happen only when somebody waits for them, as a busy GPU's may."""

    def __init__(self, device=None):
        self.device = device
        self.sizes = []
        self.waits = 0
        self._queue = []

    def page_locked(self, size):
        self.sizes.append(size)
        return torch.zeros(size, dtype=torch.uint8)

    def start(self, staged):
        made = torch.zeros_like(staged)
        self._queue.append((made, staged))
        return made

    def mark(self):
        marked = self._queue[-1:]

        def wait():
            self.waits += 1
            while any(entry is marked[0] for entry in self._queue):
                self.finish_oldest()

        return wait

    def finish_oldest(self):
        made, staged = self._queue.pop(0)
        made.copy_(staged)

    def finish(self):
        while self._queue:
            self.finish_oldest()


def steps(count):
    return {"actions": np.arange(float(count)), "obs": np.arange(3.0 * count).reshape(count, 3)}


def arrays(number, rows=4):
    return {
        "obs": np.full((rows, 3), number, np.float32),
        "flag": np.full(rows, number % 2, bool),
        "nothing": np.zeros((rows, 0), np.float64),
        "wide": np.full((rows, 2), number, np.complex128),
    }


def check(tensors, expected):
    for name, array in expected.items():
        assert tensors[name].numpy().dtype == array.dtype
        np.testing.assert_array_equal(tensors[name].numpy(), array)


def test_page_locked_buffer_is_not_written_before_its_copies_have_finished():
    copies = LateCopies()
    transfer = PinnedTransfer(copies)
    batches = [transfer(arrays(number, rows=4 + number % 3)) for number in range(8)]
    copies.finish()
    # Every batch has its own numbers only if each reuse waited for the copies before it.
    for number, batch in enumerate(batches):
        check(batch, arrays(number, rows=4 + number % 3))


def test_two_buffers_take_turns_and_only_the_older_copy_is_waited_for():
    copies = LateCopies()
    transfer = PinnedTransfer(copies)
    first, second = transfer(arrays(1)), transfer(arrays(2))
    assert copies.waits == 0
    assert not first["obs"].any()  # its copy still waits
    transfer(arrays(3))
    assert copies.waits == 1
    check(first, arrays(1))
    assert not second["obs"].any()
    # 48, 4, 0 and 128 bytes, each in whole lines of 64 bytes; buffers are made once.
    assert copies.sizes == [64 + 64 + 0 + 128] * 2


@pytest.mark.parametrize(
    ("storage", "device", "has_cuda", "kind", "message"),
    [
        ("pinned", "cpu", False, DeviceUnavailableError, "'cpu' with CUDA not available; pass sto"),
        ("pinned", "cuda", False, DeviceUnavailableError, "'pinned'.* 'cuda' with CUDA not avail"),
        ("pinned", "cpu", True, DeviceUnavailableError, "got device 'cpu' with CUDA available"),
        ("device", "cuda", False, DeviceUnavailableError, "'cuda': expected it on this machine"),
        ("gantry", "cpu", True, ConfigurationError, r"of \['device', 'host', 'pinned'\], got 'gan"),
    ],
)
def test_storage_that_cannot_be_had_is_refused(
    monkeypatch, storage, device, has_cuda, kind, message
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_cuda)
    actions = Column("actions", (), np.float32)
    with pytest.raises(kind, match=message):
        ArrayMemoryTable(columns=[actions], maxlen=9, device=device, storage=storage)


@pytest.mark.parametrize("storage", ["host", "device"])
@pytest.mark.parametrize("kind", [*TABLES, "dict"])
def test_storage_decides_where_the_rows_lie(kind, storage):
    """The device "meta" has shapes but no values: what lies there cannot be read back."""
    columns = [Column("actions", (), np.float32), Column("obs", (3,), np.float32)]
    options = {"maxlen": 50, "device": "meta", "storage": storage, "use_terminal_column": False}
    if kind == "dict":
        columns.append(Column("next_obs", (3,), np.float32))
        memory = DictMemoryTable(columns=columns, obs_keys=["obs"], **options)
        added = {**steps(6), "next_obs": np.zeros((6, 3))}
    else:
        memory = TABLES[kind](spaces=SPACES, **options)
        added = {"actions": np.ones((6, 2)), "obs": np.ones((7, 3)), "rewards": np.ones(6)}
    assert memory.storage == storage
    memory.add_sequence(0, added)
    assert memory.sample(4, 2)["actions"].device.type == "meta"
    if storage == "host":
        np.testing.assert_array_equal(memory.episode(0)["actions"], added["actions"])
    else:
        with pytest.raises(NotImplementedError, match="meta"):
            memory.episode(0)


@CUDA
@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize("storage", ["pinned", "device"])
@pytest.mark.parametrize("kind", TABLES)
def test_batches_on_cuda_equal_those_of_the_host(kind, storage, length):
    rng = np.random.default_rng(0)
    tables = [
        TABLES[kind](
            spaces=SPACES, use_terminal_column=True, maxlen=500, device="cuda", storage=place
        )
        for place in ("host", storage)
    ]
    for identity in range(60):
        count = int(rng.integers(5, 30))
        added = {
            "obs": rng.standard_normal((count + 1, 3)).astype(np.float32),
            "actions": rng.standard_normal((count, 2)).astype(np.float32),
            "rewards": rng.standard_normal((count, 1)).astype(np.float32),
            "terminal": [float(identity % 2)],
        }
        for memory in tables:
            memory.add_sequence(identity, added)
    pairs = [[memory.sample(64, length) for memory in tables] for _ in range(50)]
    for expected, got in pairs:  # looked at only now: no buffer was overwritten meanwhile
        for name in ("actions", "rewards", "dones", "masks", "terminal"):
            assert got[name].device.type == "cuda"
            torch.testing.assert_close(got[name], expected[name], rtol=0, atol=0)
        for name in ("observation", "next_observation"):
            torch.testing.assert_close(got[name]["obs"], expected[name]["obs"], rtol=0, atol=0)
