"""Algorithm registry."""

import pytest

from cadenza.aht import algorithms
from cadenza.aht.train import load_algorithm
from cadenza.core.errors import ConfigurationError, UnknownNameError


def test_registry_lists_the_built_in_algorithms():
    assert algorithms.list_algorithms() == (
        "cec",
        "dqn",
        "e3t",
        "ego_aht_happo",
        "ego_aht_hatd3",
        "happo",
        "hatd3",
        "hlgauss",
        "liam",
        "mappo",
        "mbpo",
        "ppo",
        "random",
        "recurrent_ppo",
        "sac",
        "td3",
        "upd",
    )


def test_load_algorithm_unknown_names_the_known_ones():
    with pytest.raises(UnknownNameError, match=r"expected one of cec, .*, upd, got 'sarsa'"):
        load_algorithm("sarsa")


def test_register_algorithm_taken_name_is_refused():
    with pytest.raises(ConfigurationError, match="expected a new name, got 'random'"):
        algorithms.register_algorithm("random", "json:dumps")


@pytest.mark.parametrize("entry", ["json", "json:", ":dumps"])
def test_register_algorithm_malformed_entry_is_refused(entry):
    with pytest.raises(ConfigurationError, match="expected 'module:attribute'"):
        algorithms.register_algorithm("new", entry)
