"""A package's lazy names: listed at once, imported at first use."""

import importlib
import sys
from types import ModuleType

import pytest

from cadenza.core.lazy_names import Deferred, lazy_names


@pytest.fixture
def package(monkeypatch):
    """A package ``offering`` with one module ``home`` that defines ``answer``."""
    offering, home = ModuleType("offering"), ModuleType("offering.home")
    offering.__path__ = []
    home.answer = 42
    monkeypatch.setitem(sys.modules, "offering", offering)
    monkeypatch.setitem(sys.modules, "offering.home", home)
    offering.__dir__, offering.__getattr__ = lazy_names("offering", {"answer": "home"})
    return offering


def test_lazy_names_lead_to_their_objects_and_are_listed_beside_the_package_s_own(package):
    package.own = 1
    assert {"answer", "own"} <= set(dir(package))
    assert dir(package) == sorted(dir(package))
    assert package.answer == 42


def test_other_names_are_refused(package):
    with pytest.raises(AttributeError, match="module 'offering' has no attribute 'question'"):
        _ = package.question


def test_deferred_record_computes_what_it_is_asked_for_once():
    computed, kind = [], type("Sum", (Deferred,), {})
    later = {"total": lambda: computed.append(1) or {"total": 3, "rest": 1}}
    record = kind.deferred(later, first=2)
    assert (record.first, computed) == (2, [])
    assert (record.total, record.rest, record.total, computed) == (3, 1, 3, [1])
    for name in ("question", "_question"):
        with pytest.raises(AttributeError, match=f"Sum has no attribute '{name}'"):
            getattr(record, name)


@pytest.mark.parametrize("room", ["", ".aht", ".envs", ".safety", ".stream"])
def test_every_lazy_name_of_a_room_can_be_taken(room: str) -> None:
    package = importlib.import_module(f"cadenza{room}")
    assert all(getattr(package, name) is not None for name in package.__all__)
