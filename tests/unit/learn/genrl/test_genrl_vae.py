import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cadenza.core.errors import InputError
from cadenza.learn.algorithms.genrl import (
    FullyConnectedDecoder,
    FullyConnectedEncoder,
    VAELoss,
    VariationalAutoencoder,
    kl_to_standard_normal,
    kl_upper_form,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def vae(condition: int = 0, data: int = 3, latent: int = 2, **options: Any):
    return VariationalAutoencoder(
        FullyConnectedEncoder(data, latent, "cpu", [16], condition),
        FullyConnectedDecoder(latent, data, "cpu", [16], condition),
        "cpu",
        **{"init_generator": generator(5), **options},
    )


def vae_loss(model: VariationalAutoencoder, **options: Any) -> VAELoss:
    return VAELoss(vae=model, opt=torch.optim.Adam(model.parameters(), 1e-3), **options)


def line(count: int = 100) -> Tensor:
    """Return actions that fill a line, so one latent is enough."""
    t = torch.linspace(-0.8, 0.8, count).unsqueeze(1)
    return torch.cat([t, -0.5 * t, 0.2 * t], dim=1)


def test_exact_kl_is_torchs():
    mu, log_std = (torch.randn(5, 3, generator=generator(s)) for s in (0, 1))
    posterior = torch.distributions.Normal(mu, log_std.exp())
    prior = torch.distributions.Normal(torch.zeros(()), torch.ones(()))
    expected = torch.distributions.kl_divergence(posterior, prior).sum(dim=1).mean()
    torch.testing.assert_close(kl_to_standard_normal(mu, log_std), expected)


def test_default_kl_is_the_written_formula():
    mu = torch.tensor([[1.0, 0.0], [2.0, 0.0]])
    log_std = torch.tensor([[0.0, 0.0], [math.log(2.0), 0.0]])
    # rows: (1 + 0.5 - 0) + 1 = 2.5 and (2 + 2 - ln 2) + 1 = 5 - ln 2; minus the two latents
    expected = (2.5 + 5.0 - math.log(2.0)) / 2 - 2.0
    assert kl_upper_form(mu, log_std).item() == pytest.approx(expected)
    zero = torch.zeros(3, 2)
    assert kl_upper_form(zero, zero).item() == kl_to_standard_normal(zero, zero).item() == 0.0


def test_latent_is_mean_plus_scaled_noise():
    model = vae(generator=generator(9))
    with torch.no_grad():
        model.encoder.get_parameter("mean.bias").fill_(0.7)
        model.encoder.get_parameter("log_std.bias").fill_(math.log(0.5))
        for name in ("mean.weight", "log_std.weight"):
            model.encoder.get_parameter(name).zero_()
    x_hat, mu, log_std, latent = model(line(4))
    noise = torch.randn(4, 2, generator=generator(9))
    torch.testing.assert_close(latent, 0.7 + 0.5 * noise)
    assert latent.shape == (4, model.latent_size)
    torch.testing.assert_close(mu, torch.full((4, 2), 0.7))
    torch.testing.assert_close(log_std.exp(), torch.full((4, 2), 0.5))
    torch.testing.assert_close(x_hat, model.decoder(latent))


def test_loss_is_restore_plus_beta_times_kl():
    x, x_hat = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[1.0, 0.0, 3.0]])
    mu, log_std = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.1, -0.2]])
    for exact in (False, True):
        model = vae(beta=0.25, exact_kl=exact)
        kl = (kl_to_standard_normal if exact else kl_upper_form)(mu, log_std).item()
        loss, parts = model.loss(x, x_hat, mu, log_std)
        assert loss.item() == pytest.approx(4.0 / 3.0 + 0.25 * kl)
        assert parts["restore_loss"].item() == pytest.approx(4.0 / 3.0)
        assert parts["kl_loss"].item() == pytest.approx(kl)


def test_networks_are_initialised_anew_with_small_weights():
    model = vae()
    weights = torch.cat([m.weight.flatten() for m in model.modules() if isinstance(m, nn.Linear)])
    assert float(weights.detach().std()) == pytest.approx(1e-3, rel=0.2)
    biases = [m.bias for m in model.modules() if isinstance(m, nn.Linear)]
    assert not any(bool(b.any()) for b in biases if b is not None)


def test_condition_comes_from_the_named_observation():
    model = vae(condition=1)
    loss = vae_loss(model, input_key="features", conditioning_func=lambda obs: obs[:, :1])
    seen: list[Tensor] = []
    model.encoder.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[1]))
    loss.backward({"features": line() + 1.0}, line())
    assert torch.equal(seen[0], line()[:, :1] + 1.0)
    with pytest.raises(InputError, match=r"observation\['features'\], got the keys \['obs'\]"):
        loss.backward({"obs": line()}, line())


def test_resumed_training_equals_an_unbroken_one():
    def fresh() -> VAELoss:
        return vae_loss(vae())

    whole, half, resumed = fresh(), fresh(), fresh()
    for _ in range(6):
        whole.backward({"obs": line()}, line())
    for _ in range(3):
        half.backward({"obs": line()}, line())
    resumed.load_state_dict(half.state_dict())
    for _ in range(3):
        resumed.backward({"obs": line()}, line())
    expected = whole.vae.state_dict()
    for name, value in resumed.vae.state_dict().items():
        assert torch.equal(value, expected[name]), name  # the noise generator is among them


def test_sizes_of_encoder_and_decoder_must_fit():
    encoder = FullyConnectedEncoder(3, 2, "cpu", [4])
    with pytest.raises(InputError, match=r"expected decoder.input_size = 2 .* got 5"):
        VariationalAutoencoder(encoder, FullyConnectedDecoder(5, 3, "cpu", [4]), "cpu")
    with pytest.raises(InputError, match="decoder: expected a module with the attributes"):
        VariationalAutoencoder(encoder, nn.Linear(2, 3), "cpu")
    with pytest.raises(InputError, match=r"encoder: .* Linear without device"):
        VariationalAutoencoder(nn.Linear(3, 2), FullyConnectedDecoder(2, 3, "cpu", [4]), "cpu")


@pytest.mark.parametrize("kind", [FullyConnectedEncoder, FullyConnectedDecoder])
def test_fully_connected_sizes_are_checked(kind: Any):
    for arguments in ((0, 2, "cpu", [4]), (2, 2, "cpu", []), (2, 2, "cpu", [4], -1)):
        with pytest.raises(InputError, match=f"{kind.__name__}: .*expected .* >= [01], got"):
            kind(*arguments)
    module = kind(2, 2, "cpu", [4], 3)
    with pytest.raises(InputError, match="condition with 3 columns, got 0"):
        module(torch.zeros(1, 2))
    with pytest.raises(InputError, match="condition with 3 columns, got 1"):
        module(torch.zeros(1, 2), torch.zeros(1, 1))


def test_encoder_attributes_are_those_of_the_contract():
    encoder = FullyConnectedEncoder(3, 2, "cpu", [4, 5], 1)
    decoder = FullyConnectedDecoder(2, 3, "cpu", [4, 5], 1)
    assert (encoder.input_size, encoder.output_size, encoder.condition_size) == (3, 2, 1)
    assert (decoder.input_size, decoder.output_size, decoder.condition_size) == (2, 3, 1)
    mean, log_std = encoder(torch.zeros(7, 3), torch.zeros(7, 1))
    assert mean.shape == log_std.shape == (7, 2)
    assert decoder(mean, torch.zeros(7, 1)).shape == (7, 3)
