"""Invariants of tables and trees under random histories."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.learn.memory.builder import DictObsMemoryTable, DictObsNStepMemoryTable
from cadenza.learn.memory.column import Column, NextElementMapper, TagColumn, VirtualColumn
from cadenza.learn.memory.segment_tree import (
    ArrayMinTree,
    ArraySumTree,
    MinSegmentTree,
    SumSegmentTree,
)
from cadenza.learn.memory.strategy import (
    CoverageBasedEjectionStrategy,
    CoverageBasedSampleStrategy,
    FifoEjectionStrategy,
    FifoSampleStrategy,
    PrioritizedSampleStrategy,
    UniformEjectionStrategy,
    UniformSampleStrategy,
)
from cadenza.learn.memory.table import ArrayMemoryTable
from tests.campaigns import size
from tests.unit.learn.memory.memory_episodes import SPACES

SAMPLERS = [
    UniformSampleStrategy,
    FifoSampleStrategy,
    CoverageBasedSampleStrategy,
    PrioritizedSampleStrategy,
]
EJECTORS = [FifoEjectionStrategy, UniformEjectionStrategy, CoverageBasedEjectionStrategy]
lengths = st.lists(st.integers(1, 12), min_size=1, max_size=40)


def make(maxlen, sampler=UniformSampleStrategy, ejector=FifoEjectionStrategy):
    return ArrayMemoryTable(
        columns=[
            Column("actions", (), np.int64),
            Column("obs", (2,), np.int64),
            VirtualColumn("next_obs", (2,), np.int64, "obs", NextElementMapper),
            Column("rewards", (), np.float32),
            TagColumn("tag", (), np.int64),
        ],
        maxlen=maxlen,
        sampler=sampler(seed=1),
        ejector=ejector(seed=2),
        device="cpu",
    )


def add(table, identity, steps):
    """The observation is 100 times the id plus the step; every third has rewards one longer."""
    steps_and_one = 100 * identity + np.arange(steps + 1)
    table.add_sequence(
        identity,
        {
            "actions": steps_and_one[:-1],
            "obs": np.stack([steps_and_one] * 2, axis=1),
            "rewards": steps_and_one[: steps + (identity % 3 == 0)],
            "tag": [identity],
        },
    )


def check_batch(batch, count, length):
    obs = batch["obs"].reshape(count, length, 2)
    assert (obs[..., 0] == obs[:, :1, 0] + torch.arange(length)).all()
    assert (obs[..., 0] == obs[..., 1]).all()
    assert (obs[:, 0, 0] // 100 == obs[:, -1, 0] // 100).all()
    assert (batch["tag"] == obs[:, 0, 0] // 100).all()
    assert (batch["actions"] == obs[..., 0].reshape(-1)).all()
    assert (batch["next_obs"] == batch["obs"] + 1).all()
    assert (batch["rewards"] == batch["actions"]).all()


@settings(max_examples=size(100, 240))
@given(
    sampler=st.sampled_from(SAMPLERS),
    ejector=st.sampled_from(EJECTORS),
    steps=lengths,
    maxlen=st.integers(12, 60),
    length=st.integers(1, 4),
)
def test_size_never_exceeds_maxlen_and_windows_stay_exact(sampler, ejector, steps, maxlen, length):
    table = make(maxlen, sampler, ejector)
    added = {}
    for identity, count in enumerate(steps):
        add(table, identity, count)
        added[identity] = count
        kept = table.identities()
        assert identity in kept
        assert table.size() == sum(added[i] for i in kept) <= maxlen
        assert table.full() == (len(kept) < len(added))
        if any(added[i] >= length for i in kept):
            check_batch(table.sample(6, length), 6, length)
    for identity in table.identities():
        assert table.episode(identity)["rewards"].shape == (added[identity] + (identity % 3 == 0),)


@given(steps=lengths, maxlen=st.integers(12, 60))
def test_fifo_keeps_the_newest_episodes_that_fit(steps, maxlen):
    table = make(maxlen)
    kept = []
    for identity, count in enumerate(steps):
        add(table, identity, count)
        while sum(steps[i] for i in kept) + count > maxlen:
            kept.pop(0)
        kept.append(identity)
        assert table.identities() == kept


@settings(max_examples=size(80, 180))
@given(
    sampler=st.sampled_from(SAMPLERS),
    ejector=st.sampled_from(EJECTORS),
    before=lengths,
    after=lengths,
    length=st.integers(1, 3),
)
def test_loaded_table_goes_on_exactly_like_the_saved_one(sampler, ejector, before, after, length):
    first, second = make(40, sampler, ejector), make(40, sampler, ejector)
    add(second, 999, 7)  # leaves no trace
    for identity, count in enumerate([3, *before]):
        add(first, identity, count)
        first.sample(3, 1)
    second.load_state_dict(first.state_dict())
    for index, count in enumerate([3, *after]):
        for table in (first, second):
            add(table, 100 + index, count)
        assert first.identities() == second.identities()
        one, two = first.sample(5, length), second.sample(5, length)
        assert all(torch.equal(one[key], two[key]) for key in one)
        if sampler is PrioritizedSampleStrategy:
            for table, batch in ((first, one), (second, two)):
                table.update_priorities(batch["sample_ids"], (batch["tag"] % 5).double())


@pytest.mark.parametrize("kind", [DictObsMemoryTable, DictObsNStepMemoryTable])
@given(steps=lengths, length=st.sampled_from([1, 2, 5]))
def test_windows_of_both_tables_are_exact_on_a_counting_environment(kind, steps, length):
    table = kind(spaces=SPACES, use_terminal_column=False, maxlen=80, device="cpu")
    first, ends = 0, {}
    for identity, count in enumerate([6, *steps]):
        index = np.arange(first, first + count + 1, dtype=np.float32)
        table.add_sequence(
            identity,
            {
                "obs": np.stack([index] * 3, axis=1),
                "actions": np.stack([index[:-1]] * 2, axis=1),
                "rewards": index[:-1],
            },
        )
        ends[identity] = first + count - 1
        first += count + 1
    if max(count for i, count in enumerate([6, *steps]) if i in table.identities()) < length:
        return
    batch = table.sample(20, length)
    obs = batch["observation"]["obs"][:, 0].reshape(20, length)
    assert (obs == obs[:, :1] + torch.arange(length)).all()
    last = torch.isin(obs, torch.tensor([float(end) for end in ends.values()]))
    assert not last[:, :-1].any()  # a window never goes on after an episode's last step
    assert (batch["masks"].reshape(20, length) == 1.0 - last.float()).all()
    assert (batch["dones"].reshape(20, length) == last).all()
    assert (batch["actions"][:, 0] == obs.reshape(-1)).all()
    assert (batch["rewards"][:, 0] == obs.reshape(-1)).all()
    following = batch["next_observation"]["obs"][:, 0]
    expected = obs[:, -1] if kind is DictObsNStepMemoryTable else obs.reshape(-1)
    assert (following == expected + 1).all()


items = st.lists(st.integers(0, 50), min_size=1, max_size=16)


@given(values=items, start=st.integers(0, 16), end=st.integers(0, 16))
def test_segment_trees_reduce_like_numpy(values, start, end):
    sums, minima = SumSegmentTree(16), MinSegmentTree(16)
    for index, value in enumerate(values):
        sums[index], minima[index] = value, value
    padded = np.concatenate([values, np.zeros(16 - len(values))])
    assert sums.sum(start, end) == padded[start:end].sum()
    inside = values[start:end]
    assert minima.min(start, end) == (min(inside) if inside else math.inf)


@given(
    values=items,
    changes=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 50)), max_size=12),
    block=st.tuples(st.integers(0, 40), items),
)
def test_array_trees_agree_with_numpy_after_any_changes(values, changes, block):
    sums, minima = ArraySumTree(np.array(values)), ArrayMinTree(np.array(values, float))
    expected = np.zeros(64, np.int64)
    known = np.full(64, math.inf)
    expected[: len(values)] = known[: len(values)] = values
    for index, value in changes[::2]:
        sums.set_range(index, np.array([value]))
        minima.set_range(index, np.array([value], float))
        expected[index] = known[index] = value
    indices = np.array([index for index, _ in changes[1::2]], np.int64)
    many = np.array([value for _, value in changes[1::2]], np.int64)
    sums.set_many(indices, many)
    minima.set_many(indices, many)
    expected[indices] = known[indices] = many
    start, new = block
    sums.set_range(start, np.array(new))
    minima.set_range(start, np.array(new, float))
    expected[start : start + len(new)] = known[start : start + len(new)] = new
    assert sums.total == expected.sum()
    assert minima.total == known.min()
    if sums.total:
        found, rest = sums.find(np.arange(sums.total))
        np.testing.assert_array_equal(found, np.repeat(np.arange(64), expected))
        before = np.cumsum(expected) - expected
        np.testing.assert_array_equal(rest, np.arange(sums.total) - before[found])
