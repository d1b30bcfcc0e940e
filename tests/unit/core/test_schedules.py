import pytest

from cadenza.core.errors import InputError
from cadenza.core.schedules import (
    BPStepScheduler,
    ConstantSchedule,
    CosineAnnealing,
    CosineAnnealingWarmRestarts,
    CyclicSchedule,
    LinearSchedule,
    Schedule,
    truncated_linear,
)

#: cos(pi/4), to the digits used below: (1 + 0.7071) / 2 = 0.8536, (1 - 0.7071) / 2 = 0.1464.
HIGH, LOW = 0.8535533905932737, 0.14644660940672627

SEQUENCES = [
    (lambda: ConstantSchedule(3.5), [3.5, 3.5, 3.5]),
    (lambda: LinearSchedule(0, 10, 5), [0, 0, 2, 4, 6, 8, 10, 10]),
    (lambda: LinearSchedule(0, 10, 5, True, 2), [0, 0, 0, 0, 5, 5, 10]),
    (lambda: LinearSchedule(10, 0, 4), [10, 10, 7.5, 5, 2.5, 0, 0]),
    (lambda: CyclicSchedule(5, 0, 5), [5, 5, 4, 3, 2, 1, 0, 1, 2, 3, 4, 5]),
    (lambda: CyclicSchedule(0, 8, 2, "triangular2"), [0, 0, 4, 8, 4, 0, 2, 4, 2, 0, 1, 2]),
    (lambda: CosineAnnealing(1, 0, 4), [1, 1, HIGH, 0.5, LOW, 0, LOW, 0.5, HIGH, 1]),
    (lambda: CosineAnnealingWarmRestarts(1, 0, 4), [1, 1, HIGH, 0.5, LOW, 1]),
]


@pytest.mark.parametrize(("make", "expected"), SEQUENCES)
def test_schedule_follows_the_published_sequence(make, expected):
    schedule = make()
    values = [schedule.value]
    for _ in expected[1:]:
        schedule.step()
        values.append(schedule.value)
    assert values == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("make", "expected"), SEQUENCES)
def test_schedule_resumed_at_any_step_goes_on_the_same(make, expected):
    for steps_before in range(len(expected)):
        schedule, resumed = make(), make()
        for _ in range(steps_before):
            schedule.step()
        resumed.load_state_dict(schedule.state_dict())
        assert resumed.value == schedule.value
        schedule.step()
        resumed.step()
        assert resumed.value == schedule.value


def test_staircase_rises_exactly_at_its_stairs():
    # 0.29 * 100 is 28.999999999999996 in floating point: integers must decide.
    schedule = LinearSchedule(0, 100, 100, use_staircase=True, staircase_steps=100)
    values = []
    for _ in range(101):
        schedule.step()
        values.append(schedule.value)
    assert values == pytest.approx(list(range(101)), abs=1e-12)


def test_truncated_linear_of_a_narrow_range_is_its_end_everywhere():
    assert truncated_linear(1, 1 + 1e-11, 5, 7, 0) == 7


def test_bp_step_scheduler_is_a_truncated_line():
    scheduler = BPStepScheduler(5000, 100_000, 1, 20)
    assert [scheduler.evaluate_at(bp) for bp in (0, 5000, 52_500, 10**6)] == [1, 1, 10.5, 20]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: LinearSchedule(0, 1, 0), "expected steps >= 1"),
        (lambda: CyclicSchedule(0, 1, -1), "expected steps >= 1"),
        (lambda: CosineAnnealing(0, 1, 0), "expected steps >= 1"),
        (lambda: CosineAnnealingWarmRestarts(0, 1, 0), "expected steps >= 1"),
        (lambda: LinearSchedule(0, 1, 5, True, 0), "expected staircase_steps >= 1, got 0"),
        (lambda: CyclicSchedule(0, 1, 5, "x"), "'triangular' or 'triangular2', got 'x'"),
    ],
)
def test_schedule_of_nothing_is_refused(make, told):
    with pytest.raises(InputError, match=told):
        make()


@pytest.mark.parametrize("state", [{}, {"calls": -1}])
def test_schedule_with_a_foreign_state_is_refused(state):
    with pytest.raises(InputError, match="expected 'calls' >= 0"):
        ConstantSchedule(1.0).load_state_dict(state)


class Squares(Schedule):
    def _value_at(self, s):
        return float(s * s)


def test_schedule_defined_by_its_formula_resumes():
    schedule, resumed = Squares(5.0, 0.0, 10), Squares(5.0, 0.0, 10)
    values = [schedule.value]
    for _ in range(4):
        schedule.step()
        values.append(schedule.value)
    assert values == [5.0, 0.0, 1.0, 4.0, 9.0]
    resumed.load_state_dict(schedule.state_dict())
    resumed.step()
    assert resumed.value == 16.0
