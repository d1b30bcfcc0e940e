"""A package's lazy names: listed at once, imported at first use."""

import importlib
import pkgutil
import sys
from types import ModuleType

import pytest

import cadenza
from cadenza.core.lazy_names import Deferred
from cadenza.safety.arms import ArmModel
from cadenza.safety.solvers import QPSolver, make_solver

OFFERING = """
from typing import TYPE_CHECKING
from cadenza.core.lazy_names import lazy_names
if TYPE_CHECKING:
    from . import rooms as rooms
    from .home import answer as answer
else:
    __dir__, __getattr__ = lazy_names(__name__)
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package ``offering`` with the modules ``rooms`` and ``home``, which defines ``answer``."""
    for name, source in (("__init__", OFFERING), ("home", "answer = 42"), ("rooms", "")):
        (tmp_path / "offering").mkdir(exist_ok=True)
        (tmp_path / "offering" / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("offering")
    for name in [name for name in sys.modules if name.partition(".")[0] == "offering"]:
        del sys.modules[name]


def test_lazy_names_lead_to_their_objects_and_are_listed_beside_the_package_s_own(package):
    package.own = 1
    assert {"answer", "own", "rooms"} <= set(dir(package))
    assert dir(package) == sorted(dir(package))
    assert package.__all__ == ["answer", "rooms"]
    assert "offering.home" not in sys.modules
    assert package.answer == 42
    assert package.rooms is sys.modules["offering.rooms"]


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


PACKAGES = sorted(
    info.name for info in pkgutil.walk_packages(cadenza.__path__, "cadenza.") if info.ispkg
)


def public_names(package: ModuleType) -> set[str]:
    """Names a package shows to `dir`, but for modules and what it imports for its own use."""
    borrowed = {"Any", "Final", "TYPE_CHECKING", "after_import", "lazy_names"}
    return {
        name
        for name in dir(package)
        if name[0] != "_" and not isinstance(getattr(package, name), ModuleType)
    } - borrowed


@pytest.mark.parametrize("name", ["cadenza", *PACKAGES])
def test_star_import_of_a_package_finds_its_public_names(name: str) -> None:
    found: dict[str, object] = {}
    exec(f"from {name} import *", found)  # noqa: S102 -- our own packages
    assert public_names(importlib.import_module(name)) <= found.keys()


def test_promised_names_come_with_a_star() -> None:
    found: dict[str, object] = {}
    for name in ("affine", "batched", "filters", "oscbf", "runtime", "verifier"):
        exec(f"from cadenza.safety.{name} import *", found)  # noqa: S102 -- our own packages
    promised = {"AffineCBFFilter", "BatchedEgoFilter", "EgoOnlyCBFQP", "OSCBF", "SafetyRuntime"}
    assert promised | {"project_batch", "verify"} <= found.keys()


def test_exported_protocols_can_be_asked_about_an_object() -> None:
    offered = [
        getattr(package, name)
        for package in map(importlib.import_module, [*PACKAGES, "cadenza.safety.solvers"])
        for name in getattr(package, "__all__", ())
    ]
    protocols = {kind for kind in offered if getattr(kind, "_is_protocol", False)}
    assert {QPSolver, ArmModel} <= protocols
    assert not any(isinstance(object(), kind) for kind in protocols)
    assert all(isinstance(make_solver(name), QPSolver) for name in ("auto", "daqp", "closed_form"))
