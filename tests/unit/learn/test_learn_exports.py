"""Packages are imported at first use, and offer their short names and no others."""

import importlib
import subprocess
import sys

import pytest

import cadenza.learn


@pytest.mark.parametrize(
    "package", ["learn", "learn.callbacks", "learn.collectors", "learn.env", "learn.models"]
)
def test_package_offers_its_names_and_refuses_others(package):
    module = importlib.import_module(f"cadenza.{package}")
    for name in module.__all__:
        assert getattr(module, name).__name__.rpartition(".")[2] == name
        assert name in dir(module)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = module.nothing


def test_soft_actor_critic_is_reached_under_its_short_name():
    assert cadenza.learn.sac is sys.modules["cadenza.learn.algorithms.sac"]
    assert "sac" in dir(cadenza.learn)


def test_importing_the_package_does_not_import_torch():
    code = "import sys, cadenza.learn, cadenza.learn.callbacks; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
