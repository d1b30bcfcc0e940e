from typing import Any

import pytest
import torch
from torch import Tensor

from cadenza.learn.algorithms.genrl import (
    DecoderWrapper,
    EncoderWrapper,
    FullyConnectedDecoder,
    FullyConnectedEncoder,
    PolicyWrapper,
    VariationalAutoencoder,
)
from cadenza.learn.nn.gaussian_policy import GaussianMlpPolicy

ACTION, LATENT, OBS, CONDITION, ROWS = 3, 2, 5, 4, 7


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def first_columns(observation: Tensor) -> Tensor:
    return observation[:, :CONDITION]


def decoder(seed: int = 0, **options: Any) -> DecoderWrapper:
    inner = FullyConnectedDecoder(LATENT, ACTION, "cpu", [8], CONDITION, generator=generator(seed))
    return DecoderWrapper(inner, first_columns, **options)


def encoder(seed: int = 0) -> EncoderWrapper:
    inner = FullyConnectedEncoder(ACTION, LATENT, "cpu", [8], CONDITION, generator=generator(seed))
    return EncoderWrapper(inner, first_columns)


def observations() -> Tensor:
    return torch.randn(ROWS, OBS, generator=generator(3))


def test_decoder_multiplies_the_latent_and_conditions_on_the_observation():
    latent = torch.rand(ROWS, LATENT, generator=generator(1))
    obs = observations()
    for multiplier in (3.0, 0.5):
        wrapped = decoder(latent_multiplier=multiplier)
        expected = wrapped.decoder(multiplier * latent, obs[:, :CONDITION])
        assert torch.equal(wrapped(latent, obs), expected)
    assert decoder().latent_multiplier == 3.0


def test_encoder_returns_the_mean():
    action = torch.rand(ROWS, ACTION, generator=generator(1))
    wrapped = encoder()
    mean, _ = wrapped.encoder(action, observations()[:, :CONDITION])
    assert torch.equal(wrapped(action, observations()), mean)


@pytest.mark.parametrize("wrapped", [decoder(), encoder()])
def test_parameters_are_frozen_but_inputs_are_not(wrapped: torch.nn.Module):
    assert not any(p.requires_grad for p in wrapped.parameters())
    sizes = {"DecoderWrapper": LATENT, "EncoderWrapper": ACTION}
    value = torch.zeros(ROWS, sizes[type(wrapped).__name__], requires_grad=True)
    wrapped(value, observations()).sum().backward()
    assert value.grad is not None
    assert bool(value.grad.any())


def checkpoint() -> dict[str, Any]:
    vae = VariationalAutoencoder(
        FullyConnectedEncoder(ACTION, LATENT, "cpu", [8], CONDITION),
        FullyConnectedDecoder(LATENT, ACTION, "cpu", [8], CONDITION),
        "cpu",
        init_generator=generator(11),
    )
    return vae.state_dict()


def test_one_checkpoint_of_the_auto_encoder_feeds_both_halves():
    state = checkpoint()
    for wrapped, half in ((decoder(), "decoder"), (encoder(), "encoder")):
        wrapped.load_state_dict(state)
        for name, value in wrapped.state_dict().items():
            assert name.startswith(half)
            assert torch.equal(value, state[name])
        assert not any(p.requires_grad for p in wrapped.parameters())


def test_actions_are_decoded_latents_of_the_policy():
    policy = GaussianMlpPolicy(OBS, LATENT, [8], init_generator=generator())
    wrapped = PolicyWrapper(decoder(), policy)
    noise = policy.policy.generator.get_state()
    action, log_probability = wrapped(observations())
    policy.policy.generator.set_state(noise)
    latent, expected = policy(observations())
    assert torch.equal(action, wrapped.decoder(latent, observations()))
    assert torch.equal(log_probability, expected)


def test_evaluation_returns_actions_only_and_cuts_the_noise_to_the_latent():
    policy = GaussianMlpPolicy(OBS, LATENT, [8], init_generator=generator())
    wrapped = PolicyWrapper(decoder(), policy).eval()
    epsilon = torch.randn(ROWS, ACTION, generator=generator(2))
    action = wrapped(observations(), epsilon)
    expected = wrapped.decoder(policy(observations(), epsilon[:, :LATENT]), observations())
    assert torch.equal(action, expected)
    greedy = wrapped(observations())
    assert torch.equal(greedy, wrapped.decoder(policy(observations()), observations()))
