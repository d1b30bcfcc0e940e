"""Settings of every algorithm, one class each, and their bases of `cadenza.learn.settings`."""

from cadenza.learn.agents.bc import BCConfig, BCSettings
from cadenza.learn.agents.dagger import DAggerConfig, DAggerSettings
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
    Activation,
    ActorCriticConfig,
    ActorCriticSettings,
    ChoosingConfig,
    ChoosingSettings,
    CompilableConfig,
    CompilableSettings,
    Count,
    CriticConfig,
    CriticSettings,
    FrozenModel,
    Horizon,
    OffPolicyConfig,
    OffPolicySettings,
    OnPolicyAgentConfig,
    OnPolicyAgentSettings,
    OnPolicyConfig,
    OnPolicySettings,
    Rate,
    Weight,
    Width,
    Widths,
)

__all__ = [
    "SHARED_DEFAULTS",
    "Activation",
    "ActorCriticConfig",
    "ActorCriticSettings",
    "BCConfig",
    "BCSettings",
    "ChoosingConfig",
    "ChoosingSettings",
    "CompilableConfig",
    "CompilableSettings",
    "Count",
    "CriticConfig",
    "CriticSettings",
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
    "Rate",
    "SACConfig",
    "SACSettings",
    "TD3Config",
    "TD3Settings",
    "Weight",
    "Width",
    "Widths",
]
