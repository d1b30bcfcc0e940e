"""Tables behave the same wherever their rows lie."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.learn.memory import places
from cadenza.learn.memory.column import (
    Column,
    NextElementMapper,
    NextNElementWrapper,
    SyntheticDones,
    TagColumn,
    VirtualColumn,
)
from cadenza.learn.memory.prioritized_strategy import PrioritizedSampleStrategy
from cadenza.learn.memory.strategy import (
    CoverageBasedSampleStrategy,
    FifoEjectionStrategy,
    UniformEjectionStrategy,
    UniformSampleStrategy,
)
from cadenza.learn.memory.table import ArrayMemoryTable
from tests.campaigns import size

lengths = st.lists(st.integers(2, 12), min_size=1, max_size=30)
STORAGES = ["pinned", "device"]


class CopiesAtOnce:
    """Copies on the processor, for machines without CUDA; their device is the host."""

    def __init__(self, device):
        assert device.type == "cuda"

    def page_locked(self, size):
        return torch.empty(size, dtype=torch.uint8)

    def start(self, staged):
        return staged.clone()

    def mark(self):
        return lambda: None


@pytest.fixture(autouse=True, scope="module")
def cuda_that_is_the_processor():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(places, "CudaCopies", CopiesAtOnce)
        yield


def device_for(storage):
    return "cuda" if storage == "pinned" else "cpu"


def make(storage, sampler=UniformSampleStrategy, ejector=FifoEjectionStrategy, maxlen=40):
    as_mask = SyntheticDones.as_mask
    return ArrayMemoryTable(
        columns=[
            Column("actions", (), np.int64),
            VirtualColumn("dones", (1,), bool, "actions", SyntheticDones),
            VirtualColumn("ends", (), np.uint16, "actions", SyntheticDones),
            VirtualColumn("masks", (1,), np.float32, "actions", as_mask),
            VirtualColumn("whole_masks", (), np.int64, "actions", as_mask),
            Column("obs", (2, 3), np.float64),
            VirtualColumn("next_obs", (2, 3), np.float64, "obs", NextElementMapper),
            VirtualColumn("last_obs", (2, 3), np.float64, "obs", NextElementMapper.with_only_last),
            VirtualColumn("later", (2, 3), np.float64, "obs", NextNElementWrapper.with_n(2)),
            Column("rewards", (), np.float32),
            VirtualColumn("last_reward", (), np.float32, "rewards", SyntheticDones),
            Column("image", (5,), np.uint8),
            Column("count", (), np.uint32),
            Column("long", (2,), np.uint64),
            Column("half", (3,), np.float16),
            Column("nothing", (0,), np.float32),
            Column("complex", (), np.complex64),
            VirtualColumn("as_float", (2, 3), np.float32, "obs", NextElementMapper),
            TagColumn("tag", (2,), np.int16),
        ],
        maxlen=maxlen,
        sampler=sampler(seed=1),
        ejector=ejector(seed=2),
        device=device_for(storage),
        storage=storage,
    )


def episode(identity, steps):
    """Random numbers over the whole range of each type; every third has rewards one longer."""
    rng = np.random.default_rng(identity)
    return {
        "actions": rng.integers(-(2**63), 2**63, steps),
        "obs": rng.standard_normal((steps + 2, 2, 3))[: steps + 1 + identity % 2],
        "rewards": rng.standard_normal(steps + (identity % 3 == 0)).astype(np.float32),
        "image": rng.integers(0, 2**8, (steps, 5), dtype=np.uint8),
        "count": rng.integers(0, 2**32, steps, dtype=np.uint32),
        "long": rng.integers(0, 2**64, (steps, 2), dtype=np.uint64),
        "half": rng.standard_normal((steps, 3)).astype(np.float16),
        "nothing": np.zeros((steps, 0), np.float32),
        "complex": rng.standard_normal(steps) + 1j * rng.standard_normal(steps),
        "tag": rng.integers(-(2**15), 2**15, (1, 2), dtype=np.int16),
    }


def check_equal(first, second):
    """Require equal keys in equal order, types, shapes and bits."""
    assert list(first) == list(second)
    for name, values in first.items():
        if isinstance(values, dict):
            check_equal(values, second[name])
            continue
        other = second[name]
        assert (values.dtype, values.shape) == (other.dtype, other.shape), name
        assert other.is_contiguous()
        assert values.numpy().tobytes() == other.numpy().tobytes(), name


def check_same_state(first, second):
    """Require equal checkpoints, tensor by tensor."""
    first, second = dict(first), dict(second)
    contents = [dict(state.pop("contents")) for state in (first, second)]
    columns = [content.pop("columns") for content in contents]
    check_equal(*columns)
    extra = [content.pop("extra") for content in contents]
    assert torch.equal(*extra)
    assert contents[0] == contents[1]
    assert repr(first) == repr(second)


@settings(max_examples=size(30, 100))
@given(
    sampler=st.sampled_from(
        [UniformSampleStrategy, CoverageBasedSampleStrategy, PrioritizedSampleStrategy]
    ),
    ejector=st.sampled_from([FifoEjectionStrategy, UniformEjectionStrategy]),
    length=st.sampled_from([1, 2, 5]),
    steps=lengths,
    maxlen=st.integers(20, 60),
)
def test_batches_and_checkpoints_are_the_same_in_every_storage(
    sampler, ejector, length, steps, maxlen
):
    host, *others = (make(s, sampler, ejector, maxlen) for s in ("host", *STORAGES))
    for identity, count in enumerate([10, *steps]):
        for table in (host, *others):
            table.add_sequence(identity, episode(identity, count))
        if max(host.episode(i)["actions"].size for i in host.identities()) <= length:
            continue
        expected = host.sample(7, length)
        for table in others:
            check_equal(expected, table.sample(7, length))
    for table in others:
        check_same_state(host.state_dict(), table.state_dict())


@pytest.mark.parametrize("storage", STORAGES)
@settings(max_examples=10, deadline=None)
@given(steps=lengths)
def test_files_and_checkpoints_go_from_any_storage_to_any_other(tmp_path_factory, storage, steps):
    folder = tmp_path_factory.mktemp("files")
    host, other = make("host"), make(storage)
    for identity, count in enumerate([10, *steps]):
        for table in (host, other):
            table.add_sequence(identity, episode(identity, count))
    host.store(folder / "host")
    other.store(folder / "other")
    assert (folder / "host.zip").read_bytes() == (folder / "other.zip").read_bytes()
    for source, target in (("host", make(storage)), ("other", make("host"))):
        target.restore(folder / source)
        for identity in host.identities():
            kept, wanted = target.episode(identity), host.episode(identity)
            assert {n: v.tobytes() for n, v in kept.items()} == {
                n: v.tobytes() for n, v in wanted.items()
            }
    loaded = make("host")
    loaded.load_state_dict(other.state_dict())
    other.load_state_dict(host.state_dict())
    expected = host.sample(9, 2)
    check_equal(expected, loaded.sample(9, 2))
    check_equal(expected, other.sample(9, 2))


@pytest.mark.parametrize("storage", ["host", *STORAGES])
def test_two_batches_and_their_columns_never_share_memory(storage):
    table = make(storage)
    table.add_sequence(0, episode(0, 12))
    for length in (1, 2, 5):
        tensors = [
            tensor
            for count in (3, 8, 5)
            for tensor in table.sample(count, length).values()
            if tensor.numel()
        ]
        places = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        assert len(places) == len(tensors)
