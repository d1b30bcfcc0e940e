"""Task contracts: sizes, physical values, versions, differences, and every refusal."""

import json
import math

import numpy as np
import pytest

from cadenza import contracts
from cadenza.contracts import ActionField, ObsField, TaskContract
from cadenza.core.errors import CheckpointError, InputError, UnknownNameError


def lift(**changes):
    values = {
        "task_id": "lift",
        "obs_spec": (ObsField("joints", 7, "rad"), ObsField("cube", 3, "m", "world", scale=0.5)),
        "action_spec": (
            ActionField("step", 3, -1.0, 1.0, -0.05, 0.05, "m", "world"),
            ActionField("gripper", 1, 0.0, 1.0, 0.08, 0.0, "m"),
        ),
        "control_hz": 20,
        "robot_uid": "arm",
        "reset_joint_config": (0.0,) * 7,
    }
    return TaskContract(**{**values, **changes})


def test_contract_tells_sizes_places_and_physical_values():
    contract = lift()
    assert (contract.obs_dim, contract.action_dim, contract.title) == (10, 4, "lift@v1")
    assert contract.obs_slices() == {"joints": slice(0, 7), "cube": slice(7, 10)}
    assert contract.action_slices() == {"step": slice(0, 3), "gripper": slice(3, 4)}
    step, gripper = contract.action_spec
    assert step.to_physical(0.5) == pytest.approx(0.025)
    # 0 is open, 0.08 m; 1 is closed
    assert gripper.to_physical(np.array([0.0, 0.25, 1.0])).tolist() == pytest.approx(
        [0.08, 0.06, 0]
    )
    assert contract.obs_spec[1].to_physical(2.0) == 1.0
    assert ActionField("free").to_physical(7.0) == 7.0


def test_facts_are_json_and_give_the_contract_back():
    contract = lift(notes="x", base_position_in_world=(0.1, 0.0, 0.0))
    assert TaskContract.from_facts(json.loads(json.dumps(contract.facts()))) == contract
    free = lift(action_spec=(ActionField("force", 2, 0.0, math.inf),))
    told = json.dumps(free.facts(), allow_nan=False)
    assert TaskContract.from_facts(json.loads(told)) == free


def test_versions_are_registered_once():
    first = lift(task_id="test-lift")
    assert contracts.register(first) is first
    assert contracts.register(lift(task_id="test-lift")) == first  # the same again
    second = contracts.register(lift(task_id="test-lift", version=2, control_hz=40))
    assert contracts.versions("test-lift") == (1, 2)
    assert contracts.get("test-lift") == second
    assert contracts.get("test-lift", 1) == first
    assert "test-lift" in contracts.list_contracts()
    with pytest.raises(InputError, match=r"new version.*control_hz: expected 20, got 30"):
        contracts.register(lift(task_id="test-lift", control_hz=30))
    with pytest.raises(UnknownNameError, match="got the versions 1, 2"):
        contracts.get("test-lift", 3)
    with pytest.raises(UnknownNameError, match=r"did you mean 'crossing'"):
        contracts.get("crosing")
    assert contracts.versions("nothing") == ()


def field(index, **changes):
    """Return fields of observations with one changed."""
    spec = list(lift().obs_spec)
    names = ("name", "dim", "unit", "frame", "low", "high", "scale")
    spec[index] = ObsField(**{**{n: getattr(spec[index], n) for n in names}, **changes})
    return {"obs_spec": tuple(spec)}


def done(low, high, physical_low, physical_high):
    step = ActionField("step", 3, low, high, physical_low, physical_high, "m", "world")
    return {"action_spec": (step, lift().action_spec[1])}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, []),
        ({"notes": "y", "env_id": "Lift-v0", "max_episode_steps": 9}, []),
        ({"version": 2}, ["version: expected 1, got 2"]),
        ({"control_hz": 10}, ["control_hz: expected 20, got 10"]),
        ({"control_mode": "joints"}, ["control_mode: expected none, got joints"]),
        (field(1, unit="mm"), ["observation cube: expected unit m, got mm"]),
        (field(1, frame=""), ["observation cube: expected frame world, got none"]),
        (field(1, scale=1.0), ["observation cube: expected scale 0.5, got 1.0"]),
        (field(0, dim=6), ["observation joints: expected dim 7, got 6"]),
        (field(0, name="q"), ["observation: expected joints, cube, got q, cube"]),
        (
            {"obs_spec": lift().obs_spec[::-1]},
            ["observation: expected joints, cube, got cube, joints"],
        ),
        (
            done(-1, 1, -0.1, 0.1),
            [
                "action step: expected physical_low -0.05, got -0.1",
                "action step: expected physical_high 0.05, got 0.1",
            ],
        ),
        (
            {"reset_joint_config": (0.1,) * 7},
            [f"reset_joint_config: expected {(0.0,) * 7}, got {(0.1,) * 7}"],
        ),
        # Another robot has bounds and a pose of its own, on the same scale.
        ({"robot_uid": "small", "reset_joint_config": (), **done(-0.5, 0.5, -0.025, 0.025)}, []),
        (
            {"robot_uid": "small", **done(-1, 1, -0.1, 0.1)},
            ["action step: expected scale 0.05, got 0.1"],
        ),
    ],
)
def test_differences_are_told_field_by_field(changes, told):
    other = lift(**changes)
    assert lift().differences(other) == told
    if not told:
        lift().require_match("a file", other)
        return
    with pytest.raises(CheckpointError) as refused:
        lift().require_match("a file", other)
    assert str(refused.value).startswith("a file: expected the task contract lift@v1, got lift@v")
    assert all(each in str(refused.value) for each in told)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: ObsField(""), "expected a name"),
        (lambda: ObsField("a", 0), r"a\.dim"),
        (lambda: ObsField("a", low=1.0, high=0.0), "low <= high"),
        (lambda: ObsField("a", low=math.nan), "low <= high"),
        (lambda: ObsField("a", scale=0.0), "scale > 0"),
        (lambda: ActionField("a", 1, -1.0, 1.0, 0.0), "two physical bounds"),
        (lambda: ActionField("a", physical_low=0.0, physical_high=1.0), "finite low and high"),
        (lambda: lift(obs_spec=(ObsField("a"), ObsField("a"))), "different names"),
        (lambda: lift(action_spec=()), "different names"),
        (lambda: lift(version=0), "version"),
        (lambda: lift(control_hz=0), "control_hz > 0"),
        (lambda: lift(task_id=""), "a task_id"),
        (lambda: lift(quaternion_order="xyz"), "quaternion_order of wxyz, xyzw"),
        (lambda: TaskContract.from_facts({"task_id": "a"}), "expected the facts of one"),
        (lambda: TaskContract.from_facts({**lift().facts(), "new": 1}), "upgrade the package"),
    ],
)
def test_contracts_without_sense_are_refused(make, told):
    with pytest.raises(InputError, match=told):
        make()
