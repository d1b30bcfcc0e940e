"""What the off-policy examples do before their policies know anything."""

from pathlib import Path

import numpy as np
import torch
from torch import nn

from cadenza.core.types import DictObservation, EpisodeState

EXAMPLES = Path(__file__).parents[3] / "examples"


class Standstill(nn.Linear):
    """A policy whose action is always zero."""

    def forward(self, obs):
        return torch.zeros_like(obs)


def test_first_actions_are_uniform_and_then_the_policy_acts(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    from off_policy import ExploringAgent

    def actions():
        agent = ExploringAgent(
            Standstill(1, 1),
            "cpu",
            ("obs",),
            ("actions",),
            uses_logprobs=False,
            random_steps=400,
            rng=np.random.default_rng(3),
        )
        fields = {"obs": np.ones(1, np.float32)}
        seen = {k: DictObservation({}, EpisodeState.RUNNING, fields) for k in (0, 1)}
        return np.array(
            [[r.list_data["actions"].item() for r in agent(seen).values()] for _ in range(201)]
        )

    drawn = actions()
    assert (drawn[200] == 0.0).all()
    assert abs(drawn[:200]).max() <= 1.0
    # Quarters of a uniform draw: 400 times 1/4 each, with a deviation of 8.7.
    counts, _ = np.histogram(drawn[:200], bins=4, range=(-1.0, 1.0))
    assert abs(counts - 100).max() < 40
    assert (drawn[:200, 0] != drawn[:200, 1]).all()
    assert (actions() == drawn).all()
