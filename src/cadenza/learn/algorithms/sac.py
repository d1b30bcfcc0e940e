"""Soft actor-critic from exchangeable parts: the names to import.

List the callbacks as `QLoss`, `QLoss`, `PolicyLoss`, `AlphaLoss`, `QTarget`; the target runs first
in `begin_batch`, where it writes ``q_target`` into the data group that the losses read.

Source:  arXiv:1812.05905.
Nets:    observations are dicts; a critic is called ``q(actions, **observation)``, a policy
         ``pi(**observation) -> (actions, log_probabilities)``.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import nn

from cadenza.core.deprecation import deprecated
from cadenza.core.spaces import MDPSpace
from cadenza.core.types import AgentId, DictObservation, DictResponse
from cadenza.learn.algorithms.polyak import soft_update_from_to
from cadenza.learn.algorithms.sac_losses import PolicyLoss, QLoss
from cadenza.learn.algorithms.sac_target import QTarget
from cadenza.learn.algorithms.sac_temperature import AlphaLoss
from cadenza.learn.proxies import AgentProxy, GenericAgentProxy

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

_ADVICE: Final = "use cadenza.learn.proxies.GenericAgentProxy with these keys"
_SINCE: Final = "23.1.0"


class AgentProxyWrapper:
    """Base of proxies that add something to another proxy; passes everything through.

    Args:
        inner: Proxy that answers.
    """

    def __init__(self, *, inner: AgentProxy) -> None:
        self._inner = inner

    def __call__(
        self, observations: Mapping[AgentId, DictObservation]
    ) -> dict[AgentId, DictResponse]:
        """Return the responses of the inner proxy."""
        return self._inner(observations)

    @property
    def input_names(self) -> tuple[str, ...]:
        """Observation keys that go into the network."""
        return self._inner.input_names

    @property
    def output_names(self) -> tuple[str, ...]:
        """Response keys that come out of it."""
        return self._inner.output_names

    @property
    def policy(self) -> nn.Module:
        """The network that acts."""
        return self._inner.policy


class FeatureAgentProxy(GenericAgentProxy):
    """One flat array of features in, actions out.

    Args:
        policy: Network that acts.
        device: Where it runs.
        input_key: Observation key of the features.
    """

    @deprecated(reason=_ADVICE, version=_SINCE)
    def __init__(
        self, policy: nn.Module, device: torch.device | str, input_key: str = "obs"
    ) -> None:
        super().__init__(policy, device, (input_key,), ("actions",))


class VisionAgentProxy(FeatureAgentProxy):
    """Images under ``obs`` in, actions out.

    Args:
        policy: Network that acts.
        device: Where it runs.
    """

    @deprecated(reason=_ADVICE, version=_SINCE)
    def __init__(self, policy: nn.Module, device: torch.device | str) -> None:
        GenericAgentProxy.__init__(self, policy, device, ("obs",), ("actions",))


class MultiKeyAgentProxy(GenericAgentProxy):
    """Several observation arrays in, actions out.

    Args:
        policy: Network that acts.
        device: Where it runs.
        input_keys: Observation keys, in the order of the policy's arguments.
        spaces: Shapes and types that inputs are brought to.
    """

    @deprecated(reason=_ADVICE, version=_SINCE)
    def __init__(
        self,
        policy: nn.Module,
        device: torch.device | str,
        input_keys: Sequence[str],
        spaces: MDPSpace | None = None,
    ) -> None:
        super().__init__(policy, device, input_keys, ("actions",), spaces=spaces)
