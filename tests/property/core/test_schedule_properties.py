import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.schedules import (
    CosineAnnealing,
    CosineAnnealingWarmRestarts,
    CyclicSchedule,
    LinearSchedule,
    truncated_linear,
)

numbers = st.floats(-100, 100)
makers = st.sampled_from(
    [
        LinearSchedule,
        lambda a, b, n: LinearSchedule(a, b, n, True, 3),
        CyclicSchedule,
        lambda a, b, n: CyclicSchedule(a, b, n, "triangular2"),
        CosineAnnealing,
        CosineAnnealingWarmRestarts,
    ]
)


@given(make=makers, initial=numbers, final=numbers, steps=st.integers(1, 20), n=st.integers(0, 99))
def test_schedule_always_stays_between_its_ends(make, initial, final, steps, n):
    schedule = make(initial, final, steps)
    for _ in range(n):
        schedule.step()
    assert min(initial, final) - 1e-9 <= schedule.value <= max(initial, final) + 1e-9


@given(make=makers, initial=numbers, final=numbers, steps=st.integers(1, 20))
def test_schedule_first_step_never_changes_the_value(make, initial, final, steps):
    schedule = make(initial, final, steps)
    schedule.step()
    assert schedule.value == pytest.approx(initial, abs=1e-9)


@given(x=numbers, begin=numbers, width=st.floats(1e-6, 100), low=numbers, high=numbers)
def test_truncated_linear_always_stays_between_its_ends(x, begin, width, low, high):
    value = truncated_linear(begin, begin + width, low, high, x)
    assert min(low, high) - 1e-9 <= value <= max(low, high) + 1e-9
