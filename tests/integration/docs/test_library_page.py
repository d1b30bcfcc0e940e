"""The comparison of libraries names their versions and what exists in them."""

import importlib
import inspect
import re
from importlib.metadata import version

import pytest

import cadenza
from tests.integration.docs.pages import text

PAGE = "how-to/choose-a-library.md"


def column(number: int) -> list[str]:
    """Return the cells of one library, from the row of algorithms on."""
    table = text(PAGE).partition("\n## Feature by feature\n")[2].partition("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")][2:]
    return [line.split(" | ")[number] for line in lines]


def names(cells: list[str]) -> set[str]:
    """Return the classes that cells name in code."""
    return set(re.findall(r"`([A-Z]\w+)`", " ".join(cells)))


@pytest.mark.parametrize(
    ("package", "title"), [("stable-baselines3", "Stable-Baselines3"), ("torchrl", "TorchRL")]
)
def test_page_names_the_version_that_is_installed(package, title):
    pytest.importorskip(package.replace("-", "_"))
    assert f"{title} {version(package)}" in " ".join(text(PAGE).split())


def test_algorithms_of_stable_baselines3_are_those_it_has():
    theirs = pytest.importorskip("stable_baselines3")
    told = set(re.findall(r"\w+", column(2)[0].partition(";")[0]))
    algorithms = {name for name in theirs.__all__ if name.isupper() or name == "TD3"}
    assert told == algorithms
    modules = [theirs, importlib.import_module("stable_baselines3.common.vec_env")]
    told = names(column(2))
    assert told >= {"HerReplayBuffer", "VecNormalize"}
    assert {name for name in told if not any(hasattr(each, name) for each in modules)} == set()


def test_classes_of_torchrl_exist():
    pytest.importorskip("torchrl")
    places = ("objectives", "data", "envs", "modules", "trainers", "collectors", "checkpoint")
    modules = [importlib.import_module(f"torchrl.{place}") for place in places]
    told = names(column(4))
    assert len(told) > 15
    assert {name for name in told if not any(hasattr(each, name) for each in modules)} == set()
    losses = [name for name in modules[0].__all__ if name.endswith("Loss")]
    assert f"has {len(losses)} losses" in " ".join(text(PAGE).split())


def test_algorithms_and_settings_of_ours_exist():
    cells = column(1)
    algorithms = cells[0].replace("HL-Gauss", "HLGauss").split(", ")
    kinds = [getattr(cadenza, name) for name in algorithms]
    public = {name for name in dir(cadenza) if hasattr(getattr(cadenza, name), "preset")}
    assert set(algorithms) == public
    settings = set(re.findall(r"(\w+)=", " ".join(cells)))
    known = {name for kind in kinds for name in inspect.signature(kind).parameters}
    assert settings <= known
    assert settings >= {"hindsight", "memory"}
