import os
import signal
import sys

import pytest

from cadenza.core.errors import ConfigurationError, UnknownNameError
from cadenza.loop.jobs.terms import (
    ProgramTable,
    StopLevel,
    StopSignals,
    asked_in_store,
    most_urgent,
    never,
)


def test_name_is_replaced_and_arguments_stay():
    table = ProgramTable({"tool": (sys.executable, "-m", "x")})
    assert table.resolve(("tool", "a b", "tool")) == (sys.executable, "-m", "x", "a b", "tool")


def test_native_table_runs_this_interpreter():
    table = ProgramTable.native()
    assert table.resolve(("cadenza", "job")) == (sys.executable, "-P", "-m", "cadenza", "job")


@pytest.mark.parametrize("command", [("python",), ("/bin/sh",), ("",), ()])
def test_name_outside_the_table_is_refused_with_the_known_ones(command):
    table = ProgramTable({"tool": ("/nowhere/tool",), "also": (sys.executable,)})
    with pytest.raises(UnknownNameError, match="expected one of also, tool"):
        table.resolve(command)
    with pytest.raises(UnknownNameError, match="expected the executable /nowhere/tool"):
        table.resolve(("tool",))


@pytest.mark.parametrize(
    ("name", "prefix", "message"),
    [(name, (sys.executable,), "expected a bare name") for name in ("", "a/b", "..", ".x", "-c")]
    + [("tool", prefix, "expected an absolute executable") for prefix in ((), ("./python",))],
)
def test_names_are_bare_and_executables_absolute(name, prefix, message):
    with pytest.raises(ConfigurationError, match=message):
        ProgramTable({name: prefix})


def test_extended_table_knows_both_and_refuses_a_name_twice():
    table = ProgramTable.native().extended({"tool": (sys.executable,)})
    assert table.resolve(("tool",)) == (sys.executable,)
    with pytest.raises(ConfigurationError, match=r"got \['tool'\] once more"):
        table.extended({"tool": (sys.executable,)})


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


@pytest.fixture
def hangup():
    """Sets what a hang-up does, until the end of the test."""
    before = signal.getsignal(signal.SIGHUP)
    yield lambda handler: signal.signal(signal.SIGHUP, handler)
    signal.signal(signal.SIGHUP, before)


def test_a_closed_terminal_asks_to_end_and_never_kills(hangup):
    hangup(signal.SIG_DFL)
    told = []
    with StopSignals(told.append) as stop:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGHUP)
        assert (stop(), stop.first, told) == (StopLevel.END, signal.SIGHUP, [StopLevel.END])
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop() is StopLevel.KILL
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


def test_store_is_asked_at_most_once_a_second(monkeypatch):
    moments = iter([10.0, 10.5, 10.9, 11.1, 12.2])
    monkeypatch.setattr("cadenza.loop.jobs.terms.time.monotonic", lambda: next(moments))
    answers = iter([False, True, False])
    check = asked_in_store(lambda: next(answers))
    levels = [check() for _ in range(5)]
    assert levels == [StopLevel.NONE] * 3 + [StopLevel.END, StopLevel.NONE]


def test_most_urgent_check_wins():
    assert most_urgent(never, lambda: StopLevel.END, never)() is StopLevel.END
    assert most_urgent()() is StopLevel.NONE
