"""The pictures of what must not be built show what the filter does, and their captions' numbers."""

import re

import pytest

from tests.campaigns import nightly
from tests.integration.docs.pages import DOCS, text
from tools.draw_counterexamples import EXAMPLES

PAGE = "which-robot.md"


def caption(number):
    """Return what the page says about one picture."""
    return next(part for part in text(PAGE).split("\n\n") if part.startswith(f"**{number}. "))


def test_page_shows_every_picture_and_none_is_large():
    shown = re.findall(r"\(images/counterexamples/(\S+)\.png\)", text(PAGE))
    assert shown == list(EXAMPLES)
    for name in shown:
        assert (DOCS / f"images/counterexamples/{name}.png").stat().st_size < 150_000


@pytest.mark.parametrize(
    ("number", "name"), [(1, "walls-as-partners"), (3, "taken-for-ideal"), (6, "wall-behind")]
)
def test_naive_way_ends_in_a_wall_and_the_filter_before_it(number, name):
    example = EXAMPLES[name]()
    naive, built = (1e3 * min(run.walls) for run in (example.naive, example.built))
    assert f"{-naive:.1f}".removesuffix(".0") + " mm" in caption(number)
    assert built > -1e-3


def test_whoever_flees_is_hit_at_full_speed_and_the_filter_at_rest():
    example = EXAMPLES["faster-partner"]()
    speeds = [run.speeds[int((run.gaps < 0.0).argmax())] for run in (example.naive, example.built)]
    assert speeds == pytest.approx([1.0, 0.0], abs=1e-9)
    assert "1 m/s" in caption(4)


def test_too_little_room_parks_the_robot_on_the_disc():
    example = EXAMPLES["parked"]()
    assert f"{1e3 * example.naive.least:.1f} mm" in caption(5)
    assert example.naive.path[-1][0] < 2.0 < example.built.path[-1][0]


@nightly
def test_clipped_row_is_touched_and_the_escape_is_not():
    example = EXAMPLES["clipped"]()
    assert f"{-1e3 * example.naive.least:.1f} mm" in caption(2)
    assert example.built.least > -1e-6
