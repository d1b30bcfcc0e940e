"""The jobs there are: one class for each program, whose fields declare their flags and kinds.

A back end makes a job; the constitution judges it and gives it back with every path absolute; its
words are written once, by `TypedJob.argv`. What people add to a command is the only thing that is
read from words, in `TypedJob.read`. A program without a class cannot run, nor a flag that its class
does not declare.

Source:      flags of LeRobot 0.4.4, and the names that 0.5 and 0.6 added or changed.
Left out:    whatever runs or imports other people's code (``env.hub_path``, ``env.kwargs``,
             ``policy.base_model_path``, plug-ins; GR00T, pi0-FAST and WALL-X load code from the
             hub), reads settings from a file (``config_path``), touches robots, writes outside
             ``output_dir``, or reports to a service. A file of rules can add other flags.
Adding one:  a class here, in `PROGRAMS`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, NamedTuple, Self

from pydantic import SerializeAsAny

from cadenza.loop.constitution.flags import denied, read_flags
from cadenza.loop.constitution.kinds import (
    COUNT,
    DEVICE,
    NAME,
    NAMES,
    REPOSITORY,
    SIZE,
    TRUTH,
    Kind,
    Value,
    bracketed,
    choice,
    number,
    plain,
    read_path,
    renaming,
    several,
    spelled,
    switch,
    text,
    truth,
    whole,
    write_path,
)
from cadenza.loop.constitution.weights import POLICY_TYPES, weights
from cadenza.loop.contracts.records import Device, ExistingOutput, Record


class Flag(NamedTuple):
    """The flag that a field of a job is written as, and the kind of its values."""

    key: str
    kind: Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a job asks of the rules.

    Attributes:
        steps: Gradient steps.
        evaluated: Episodes played to measure a policy or to keep its successes; in each task.
        collected: Episodes and attempts of a collection.
        env_type: Environment it plays in.
        last_seed: Largest seed of an initial state, if it has seeds of its own.
        datasets: Names that a hub is asked for where their folder lacks something.
        suites: Suites of LeRobot whose tasks multiply ``evaluated``; None where none do.
        task_ids: Numbers of the tasks it takes of each; empty for all.
    """

    steps: int | None = None
    evaluated: int | None = None
    collected: int | None = None
    env_type: str | None = None
    last_seed: int | None = None
    datasets: tuple[tuple[str, Path | None], ...] = ()
    suites: tuple[str, ...] | None = None
    task_ids: tuple[int, ...] = ()


class TypedJob(Record):
    """A command by its meaning; a field that is None is not said.

    A field's annotation names the kind of its values, and the flag where that is not the field's
    name with hyphens.

    Attributes:
        more: Further flags with their values, that no field has; None for one without a value.
        extra: Words that people add, not yet read; a job that was cleared has none.
    """

    #: Program, and its sub-command if it has one.
    WORDS: ClassVar[tuple[str, ...]] = ()
    #: Flags that people may add beside the fields.
    FURTHER: ClassVar[Mapping[str, Kind]] = {}
    #: Groups of flags of which exactly one must be given.
    ONE_OF: ClassVar[tuple[frozenset[str], ...]] = ()
    #: ... at most one may be given.
    AT_MOST_ONE: ClassVar[tuple[frozenset[str], ...]] = ()
    #: A flag, and a group of which one must be given beside it.
    BESIDE: ClassVar[tuple[tuple[str, frozenset[str]], ...]] = ()
    #: What the seeds of its initial states lie below.
    SEED_LIMIT: ClassVar[int] = 2**63
    #: Beginnings of arguments that switch the guard off, leave tasks out or ignore the seeds.
    WEAKENING: ClassVar[tuple[str, ...]] = ()

    more: tuple[tuple[str, Any], ...] = ()
    extra: tuple[str, ...] = ()

    @classmethod
    def kinds(cls) -> dict[str, Kind]:
        """Return the kind of each flag that the program may be given."""
        return dict(_flags(cls).values()) | dict(cls.FURTHER)

    @classmethod
    def required(cls) -> tuple[frozenset[str], ...]:
        """Return groups of flags; one flag of each group must be given."""
        flags = _flags(cls).items()
        needed = [flag.key for name, flag in flags if cls.model_fields[name].is_required()]
        return (*(frozenset({key}) for key in needed), *cls.ONE_OF)

    @classmethod
    def title(cls) -> str:
        """Return the words of the program, joined by blanks."""
        return " ".join(cls.WORDS)

    @classmethod
    def of(cls, values: Mapping[str, Value]) -> Self:
        """Return the job with ``values`` by flag."""
        names = {flag.key: name for name, flag in _flags(cls).items()}
        named = {names[key]: value for key, value in values.items() if key in names}
        more = tuple((key, value) for key, value in values.items() if key not in names)
        return cls(**named, more=more)

    @classmethod
    def read(
        cls, values: Mapping[str, Value], words: Sequence[str], kinds: Mapping[str, Kind]
    ) -> dict[str, Value]:
        """Return ``values`` by flag and the texts that ``words`` add; all must belong together."""
        switches = {key for key, kind in kinds.items() if kind is switch}
        found = {**values, **read_flags(words, kinds, switches, values)}
        given = set(found)
        for group in (*cls.ONE_OF, *cls.AT_MOST_ONE):
            if len(group & given) > 1:
                raise denied(
                    "conflicting_flags",
                    f"expected one of {sorted(group)}, got {sorted(group & given)}",
                )
        beside = [(group, f"beside --{key}") for key, group in cls.BESIDE if key in given]
        for group, why in (*((group, f"for {cls.title()}") for group in cls.required()), *beside):
            if not group & given:
                names, got = " or --".join(sorted(group)), "neither" if len(group) > 1 else "none"
                raise denied("missing_flag", f"expected --{names} {why}, got {got}")
        return found

    def values(self) -> dict[str, Value]:
        """Return what is said, by flag."""
        said = {flag.key: getattr(self, name) for name, flag in _flags(type(self)).items()}
        return {key: value for key, value in said.items() if value is not None} | dict(self.more)

    @property
    def flags(self) -> tuple[tuple[str, str | None], ...]:
        """Flags with their texts, in order; None for a switch."""
        said = self.values().items()
        return tuple((key, None if value is None else spelled(value)) for key, value in said)

    def argv(self) -> tuple[str, ...]:
        """Return the command, every value in its own word."""
        written = (f"--{key}" if text is None else f"--{key}={text}" for key, text in self.flags)
        return (*self.WORDS, *written, *self.extra)

    def demand(self) -> Demand:
        """Return what the rules must allow."""
        return Demand()


@cache
def _flags(job: type[TypedJob]) -> Mapping[str, Flag]:
    """Return the flag of each field of a job."""
    found: dict[str, Flag] = {}
    for name, field in job.model_fields.items():
        for kind in filter(callable, field.metadata):
            key = next((one for one in field.metadata if isinstance(one, str)), None)
            found[name] = Flag(key or name.replace("_", "-"), kind)
    return found


def _keys(prefix: str, names: str, kind: Kind) -> dict[str, Kind]:
    return {f"{prefix}{name}": kind for name in names.split()}


_WHOLE: Final = whole(0, 10**9)
_SEED: Final = whole()
_SHARE: Final = number(0.0, 1.0)
_INDEX: Final = whole(0, 2**31)
_FOLDERS: Final = several(read_path, 1000)
_FILTER: Final[dict[str, Kind]] = {"filter": choice("on", "off")}
_UNGUARDED: Final = ("--filter=off",)
_NO_HUB: Final = truth(only=False, rule="push_to_hub")


class NativeJob(TypedJob):
    """A job of this package."""

    out: Annotated[Path, write_path]
    result_json: Annotated[Path, write_path]


class _NativePlay(NativeJob):
    """... that plays episodes."""

    env_type: Annotated[str, "task", NAME]
    partners: Annotated[tuple[str, ...] | None, NAMES] = None
    episodes: Annotated[int, COUNT]
    seed_start: Annotated[int, _SEED]


class NativeEvaluate(_NativePlay):
    """Measures a policy from given initial states."""

    WORDS = ("cadenza", "job", "evaluate")
    FURTHER = _FILTER
    WEAKENING = _UNGUARDED

    policy: Annotated[Path, read_path]
    batch_size: Annotated[int | None, SIZE] = None

    def demand(self) -> Demand:
        """Return its episodes."""
        return Demand(
            evaluated=self.episodes,
            env_type=self.env_type,
            last_seed=self.seed_start + self.episodes - 1,
        )


class NativeCollect(_NativePlay):
    """Collects episodes of an expert, from ``seed_count`` initial states at most."""

    WORDS = ("cadenza", "job", "collect")
    FURTHER: ClassVar[Mapping[str, Kind]] = {"expert": NAME}

    seed_count: Annotated[int, COUNT]
    repo_id: Annotated[str, REPOSITORY]
    focus: Annotated[tuple[str, ...] | None, NAMES] = None

    def demand(self) -> Demand:
        """Return its episodes and attempts."""
        return Demand(
            collected=max(self.episodes, self.seed_count),
            env_type=self.env_type,
            last_seed=self.seed_start + self.seed_count - 1,
        )


class NativeHarvest(_NativePlay):
    """Collects a policy's successes, or an expert's where the policy failed."""

    WORDS = ("cadenza", "job", "harvest")
    FURTHER = _FILTER
    WEAKENING = _UNGUARDED

    policy: Annotated[Path, read_path]
    attempts: Annotated[int, "seed-count", COUNT]
    repo_id: Annotated[str, REPOSITORY]
    focus: Annotated[tuple[str, ...] | None, NAMES] = None
    starts: Annotated[str | None, choice("solved", "failed")] = None

    def demand(self) -> Demand:
        """Return the episodes wanted, and the attempts."""
        return Demand(
            evaluated=self.episodes,
            collected=self.attempts,
            env_type=self.env_type,
            last_seed=self.seed_start + self.attempts - 1,
        )


class NativeTrain(NativeJob):
    """Trains a policy on local data."""

    WORDS = ("cadenza", "job", "train")
    AT_MOST_ONE = (frozenset({"episodes", "first-episodes"}),)
    BESIDE = (("mix", frozenset({"mix-ratio"})), ("mix-ratio", frozenset({"mix"})))

    rung: Annotated[str, NAME]
    dataset_root: Annotated[Path, "dataset", read_path]
    steps: Annotated[int, COUNT]
    batch_size: Annotated[int, SIZE]
    seed: Annotated[int, _SEED]
    init: Annotated[Path | None, read_path] = None
    episodes: Annotated[tuple[int, ...] | None, several(_INDEX)] = None
    first_episodes: Annotated[int | None, COUNT] = None
    mix: Annotated[Path | None, read_path] = None
    mix_ratio: Annotated[float | None, _SHARE] = None
    max_epochs: Annotated[float | None, number(0.0, 1e6)] = None
    learning_rate: Annotated[float | None, _SHARE] = None

    def demand(self) -> Demand:
        """Return its gradient steps."""
        return Demand(steps=self.steps)


class NativeMerge(NativeJob):
    """Joins datasets."""

    WORDS = ("cadenza", "job", "merge")

    sources: Annotated[tuple[Path, ...], _FOLDERS]
    repo_id: Annotated[str, REPOSITORY]


#: Fewer tasks than the suite has, and recorded states that no seed chooses.
_EASIER: Final = ("--env.task_ids=", "--env.init_states=true")
#: What LeRobot's seeds lie below: those of its environments' own generators.
_SEED_LIMIT: Final = 2**32
_SEED_32: Final = whole(0, _SEED_LIMIT - 1)
_NUMBERS: Final = bracketed(whole(0, 10_000))

#: Sizes, rates and switches of LeRobot's policies, none of which leads outside the process: what
#: they are given is a number, a truth value or a plain name, as it is spelled.
_POLICY: Final[dict[str, Kind]] = {
    "policy.device": DEVICE,
    "policy.repo_id": REPOSITORY,
    **_keys(
        "policy.",
        "action_expert_variant attention_mode beta_end beta_schedule beta_start chunk_size "
        "clip_sample clip_sample_range compile_mode compile_model crop_is_random crop_ratio "
        "crop_shape diffusion_step_embed_dim dim_feedforward dim_model do_mask_loss_for_padding "
        "down_dims drop_n_last_frames dropout dtype empty_cameras feedforward_activation "
        "freeze_vision_encoder gradient_checkpointing horizon image_resolution kernel_size "
        "kl_weight latent_dim max_action_dim max_action_tokens max_period max_state_dim min_period "
        "n_action_steps n_decoder_layers n_encoder_layers n_groups n_heads n_obs_steps "
        "n_vae_encoder_layers noise_scheduler_type num_expert_layers num_inference_steps "
        "num_train_timesteps num_vlm_layers optimizer_eps optimizer_grad_clip_norm optimizer_lr "
        "optimizer_lr_backbone optimizer_weight_decay paligemma_variant pre_norm prediction_type "
        "pretrained_backbone_weights replace_final_stride_with_dilation resize_shape "
        "scheduler_decay_lr scheduler_decay_steps scheduler_name scheduler_warmup_steps "
        "self_attn_every_n_layers spatial_softmax_num_keypoints temporal_ensemble_coeff "
        "tokenizer_max_length train_expert_only train_state_proj use_amp use_cache "
        "use_film_scale_modulation use_group_norm use_kv_cache use_separate_rgb_encoder_per_camera "
        "use_vae vision_backbone",
        plain,
    ),
}
#: What an environment is made with beside its type and tasks; equal in all commands of a run.
_ENVIRONMENT: Final[dict[str, Kind]] = {
    "env.camera_name": NAMES,
    "env.camera_name_mapping": renaming,
    "env.init_states": TRUTH,
    **_keys(
        "env.",
        "control_mode disable_env_checker episode_length fps max_parallel_tasks multitask_eval "
        "obs_type observation_height observation_width render_mode visualization_height "
        "visualization_width",
        plain,
    ),
}
_COMMON: Final[dict[str, Kind]] = {
    "eval.use_async_envs": TRUTH,
    "job_name": NAME,
    "rename_map": renaming,
}


class LeRobotTrain(TypedJob):
    """Trains a policy by LeRobot; ``mix_*`` are read by the script that starts its training.

    Attributes:
        env_type: Environment of evaluations during training; None for none.
        suites: Tasks or suites of tasks that it evaluates in.
        eval_freq: Steps from one evaluation to the next, 0 for none; ``env_eval_freq`` in 0.6.
        eval_episodes: Episodes of each, in each task.
    """

    WORDS = ("lerobot-train",)
    FURTHER: ClassVar[Mapping[str, Kind]] = {
        **_POLICY,
        **_ENVIRONMENT,
        **_COMMON,
        "dataset.video_backend": choice("pyav", "torchcodec", "video_reader"),
        "save_checkpoint": TRUTH,
        "wandb.enable": truth(only=False, rule="wandb"),
        **_keys("", "eval_steps log_freq save_freq", _WHOLE),
        **_keys("dataset.", "streaming use_imagenet_stats", TRUTH),
        **_keys("", "rabc_epsilon rabc_kappa tolerance_s", plain),
        **_keys("", "use_policy_training_preset use_rabc", TRUTH),
        **_keys("dataset.image_transforms.", "enable max_num_transforms random_order", plain),
        **_keys("peft.", "init_type method_type r", plain),
        **_keys(
            "optimizer.", "dampening eps grad_clip_norm lr momentum nesterov type weight_decay",
            plain,
        ),
        **_keys(
            "scheduler.",
            "decay_lr name num_cycles num_decay_steps num_vqvae_training_steps num_warmup_steps "
            "peak_lr type",
            plain,
        ),
    }  # fmt: skip
    ONE_OF = (frozenset({"policy.type", "policy.path"}),)
    AT_MOST_ONE = (frozenset({"eval_freq", "env_eval_freq"}),)
    BESIDE = (
        ("mix.repo_id", frozenset({"mix.root"})),
        ("mix.root", frozenset({"mix.ratio"})),
        ("mix.ratio", frozenset({"mix.repo_id"})),
        ("env.type", frozenset({"eval.n_episodes"})),
        ("env.type", frozenset({"eval_freq", "env_eval_freq"})),
    )

    policy_path: Annotated[Path | str | None, "policy.path", weights] = None
    policy_type: Annotated[str | None, "policy.type", choice(*POLICY_TYPES)] = None
    push_to_hub: Annotated[bool, "policy.push_to_hub", _NO_HUB]
    repo_id: Annotated[str, "dataset.repo_id", REPOSITORY]
    dataset_root: Annotated[Path | None, "dataset.root", read_path] = None
    revision: Annotated[str | None, "dataset.revision", NAME] = None
    episodes: Annotated[list[int] | None, "dataset.episodes", bracketed(_INDEX)] = None
    mix_repo_id: Annotated[str | None, "mix.repo_id", REPOSITORY] = None
    mix_root: Annotated[Path | None, "mix.root", read_path] = None
    mix_ratio: Annotated[float | None, "mix.ratio", _SHARE] = None
    output_dir: Annotated[Path, "output_dir", write_path]
    steps: Annotated[int, COUNT]
    batch_size: Annotated[int | None, "batch_size", SIZE] = None
    seed: Annotated[int | None, _SEED_32] = None
    num_workers: Annotated[int | None, "num_workers", whole(0, 256)] = None
    env_type: Annotated[str | None, "env.type", NAME] = None
    suites: Annotated[tuple[str, ...] | None, "env.task", NAMES] = None
    task_ids: Annotated[list[int] | None, "env.task_ids", _NUMBERS] = None
    eval_freq: Annotated[int | None, "eval_freq", _WHOLE] = None
    env_eval_freq: Annotated[int | None, "env_eval_freq", _WHOLE] = None
    eval_episodes: Annotated[int | None, "eval.n_episodes", COUNT] = None
    eval_batch_size: Annotated[int | None, "eval.batch_size", SIZE] = None

    def demand(self) -> Demand:
        """Return its steps, its data, and episodes played meanwhile, at least those of one time."""
        every = self.eval_freq or self.env_eval_freq or 0
        times = max(1, self.steps // every) if every else 1
        named = ((self.repo_id, self.dataset_root), (self.mix_repo_id, self.mix_root))
        return Demand(
            steps=self.steps,
            evaluated=self.eval_episodes and self.eval_episodes * times,
            env_type=self.env_type,
            datasets=tuple((name, root) for name, root in named if name is not None),
            suites=(self.suites or ()) if self.env_type and every else None,
            task_ids=tuple(self.task_ids or ()),
        )


class LeRobotEvaluate(TypedJob):
    """Measures a policy by LeRobot, from the initial states of the seeds from ``seed`` on."""

    WORDS = ("lerobot-eval",)
    FURTHER: ClassVar[Mapping[str, Kind]] = {
        **_POLICY,
        "policy.push_to_hub": _NO_HUB,
        **_ENVIRONMENT,
        **_COMMON,
        "trust_remote_code": truth(only=False, rule="remote_code"),
    }
    SEED_LIMIT = _SEED_LIMIT
    WEAKENING = _EASIER

    policy_path: Annotated[Path | str, "policy.path", weights]
    env_type: Annotated[str, "env.type", NAME]
    suites: Annotated[tuple[str, ...] | None, "env.task", NAMES] = None
    episodes: Annotated[int, "eval.n_episodes", COUNT]
    batch_size: Annotated[int | None, "eval.batch_size", SIZE] = None
    output_dir: Annotated[Path, "output_dir", write_path]
    seed: Annotated[int | None, _SEED_32] = None
    task_ids: Annotated[list[int] | None, "env.task_ids", _NUMBERS] = None

    def demand(self) -> Demand:
        """Return its episodes, in each task."""
        return Demand(
            evaluated=self.episodes,
            env_type=self.env_type,
            last_seed=None if self.seed is None else self.seed + self.episodes - 1,
            suites=self.suites or (),
            task_ids=tuple(self.task_ids or ()),
        )


class LeRobotHarvest(TypedJob):
    """Collects successful episodes of LeRobot's policies in ``attempts`` at most."""

    WORDS = ("cadenza-lerobot-collect",)
    FURTHER: ClassVar[Mapping[str, Kind]] = {
        **_ENVIRONMENT,
        "env.task_ids": _NUMBERS,
        "fps": whole(1, 1000),
        "keep-failures": switch,
    }
    SEED_LIMIT = _SEED_LIMIT
    WEAKENING = _EASIER

    policy_path: Annotated[Path | str, weights]
    env_type: Annotated[str, NAME]
    suites: Annotated[tuple[str, ...], "task", NAMES]
    episodes: Annotated[int, COUNT]
    out: Annotated[Path, write_path]
    repo_id: Annotated[str, REPOSITORY]
    device: Annotated[str | None, DEVICE] = None
    seed: Annotated[int, _SEED_32]
    attempts: Annotated[int, "max-attempts", COUNT]
    focus: Annotated[tuple[str, ...] | None, NAMES] = None
    rename_map: Annotated[dict[str, Any] | None, renaming] = None
    task_text: Annotated[str | None, text] = None
    result_json: Annotated[Path | None, write_path] = None

    def demand(self) -> Demand:
        """Return the episodes wanted, and the attempts."""
        return Demand(
            evaluated=self.episodes,
            collected=self.attempts,
            env_type=self.env_type,
            last_seed=self.seed + self.attempts - 1,
        )


class LeRobotSelect(TypedJob):
    """Chooses a suite's episodes of a dataset, in a folder or of the hub."""

    WORDS = ("cadenza-lerobot-select",)
    FURTHER: ClassVar[Mapping[str, Kind]] = {"no-download": switch}

    repo_id: Annotated[str, REPOSITORY]
    root: Annotated[Path | None, read_path] = None
    suite: Annotated[str, NAME]
    limit: Annotated[int | None, COUNT] = None
    focus: Annotated[tuple[str, ...] | None, NAMES] = None
    instructions: Annotated[Path | None, read_path] = None
    result_json: Annotated[Path | None, write_path] = None

    def demand(self) -> Demand:
        """Return the dataset."""
        return Demand(datasets=((self.repo_id, self.root),))


class LeRobotMerge(TypedJob):
    """Joins datasets: the names of its parts, and their folders."""

    WORDS = ("cadenza-lerobot-merge",)

    source_ids: Annotated[tuple[str, ...] | None, "repo-ids", several(REPOSITORY, 1000)] = None
    sources: Annotated[tuple[Path, ...], "roots", _FOLDERS]
    out: Annotated[Path, write_path]
    repo_id: Annotated[str, REPOSITORY]
    result_json: Annotated[Path | None, write_path] = None

    def demand(self) -> Demand:
        """Return its parts, where they have names."""
        return Demand(datasets=tuple(zip(self.source_ids or (), self.sources, strict=False)))


NATIVE_JOBS: Final = (NativeCollect, NativeTrain, NativeEvaluate, NativeHarvest, NativeMerge)
LEROBOT_JOBS: Final = (LeRobotTrain, LeRobotEvaluate, LeRobotHarvest, LeRobotSelect, LeRobotMerge)
#: Every program there is, by its words; a file of rules chooses among them.
PROGRAMS: Final[Mapping[tuple[str, ...], type[TypedJob]]] = {
    job.WORDS: job for job in (*NATIVE_JOBS, *LEROBOT_JOBS)
}


class JobPlan(Record):
    """A job that a back end wants to be run; other fields as in `JobSpec`."""

    job: SerializeAsAny[TypedJob]
    output_dir: Path
    result_path: Path | None = None
    device: Device = "cpu"
    on_existing: ExistingOutput = "keep"

    @property
    def command(self) -> tuple[str, ...]:
        """Its words, not yet judged."""
        return self.job.argv()
