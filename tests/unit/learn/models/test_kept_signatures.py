"""Code written for the engine this package follows passes these arguments, in this order."""

import inspect
from typing import Any

import pytest

from cadenza.learn.algorithms.genrl import (
    DecoderWrapper,
    EncoderWrapper,
    MemoryProxyWithEncoder,
    PolicyWrapper,
    VAELoss,
    VariationalAutoencoder,
)
from cadenza.learn.models import callbacks, ensemble, model, model_env
from cadenza.learn.nn import curl, layers

#: Class or method, and its arguments in order; `*` before those that are keywords only.
KEPT: dict[Any, str] = {
    model.DynamicModel: "*, model, learned_rewards=True, obs_process_fn=None, no_delta_list=None",
    model.DynamicModel.loss: "obs, next_obs, action, reward",
    model.DynamicModel.sample: "action, observation, rng",
    model.DynamicModel.process_batch: "obs, next_obs, action, reward",
    model.DynamicModel.get_model_input: "obs, action",
    model.DeterministicModel: "in_size, out_size, device, hidden_size=256, num_hidden_layers=4",
    model.Normalizer: "",
    model.Normalizer.update_stats: "data",
    model.Normalizer.normalize: "val, update_state=False",
    model.Normalizer.denormalize: "val",
    ensemble.EnsembleLinearLayer: "num_members, in_size, out_size",
    ensemble.truncated_normal_init: "m",
    ensemble.EnsembleOfGaussian: (
        "*, in_size, out_size, device, num_layers=4, ensemble_size=1, hidden_size=256, "
        "learn_logvar_bounds=False, deterministic=False"
    ),
    ensemble.EnsembleOfGaussian.loss: "model_in, target",
    ensemble.EnsembleOfGaussian.sample: "model_input, rng",
    model_env.ModelEnv: (
        "*, num_envs, model, termination_fn=None, reward_fn=None, generator=None, input_key='obs'"
    ),
    model_env.ModelEnv.reset: "initial_obs_batch, len_rollout",
    model_env.ModelEnv.step: "actions",
    model_env.ModelEnv.dict_reset: "obs, len_rollout",
    model_env.ModelEnv.dict_step: "actions",
    callbacks.ModelLoss: (
        "*, model, opt, lr_schedule=None, max_grad_norm=10.0, name='dynamic_model', "
        "data_group='default', input_key='obs'"
    ),
    callbacks.ModelBasedCollector: (
        "model_env, agent, memory, rollout_scheduler, num_bp_to_retain_buffer=1000000, "
        "data_group='default', input_key='obs'"
    ),
    callbacks.BatchSampler: (
        "dataloader, prob_scheduler, data_group='default', rl_data_group='rl_buffer', "
        "generator=None"
    ),
    callbacks.LossProgressCheck: "model, num_bp, data_group='default', input_key='obs'",
    VariationalAutoencoder: "encoder, decoder, device, beta=0.01",
    VariationalAutoencoder.loss: "x, x_hat, mu, log_std",
    VAELoss: (
        "*, vae, opt, lr_schedule=None, max_grad_norm=10.0, name='vae', data_group='default', "
        "input_key='obs'"
    ),
    DecoderWrapper: "decoder, condition_fn, latent_multiplier=3.0",
    EncoderWrapper: "encoder, condition_fn",
    PolicyWrapper: "decoder, policy",
    PolicyWrapper.forward: "obs, epsilon=None",
    MemoryProxyWithEncoder: (
        "memory_table, encoder, minimum_length_threshold=None, use_terminal=False, "
        "input_key='obs', action_key='actions'"
    ),
    layers.Conv2dEncoder: (
        "input_shape, channels, kernels, strides, padding, channels_last=True, "
        "activation=ReLU, flatten=True"
    ),
    layers.Conv1dEncoder: (
        "input_shape, channels, kernels, strides, padding, activation=ReLU, flatten=True, "
        "name='conv1d', channels_last=True"
    ),
    curl.ImageAugmentor: (
        "device, use_fast_augment=True, use_noise_aug=True, use_per_image_mask_size=False, "
        "min_mask_relative_size=0.2, max_mask_relative_size=0.4"
    ),
    curl.soft_update_from_to: "source_params, target_params, tau",
    curl.rand_uniform: "minval, maxval, shape",
    curl.CurlLoss: (
        "encoder_model, target_encoder_model, device, learning_rate, "
        "learning_rate_start_frac=1.0, learning_rate_end_frac=1.0, learning_rate_steps=1, "
        "max_grad_norm=1.0, data_group='default', desired_zdim=128, tau=0.005, "
        "use_noise_aug=False, temperature=0.1, use_temperature_variant=True, "
        "use_per_image_mask_size=False, use_fast_augment=False, use_projection_layer=True, "
        "augment_anchor_and_pos=True, log_images=True"
    ),
    curl.CurlLoss.backward: "observation",
}


def written(parameter: inspect.Parameter) -> str:
    default = parameter.default
    if default is inspect.Parameter.empty:
        return parameter.name
    return f"{parameter.name}={getattr(default, '__name__', None) or repr(default)}"


@pytest.mark.parametrize("thing", KEPT, ids=lambda thing: thing.__qualname__)
def test_arguments_and_defaults_are_kept_and_the_rest_is_optional(thing: Any):
    function = thing.__init__ if inspect.isclass(thing) else thing
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    star, expected = KEPT[thing].startswith("*, "), KEPT[thing].removeprefix("*, ")
    names = [each.partition("=")[0] for each in expected.split(", ")] if expected else []
    if star:  # callers cannot see the order of keywords
        parameters.sort(key=lambda p: names.index(p.name) if p.name in names else len(names))
    kept, rest = parameters[: len(names)], parameters[len(names) :]
    assert ", ".join(map(written, kept)) == expected
    assert {p.kind is inspect.Parameter.KEYWORD_ONLY for p in kept} <= {star}
    rest = [p for p in rest if p.kind is not inspect.Parameter.VAR_KEYWORD]
    assert all(p.default is not inspect.Parameter.empty for p in rest)
