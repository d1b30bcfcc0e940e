"""Files and checkpoints of tables with columns of every kind."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.learn.memory.column import (
    Column,
    NextElementMapper,
    NextNElementWrapper,
    SyntheticDones,
    TagColumn,
    VirtualColumn,
)
from cadenza.learn.memory.strategy import (
    CoverageBasedSampleStrategy,
    FifoEjectionStrategy,
    PrioritizedSampleStrategy,
    UniformEjectionStrategy,
    UniformSampleStrategy,
)
from cadenza.learn.memory.table import ArrayMemoryTable
from tests.campaigns import size

lengths = st.lists(st.integers(2, 12), min_size=1, max_size=30)


def make(sampler=UniformSampleStrategy, ejector=FifoEjectionStrategy, maxlen=40):
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


@settings(max_examples=size(30, 100))
@given(
    sampler=st.sampled_from(
        [UniformSampleStrategy, CoverageBasedSampleStrategy, PrioritizedSampleStrategy]
    ),
    ejector=st.sampled_from([FifoEjectionStrategy, UniformEjectionStrategy]),
    length=st.sampled_from([1, 2]),
    steps=lengths,
    maxlen=st.integers(20, 60),
)
def test_files_and_checkpoints_bring_every_column_back(
    tmp_path_factory, sampler, ejector, length, steps, maxlen
):
    folder = tmp_path_factory.mktemp("files")
    table = make(sampler, ejector, maxlen)
    for identity, count in enumerate([10, *steps, 10]):
        table.add_sequence(identity, episode(identity, count))
    table.sample(7, length)
    table.store(folder / "table")
    loaded, restored = make(sampler, ejector), make(sampler, ejector, maxlen)
    loaded.load_state_dict(table.state_dict())
    restored.restore(folder / "table")
    assert restored.identities() == table.identities()
    for identity in table.identities():
        kept, wanted = restored.episode(identity), table.episode(identity)
        assert {n: v.tobytes() for n, v in kept.items()} == {
            n: v.tobytes() for n, v in wanted.items()
        }
    check_equal(table.sample(9, length), loaded.sample(9, length))


def test_two_batches_and_their_columns_never_share_memory():
    table = make()
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
