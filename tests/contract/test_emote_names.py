"""What code written for Emote calls: names, order of parameters, keywords and defaults stay."""

import pytest
from torch import nn, optim

from cadenza.learn import Callback, Trainer
from cadenza.learn.callbacks import LossCallback
from tests.contract.promises import broken, faults, promises

PROMISES = """
[cadenza.core.deprecation]
deprecated(original_function=None, *, reason, max_warn_count=10, version=None)
[cadenza.core.schedules]
BPStepScheduler(bp_step_begin, bp_step_end, value_min, value_max) .evaluate_at(bp)
Schedule(initial, final, steps) .value .step()
ConstantSchedule(value)
LinearSchedule(initial, final, steps, use_staircase=False, staircase_steps=5) .step()
CyclicSchedule(initial, final, half_period_steps, mode='triangular') .step()
CosineAnnealing(initial, final, steps) .step()
CosineAnnealingWarmRestarts(initial, final, steps) .step()
truncated_linear(min_x, max_x, min_y, max_y, x)
[cadenza.core.spaces]
BoxSpace(dtype, shape)
DictSpace(spaces)
MDPSpace(rewards, actions, state)
[cadenza.core.threads]
LockedResource(data) .swap(new_resource)
AtomicContainer(initial_data=None) .take() .read() .set(value)
AtomicInt(value=0) .swap(value) .increment(value=1)
TracedLock(lock_class=...)
[cadenza.core.timing]
StatisticsAccumulator .add(value) .current()
WelfordAccumulator() .add(value) .current()
MovingWindowAccumulator()
TimedBlock(tracker_type=...) .mean() .var() .stats()
BlockTimers(tracker_type=...) .scope(name) .stats()
[cadenza.core.types]
EpisodeState
MetaData(info, info_lists)
DictObservation(rewards, episode_state, array_data, metadata=None)
DictResponse(list_data, scalar_data)
WeakReference
[cadenza.learn.algorithms.action_symmetry]
ActionSymmetryDiscriminatorLoss(discriminator, right_action_map_fn, left_action_map_fn,
    grad_loss_weight, optimizer, lr_schedule, max_grad_norm, data_group, name) .loss(actions)
ActionSymmetryAMPReward(discriminator, right_action_map_fn, left_action_map_fn,
    confusion_reward_weight, data_group) .begin_batch(actions, rewards)
[cadenza.learn.algorithms.amp]
gradient_loss_function(model_output, model_input)
DiscriminatorLoss(discriminator, imitation_state_map_fn, policy_state_map_fn, grad_loss_weight,
    optimizer, lr_schedule, max_grad_norm, input_key='features', name='Discriminator')
    .loss(imitation_batch, policy_batch)
AMPReward(discriminator, state_map_fn, style_reward_weight, rollout_length, observation_key,
    data_group) .begin_batch(observation, next_observation, rewards)
[cadenza.learn.algorithms.dqn]
QTarget(*, q_net, target_q_net=None, gamma=0.99, reward_scale=1.0, target_q_tau=0.005,
    data_group='default', roll_length=1) .begin_batch(next_observation, rewards, masks) .end_batch()
QLoss(*, name, q, opt, lr_schedule=None, max_grad_norm=10.0, data_group='default',
    log_per_param_weights=False, log_per_param_grads=False) .loss(observation, q_target, actions)
[cadenza.learn.algorithms.genrl]
MemoryProxyWithEncoder(memory_table, encoder, minimum_length_threshold=None, use_terminal=False,
    input_key='obs', action_key='actions') .add(observations, responses)
[cadenza.learn.algorithms.genrl]
VariationalAutoencoder(encoder, decoder, device, beta=0.01) .forward(x, condition=None) .loss(x,
    x_hat, mu, log_std)
VAELoss(*, vae, opt, lr_schedule=None, max_grad_norm=10.0, name='vae', data_group='default',
    input_key='obs', conditioning_func=...) .loss(observation, actions)
[cadenza.learn.algorithms.genrl]
DecoderWrapper(decoder, condition_fn, latent_multiplier=3.0) .forward(latent, observation=None)
    .load_state_dict(state_dict, strict=True)
EncoderWrapper(encoder, condition_fn) .forward(action, observation=None)
    .load_state_dict(state_dict, strict=True)
PolicyWrapper(decoder, policy) .forward(obs, epsilon=None)
[cadenza.learn.algorithms.hlgauss]
LogitNet(num_bins)
QNet(logit_net, min_value, max_value) .forward() .q_from_logit(logits)
HLGaussLoss(min_value, max_value, num_bins, sigma) .forward(logits, target)
    .transform_to_probs(target)
QLoss(*, name, q, opt, lr_schedule=None, max_grad_norm=10.0, smoothing_ratio=0.75,
    data_group='default', log_per_param_weights=False, log_per_param_grads=False) .loss(observation,
    actions, q_target)
[cadenza.learn.algorithms.sac]
soft_update_from_to(source, target, tau)
QLoss(*, name, q, opt, lr_schedule=None, max_grad_norm=10.0, data_group='default',
    log_per_param_weights=False, log_per_param_grads=False) .loss(observation, actions, q_target)
QTarget(*, pi, ln_alpha, q1, q2, q1t=None, q2t=None, gamma=0.99, reward_scale=1.0,
    target_q_tau=0.005, data_group='default', roll_length=1, use_terminal_masking=False)
    .begin_batch(next_observation, rewards, masks) .end_batch()
PolicyLoss(*, pi, ln_alpha, q, opt, lr_schedule=None, q2=None, max_grad_norm=10.0, name='policy',
    data_group='default', log_per_param_weights=False, log_per_param_grads=False) .loss(observation)
AlphaLoss(*, pi, ln_alpha, opt, lr_schedule=None, n_actions, max_grad_norm=10.0, max_alpha=0.2,
    name='alpha', data_group='default', t_entropy=None) .loss(observation) .end_batch()
    .state_dict()
AgentProxyWrapper(*, inner) .__call__(observations) .input_names .output_names .policy
FeatureAgentProxy(policy, device, input_key='obs')
VisionAgentProxy(policy, device)
MultiKeyAgentProxy(policy, device, input_keys, spaces=None)
[cadenza.learn.callback]
CallbackMeta .extend(func) .keys_from_member()
Callback(cycle=None) .restore_state() .begin_training() .begin_cycle() .begin_batch() .backward()
    .end_batch() .end_cycle() .end_training() .state_dict() .load_state_dict(state_dict,
    load_network=True, load_optimizer=True, load_hparams=True)
BatchCallback(cycle=None) .get_batch()
[cadenza.learn.callbacks.checkpointing]
Restoree .state_dict() .load_state_dict
Checkpointer(*, restorees, run_root, checkpoint_interval, checkpoint_index=0,
    storage_subdirectory='checkpoints') .begin_training() .end_cycle(bp_step, bp_samples)
CheckpointLoader(*, restorees, run_root, checkpoint_index, load_weights=True, load_optimizers=True,
    load_hparams=True, storage_subdirectory='checkpoints') .restore_state()
InvalidCheckpointLocation
[cadenza.learn.callbacks.generic]
BackPropStepsTerminator(bp_steps) .end_cycle()
[cadenza.learn.callbacks.logging]
TensorboardLogger(loggables, writer, log_interval, log_by_samples=False) .begin_training(bp_step,
    bp_samples) .end_cycle(bp_step, bp_samples)
TerminalLogger(callbacks, log_interval) .log_scalars(step, suffix=None) .end_cycle(bp_step)
[cadenza.learn.callbacks.logging_mixin]
LoggingMixin(*, default_window_length=250) .log_scalar(key, value) .log_windowed_scalar(key, value)
    .log_image(key, value) .log_video(key, value) .log_histogram(key, value) .state_dict()
    .load_state_dict(state_dict, load_network=True, load_optimizer=True, load_hparams=True)
[cadenza.learn.callbacks.loss]
LossCallback(lr_schedule=None, *, name, network, optimizer, max_grad_norm, data_group,
    log_per_param_weights=False, log_per_param_grads=False) .backward()
    .log_per_param_weights_and_grads() .state_dict() .loss()
[cadenza.learn.callbacks.logging]
SystemLogger()
[cadenza.learn.callbacks.generic]
FinalLossTestCheck(callbacks, cutoffs, test_length) .end_cycle()
FinalRewardTestCheck(callback, cutoff, test_length, key='training/scaled_reward',
    use_windowed=False) .end_cycle()
[cadenza.learn.callbacks.wb_logger]
WBLogger(callbacks, config, log_interval) .begin_training(bp_step, bp_samples) .end_cycle(bp_step,
    bp_samples) .end_training()
[cadenza.learn.collectors]
GymCollector(env, agent, memory, render=True, warmup_steps=0) .collect_data()
    .collect_multiple(count)
SimpleGymCollector(env, agent, memory, render=True, warmup_steps=0, bp_steps_per_inf=10)
ThreadedGymCollector(env, agent, memory, render=True, warmup_steps=0)
[cadenza.learn.env.wrappers]
make_vision_box2d_env(environment_id, rank, seed=0, frame_stack=3, use_float_scaling=True)
[cadenza.learn.env.dict_gym_wrapper]
DictGymWrapper(vector_env) .num_envs .dict_reset() .dict_step(responses) .render()
[cadenza.learn.env.wrappers]
WarpFrame(env, width=84, height=84) .observation(frame)
FrameStack(env, n_frames) .reset() .step(action)
ScaledFloatFrame(env)
LazyFrames(frames)
[cadenza.learn.export.crud_storage]
StorageItemHandle(handle) .from_string(value)
StorageItem(handle, timestamp, filepath)
CRUDStorage(directory, prefix='', extension='bin') .create_with_data(data)
    .create_from_filepath(filepath) .create_with_saver(saver) .update(handle, data) .items()
    .delete(handle) .get(handle) .latest()
[cadenza.learn.export.onnx_exporter]
QueuedExport(metadata=None) .process(storage) .block_until_complete()
OnnxExporter(agent_proxy, spaces, requires_epsilon, directory, interval=None, prefix='savedmodel_',
    device=None) .add_metadata(key, value) .end_batch() .end_cycle() .process_pending_exports()
    .export_threadsafe(metadata=None) .export(metadata=None) .delete(handle) .get(handle) .items()
    .latest()
[cadenza.learn.algorithms.targets]
make_gamma_matrix(gamma, roll_length)
discount(rewards, values, gamma_matrix)
split_rollouts(data, rollout_len)
[cadenza.learn.memory.adaptors]
DictObsAdaptor(keys, output_keys=None, with_next=True) .__call__(result, count, sequence_length)
KeyScaleAdaptor(scale, key) .__call__(result, count, sequence_length)
KeyCastAdaptor(dtype, key) .__call__(result, count, sequence_length)
TerminalAdaptor(target_key, value_key) .__call__(result, count, sequence_length)
[cadenza.learn.memory.builder]
DictMemoryTable(*, use_terminal_column, obs_keys, columns, maxlen, length_key='actions',
    sampler=None, device)
DictObsMemoryTable(*, spaces, use_terminal_column=False, maxlen=1_000_000, device, dones_dtype=bool,
    masks_dtype=np.float32, sampler=None)
DictObsNStepMemoryTable(*, spaces, use_terminal_column, maxlen, sampler=None, device)
[cadenza.learn.memory.loading]
MemoryImporterCallback(memory_table, target_memory_name, experiment_load_dir,
    load_fname_override=None) .restore_state()
[cadenza.learn.memory.column]
Column(name, shape, dtype) .state() .load_state(config)
TagColumn(name, shape, dtype)
VirtualColumn(name, shape, dtype, target_name, mapper) .state() .load_state(config)
[cadenza.learn.memory.column]
Matrix
[cadenza.learn.memory.strategy]
CoverageBasedStrategy(alpha=0.5) .track(identity, sequence_length) .forget(identity)
CoverageBasedSampleStrategy(alpha=0.5) .sample(count, transition_count)
CoverageBasedEjectionStrategy(alpha=0.5) .sample(count)
[cadenza.learn.memory.strategy]
FifoStrategyBase() .track(identity, sequence_length) .forget(identity) .post_import() .state()
    .load_state(state)
FifoSampleStrategy(per_episode=True, random_offset=True) .sample(count, transition_count)
FifoEjectionStrategy() .sample(count)
[cadenza.learn.memory.loading]
fill_table_from_legacy_file(memory_table, path, *, read_obs=False, read_actions=False,
    read_rewards=False)
[cadenza.learn.memory.proxy]
Episode(data=...) .append(observation) .complete(observation) .from_initial(observation)
MemoryTableProxy(memory_table, minimum_length_threshold=None, use_terminal=False, *,
    name='memproxy') .name .size() .resize(new_size) .store(path) .is_initial(identity)
    .add(observations, responses) .timers()
MemoryProxyWrapper(inner) .state_dict() .load_state_dict(state_dict, load_network=True,
    load_optimizer=True, load_hparams=True)
MemoryTableProxyWrapper(*, inner)
[cadenza.learn.memory.wrappers]
LoggingProxyWrapper(inner, writer, log_interval) .state_dict() .load_state_dict(state_dict,
    load_network=True, load_optimizer=True, load_hparams=True) .add(observations, responses)
    .report(metrics, metrics_lists) .get_report(keys)
MemoryExporterProxyWrapper(memory, target_memory_name, inf_steps_per_memory_export,
    experiment_root_path, min_time_per_export=600) .add(observations, responses)
[cadenza.learn.memory.loader]
MemoryLoader(memory_table, rollout_count, rollout_length, size_key, data_group='default')
    .is_ready()
JointMemoryLoader(loaders, size_key='batch_size') .is_ready()
JointMemoryLoaderWithDataGroup(loaders, data_group, size_key='batch_size')
MemoryWarmup(loader, exporter, shutdown_signal=None) .begin_training()
[cadenza.learn.memory.segment_tree]
SegmentTree(capacity, operation, neutral_element) .reduce(start=0, end=None)
SumSegmentTree(capacity) .sum(start=0, end=None) .find_prefixsum_idx(prefixsum)
MinSegmentTree(capacity) .min(start=0, end=None)
[cadenza.learn.memory.column]
BaseStorage(shape, dtype) .get_empty_storage(count, length) .sequence_length_transform(length)
    .post_import()
TagStorage(shape, dtype) .get_empty_storage(count, length) .sequence_length_transform(length)
    .post_import()
VirtualStorage(storage, shape, dtype) .shape .get_empty_storage(count, length)
    .sequence_length_transform(length) .post_import()
NextElementMapper(storage, shape, dtype) .with_only_last(storage, shape, dtype)
NextNElementWrapper(storage, shape, dtype) .with_n(n)
SyntheticDones(storage, shape, dtype) .as_mask(storage, shape, dtype)
[cadenza.learn.memory.strategy]
Strategy() .track(identity, sequence_length) .forget(identity) .on_sample(ids_and_offsets,
    transition_count, advantages=None) .post_import() .state() .load_state(state) .clear()
    .begin_simple_import() .end_simple_import()
SampleStrategy .sample(count, transition_count)
EjectionStrategy .sample(count)
[cadenza.learn.memory.table]
TableSerializationVersion
MemoryTable .sample(count, sequence_length) .size() .full() .add_sequence(identity, sequence)
    .store(path, version=...) .restore(path, override_version=None)
ArrayMemoryTable(*, columns, maxlen, sampler, ejector, length_key='actions', adaptors=None, device)
    .resize(new_size) .clear() .sample(count, sequence_length) .size() .full()
    .add_sequence(identity, sequence) .store(path, version=...) .restore(path,
    override_version=None)
[cadenza.learn.memory.strategy]
UniformStrategyBase() .track(identity, sequence_length) .forget(identity) .post_import()
UniformSampleStrategy() .sample(count, transition_count)
UniformEjectionStrategy() .sample(count)
[cadenza.learn.models.callbacks]
ModelLoss(*, model, opt, lr_schedule=None, max_grad_norm=10.0, name='dynamic_model',
    data_group='default', input_key='obs') .loss(observation, next_observation, actions, rewards)
LossProgressCheck(model, num_bp, data_group='default', input_key='obs') .begin_batch() .end_cycle()
    .get_batch(observation, next_observation, actions, rewards)
BatchSampler(dataloader, prob_scheduler, data_group='default', rl_data_group='rl_buffer',
    generator=None) .begin_batch() .sample_model_batch() .use_model_batch()
ModelBasedCollector(model_env, agent, memory, rollout_scheduler, num_bp_to_retain_buffer=1_000_000,
    data_group='default', input_key='obs') .begin_batch() .get_batch(observation) .collect_sample()
    .update_rollout_size()
[cadenza.learn.models.ensemble]
truncated_normal_init(m)
EnsembleLinearLayer(num_members, in_size, out_size) .forward(x)
EnsembleOfGaussian(*, in_size, out_size, device, num_layers=4, ensemble_size=1, hidden_size=256,
    learn_logvar_bounds=False, deterministic=False) .default_forward(x) .forward(x) .loss(model_in,
    target) .sample(model_input, rng) .save(save_dir) .load(load_dir)
[cadenza.learn.models.model]
DynamicModel(*, model, learned_rewards=True, obs_process_fn=None, no_delta_list=None) .forward(x)
    .loss(obs, next_obs, action, reward) .sample(action, observation, rng) .get_model_input(obs,
    action) .process_batch(obs, next_obs, action, reward) .save(save_dir) .load(load_dir)
DeterministicModel(in_size, out_size, device, hidden_size=256, num_hidden_layers=4) .forward(x)
    .loss(model_in, target) .sample(model_input, rng)
Normalizer() .update_stats(data) .normalize(val, update_state=False) .denormalize(val)
[cadenza.learn.models.model_env]
ModelEnv(*, num_envs, model, termination_fn, reward_fn=None, generator=None, input_key='obs')
    .reset(initial_obs_batch, len_rollout) .step(actions) .dict_step(actions) .dict_reset(obs,
    len_rollout)
[cadenza.learn.nn.action_value_mlp]
ActionValueMlp(observation_dim, action_dim, hidden_dims) .forward(action, obs)
SharedEncoderActionValueNet(shared_enc, encoder_out_dim, action_dim, hidden_dims) .forward(action,
    obs)
[cadenza.learn.nn.curl]
soft_update_from_to(source_params, target_params, tau)
rand_uniform(minval, maxval, shape)
ImageAugmentor(device, use_fast_augment=True, use_noise_aug=True, use_per_image_mask_size=False,
    min_mask_relative_size=0.2, max_mask_relative_size=0.4) .__call__(image)
CurlLoss(encoder_model, target_encoder_model, device, learning_rate, learning_rate_start_frac=1.0,
    learning_rate_end_frac=1.0, learning_rate_steps=1, max_grad_norm=1.0, data_group='default',
    desired_zdim=128, tau=0.005, use_noise_aug=False, temperature=0.1, use_temperature_variant=True,
    use_per_image_mask_size=False, use_fast_augment=False, use_projection_layer=True,
    augment_anchor_and_pos=True, log_images=True) .backward(observation) .end_batch()
[cadenza.learn.nn.gaussian_policy]
BasePolicy() .post_process(actions) .infer(x)
GaussianPolicyHead(hidden_dim, action_dim) .forward(x, epsilon=None)
GaussianMlpPolicy(observation_dim, action_dim, hidden_dims) .forward(obs, epsilon=None)
[cadenza.learn.nn.initialization]
ortho_init_(m, gain=math.sqrt(2.0))
xavier_uniform_init_(m, gain)
normal_init_(m)
truncated_normal_(tensor, mean=0, std=1)
normal_init(m)
[cadenza.learn.nn.layers]
Conv2dEncoder(input_shape, channels, kernels, strides, padding, channels_last=True,
    activation=nn.ReLU, flatten=True) .forward(obs) .get_encoder_output_size()
Conv1dEncoder(input_shape, channels, kernels, strides, padding, activation=nn.ReLU, flatten=True,
    name='conv1d', channels_last=True) .forward(obs) .get_encoder_output_size()
[cadenza.learn.optimizers]
separate_modules_for_weight_decay(network, whitelist_weight_modules, blacklist_weight_modules,
    layers_to_exclude=None)
ModifiedAdamW(network, lr, weight_decay, whitelist_weight_modules=(nn.Linear,),
    blacklist_weight_modules=(nn.LayerNorm,), layers_to_exclude=None)
[cadenza.learn.proxies]
AgentProxy .policy .input_names .output_names
MemoryProxy .add(observations, responses)
GenericAgentProxy(policy, device, input_keys, output_keys, uses_logprobs=True, spaces=None)
    .__call__(observations) .input_names .output_names .policy
to_numpy(x)
[cadenza.learn.trainer]
StateDict .get_handle()
TrainingShutdownException
Trainer(callbacks, dataloader, batch_size_key='batch_size') .train(shutdown_signal=None)
"""


@pytest.mark.parametrize(
    ("module", "path", "parameters"),
    [pytest.param(*entry, id=f"{entry[0]}:{entry[1]}") for entry in promises(PROMISES)],
)
def test_promise_of_emote_is_kept(module, path, parameters):
    if module.endswith("wb_logger"):
        pytest.importorskip("wandb")
    assert faults(module, path, parameters) == []


def test_table_names_what_emote_has():
    entries = list(promises(PROMISES))
    assert len(entries) > 350
    assert ("cadenza.learn.trainer", "Trainer.train", "shutdown_signal=None") in entries
    assert ("cadenza.learn.callbacks.checkpointing", "Restoree", None) in entries


@pytest.mark.parametrize(
    ("function", "fault"),
    [
        (lambda b, a=1: None, "positional parameters"),
        (lambda a, c=1: None, "no parameter b"),
        (lambda a, b=2: None, "b=2, promised 1"),
        (lambda a, b=True: None, "b=True, promised 1"),
        (lambda a, b=1, *, c: None, "new parameter c without default"),
        (lambda a, b=1, /: None, "a cannot be passed by name"),
    ],
)
def test_broken_promise_is_noticed(function, fault):
    assert any(fault in found for found in broken(function, "a, b=1", is_bound=True))
    assert broken(lambda a=0, b=1, *, c=2: None, "a, b=1", is_bound=True) == []


def test_trainer_shows_what_it_runs_on():
    callbacks, batches = [Callback()], [{"batch_size": 1}]
    trainer = Trainer(callbacks, batches)
    assert (trainer.callbacks, trainer.dataloader, trainer.state) == (callbacks, batches, {})


@pytest.mark.parametrize(
    "keywords",
    [
        {"load_network": False, "load_optimizer": False, "load_hparams": False},
        {"load_weights": False, "load_optimizers": False, "load_hparams": False},
    ],
)
def test_loss_loads_by_either_set_of_keywords(keywords):
    def loss(start):
        net = nn.Linear(1, 1)
        nn.init.constant_(net.weight, start)
        return LossCallback(
            name="l",
            network=net,
            optimizer=optim.SGD(net.parameters(), 0.1),
            max_grad_norm=1.0,
            data_group=None,
        )

    saved, loaded = loss(2.0), loss(5.0)
    loaded.load_state_dict(saved.state_dict(), **keywords)
    assert loaded.network.weight.item() == 5.0
    loaded.load_state_dict(saved.state_dict(), True, False, False)
    assert loaded.network.weight.item() == 2.0
