"""Attacks on filters with a backup: they find what is wrong, and nothing where nothing is."""

import dataclasses
import io
import json
import math

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from cadenza.cli.main import app
from cadenza.core.errors import ConfigurationError
from cadenza.safety.geometry import Ball
from cadenza.safety.maps import map_extent
from cadenza.safety.verifier import AttackConfig, attack
from cadenza.safety.verifier.episodes import draw_episode, episode_figure
from cadenza.safety.verifier.robots import WORLDS, draw_world

SMALL = AttackConfig(
    schemes=("norm-walls", "norm-escape"), steps=240, episode_steps=60, dts=(0.05,), dims=(2,)
)


class Careless:
    """Executes what the robot wants and promises everything."""

    def __init__(self, *_, **__):
        pass

    def filter(self, nominal, agents):
        return dataclasses.make_dataclass(
            "Step", ["action", "backup", "uncertified", "static_uncertified"]
        )(nominal, "none", False, False)


@pytest.mark.parametrize("kind", WORLDS)
@pytest.mark.parametrize("dim", [2, 3])
def test_worlds_have_room_for_the_robot_and_none_inside_shapes(kind, dim):
    rng = np.random.default_rng(7)
    for _ in range(10):
        world = draw_world(kind, dim, 0.2, rng)
        point = world.place(0.25, rng)
        assert world.gap(point[None])[0] >= 0.25
        if kind == "free":
            assert len(world.obstacles) == 0
            continue
        # The nearest shape is where the world says it is: on the way there the gap shrinks.
        gap = float(world.gap(point[None])[0])
        touching = point + gap * world.nearest(point)
        assert world.gap(touching[None])[0] == pytest.approx(0.0, abs=1e-9)


def test_funnel_closes_to_a_point_and_a_corridor_does_not():
    rng = np.random.default_rng(3)
    kinds = set()
    for _ in range(8):
        shapes = draw_world("funnel", 2, 0.2, rng).obstacles.shapes
        kinds.add(type(shapes[0]))
        # Walls, or balls as large as walls.
        normals = [-s.center / s.radius if isinstance(s, Ball) else s.normal for s in shapes]
        between = math.pi - math.acos(float(np.dot(*normals)))
        assert math.radians(9) <= between <= math.radians(35)
    assert len(kinds) == 2
    corridor = draw_world("corridor", 2, 0.2, rng)
    first, second = (np.array(wall.normal) for wall in corridor.obstacles.shapes)
    assert first @ second == pytest.approx(-1.0)


def test_errors_may_take_certificates_of_wheels_that_remember_nothing():
    config = AttackConfig(
        robot="unicycle",
        schemes=("ideal-escape",),
        steps=480,
        worlds=("free",),
        position_error=0.01,
        velocity_error=0.05,
    )
    report = attack(config)
    assert report.failures == []
    assert report.everything().uncertified > 0
    assert report.everything().touched_episodes == 0


def test_robot_without_a_filter_is_found_out():
    config = dataclasses.replace(
        SMALL, schemes=("norm-walls", "norm-escape", "norm-passive"), steps=1500
    )
    told = "\n".join(attack(config, make_guard=Careless).failures)
    assert "an obstacle was touched" in told
    assert "a partner touched the robot" in told
    assert "the robot moved in" in told


def test_equal_configurations_give_equal_bytes_and_another_seed_others():
    first, second = attack(SMALL), attack(SMALL)
    assert first.to_bytes() == second.to_bytes()
    assert draw_episode(first.worst) == draw_episode(second.worst)
    other = attack(dataclasses.replace(SMALL, seed=1))
    assert other.to_jsonable()["rows"] != first.to_jsonable()["rows"]


def test_picture_of_the_worst_episode_is_drawn():
    with Image.open(io.BytesIO(draw_episode(attack(SMALL).worst))) as image:
        assert image.format == "PNG"
        assert image.size == (1440, 1020)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"robot": "boat"}, "robot: expected one of velocity"),
        ({"schemes": ("norm-fly",)}, "schemes: expected one of norm-walls"),
        ({"worlds": ("moon",)}, "worlds: expected one of free, corridor"),
        ({"dims": (4,)}, "dims: expected one of 2, 3, got 4"),
        ({"steps": 0}, r"steps: expected a number in \[1"),
    ],
)
def test_wrong_values_are_refused_in_one_sentence(changes, message):
    with pytest.raises(ConfigurationError, match=message) as caught:
        AttackConfig(**changes)
    assert "\n" not in str(caught.value)


def command(*words):
    return CliRunner().invoke(app, ["safety", "verify", *words])


def test_command_attacks_in_a_map_and_writes_report_and_picture(tmp_path):
    room = tmp_path / "room.yaml"
    walls = [
        {"half_space": {"normal": n, "offset": -2.0}} for n in ([1, 0], [-1, 0], [0, 1], [0, -1])
    ]
    room.write_text(json.dumps({"obstacles": walls}), encoding="utf-8")
    ended = command(
        *("--robot", "velocity", "--map", str(room), "--out", str(tmp_path / "out"), "--json"),
        *("--steps", "120", "--seed", "3", "schemes=[norm-walls]"),
    )
    assert ended.exit_code == 0, ended.output
    told = json.loads(ended.stdout)
    assert told["holds"] is True
    assert told["rows"][0]["world"] == "map room.yaml"
    stored = json.loads((tmp_path / "out" / "verification.json").read_text())
    assert stored["kind"] == "safety_attack"
    assert stored["rows"] == told["rows"]
    assert (tmp_path / "out" / "worst_episode.png").read_bytes().startswith(b"\x89PNG")


def test_table_counts_contacts_in_certified_steps(tmp_path):
    ended = command(
        *("--robot", "velocity", "--steps", "120", "--out", str(tmp_path)),
        *("schemes=[norm-walls,norm-escape]", "worlds=[free]"),
    )
    heading, _, walls, escape = ended.stdout.splitlines()[2:6]
    column = heading.index("touched in certified steps")
    assert [line[column] for line in (walls, escape)] == ["-", "0"]


def test_picture_is_drawn_where_nothing_is_around():
    config = AttackConfig(worlds=("free",), schemes=("norm-walls",), steps=120)
    figure = episode_figure(attack(config).worst)
    assert [line.get_label() for line in figure.axes[1].lines] == ["contact", "worst moment"]


@pytest.fixture
def map_called_free(tmp_path):
    path = tmp_path / "free.yaml"
    walls = [{"half_space": {"normal": n, "offset": -0.8}} for n in ([1, 0], [-1, 0])]
    path.write_text(json.dumps({"obstacles": walls}), encoding="utf-8")
    return str(path)


def test_shipped_map_is_attacked_by_its_name():
    report = attack(AttackConfig(map="room", schemes=("norm-walls",), steps=120))
    assert [result.world for result in report.results] == ["map room.yaml"]
    assert len(report.worst.obstacles) == 14


def test_map_is_no_free_space_whatever_its_file_is_called(map_called_free):
    # In free space every step of an escape is certified; between two walls partners pin the robot.
    report = attack(AttackConfig(map=map_called_free, schemes=("norm-escape",), steps=1000))
    assert report.everything().uncertified > 0
    assert report.failures == []
    assert list(report.totals()["norm-escape"]) == ["map free.yaml"]


def test_picture_shows_the_whole_map_and_gaps_that_are_zero_at_a_contact(map_called_free):
    config = AttackConfig(map=map_called_free, schemes=("norm-walls",), steps=600)
    episode = attack(config, make_guard=Careless).worst
    whole, around, gaps, *_ = episode_figure(episode).axes
    limits = (whole.get_xlim(), whole.get_ylim())
    for seen, (low, high) in zip(limits, map_extent(episode.obstacles).T, strict=True):
        assert seen[0] <= low
        assert seen[1] >= high
    lines = {line.get_label(): line for line in gaps.lines}
    assert set(lines["contact"].get_ydata()) == {0.0}
    times, drawn = lines["nearest obstacle"].get_data()
    steps = np.round(times / episode.dt).astype(int)
    expected = 0.8 - np.abs(episode.ego_path[steps, 0]) - 0.2
    assert drawn == pytest.approx(expected, abs=1e-12)
    # The worst moment is that of the first contact, and what is around it is drawn larger.
    moment = float(lines["worst moment"].get_xdata()[0])
    assert drawn[times <= moment - episode.dt].min() > -1e-6
    assert drawn[times <= moment + episode.dt].min() < 0.0
    assert np.diff(around.get_xlim())[0] < np.diff(whole.get_xlim())[0]


def test_map_in_space_is_refused_for_a_robot_of_the_plane(tmp_path):
    path = tmp_path / "hall.yaml"
    floor = {"half_space": {"normal": [0, 0, 1], "offset": 0.0}}
    path.write_text(json.dumps({"obstacles": [floor]}), encoding="utf-8")
    ended = command("--robot", "unicycle", "--map", str(path), "--out", str(tmp_path / "out"))
    assert ended.exit_code == 2
    assert "expected 2-D shapes for a unicycle robot" in ended.stderr
    assert "got 3-D ones" in ended.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--map", "room.yaml"), "expected --robot with --map"),
        (("--robot", "velocity", "--partners", "2"), "expected none of --partners"),
        (("--robot", "velocity", "dtss=[0.1]"), "unknown key dtss (did you mean 'dts'?)"),
        (("--robot", "velocity", "accel=1.5"), "limits of robots and partners are drawn anew"),
    ],
)
def test_command_refuses_what_does_not_fit(words, told):
    ended = command(*words)
    assert ended.exit_code == 2
    assert told in ended.stderr
