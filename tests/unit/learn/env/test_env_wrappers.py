"""Image wrappers: sizes, ranges, stacks that share their frames."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from cadenza.core.errors import InputError
from cadenza.learn.env.stepping import ReplayableEnv
from cadenza.learn.env.wrappers import (
    FrameStack,
    ScaledFloatFrame,
    WarpFrame,
    make_vision_box2d_env,
)


class Pictures(gymnasium.Env):
    """Shows the frames it is given, one per step, then terminates."""

    def __init__(self, frames):
        self.frames = list(frames)
        first = self.frames[0]
        self.observation_space = spaces.Box(0, 255, first.shape, first.dtype)
        self.action_space = spaces.Discrete(2)
        self.at = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return self.frames[0], {}

    def step(self, action):
        self.at += 1
        return self.frames[self.at], 1.0, self.at == len(self.frames) - 1, False, {}


def flat(value, shape=(8, 6, 3)):
    return np.full(shape, value, np.uint8)


def test_warp_frame_weighs_colours_and_averages_areas():
    red = np.zeros((8, 6, 3), np.uint8)
    red[..., 0] = 200
    env = WarpFrame(Pictures([red]), width=3, height=4)
    observation, _ = env.reset()
    assert observation.shape == (4, 3, 1)
    assert observation.dtype == np.uint8
    assert env.observation_space.contains(observation)
    assert np.unique(observation).tolist() == [60]  # 0.299 * 200 = 59.8
    half = np.zeros((8, 6, 3), np.uint8)
    half[:, ::2] = 100  # every other column is grey 100
    small = WarpFrame(Pictures([half]), width=3, height=4).reset()[0]
    assert np.unique(small).tolist() == [50]


def test_scaled_frames_lie_in_the_space_they_declare():
    values = np.array([0, 51, 127, 255], np.uint8)
    env = ScaledFloatFrame(Pictures([values]))
    observation, _ = env.reset()
    np.testing.assert_allclose(observation, [-1.0, -0.6, -1 / 255, 1.0], atol=1e-7)
    assert observation.dtype == np.float32
    assert env.observation_space.contains(observation)
    assert env.observation_space.low.min() == -1.0
    assert env.observation_space.high.max() == 1.0


def test_frame_stack_repeats_the_first_frame_and_drops_the_oldest():
    env = FrameStack(Pictures([flat(v, (2, 2, 1)) for v in (1, 2, 3, 4)]), 3)
    observation, info = env.reset()
    assert info == {}
    seen = [np.asarray(observation)[0, 0].tolist()]
    for _ in range(3):
        observation, reward, terminated, truncated, _ = env.step(0)
        seen.append(np.asarray(observation)[0, 0].tolist())
    assert seen == [[1, 1, 1], [1, 1, 2], [1, 2, 3], [2, 3, 4]]
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert np.asarray(env.reset()[0])[0, 0].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("stack", "scaled", "shape", "dtype"),
    [(3, True, (84, 84, 3), np.float32), (1, False, (84, 84, 1), np.uint8)],
)
def test_vision_environment_of_box2d(stack, scaled, shape, dtype):
    make = make_vision_box2d_env("CarRacing-v3", 1, 4, frame_stack=stack, use_float_scaling=scaled)
    env, again = make(), make()
    first, _ = env.reset()
    assert np.asarray(first).shape == env.observation_space.shape == shape
    assert np.asarray(first).dtype == dtype
    np.testing.assert_array_equal(np.asarray(first), np.asarray(again.reset()[0]))
    other = make_vision_box2d_env("CarRacing-v3", 2, 4, stack, scaled)()
    assert not np.array_equal(np.asarray(first), np.asarray(other.reset()[0]))
    # Seed and rank are added; the rank alone is the index.
    by_hand = ReplayableEnv(again.env, root_seed=5, index=1)
    np.testing.assert_array_equal(np.asarray(first), np.asarray(by_hand.reset()[0]))
    env.close(), again.close(), other.close()


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: WarpFrame(Pictures([flat(0, (4, 4, 1))])), r"WarpFrame: .*shape \(X, Y, 3\)"),
        (lambda: WarpFrame(Pictures([np.zeros((4, 4, 3), np.float32)])), "WarpFrame: .*uint8"),
        (
            lambda: ScaledFloatFrame(Pictures([np.zeros(3, np.float32)])),
            "ScaledFloatFrame: .*uint8",
        ),
        (lambda: FrameStack(Pictures([flat(0)]), 0), "expected n_frames >= 1"),
        (lambda: FrameStack(Pictures([np.uint8(0)]), 2), "with a channel axis"),
        (lambda: make_vision_box2d_env("CarRacing-v3", 0, 0, 0), "frame_stack >= 1, got 0"),
    ],
)
def test_malformed_wrappers_are_refused(build, match):
    with pytest.raises(InputError, match=match):
        build()
