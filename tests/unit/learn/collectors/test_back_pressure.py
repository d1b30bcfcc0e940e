"""Inserting and sampling keep to a ratio, and never block each other."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.errors import ConfigurationError
from cadenza.learn.collectors import SampleInsertRatio

NOW = 0.0
#: No wait in these tests should come near this; it only keeps a broken one from hanging.
PATIENCE_S = 800.0


def test_inserts_before_the_first_sample_are_free():
    ratio = SampleInsertRatio(1.0)
    for _ in range(100):
        assert ratio.wait_to_insert(NOW)
        ratio.insert(10)
    assert ratio.wait_to_sample(NOW)
    ratio.sample(32)
    # 32 rows are ahead of no insert: now sampling waits and inserting is due.
    assert not ratio.wait_to_sample(NOW)
    assert ratio.wait_to_insert(NOW)
    assert (ratio.inserted, ratio.sampled) == (1000, 32)


def test_ratio_and_tolerance_by_hand():
    ratio = SampleInsertRatio(2.0, tolerance=3.0)
    ratio.sample(8)  # 8 rows for 0 transitions: 8 ahead
    due = []
    for _ in range(7):
        due.append((ratio.wait_to_sample(NOW), ratio.wait_to_insert(NOW)))
        ratio.insert(1)
    # Ahead by 8, 6, 4, 2, 0, -2, -4: sampling while <= 3, inserting while >= -3.
    assert due == [(False, True)] * 3 + [(True, True)] * 3 + [(True, False)]


@given(
    target=st.floats(0.01, 100.0),
    tolerance=st.floats(0.0, 50.0),
    calls=st.lists(st.tuples(st.booleans(), st.integers(1, 300)), max_size=60),
)
def test_one_side_is_always_due_and_neither_runs_ahead_by_more_than_a_call(
    target, tolerance, calls
):
    ratio = SampleInsertRatio(target, tolerance=tolerance)
    ratio.sample(0)
    for wants_insert, count in calls:
        assert ratio.wait_to_insert(NOW) or ratio.wait_to_sample(NOW)
        if wants_insert and ratio.wait_to_insert(NOW):
            ratio.insert(count)
        elif ratio.wait_to_sample(NOW):
            ratio.sample(count)
        ahead = target * ratio.inserted - ratio.sampled
        assert -tolerance - 300 <= ahead <= tolerance + 300 * target + 1e-6


@pytest.mark.parametrize("answer", [True, False])
def test_waiting_ends_when_the_other_side_catches_up_or_closes(answer):
    ratio = SampleInsertRatio(1.0)
    ratio.sample(4)
    answers = []
    thread = threading.Thread(target=lambda: answers.append(ratio.wait_to_sample(PATIENCE_S)))
    thread.start()
    ratio.insert(4) if answer else ratio.close()
    thread.join()
    assert answers == [answer]


def test_nobody_waits_once_closed_and_open_begins_again():
    ratio = SampleInsertRatio(1.0)
    ratio.sample(4)
    ratio.close()
    assert not ratio.wait_to_insert(NOW)
    ratio.open()
    assert ratio.wait_to_insert(NOW)
    assert (ratio.inserted, ratio.sampled) == (0, 0)
    ratio.insert(5)
    assert ratio.wait_to_insert(NOW)  # free again


@pytest.mark.parametrize(("target", "tolerance"), [(0.0, 0.0), (float("nan"), 0.0), (1.0, -1.0)])
def test_numbers_out_of_range_are_refused(target, tolerance):
    with pytest.raises(ConfigurationError, match="samples_per_insert > 0 and tolerance >= 0"):
        SampleInsertRatio(target, tolerance=tolerance)
