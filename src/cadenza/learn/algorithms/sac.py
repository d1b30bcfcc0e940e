"""Soft actor-critic from exchangeable parts: the names to import.

List the callbacks as `QLoss`, `QLoss`, `PolicyLoss`, `AlphaLoss`, `QTarget`; the target runs first
in `begin_batch`, where it writes ``q_target`` into the data group that the losses read.

Source:  arXiv:1812.05905.
Nets:    observations are dicts; a critic is called ``q(actions, **observation)``, a policy
         ``pi(**observation) -> (actions, log_probabilities)``.
"""

from cadenza.learn.algorithms.polyak import soft_update_from_to
from cadenza.learn.algorithms.sac_losses import PolicyLoss, QLoss
from cadenza.learn.algorithms.sac_proxies import (
    AgentProxyWrapper,
    FeatureAgentProxy,
    MultiKeyAgentProxy,
    VisionAgentProxy,
)
from cadenza.learn.algorithms.sac_target import QTarget
from cadenza.learn.algorithms.sac_temperature import AlphaLoss

__all__ = [
    "AgentProxyWrapper",
    "AlphaLoss",
    "FeatureAgentProxy",
    "MultiKeyAgentProxy",
    "PolicyLoss",
    "QLoss",
    "QTarget",
    "VisionAgentProxy",
    "soft_update_from_to",
]
