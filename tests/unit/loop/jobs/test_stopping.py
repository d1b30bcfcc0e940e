import os
import signal

import pytest

from cadenza.loop.errors import StoreUnavailableError
from cadenza.loop.jobs.stopping import (
    StopLevel,
    StopSignals,
    asked_in_store,
    most_urgent,
    never,
    signals_kept,
)


def test_signals_ask_to_end_then_to_kill_and_the_third_interrupts():
    before, told = signal.getsignal(signal.SIGTERM), []
    with StopSignals(told.append) as stop:
        assert (stop(), stop.first) == (StopLevel.NONE, None)
        os.kill(os.getpid(), signal.SIGTERM)
        assert (stop(), stop.first) == (StopLevel.END, signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert (stop(), stop.first) == (StopLevel.KILL, signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):  # the program does not ask
            os.kill(os.getpid(), signal.SIGINT)
    assert told == [StopLevel.END, StopLevel.KILL]
    assert signal.getsignal(signal.SIGTERM) is before


def test_signal_counts_though_nobody_can_be_told():
    def gone(_level):
        raise BrokenPipeError

    with StopSignals(gone) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop() is StopLevel.END


@pytest.fixture
def hangup():
    """Sets what a hang-up does, until the end of the test."""
    before = signal.getsignal(signal.SIGHUP)
    yield lambda handler: signal.signal(signal.SIGHUP, handler)
    signal.signal(signal.SIGHUP, before)


def test_a_closed_terminal_asks_to_end_and_never_kills(hangup):
    hangup(signal.SIG_DFL)
    with StopSignals():
        assert signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL  # none came
    told = []
    with StopSignals(told.append) as stop:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGHUP)
        assert (stop(), stop.first, told) == (StopLevel.END, signal.SIGHUP, [StopLevel.END])
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop() is StopLevel.KILL
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # it may come once more


def test_handlers_that_a_library_takes_over_are_put_back():
    with StopSignals() as stop:
        with signals_kept():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # for what it starts
            signal.signal(signal.SIGTERM, lambda *_: pytest.fail("the library's"))
        os.kill(os.getpid(), signal.SIGTERM)
        assert (stop(), stop.first) == (StopLevel.END, signal.SIGTERM)
        assert signal.getsignal(signal.SIGHUP) == stop._on_signal


def test_store_is_asked_at_most_once_a_second(monkeypatch):
    moments = iter([10.0, 10.5, 10.9, 11.1, 12.2])
    monkeypatch.setattr("cadenza.loop.jobs.stopping.time.monotonic", lambda: next(moments))
    answers = iter([False, True, False])
    check = asked_in_store(lambda: next(answers))
    levels = [check() for _ in range(5)]
    assert levels == [StopLevel.NONE] * 3 + [StopLevel.END, StopLevel.NONE]


def test_what_the_store_said_last_holds_while_it_does_not_answer(monkeypatch, caplog):
    moments = iter([0.0, 2.0, 4.0, 6.0])
    monkeypatch.setattr("cadenza.loop.jobs.stopping.time.monotonic", lambda: next(moments))
    answers = iter([StoreUnavailableError("gone"), True, StoreUnavailableError("gone"), False])

    def ask():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    check = asked_in_store(ask)
    assert [check() for _ in range(4)] == [
        StopLevel.NONE,
        StopLevel.END,
        StopLevel.END,
        StopLevel.NONE,
    ]
    assert caplog.messages == ["whether the run is asked to stop is unknown: gone"] * 2


def test_most_urgent_check_wins():
    assert most_urgent(never, lambda: StopLevel.END, never)() is StopLevel.END
    assert most_urgent()() is StopLevel.NONE
