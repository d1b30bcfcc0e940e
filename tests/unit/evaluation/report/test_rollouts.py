import json

import pytest

from cadenza.evaluation.report.view import (
    Rollout,
    ego_distances,
    extent_of,
    outcome_text,
    player_data,
    robot_roles,
    script_json,
)
from tests.unit.evaluation.report.sample_view import sample_view


def rollout(**change) -> Rollout:
    values = {
        "condition_id": "filter_on",
        "partner_id": "chaser",
        "seed": 0,
        "initial_state_seed": 0,
        "control_timestep_s": 0.5,
        "frames": (
            {"third": (9.0, 0.0), "ego": (0.0, 0.0), "partner": (3.0, 4.0)},
            {"third": (0.0, 1.0), "ego": (0.0, 0.0), "partner": (3.0, 4.0)},
        ),
        "goals": {"ego": (-1.0, 2.0)},
        "radii": {"ego": 0.2, "partner": 0.5, "third": 0.2},
        "contact_index": None,
        "success": False,
        "pick": "typical",
        "alike": "1 of 1 starts",
    }
    return Rollout(**{**values, **change})


def test_roles_put_the_ego_first_and_name_one_partner():
    assert list(robot_roles(rollout(), "ego").items()) == [
        ("ego", "ego"),
        ("third", "partner"),
        ("partner", "other"),
    ]


def test_distances_are_to_the_nearest_robot():
    assert ego_distances(rollout(), "ego") == [5.0, 1.0]


def test_extent_is_a_square_around_everything():
    # x spans [-1, 9], y spans [0, 4]: half side 5 + 1.3 * 0.5 around (4, 2)
    sides = [4 - 5.65, 2 - 5.65, 4 + 5.65, 2 + 5.65]
    assert extent_of([rollout()]) == pytest.approx(sides)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"contact_index": 1, "success": False}, "contact at 0.50 s"),
        ({"success": True}, "goal reached at 0.50 s"),
        ({}, "not solved in 0.50 s"),
    ],
)
def test_outcome_names_how_it_ended_and_when(change, text):
    assert outcome_text(rollout(**change)) == text


def test_script_json_with_nan_is_refused():
    with pytest.raises(ValueError, match="not JSON compliant"):
        script_json(float("nan"))


def test_player_data_holds_positions_in_millimetres():
    view = sample_view(seeds=1, episodes=1)
    data = json.loads(player_data(view))
    run, source = data["runs"][0], view.rollouts[0]
    assert len(data["runs"]) == 20
    assert {(r["pick"], r["alike"]) for r in data["runs"]} == {
        ("typical", "3 of 12 starts"),
        ("telling", "1 of 12 starts"),
    }
    assert run["extent"] == list(extent_of(view.rollouts[:2])) == data["runs"][1]["extent"]
    assert data["runs"][2]["extent"] == list(extent_of(view.rollouts[2:4])) != run["extent"]
    assert [p["id"] for p in data["partners"]] == [p.partner_id for p in view.partners]
    assert [c["css"] for c in data["conditions"]] == ["on", "off"]
    assert [robot["role"] for robot in run["robots"]] == ["ego", "partner"]
    first = source.frames[0]["ego"]
    assert run["robots"][0]["path"][:2] == [round(1000 * first[0]), round(1000 * first[1])]
    assert len(run["robots"][0]["path"]) == 2 * len(source.frames)
    assert len(run["d"]) == len(run["act"]) == len(source.frames)
    assert data["runs"][1]["act"] == []
