"""The table of goals reached: who touches what, and at which own speed."""

import json
import sys

import pytest

from perf import usefulness
from perf.usefulness import Holonomic, Scene, Wheeled, measure


@pytest.mark.parametrize("scene", usefulness.SCENES[3:6], ids=lambda scene: scene.name)
def test_filtered_base_touches_no_wall_and_people_only_as_promised(scene):
    free = measure(scene, "none", 10)
    assert free.wall_contacts > 0
    for kind in scene.filters()[2:]:
        counts = measure(scene, kind, 10)
        assert (counts.wall_contacts, counts.static_uncertified) == (0, 0)
        assert counts.reached >= free.reached
        if kind == "passive":
            assert counts.own_speed <= 1e-9


def test_escape_arrives_beside_a_hunter_in_free_space_and_rows_are_played_with_the_same_starts():
    scene = Scene(Holonomic, "free", "hunter")
    found = {kind: measure(scene, kind, 6) for kind in ("none", "rows", "escape")}
    assert (found["escape"].reached, found["escape"].uncertified) == (6, 0)
    assert found["none"].person_contacts > 0
    assert found["rows"].episodes == 6


def test_wheeled_robot_drives_around_the_disc():
    scene = Scene(Wheeled, "disc", policy="pulling")
    assert measure(scene, "none", 3).wall_contacts == 3
    assert measure(scene, "passive", 3).reached == 3


def test_command_writes_a_row_for_every_scene_and_filter(tmp_path, monkeypatch, capsys):
    file = tmp_path / "rows.json"
    monkeypatch.setattr(usefulness, "SCENES", [Scene(Holonomic, "free"), Scene(Wheeled, "free")])
    monkeypatch.setattr(sys, "argv", ["usefulness", "--episodes", "1", "--json", str(file)])
    usefulness.main()
    rows = json.loads(file.read_text("utf-8"))["rows"]
    assert [(row["robot"], row["filter"], row["reached"]) for row in rows] == [
        ("holonomic", "none", 1),
        ("holonomic", "rows", 1),
        ("holonomic", "escape", 1),
        ("wheeled", "none", 1),
        ("wheeled", "rows", 1),
        ("wheeled", "passive", 1),
    ]
    assert capsys.readouterr().out.count("reached   1 of 1") == 6
