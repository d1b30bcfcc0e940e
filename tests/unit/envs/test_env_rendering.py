import numpy as np
import pytest

from cadenza.envs.crossing import CrossingEnv
from cadenza.envs.mpe import MPECooperativePushEnv
from cadenza.envs.rendering import IMAGE_SIZE, draw_crossing

BLUE = np.array([0, 114, 178])
RED = np.array([214, 39, 40])


def near(image, colour, tolerance=12):
    return np.abs(image.astype(int) - colour).max(axis=-1) <= tolerance


def crossing(**changes):
    scene = {
        "goals": np.array([[1.0, 1.0], [-1.0, 1.0]]),
        "trail": np.array([[[-1.0, -1.0], [1.0, -1.0]]]),
        "velocity": np.zeros((2, 2)),
        "contact": False,
        "time_s": 0.0,
    }
    return draw_crossing(**(scene | changes))


def pixel(x, y, half_width=2.75):
    scale = IMAGE_SIZE / (2 * half_width)
    return int((half_width - y) * scale), int((x + half_width) * scale)


def test_ego_disc_is_where_the_ego_is_with_y_upwards():
    rows, columns = np.nonzero(near(crossing(), BLUE))
    row, column = pixel(-1.0, -1.0)
    in_disc = (abs(rows - row) < 20) & (abs(columns - column) < 20)
    # A disc of 0.2 m covers pi * 17.45^2 = 957 pixels less border and letter.
    assert 500 < in_disc.sum() < 957


def test_half_of_a_dashed_ring_shows_where_robots_start():
    image = crossing().astype(int)
    angles = np.deg2rad(np.arange(0.0, 360.0, 0.25) + 0.125)
    along = {
        radius: np.array([image[pixel(radius * np.cos(a), radius * np.sin(a))] for a in angles])
        for radius in (1.9, 1.99)  # beside the ring, and in the middle of its line
    }
    darker = (along[1.99].sum(-1) < along[1.9].sum(-1) - 20).mean()
    assert 0.3 < darker < 0.7


def test_contact_rings_the_ego_in_red():
    assert near(crossing(), RED).sum() == 0
    assert near(crossing(contact=True), RED).sum() > 200


@pytest.mark.parametrize("num_robots", [2, 8])
def test_crossing_env_renders_its_episode(num_robots):
    env = CrossingEnv(num_robots=num_robots, render_mode="rgb_array")
    env.reset(seed=0)
    first = env.render()
    for _ in range(5):
        env.step({uid: np.ones(2) for uid in env.agent_uids})
    assert (env.render() != first).any()
    env.reset(seed=0)
    np.testing.assert_array_equal(env.render(), first)  # the old trail is gone


def test_push_env_renders_landmarks_and_robots():
    env = MPECooperativePushEnv(render_mode="rgb_array")
    env.reset(seed=0)
    first = env.render()
    env.step({uid: np.ones(2) for uid in env.agent_uids})
    assert first.shape == (IMAGE_SIZE, IMAGE_SIZE, 3)
    assert (env.render() != first).any()


@pytest.mark.parametrize("env", [CrossingEnv(), MPECooperativePushEnv()])
def test_render_without_mode_is_none(env):
    env.reset(seed=0)
    assert env.render() is None
