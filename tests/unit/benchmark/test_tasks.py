"""The task registry: descriptions, options, versions."""

import json

import pytest
from pydantic import ValidationError

from cadenza.benchmark.tasks import (
    COCARRY_MJ,
    CROSSING,
    MPE_COOPERATIVE_PUSH,
    TaskSpec,
    get_task,
    isolated_tasks,
    list_tasks,
    manifest,
    register_task,
)
from cadenza.core.errors import ConfigurationError, InputError, UnknownNameError
from cadenza.partners.registry import list_registered, partner_card


def changed(**fields) -> TaskSpec:
    return CROSSING.model_copy(update=fields)


def test_shipped_tasks_are_listed_by_tier():
    names = [task.task_id for task in list_tasks()]
    assert [name for name in names if not name.startswith("overcooked_")] == [
        "foraging",
        "mpe_cooperative_push",
        "stage0_smoke",
        "crossing",
        "doorway",
        "doorway_diffdrive",
        "stage1_pickplace",
        "cocarry_mj",
        "handover_mj",
    ]
    assert len(names) == 14


@pytest.mark.parametrize("task", list_tasks(), ids=lambda task: task.task_id)
def test_default_partners_of_a_task_exist_and_play_it(task):
    assert task.seen_partner in task.partners
    assert set(task.partners) <= set(list_registered())
    declared = [partner_card(name).tasks for name in task.partners]
    assert all(not tasks or task.task_id in tasks for tasks in declared)


def test_get_task_takes_the_latest_version_unless_told_otherwise():
    with isolated_tasks():
        newer = register_task(changed(version=2))
        assert get_task("crossing") is newer
        assert get_task("crossing", 1) is CROSSING
    assert get_task("crossing") is CROSSING


def test_get_task_of_an_unknown_name_lists_the_known_ones():
    with pytest.raises(
        KeyError, match=r"Unknown env task 'crosing': .* crossing@v1, .*mpe_cooperative_push@v1"
    ) as caught:
        get_task("crosing")
    assert isinstance(caught.value, UnknownNameError)
    with pytest.raises(KeyError, match=r"Unknown env task 'crossing@v9'"):
        get_task("crossing", 9)


def test_registering_a_version_twice_is_an_error():
    with pytest.raises(InputError, match=r"'crossing' version 1 is already registered"):
        register_task(CROSSING)


def test_registering_a_task_without_its_seen_partner_is_an_error():
    with isolated_tasks(), pytest.raises(InputError, match=r"seen partner among .* got 'nobody'"):
        register_task(changed(task_id="other", seen_partner="nobody"))


def test_manifest_is_plain_json_in_listing_order():
    entries = json.loads(json.dumps(manifest()))
    assert entries == manifest()
    assert [entry["task_id"] for entry in entries] == [task.task_id for task in list_tasks()]
    by_name = {entry["task_id"]: entry for entry in entries}
    assert by_name["crossing"]["options"]["num_robots"]["high"] == 8
    assert by_name["crossing"]["extra"] is None
    assert by_name["stage1_pickplace"]["extra"] == "maniskill"


def test_options_are_completed_with_their_defaults():
    assert CROSSING.complete_options({}) == {"num_robots": 2}
    assert CROSSING.complete_options({"num_robots": 5}) == {"num_robots": 5}
    assert MPE_COOPERATIVE_PUSH.complete_options({}) == {}


def test_unknown_option_lists_the_known_ones():
    with pytest.raises(
        ConfigurationError, match=r"env.options\['robots'\].*known options: num_robots"
    ):
        CROSSING.complete_options({"robots": 3})
    with pytest.raises(ConfigurationError, match=r"has no such option; known options: <none>"):
        MPE_COOPERATIVE_PUSH.complete_options({"num_robots": 2})


@pytest.mark.parametrize("value", [1, 9, True, 2.0, "3"])
def test_option_out_of_range_or_of_another_type_is_an_error(value):
    with pytest.raises(ConfigurationError, match=r"expected an integer in \[2, 8\], got"):
        CROSSING.complete_options({"num_robots": value})


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        ("condition", "alone", "one of matched, single_arm, static_partner, zero_partner"),
        ("condition", 1, "one of matched, single_arm, static_partner, zero_partner"),
        ("bar_mass", 9.0, r"a number in \[0.05, 5\]"),
        ("bar_mass", "1", r"a number in \[0.05, 5\]"),
        ("bar_mass", True, r"a number in \[0.05, 5\]"),
    ],
)
def test_numbers_and_choices_are_checked_as_their_defaults_are(option, value, problem):
    allowed = COCARRY_MJ.complete_options({"condition": "single_arm", "bar_mass": 2})
    assert (allowed["condition"], allowed["bar_mass"], allowed["view"]) == ("single_arm", 2, "task")
    with pytest.raises(ConfigurationError, match=f"expected {problem}, got {value!r}"):
        COCARRY_MJ.complete_options({option: value})


@pytest.mark.parametrize("factory", ["cadenza.no_such_module:make", "cadenza.benchmark.tasks:nope"])
def test_factory_that_does_not_exist_is_an_error(factory):
    with pytest.raises(ConfigurationError, match=rf"expected the function '{factory}'"):
        changed(env_factory=factory).load_factory()


@pytest.mark.parametrize(
    "fields",
    [
        {"version": 0},
        {"tier": 4},
        {"max_robots": 1},
        {"task_id": ""},
        {"env_factory": "no colon"},
        {"episode_length": 0},
        {"colour": "red"},
    ],
)
def test_malformed_description_is_refused(fields):
    smallest = {"version": 1, "tier": 0, "max_robots": 2, "episode_length": 1}
    allowed = TaskSpec.model_validate({**CROSSING.model_dump(), **smallest}).model_dump()
    with pytest.raises(ValidationError, match=next(iter(fields))):
        TaskSpec.model_validate({**allowed, **fields})
