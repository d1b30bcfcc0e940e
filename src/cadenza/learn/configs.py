"""Settings of every algorithm, one class each, and their bases of `cadenza.learn.settings`."""

from typing import TypedDict

from pydantic import Field

from cadenza.learn.agents.dqn import DQNConfig, DQNSettings
from cadenza.learn.agents.grpo import GRPOConfig, GRPOSettings
from cadenza.learn.agents.happo import HAPPOConfig, HAPPOSettings
from cadenza.learn.agents.hatd3 import HATD3Config, HATD3Settings
from cadenza.learn.agents.hlgauss import HLGaussConfig, HLGaussSettings
from cadenza.learn.agents.mbpo import MBPOConfig, MBPOSettings
from cadenza.learn.agents.ppo import MAPPOConfig, MAPPOSettings, PPOConfig, PPOSettings
from cadenza.learn.agents.sac import SACConfig, SACSettings
from cadenza.learn.agents.td3 import TD3Config, TD3Settings
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
