import sys

import pytest

from cadenza.core.errors import ConfigurationError, UnknownNameError
from cadenza.loop.jobs.programs import ProgramTable


def test_name_is_replaced_and_arguments_stay():
    table = ProgramTable({"tool": (sys.executable, "-m", "x")})
    assert table.resolve(("tool", "a b", "tool")) == (sys.executable, "-m", "x", "a b", "tool")


def test_native_table_runs_this_interpreter():
    table = ProgramTable.native()
    assert table.names == ("cadenza",)
    assert table.resolve(("cadenza", "job")) == (sys.executable, "-P", "-m", "cadenza", "job")


@pytest.mark.parametrize("command", [("python",), ("/bin/sh",), ("./tool",), ("",), ()])
def test_name_outside_the_table_is_refused_with_the_known_ones(command):
    table = ProgramTable({"tool": (sys.executable,), "also": (sys.executable,)})
    with pytest.raises(UnknownNameError, match="expected one of also, tool"):
        table.resolve(command)


def test_program_that_is_not_installed_is_refused():
    table = ProgramTable({"tool": ("/nowhere/tool",)})
    with pytest.raises(UnknownNameError, match="expected the executable /nowhere/tool"):
        table.resolve(("tool",))


@pytest.mark.parametrize("name", ["", "a/b", "/bin/sh", "..", ".x", "-c"])
def test_name_that_is_not_bare_is_refused(name):
    with pytest.raises(ConfigurationError, match="expected a bare name"):
        ProgramTable({name: (sys.executable,)})


@pytest.mark.parametrize("prefix", [(), ("python",), ("./python",)])
def test_executable_that_is_not_absolute_is_refused(prefix):
    with pytest.raises(ConfigurationError, match="expected an absolute executable"):
        ProgramTable({"tool": prefix})


def test_extended_table_knows_both_and_refuses_a_name_twice():
    table = ProgramTable.native().extended({"tool": (sys.executable,)})
    assert table.names == ("cadenza", "tool")
    with pytest.raises(ConfigurationError, match=r"got \['tool'\] once more"):
        table.extended({"tool": (sys.executable,)})
