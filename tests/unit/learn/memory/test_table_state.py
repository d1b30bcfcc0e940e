"""Saved states and snapshots of a table, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from cadenza.core.errors import CheckpointError, ConfigurationError
from cadenza.core.payloads import serialise
from cadenza.learn.memory.files import StoredRows
from cadenza.learn.memory.strategy import CoverageBasedSampleStrategy
from tests.campaigns import size
from tests.unit.learn.memory.test_array_table import episode, filled, make


def test_episodes_replaced_by_others_leave_no_trace_in_the_state():
    first, second = make(maxlen=9, seed=3), make(maxlen=9, seed=3)
    for identity, length in enumerate([4, 2, 3, 1, 5, 2, 2] * size(4, 20)):  # rows are used again
        first.add_sequence(identity, episode(100 * identity, length))
        second.add_sequence(identity, episode(100 * identity, length))
        restored = make(maxlen=9, seed=3)
        restored.load_state_dict(second.state_dict())
        second = restored
        assert serialise(first.state_dict()) == serialise(second.state_dict())


def test_loading_without_hyperparameters_changes_nothing():
    table = filled([4])
    table.load_state_dict(filled([5, 6]).state_dict(), load_hparams=False)
    assert table.size() == 4


def changed(state, **changes):
    return {**state, "contents": {**state["contents"], **changes}}


def test_states_that_do_not_fit_are_refused_and_change_nothing():
    table, state = filled([4], seed=1), filled([5, 6], seed=2).state_dict()
    columns = state["contents"]["columns"]
    without = {name: column for name, column in columns.items() if name != "tag"}
    cases = [
        ({}, "expected a complete state of a memory table, got one with KeyError.'maxlen'"),
        ([], "expected a complete state of a memory table, got one with TypeError"),
        ({**state, "maxlen": 10}, "memory: expected at most maxlen = 10 transitions, got 11"),
        ({**state, "contents": {}}, "KeyError.'places'"),
        (changed(state, columns=without), r"rows of the columns \['actions', .*'tag'\], got"),
        (
            changed(state, columns={**columns, "obs": columns["obs"].float()}),
            r"expected column 'obs' of shape \(3,\) and type float64, got .* float32",
        ),
        (
            changed(state, extra=torch.zeros((3, 1), dtype=torch.int32)),
            r"expected extra rows of shape \(2, 1\), got \(3, 1\)",
        ),
        ({**state, "sampler": {"generator": {}}}, "generator state"),
    ]
    before = table.state_dict()
    for spoilt, message in cases:
        with pytest.raises(CheckpointError, match=message):
            table.load_state_dict(spoilt)
    assert table.identities() == [0]
    assert table.state_dict()["sampler"] == before["sampler"]
    other = make(seed=1)
    other.load_state_dict(before)
    assert torch.equal(table.sample(9, 2)["obs"], other.sample(9, 2)["obs"])


def test_snapshot_holds_copies_in_the_order_of_arrival():
    table = filled([3, 2])
    snapshot = table.snapshot()
    table.clear()
    assert snapshot.identities == (0, 1)
    assert snapshot.stored["actions"].counts.tolist() == [3, 2]
    assert snapshot.stored["obs"].counts.tolist() == [4, 3]
    assert snapshot.stored["obs"].rows[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert snapshot.stored["tag"].rows.tolist() == [0, 1]
    table.load_snapshot(snapshot)
    assert table.identities() == [0, 1]
    assert set(table.sample(50, 2)["tag"].tolist()) == {0, 1}


def test_smaller_table_takes_the_newest_episodes_of_a_snapshot():
    table = make(maxlen=7)
    table.load_snapshot(filled([3, 2, 4]).snapshot())
    assert (table.identities(), table.size(), table.full()) == ([1, 2], 6, True)
    assert table.episode(2)["obs"][:, 0].tolist() == [7, 8, 9, 10, 11]
    assert table.episode(2)["tag"].tolist() == [2]


def test_snapshots_that_do_not_fit_are_refused_and_change_nothing():
    snapshot = filled([3, 2]).snapshot()
    stored = dict(snapshot.stored)
    ten = StoredRows(rows=np.zeros((10, 3)), counts=np.array([5, 5]))
    one = StoredRows(rows=np.zeros((4, 3)), counts=np.array([4]))
    tags = StoredRows(rows=np.zeros(1, np.int64), counts=np.array([1, 0]))
    wide = StoredRows(rows=np.zeros((7, 4)), counts=np.array([4, 3]))
    without = {name: part for name, part in stored.items() if name != "obs"}
    cases = [
        (replace(snapshot, length_key="nothing"), "expected the length column 'actions'"),
        (replace(snapshot, stored=without), r"expected rows of the columns .*'obs'.*, got"),
        (
            replace(snapshot, stored={**stored, "obs": wide}),
            r"column 'obs' of shape \(3,\) and type float64, got \(4,\) and float64",
        ),
        (
            replace(snapshot, stored={**stored, "obs": ten}),
            r"'obs'\]: expected 4 rows, as 'actions' has 3, got 5",
        ),
        (
            replace(snapshot, stored={**stored, "obs": one}),
            r"rows of as many episodes, got 2 and .*'obs': 1",
        ),
        (
            replace(snapshot, stored={**stored, "tag": tags}),
            "'tag'\\]: expected a value, got none",
        ),
        (replace(snapshot, identities=(4, 4)), "expected 2 different ids .*, got 1"),
    ]
    table = filled([4])
    for spoilt, message in cases:
        with pytest.raises(ConfigurationError, match=message):
            table.load_snapshot(spoilt)
    assert (table.identities(), table.size()) == ([0], 4)
    table.sample(9, 2)


def test_strategies_of_another_type_start_afresh_from_the_episodes():
    snapshot = filled([6, 7], sampler=CoverageBasedSampleStrategy(seed=1)).snapshot()
    table = filled([5], seed=4)
    state = table.sampler.state()
    table.load_snapshot(snapshot)
    assert table.sampler.state() == state
    assert set(table.sample(60, 1)["tag"].tolist()) == {0, 1}
