"""Agents that may act in another thread as deep copies, and those that may not."""

import threading
import weakref

import pytest
import torch
from torch import nn

from cadenza.core.errors import ConfigurationError
from cadenza.learn.collectors import ThreadedGymCollector
from cadenza.learn.collectors.threaded import copy_of_agent
from tests.unit.learn.collectors.collection_parts import parts
from tests.unit.learn.env.counting_env import TERMINATED


class Agent:
    """Holds a policy and whatever else it is given."""

    input_names, output_names = ("obs",), ("actions",)

    def __init__(self, policy, **held):
        self.policy = policy
        vars(self).update(held)

    def __call__(self, observations):
        raise NotImplementedError


class ClassWide(Agent):
    """All instances act with one policy."""

    policy = nn.Linear(2, 2)

    def __init__(self):
        pass


class Renewing(Agent):
    """Wraps its network anew whenever it is asked for the policy."""

    def __init__(self):
        self.network = nn.Linear(2, 2)

    @property
    def policy(self):
        return nn.Sequential(self.network)


def closing_over(hold):
    """Return an agent that is given what ``hold`` makes of its policy."""
    policy = nn.Linear(2, 2)
    return Agent(policy, held=hold(policy))


def defaulting(policy):
    def call(obs, *, network=policy):
        return network(obs)

    return call


REFUSED = {
    "policy of the class": ClassWide,
    "policy made anew": Renewing,
    "function around the policy": lambda: closing_over(lambda policy: lambda obs: policy(obs)),
    "function around a weight": lambda: closing_over(lambda p: (lambda w: lambda: w)(p.weight)),
    "function around a view": lambda: closing_over(lambda p: (lambda w: lambda: w)(p.weight.data)),
    "default argument": lambda: closing_over(defaulting),
    "positional default": lambda: closing_over(lambda policy: lambda obs, p=policy: p(obs)),
    "weak reference": lambda: closing_over(weakref.ref),
}


@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED)
def test_copy_that_would_share_the_policy_is_refused(make):
    with pytest.raises(ConfigurationError, match=r"a policy of its own inside, got \w+, whose"):
        copy_of_agent(make())


COPIED = {
    "recurrent": lambda: Agent(nn.LSTM(2, 3)),
    "method of the policy": lambda: closing_over(lambda policy: policy.forward),
    "nested": lambda: Agent(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))),
    "function of something else": lambda: closing_over(lambda _: (lambda n: lambda: n)([1])),
    "empty tensors": lambda: Agent(
        nn.ParameterList([nn.Parameter(torch.zeros(0))]),
        held=(lambda empty: lambda: empty)(torch.zeros(0)),
    ),
}


@pytest.mark.parametrize("make", COPIED.values(), ids=COPIED)
def test_copy_has_equal_weights_of_its_own(make):
    agent = make()
    copied = copy_of_agent(agent)
    assert copied is not agent
    before = {name: tensor.clone() for name, tensor in agent.policy.state_dict().items()}
    with torch.no_grad():
        for tensor in agent.policy.parameters():
            tensor.add_(1.0)
    after = copied.policy.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize(
    ("held", "match"),
    [
        (lambda _: threading.Lock(), r"can be copied, got Agent: cannot pickle '_thread.lock'"),
        (lambda policy: policy(torch.zeros(1, 2)), "can be copied, got Agent: Only Tensors"),
    ],
    ids=["lock", "tensor with a history"],
)
def test_collector_refuses_at_once_what_cannot_be_copied(held, match):
    wrapper, _, memory = parts(((5, TERMINATED),))
    with pytest.raises(ConfigurationError, match=match) as caught:
        ThreadedGymCollector(wrapper, closing_over(held), memory)
    assert "add with_policy(policy)" in str(caught.value)
