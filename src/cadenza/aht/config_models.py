"""Sections of an ego-training configuration: one frozen, checked model per component.

Rules:   unknown keys are refused; a value that could not take effect is refused, never ignored.
Units:   ``*_frames`` count environment frames (one robot pair, one control step); times in s.
Order:   fields that carry the upstream identity come first and in upstream order, because the
         configuration fingerprint hashes them in declaration order; a field of our own says so with
         `extension` and enters the fingerprint only when it differs from its default.
"""

from dataclasses import fields
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, Field, field_validator, model_validator

from cadenza.core.errors import ConfigurationError
from cadenza.learn.configs import FrozenModel
from cadenza.safety.cbf import CbfPower
from cadenza.safety.filter_options import Barrier, Compat, MultiPartner, RateLimit
from cadenza.safety.runtime.options import LambdaStart, OnBadInput, SafetyOptions

#: The safety runtime's options and their defaults, which the safety section repeats.
_DEFAULTS: Final = SafetyOptions()
_OPTIONS: Final = fields(SafetyOptions)
#: Marker in ``json_schema_extra`` of a field that upstream configurations do not have.
EXTENSION_KEY: Final = "cadenza_extension"
#: ``"identity"``: changes results, so it enters the fingerprint; ``"sink"``: it does not.
ExtensionKind = Literal["identity", "sink"]


def extension(kind: ExtensionKind = "identity") -> dict[str, Any]:
    """Return the field marker of a field that upstream configurations do not have."""
    return {EXTENSION_KEY: kind}


def _own(default: Any) -> Any:
    """Return the field of a safety option that the runtime checks and upstream does not have."""
    return Field(default=default, json_schema_extra=extension())


class WandbConfig(FrozenModel):
    """Weights & Biases sink.

    Attributes:
        enabled: Mirror every event of the run log to W&B.
        project: W&B project name.
    """

    enabled: bool = False
    project: str = "concerto-chamber"


class TensorboardConfig(FrozenModel):
    """TensorBoard sink.

    Attributes:
        enabled: Mirror scalar events to ``<log_dir>/tensorboard/<run_id>``.
    """

    enabled: bool = False


class EnvConfig(FrozenModel):
    """The task the ego is trained on.

    Attributes:
        task: Registered task name.
        episode_length: Truncation horizon in control steps, > 0.
        agent_uids: Names of the two seats; the first is the ego, the second the partner.
        condition_id: Condition name, for tasks that come in several.
        num_envs: Environments stepped as one batch, >= 1.
        mask_partner_obs: Hide the partner from the ego's observation, for tasks that offer it.
        options: Further keyword arguments of the task's environment.
    """

    task: str
    episode_length: int = Field(default=50, gt=0)
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


class PartnerConfig(FrozenModel):
    """The frozen partner the ego is trained with.

    Attributes:
        class_name: Name in the partner registry.
        seed: Seed of the partner's own training; 0 for scripted partners.
        checkpoint_step: Training step of its checkpoint; None for scripted partners.
        weights_uri: ``local://`` address of its weights; None for scripted partners.
        extra: Further settings, strings to strings.
    """

    class_name: str = "scripted_heuristic"
    seed: int = 0
    checkpoint_step: int | None = None
    weights_uri: str | None = None
    extra: dict[str, str] = Field(default_factory=dict[str, str])


class HAPPOHyperparams(FrozenModel):
    """PPO/HAPPO settings that upstream configurations carry, with upstream's names and defaults.

    Learners take `cadenza.learn.configs.HAPPOConfig`, whose names all algorithms of the package
    share; it is made of this and of `PPOExtrasConfig`.

    Attributes:
        lr: Adam step size of actor and critic, > 0.
        gamma: Discount per control step, in [0, 1].
        gae_lambda: GAE decay, in [0, 1].
        clip_eps: Half width of the ratio clip, > 0.
        n_epochs: Passes over a rollout per update, > 0.
        rollout_length: Environment iterations between updates, > 0; each is ``num_envs`` frames.
        batch_size: Transitions per minibatch, > 0.
        hidden_dim: Width of the two hidden layers, > 0.
    """

    lr: float = Field(default=3e-4, gt=0.0)
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
    """

    flush_partial_rollout: bool = False
    lr_decay: bool = False
    target_kl: float | None = Field(default=None, gt=0.0)
    max_action_std: float = Field(default=0.5, gt=0.0)
    critic_max_grad_norm: float | None = Field(default=None, gt=0.0)


class RuntimeConfig(FrozenModel):
    """Where and how exactly torch computes.

    Attributes:
        device: ``auto`` takes CUDA, then MPS, then the CPU; a named device must exist.
        deterministic_torch: Ask torch for deterministic kernels (CPU).
    """

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    deterministic_torch: bool = True


class SafetyConfig(FrozenModel):
    """The safety filter between the ego's action and the environment.

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
        margin_m: Extra distance kept between the robots' surfaces, m, >= 0.
        miss_rate: Target share of forecasts worse than the adaptive margin allows, in (0, 1).
        eta: Step of the adaptive margin, m/s per miss, >= 0; 0 freezes it.
        conformal_rule: This and what follows up to ``brake_hysteresis``: see
            `cadenza.safety.runtime.options.SafetyOptions`, whose defaults hold here too.
        eta_decay: Exponent of the decay of its steps.
        dtaci_steps: Step sizes of the aggregated rule, m/s per miss.
        target_loss: Target of the one-sided rule, m/s.
        lambda_max: Largest lambda of the one-sided rule, m/s^2.
        horizon_steps: Control steps from a forecast to its score.
        lambda_start: Where lambda starts with a new partner.
        partner_memory: Partners remembered for their return.
        prediction_error: Error up to which forecasts are trusted, m/s^2; None never.
        on_bad_input: Raise or brake at a malformed observation.
        max_age_s: Packet age the guarantee covers, s.
        latency_floor: Take packets to be at least as old as the link's mean latency.
        comm_tick_s: Time per unit of the packets' age, s; None means one control step.
        age_jump_s: Rise of a packet's age that starts the warm-up again, s.
        barrier: Row of a pair.
        compat: Reproduce the published filter.
        cbf_power: Exponent of the classical row.
        budget_split: How rows are shared with partners that run the same filter.
        rate_limit: Whether the action's rate of change is limited.
        multi_partner: How several partners at once are met.
        contact_speed: Own speed tolerated at a contact, m/s.
        solver: Solver of several active rows.
        brake_stopping: Also brake when the stopping distance runs short.
        brake_latency_s: Time until a brake command acts, s.
        brake_hysteresis: Release a braking pair late.
        intervention_penalty: Subtracted from the reward the learner sees, per m/s^2 by which the
            filter changed the action; recorded returns keep the environment's reward. Needs
            ``enabled``.
    """

    enabled: bool = False
    saturation_threshold: float = Field(default=0.9, gt=0.0, le=1.0)
    cbf_gamma: float = Field(default=5.0, gt=0.0)
    lambda_safe: float = Field(default=0.0, le=0.0)
    n_warmup_steps: int = Field(default=50, ge=0)
    predictor_kind: str = "constant_velocity"
    tau_brake: float = Field(default=0.100, gt=0.0)
    clamp_floor_ratio: float = Field(default=0.7, gt=0.0, le=1.0)
    margin_m: float = Field(default=_DEFAULTS.margin_m, ge=0.0, json_schema_extra=extension())
    miss_rate: float = Field(
        default=_DEFAULTS.miss_rate, gt=0.0, lt=1.0, json_schema_extra=extension()
    )
    eta: float = Field(default=_DEFAULTS.eta, ge=0.0, json_schema_extra=extension())
    conformal_rule: str = _own(_DEFAULTS.conformal_rule)
    eta_decay: float = _own(_DEFAULTS.eta_decay)
    dtaci_steps: tuple[float, ...] = _own(_DEFAULTS.dtaci_steps)
    target_loss: float = _own(_DEFAULTS.target_loss)
    lambda_max: float = _own(_DEFAULTS.lambda_max)
    horizon_steps: int = _own(_DEFAULTS.horizon_steps)
    lambda_start: LambdaStart = _own(_DEFAULTS.lambda_start)
    partner_memory: int = _own(_DEFAULTS.partner_memory)
    prediction_error: float | None = _own(_DEFAULTS.prediction_error)
    on_bad_input: OnBadInput = _own(_DEFAULTS.on_bad_input)
    max_age_s: float = _own(_DEFAULTS.max_age_s)
    latency_floor: bool = _own(_DEFAULTS.latency_floor)
    comm_tick_s: float | None = _own(_DEFAULTS.comm_tick_s)
    age_jump_s: float = _own(_DEFAULTS.age_jump_s)
    barrier: Barrier = _own(_DEFAULTS.barrier)
    compat: Compat | None = _own(_DEFAULTS.compat)
    cbf_power: CbfPower = _own(_DEFAULTS.cbf_power)
    budget_split: str | None = _own(_DEFAULTS.budget_split)
    rate_limit: RateLimit = _own(_DEFAULTS.rate_limit)
    multi_partner: MultiPartner = _own(_DEFAULTS.multi_partner)
    contact_speed: float = _own(_DEFAULTS.contact_speed)
    solver: str = _own(_DEFAULTS.solver)
    brake_stopping: bool = _own(_DEFAULTS.brake_stopping)
    brake_latency_s: float = _own(_DEFAULTS.brake_latency_s)
    brake_hysteresis: bool = _own(_DEFAULTS.brake_hysteresis)
    intervention_penalty: float = Field(default=0.0, ge=0.0, json_schema_extra=extension())

    def to_options(self) -> SafetyOptions:
        """Return the settings as the safety runtime takes them.

        Raises:
            ConfigurationError: A value is out of range, or without effect beside another.
        """
        return SafetyOptions(**{field.name: getattr(self, field.name) for field in _OPTIONS})

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
    """Deterministic evaluation of the ego on held-out episodes.

    Attributes:
        episodes: Episodes per evaluation, > 0.
        every_frames: Frames between evaluations during training; the end is always evaluated, and
            0 evaluates only there.
        root_seed: Root seed of the held-out episodes, apart from every training seed.
    """

    episodes: int = Field(default=100, gt=0)
    every_frames: int = Field(default=0, ge=0)
    root_seed: int = Field(default=1000, ge=0)


class ResumeConfig(FrozenModel):
    """What is kept for resuming.

    Attributes:
        keep: Newest training states kept on disk, >= 1; policy checkpoints are all kept.
    """

    keep: int = Field(default=2, ge=1)


class RolloutRecorderConfig(FrozenModel):
    """Upstream's in-training rollout recorder; only its defaults are accepted.

    The evaluation records instead: every robot's positions in every episode.
    """

    enabled: bool = False
    interval_frames: int = Field(default=25000, gt=0)
    per_step_jsonl: bool = True
    episodes_per_record: int = Field(default=1, gt=0)
    fps: int = Field(default=20, gt=0)

    @model_validator(mode="after")
    def _refuse_what_has_no_effect(self) -> Self:
        _refuse_changes(
            self,
            "rollout_recorder",
            "training records no rollouts; `cadenza eval run` records every evaluation episode.",
        )
        return self


class ShapingConfig(FrozenModel):
    """Upstream's reward shaping for its manipulation tasks; only its defaults are accepted."""

    settle_alpha: float = Field(default=0.0, ge=0.0)
    settle_qvel_cap: float = Field(default=0.7, gt=0.0)
    transport_pbrs_coeff: float = Field(default=0.0, ge=0.0)

    @model_validator(mode="after")
    def _refuse_what_has_no_effect(self) -> Self:
        _refuse_changes(
            self,
            "shaping",
            "no task of this package uses it; wrap the environment, or set a reward option of "
            "the task in env.options.",
        )
        return self


class ExploratoryConfig(FrozenModel):
    """Upstream's switch for a partner that never moves; only its default is accepted."""

    partner_static_override: bool = False

    @model_validator(mode="after")
    def _refuse_what_has_no_effect(self) -> Self:
        _refuse_changes(
            self,
            "exploratory",
            "name a partner that never moves instead, e.g. partner.class_name=crossing_stationary, "
            "and drop options it does not know, e.g. '~partner.extra.max_speed'.",
        )
        return self


def _refuse_changes(model: BaseModel, section: str, advice: str) -> None:
    """Raise if any field of ``model`` differs from its default."""
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if value != field.default:
            raise ValueError(
                f"{section}.{name}: expected its default {field.default!r}, got {value!r}; {advice}"
            )
