"""The picture of an episode, and the plane it is drawn in."""

import dataclasses
import io

import numpy as np
import pytest
from PIL import Image

from cadenza.safety.verifier.episodes import (
    closest_moment,
    draw_episode,
    drawing_plane,
    nearest_partner,
    nearest_sample,
    telling_part,
)
from tests.unit.safety.verifications import ONE, verified

CONFIG = dataclasses.replace(ONE, steps=500, dims=(3,), delays=("none",))


@pytest.fixture
def report():
    return verified(CONFIG)


def test_picture_is_a_png_with_equal_bytes_for_equal_episodes(report):
    first = draw_episode(report.worst)
    assert draw_episode(report.worst) == first
    with Image.open(io.BytesIO(first)) as image:
        assert image.format == "PNG"
        assert image.size == (1440, 1020)
        assert len(image.convert("RGB").getcolors(1 << 20)) > 50  # more than an empty frame


def test_plane_shows_the_closest_distance_in_its_true_size(report):
    episode = report.worst
    step = closest_moment(episode)
    partner, sample = nearest_partner(episode, step), nearest_sample(episode, step)
    plane = drawing_plane(episode, sample, partner)
    assert plane @ plane.T == pytest.approx(np.eye(2), abs=1e-12)
    offset = episode.ego_path[sample] - episode.partner_paths[sample, partner]
    assert np.linalg.norm(plane @ offset) == pytest.approx(np.linalg.norm(offset))


def test_picture_shows_the_part_in_which_they_are_near():
    # An ego that drives through a standing partner 8 m ahead and on: neither end is of interest.
    config = dataclasses.replace(ONE, steps=1000, delays=("none",), stationary=True)
    episode = verified(dataclasses.replace(config, barrier="wae", compat="upstream")).worst
    assert episode.adversary_names == ["standing"]
    part = telling_part(episode)
    assert part.nearest.min() == episode.nearest.min()
    assert part.start_s > 1.0
    assert len(part.nearest) < len(episode.nearest) / 2
    assert part.nearest.max() < 3.0
    assert len(part.ego_path) == len(part.nearest) + 1 == len(part.distance)
    first = round(part.start_s / episode.dt)
    executed = part.curves["executed"]
    assert np.array_equal(executed, episode.curves["executed"][first : first + len(executed)])


def test_worst_episode_is_one_with_a_single_partner_where_there_is_one():
    config = dataclasses.replace(
        ONE, steps=500, delays=("none",), partners=(1, 3), several_steps=1000, stationary=True
    )
    report = verified(config)
    assert report.several().min_distance_m < report.single_adversarial().min_distance_m
    assert len(report.worst.adversary_names) == 1
    # A standing partner is approached to contact every time, which tells nothing.
    assert report.stationary().episodes > 0
    assert report.worst.adversary_names != ["standing"]


def test_part_runs_from_the_last_far_step_up_to_the_next(report):
    episode = report.worst
    distances = np.full_like(episode.nearest, 5.0)
    distances[50:54] = [[1.0], [0.3], [1.0], [2.0]]
    episode = dataclasses.replace(episode, nearest=distances)
    brief = telling_part(episode)
    assert brief.nearest.tolist() == [[5.0], [1.0], [0.3], [1.0], [2.0]]
    near = episode.part(50, 54)  # nothing of it is far
    assert telling_part(near).start_s == near.start_s
