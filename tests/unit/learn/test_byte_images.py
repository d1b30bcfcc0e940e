"""Images of bytes are seen as images, or at least as numbers in [0, 1]."""

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Tuple
from torch import nn

import cadenza


def image(*shape):
    return Box(0, 255, shape, np.uint8)


class Seen(gymnasium.Env):
    """Shows random observations of one space."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, space):
        self.observation_space = space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.count = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.count += 1
        return self.observation_space.sample(), 0.0, self.count > 4, False, {}


@pytest.mark.parametrize(
    ("space", "channels"),
    [
        (image(20, 30), 1),
        (image(4, 20, 30, 3), 12),
        (image(4, 3, 20, 30), 12),
        (image(2, 40, 40, 1), 2),
        (Dict(view=image(20, 20), speed=Box(-1, 1, (2,))), 1),
        (Tuple([Box(-1, 1, (2,)), image(3, 20, 20, 3)]), 9),
    ],
)
@pytest.mark.parametrize("name", ["DQN", "PPO"])
def test_gray_and_stacked_bytes_are_seen_by_convolutions(name, space, channels):
    settings = {"warmup_steps": 4} if name == "DQN" else {"rollout_length": 4}
    agent = getattr(cadenza, name)(lambda: Seen(space), seed=0, batch_size=4, **settings)
    agent.learn(6, progress=False)
    first = next(m for m in agent.deployed().modules() if isinstance(m, nn.Conv2d))
    assert first.in_channels == channels
    assert agent.predict(space.sample()).shape == ()


def test_stacking_keeps_rows_and_columns():
    # A stack of k images with channels last, and the same with channels first, are one image.
    last, first = image(2, 20, 30, 3), image(2, 3, 20, 30)
    agents = [cadenza.PPO(lambda s=s: Seen(s), seed=0) for s in (last, first)]
    frames = last.sample()
    flat = [frames, frames.transpose(0, 3, 1, 2)]
    outputs = []
    for agent, pixels in zip(agents, flat, strict=True):
        encoder = next(m for m in agent.deployed().modules() if type(m).__name__ == "ImageFeatures")
        import torch

        outputs.append(encoder(torch.from_numpy(np.ascontiguousarray(pixels))[None].float()))
    np.testing.assert_allclose(*(o.detach().numpy() for o in outputs), rtol=1e-5)


def test_boards_too_small_for_convolutions_become_numbers_up_to_one():
    agent = cadenza.PPO(lambda: Seen(image(4, 4)), seed=0)
    largest = []
    layer = next(m for m in agent.deployed().modules() if isinstance(m, nn.Linear))
    layer.register_forward_pre_hook(lambda _, inputs: largest.append(float(inputs[0].max())))
    agent.predict(np.full((4, 4), 255, np.uint8))
    assert largest == [1.0]
