"""Configuration of an ego-training run: YAML and overrides in, one frozen checked object out.

The file and its ``key=value`` overrides are merged; Pydantic checks types, ranges and names:
``load_config(config_path=shipped_config("train/crossing"), overrides=["seed=7"])``.

Rules:   unknown keys are refused; a value that could not take effect is refused, never ignored.
Units:   ``*_frames`` count environment frames (one robot pair, one control step); times in s.
Order:   fields that carry the upstream identity come first and in upstream order, because the
         configuration fingerprint hashes them in declaration order; a field of our own says so with
         `extension` and enters the fingerprint only when it differs from its default.
"""

import hashlib
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Self, cast, get_type_hints

import torch
from pydantic import (
    BaseModel,
    Field,
    SerializerFunctionWrapHandler,
    create_model,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo

from cadenza.aht.algorithms import list_algorithms, unknown_algorithm_message
from cadenza.core.device import KINDS, LEARNING_KINDS, device_fault, resolve_device
from cadenza.core.errors import ConfigurationError, ConfigurationTypeError
from cadenza.core.files import canonical_json
from cadenza.core.key_values import apply_settings, merged, resolved
from cadenza.core.yaml_files import read_yaml
from cadenza.learn.agents.ppo import MAPPOConfig
from cadenza.learn.configs import (
    CECConfig,
    DQNConfig,
    E3TConfig,
    HATD3Config,
    HLGaussConfig,
    LIAMConfig,
    MBPOConfig,
    SACConfig,
    SelfPlayConfig,
    TD3Config,
    UPDConfig,
)
from cadenza.learn.settings import (
    FrozenModel,
    OffPolicyConfig,
    OnPolicyAgentConfig,
    Rate,
    SamplerConfig,
    ScheduleConfig,
)
from cadenza.safety.backup import BackupKeywords
from cadenza.safety.runtime.options import SafetyOptions

#: Marker in ``json_schema_extra`` of a field that upstream configurations do not have.
EXTENSION_KEY: Final = "cadenza_extension"
#: ``"identity"``: changes results, so it enters the fingerprint; ``"sink"``: it does not.
ExtensionKind = Literal["identity", "sink"]


def extension(kind: ExtensionKind = "identity") -> dict[str, Any]:
    """Return the field marker of a field that upstream configurations do not have."""
    return {EXTENSION_KEY: kind}


class WandbConfig(FrozenModel):
    """Weights & Biases sink: mirrors every event of the run log to the project."""

    enabled: bool = False
    project: str = "concerto-chamber"


class TensorboardConfig(FrozenModel):
    """TensorBoard sink: mirrors scalar events to ``<log_dir>/tensorboard/<run_id>``."""

    enabled: bool = False


class EnvConfig(FrozenModel):
    """The task the ego is trained on.

    ``episode_length`` None takes the task's; ``agent_uids`` are ego and partner;
    ``mask_partner_obs`` hides the partner from the ego, for tasks that offer it; ``options`` are
    further keyword arguments of the task's environment.
    """

    task: str
    episode_length: int | None = Field(default=None, gt=0)
    agent_uids: tuple[str, str] = ("ego", "partner")
    condition_id: str | None = None
    num_envs: int = Field(default=1, ge=1)
    mask_partner_obs: bool = False
    options: dict[str, bool | int | float | str] = Field(
        default_factory=dict[str, bool | int | float | str], json_schema_extra=extension()
    )

    @field_validator("agent_uids")
    @classmethod
    def _distinct_uids(cls, value: tuple[str, str]) -> tuple[str, str]:
        if value[0] == value[1]:
            raise ValueError(
                f"env.agent_uids: expected two distinct names, got {value}; "
                "the first is the ego, the second the partner."
            )
        return value


#: Field of a `PartnerConfig` that is left out where it says nothing.
_DIGEST: Final = "weights_sha256"


class PartnerConfig(FrozenModel):
    """A frozen partner that the ego is trained with; its class name alone is enough.

    ``seed`` is that of the partner's own training; it is 0, and checkpoint and ``local://`` weights
    are None, for scripted partners. Weights are refused unless their SHA-256 is
    ``weights_sha256``, if it is given.
    """

    class_name: str = "scripted_heuristic"
    seed: int = 0
    checkpoint_step: int | None = None
    weights_uri: str | None = None
    extra: dict[str, str] = Field(default_factory=dict[str, str])
    weights_sha256: str | None = Field(default=None, json_schema_extra=extension())

    @model_serializer(mode="wrap")
    def _without_absent_digest(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave an absent digest out, so that older records and identities stay what they are."""
        told: dict[str, Any] = dump(self)
        return told if self.weights_sha256 else {k: v for k, v in told.items() if k != _DIGEST}

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: object) -> object:
        return {"class_name": value} if isinstance(value, str) else value


class ZooRecord(FrozenModel):
    """Where partners of a training are from: a zoo, its manifest's SHA-256, their names there."""

    zoo: str
    sha256: str
    members: tuple[str, ...]


class HAPPOHyperparams(FrozenModel):
    """PPO/HAPPO settings that upstream configurations carry, with upstream's names and defaults.

    Learners take `cadenza.learn.agents.happo.HAPPOConfig`, whose names all algorithms of the
    package share; it is made of this and of `PPOExtrasConfig`.

    Attributes:
        lr: Adam step size of actor and critic, > 0, or its schedule.
        gamma: Discount per control step, in [0, 1].
        gae_lambda: GAE decay, in [0, 1].
        clip_eps: Half width of the ratio clip, > 0.
        n_epochs: Passes over a rollout per update, > 0.
        rollout_length: Environment iterations between updates, > 0; each is ``num_envs`` frames.
        batch_size: Transitions per minibatch, > 0.
        hidden_dim: Width of the two hidden layers, > 0.
    """

    lr: Rate = 3e-4
    gamma: float = Field(default=0.99, ge=0.0, le=1.0)
    gae_lambda: float = Field(default=0.95, ge=0.0, le=1.0)
    clip_eps: float = Field(default=0.2, gt=0.0)
    n_epochs: int = Field(default=4, gt=0)
    rollout_length: int = Field(default=1024, gt=0)
    batch_size: int = Field(default=256, gt=0)
    hidden_dim: int = Field(default=64, gt=0)


class PPOExtrasConfig(FrozenModel):
    """Opt-in departures from the upstream update; the defaults reproduce it exactly.

    Attributes:
        flush_partial_rollout: Also train on the frames after the last full rollout.
        lr_decay: Lower the step sizes linearly to zero over the run.
        target_kl: Stop an update's remaining epochs once the mean approximate KL exceeds this; None
            never stops.
        max_action_std: Bound of the standard deviation of drawn actions, in units of the action;
            a run begins at 0.73 of it. Where actions reach far beyond 1, the upstream value
            explores too little.
        critic_max_grad_norm: Clip the critic's gradient to this norm; None does not clip.
        normalize_rewards: Divide rewards by the running spread of the discounted return. No setting
            scales observations: a checkpoint holds HARL's actor, and nothing beside it.
    """

    flush_partial_rollout: bool = False
    lr_decay: bool = False
    target_kl: float | None = Field(default=None, gt=0.0)
    max_action_std: float = Field(default=0.5, gt=0.0)
    critic_max_grad_norm: float | None = Field(default=None, gt=0.0)
    normalize_rewards: bool = False


class RuntimeConfig(FrozenModel):
    """Where and how exactly torch computes.

    ``auto`` takes CUDA, then MPS, then the CPU; algorithms with a replay memory and agents of the
    front door (``liam``, ``upd`` and others) stay on the CPU then. A named device (``cpu``,
    ``mps``, ``cuda``, ``cuda:1``) must exist; these do not learn on MPS.
    """

    device: str = "auto"
    deterministic_torch: bool = True


class UpstreamSafety(FrozenModel):
    """Settings of the filter that upstream has, too; see `SafetyConfig`."""

    enabled: bool = False
    saturation_threshold: float = Field(default=0.9, gt=0.0, le=1.0)
    cbf_gamma: float = Field(default=5.0, gt=0.0)
    lambda_safe: float = Field(default=0.0, le=0.0)
    n_warmup_steps: int = Field(default=50, ge=0)
    predictor_kind: str = "constant_velocity"
    tau_brake: float = Field(default=0.100, gt=0.0)
    clamp_floor_ratio: float = Field(default=0.7, gt=0.0, le=1.0)


#: Our own options of the filter, in the order that fingerprints and sealed plans have.
_OWN_OPTIONS: Final = (
    *("margin_m", "miss_rate", "eta", "conformal_rule", "integral_gain", "eta_decay"),
    *("dtaci_steps", "target_loss", "lambda_max", "horizon_steps", "lambda_start"),
    *("partner_memory", "prediction_error", "on_bad_input", "max_age_s", "latency_floor"),
    *("comm_tick_s", "age_jump_s", "barrier", "compat", "cbf_power", "budget_split", "rate_limit"),
    *("multi_partner", "contact_speed", "solver", "brake_stopping", "brake_latency_s"),
    *("brake_hysteresis", "position_error", "velocity_error", "guarantee"),
)
#: Types of what a file holds, where the runtime takes objects, and of what only sealed plans hold.
_OWN_TYPES: Final[dict[str, Any]] = {
    **get_type_hints(SafetyOptions),
    "budget_split": str | None,
    "integral_gain": Literal[0.0],
    "multi_partner": Literal["rows", "passive"],
}
#: Defaults of options that the runtime has under another name, or no more.
_OWN_DEFAULTS: Final[dict[str, Any]] = {"integral_gain": 0.0, "multi_partner": "rows"}
_OWN_FIELDS: Final[dict[str, Any]] = {
    name: (
        _OWN_TYPES[name],
        Field(
            default=_OWN_DEFAULTS.get(name, getattr(SafetyOptions(), name, None)),
            json_schema_extra=extension(),
        ),
    )
    for name in _OWN_OPTIONS
}
#: Settings of every filter.
_OF_ALL: Final = ("enabled", "intervention_penalty")
#: Settings of the filter of robots that take velocities, and their names in `BackupFilter`.
_OF_BACKUPS: Final = {
    "guarantee": "guarantee",
    "margin_m": "margin_m",
    "position_error": "position_error_m",
    "velocity_error": "velocity_error",
    "contact_speed": "contact_speed",
}
OptionFields: type[UpstreamSafety] = create_model(
    "OptionFields", __base__=UpstreamSafety, **_OWN_FIELDS
)


class SafetyConfig(OptionFields):
    """The safety filter between the ego's action and the environment.

    Options of `cadenza.safety.runtime.options.SafetyOptions` that are not listed here are fields,
    too, with its types and defaults. For a task whose robots take velocities only ``enabled``,
    ``intervention_penalty``, ``guarantee``, ``margin_m``, ``position_error``, ``velocity_error``
    and ``contact_speed`` may differ from their defaults.

    Attributes:
        enabled: Filter every executed action and record telemetry.
        saturation_threshold: Share of the acceleration capacity at which lambda counts as
            saturated, in (0, 1].
        cbf_gamma: Rate at which overlap is undone, and gain from the adaptive margin (m/s) to
            lambda (m/s^2); 1/s, > 0.
        lambda_safe: Lambda of every pair at the start of a run and after a partner swap, m/s^2,
            <= 0: a positive one would void the filter's certificate.
        n_warmup_steps: Length of the warm-up after either, in control steps.
        predictor_kind: How the partner's next state is predicted.
        tau_brake: Time to collision below which the ego brakes, s, > 0.
        clamp_floor_ratio: Lambda is kept within this share of the capacity, in (0, 1], strictly
            below ``saturation_threshold``.
        intervention_penalty: Subtracted from the reward the learner sees, per m/s^2 by which the
            filter changed the action; recorded returns keep the environment's reward. Needs
            ``enabled``.
    """

    intervention_penalty: float = Field(default=0.0, ge=0.0, json_schema_extra=extension())

    def to_options(self) -> SafetyOptions:
        """Return the settings as the safety runtime takes them.

        Raises:
            ConfigurationError: A value is out of range, or without effect beside another.
        """
        mine = dict(self)
        names = {field.name for field in fields(SafetyOptions)} & mine.keys()
        given = {name: mine[name] for name in names}
        if mine["multi_partner"] != "rows":  # the older name of ``guarantee``
            given["multi_partner"] = mine["multi_partner"]
        return SafetyOptions(**given)

    def to_backup_settings(self) -> BackupKeywords:
        """Return the settings as the filter of robots that take velocities takes them.

        Raises:
            ConfigurationError: A setting is none of theirs.
        """
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if name not in (*_OF_ALL, *_OF_BACKUPS) and value != field.default:
                raise ConfigurationError(
                    f"safety.{name}: expected its default {field.default!r} for a robot that takes "
                    f"velocities, got {value!r}; its filter reads {', '.join(_OF_BACKUPS)}."
                )
        mine = dict(self)
        given = {theirs: mine[ours] for ours, theirs in _OF_BACKUPS.items()}
        return cast("BackupKeywords", given)

    @model_validator(mode="after")
    def _clamp_below_saturation(self) -> Self:
        if not self.clamp_floor_ratio < self.saturation_threshold:
            raise ValueError(
                "safety.clamp_floor_ratio: expected strictly less than saturation_threshold "
                f"({self.saturation_threshold}), got {self.clamp_floor_ratio}; "
                "otherwise a clamped lambda always counts as saturated."
            )
        return self

    @model_validator(mode="after")
    def _options_fit_together(self) -> Self:
        try:
            self.to_options()
        except ConfigurationError as error:
            raise ValueError(str(error).replace("SafetyOptions.", "safety.")) from error
        return self

    @model_validator(mode="after")
    def _penalty_needs_the_filter(self) -> Self:
        if self.intervention_penalty > 0.0 and not self.enabled:
            raise ValueError(
                "safety.intervention_penalty: expected 0 without the filter, got "
                f"{self.intervention_penalty}; set safety.enabled=true or drop the penalty."
            )
        return self


class EvaluationConfig(FrozenModel):
    """Deterministic evaluation of the ego on held-out episodes, at the end of training at least.

    Attributes:
        episodes: Held-out episodes of each evaluation, > 0.
        every_frames: Frames between further evaluations during training; 0 for none.
        root_seed: Root seed of the held-out episodes, apart from every training seed.
        validation: Partners beside which every checkpoint is measured as well, to choose the best:
            by its success rate, then by its mean return, the earliest of equals. None of them is a
            partner of the training, and none is one that the trained seeds are tested beside.
    """

    episodes: int = Field(default=100, gt=0)
    every_frames: int = Field(default=0, ge=0)
    root_seed: int = Field(default=1000, ge=0)
    validation: tuple[PartnerConfig, ...] = ()


class ResumeConfig(FrozenModel):
    """How many of the newest training states are kept; policy checkpoints are all kept."""

    keep: int = Field(default=2, ge=1)


class UpstreamSection(FrozenModel):
    """A section of upstream that has no effect here: only its defaults are accepted."""

    SECTION: ClassVar[str]
    ADVICE: ClassVar[str]

    @model_validator(mode="after")
    def _refuse_what_has_no_effect(self) -> Self:
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if value != field.default:
                raise ValueError(
                    f"{self.SECTION}.{name}: expected its default {field.default!r}, got "
                    f"{value!r}; {self.ADVICE}"
                )
        return self


class RolloutRecorderConfig(UpstreamSection):
    """Upstream's in-training rollout recorder; the evaluation records instead."""

    SECTION: ClassVar[str] = "rollout_recorder"
    ADVICE: ClassVar[str] = (
        "training records no rollouts; `cadenza eval run` records every evaluation episode."
    )

    enabled: bool = False
    interval_frames: int = Field(default=25000, gt=0)
    per_step_jsonl: bool = True
    episodes_per_record: int = Field(default=1, gt=0)
    fps: int = Field(default=20, gt=0)


class ShapingConfig(UpstreamSection):
    """Upstream's reward shaping for its manipulation tasks."""

    SECTION: ClassVar[str] = "shaping"
    ADVICE: ClassVar[str] = (
        "no task of this package uses it; wrap the environment, or set a reward option of the task "
        "in env.options."
    )

    settle_alpha: float = Field(default=0.0, ge=0.0)
    settle_qvel_cap: float = Field(default=0.7, gt=0.0)
    transport_pbrs_coeff: float = Field(default=0.0, ge=0.0)


class ExploratoryConfig(UpstreamSection):
    """Upstream's switch for a partner that never moves."""

    SECTION: ClassVar[str] = "exploratory"
    ADVICE: ClassVar[str] = (
        "name a partner that never moves instead, e.g. partner.class_name=crossing_stationary, and "
        "drop options it does not know, e.g. '~partner.extra.max_speed'."
    )

    partner_static_override: bool = False


#: Where results go does not change them: two runs in different folders share one identity.
_SINK_FIELDS: Final = frozenset({"artifacts_root", "log_dir", "wandb"})
#: Leading bytes of the part of the fingerprint that holds our own fields.
_EXTENSION_HEADER: Final = b"\ncadenza-extensions/1\n"
#: Section of a file that names ranges, which no training reads.
SWEEP_SECTION: Final = "sweep"
#: Hex digits of a fingerprint.
_FINGERPRINT_DIGITS: Final = 16

_HAPPO: Final = ("happo", "ppo_extras")
#: Keys that the training loop reads, whatever it trains.
_LOOP: Final = {"happo.rollout_length", "ppo_extras.flush_partial_rollout"}
#: Agents of the front door that bring their own partner.
_SELF_PLAYING: Final = ("e3t", "upd", "cec")
#: All of them, see `cadenza.aht.agents`; they read the section of their name.
_AGENTS: Final = ("liam", "recurrent_ppo", *_SELF_PLAYING)
#: Further sections and keys that each built-in algorithm reads.
_READS: Final[dict[str, tuple[str, ...]]] = {
    "ego_aht_happo": _HAPPO,
    "happo": _HAPPO,
    "ppo": ("ppo",),
    "mappo": ("ppo",),
    "random": (),
    "ego_aht_hatd3": ("hatd3",),
    **{name: (name,) for name in ("sac", "hlgauss", "td3", "hatd3", "dqn", "mbpo", *_AGENTS)},
}
_SECTIONS: Final = (
    *(*_HAPPO, "ppo", "sac", "hlgauss", "td3", "hatd3", "dqn", "mbpo"),
    *_AGENTS,
)


class EgoAHTConfig(FrozenModel):
    """Everything that determines one ego-training run.

    Sections named after algorithms hold their settings; ``rollout_recorder``, ``shaping`` and
    ``exploratory`` are accepted at their defaults only.

    Attributes:
        algo: Name in the algorithm registry; also the kind of the run in its provenance.
        seed: Root seed of every random stream of the run, >= 0.
        total_frames: Training budget in environment frames, > 0.
        checkpoint_every: Frames between checkpoints, > 0.
        artifacts_root: Folder that ``local://`` addresses are relative to; a run's files go to the
            folder ``artifacts`` in it.
        log_dir: Folder of the run logs.
        partners: Instead of ``partner``: every episode is played beside one of these. Robots after
            the first two are driven by copies of the first.
        sampler: How they are drawn; see `cadenza.learn.sampling`.
        zoos: Where they are from, for the run's card.
        happo: Settings of ``happo`` and ``ego_aht_happo``; its ``rollout_length`` also says how
            often algorithms other than PPO and MAPPO report.
        ppo_extras: Opt-in departures from the upstream update.
        ppo: Settings of ``ppo`` and ``mappo``.
        liam: Settings of LIAM, an ego that adapts.
        recurrent_ppo: Settings of PPO with a memory, for actions of every kind.
        e3t: Settings of E3T. It, UPD and CEC train beside copies of themselves; ``partner`` is then
            whom evaluations play beside.
        upd: Settings of UPD.
        cec: Settings of CEC.
    """

    #: Settings of agents without partners, and why egos have none.
    ABSENT: ClassVar[dict[str, str]] = {
        "action_masks": "egos have no masks",
        "hindsight": "egos have no goals to learn from in hindsight",
        "ranges": "a run is of one task; options vary with cadenza.CEC in Python",
        "layouts": "a run is of one task; options vary with cadenza.CEC in Python",
    }

    algo: str = "ego_aht_happo"
    seed: int = Field(default=0, ge=0)
    total_frames: int = Field(default=100_000, gt=0)
    checkpoint_every: int = Field(default=10_000, gt=0)
    artifacts_root: Path = Path()
    log_dir: Path = Path("./logs")
    wandb: WandbConfig = Field(default_factory=WandbConfig)
    env: EnvConfig
    partner: PartnerConfig = Field(default_factory=PartnerConfig)
    happo: HAPPOHyperparams = Field(default_factory=HAPPOHyperparams)
    runtime: RuntimeConfig = Field(default_factory=RuntimeConfig)
    safety: SafetyConfig = Field(default_factory=SafetyConfig)
    rollout_recorder: RolloutRecorderConfig = Field(default_factory=RolloutRecorderConfig)
    shaping: ShapingConfig = Field(default_factory=ShapingConfig)
    exploratory: ExploratoryConfig = Field(default_factory=ExploratoryConfig)
    ppo_extras: PPOExtrasConfig = Field(
        default_factory=PPOExtrasConfig, json_schema_extra=extension()
    )
    evaluation: EvaluationConfig = Field(
        default_factory=EvaluationConfig, json_schema_extra=extension()
    )
    resume: ResumeConfig = Field(default_factory=ResumeConfig, json_schema_extra=extension("sink"))
    tensorboard: TensorboardConfig = Field(
        default_factory=TensorboardConfig, json_schema_extra=extension("sink")
    )
    partners: tuple[PartnerConfig, ...] = Field(default=(), json_schema_extra=extension())
    sampler: SamplerConfig = Field(default_factory=SamplerConfig, json_schema_extra=extension())
    zoos: tuple[ZooRecord, ...] = Field(default=(), json_schema_extra=extension("sink"))
    ppo: MAPPOConfig = Field(default_factory=MAPPOConfig, json_schema_extra=extension())
    sac: SACConfig = Field(default_factory=SACConfig, json_schema_extra=extension())
    hlgauss: HLGaussConfig = Field(default_factory=HLGaussConfig, json_schema_extra=extension())
    td3: TD3Config = Field(default_factory=TD3Config, json_schema_extra=extension())
    hatd3: HATD3Config = Field(default_factory=HATD3Config, json_schema_extra=extension())
    dqn: DQNConfig = Field(default_factory=DQNConfig, json_schema_extra=extension())
    mbpo: MBPOConfig = Field(default_factory=MBPOConfig, json_schema_extra=extension())
    liam: LIAMConfig = Field(default_factory=LIAMConfig, json_schema_extra=extension())
    recurrent_ppo: SelfPlayConfig = Field(
        default_factory=SelfPlayConfig, json_schema_extra=extension()
    )
    e3t: E3TConfig = Field(default_factory=E3TConfig, json_schema_extra=extension())
    upd: UPDConfig = Field(default_factory=UPDConfig, json_schema_extra=extension())
    cec: CECConfig = Field(default_factory=CECConfig, json_schema_extra=extension())

    @model_validator(mode="after")
    def _no_setting_without_effect(self) -> Self:
        changed = {key for name in _SECTIONS for key in _changes(name, getattr(self, name))}
        for key in sorted(changed):
            if absent := self.ABSENT.get(key.rpartition(".")[2]):
                raise ValueError(f"{key}: expected its default, as {absent}; remove it.")
        reads = _LOOP | set(_READS.get(self.algo, _SECTIONS))
        dead = [key for key in changed if not {key, key.partition(".")[0]} & reads]
        if dead:
            raise ValueError(
                f"algo={self.algo}: expected only settings that it reads, got "
                f"{', '.join(sorted(dead))}; remove them, or choose the algorithm they belong to."
            )
        return self

    @model_validator(mode="after")
    def _partner_or_partners(self) -> Self:
        if self.partners and self.partner != PartnerConfig():
            raise ValueError(
                "partners: expected partner or partners, got both; to train beside one alone, "
                f"write 'partners=[{self.partner.class_name}]'."
            )
        return self

    @model_validator(mode="after")
    def _one_partner_at_most(self) -> Self:
        if self.brings_partner and (self.partners or self.zoos):
            given = "a zoo" if self.zoos else len(self.partners)
            raise ValueError(
                f"partners: expected none with algo={self.algo}, which trains beside copies of "
                f"itself, got {given}; name one as partner to evaluate beside it, or "
                "several as evaluation.validation."
            )
        return self

    @model_validator(mode="after")
    def _sampler_has_a_choice(self) -> Self:
        if self.sampler != SamplerConfig() and len(self.partners) < 2:
            raise ValueError(
                f"sampler: expected its default without several partners, got {self.sampler.kind}; "
                "name partners, or a zoo (--zoo)."
            )
        return self

    @model_validator(mode="after")
    def _validates_beside_others(self) -> Self:
        for partner in self.evaluation.validation:
            if partner in self.trained_with:
                raise ValueError(
                    "evaluation.validation: expected partners that the ego is not trained with, "
                    f"got {partner.class_name}; choose another one, or other options of it."
                )
        return self

    @model_validator(mode="after")
    def _decays_once(self) -> Self:
        if self.ppo_extras.lr_decay and isinstance(self.happo.lr, ScheduleConfig):
            raise ValueError(
                "ppo_extras.lr_decay: expected false beside a schedule of happo.lr, got true; set "
                "ppo_extras.lr_decay=false, or give happo.lr as a number."
            )
        return self

    @model_validator(mode="after")
    def _algorithm_learns_on_the_device(self) -> Self:
        name = self.runtime.device
        if fault := device_fault(name, LEARNING_KINDS if self._prefers_cpu else KINDS):
            raise ValueError(f"runtime.device: {fault} with algo={self.algo}, got {name!r}.")
        return self

    @property
    def _prefers_cpu(self) -> bool:
        """Whether the algorithm has a replay memory, or is an agent of the front door."""
        return isinstance(self.section, OffPolicyConfig) or self.algo in _AGENTS

    def device(self) -> torch.device:
        """Return where the ego acts and learns; see `RuntimeConfig`.

        Raises:
            DeviceUnavailableError: The device is not on this machine.
        """
        name = self.runtime.device
        return resolve_device("cpu" if name == "auto" and self._prefers_cpu else name)

    @property
    def brings_partner(self) -> bool:
        """Whether the ego trains beside copies of itself."""
        return self.algo in _SELF_PLAYING

    @property
    def trained_with(self) -> tuple[PartnerConfig, ...]:
        """Every partner of the training, or the one that its evaluations play beside."""
        return self.partners or (self.partner,)

    @property
    def partner_class(self) -> str:
        """Classes of those whom the ego trains beside, as records name them."""
        if self.brings_partner:
            return "itself"
        return "+".join(partner.class_name for partner in self.trained_with)

    @property
    def section(self) -> FrozenModel:
        """Settings of the chosen algorithm; ``happo`` if it is not built in or has none."""
        return getattr(self, (*_READS.get(self.algo, ()), "happo")[0])

    @property
    def rollout_length(self) -> int:
        """Environment iterations between updates, or between reports of other algorithms."""
        own = self.section if isinstance(self.section, OnPolicyAgentConfig) else self.happo
        return own.rollout_length

    @property
    def total_iterations(self) -> int:
        """Control steps of the run; frames that do not fill a batch are left out."""
        return self.total_frames // self.env.num_envs

    @field_validator("algo")
    @classmethod
    def _known_algorithm(cls, value: str) -> str:
        if value not in list_algorithms():
            raise ValueError(unknown_algorithm_message(value))
        return value


def config_fingerprint(config: EgoAHTConfig) -> str:
    """Return the 16-hex identity of what ``config`` computes.

    The hashed bytes are the compact JSON of the upstream fields in declaration order, without the
    output folders and sinks. Fields of our own are appended, as canonical JSON of those that differ
    from their defaults, only if there is any: a configuration upstream could express keeps its
    upstream fingerprint, and a future field at its default changes none.
    """
    excluded, extensions = _split_extensions(config)
    base = config.model_dump_json(exclude=excluded).encode("utf-8")
    material = base + _EXTENSION_HEADER + canonical_json(extensions) if extensions else base
    return hashlib.sha256(material).hexdigest()[:_FINGERPRINT_DIGITS]


def load_config(*, config_path: Path, overrides: list[str] | None = None) -> EgoAHTConfig:
    """Read one YAML file, apply overrides and check the result; see `read_settings`.

    Raises:
        ConfigurationError: The file is missing or no YAML; an algorithm's settings are no mapping;
            an override is malformed.
        TypeError: The file's root is not a mapping.
        pydantic.ValidationError: A value is missing, unknown, out of range or without effect.
    """
    settings = read_settings(config_path=config_path, overrides=overrides)
    settings.pop(SWEEP_SECTION, None)
    return EgoAHTConfig.model_validate(settings)


def read_settings(*, config_path: Path, overrides: list[str] | None = None) -> dict[str, Any]:
    """Return the settings of one YAML file with overrides applied, unchecked.

    A file may hold a mapping ``algorithms`` from names to further settings: those of the chosen
    ``algo`` are taken over the file's, and the overrides over both. ``${a.b}`` in a text stands for
    the value of that key. What `cadenza sweep` searches is the section `SWEEP_SECTION`.

    Args:
        config_path: The YAML file.
        overrides: Settings, e.g. ``["seed=7", "env.options.num_robots=3"]``, in the grammar of
            `cadenza.core.key_values`.

    Raises:
        ConfigurationError: The file is missing or no YAML; an algorithm's settings are no mapping;
            an override is malformed.
        TypeError: The file's root is not a mapping.
    """
    root = read_yaml(config_path)
    if not isinstance(root, dict):
        raise ConfigurationTypeError(
            f"load_config: expected a mapping at the root of {config_path}, got "
            f"{'an empty file' if root is None else type(root).__name__}."
        )
    settings, changes = cast("dict[str, Any]", root), overrides or []
    algorithms = settings.get("algorithms")
    if isinstance(algorithms, dict):
        del settings["algorithms"]
        own = cast("dict[str, Any]", algorithms)
        for name, section in own.items():
            if not isinstance(section, dict):
                raise ConfigurationError(
                    f"algorithms.{name}: expected a mapping of settings in {config_path}, got "
                    f"{section!r}; write {{}} for none."
                )
        naming = [word for word in changes if _key_of(word) == "algo"]
        default = EgoAHTConfig.model_fields["algo"].default
        chosen = str(apply_settings(settings, naming).get("algo", default))
        settings = merged(settings, own.get(chosen, {}))
    settings = apply_settings(settings, changes)
    return resolved(settings, settings)


def _key_of(word: str) -> str:
    """Return the key that an override sets or removes."""
    return word.lstrip("+").partition("=")[0].removeprefix("~")


def _split_extensions(config: EgoAHTConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the upstream projection leaves out, and our own changed fields by dotted name."""
    excluded: dict[str, Any] = dict.fromkeys(_SINK_FIELDS, True)
    extensions: dict[str, Any] = {}
    for name, field in EgoAHTConfig.model_fields.items():
        value, kind = getattr(config, name), _extension_kind(field)
        if name in _SINK_FIELDS or not (kind or isinstance(value, BaseModel)):
            continue
        if kind is not None:
            excluded[name] = True
        if kind == "identity":
            if isinstance(value, BaseModel):
                extensions |= _changes(name, value)
            elif value:
                extensions[name] = _plain(value)
        elif kind is None:
            section = type(cast("BaseModel", value))
            inside = {n for n, f in section.model_fields.items() if _extension_kind(f)}
            if inside:
                excluded[name] = dict.fromkeys(inside, True)
                changed = _changes(name, value)
                extensions |= {k: v for k, v in changed.items() if k.partition(".")[2] in inside}
    return excluded, extensions


def _changes(prefix: str, model: BaseModel) -> dict[str, Any]:
    """Return the fields of ``model`` that differ from their defaults, by dotted name."""
    defaults = {
        name: field.get_default(call_default_factory=True)
        for name, field in type(model).model_fields.items()
    }
    values = {name: getattr(model, name) for name in defaults}
    changed = {f"{prefix}.{n}": value for n, value in values.items() if value != defaults[n]}
    return {key: _plain(value) for key, value in changed.items()}


def _plain(value: Any) -> Any:
    """Return models, and models in tuples, as JSON values; others as they are."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, tuple):
        return [_plain(each) for each in cast("tuple[Any, ...]", value)]
    return value


def _extension_kind(field: FieldInfo) -> ExtensionKind | None:
    extra: Any = field.json_schema_extra
    return extra.get(EXTENSION_KEY) if isinstance(extra, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
