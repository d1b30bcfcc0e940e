import math
import threading

import pytest

from cadenza.core.timing import (
    BlockTimers,
    MovingWindowAccumulator,
    TimedBlock,
    WelfordAccumulator,
    duration,
)


@pytest.mark.parametrize("kind", [WelfordAccumulator, MovingWindowAccumulator])
def test_accumulator_keeps_precision_far_from_zero(kind):
    accumulator = kind()
    assert all(math.isnan(number) for number in accumulator.current())
    for value in (1e9, 1e9 + 1, 1e9 + 2):
        accumulator.add(value)
    assert accumulator.current()[1] == pytest.approx(2 / 3, rel=1e-6)


def test_timed_block_measures_each_run(clock):
    timer = TimedBlock()
    with timer:
        clock.now += 1.0
    with timer():
        clock.now += 3.0
    assert timer.stats() == (2.0, 1.0)
    assert (timer.mean(), timer.var()) == (2.0, 1.0)


def test_timed_block_entered_inside_itself_measures_both(clock):
    timer = TimedBlock(WelfordAccumulator)
    with timer:
        clock.now += 1.0
        with timer:
            clock.now += 2.0
        clock.now += 3.0
    assert timer.mean() == (2.0 + 6.0) / 2


def test_timed_block_keeps_threads_apart(clock):
    timer = TimedBlock()
    entered, leave = threading.Event(), threading.Event()

    def other():
        with timer:
            entered.set()
            leave.wait()

    thread = threading.Thread(target=other)
    thread.start()  # enters at 0
    entered.wait()
    clock.now = 10.0
    with timer:
        clock.now = 12.0
    assert timer.mean() == 2.0
    leave.set()
    thread.join()  # leaves at 12
    assert timer.mean() == (2.0 + 12.0) / 2


def test_block_timers_make_one_timer_per_name(clock):
    timers = BlockTimers(WelfordAccumulator)
    assert timers.scope("a") is timers.scope("a")
    with timers.scope("a"):
        clock.now += 2.0
    with timers.scope("b"):
        clock.now += 5.0
    assert timers.stats() == {"a": (2.0, 0.0), "b": (5.0, 0.0)}


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-3.0, "0 s"),
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (125.0, "2 min 05 s"),
        (3599.7, "1 h 00 min"),
        (12_060.0, "3 h 21 min"),
    ],
)
def test_durations_are_said_as_people_say_them(seconds, words):
    assert duration(seconds) == words
