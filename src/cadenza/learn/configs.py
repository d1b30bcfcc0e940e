"""Settings of every algorithm, one class each, and their bases of `cadenza.learn.settings`."""

from typing import Self, TypedDict

from pydantic import Field, model_validator

from cadenza.learn.agents.grpo import GRPOConfig, GRPOSettings
from cadenza.learn.agents.happo import HAPPOConfig, HAPPOSettings
from cadenza.learn.agents.ppo import MAPPOConfig, MAPPOSettings, PPOConfig, PPOSettings
from cadenza.learn.settings import (
    SHARED_DEFAULTS,
    ActorCriticConfig,
    ActorCriticSettings,
    ChoosingConfig,
    ChoosingSettings,
    CompilableConfig,
    CompilableSettings,
    Count,
    FrozenModel,
    Horizon,
    OffPolicyConfig,
    OffPolicySettings,
    OnPolicyAgentConfig,
    OnPolicyAgentSettings,
    OnPolicyConfig,
    OnPolicySettings,
    Width,
    Widths,
)

__all__ = [
    "SHARED_DEFAULTS",
    "ActorCriticConfig",
    "ActorCriticSettings",
    "ChoosingConfig",
    "ChoosingSettings",
    "CompilableConfig",
    "CompilableSettings",
    "Count",
    "DAggerConfig",
    "DAggerSettings",
    "DQNConfig",
    "DQNSettings",
    "FrozenModel",
    "GRPOConfig",
    "GRPOSettings",
    "HAPPOConfig",
    "HAPPOSettings",
    "HATD3Config",
    "HATD3Settings",
    "HLGaussConfig",
    "HLGaussSettings",
    "Horizon",
    "MAPPOConfig",
    "MAPPOSettings",
    "MBPOConfig",
    "MBPOSettings",
    "OffPolicyConfig",
    "OffPolicySettings",
    "OnPolicyAgentConfig",
    "OnPolicyAgentSettings",
    "OnPolicyConfig",
    "OnPolicySettings",
    "PPOConfig",
    "PPOSettings",
    "SACConfig",
    "SACSettings",
    "TD3Config",
    "TD3Settings",
    "Width",
    "Widths",
]


class SACConfig(CompilableConfig):
    """Soft actor-critic.

    Attributes:
        initial_alpha: First weight of the entropy, > 0.
        max_alpha: Its cap, >= ``initial_alpha``.
        target_entropy: Nats; None is minus the number of action components.
    """

    initial_alpha: float = Field(default=0.2, gt=0.0)
    max_alpha: float = Field(default=10.0, gt=0.0)
    target_entropy: float | None = None

    @model_validator(mode="after")
    def _alpha_below_its_cap(self) -> Self:
        if not self.initial_alpha <= self.max_alpha:
            raise ValueError(
                f"initial_alpha: expected at most max_alpha ({self.max_alpha}), got "
                f"{self.initial_alpha}"
            )
        return self


class SACSettings(CompilableSettings, total=False):
    """Keywords of `SACConfig`."""

    initial_alpha: float
    max_alpha: float
    target_entropy: float | None


class HLGaussConfig(SACConfig):
    """Soft actor-critic with histogram critics.

    Attributes:
        min_value: Lower end of the discounted returns' range.
        max_value: Upper end, > ``min_value``; targets beyond are clipped, and a training is refused
            once more than a twentieth of a batch is.
        bins: Bins, >= 2.
        smoothing_ratio: Deviation of the target's Gaussian, in bins, > 0.
    """

    min_value: float = -200.0
    max_value: float = 50.0
    bins: Count = Field(default=101, ge=2)
    smoothing_ratio: float = Field(default=0.75, gt=0.0)

    @model_validator(mode="after")
    def _range_is_not_empty(self) -> Self:
        if not self.min_value < self.max_value:
            raise ValueError(
                f"min_value: expected less than max_value ({self.max_value}), got {self.min_value}"
            )
        return self


class HLGaussSettings(SACSettings, total=False):
    """Keywords of `HLGaussConfig`."""

    min_value: float
    max_value: float
    bins: int
    smoothing_ratio: float


class MBPOConfig(SACConfig):
    """Soft actor-critic that also learns from short rollouts of a learned model.

    Attributes:
        ensemble_size: Members of the model, >= 1.
        num_elites: Members that predict, in [1, ``ensemble_size``].
        model_hidden: Width of the model's hidden layers, >= 1.
        model_layers: Its hidden layers, >= 1.
        model_learning_rate: Adam's step size of the model, > 0.
        model_updates: Updates of the model before it is first used, >= 1.
        rollout_every: Updates between imaginations, >= 1.
        rollout_states: Real states continued each time, >= 1.
        rollout_length: Steps they are continued for, >= 1.
        imagined_size: Imagined transitions kept, >= ``rollout_states``.
        real_share: Share of real transitions in a batch, in [0, 1].
    """

    ensemble_size: Count = Field(default=5, ge=1)
    num_elites: Count = Field(default=3, ge=1)
    model_hidden: Count = Field(default=128, ge=1)
    model_layers: Count = Field(default=3, ge=1)
    model_learning_rate: float = Field(default=1e-3, gt=0.0)
    model_updates: Count = Field(default=500, ge=1)
    rollout_every: Count = Field(default=50, ge=1)
    rollout_states: Count = Field(default=400, ge=1)
    rollout_length: Count = Field(default=1, ge=1)
    imagined_size: Count = Field(default=20_000, ge=1)
    real_share: float = Field(default=0.25, ge=0.0, le=1.0)

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        for small, large in (("num_elites", "ensemble_size"), ("rollout_states", "imagined_size")):
            if not getattr(self, small) <= getattr(self, large):
                raise ValueError(
                    f"{small}: expected at most {large} ({getattr(self, large)}), got "
                    f"{getattr(self, small)}"
                )
        return self


class MBPOSettings(SACSettings, total=False):
    """Keywords of `MBPOConfig`."""

    ensemble_size: int
    num_elites: int
    model_hidden: int
    model_layers: int
    model_learning_rate: float
    model_updates: int
    rollout_every: int
    rollout_states: int
    rollout_length: int
    imagined_size: int
    real_share: float


class HATD3Config(OffPolicyConfig):
    """TD3 for a team: deterministic policies that learn late from twin critics.

    Attributes:
        policy_delay: Critic updates per update of policies and targets, >= 1.
        target_noise: Deviation of the noise on target actions in [-1, 1], >= 0.
        noise_clip: Bound of that noise, >= 0.
        exploration_noise: Deviation of the noise on collected actions in [-1, 1], >= 0.
    """

    policy_delay: Count = Field(default=2, ge=1)
    target_noise: float = Field(default=0.2, ge=0.0)
    noise_clip: float = Field(default=0.5, ge=0.0)
    exploration_noise: float = Field(default=0.1, ge=0.0)


class HATD3Settings(OffPolicySettings, total=False):
    """Keywords of `HATD3Config`."""

    policy_delay: int
    target_noise: float
    noise_clip: float
    exploration_noise: float


class TD3Config(CompilableConfig, HATD3Config):
    """Twin delayed deep deterministic policy gradient."""


class TD3Settings(CompilableSettings, HATD3Settings, total=False):
    """Keywords of `TD3Config`."""


class DQNConfig(CompilableConfig):
    """Deep Q-learning.

    Attributes:
        action_bins: Values per component of a continuous action, >= 2.
        epsilon_start: First share of random actions, in [0, 1].
        epsilon_end: Last share, in [0, ``epsilon_start``].
        epsilon_frames: Environment steps over which it falls linearly, >= 1.
        double: Let the online network choose the next action.
        huber_delta: Error above which the loss grows linearly, > 0; None squares.
        target_period: Updates between movements of the target network, >= 1; with ``tau`` = 1 the
            classic hard ones.
    """

    action_bins: Count = Field(default=5, ge=2)
    epsilon_start: float = Field(default=1.0, ge=0.0, le=1.0)
    epsilon_end: float = Field(default=0.05, ge=0.0, le=1.0)
    epsilon_frames: Count = Field(default=20_000, ge=1)
    double: bool = True
    huber_delta: float | None = Field(default=1.0, gt=0.0)
    target_period: Count = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _epsilon_falls(self) -> Self:
        if not self.epsilon_end <= self.epsilon_start:
            raise ValueError(
                f"epsilon_end: expected at most epsilon_start ({self.epsilon_start}), got "
                f"{self.epsilon_end}"
            )
        return self

    def epsilon(self, steps: int) -> float:
        """Return the share of random actions after ``steps`` environment steps."""
        share = min(1.0, steps / self.epsilon_frames)
        return self.epsilon_start + share * (self.epsilon_end - self.epsilon_start)


class DQNSettings(CompilableSettings, total=False):
    """Keywords of `DQNConfig`."""

    action_bins: int
    epsilon_start: float
    epsilon_end: float
    epsilon_frames: int
    double: bool
    huber_delta: float | None
    target_period: int


class DAggerConfig(FrozenModel):
    """Imitation of an expert with dataset aggregation.

    Attributes:
        round_length: Steps per environment between fits, >= 1.
        updates: Updates per fit, >= 1.
        batch_size: States per update, >= 1.
        learning_rate: Adam's first step size of a fit, > 0; later ones are shares of it.
        hidden_sizes: Widths of the hidden layers, at least one.
        expert_decay: Probability that the expert drives an environment in round r, r-th power of
            it, in [0, 1]; the expert drives round 0.
        action_noise: Deviation of the noise on executed actions in [-1, 1], or the probability that
            a choice is replaced by a random one, in [0, 1].
        noise_share: Share of the steps with such noise, in [0, 1].
    """

    round_length: Count = Field(default=100, ge=1)
    updates: Count = Field(default=300, ge=1)
    batch_size: Count = Field(default=512, ge=1)
    learning_rate: float = Field(default=1e-3, gt=0.0)
    hidden_sizes: tuple[Width, ...] = Field(default=(128, 128), min_length=1)
    expert_decay: float = Field(default=0.6, ge=0.0, le=1.0)
    action_noise: float = Field(default=0.05, ge=0.0, le=1.0)
    noise_share: float = Field(default=0.5, ge=0.0, le=1.0)

    def expert_share(self, finished_rounds: int) -> float:
        """Return the probability that the expert drives an environment in the next round."""
        return self.expert_decay**finished_rounds  # 0^0 = 1: the expert drives round 0


class DAggerSettings(TypedDict, total=False):
    """Keywords of `DAggerConfig`."""

    round_length: int
    updates: int
    batch_size: int
    learning_rate: float
    hidden_sizes: Widths
    expert_decay: float
    action_noise: float
    noise_share: float
