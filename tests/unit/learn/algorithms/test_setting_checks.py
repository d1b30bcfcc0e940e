"""Settings of PPO and GRPO are of the types that they say, before anything is learned with them."""

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from cadenza.core.errors import ConfigurationError, ConfigurationTypeError, InputError
from cadenza.learn.algorithms.grpo import GRPO, GRPOSettings
from cadenza.learn.algorithms.ppo import PPO
from cadenza.learn.algorithms.ppo_settings import PPOSettings
from tests.unit.learn.sign_envs import SignEnv

COUNTS = [
    (PPOSettings, "rollout_length"),
    (PPOSettings, "batch_size"),
    (PPOSettings, "epochs"),
    (GRPOSettings, "rollout_length"),
    (GRPOSettings, "batch_size"),
    (GRPOSettings, "epochs"),
    (GRPOSettings, "group_size"),
    (GRPOSettings, "refresh_reference_every"),
]


def signs() -> SyncVectorEnv:
    return SyncVectorEnv([SignEnv] * 4, autoreset_mode=AutoresetMode.SAME_STEP)


@pytest.mark.parametrize(("kind", "name"), COUNTS)
@pytest.mark.parametrize("value", [2.5, 2.0, True, "2"])
def test_counts_are_integers(kind, name: str, value) -> None:
    told = rf"{kind.__name__}\.{name}: expected an integer >= \d.*, got {value!r}\.$"
    with pytest.raises(ConfigurationTypeError, match=told):
        kind(**{name: value})


@pytest.mark.parametrize(("kind", "name"), COUNTS)
def test_integers_of_numpy_count_too(kind, name: str) -> None:
    assert getattr(kind(**{name: np.int64(3)}), name) == 3


@pytest.mark.parametrize("kind", [PPOSettings, GRPOSettings])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clip_epsilon": "0.2"}, "clip_epsilon: expected a number > 0, got '0.2'"),
        ({"entropy_coefficient": None}, "entropy_coefficient: expected a number >= 0, got None"),
        ({"gamma": True}, r"gamma: expected a number in \[0, 1\], got True"),
        ({"initial_log_std": "0"}, "initial_log_std: expected a finite number, got '0'"),
        ({"squash_actions": "no"}, "squash_actions: expected True or False, got 'no'"),
        ({"hidden_sizes": 64}, "hidden_sizes: expected widths, a tuple of integers >= 1, got 64"),
        ({"hidden_sizes": (64, 2.5)}, r"hidden_sizes: expected widths, .*, got \(64, 2.5\)"),
        ({"hidden_sizes": "64"}, "hidden_sizes: expected widths, .*, got '64'"),
    ],
)
def test_settings_of_another_type_are_refused(kind, changes, message: str) -> None:
    with pytest.raises(ConfigurationTypeError, match=message):
        kind(**changes)


def test_numbers_that_are_not_finite_are_refused() -> None:
    told = "initial_log_std: expected a finite number, got nan"
    with pytest.raises(ConfigurationError, match=told):
        PPOSettings(initial_log_std=float("nan"))
    told = "PPOSettings.target_kl: expected a number > 0 or None, got 'never'"
    with pytest.raises(ConfigurationTypeError, match=told):
        PPOSettings(target_kl="never")


@pytest.mark.parametrize(
    ("learner", "given", "told"),
    [
        (GRPO, PPOSettings(), r"GRPO.settings: expected GRPOSettings or None, got PPOSettings"),
        (PPO, GRPOSettings(), r"PPO.settings: expected PPOSettings or None, got GRPOSettings"),
        (PPO, {}, r"PPO.settings: .* got dict; write PPO\(..., settings=PPOSettings"),
    ],
)
def test_settings_of_another_learner_are_refused(learner, given, told: str) -> None:
    with pytest.raises(InputError, match=told):
        learner(signs(), given)


def test_learner_without_settings_takes_the_defaults() -> None:
    assert PPO(signs()).settings == PPOSettings()
    assert GRPO(signs()).settings == GRPOSettings()


@pytest.mark.parametrize("learner", [PPO, GRPO])
def test_single_environment_is_refused_where_a_vector_of_them_is_needed(learner) -> None:
    told = rf"{learner.__name__}\.envs: expected a gymnasium.vector.VectorEnv, got SignEnv; wrap"
    with pytest.raises(ConfigurationError, match=told):
        learner(SignEnv())


@pytest.mark.parametrize("total_steps", ["a", None, True, float("nan"), float("inf")])
def test_steps_to_learn_for_must_be_a_number(total_steps) -> None:
    told = rf"PPO\.learn: expected total_steps, .* got {total_steps!r}"
    with pytest.raises(InputError, match=told):
        PPO(signs()).learn(total_steps)
