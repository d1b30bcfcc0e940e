"""Algorithm registry."""

import pytest

from cadenza.aht import algorithms
from cadenza.aht.config import EgoAHTConfig
from cadenza.core.errors import ConfigurationError, UnknownNameError


@pytest.fixture
def registry(monkeypatch):
    """A copy of the registry that the test may change."""
    monkeypatch.setattr(algorithms, "_ENTRIES", dict(algorithms._ENTRIES))
    return algorithms


def test_registry_lists_the_built_in_algorithms():
    assert algorithms.list_algorithms() == (
        "dqn",
        "ego_aht_happo",
        "ego_aht_hatd3",
        "happo",
        "hatd3",
        "hlgauss",
        "mappo",
        "mbpo",
        "ppo",
        "random",
        "sac",
        "td3",
    )


def test_load_algorithm_unknown_names_the_known_ones():
    with pytest.raises(UnknownNameError, match=r"expected one of dqn, .*, td3, got 'sarsa'"):
        algorithms.load_algorithm("sarsa")


def test_register_algorithm_makes_a_configuration_valid(registry):
    registry.register_algorithm("json_dumps", "json:dumps")
    assert EgoAHTConfig.model_validate({"algo": "json_dumps", "env": {"task": "t"}})
    assert registry.load_algorithm("json_dumps") is __import__("json").dumps


def test_register_algorithm_taken_name_is_refused(registry):
    with pytest.raises(ConfigurationError, match="expected a new name, got 'random'"):
        registry.register_algorithm("random", "json:dumps")


@pytest.mark.parametrize("entry", ["json", "json:", ":dumps"])
def test_register_algorithm_malformed_entry_is_refused(registry, entry):
    with pytest.raises(ConfigurationError, match="expected 'module:attribute'"):
        registry.register_algorithm("new", entry)
