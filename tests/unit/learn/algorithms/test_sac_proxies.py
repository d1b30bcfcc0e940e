"""Agent proxies under their older names."""

import numpy as np
import pytest
import torch

from cadenza.core.types import DictObservation, EpisodeState
from cadenza.learn.algorithms.sac import AgentProxyWrapper, FeatureAgentProxy
from cadenza.learn.proxies import GenericAgentProxy


class Doubling(torch.nn.Module):
    """Returns twice the sum of its inputs, and a log-probability."""

    def forward(self, *inputs):
        return 2 * sum(inputs), torch.zeros(len(inputs[0]), 1)


def seen(**arrays):
    data = {key: np.array(value, np.float32) for key, value in arrays.items()}
    return {7: DictObservation({"reward": 0.0}, EpisodeState.RUNNING, data)}


def actions_of(proxy, **arrays):
    return list(proxy(seen(**arrays))[7].list_data["actions"])


def test_wrapper_returns_what_the_inner_proxy_returns():
    policy = Doubling()
    inner = GenericAgentProxy(policy, "cpu", ("obs",), ("actions",))
    wrapper = AgentProxyWrapper(inner=inner)
    assert actions_of(wrapper, obs=[1.0, 2.0]) == [2.0, 4.0]
    assert wrapper.policy is policy
    assert wrapper.input_names == ("obs",)
    assert wrapper.output_names == ("actions",)


def test_feature_proxy_reads_its_key_and_warns():
    with pytest.warns(DeprecationWarning, match=r"FeatureAgentProxy.*GenericAgentProxy.*23\.1\.0"):
        proxy = FeatureAgentProxy(Doubling(), "cpu", "features")
    assert proxy.input_names == ("features",)
    assert actions_of(proxy, features=[3.0]) == [6.0]
