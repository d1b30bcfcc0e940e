from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cadenza.core.types import DictResponse, EpisodeState
from cadenza.learn.models.ensemble import EnsembleOfGaussian
from cadenza.learn.models.model import DynamicModel, TerminationModel
from cadenza.learn.models.model_env import ModelDivergedError, ModelEnv

START = torch.tensor([[0.0], [10.0]])


class Adder:
    """next = obs + action; the reward is the action."""

    device = torch.device("cpu")

    def sample(
        self, action: Tensor, observation: Tensor, rng: torch.Generator
    ) -> tuple[Tensor, Tensor | None]:
        return observation + action, action.clone()


def never(next_obs: Tensor) -> Tensor:
    return torch.zeros(len(next_obs), dtype=torch.bool)


def above(limit: float):
    return lambda next_obs: next_obs > limit  # shape (E, 1): flags may keep the last axis


def env(**options: Any) -> ModelEnv:
    return ModelEnv(**{"num_envs": 2, "model": Adder(), "termination_fn": never, **options})


def responses(observations: dict[int, Any], value: float) -> dict[int, DictResponse]:
    running = (EpisodeState.INITIAL, EpisodeState.RUNNING)
    return {
        agent: DictResponse({"actions": [value]}, {})
        for agent, observation in observations.items()
        if observation.episode_state in running
    }


def states(observations: dict[int, Any]) -> dict[int, str]:
    return {agent: o.episode_state.name for agent, o in observations.items()}


def values(observations: dict[int, Any]) -> dict[int, float]:
    return {agent: float(o.array_data["obs"][0]) for agent, o in observations.items()}


def test_step_returns_what_the_model_says_until_the_rollout_is_over():
    simulated = env()
    simulated.reset(START, 2)
    next_obs, rewards, dones, info = simulated.step(np.array([[1.0], [2.0]]))
    assert next_obs.tolist() == [[1.0], [12.0]]
    assert rewards.flatten().tolist() == [1.0, 2.0]
    assert dones.tolist() == [False, False]
    assert info["reached_max_len"].tolist() == [0.0, 0.0]
    _, _, _, info = simulated.step(torch.tensor([[1.0], [2.0]]))
    assert info["reached_max_len"].tolist() == [1.0, 1.0]


def test_reward_function_replaces_the_learned_reward():
    simulated = env(reward_fn=lambda actions, next_obs: 10.0 * actions + next_obs)
    simulated.reset(START, 2)
    assert simulated.step(np.ones((2, 1)))[1].flatten().tolist() == [11.0, 21.0]


def test_dict_reset_gives_fresh_ids_and_the_start():
    simulated = env()
    first = simulated.dict_reset(START, 3)
    assert states(first) == {0: "INITIAL", 1: "INITIAL"}
    assert values(first) == {0: 0.0, 1: 10.0}
    assert first[0].rewards == {"reward": None}
    assert list(simulated.dict_reset(START, 3)) == [2, 3]


def test_timed_out_episodes_are_interrupted_and_followed_by_new_ones_at_the_start():
    simulated = env()
    observations = simulated.dict_reset(START, 2)
    observations, info = simulated.dict_step(responses(observations, 1.0))
    assert info == {}
    assert states(observations) == {0: "RUNNING", 1: "RUNNING"}
    assert observations[1].rewards == {"reward": 1.0}
    observations, _ = simulated.dict_step(responses(observations, 1.0))
    assert states(observations) == {0: "INTERRUPTED", 2: "INITIAL", 1: "INTERRUPTED", 3: "INITIAL"}
    assert values(observations) == {0: 2.0, 2: 0.0, 1: 12.0, 3: 10.0}
    observations, _ = simulated.dict_step(responses(observations, 1.0))
    assert states(observations) == {2: "RUNNING", 3: "RUNNING"}  # a whole rollout follows
    assert values(observations) == {2: 1.0, 3: 11.0}


def test_done_episodes_are_terminal_and_their_state_row_really_restarts():
    simulated = env(termination_fn=above(10.5))
    observations = simulated.dict_reset(START, 5)
    observations, _ = simulated.dict_step(responses(observations, 1.0))
    assert states(observations) == {0: "RUNNING", 1: "TERMINAL", 2: "INITIAL"}
    assert values(observations) == {0: 1.0, 1: 11.0, 2: 10.0}
    observations, _ = simulated.dict_step(responses(observations, 0.25))
    # env 1 goes on from its start 10, not from the 11 where it ended
    assert values(observations) == {0: 1.25, 2: 10.25}


def test_terminal_wins_over_time_out_in_the_same_step():
    simulated = env(termination_fn=above(10.5))
    observations = simulated.dict_reset(START, 1)
    observations, _ = simulated.dict_step(responses(observations, 1.0))
    assert states(observations)[0] == "INTERRUPTED"
    assert states(observations)[1] == "TERMINAL"


def learned(ends: float) -> DynamicModel:
    """Return an identity model whose termination probability is sigmoid(``ends``)."""
    ensemble = EnsembleOfGaussian(
        in_size=2,
        out_size=2,
        device="cpu",
        ensemble_size=3,
        hidden_size=4,
        num_layers=1,
        deterministic=True,
    )
    model = DynamicModel(
        model=ensemble, termination_model=TerminationModel(in_size=3, device="cpu")
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        ensemble.mean_and_logvar.bias[:, 0, 0] = torch.tensor([1.0, 10.0, 100.0])
        assert model.termination_model is not None
        model.termination_model.net[-1].get_parameter("bias").fill_(ends)
    return model


@pytest.mark.parametrize(("logit", "probability"), [(20.0, 1.0), (-20.0, 0.0), (0.0, 0.5)])
def test_learned_ends_happen_with_the_learned_probability(logit: float, probability: float):
    simulated = ModelEnv(num_envs=2000, model=learned(logit))
    simulated.reset(torch.zeros(2000, 1), 5)
    dones = simulated.step(np.zeros((2000, 1)))[2]
    assert float(dones.float().mean()) == pytest.approx(probability, abs=0.05)


def test_fixed_members_keep_one_member_per_episode():
    simulated = ModelEnv(
        num_envs=300, model=learned(-50.0), termination_fn=never, fixed_members=True
    )
    simulated.reset(torch.zeros(300, 1), 3)
    first = simulated.step(np.zeros((300, 1)))[0]
    assert set(first.flatten().tolist()) == {1.0, 10.0, 100.0}
    assert torch.equal(simulated.step(np.zeros((300, 1)))[0], 2.0 * first)
    # without fixed members the average member answers for everyone
    average = ModelEnv(num_envs=2, model=learned(-50.0), termination_fn=never)
    average.reset(START, 3)
    assert average.step(np.zeros((2, 1)))[0].tolist() == [[37.0], [47.0]]


def test_resumed_env_goes_on_exactly():
    def fresh() -> ModelEnv:
        return ModelEnv(num_envs=4, model=learned(0.0), fixed_members=True)

    first = fresh()
    observations = first.dict_reset(torch.arange(4.0).unsqueeze(1), 3)
    observations, _ = first.dict_step(responses(observations, 1.0))
    second = fresh()
    second.load_state_dict(first.state_dict())
    for _ in range(4):
        answer = responses(observations, 1.0)
        observations, _ = first.dict_step(answer)
        copied, _ = second.dict_step(answer)
        assert states(copied) == states(observations)
        assert values(copied) == values(observations)


class Exploding(Adder):
    def sample(
        self, action: Tensor, observation: Tensor, rng: torch.Generator
    ) -> tuple[Tensor, Tensor | None]:
        return observation / 0.0, action


def test_predictions_that_are_not_finite_are_refused():
    exploding = env(model=Exploding())
    exploding.reset(START, 2)
    with pytest.raises(ModelDivergedError, match="NaN or infinity in step 0 of 2"):
        exploding.step(np.zeros((2, 1)))


def test_new_episodes_draw_a_new_member():
    simulated = ModelEnv(
        num_envs=300, model=learned(-50.0), termination_fn=never, fixed_members=True
    )
    observations = simulated.dict_reset(torch.zeros(300, 1), 1)
    ends: list[np.ndarray] = []
    for _ in range(2):
        observations, _ = simulated.dict_step(responses(observations, 0.0))
        final = [v for v in values(observations).values() if v != 0.0]
        ends.append(np.array(final))
    assert 0.5 < float((ends[0] != ends[1]).mean()) < 0.8  # 2/3 draw another one
