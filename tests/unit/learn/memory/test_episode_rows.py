"""Places of episodes in the ring, and uniform draws of windows."""

import numpy as np
import pytest

from cadenza.core.errors import CheckpointError, InputError, PreconditionError
from cadenza.learn.memory.column import NoWindowError, UnknownKeyError
from cadenza.learn.memory.ring import EpisodeRows

#: 99.9 % quantile of chi-square for 1 ... 30 degrees of freedom, of scipy.stats.chi2.ppf.
CHI_SQUARE_999 = {17: 40.8, 8: 26.1, 5: 20.5, 26: 54.1}


class Recorder:
    """Keeps one number per row, as a table keeps values."""

    def __init__(self, rows):
        self.rows, self.data = rows, np.zeros(rows.capacity, np.int64)
        rows.add_listener(self.rows_moved)

    def put(self, identity, steps, **options):
        start = self.rows.add(identity, steps, **options)
        self.data[start : start + steps] = 1000 * identity + np.arange(steps)

    def rows_moved(self, rows, capacity):
        data = np.zeros(capacity, np.int64)
        data[: len(rows)] = self.data[rows]
        self.data = data

    def check(self):
        """Every episode's rows hold its own numbers, and ``remaining`` counts down in them."""
        total = 0
        for identity in self.rows.identities():
            slot = self.rows.slot(identity)
            start, steps = int(self.rows.slots.start[slot]), int(self.rows.slots.steps[slot])
            own = 1000 * identity + np.arange(steps)
            np.testing.assert_array_equal(self.data[start : start + steps], own)
            np.testing.assert_array_equal(
                self.rows.remaining[start : start + steps], np.arange(steps, 0, -1)
            )
            assert (self.rows.slot_of_row[start : start + steps] == slot).all()
            total += steps
        assert np.count_nonzero(self.rows.remaining) == total == self.rows.steps


def test_ring_goes_round_and_leaves_a_hole_rather_than_splitting_an_episode():
    rows = EpisodeRows(10)
    recorder = Recorder(rows)
    recorder.put(1, 4)
    recorder.put(2, 4)
    rows.remove(1)
    recorder.put(3, 3)  # two rows are left at the end, so it begins at 0
    assert int(rows.slots.start[rows.slot(3)]) == 0
    assert rows.capacity == 10
    recorder.check()
    rows.remove(2)
    recorder.put(4, 5)
    assert int(rows.slots.start[rows.slot(4)]) == 3
    assert rows.identities() == [3, 4]
    recorder.check()


def test_ring_grows_when_it_is_too_small_and_all_data_moves_along():
    rows = EpisodeRows(4)
    recorder = Recorder(rows)
    for identity in range(1, 30):
        recorder.put(identity, 1 + identity % 5)
        recorder.check()
    assert rows.capacity >= rows.steps


def test_scattered_rows_are_moved_together_without_growing():
    rows = EpisodeRows(20)
    recorder = Recorder(rows)
    for identity in range(10):
        recorder.put(identity, 2)
    for identity in range(1, 10, 2):
        rows.remove(identity)
    recorder.put(11, 5)  # ten rows are free, no five of them side by side
    assert rows.capacity == 20
    assert rows.identities() == [0, 2, 4, 6, 8, 11]
    recorder.check()


def test_errors_name_the_episode():
    rows = EpisodeRows()
    rows.add(7, 3)
    with pytest.raises(PreconditionError, match="episode 7: expected an id that is not stored"):
        rows.add(7, 3)
    with pytest.raises(AssertionError):
        rows.add(7, 3)
    with pytest.raises(InputError, match="episode 8: expected at least 1 step, got 0"):
        rows.add(8, 0)
    with pytest.raises(UnknownKeyError, match="episode 9: expected one of the 1 stored ones"):
        rows.remove(9)
    with pytest.raises(KeyError):
        rows.slot(9)


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ((1, 2, 4), r"windows of 2 steps inside their episodes, got \[2, 4\) in episode 1"),
        ((1, -1, 1), r"got \[-1, 1\) in episode 1, which has 3"),
        ((1, 0, 3), r"got \[0, 3\) in episode 1"),
    ],
)
def test_windows_outside_their_episode_are_refused(point, message):
    rows = EpisodeRows()
    rows.add(1, 3)
    with pytest.raises(InputError, match=message):
        rows.rows_of([point], 2)


def test_no_window_without_a_long_enough_episode():
    rows = EpisodeRows()
    with pytest.raises(NoWindowError, match="at least 2 steps, got 0 episodes of at most 0"):
        rows.draw_windows(np.random.default_rng(0), 3, 2)
    rows.add(1, 4)
    rows.add(2, 1)
    with pytest.raises(ValueError, match="at least 5 steps, got 2 episodes of at most 4"):
        rows.draw_windows(np.random.default_rng(0), 3, 5)


def chi_square(starts, valid):
    counts = np.array([np.count_nonzero(starts == row) for row in valid])
    assert counts.sum() == len(starts)  # nothing but valid rows
    expected = len(starts) / len(valid)
    return ((counts - expected) ** 2 / expected).sum()


@pytest.mark.parametrize(("length", "windows"), [(1, 18), (3, 9), (4, 6)])
def test_draws_are_uniform_over_all_windows(length, windows):
    """Lengths 9, 2, 1, 6 in a ring with holes: for T = 3 there are 7 + 0 + 0 + 4 windows, ..."""
    rows = EpisodeRows(64)
    for identity, steps in enumerate([5, 6, 2, 1, 4, 4, 5]):
        rows.add(identity, steps, rows=steps + 1)
    for identity in (0, 4):
        rows.remove(identity)
    lengths = [6, 2, 1, 4, 5]
    assert sum(max(0, steps - length + 1) for steps in lengths) == windows
    starts = rows.draw_windows(np.random.default_rng(1), 6000, length)
    valid = np.flatnonzero(rows.remaining >= length)
    assert len(valid) == windows
    assert chi_square(starts, valid) < CHI_SQUARE_999[windows - 1]


def test_rare_windows_are_found_without_rejection_and_uniformly():
    """One episode of 10 steps among 300 of one step: 6 of 310 rows can start a window of 5."""
    rows = EpisodeRows(400)
    for identity in range(300):
        rows.add(identity, 1)
    rows.add(1000, 10)
    draws = CountingGenerator(0)
    starts = rows.draw_windows(draws, 3000, 5)
    assert draws.drawn == 3000
    valid = np.flatnonzero(rows.remaining >= 5)
    assert chi_square(starts, valid) < CHI_SQUARE_999[5]
    rows.add(1001, 7)  # 3 more windows; the tree follows
    rows.remove(0)
    starts = rows.draw_windows(draws, 3000, 5)
    valid = np.flatnonzero(rows.remaining >= 5)
    assert len(valid) == 9
    assert chi_square(starts, valid) < CHI_SQUARE_999[8]
    rows.remove(1000)
    rows.remove(1001)
    with pytest.raises(NoWindowError):
        rows.draw_windows(draws, 1, 5)


class CountingGenerator:
    """Counts the integers drawn."""

    def __init__(self, seed):
        self._rng, self.drawn = np.random.default_rng(seed), 0

    def integers(self, low, high, size):
        self.drawn += size
        return self._rng.integers(low, high, size=size)


def test_sample_ids_find_their_step_until_it_is_gone_or_moved():
    rows = EpisodeRows(8)
    rows.add(1, 3)
    rows.add(2, 3)
    ids = rows.sample_ids(np.array([1, 4]))
    found, known = rows.rows_of_sample_ids(ids)
    assert (found.tolist(), known.tolist()) == ([1, 4], [True, True])
    rows.remove(1)
    rows.add(3, 3)  # at the place of episode 1
    assert rows.rows_of_sample_ids(ids)[1].tolist() == [False, True]
    rows.add(4, 9)  # the ring grows and every row gets a new place
    assert rows.rows_of_sample_ids(ids)[1].tolist() == [False, False]
    strange = np.array([-1, 2**62, 2**33])
    assert rows.rows_of_sample_ids(strange)[1].tolist() == [False, False, False]


def ring_with_a_past():
    rows = EpisodeRows(30)
    for identity in range(12):
        rows.add(identity, 1 + identity % 4, rows=2 + identity % 4)
        if identity % 3 == 2:
            rows.remove(identity - 1)
    return rows


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("capacity", 31),
        ("head", None),
        ("head", 99),
        ("slots", [0] * 8),
        ("start", [1000] * 8),
        ("steps", [0] * 8),
        ("usable", [99] * 8),
        ("identities", [1] * 8),
        ("identities", [1]),
    ],
)
def test_spoilt_state_is_refused(key, value):
    state = ring_with_a_past().state_dict()
    assert len(state["slots"]) == 8
    second = EpisodeRows(state["capacity"])
    with pytest.raises(CheckpointError, match="places of episodes: expected a complete state"):
        second.load_state_dict({**state, key: value})
    del state["serial"]
    with pytest.raises(CheckpointError, match="KeyError"):
        EpisodeRows(state["capacity"]).load_state_dict(state)
