"""The code of `docs/affine.md` runs as printed, and does what the text says."""

import numpy as np
import pytest

from tests.integration.docs.pages import blocks, execute


@pytest.fixture(scope="module")
def names():
    assert len(blocks("affine.md")) == 4
    return execute("affine.md")


def test_robot_of_the_page_slows_down_before_the_ball(names):
    assert names["info"].status == "optimal"
    assert names["action"][0] < 1.0


def test_unicycle_of_the_page_turns_as_its_comment_says(names):
    assert names["u"].tolist() == pytest.approx([0.26, 0.94], abs=5e-3)


def test_boat_of_the_page_is_kept_out_of_the_ball(names):
    assert names["harbour"].lifted[0].degree == 2
    action, info = names["harbour"].filter(np.array([3.5, 0.1, 0.0, 0.5]), np.array([1.0, 0.0]))
    assert info.status == "optimal"
    assert action[0] < 1.0
