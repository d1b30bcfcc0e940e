"""Settings of every algorithm, one class each, and their bases of `cadenza.learn.settings`."""

from cadenza.learn.agents.adapting import AdaptingConfig, AdaptingSettings
from cadenza.learn.agents.bc import BCConfig, BCSettings
from cadenza.learn.agents.cec import CECConfig, CECSettings
from cadenza.learn.agents.dagger import DAggerConfig, DAggerSettings
from cadenza.learn.agents.dqn import DQNConfig, DQNSettings
from cadenza.learn.agents.e3t import E3TConfig, E3TSettings
from cadenza.learn.agents.grpo import GRPOConfig, GRPOSettings
from cadenza.learn.agents.happo import HAPPOConfig, HAPPOSettings
from cadenza.learn.agents.hatd3 import HATD3Config, HATD3Settings
from cadenza.learn.agents.hlgauss import HLGaussConfig, HLGaussSettings
from cadenza.learn.agents.liam import LIAMConfig, LIAMSettings
from cadenza.learn.agents.mbpo import MBPOConfig, MBPOSettings
from cadenza.learn.agents.ppo import MAPPOConfig, MAPPOSettings, PPOConfig, PPOSettings
from cadenza.learn.agents.sac import SACConfig, SACSettings, SoftConfig, SoftSettings
from cadenza.learn.agents.self_play import SelfPlayConfig, SelfPlaySettings
from cadenza.learn.agents.td3 import TD3Config, TD3Settings
from cadenza.learn.agents.upd import UPDConfig, UPDSettings
from cadenza.learn.settings import (
    SHARED_DEFAULTS,
    Activation,
    ActorCriticConfig,
    ActorCriticSettings,
    ChoosingConfig,
    ChoosingSettings,
    Count,
    CriticConfig,
    CriticSettings,
    FrozenModel,
    Horizon,
    MaskedConfig,
    MaskedSettings,
    OffPolicyConfig,
    OffPolicySettings,
    OnPolicyAgentConfig,
    OnPolicyAgentSettings,
    OnPolicyConfig,
    OnPolicySettings,
    PrioritizedConfig,
    PrioritizedSettings,
    Rate,
    SoloReplayConfig,
    SoloReplaySettings,
    Weight,
    Width,
    Widths,
)

__all__ = [
    "SHARED_DEFAULTS",
    "Activation",
    "ActorCriticConfig",
    "ActorCriticSettings",
    "AdaptingConfig",
    "AdaptingSettings",
    "BCConfig",
    "BCSettings",
    "CECConfig",
    "CECSettings",
    "ChoosingConfig",
    "ChoosingSettings",
    "Count",
    "CriticConfig",
    "CriticSettings",
    "DAggerConfig",
    "DAggerSettings",
    "DQNConfig",
    "DQNSettings",
    "E3TConfig",
    "E3TSettings",
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
    "LIAMConfig",
    "LIAMSettings",
    "MAPPOConfig",
    "MAPPOSettings",
    "MBPOConfig",
    "MBPOSettings",
    "MaskedConfig",
    "MaskedSettings",
    "OffPolicyConfig",
    "OffPolicySettings",
    "OnPolicyAgentConfig",
    "OnPolicyAgentSettings",
    "OnPolicyConfig",
    "OnPolicySettings",
    "PPOConfig",
    "PPOSettings",
    "PrioritizedConfig",
    "PrioritizedSettings",
    "Rate",
    "SACConfig",
    "SACSettings",
    "SelfPlayConfig",
    "SelfPlaySettings",
    "SoftConfig",
    "SoftSettings",
    "SoloReplayConfig",
    "SoloReplaySettings",
    "TD3Config",
    "TD3Settings",
    "UPDConfig",
    "UPDSettings",
    "Weight",
    "Width",
    "Widths",
]
