"""The code of `docs/affine.md` runs as printed, and does what the text says."""

import re
from pathlib import Path

import numpy as np
import pytest

from cadenza.safety import affine
from cadenza.safety.affine import AffineCBFFilter, keep_out_ball

PAGE = Path(__file__).parents[4] / "docs" / "affine.md"


@pytest.fixture(scope="module")
def names():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 3
    found = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), found)  # noqa: S102 - our own page
    return found


def test_robot_of_the_page_slows_down_before_the_ball(names):
    assert names["info"].status == "optimal"
    assert names["action"][0] < 1.0


def test_boat_of_the_page_is_kept_out_of_the_ball(names):
    assert names["harbour"].lifted[0].degree == 2
    action, info = names["harbour"].filter(np.array([3.5, 0.1, 0.0, 0.5]), np.array([1.0, 0.0]))
    assert info.status == "optimal"
    assert action[0] < 1.0


def test_rates_of_the_page_tighten_the_row_of_the_page(names):
    held = AffineCBFFilter(
        names["robot"],
        [
            keep_out_ball([2.0, 0.0], 0.5, gains=(2.0, 4.0)),
            affine.speed_limit(1.0, velocity=[3], gains=4.0),
        ],
        box=names["limits"],
        sampled_data=names["held"],
    )
    state, nominal = np.array([0.8, 0.3, 0.0, 0.5]), np.array([0.1, 0.0])
    assert names["guard"].filter(state, nominal)[1].status == "inactive"
    assert held.filter(state, nominal)[1].status == "optimal"


def test_every_robot_and_barrier_of_the_package_is_in_the_tables():
    rows = " ".join(re.findall(r"^\| (`.*?`) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    listed = {name for name in re.findall(r"`(\w+)\(", rows) if hasattr(affine, name)}
    assert len(listed) == 12


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        affine.nothing  # noqa: B018 - the access is the test
