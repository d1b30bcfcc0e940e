import sys

import pytest

from cadenza.core.errors import ConfigurationError, UnknownNameError
from cadenza.loop.jobs.terms import ProgramTable


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
