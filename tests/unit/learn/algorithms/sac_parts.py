"""Networks small enough to calculate by hand."""

import torch
from torch import nn


class SumCritic(nn.Module):
    """Q(a, o) = w · Σ o + Σ a."""

    def __init__(self, weight):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(float(weight)))

    def forward(self, action, obs):
        return self.w * obs.sum(1, keepdim=True) + action.sum(1, keepdim=True)


class SquareCritic(nn.Module):
    """Q(a, o) = w · a²."""

    def __init__(self, weight):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(float(weight)))

    def forward(self, action, obs):
        return self.w * (action * action).sum(1, keepdim=True)


class FixedPolicy(nn.Module):
    """a = p everywhere, with the log-probability c·p; counts its evaluations."""

    def __init__(self, action, log_probability_factor):
        super().__init__()
        self.p = nn.Parameter(torch.tensor(float(action)))
        self.c = log_probability_factor
        self.calls = 0

    def forward(self, obs):
        self.calls += 1
        action = self.p.expand(len(obs), 1)
        return action, self.c * action


def batch(obs, next_obs, rewards, masks, **more):
    """Return a data group of one-dimensional observations."""
    column = lambda values: torch.tensor(values, dtype=torch.float32).view(-1, 1)  # noqa: E731
    return {
        "observation": {"obs": column(obs)},
        "next_observation": {"obs": column(next_obs)},
        "actions": torch.zeros(len(obs), 1),
        "rewards": column(rewards),
        "masks": column(masks),
        **more,
    }
