"""Parts that collectors are tested with: a memory that remembers calls, simple policies."""

from functools import partial

import numpy as np
import torch
from torch import nn

from cadenza.learn.env.dict_gym_wrapper import DictGymWrapper
from cadenza.learn.env.stepping import ReplayableEnv
from cadenza.learn.proxies import GenericAgentProxy
from tests.unit.learn.env.counting_env import CountingEnv, vector


class RecordingMemory:
    """Keeps what it was given."""

    def __init__(self):
        self.added = []

    def add(self, observations, responses):
        self.added.append((dict(observations), dict(responses)))

    def transitions(self):
        """Return (agent, place, action) of every response, in order."""
        return [
            (agent, tuple(seen[agent].array_data["obs"]), tuple(response.list_data["actions"]))
            for seen, answered in self.added
            for agent, response in answered.items()
        ]

    def endings(self):
        """Return (agent, state, place) of every observation without response."""
        return [
            (agent, observation.episode_state.name, tuple(observation.array_data["obs"]))
            for seen, answered in self.added
            for agent, observation in seen.items()
            if agent not in answered
        ]


class NoisyPolicy(nn.Module):
    """Two numbers from a layer, plus noise from a generator of its own."""

    def __init__(self, seed=0):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("offset", torch.zeros(2))
        with torch.no_grad():
            self.layer.weight.fill_(1e-4)
            self.layer.bias.fill_(0.0)
        self.generator = torch.Generator().manual_seed(seed)

    def forward(self, obs):
        noise = torch.randn(len(obs), 2, generator=self.generator)
        return torch.tanh(self.layer(obs) + self.offset + 0.1 * noise)

    def get_extra_state(self):
        return self.generator.get_state()

    def set_extra_state(self, state):
        self.generator.set_state(state)


def parts(*plans, mode="SameStep", replay=False, policy=None):
    """Return (wrapper, agent, memory) over one counting environment per plan."""
    makers = [partial(CountingEnv, i, plan, seeded=replay) for i, plan in enumerate(plans)]
    if replay:
        makers = [
            partial(lambda make, i: ReplayableEnv(make(), root_seed=1, index=i), make, i)
            for i, make in enumerate(makers)
        ]
    wrapper = DictGymWrapper(vector(*makers, mode=mode))
    agent = GenericAgentProxy(
        policy or NoisyPolicy(), "cpu", ("obs",), ("actions",), False, wrapper.dict_space
    )
    return wrapper, agent, RecordingMemory()


def batches(count, size=4):
    """Return ``count`` batches of ``size`` rows, as a loader would yield."""
    return [{"default": {"rows": np.zeros(size)}, "batch_size": size} for _ in range(count)]
