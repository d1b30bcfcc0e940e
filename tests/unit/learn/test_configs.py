"""Settings: what they refuse, in one sentence, and whose they are."""

import inspect
import re
import traceback
from typing import get_args, get_type_hints

import pytest

import cadenza
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.learn.agents.agent import Agent
from cadenza.learn.configs import (
    DQNConfig,
    GRPOConfig,
    HATD3Config,
    HLGaussConfig,
    MBPOConfig,
    PPOConfig,
    SACConfig,
    TD3Config,
)
from cadenza.learn.settings import OWNERS

AGENTS = sorted(
    (
        kind
        for kind in (getattr(cadenza, name) for name in cadenza.__all__)
        if isinstance(kind, type) and issubclass(kind, Agent)
    ),
    key=lambda kind: kind.__name__,
)


#: Keywords of agents that are no settings.
COMMON = {
    *("seed", "num_envs", "network", "demonstrations", "demonstration_share", "device"),
    *("partners", "sampler"),
}


@pytest.mark.parametrize("kind", AGENTS)
def test_constructor_shows_every_setting_with_its_type_and_default(kind):
    assert len(AGENTS) == 16
    typed = get_type_hints(*get_args(get_type_hints(kind.__init__)["settings"]))
    hints = get_type_hints(kind.Config)
    settings = {name: hints[name] for name in kind.Config.model_fields}
    common = {key: typed.pop(key) for key in COMMON & typed.keys()}
    widths = {name: list[int] | settings[name] for name in settings if name.endswith("_sizes")}
    assert typed == {**settings, **widths}
    shown = inspect.signature(kind).parameters
    assert {name: shown[name].default for name in settings} == kind.Config().model_dump()
    assert {name: shown[name].annotation for name in settings} == settings
    assert shown["seed"].default == 0
    assert common.keys() <= shown.keys() <= {"env", "expert", *COMMON, *settings}
    assert not {"others", "settings"} & shown.keys()


@pytest.mark.parametrize(
    ("kind", "changes", "told"),
    [
        (SACConfig, {"tau": -1}, "SACConfig.tau: expected greater than 0, got -1"),
        (SACConfig, {"gamma": float("nan")}, "SACConfig.gamma: expected a finite number, got nan"),
        (SACConfig, {"batch_size": 2.0}, "SACConfig.batch_size: expected a valid integer, got 2.0"),
        (PPOConfig, {"epochs": True}, "PPOConfig.epochs: expected a valid integer, got True"),
        (
            PPOConfig,
            {"decay_learning_rate": 0.5},
            "PPOConfig.decay_learning_rate: expected true, false or a number of steps, got 0.5",
        ),
        (
            SACConfig,
            {"learning_rat": 1e-3},
            "SACConfig.learning_rat: unknown setting (did you mean 'learning_rate'?)",
        ),
        (
            TD3Config,
            {"hidden_sizes": ()},
            "TD3Config.hidden_sizes: expected widths, one integer >= 1 per layer, such as "
            "(256, 256), got ()",
        ),
        (
            HATD3Config,
            {"compile": True},
            "HATD3Config.compile: unknown setting; only SAC, HLGauss, TD3, DQN and MBPO have it",
        ),
        (
            SACConfig,
            {"critic_sizes": 64, "hidden_sizes": (0,)},
            "SACConfig.critic_sizes: expected widths, one integer >= 1 per layer, such as "
            "(256, 256), got 64; SACConfig.hidden_sizes.0: expected greater than or equal to 1, "
            "got 0",
        ),
        (
            SACConfig,
            {"learning_rate": "cosine"},
            "SACConfig.learning_rate: expected a number or a schedule such as "
            "cadenza.schedules.cosine(3e-4, 1e-5, steps=1_000_000), got 'cosine'",
        ),
        (
            SACConfig,
            {"initial_alpha": 20.0},
            "SACConfig.initial_alpha: expected at most max_alpha (10.0), got 20.0",
        ),
        (
            HLGaussConfig,
            {"min_value": 90.0},
            "HLGaussConfig.min_value: expected less than max_value (50.0), got 90.0",
        ),
        (
            MBPOConfig,
            {"num_elites": 6},
            "MBPOConfig.num_elites: expected at most ensemble_size (5), got 6",
        ),
        (
            DQNConfig,
            {"epsilon_start": 0.01},
            "DQNConfig.epsilon_end: expected at most epsilon_start (0.01), got 0.05",
        ),
        (
            PPOConfig,
            {"value_loss": "l1", "epochs": 0},
            "PPOConfig.epochs: expected greater than or equal to 1, got 0; "
            "PPOConfig.value_loss: expected 'mse' or 'huber', got 'l1'",
        ),
        (
            GRPOConfig,
            {"refresh_reference_every": 2, "kl_coefficient": 0.0},
            "GRPOConfig.refresh_reference_every: expected None without a reference policy "
            "(kl_coefficient = 0), got 2",
        ),
        (
            SACConfig,
            {"importance_exponent": 0.9},
            "SACConfig.importance_exponent: expected 0.4 without priority_exponent, got 0.9",
        ),
    ],
)
def test_wrong_settings_are_refused_in_one_sentence(kind, changes, told):
    with pytest.raises(ConfigurationError) as refused:
        kind(**changes)
    assert str(refused.value) == told


@pytest.mark.parametrize(
    ("name", "setting", "told"),
    [
        ("PPO", "n_steps", "; here it is rollout_length"),
        ("TD3", "n_steps", "; here it is n_step"),
        ("PPO", "clip_range", "; here it is clip_epsilon"),
        ("PPO", "n_envs", "; here it is num_envs=..."),
        ("PPO", "tensorboard_log", "; here it is learn(log='tensorboard')"),
        ("SAC", "policy_kwargs", "; here it is hidden_sizes, critic_sizes, activation"),
        ("SAC", "lr", "; here it is learning_rate"),
        ("SAC", "memory", "; only PPO, LIAM, UPD and CEC have it"),
        ("HAPPO", "action_masks", "; only DQN, PPO, GRPO, LIAM, E3T, UPD and CEC have it"),
        (
            "HAPPO",
            "action_mask",
            " (did you mean 'action_masks' of DQN, PPO, GRPO, LIAM, E3T, UPD and CEC?)",
        ),
        ("PPO", "action_noise", "; only TD3 and HATD3 have exploration_noise"),
        ("PPO", "epoch", " (did you mean 'epochs'?)"),
        (
            "DAgger",
            "use_sde",
            f"; known are {', '.join(sorted(cadenza.DAgger.Config.model_fields))}",
        ),
    ],
)
def test_unknown_settings_are_told_their_name_or_their_algorithms(name, setting, told):
    with pytest.raises(ConfigurationError) as refused:
        getattr(cadenza, name).Config(**{setting: 1})
    assert str(refused.value) == f"{name}Config.{setting}: unknown setting{told}"


def test_settings_belong_to_the_algorithms_that_errors_name():
    for owners, names in OWNERS.items():
        for name in names.split():
            having = {kind.__name__ for kind in AGENTS if name in kind.Config.model_fields}
            assert set(re.split(", | and ", owners)) == having, name


@pytest.mark.parametrize(
    "refused",
    [
        lambda: cadenza.SAC("Pendulum-v1", activation="foo"),
        lambda: cadenza.schedules.cosine(1.0, 0.0, steps=-5),
        lambda: cadenza.PPO("CartPol-v1"),
    ],
)
def test_a_wrong_call_prints_one_sentence_and_no_other_exception(refused):
    with pytest.raises(ConfigurationError) as caught:
        refused()
    printed = "".join(traceback.format_exception(caught.value))
    assert "another exception" not in printed
    assert "direct cause" not in printed
    assert "errors.pydantic.dev" not in printed


@pytest.mark.parametrize(
    ("name", "changes", "told"),
    [
        ("PPO", {"initial_log_std": -3}, "expected 0.0 for actions that are choices, got -3.0"),
        ("GRPO", {"initial_log_std": -3}, "expected 0.0 for actions that are choices, got -3.0"),
        ("PPO", {"factored_choices": True}, "expected False without several choices, got True"),
        ("DQN", {"action_bins": 9}, "expected 5 for actions that are choices, got 9"),
        ("BC", {"loss": "l1"}, "expected 'mse' for actions that are choices, got 'l1'"),
    ],
)
def test_settings_that_change_nothing_in_an_environment_are_refused(name, changes, told):
    (setting,) = changes
    with pytest.raises(ConfigurationError) as refused:
        getattr(cadenza, name)("CartPole-v1", **changes)
    assert str(refused.value) == f"{name}: {setting}: {told}"


@pytest.mark.parametrize("steps", ["a", None, True, float("nan"), float("inf"), 0])
def test_steps_to_learn_for_must_be_a_whole_number(steps):
    with pytest.raises(InputError, match=rf"PPO\.learn: expected steps, .* got {steps!r}"):
        cadenza.PPO("CartPole-v1").learn(steps)


def test_steps_may_be_written_as_a_float_that_is_whole():
    agent = cadenza.PPO("CartPole-v1", rollout_length=16, batch_size=16).learn(
        3.2e1, progress=False
    )
    assert agent.steps == 32
    schedules = cadenza.schedules
    assert schedules.linear(1, 0, steps=1e6) == schedules.linear(1, 0, steps=1_000_000)
    with pytest.raises(ConfigurationError, match=r"steps: expected a valid integer, got 1\.5"):
        schedules.linear(1, 0, steps=1.5)
