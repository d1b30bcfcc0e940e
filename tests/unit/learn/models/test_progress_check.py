import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from cadenza.core.errors import CheckpointKeyError
from cadenza.learn.models.callbacks import (
    LossProgressCheck,
    LossProgressError,
    falling_trend_p_value,
)
from cadenza.learn.trainer import Trainer, TrainingShutdownException


class Scripted:
    """Predicts observations and rewards of 1 that are wrong by the next numbers of scripts."""

    device = torch.device("cpu")

    def __init__(self, errors: list[float], rewards: list[float] | None = None) -> None:
        self.errors = iter(errors)
        self.rewards = None if rewards is None else iter(rewards)

    def sample(
        self, action: Tensor, observation: Tensor, rng: torch.Generator
    ) -> tuple[Tensor, Tensor | None]:
        reward = None if self.rewards is None else action * 0.0 + 1.0 + next(self.rewards)
        return observation + next(self.errors), reward


def check(model: Any, num_bp: int = 20) -> LossProgressCheck:
    return LossProgressCheck(model, num_bp)


def run(callback: LossProgressCheck, steps: int) -> None:
    obs = {"obs": torch.zeros(4, 2)}
    batch = {
        "observation": obs,
        "next_observation": obs,
        "actions": torch.zeros(4, 1),
        "rewards": torch.ones(4, 1),
        "batch_size": 4,
    }
    Trainer([callback], [{"default": batch, "batch_size": 4}] * steps).train()


def enumerated(values: list[float]) -> float:
    """Return the p-value by trying every order of as many distinct numbers."""

    def statistic(xs: Any) -> int:
        pairs = itertools.combinations(range(len(xs)), 2)
        return sum((xs[j] > xs[i]) - (xs[j] < xs[i]) for i, j in pairs)

    observed = statistic(values)
    orders = list(itertools.permutations(range(len(values))))
    return sum(statistic(order) <= observed for order in orders) / len(orders)


@pytest.mark.parametrize(
    "values", [[3, 2, 1], [1, 2, 3], [5, 3, 4, 2, 1], [1, 5, 2, 4, 3], [2, 2, 1, 1], [1, 1, 1], [1]]
)
def test_p_value_counts_the_orders_that_fall_as_much(values: list[float]):
    assert falling_trend_p_value(values) == pytest.approx(enumerated(values))


def test_falling_errors_end_training_as_a_success():
    errors = [1.0 / (1 + i) for i in range(20)]
    callback = check(Scripted(errors, errors))
    run(callback, steps=100)  # the shutdown ends it after 20: the script is exhausted then
    assert callback.scalar_logs["mbrl/obs_pred_err"] == pytest.approx(errors[-1])
    assert callback.scalar_logs["mbrl/rew_pred_err"] == pytest.approx(errors[-1])


def test_one_worse_window_does_not_fail_a_clear_trend():
    errors = [10.0, 9.0, 8.0, 7.0, 11.0, 5.0, 4.0, 3.0, 2.0, 1.0]  # window 4 beats window 0
    with pytest.raises(TrainingShutdownException, match="fell"):
        finished(errors)


@pytest.mark.parametrize("errors", [[1.0] * 10, list(map(float, range(1, 11))), [2.0, 1.0] * 5])
def test_errors_that_do_not_fall_are_reported(errors: list[float]):
    with pytest.raises(LossProgressError, match="obs prediction error to fall over 10 steps"):
        finished(errors)


def test_rewards_must_improve_too():
    errors = [float(10 - i) for i in range(10)]
    with pytest.raises(LossProgressError, match="rew prediction error"):
        run(check(Scripted(errors, [1.0] * 10), 10), steps=10)


def finished(errors: list[float]) -> None:
    """Run the check on the errors and raise what its end raises."""
    callback = check(Scripted(errors), 10)
    obs = {"obs": torch.zeros(4, 2)}
    for _ in errors:
        callback.get_batch(obs, obs, torch.zeros(4, 1), torch.zeros(4, 1))
    callback.end_cycle()


def test_windows_are_means_of_a_tenth_of_the_steps():
    # within each pair the errors rise, but the means of the pairs fall
    errors = [value for i in range(10) for value in (10.0 - i, 10.5 - i)]
    callback = check(Scripted(errors), 20)
    obs = {"obs": torch.zeros(4, 2)}
    for _ in errors:
        callback.get_batch(obs, obs, torch.zeros(4, 1), torch.zeros(4, 1))
    with pytest.raises(TrainingShutdownException):
        callback.end_cycle()


def test_resumed_check_judges_all_steps():
    errors = [float(20 - i) for i in range(20)]
    first = check(Scripted(errors))
    run_without_end(first, 10)
    second = check(Scripted(errors[10:]))
    second.load_state_dict(first.state_dict())
    run_without_end(second, 10)
    assert second.state_dict()["errors"]["obs"] == pytest.approx(errors)
    state = first.state_dict()
    del state["errors"]
    with pytest.raises(CheckpointKeyError, match="errors"):
        second.load_state_dict(state)
    fresh = check(Scripted(errors))
    fresh.load_state_dict(first.state_dict(), load_hparams=False)
    assert fresh.state_dict()["errors"]["obs"] == []


def run_without_end(callback: LossProgressCheck, steps: int) -> None:
    obs = {"obs": torch.zeros(4, 2)}
    for _ in range(steps):
        callback.get_batch(obs, obs, torch.zeros(4, 1), torch.zeros(4, 1))
