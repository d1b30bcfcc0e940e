"""Maps as files: what is read, what is refused, what is drawn."""

import io
import re

import numpy as np
import pytest
import yaml
from matplotlib.path import Path
from PIL import Image
from typer.testing import CliRunner

from cadenza.cli.main import app
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.core.shipped_configs import shipped_config
from cadenza.safety.geometry import Ball, Box, HalfSpace, Obstacles
from cadenza.safety.maps import (
    describe_map,
    draw_map,
    load_map,
    map_extent,
    obstacles_of,
    outlines,
)


def written(tmp_path, text):
    path = tmp_path / "map.yaml"
    path.write_text(text)
    return path


def test_shipped_room_has_walls_a_door_and_every_shape():
    room = load_map(shipped_config("maps/room"))
    kinds = [kind for entry in describe_map(room) for kind in entry]
    assert set(kinds) == {"half_space", "ball", "capsule", "box", "polygon", "points"}
    in_the_door, in_the_wall, outside = room.gaps([(1.0, 0.0), (1.0, 1.2), (3.5, 0.0)])[0]
    assert in_the_door.min() == pytest.approx(0.5)  # 1 m wide
    assert in_the_wall.min() == pytest.approx(-0.1)
    assert outside.min() == pytest.approx(-0.5)


def test_map_is_what_it_describes(tmp_path):
    room = load_map(shipped_config("maps/room"))
    again = load_map(written(tmp_path, yaml.safe_dump({"obstacles": describe_map(room)})))
    points = np.random.default_rng(0).uniform(-4.0, 4.0, (50, 2))
    assert np.array_equal(room.gaps(points)[0], again.gaps(points)[0])
    turned = "[[0, -1, 0], [1, 0, 0], [0, 0, 1]]"
    text = f"obstacles: [box: {{center: [0, 0, 0], half_sizes: [3, 1, 1], rotation: {turned}}}]"
    space = load_map(written(tmp_path, text))
    assert space.gaps((0.0, 4.0, 0.0))[0].tolist() == [1.0]
    assert "rotation" in describe_map(space)[0]["box"]


MISTAKES = """obstacles:
  - box: {center: [1, 0], half_size: [1, 1], angel: 3}
  - bal: {center: [1, 0]}
  - ball: {center: [1, 0], radius: -1}
  - 3
  - points: [1, 2]
  - polygon: {vertices: [[0, 0], [2, 0], [1, 0.2], [1, 2]]}
  - ball: {center: [1, 0, 0], radius: 1}
  - ball: {center: [1, 0], radius: 1}
  - ball: {center: [1, 0], radius: 0.3m}
"""


def test_every_mistake_of_a_map_has_a_line_with_its_place(tmp_path):
    with pytest.raises(ConfigurationError) as refused:
        load_map(written(tmp_path, MISTAKES))
    lines = str(refused.value).splitlines()[1:]
    told = [
        "line 2, column 27: obstacles[0]: box: unknown field 'half_size' (did you mean 'half_size",
        "line 2, column 46: obstacles[0]: box: unknown field 'angel' (did you mean 'angle'?)",
        "line 2, column 5: obstacles[0]: box: field 'half_sizes' is missing",
        "line 3, column 5: obstacles[1]: expected one shape of half_space, ball, capsule, box, po",
        "line 4, column 5: obstacles[2]: Ball.radius: expected a finite length > 0 m, got -1",
        "line 5, column 5: obstacles[3]: expected one shape of half_space, ball, capsule, box, po",
        "line 6, column 5: obstacles[4]: points: expected its fields, got [1, 2]",
        "line 7, column 5: obstacles[5]: Polygon.vertices: expected the corners of a convex polyg",
        "line 10, column 5: obstacles[8]: Ball.radius: expected a finite length > 0 m, got '0.3m'",
        "obstacles: expected shapes of one dimension, got 2-D and 3-D ones",
    ]
    assert [x.strip()[: len(one)] for x, one in zip(lines, told, strict=True)] == told


def test_map_that_is_missing_says_where_it_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, folder in (("yard.yaml", tmp_path), ("maps/yard.yaml", tmp_path / "maps")):
        told = re.escape(f"{name}: expected a YAML file, got none; looked for it in {folder}; ")
        with pytest.raises(ConfigurationError, match=told):
            load_map(name)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "line 1, column 1: expected the one key 'obstacles'"),
        ("walls: []", "line 1, column 1: expected the one key 'obstacles'"),
        ("obstacles: 3", "line 1, column 12: obstacles: expected a list of shapes"),
        ("obstacles: [", "bracket"),
    ],
)
def test_what_is_no_map_is_refused(tmp_path, text, told):
    with pytest.raises(ConfigurationError, match=told):
        load_map(written(tmp_path, text))


def test_extent_holds_bounded_shapes_and_the_nearest_part_of_walls():
    shapes = [Box((0, 0), (2, 1), angle=np.pi / 2), HalfSpace((1, 0), -5.0)]
    assert map_extent(Obstacles(shapes)) == pytest.approx(np.array([[-6, -3], [2, 3]]))
    assert map_extent(Obstacles([])).tolist() == [[-1, -1], [1, 1]]


def test_command_says_where_a_robot_fits_nowhere(tmp_path):
    sides = [{"half_space": {"normal": n, "offset": -0.5}} for n in ([1, 0], [-1, 0])]
    text = written(tmp_path, yaml.safe_dump({"obstacles": sides}))
    words = ["safety", "show", str(text), "--out", str(tmp_path / "map.png"), "--radius"]
    shown = {x: CliRunner().invoke(app, [*words, x]).output for x in ("0.4", "0.5", "0.6")}
    assert "a robot of 0.6 m radius fits nowhere in the picture" in shown["0.6"]
    assert "nowhere" not in shown["0.4"] + shown["0.5"]
    assert shown["0.4"].split("\n")[0].strip() == "2 obstacles"
    written(tmp_path, yaml.safe_dump({"obstacles": sides[:1]}))
    assert CliRunner().invoke(app, words[:-1]).output.split("\n")[0].strip() == "1 obstacle"


def colors(picture):
    with Image.open(io.BytesIO(picture)) as image:
        return image.convert("RGB").getcolors(1 << 20)


def test_picture_is_solid_where_the_map_is():
    ball = Obstacles([Ball((0.0, 0.0), 1.0)])
    counts = {color: count for count, color in colors(draw_map(ball))}
    solid, free = counts[(148, 163, 184)], counts[(255, 255, 255)]
    # A disc of 1 m radius in a frame of 4 m by 4 m; margins and grid lines are not counted well.
    assert solid / (solid + free) == pytest.approx(np.pi / 16, rel=0.3)
    assert draw_map(ball) == draw_map(ball)
    outlined = {color for _, color in colors(draw_map(ball, radius_m=0.3))}
    assert (29, 78, 216) in outlined
    assert (29, 78, 216) not in counts


def test_picture_of_a_map_in_space_is_a_plane_of_it():
    ball = Obstacles([Ball((0.0, 0.0, 2.0), 1.0)])
    solid = (148, 163, 184)
    assert solid in {color for _, color in colors(draw_map(ball, height_m=2.0))}
    assert solid not in {color for _, color in colors(draw_map(ball, height_m=0.5))}
    assert draw_map(Obstacles([]))[:4] == b"\x89PNG"


def test_outlines_hold_the_points_that_are_solid():
    room = load_map(shipped_config("maps/room"))
    drawn = [Path(corners) for corners in outlines(room, (-2.9, -2.0, 2.4, 1.7))]
    inside = np.random.default_rng(0).uniform((-2.9, -2.0), (2.4, 1.7), (4000, 2))
    gap = room.gaps(inside)[0].min(axis=1)
    sure = np.abs(gap) > 0.01  # round shapes have corners
    solid = np.any([path.contains_points(inside) for path in drawn], axis=0)
    assert 300 < (gap < 0.0).sum() < 3700
    assert np.array_equal(solid[sure], (gap < 0.0)[sure])


def test_outlines_of_shapes_beyond_the_window_are_left_out():
    far = Obstacles([Ball((9.0, 0.0), 1.0), HalfSpace((1.0, 0.0), -9.0)])
    assert outlines(far, (-1.0, -1.0, 1.0, 1.0)) == []


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"ball": {"center": [0, 0, 0], "radius": 1}}, "expected a shape in 2-D, got one in 3-D"),
        ({"bal": {}}, "did you mean 'ball'"),
        ({"ball": {"center": [0, 0]}}, "field 'radius' is missing"),
    ],
)
def test_described_obstacles_of_another_kind_are_refused(entry, said):
    with pytest.raises(InputError, match=said):
        obstacles_of([entry], dim=2)
