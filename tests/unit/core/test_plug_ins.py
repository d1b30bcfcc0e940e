"""Modules that register when they are imported, those of other packages included."""

import logging
import sys

import pytest

from cadenza.core.plug_ins import PlugIns
from tests.plug_in_package import install

GROUP = "cadenza.partners"


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Two installed packages: a good one, and one that cannot be imported."""
    install(tmp_path, "good_plug_in", {"__init__.py": ""}, group=GROUP, version="1.0")
    broken = {"__init__.py": "import no_such_module_anywhere"}
    install(tmp_path, "broken_plug_in", broken, group=GROUP, version="1.0")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("good_plug_in", None)


@pytest.mark.usefixtures("packages")
def test_load_imports_the_plug_ins_and_names_the_broken_one_without_failing(caplog):
    plug_ins = PlugIns(GROUP)
    assert "good_plug_in" not in sys.modules
    with caplog.at_level(logging.WARNING):
        plug_ins.load()
    assert "good_plug_in" in sys.modules
    assert "broken_plug_in of cadenza.partners (broken_plug_in) failed" in caplog.text
    assert plug_ins.complaint() == (
        " Plug-in broken_plug_in failed: ModuleNotFoundError: No module named "
        "'no_such_module_anywhere'."
    )


@pytest.mark.usefixtures("packages")
def test_plug_ins_of_another_group_are_left_alone():
    PlugIns("cadenza.tasks").load()
    assert "good_plug_in" not in sys.modules


def test_load_imports_built_in_modules_first_and_once():
    plug_ins = PlugIns("cadenza.tasks", ["no_such_module_anywhere"])
    with pytest.raises(ModuleNotFoundError):
        plug_ins.load()
    plug_ins.load()  # asked again by a module that it is importing, it does not begin anew
