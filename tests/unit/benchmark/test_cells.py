import json

import pytest
from pydantic import ValidationError

from cadenza.aht.config import EnvConfig, SafetyConfig
from cadenza.benchmark.cells import (
    ConditionEntry,
    EvaluationPlan,
    PolicyEntry,
    initial_state_seed,
    store_plan,
)
from cadenza.core.errors import ConfigurationError, IntegrityError, UnknownNameError
from cadenza.core.seeding import derive_substream
from tests.unit.benchmark.samples import make_plan


def test_plan_cells_cover_the_product_in_blocks():
    cells = list(make_plan().cells.values())
    assert len(cells) == 2 * 2 * 2 * 2 * 2
    assert [(c.first_episode, c.n_episodes) for c in cells[:2]] == [(0, 2), (2, 1)]
    assert make_plan().n_episodes == 2 * 2 * 2 * 2 * 3
    assert len(set(make_plan().cells)) == len(cells)


def test_initial_state_seed_is_the_first_integer_of_its_named_stream():
    stream = derive_substream("evaluation.episode.3", root_seed=7)
    assert initial_state_seed(7, 3) == int(stream.default_rng().integers(0, 2**31 - 1))
    assert initial_state_seed(7, 3) != initial_state_seed(8, 3)


def test_episode_idx_is_unique_per_seed_and_equal_across_conditions():
    plan = make_plan()
    by_side: dict[tuple[str, str, int], set[int]] = {}
    for cell in plan.cells.values():
        indices = {plan.episode_idx(cell, cell.first_episode + i) for i in range(cell.n_episodes)}
        side = by_side.setdefault((cell.policy, cell.condition, cell.seed), set())
        assert not side & indices
        side |= indices
    assert all(side == set(range(6)) for side in by_side.values())


@pytest.mark.parametrize(
    "changes",
    [
        {"code_sha256": "ee" * 32},
        {"task_version": 2},
        {"env": EnvConfig(task="crossing", episode_length=8)},
        {"policies": (PolicyEntry(name="ego", source="zero"),)},
        {"policies": (PolicyEntry(name="ego", source="x", weights_sha256="ef" * 32),)},
        {"conditions": (ConditionEntry(name="filter_on", safety=SafetyConfig(enabled=False)),)},
    ],
)
def test_cell_keys_change_with_whatever_changes_the_result(changes):
    def filtered_ego_keys(plan):
        cells = plan.cells.items()
        return {k for k, c in cells if (c.policy, c.condition) == ("ego", "filter_on")}

    before, after = filtered_ego_keys(make_plan()), filtered_ego_keys(make_plan(**changes))
    assert len(before) == len(after) == 8
    assert not before & after


def test_plan_round_trips_through_its_bytes():
    plan = make_plan()
    assert EvaluationPlan.from_bytes(plan.to_bytes()) == plan


def test_plan_bytes_in_another_form_are_refused():
    loose = json.dumps(json.loads(make_plan().to_bytes()), indent=1).encode()
    with pytest.raises(IntegrityError, match="canonical form"):
        EvaluationPlan.from_bytes(loose)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"a":1,"a":2}', "a key is repeated"),
        (b'{"a":NaN}', "the number NaN is not JSON"),
        (b"[1]", "expected a JSON object, got list"),
        (b"\xff", "expected strict JSON"),
        (b"{}", "expected an evaluation plan"),
        (b"[" * 100_000, "expected strict JSON"),
    ],
)
def test_plan_from_malformed_bytes_is_refused(data, message):
    with pytest.raises(IntegrityError, match=message):
        EvaluationPlan.from_bytes(data)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": (1, 1)}, "no repetition"),
        ({"seeds": ()}, "at least one value"),
        ({"seeds": (-1,)}, "greater than or equal to 0"),
        ({"env": EnvConfig(task="crossing", num_envs=2)}, "env.num_envs: expected 1, got 2"),
        ({"policies": (PolicyEntry(name="a", source="x"),) * 2}, "policies: expected distinct"),
        ({"policies": ()}, "at least 1 item"),
        ({"unknown": 1}, "Extra inputs are not permitted"),
    ],
)
def test_plan_with_bad_fields_is_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        make_plan(**changes)


def test_plan_asked_for_an_unknown_name_lists_the_known_ones():
    with pytest.raises(
        UnknownNameError, match="policy 'x': expected one the plan names: ego, zero"
    ):
        make_plan().policy("x")


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "a b"])
def test_names_that_could_leave_a_folder_are_refused(name):
    with pytest.raises(ValidationError, match="String should match pattern"):
        PolicyEntry(name=name, source="zero")


def test_store_plan_is_idempotent_and_refuses_another_plan(tmp_path):
    store_plan(tmp_path, make_plan())
    store_plan(tmp_path, make_plan())
    with pytest.raises(ConfigurationError, match=r"seeds = .*, got \[1\]"):
        store_plan(tmp_path, make_plan(seeds=(1,)))
    assert (tmp_path / "plan.json").read_bytes() == make_plan().to_bytes()
    retyped = (tmp_path / "plan.json").read_bytes() + b"\n"
    (tmp_path / "plan.json").write_bytes(retyped)
    with pytest.raises(IntegrityError, match="expected the bytes of this plan, got others"):
        store_plan(tmp_path, make_plan())
    assert (tmp_path / "plan.json").read_bytes() == retyped
    (tmp_path / "request.json").write_text("of a zoo")
    with pytest.raises(ConfigurationError, match=r"got one with 'request.json'"):
        store_plan(tmp_path, make_plan())
