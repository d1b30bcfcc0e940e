import json

import numpy as np
import pytest

from cadenza.aht.ego_trainer import RandomEgoTrainer
from cadenza.core.errors import InputError
from tests.unit.aht.ego_ppo_fakes import (
    ACTION_DIM,
    OBSERVATION_DIM,
    SpacesOnlyEnv,
    StillPartner,
    config,
    observation,
)

STATE = observation(np.zeros(OBSERVATION_DIM, dtype=np.float32))


def ego(seed: int = 0, action_dim: int = 2) -> RandomEgoTrainer:
    return RandomEgoTrainer(ego_uid="ego", action_dim=action_dim, root_seed=seed)


def test_first_action_of_root_zero_is_the_published_one():
    action = ego().act(STATE)
    assert action.dtype == np.float32
    assert action.tolist() == pytest.approx([0.29777068, 0.18317541], abs=1e-8)


def test_actions_fill_the_unit_box():
    learner = ego()
    draws = np.array([learner.act(STATE) for _ in range(4000)])
    assert np.abs(draws).max() <= 1.0
    assert np.allclose(draws.mean(0), 0.0, atol=4 / np.sqrt(3 * 4000))  # deviation 1 / sqrt(3)
    assert np.abs(draws).max() > 0.99


def test_deterministic_action_is_zero_and_draws_nothing():
    learner = ego()
    assert learner.act(STATE, deterministic=True).tolist() == [0.0, 0.0]
    assert np.array_equal(learner.act(STATE), ego().act(STATE))


def test_factory_reads_the_action_size_from_the_environment():
    learner = RandomEgoTrainer.from_config(
        config(seed=3), env=SpacesOnlyEnv(), partner=StillPartner(), ego_uid="ego"
    )
    expected = ego(3, action_dim=ACTION_DIM)
    assert np.array_equal(learner.act(STATE), expected.act(STATE))


def test_training_state_resumes_the_draws():
    learner, other = ego(), ego(9)
    learner.act(STATE)
    other.load_training_state(json.loads(json.dumps(learner.training_state())))
    assert np.array_equal(learner.act(STATE), other.act(STATE))


def test_foreign_checkpoint_raises():
    ego().load_state_dict({})
    with pytest.raises(InputError, match=r"expected an empty checkpoint, got keys \['actor'\]"):
        ego().load_state_dict({"actor": {}})


def test_empty_action_raises():
    with pytest.raises(InputError, match="expected action_dim >= 1, got 0"):
        ego(action_dim=0)
