"""Adding to and sampling from a table; observation = global step index, so windows show exactly."""

import numpy as np
import pytest
import torch

from cadenza.core.errors import ConfigurationError, InputError, PreconditionError
from cadenza.learn.memory.column import (
    Column,
    NextElementMapper,
    NextNElementWrapper,
    NoWindowError,
    SyntheticDones,
    TagColumn,
    UnknownKeyError,
    VirtualColumn,
    VirtualStorage,
)
from cadenza.learn.memory.strategy import (
    FifoEjectionStrategy,
    SampleStrategy,
    UniformEjectionStrategy,
    UniformSampleStrategy,
)
from cadenza.learn.memory.table import ArrayMemoryTable


def columns():
    return [
        Column("actions", (2,), np.float32),
        VirtualColumn("dones", (1,), bool, "actions", SyntheticDones),
        VirtualColumn("masks", (1,), np.float32, "actions", SyntheticDones.as_mask),
        Column("rewards", (1,), np.float32),
        Column("obs", (3,), np.float64),
        VirtualColumn("next_obs", (3,), np.float64, "obs", NextElementMapper),
        VirtualColumn("last_obs", (3,), np.float64, "obs", NextElementMapper.with_only_last),
        TagColumn("tag", (), np.int64),
    ]


def make(maxlen=1000, device="cpu", **options):
    return ArrayMemoryTable(columns=columns(), maxlen=maxlen, device=device, **options)


def episode(first, steps, tag=0):
    count = np.arange(first, first + steps + 1, dtype=np.float64)
    return {
        "actions": np.stack([count[:-1], -count[:-1]], axis=1),
        "rewards": count[:-1] / 2,
        "obs": np.stack([count] * 3, axis=1),
        "tag": [tag, 99],
    }


def filled(lengths, **options):
    """Episode i begins at the global step of its first row; one step between episodes is left."""
    table = make(**options)
    first = 0
    for identity, steps in enumerate(lengths):
        table.add_sequence(identity, episode(first, steps, tag=identity))
        first += steps + 1
    return table


@pytest.mark.parametrize("ejector", [FifoEjectionStrategy, UniformEjectionStrategy])
def test_clear_lets_the_same_ids_come_again(ejector):
    table = filled([4, 4], maxlen=8, ejector=ejector())
    table.add_sequence(2, episode(0, 4))
    table.clear()
    assert (table.size(), table.full(), table.identities()) == (0, False, [])
    with pytest.raises(NoWindowError):
        table.sample(1, 1)
    table.add_sequence(0, episode(500, 4))
    assert set(table.sample(50, 1)["obs"][:, 0].tolist()) == {500, 501, 502, 503}


def sequence(**changes):
    made = {**episode(0, 4), **changes}
    return {key: value for key, value in made.items() if value is not None}


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"speed": [1]}, UnknownKeyError, r"got the unknown \['speed'\]"),
        ({"rewards": None}, InputError, r"got none of \['rewards'\]"),
        ({"actions": []}, InputError, r"\['actions'\]: expected at least 1 row, got 0"),
        ({"rewards": np.zeros(3)}, InputError, r"\['rewards'\]: expected 4 to 5 rows, .* got 3"),
        ({"obs": np.zeros((4, 3))}, InputError, r"expected 5 rows, as 'actions' has 4, got 4"),
        ({"obs": np.zeros((5, 2))}, InputError, r"5 rows of shape \(3,\), got .* \(5, 2\)"),
        ({"rewards": [[0, 1]] * 4}, InputError, r"4 rows of shape \(1,\), got .* \(4, 2\)"),
        ({"rewards": [[0], [1, 2]] * 2}, InputError, "all of one shape"),
        ({"rewards": list("abcd")}, InputError, "numbers that fit float32, got <U1"),
        ({"rewards": 3.0}, InputError, "expected one row per step, got a float"),
        ({"tag": []}, InputError, r"\['tag'\]: expected a value, got none"),
        ({"tag": [0.5]}, InputError, "whole numbers within the range of int64"),
    ],
)
def test_bad_sequences_are_refused_and_change_nothing(changes, kind, message):
    table = filled([4, 4], maxlen=8)
    with pytest.raises(kind, match=message):
        table.add_sequence(9, sequence(**changes))
    assert (table.identities(), table.size(), table.full()) == ([0, 1], 8, False)
    table.sample(20, 2)


def test_episode_longer_than_the_table_and_a_second_one_with_an_id_are_refused():
    table = filled([4, 4], maxlen=8)
    with pytest.raises(InputError, match="at most maxlen = 8 transitions, got 9"):
        table.add_sequence(2, episode(0, 9))
    with pytest.raises(PreconditionError, match="episode 0: expected an id that is not stored"):
        table.add_sequence(0, episode(0, 4))
    assert (table.identities(), table.full()) == ([0, 1], False)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused_unless_allowed(value):
    table = make()
    for name, rows in (("rewards", [0.0, value, 0.0, 0.0]), ("obs", [[0.0, 0.0, value]] * 5)):
        bad = sequence(**{name: rows})
        with pytest.raises(InputError, match=rf"sequence\['{name}'\]: expected finite numbers"):
            table.add_sequence(0, bad)
    assert table.size() == 0
    table.add_sequence(0, sequence(rewards=[3e38] * 4))  # the sum of their squares overflows
    make(check_finite=False).add_sequence(0, bad)


def test_adaptors_run_in_order_on_tensors_and_see_count_and_length():
    seen = []

    def first(result, count, length):
        seen.append((count, length, type(result["obs"])))
        return {"obs": result["obs"] + 1}

    def second(result, count, length):
        return {**result, "doubled": result["obs"] * 2}

    table = filled([5], adaptors=[first, second])
    batch = table.sample(2, 3)
    assert seen == [(2, 3, torch.Tensor)]
    torch.testing.assert_close(batch["doubled"], batch["obs"] * 2)
    assert batch.keys() == {"obs", "doubled"}


# -- columns ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "key", "message"),
    [
        ([Column("a", (), float)] * 2, "a", r"expected different names, got \['a', 'a'\]"),
        ([Column("a", (), float)], "b", "length_key 'b': .* got no such column"),
        ([TagColumn("a", (), float)], "a", "length_key 'a': .* got a TagColumn"),
        (
            [VirtualColumn("n", (), float, "a", NextElementMapper), Column("a", (), float)],
            "a",
            r"column 'n': expected a target declared before it, got 'a'",
        ),
        (
            [Column("a", (), float), VirtualColumn("d", (2,), bool, "a", SyntheticDones)],
            "a",
            r"column 'd': expected the shape of one number",
        ),
        ([Column("a", (), object)], "a", "column 'a': expected a type of numbers"),
    ],
)
def test_contradicting_columns_are_refused(made, key, message):
    with pytest.raises(ValueError, match=message):
        ArrayMemoryTable(columns=made, maxlen=10, length_key=key)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_shifted_columns_limit_the_windows_to_where_they_can_see(n):
    """Eight steps, nine observations: windows end n rows before the observations do."""
    made = [
        Column("actions", (), np.int64),
        VirtualColumn("dones", (), bool, "actions", SyntheticDones),
        Column("obs", (), np.int64),
        VirtualColumn("later", (), np.int64, "obs", NextNElementWrapper.with_n(n)),
    ]
    table = ArrayMemoryTable(columns=made, maxlen=100)
    table.add_sequence(0, {"actions": np.arange(8), "obs": np.arange(9)})
    batch = table.sample(400, 2)
    assert set(batch["obs"].tolist()) == set(range(9 - n))
    torch.testing.assert_close(batch["later"], batch["obs"] + n)
    torch.testing.assert_close(batch["dones"], batch["obs"] == 7)
    if n > 1:  # with more observations the windows reach the end
        table.add_sequence(1, {"actions": np.arange(8), "obs": np.arange(8 + n)})
        batch = table.sample(800, 2)
        assert batch["obs"].max() == 7
        torch.testing.assert_close(batch["later"], batch["obs"] + n)
        torch.testing.assert_close(batch["dones"], batch["obs"] == 7)


class Doubled(VirtualStorage):
    """A mapper of the user's: twice the target."""

    def __getitem__(self, identity):
        return 2 * self._storage[identity]


def test_mappers_of_the_users_and_mappers_of_virtual_columns_work():
    made = [
        Column("actions", (), np.int64),
        Column("obs", (), np.int64),
        VirtualColumn("next", (), np.int64, "obs", NextElementMapper),
        VirtualColumn("double", (), np.int32, "obs", Doubled),
        VirtualColumn("next_double", (), np.int64, "double", NextElementMapper),
        VirtualColumn("double_next", (), np.int64, "next", Doubled),
        TagColumn("tag", (), np.int64),
        VirtualColumn("tags", (), np.int64, "tag", VirtualStorage),
        VirtualColumn("as_float", (), np.float32, "obs", NextElementMapper),
    ]
    made[5] = VirtualColumn("done_double", (), bool, "double", SyntheticDones)
    table = ArrayMemoryTable(columns=made, maxlen=50)
    table.add_sequence(3, {"actions": np.arange(6), "obs": np.arange(7), "tag": [8]})
    batch = table.sample(40, 2)
    torch.testing.assert_close(batch["double"], (2 * batch["obs"]).to(torch.int32))
    torch.testing.assert_close(batch["next_double"], 2 * batch["obs"] + 2)
    torch.testing.assert_close(batch["done_double"], batch["obs"] == 6)
    torch.testing.assert_close(batch["as_float"], batch["obs"].float() + 1)
    assert set(batch["tags"].tolist()) == {8}


# -- strategies ---------------------------------------------------------------------------------


class Newest(SampleStrategy):
    """Only the list interface, as code written for the original has."""

    def __init__(self):
        super().__init__()
        self.seen, self.lengths = [], {}

    def track(self, identity, sequence_length):
        self.lengths[identity] = sequence_length

    def forget(self, identity):
        del self.lengths[identity]

    def sample(self, count, transition_count):
        newest = list(self.lengths)[-1]
        stop = self.lengths[newest]
        return [(newest, stop - transition_count, stop)] * count

    def on_sample(self, ids_and_offsets, transition_count, advantages=None):
        self.seen.append((list(ids_and_offsets), transition_count, advantages))


def test_strategies_with_only_the_list_interface_work():
    sampler = Newest()
    table = filled([4, 5], sampler=sampler, maxlen=9)
    assert table.sample(2, 3)["obs"][:, 0].tolist() == [7, 8, 9] * 2
    assert sampler.seen == [([(1, 2, 5)] * 2, 3, None)]
    table.add_sequence(2, episode(100, 1))
    assert sampler.lengths == {1: 5, 2: 1}
    table.clear()
    assert sampler.lengths == {}
    table.add_sequence(0, episode(0, 2))
    with pytest.raises(InputError, match="correct the sample strategy"):
        table.sample(1, 5)


@pytest.mark.parametrize("redefined", ["sample", "sample_rows"])
def test_sampler_that_returns_too_few_windows_is_named(redefined):
    def fewer(self, count, transition_count):
        return getattr(UniformSampleStrategy, redefined)(self, count - 1, transition_count)

    table = filled([4, 5], sampler=type("Lazy", (UniformSampleStrategy,), {redefined: fewer})())
    with pytest.raises(ConfigurationError, match=r"Lazy\.sample: expected 3 windows, got 2"):
        table.sample(3, 2)


def test_episodes_without_any_window_can_be_ejected():
    made = [
        Column("actions", (), np.int64),
        VirtualColumn("later", (), np.int64, "actions", NextElementMapper),
    ]
    table = ArrayMemoryTable(columns=made, maxlen=2, ejector=UniformEjectionStrategy(seed=0))
    for identity in range(5):
        table.add_sequence(identity, {"actions": [identity]})
    assert table.size() == 2
    with pytest.raises(NoWindowError, match="got 2 episodes of at most 0"):
        table.sample(1, 1)


def test_large_tables_grow_and_stay_exact(monkeypatch):
    """Rows of 4 KiB, 1300 of them: more than huge pages start at, and than is reserved at first."""
    monkeypatch.setattr("cadenza.learn.memory.table._RESERVED_BYTES", 1 << 20)
    made = [Column("actions", (), np.int64), Column("image", (64, 64), np.uint8)]
    table = ArrayMemoryTable(columns=made, maxlen=1300, seed=0)
    for identity in range(11):
        actions = 120 * identity + np.arange(120)
        images = np.broadcast_to((actions % 251)[:, None, None], (120, 64, 64))
        table.add_sequence(identity, {"actions": actions, "image": images})
    assert (table.size(), len(table.identities())) == (1200, 10)
    batch = table.sample(50, 5)
    assert (batch["image"] == (batch["actions"] % 251)[:, None, None]).all()


# -- output, threads ----------------------------------------------------------------------------


def test_batches_go_to_the_device():
    """The device "meta" has shapes but no values."""
    batch = filled([5, 6], device="meta").sample(4, 2)
    assert {tensor.device.type for tensor in batch.values()} == {"meta"}


def test_resize_only_raises_the_limit():
    table = filled([4, 4], maxlen=8)
    table.resize(12)
    table.add_sequence(2, episode(0, 4))
    assert (table.size(), table.maxlen, table.full()) == (12, 12, False)
    with pytest.raises(ValueError, match="at least the present maxlen 12, got 11"):
        table.resize(11)


def test_keys_of_virtual_columns_are_ignored():
    table = make()
    table.add_sequence(0, sequence(dones=[True] * 4))
    assert table.sample(30, 1)["dones"].float().mean() < 1


def test_shift_of_the_length_column_itself():
    made = [
        Column("actions", (), np.int64),
        VirtualColumn("next_actions", (), np.int64, "actions", NextElementMapper),
        VirtualColumn("dones", (1,), bool, "actions", SyntheticDones),
    ]
    table = ArrayMemoryTable(columns=made, maxlen=100)
    table.add_sequence(0, {"actions": np.arange(5)})
    table.add_sequence(1, {"actions": [9]})  # no window has a next action
    batch = table.sample(200, 1)
    assert set(batch["actions"].tolist()) == {0, 1, 2, 3}
    torch.testing.assert_close(batch["next_actions"], batch["actions"] + 1)
    assert not batch["dones"].any()
    assert table.size() == 6
