"""Flags of LeRobot's commands, and of our scripts beside it; and how many tasks they play.

Source:    the flags of LeRobot 0.4.4, and the names that 0.5 and 0.6 added or changed; tasks by its
           ``envs/libero.py``, ``envs/metaworld.py``, ``envs/factory.py``.
Left out:  whatever runs or imports other people's code (``env.hub_path``, ``env.kwargs``,
           ``policy.base_model_path``, plug-ins; GR00T, pi0-FAST and WALL-X load code from the hub),
           reads settings from a file (``config_path``), touches robots, writes outside
           ``output_dir`` (``lerobot-edit-dataset``), or reports to a service. Flags of policies
           that no ladder names can be added by a file of rules.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from cadenza.core.errors import ConfigurationError, IntegrityError, nearest_name
from cadenza.core.strict_json import parse_json_object
from cadenza.loop.constitution.flags import denied, quoted
from cadenza.loop.constitution.kinds import (
    DEVICE,
    NAME,
    REPOSITORY,
    Boolean,
    Choice,
    FilePath,
    Integer,
    Kind,
    Listing,
    Number,
    Renaming,
    Switch,
    Text,
    Weights,
)
from cadenza.loop.constitution.programs import (
    EvalJob,
    HarvestJob,
    MergeJob,
    Program,
    SelectJob,
    TrainJob,
    each,
)

#: Types of policies that train on recorded data alone, without other people's code.
POLICY_TYPES: Final = ("act", "diffusion", "pi0", "pi05", "smolvla", "tdmpc", "vqbet", "xvla")
#: Fewer tasks than the suite has, and recorded states that no seed chooses.
_EASIER: Final = ("--env.task_ids=", "--env.init_states=true")
#: Processor steps, as LeRobot registers them, that these policies are saved with. Left out:
#: ``action_tokenizer_processor`` and ``reward_classifier_processor``, which load code of the hub.
_STEPS: Final = (
    *("rename_observations_processor", "to_batch_processor", "device_processor"),
    *("normalizer_processor", "unnormalizer_processor", "tokenizer_processor"),
    *("smolvla_new_line_processor", "pi0_new_line_processor"),
    *("pi05_prepare_state_tokenizer_processor_step", "libero_processor", "xvla_image_scale"),
    *("xvla_image_to_float", "xvla_imagenet_normalize", "xvla_add_domain_id"),
    "xvla_rotation_6d_to_axis_angle",
)
#: Repositories of their language models and tokenizers, which LeRobot's own code names.
_COMPANIONS: Final = (
    "HuggingFaceTB/SmolVLM2-500M-Video-Instruct",
    "google/paligemma-3b-pt-224",
    "facebook/bart-large",
)
#: What LeRobot's seeds lie below: those of its environments' own generators.
_SEED_LIMIT: Final = 2**32

_COUNT: Final = Integer(1)
_WHOLE: Final = Integer(0, 10**9)
_SIZE: Final = Integer(1, 2**16)
_REAL: Final = Number()
_WEIGHTS: Final = Weights(POLICY_TYPES, _STEPS, _COMPANIONS)
_SEED: Final = Integer(0, _SEED_LIMIT - 1)
_TRUTH: Final = Boolean()
_READ: Final = FilePath()
_WRITE: Final = FilePath(write=True)
_NO_HUB: Final = Boolean(only=False, rule="push_to_hub")
_SIZES: Final = Listing(_SIZE, brackets=True, longest=64)
_NAMES: Final = Listing(NAME, longest=1000)


def _keys(prefix: str, names: str, kind: Kind) -> dict[str, Kind]:
    return {f"{prefix}{name}": kind for name in names.split()}


#: Sizes and switches of the policies; none of them leads outside the process.
_POLICY: Final[dict[str, Kind]] = {
    "policy.device": DEVICE,
    "policy.push_to_hub": _NO_HUB,
    "policy.repo_id": REPOSITORY,
    "policy.use_amp": _TRUTH,
    **_keys(
        "policy.",
        "n_obs_steps chunk_size n_action_steps dim_model n_heads dim_feedforward n_encoder_layers "
        "n_decoder_layers latent_dim n_vae_encoder_layers horizon diffusion_step_embed_dim "
        "num_train_timesteps num_inference_steps kernel_size n_groups max_state_dim "
        "max_action_dim spatial_softmax_num_keypoints tokenizer_max_length max_action_tokens",
        _SIZE,
    ),
    **_keys(
        "policy.",
        "optimizer_lr optimizer_weight_decay optimizer_lr_backbone optimizer_eps "
        "optimizer_grad_clip_norm scheduler_decay_lr dropout kl_weight crop_ratio "
        "temporal_ensemble_coeff beta_start beta_end clip_sample_range min_period max_period",
        _REAL,
    ),
    **_keys(
        "policy.",
        "drop_n_last_frames scheduler_warmup_steps scheduler_decay_steps empty_cameras "
        "num_vlm_layers num_expert_layers self_attn_every_n_layers",
        _WHOLE,
    ),
    **_keys(
        "policy.",
        "pre_norm use_vae crop_is_random use_group_norm use_film_scale_modulation clip_sample "
        "use_separate_rgb_encoder_per_camera do_mask_loss_for_padding gradient_checkpointing "
        "compile_model freeze_vision_encoder train_expert_only train_state_proj use_cache "
        "replace_final_stride_with_dilation use_kv_cache",
        _TRUTH,
    ),
    **_keys(
        "policy.",
        "vision_backbone feedforward_activation noise_scheduler_type beta_schedule compile_mode "
        "prediction_type scheduler_name dtype paligemma_variant action_expert_variant "
        "pretrained_backbone_weights attention_mode",
        NAME,
    ),
    **_keys("policy.", "down_dims crop_shape resize_shape image_resolution", _SIZES),
}

#: What an environment is made with; equal in training, evaluation and harvest.
_ENVIRONMENT: Final[dict[str, Kind]] = {
    "env.type": NAME,
    "env.task": _NAMES,
    "env.fps": Integer(1, 1000),
    "env.episode_length": _COUNT,
    "env.max_parallel_tasks": _SIZE,
    "env.obs_type": NAME,
    "env.render_mode": NAME,
    "env.camera_name": _NAMES,
    "env.control_mode": NAME,
    "env.init_states": _TRUTH,
    "env.multitask_eval": _TRUTH,
    "env.disable_env_checker": _TRUTH,
    "env.task_ids": Listing(Integer(0, 10_000), brackets=True),
    "env.camera_name_mapping": Renaming(),
    **_keys(
        "env.",
        "observation_height observation_width visualization_height visualization_width",
        Integer(1, 8192),
    ),
}

_EVALUATION: Final[dict[str, Kind]] = {
    "eval.n_episodes": _COUNT,
    "eval.batch_size": _SIZE,
    "eval.use_async_envs": _TRUTH,
}

_COMMON: Final[dict[str, Kind]] = {
    "output_dir": _WRITE,
    "job_name": NAME,
    "seed": _SEED,
    "rename_map": Renaming(),
}

TRAIN: Final = Program(
    words=("lerobot-train",),
    job=TrainJob,
    keys={
        "policy.type": Choice(POLICY_TYPES),
        "policy.path": _WEIGHTS,
        **_POLICY,
        "dataset.repo_id": REPOSITORY,
        "dataset.root": _READ,
        "dataset.episodes": Listing(Integer(0, 2**31), brackets=True),
        "dataset.revision": NAME,
        "dataset.use_imagenet_stats": _TRUTH,
        "dataset.video_backend": Choice(("pyav", "torchcodec", "video_reader")),
        "dataset.streaming": _TRUTH,
        "mix.repo_id": REPOSITORY,  # read by the script that starts LeRobot's training
        "mix.root": _READ,
        "mix.ratio": Number(0.0, 1.0),
        "dataset.image_transforms.enable": _TRUTH,
        "dataset.image_transforms.max_num_transforms": _SIZE,
        "dataset.image_transforms.random_order": _TRUTH,
        **_COMMON,
        "steps": _COUNT,
        "batch_size": _SIZE,
        "num_workers": Integer(0, 256),
        **_keys("", "eval_freq env_eval_freq eval_steps log_freq save_freq", _WHOLE),
        "save_checkpoint": _TRUTH,
        "tolerance_s": _REAL,
        "use_policy_training_preset": _TRUTH,
        "use_rabc": _TRUTH,
        "rabc_kappa": _REAL,
        "rabc_epsilon": _REAL,
        "wandb.enable": Boolean(only=False, rule="wandb"),
        "peft.method_type": NAME,
        "peft.init_type": NAME,
        "peft.r": _SIZE,
        "optimizer.type": NAME,
        **_keys("optimizer.", "lr weight_decay grad_clip_norm eps momentum dampening", _REAL),
        "optimizer.nesterov": _TRUTH,
        "scheduler.type": NAME,
        "scheduler.name": NAME,
        **_keys("scheduler.", "num_cycles peak_lr decay_lr", _REAL),
        **_keys("scheduler.", "num_warmup_steps num_decay_steps num_vqvae_training_steps", _WHOLE),
        **_ENVIRONMENT,
        **_EVALUATION,
    },
    fields={
        "dataset.repo_id": "repo_id",
        "dataset.root": "dataset_root",
        "mix.repo_id": "mix_repo_id",
        "mix.root": "mix_root",
        "steps": "steps",
        "env.type": "env_type",
        "env.task": "suites",
        "env.task_ids": "task_ids",
        "eval_freq": "eval_every",
        "env_eval_freq": "eval_every",
        "eval.n_episodes": "eval_episodes",
    },
    required=(
        *each("steps", "policy.push_to_hub", "dataset.repo_id", "output_dir"),
        frozenset({"policy.type", "policy.path"}),
    ),
    exclusive=(
        frozenset({"policy.type", "policy.path"}),
        frozenset({"eval_freq", "env_eval_freq"}),
    ),
    together=(frozenset({"mix.repo_id", "mix.root", "mix.ratio"}),),
    implied=(
        ("env.type", frozenset({"eval.n_episodes"})),
        ("env.type", frozenset({"eval_freq", "env_eval_freq"})),
    ),
    per_task=True,
)
EVALUATE: Final = Program(
    words=("lerobot-eval",),
    job=EvalJob,
    keys={
        "policy.path": _WEIGHTS,
        **_POLICY,
        **_ENVIRONMENT,
        **_EVALUATION,
        **_COMMON,
        "trust_remote_code": Boolean(only=False, rule="remote_code"),
    },
    fields={
        "env.type": "env_type",
        "env.task": "suites",
        "env.task_ids": "task_ids",
        "eval.n_episodes": "episodes",
        "seed": "seed_start",
    },
    required=each("policy.path", "env.type", "eval.n_episodes", "output_dir"),
    seed_limit=_SEED_LIMIT,
    per_task=True,
    weakening=_EASIER,
)
COLLECT: Final = Program(
    words=("cadenza-lerobot-collect",),
    job=HarvestJob,
    keys={
        "policy-path": _WEIGHTS,
        "env-type": NAME,
        "task": _NAMES,
        "episodes": _COUNT,
        "max-attempts": _COUNT,
        "out": _WRITE,
        "repo-id": REPOSITORY,
        "device": DEVICE,
        "seed": _SEED,
        "fps": Integer(1, 1000),
        "task-text": Text(),
        "focus": _NAMES,
        "rename-map": Renaming(),
        "keep-failures": Switch(),
        "result-json": _WRITE,
        **{key: kind for key, kind in _ENVIRONMENT.items() if key not in ("env.type", "env.task")},
    },
    fields={
        "env-type": "env_type",
        "episodes": "episodes",
        "seed": "seed_start",
        "max-attempts": "attempts",
    },
    required=each(
        *("policy-path", "env-type", "task", "episodes", "max-attempts", "out", "repo-id", "seed")
    ),
    seed_limit=_SEED_LIMIT,
    weakening=_EASIER,
)
SELECT: Final = Program(
    words=("cadenza-lerobot-select",),
    job=SelectJob,
    keys={
        "repo-id": REPOSITORY,
        "root": _READ,
        "suite": NAME,
        "limit": _COUNT,
        "focus": _NAMES,
        "instructions": _READ,
        "no-download": Switch(),
        "result-json": _WRITE,
    },
    fields={
        "repo-id": "repo_id",
        "root": "root",
    },
    required=each("repo-id", "suite"),
)
MERGE: Final = Program(
    words=("cadenza-lerobot-merge",),
    job=MergeJob,
    keys={
        "repo-ids": Listing(REPOSITORY, longest=1000),
        "roots": Listing(_READ, longest=1000),
        "sources": Listing(_READ, longest=1000),
        "out": _WRITE,
        "repo-id": REPOSITORY,
        "result-json": _WRITE,
    },
    fields={
        "repo-ids": "source_ids",
        "roots": "sources",
        "sources": "sources",
    },
    required=(*each("out", "repo-id"), frozenset({"roots", "sources"})),
    exclusive=(frozenset({"roots", "sources"}),),
)

LEROBOT_PROGRAMS: Final = (TRAIN, EVALUATE, COLLECT, SELECT, MERGE)


#: Tasks of LIBERO's suites.
_LIBERO: Final = {
    "libero_spatial": 10,
    "libero_object": 10,
    "libero_goal": 10,
    "libero_10": 10,
    "libero_90": 90,
}
#: Suites whose instructions the package libero knows.
LIBERO_SUITES: Final = tuple(_LIBERO)
#: Tasks of Meta-World, which LeRobot takes by these names alone.
_METAWORLD_TASKS: Final = """
    assembly basketball bin-picking box-close button-press button-press-topdown
    button-press-topdown-wall button-press-wall coffee-button coffee-pull coffee-push dial-turn
    disassemble door-close door-lock door-open door-unlock drawer-close drawer-open faucet-close
    faucet-open hammer hand-insert handle-press handle-press-side handle-pull handle-pull-side
    lever-pull peg-insert-side peg-unplug-side pick-out-of-hole pick-place pick-place-wall
    plate-slide plate-slide-back plate-slide-back-side plate-slide-side push push-back push-wall
    reach reach-wall shelf-place soccer stick-pull stick-push sweep sweep-into window-close
    window-open"""
#: Tasks of its groups, and of a task.
_METAWORLD: Final = {"easy": 28, "medium": 11, "hard": 6, "very_hard": 5} | {
    f"{prefix}{task}-v3": 1 for prefix in ("", "metaworld-") for task in _METAWORLD_TASKS.split()
}
#: Environments of one task.
_SINGLE: Final = ("pusht", "aloha")


def tasks_played(
    env_type: str,
    suites: Sequence[str],
    task_ids: Sequence[int],
    known: Mapping[str, int],
) -> int:
    """Return the number of tasks that a command plays, or refuse a suite that nobody counts.

    ``known`` are suites that a file describes; it cannot make those of LeRobot smaller, and
    Meta-World plays no others.
    """
    if env_type in _SINGLE:
        return 1
    sizes = dict(_METAWORLD) if env_type == "metaworld" else dict(known)
    for suite, size in _LIBERO.items() if env_type == "libero" else ():
        sizes[suite] = max(size, sizes.get(suite, 0))
    if not suites:
        raise denied(
            "unknown_suite", f"expected --env.task with the environment {env_type}, got none"
        )
    for suite in suites:
        if suite not in sizes:
            listed, remedy = ", ".join(sizes), "list its instructions in data.instructions' file"
            if env_type == "metaworld":
                listed = "easy, medium, hard, very_hard, or one of its tasks, as push-v3"
                near = nearest_name(suite, sizes)
                remedy = f"did you mean {near!r}?" if near else "correct it"
            raise denied(
                "unknown_suite",
                f"expected a suite of {env_type} whose tasks are known ({listed}), got "
                f"{quoted(suite)}; {remedy}",
            )
    chosen = len(set(task_ids)) if env_type == "libero" else 0
    return sum(min(sizes[suite], chosen or sizes[suite]) for suite in suites)


def suite_sizes(path: Path) -> dict[str, int]:
    """Return the tasks of each suite in a file of instructions, or a `ConfigurationError`."""
    try:
        document: dict[str, Any] = parse_json_object(path.read_bytes(), source=str(path))
    except (OSError, IntegrityError) as error:
        raise ConfigurationError(
            f"data.instructions: expected JSON of suites in {path}, got: {error}"
        ) from error
    sizes: dict[str, int] = {}
    for suite, found in document.items():
        words: list[object] = cast("list[object]", found) if isinstance(found, list) else []
        if not words or not all(isinstance(word, str) for word in words):
            raise ConfigurationError(
                f"data.instructions: expected a list of instructions for {suite!r} in {path}, got "
                f"{quoted(cast('object', found))}."
            )
        sizes[suite] = len(words)
    return sizes
