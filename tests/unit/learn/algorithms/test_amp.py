"""Discriminator losses and style rewards against closed forms; rewards are shaped once."""

import math

import pytest
import torch
from torch import Tensor, nn

from cadenza.core.errors import ConfigurationError
from cadenza.learn.algorithms.amp import (
    AMPReward,
    DiscriminatorLoss,
    discriminator_loss,
    gradient_loss_function,
    next_states,
    style_reward,
)


class Linear(nn.Module):
    """D(x) = w · x, without bias."""

    def __init__(self, *weights: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(weights))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w.reshape(-1, 1)


def identity(x: Tensor) -> Tensor:
    return x


def column(*values: float) -> Tensor:
    return torch.tensor(values).reshape(-1, 1)


def test_gradient_loss_matches_the_derivative_of_a_known_function():
    x = torch.tensor([[0.3], [-1.2], [2.0]], requires_grad=True)
    loss = gradient_loss_function(4.0 * x**2 + torch.sin(x), x)
    expected = sum((8 * v + math.cos(v)) ** 2 for v in (0.3, -1.2, 2.0)) / 3
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_discriminator_loss_and_gradient_by_hand():
    # D = w x with w = 0.5; real x = 2 (D = 1), made x = 4 (D = 2), weight of the penalty 10.
    network = Linear(0.5)
    loss, figures = discriminator_loss(network, column(2.0), column(4.0), 10.0)
    assert figures["loss/pos_discrimination_loss"].item() == pytest.approx(0.0)
    assert figures["loss/neg_discrimination_loss"].item() == pytest.approx(9.0)
    assert figures["loss/grad_loss"].item() == pytest.approx(10 * 0.25)
    assert figures["predict/positive_samples_mean"].item() == pytest.approx(1.0)
    assert figures["predict/negative_samples_mean"].item() == pytest.approx(2.0)
    assert loss.item() == pytest.approx(11.5)
    loss.backward()
    # 2 (D⁺ - 1) x⁺ + 2 (D⁻ + 1) x⁻ + 10 · 2 w
    assert network.w.grad.item() == pytest.approx(0.0 + 2 * 3 * 4 + 10)


def transitions(state: Tensor, successor: Tensor) -> dict:
    return {
        "observation": {"features": state},
        "next_observation": {"features": successor},
        "batch_size": state.shape[0],
    }


def loss_of(network: nn.Module, **options) -> DiscriminatorLoss:
    arguments = {
        "discriminator": network,
        "imitation_state_map_fn": identity,
        "policy_state_map_fn": identity,
        "grad_loss_weight": 0.0,
        "optimizer": torch.optim.SGD(network.parameters(), lr=0.1),
        "lr_schedule": None,
        "max_grad_norm": 100.0,
        **options,
    }
    return DiscriminatorLoss(**arguments)


def state_of_batches(**more) -> dict:
    return {
        "imitation_batch": transitions(column(1.0, 2.0), column(3.0, 4.0)),
        "policy_batch": transitions(column(5.0), column(6.0)),
        **more,
    }


def test_loss_reads_both_groups_and_joins_state_and_successor():
    # D = 0.5 s + 0.1 s': real 0.8 and 1.4, made 3.1.
    callback = loss_of(Linear(0.5, 0.1), grad_loss_weight=2.0)
    loss = callback.loss(**state_of_batches())
    positive, negative = (0.2**2 + 0.4**2) / 2, 4.1**2
    penalty = 2.0 * (0.5**2 + 0.1**2)
    assert loss.item() == pytest.approx(positive + negative + penalty, rel=1e-5)
    logs = callback.scalar_logs
    assert logs["amp/loss/pos_discrimination_loss"] == pytest.approx(positive, rel=1e-5)
    assert logs["amp/loss/neg_discrimination_loss"] == pytest.approx(negative, rel=1e-5)
    assert logs["amp/loss/grad_loss"] == pytest.approx(penalty, rel=1e-5)
    assert logs["amp/loss/total"] == pytest.approx(loss.item())
    assert logs["amp/predict/positive_samples_mean"] == pytest.approx(1.1)
    assert logs["amp/predict/positive_samples_std"] == pytest.approx(0.6 / math.sqrt(2), rel=1e-5)
    assert logs["amp/predict/negative_samples_mean"] == pytest.approx(3.1)
    assert logs["amp/predict/negative_samples_std"] == 0.0


def test_each_side_goes_through_its_own_map():
    callback = loss_of(
        Linear(1.0, 0.0),
        imitation_state_map_fn=lambda s: s * 0.0 + 1.0,
        policy_state_map_fn=lambda s: s * 0.0 - 1.0,
    )
    assert callback.loss(**state_of_batches()).item() == 0.0


def test_style_reward_is_one_at_one_and_zero_at_minus_one():
    assert style_reward(column(1.0, -1.0, 0.0, 3.0, -2.0))[:, 0].tolist() == pytest.approx(
        [1.0, 0.0, 0.75, 0.0, -1.25]
    )


def test_next_states_of_rollouts_are_shifted_rows_with_the_last_one_appended():
    observation = torch.arange(12.0).reshape(6, 2)  # two rollouts of three rows
    following = next_states(observation, torch.tensor([[90.0, 91.0], [92.0, 93.0]]), 3)
    assert following.tolist() == [
        [2.0, 3.0],
        [4.0, 5.0],
        [90.0, 91.0],
        [8.0, 9.0],
        [10.0, 11.0],
        [92.0, 93.0],
    ]


def reward_callback(network: nn.Module | None = None, **options) -> AMPReward:
    arguments = {
        "discriminator": network or Linear(1.0, 0.0),
        "state_map_fn": identity,
        "style_reward_weight": 2.0,
        "rollout_length": 1,
        "observation_key": "pose",
        "data_group": "rl",
        **options,
    }
    return AMPReward(**arguments)


def rl_state(states=(1.0, -1.0), following=(0.0, 0.0), rewards=(10.0, 20.0)) -> dict:
    return {
        "rl": {
            "observation": {"pose": column(*states)},
            "next_observation": {"pose": column(*following)},
            "rewards": column(*rewards),
        }
    }


def test_rewards_get_the_weighted_style_reward():
    callback = reward_callback()
    state = rl_state()
    assert callback.begin_batch(**state) == {}
    assert state["rl"]["rewards"][:, 0].tolist() == [12.0, 20.0]  # style 1 and 0
    assert state["rl"]["task_rewards"][:, 0].tolist() == [10.0, 20.0]
    assert state["rl"]["style_rewards"][:, 0].tolist() == [2.0, 0.0]
    assert not state["rl"]["rewards"].requires_grad
    assert {key: round(value, 5) for key, value in callback.scalar_logs.items()} == {
        "amp/unscaled_style_reward": 0.5,
        "amp/task_reward": 15.0,
        "amp/scaled_style_reward": 1.0,
        "amp/total_reward": 16.0,
        "amp/predicts_mean": 0.0,
        "amp/predicts_std": round(math.sqrt(2.0), 5),
    }


def test_rollouts_are_judged_step_by_step():
    callback = reward_callback(Linear(0.0, 1.0), rollout_length=2, style_reward_weight=1.0)
    state = rl_state(states=(0.0, 1.0, 0.0, -1.0), following=(-1.0, 1.0), rewards=(0.0,) * 4)
    callback.begin_batch(**state)
    # Successors 1, -1 and -1, 1 are the scores.
    assert state["rl"]["rewards"][:, 0].tolist() == [1.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize(("clamp", "expected"), [(False, -1.25), (True, 0.0)])
def test_style_reward_below_zero_is_clamped_on_request(clamp, expected):
    callback = reward_callback(clamp_style_reward=clamp, style_reward_weight=1.0)
    state = rl_state(states=(-2.0,), following=(0.0,), rewards=(0.0,))
    callback.begin_batch(**state)
    assert state["rl"]["rewards"].item() == pytest.approx(expected)


def test_shaping_one_batch_twice_is_an_error():
    callback = reward_callback()
    state = rl_state()
    callback.begin_batch(**state)
    with pytest.raises(ConfigurationError, match=r"was shaped by \['AMPReward'\]; list each"):
        callback.begin_batch(**state)
    assert state["rl"]["rewards"][:, 0].tolist() == [12.0, 20.0]


def test_two_shapers_with_names_of_their_own_add_up():
    state = rl_state()
    reward_callback().begin_batch(**state)
    reward_callback(style_reward_weight=1.0, name="second").begin_batch(**state)
    assert state["rl"]["rewards"][:, 0].tolist() == [13.0, 20.0]
    assert state["rl"]["task_rewards"][:, 0].tolist() == [10.0, 20.0]
    assert state["rl"]["shaped_by"] == ("AMPReward", "second")
