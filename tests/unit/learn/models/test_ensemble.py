import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from cadenza.core.errors import CheckpointError
from cadenza.learn.models.ensemble import (
    EnsembleLinearLayer,
    EnsembleOfGaussian,
    bootstrap_weights,
    gaussian_nll,
    row_keys,
    soft_clamp,
    truncated_normal_init,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rows(count: int, columns: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, columns, generator=generator(seed))


def small(**options: object) -> EnsembleOfGaussian:
    sizes = {"in_size": 2, "out_size": 1, "ensemble_size": 3, "hidden_size": 4, "num_layers": 1}
    return EnsembleOfGaussian(device="cpu", **{**sizes, **options})


def constant(member_means: list[float], logvar: float, **options: object) -> EnsembleOfGaussian:
    """Return an ensemble whose member e predicts N(member_means[e], exp(logvar)) everywhere."""
    model = small(ensemble_size=len(member_means), **options)
    with torch.no_grad():
        for parameter in model.member_parameters().values():
            parameter.zero_()
        model.max_logvar.fill_(50.0)  # bounds far away: the soft clamp is the identity
        model.min_logvar.fill_(-50.0)
        model.mean_and_logvar.bias[:, 0, 0] = torch.tensor(member_means)
        model.mean_and_logvar.bias[:, 0, 1] = logvar
    return model


def test_layer_applies_one_matrix_per_member():
    layer = EnsembleLinearLayer(2, 3, 4, generator=generator())
    with torch.no_grad():
        layer.bias.normal_(generator=generator(1))
    x = rows(5, 3)
    for rows_in in (x.unsqueeze(0), torch.stack([x, x])):
        y = layer(rows_in)
        for e in range(2):
            torch.testing.assert_close(y[e], x @ layer.weight[e] + layer.bias[e])


@pytest.mark.parametrize("layer", [torch.nn.Linear(16, 50), EnsembleLinearLayer(3, 16, 50)])
def test_truncated_init_has_the_spread_of_its_input_size(layer: torch.nn.Module):
    truncated_normal_init(layer, generator=generator())
    spread = 1.0 / (2.0 * math.sqrt(16))
    weight = layer.get_parameter("weight").detach()
    assert float(weight.abs().max()) <= 2.0 * spread
    # a normal cut at 2 sigma has standard deviation 0.8796 sigma
    assert float(weight.std()) == pytest.approx(0.8796 * spread, rel=0.1)
    assert not layer.get_parameter("bias").any()


def test_learned_bounds_are_trained():
    model = small(learn_logvar_bounds=True)
    loss, _ = model.loss(rows(4, 2), rows(4, 1))
    loss.backward()
    assert model.max_logvar.grad is not None
    assert small().max_logvar.requires_grad is False


def test_weights_come_from_the_seed_and_not_from_the_global_generator():
    before = torch.get_rng_state()
    same = [small(seed=3).mean_and_logvar.weight for _ in range(2)]
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(*same)
    assert not torch.equal(same[0], small(seed=4).mean_and_logvar.weight)
    assert not torch.equal(same[0][0], same[0][1])  # members differ


def test_soft_clamp_is_the_formula():
    v, low, high = 1.3, -2.0, 0.5
    expected = high - math.log1p(math.exp(high - v))
    expected = low + math.log1p(math.exp(expected - low))
    result = soft_clamp(torch.tensor(v), torch.tensor(low), torch.tensor(high))
    assert float(result) == pytest.approx(expected, rel=1e-6)
    far = torch.tensor([-1e4, 1e4])
    clamped = soft_clamp(far, torch.tensor(low), torch.tensor(high))
    np.testing.assert_allclose(clamped.numpy(), [low, high - 0.0], atol=0.1)


def test_nll_equals_torch_and_floors_the_variance():
    mean, logvar, target = rows(6, 2), rows(6, 2, 1), rows(6, 2, 2)
    expected = functional.gaussian_nll_loss(mean, target, logvar.exp(), reduction="none")
    torch.testing.assert_close(gaussian_nll(mean, logvar, target), expected)
    floored = gaussian_nll(torch.zeros(1), torch.tensor([-100.0]), torch.zeros(1))
    assert float(floored) == pytest.approx(0.5 * math.log(1e-6))


def test_loss_is_the_sum_over_members_plus_the_bounds():
    model = constant([0.0, 1.0], logvar=math.log(4.0))
    target = torch.tensor([[1.0], [3.0]])
    # member 0: (1 + 9) / 2 = 5 squared error, member 1: (0 + 4) / 2 = 2
    members = 0.5 * (math.log(4.0) + 5.0 / 4.0) + 0.5 * (math.log(4.0) + 2.0 / 4.0)
    loss, info = model.loss(torch.zeros(2, 2), target)
    assert loss.item() == pytest.approx(members + 0.01 * (50.0 + 50.0), rel=1e-5)
    assert info == {}


def test_bootstrap_weighs_every_row_by_its_count():
    model = constant([0.0, 1.0], logvar=0.0, bootstrap=True, seed=5)
    x, y = rows(8, 2), rows(8, 1, 1)
    weights = bootstrap_weights(row_keys(x), members=2, seed=5).numpy()
    expected = 0.01 * 100.0
    for e, mean in enumerate([0.0, 1.0]):
        nll = 0.5 * (y[:, 0].numpy() - mean) ** 2
        expected += np.sum(weights[e] * nll) / weights[e].sum()
    assert model.loss(x, y)[0].item() == pytest.approx(expected, rel=1e-5)
    keys = row_keys(x + 1.0)
    assert model.loss(x, y, keys)[0].item() != pytest.approx(expected, rel=1e-5)


def test_forward_averages_means_and_log_variances_of_the_elites():
    model = constant([0.0, 3.0, 9.0], logvar=0.5)
    mean, logvar = model(torch.zeros(2, 2))
    assert mean.flatten().tolist() == [4.0, 4.0]
    assert logvar[0, 0].item() == pytest.approx(0.5)
    elite = constant([0.0, 3.0, 9.0], logvar=0.5, num_elites=2)
    elite.set_elites(torch.tensor([1.0, 5.0, 2.0]))
    assert elite.elites.tolist() == [0, 2]
    assert elite(torch.zeros(1, 2))[0].item() == 4.5


def test_average_sample_is_one_normal_draw_around_the_mean():
    model = constant([1.0, 3.0], logvar=math.log(0.25))
    noise = torch.randn(4, 1, generator=generator(7))
    sample = model.sample(torch.zeros(4, 2), generator(7))
    torch.testing.assert_close(sample, 2.0 + 0.5 * noise)


def test_random_propagation_draws_a_member_per_row_uniformly():
    model = constant([0.0, 10.0, 20.0], logvar=0.0, deterministic=True, propagation="random")
    sample = model.sample(torch.zeros(3000, 2), generator()).flatten()
    shares = [float((sample == value).float().mean()) for value in (0.0, 10.0, 20.0)]
    assert min(shares) > 0.30
    assert sum(shares) == pytest.approx(1.0)
    # averaging would hide the disagreement: it predicts 10 everywhere
    average = constant([0.0, 10.0, 20.0], logvar=0.0, deterministic=True)
    assert set(average.sample(torch.zeros(9, 2), generator()).flatten().tolist()) == {10.0}


def test_random_propagation_uses_elites_only():
    model = constant(
        [0.0, 10.0, 20.0], logvar=0.0, deterministic=True, propagation="random", num_elites=2
    )
    model.set_elites(torch.tensor([5.0, 1.0, 1.0]))
    assert set(model.sample(torch.zeros(200, 2), generator()).flatten().tolist()) == {10.0, 20.0}


def test_member_errors_are_mean_squares():
    model = constant([0.0, 1.0], logvar=0.0)
    errors = model.member_errors(torch.zeros(2, 2), torch.tensor([[1.0], [3.0]]))
    assert errors.tolist() == [5.0, 2.0]


def test_one_gradient_step_matches_a_network_per_member():
    """Members do not leak into each other: compare with the same layers written out."""
    model = small()
    x, y = rows(6, 2), rows(6, 1, 1)
    model.loss(x, y)[0].backward()
    first = model.hidden_layers[0]
    assert isinstance(first, EnsembleLinearLayer)
    weights = [p.detach()[1].clone().requires_grad_() for p in model.member_parameters().values()]
    hidden = torch.relu(x @ weights[0] + weights[1])
    mean, logvar = (hidden @ weights[2] + weights[3]).chunk(2, dim=-1)
    logvar = soft_clamp(logvar, model.min_logvar, model.max_logvar)
    gaussian_nll(mean, logvar, y).mean().backward()
    assert first.weight.grad is not None
    torch.testing.assert_close(first.weight.grad[1], weights[0].grad)


def test_saved_parameters_come_back(tmp_path: Path):
    path = tmp_path / "model.pt"
    model = small(seed=1, num_elites=1)
    model.set_elites(torch.tensor([2.0, 1.0, 3.0]))
    model.save(path)
    other = small(seed=2, num_elites=1)
    other.load(str(path))
    assert torch.equal(other(rows(3, 2))[0], model(rows(3, 2))[0])
    assert other.elites.tolist() == [1]
    stored = torch.load(path, weights_only=True)
    assert set(stored) == {"state_dict"}


def test_loading_another_ensemble_fails_and_changes_nothing(tmp_path: Path):
    path = tmp_path / "model.pt"
    small(hidden_size=5).save(path)
    model = small()
    before = model(rows(3, 2))[0]
    with pytest.raises(CheckpointError, match="build the model with the sizes it was saved with"):
        model.load(path)
    assert torch.equal(model(rows(3, 2))[0], before)
