"""Sections of single algorithms: defaults, ranges, and the refusal of settings without effect."""

import pytest
from pydantic import ValidationError

from cadenza.aht.config import EgoAHTConfig, config_fingerprint


def config(algo, **sections):
    return EgoAHTConfig.model_validate({"algo": algo, "env": {"task": "any"}, **sections})


@pytest.mark.parametrize(
    ("algo", "sections", "dead"),
    [
        ("ego_aht_happo", {"sac": {"initial_alpha": 0.1}}, "sac.initial_alpha"),
        ("random", {"happo": {"gamma": 0.5}}, "happo.gamma"),
        ("ppo", {"td3": {"policy_delay": 3}}, "td3.policy_delay"),
        ("ppo", {"happo": {"lr": 0.1}}, "happo.lr"),
        ("mappo", {"ppo_extras": {"lr_decay": True}}, "ppo_extras.lr_decay"),
        ("sac", {"happo": {"lr": 0.1}}, "happo.lr"),
        ("sac", {"ppo_extras": {"lr_decay": True}}, "ppo_extras.lr_decay"),
        ("sac", {"hlgauss": {"bins": 5}}, "hlgauss.bins"),
        ("td3", {"sac": {"max_alpha": 0.5}}, "sac.max_alpha"),
        ("hlgauss", {"sac": {"gamma": 0.5}}, "sac.gamma"),
        ("hatd3", {"ppo": {"entropy_coefficient": 0.5}}, "ppo.entropy_coefficient"),
        ("dqn", {"mbpo": {"real_share": 0.5}}, "mbpo.real_share"),
        ("mbpo", {"dqn": {"double": False}}, "dqn.double"),
        ("recurrent_ppo", {"ppo": {"gamma": 0.5}}, "ppo.gamma"),
        ("ppo", {"recurrent_ppo": {"memory": "lstm"}}, "recurrent_ppo.memory"),
        ("liam", {"recurrent_ppo": {"memory": "lstm"}}, "recurrent_ppo.memory"),
    ],
)
def test_settings_that_an_algorithm_does_not_read_are_refused(algo, sections, dead):
    with pytest.raises(ValidationError, match=f"algo={algo}: expected only settings .* {dead}"):
        config(algo, **sections)


@pytest.mark.parametrize(
    ("algo", "sections"),
    [
        ("ppo", {"ppo": {"learning_rate": 0.1}, "ppo_extras": {"flush_partial_rollout": True}}),
        ("mappo", {"ppo": {"clip_value": 1.0}}),
        ("sac", {"happo": {"rollout_length": 7}, "sac": {"gamma": 0.5}}),
        ("hlgauss", {"hlgauss": {"initial_alpha": 0.1, "bins": 5}}),
        ("mbpo", {"mbpo": {"initial_alpha": 0.1, "real_share": 0.5}}),
        ("dqn", {"dqn": {"action_bins": 3}}),
        ("recurrent_ppo", {"recurrent_ppo": {"memory_size": 8}}),
        ("liam", {"liam": {"belief_size": 8}}),
        ("upd", {"upd": {"candidates": 8}}),
    ],
)
def test_settings_that_an_algorithm_reads_enter_the_identity(algo, sections):
    assert config_fingerprint(config(algo, **sections)) != config_fingerprint(config(algo))


@pytest.mark.parametrize(
    ("algo", "sections", "message"),
    [
        ("sac", {"sac": {"initial_alpha": 20.0}}, "initial_alpha: expected at most max_alpha"),
        ("hlgauss", {"hlgauss": {"min_value": 90.0}}, "min_value: expected less than"),
        ("dqn", {"dqn": {"epsilon_start": 0.01}}, "epsilon_end: expected at most"),
        ("mbpo", {"mbpo": {"num_elites": 6}}, "num_elites: expected at most ensemble_size"),
        ("td3", {"td3": {"policy_delay": 0}}, "greater than or equal to 1"),
        ("sac", {"sac": {"hidden_sizes": []}}, "sac.hidden_sizes\\n.* at least 1 item"),
        ("hatd3", {"hatd3": {"compile": True}}, "hatd3.compile\\n.* not permitted"),
        ("ppo", {"ppo": {"value_loss": "l1"}}, "'mse' or 'huber'"),
    ],
)
def test_values_out_of_range_are_refused(algo, sections, message):
    with pytest.raises(ValidationError, match=message):
        config(algo, **sections)
