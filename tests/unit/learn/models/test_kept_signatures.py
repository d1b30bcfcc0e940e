"""Code written for the engine this package follows passes these arguments, in this order."""

import inspect
from typing import Any

import pytest

from cadenza.learn.algorithms.genrl.proxies import MemoryProxyWithEncoder
from cadenza.learn.algorithms.genrl.vae import VAELoss, VariationalAutoencoder
from cadenza.learn.algorithms.genrl.wrappers import DecoderWrapper, EncoderWrapper, PolicyWrapper
from cadenza.learn.models import callbacks, ensemble, model, model_env
from cadenza.learn.nn import augmentation, curl, layers

NO = inspect.Parameter.empty

KEPT: dict[Any, dict[str, Any]] = {
    model.DynamicModel: {
        "*": None,
        "model": NO,
        "learned_rewards": True,
        "obs_process_fn": None,
        "no_delta_list": None,
    },
    model.DynamicModel.loss: {"obs": NO, "next_obs": NO, "action": NO, "reward": NO},
    model.DynamicModel.sample: {"action": NO, "observation": NO, "rng": NO},
    model.DynamicModel.process_batch: {"obs": NO, "next_obs": NO, "action": NO, "reward": NO},
    model.DynamicModel.get_model_input: {"obs": NO, "action": NO},
    model.DeterministicModel: {
        "in_size": NO,
        "out_size": NO,
        "device": NO,
        "hidden_size": 256,
        "num_hidden_layers": 4,
    },
    model.Normalizer: {},
    model.Normalizer.update_stats: {"data": NO},
    model.Normalizer.normalize: {"val": NO, "update_state": False},
    model.Normalizer.denormalize: {"val": NO},
    ensemble.EnsembleLinearLayer: {"num_members": NO, "in_size": NO, "out_size": NO},
    ensemble.truncated_normal_init: {"m": NO},
    ensemble.EnsembleOfGaussian: {
        "*": None,
        "in_size": NO,
        "out_size": NO,
        "device": NO,
        "num_layers": 4,
        "ensemble_size": 1,
        "hidden_size": 256,
        "learn_logvar_bounds": False,
        "deterministic": False,
    },
    ensemble.EnsembleOfGaussian.loss: {"model_in": NO, "target": NO},
    ensemble.EnsembleOfGaussian.sample: {"model_input": NO, "rng": NO},
    model_env.ModelEnv: {
        "*": None,
        "num_envs": NO,
        "model": NO,
        "termination_fn": None,
        "reward_fn": None,
        "generator": None,
        "input_key": "obs",
    },
    model_env.ModelEnv.reset: {"initial_obs_batch": NO, "len_rollout": NO},
    model_env.ModelEnv.step: {"actions": NO},
    model_env.ModelEnv.dict_reset: {"obs": NO, "len_rollout": NO},
    model_env.ModelEnv.dict_step: {"actions": NO},
    callbacks.ModelLoss: {
        "*": None,
        "model": NO,
        "opt": NO,
        "lr_schedule": None,
        "max_grad_norm": 10.0,
        "name": "dynamic_model",
        "data_group": "default",
        "input_key": "obs",
    },
    callbacks.ModelBasedCollector: {
        "model_env": NO,
        "agent": NO,
        "memory": NO,
        "rollout_scheduler": NO,
        "num_bp_to_retain_buffer": 1_000_000,
        "data_group": "default",
        "input_key": "obs",
    },
    callbacks.BatchSampler: {
        "dataloader": NO,
        "prob_scheduler": NO,
        "data_group": "default",
        "rl_data_group": "rl_buffer",
        "generator": None,
    },
    callbacks.LossProgressCheck: {
        "model": NO,
        "num_bp": NO,
        "data_group": "default",
        "input_key": "obs",
    },
    VariationalAutoencoder: {"encoder": NO, "decoder": NO, "device": NO, "beta": 0.01},
    VariationalAutoencoder.loss: {"x": NO, "x_hat": NO, "mu": NO, "log_std": NO},
    VAELoss: {
        "*": None,
        "vae": NO,
        "opt": NO,
        "lr_schedule": None,
        "max_grad_norm": 10.0,
        "name": "vae",
        "data_group": "default",
        "input_key": "obs",
    },
    DecoderWrapper: {"decoder": NO, "condition_fn": NO, "latent_multiplier": 3.0},
    EncoderWrapper: {"encoder": NO, "condition_fn": NO},
    PolicyWrapper: {"decoder": NO, "policy": NO},
    PolicyWrapper.forward: {"obs": NO, "epsilon": None},
    MemoryProxyWithEncoder: {
        "memory_table": NO,
        "encoder": NO,
        "minimum_length_threshold": None,
        "use_terminal": False,
        "input_key": "obs",
        "action_key": "actions",
    },
    layers.Conv2dEncoder: {
        "input_shape": NO,
        "channels": NO,
        "kernels": NO,
        "strides": NO,
        "padding": NO,
        "channels_last": True,
        "activation": layers.nn.ReLU,
        "flatten": True,
    },
    layers.Conv1dEncoder: {
        "input_shape": NO,
        "channels": NO,
        "kernels": NO,
        "strides": NO,
        "padding": NO,
        "activation": layers.nn.ReLU,
        "flatten": True,
        "name": "conv1d",
        "channels_last": True,
    },
    augmentation.ImageAugmentor: {
        "device": NO,
        "use_fast_augment": True,
        "use_noise_aug": True,
        "use_per_image_mask_size": False,
        "min_mask_relative_size": 0.2,
        "max_mask_relative_size": 0.4,
    },
    curl.soft_update_from_to: {"source_params": NO, "target_params": NO, "tau": NO},
    curl.rand_uniform: {"minval": NO, "maxval": NO, "shape": NO},
    curl.CurlLoss: {
        "encoder_model": NO,
        "target_encoder_model": NO,
        "device": NO,
        "learning_rate": NO,
        "learning_rate_start_frac": 1.0,
        "learning_rate_end_frac": 1.0,
        "learning_rate_steps": 1,
        "max_grad_norm": 1.0,
        "data_group": "default",
        "desired_zdim": 128,
        "tau": 0.005,
        "use_noise_aug": False,
        "temperature": 0.1,
        "use_temperature_variant": True,
        "use_per_image_mask_size": False,
        "use_fast_augment": False,
        "use_projection_layer": True,
        "augment_anchor_and_pos": True,
        "log_images": True,
    },
    curl.CurlLoss.backward: {"observation": NO},
}


@pytest.mark.parametrize("thing", KEPT, ids=lambda thing: thing.__qualname__)
def test_arguments_and_defaults_are_kept_and_the_rest_is_optional(thing: Any):
    function = thing.__init__ if inspect.isclass(thing) else thing
    parameters = list(inspect.signature(function).parameters.values())
    parameters = [p for p in parameters if p.name != "self"]
    expected = dict(KEPT[thing])
    keyword_only = "*" in expected
    expected.pop("*", None)
    assert [p.name for p in parameters[: len(expected)]] == list(expected)
    for parameter in parameters[: len(expected)]:
        assert parameter.default is expected[parameter.name] or (
            parameter.default == expected[parameter.name]
        ), parameter
        is_keyword_only = parameter.kind is inspect.Parameter.KEYWORD_ONLY
        assert is_keyword_only == keyword_only, parameter
    rest = [p for p in parameters[len(expected) :] if p.kind is not inspect.Parameter.VAR_KEYWORD]
    assert all(p.default is not NO for p in rest)
