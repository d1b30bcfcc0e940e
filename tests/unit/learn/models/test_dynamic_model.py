from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from cadenza.learn.models.ensemble import EnsembleOfGaussian, row_keys
from cadenza.learn.models.model import DeterministicModel, DynamicModel, TerminationModel

RNG = torch.Generator()
OBS = torch.tensor([[0.0, 1.0], [2.0, 1.0], [4.0, 5.0]])
NEXT = torch.tensor([[1.0, 0.0], [4.0, 2.0], [7.0, 4.0]])
ACTION = torch.tensor([[1.0], [0.0], [-1.0]])
REWARD = torch.tensor([[1.0], [2.0], [6.0]])


class Echo(nn.Module):
    """Predicts a constant, and remembers what it was asked."""

    def __init__(self, prediction: list[float]) -> None:
        super().__init__()
        self.device = torch.device("cpu")
        self.prediction = nn.Parameter(torch.tensor(prediction))
        self.dropout = nn.Dropout(0.5)
        self.was_training: bool | None = None
        self.asked = torch.zeros(0)

    def loss(self, model_in: Tensor, target: Tensor) -> tuple[Tensor, dict[str, Any]]:
        self.asked = target
        return functional.mse_loss(self.prediction.expand_as(target), target), {"rows": len(target)}

    def sample(self, model_input: Tensor, rng: torch.Generator) -> Tensor:
        self.was_training = self.training
        self.asked = model_input
        return self.prediction.repeat(len(model_input), 1)


def fitted(**options: Any) -> DynamicModel:
    model = DynamicModel(model=Echo([1.0, -1.0, 2.0]), **options)
    model.process_batch(OBS, NEXT, ACTION, REWARD)
    return model


def columns(rows: Tensor) -> tuple[Tensor, Tensor]:
    return rows.mean(dim=0), rows.std(dim=0, correction=0)


def test_process_batch_normalises_inputs_and_changes():
    model = DynamicModel(model=Echo([0.0] * 3))
    model_in, target = model.process_batch(OBS, NEXT, ACTION, REWARD)
    joined = torch.cat([OBS, ACTION], dim=1)
    mean, std = columns(joined)
    torch.testing.assert_close(model_in, (joined - mean) / std)
    change = torch.tensor([[1.0, -1.0, 1.0], [2.0, 1.0, 2.0], [3.0, -1.0, 6.0]])
    mean, std = columns(change)
    torch.testing.assert_close(target, (change - mean) / std)


def test_no_delta_columns_are_predicted_as_they_are():
    model = DynamicModel(model=Echo([0.0] * 3), no_delta_list=[1])
    model.process_batch(OBS, NEXT, ACTION, REWARD)
    assert model.target_normalizer.mean.tolist() == [2.0, 2.0, 3.0]  # mean change, value, reward
    next_obs, _ = model.sample(ACTION, OBS, RNG)
    torch.testing.assert_close(next_obs, torch.tensor([[2.0, 2.0], [4.0, 2.0], [6.0, 2.0]]))


def test_sample_denormalises_and_adds_the_observation():
    model = fitted()
    change, std = columns(torch.cat([NEXT - OBS, REWARD], dim=1))
    expected = change + torch.tensor([1.0, -1.0, 2.0]) * std
    next_obs, reward = model.sample(ACTION, OBS, RNG)
    torch.testing.assert_close(next_obs, OBS + expected[:2])
    assert reward is not None
    torch.testing.assert_close(reward, expected[2:].expand(3, 1))


def test_without_learned_rewards_there_are_none():
    model = DynamicModel(model=Echo([0.0, 0.0]), learned_rewards=False)
    model.process_batch(OBS, NEXT, ACTION, REWARD)
    next_obs, reward = model.sample(ACTION, OBS, RNG)
    assert reward is None
    assert next_obs.shape == (3, 2)


def test_observations_are_processed_before_they_enter():
    process = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        process.weight.copy_(torch.tensor([[2.0, 0.0], [0.0, 0.0]]))
    model = DynamicModel(model=Echo([0.0] * 3), obs_process_fn=process)
    assert model.get_model_input(OBS, ACTION).tolist() == [[0, 0, 1], [4, 0, 0], [8, 0, -1]]
    assert "obs_process_fn.weight" in model.state_dict()


def test_sampling_freezes_batch_norm_and_dropout_and_gives_the_mode_back():
    model = fitted()
    model.train()
    model.model.get_submodule("dropout").eval()
    model.sample(ACTION, OBS, RNG)
    echo = model.model
    assert isinstance(echo, Echo)
    assert echo.was_training is False
    assert model.training
    assert not echo.dropout.training  # was off before, stays off


def test_loss_is_that_of_the_network_with_its_numbers():
    model = DynamicModel(model=Echo([0.5, 0.0, 0.0]))
    loss, info = model.loss(OBS, NEXT, ACTION, REWARD)
    # normalised targets have mean 0 and variance 1: mean over columns of 1 + 0.25, 1, 1
    assert loss.item() == pytest.approx((1.25 + 1.0 + 1.0) / 3.0, rel=1e-6)
    assert info == {"rows": 3}


def test_termination_loss_is_added_and_reported():
    ends = TerminationModel(in_size=5, device="cpu")
    model = DynamicModel(model=Echo([0.0] * 3), termination_model=ends)
    flags = torch.tensor([[0.0], [1.0], [0.0]])
    loss, info = model.loss(OBS, NEXT, ACTION, REWARD, flags)
    plain, _ = DynamicModel(model=Echo([0.0] * 3)).loss(OBS, NEXT, ACTION, REWARD)
    assert loss.item() == pytest.approx(plain.item() + info["termination_loss"].item(), rel=1e-6)
    model_in, target = model.process_batch(OBS, NEXT, ACTION, REWARD)
    probability = torch.sigmoid(ends(torch.cat([model_in, target[:, :2]], dim=1))).squeeze(1)
    expected = -(1 - probability[0]).log() - probability[1].log() - (1 - probability[2]).log()
    assert info["termination_loss"].item() == pytest.approx(expected.item() / 3.0, rel=1e-5)
    torch.testing.assert_close(model.termination_probability(ACTION, OBS, NEXT), probability)


def test_bootstrap_keys_are_those_of_the_raw_transition():
    """The same transition keeps its weights although the normalisation moves on."""
    ensemble = EnsembleOfGaussian(
        in_size=3, out_size=3, device="cpu", ensemble_size=2, hidden_size=4, bootstrap=True
    )
    model = DynamicModel(model=ensemble)
    loss, _ = model.loss(OBS, NEXT, ACTION, REWARD)
    fresh = DynamicModel(model=ensemble)
    model_in, target = fresh.process_batch(OBS, NEXT, ACTION, REWARD)
    expected, _ = ensemble.loss(model_in, target, row_keys(OBS, ACTION, NEXT))
    assert loss.item() == expected.item()
    assert loss.item() != ensemble.loss(model_in, target)[0].item()


def test_member_errors_are_in_normalised_units():
    ensemble = EnsembleOfGaussian(
        in_size=3, out_size=3, device="cpu", ensemble_size=2, hidden_size=4, num_layers=1
    )
    with torch.no_grad():
        for parameter in ensemble.member_parameters().values():
            parameter.zero_()
        ensemble.mean_and_logvar.bias[1, 0, 0] = 2.0
    model = DynamicModel(model=ensemble)
    model.process_batch(OBS, NEXT, ACTION, REWARD)
    errors = model.member_errors(OBS, NEXT, ACTION, REWARD)
    # member 0 predicts the mean: error 1 in each column; member 1 is off by 2 in the first
    assert errors.tolist() == pytest.approx([1.0, (5.0 + 1.0 + 1.0) / 3.0], rel=1e-5)


def saved_model(**options: Any) -> DynamicModel:
    ensemble = EnsembleOfGaussian(in_size=3, out_size=3, device="cpu", hidden_size=4, **options)
    return DynamicModel(
        model=ensemble,
        obs_process_fn=nn.Linear(2, 2),
        termination_model=TerminationModel(in_size=5, device="cpu"),
    )


def test_saved_model_predicts_the_same_after_loading(tmp_path: Path):
    model = saved_model(deterministic=True, seed=1)
    model.process_batch(OBS, NEXT, ACTION, REWARD)
    model.save(tmp_path / "m.pt")
    other = saved_model(deterministic=True, seed=2)
    other.load(tmp_path / "m.pt")
    assert torch.equal(other.sample(ACTION, OBS, RNG)[0], model.sample(ACTION, OBS, RNG)[0])
    ends = (m.termination_probability(ACTION, OBS, NEXT) for m in (model, other))
    assert torch.equal(*ends)


def test_deterministic_model_starts_near_zero_and_trains_to_a_line():
    model = DeterministicModel(1, 1, "cpu", hidden_size=16, num_hidden_layers=1)
    weights = model.get_parameter("model.0.weight")
    assert float(weights.detach().std()) == pytest.approx(1e-3, rel=0.6)
    assert not model.get_parameter("model.3.bias").any()
    x = torch.linspace(-1, 1, 64).unsqueeze(1)
    first = model.loss(x, 2.0 * x)[0].item()
    assert first == pytest.approx((4.0 * x**2).mean().item(), rel=1e-2)  # predicts almost zero
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(200):
        optimizer.zero_grad()
        model.loss(x, 2.0 * x)[0].backward()
        optimizer.step()
    assert model.loss(x, 2.0 * x)[0].item() < 0.01 * first


def test_deterministic_sample_is_the_same_for_a_row_in_any_batch():
    model = DeterministicModel(2, 1, "cpu", hidden_size=8, num_hidden_layers=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3)
    batch = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    together = model.sample(batch, RNG)
    alone = model.sample(batch[:1], RNG)
    torch.testing.assert_close(together[:1], alone)
    assert model.training
    assert all(torch.equal(value, buffers[name]) for name, value in model.named_buffers())
