"""A differential drive of one's own, guarded in one call; the example; what is refused."""

import math
import runpy
from pathlib import Path

import numpy as np
import pytest

import cadenza
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety import AgentSnapshot, PartnerBound, UnicycleModel
from cadenza.safety.backup import BackupFilter, BatchedBackupFilter
from cadenza.safety.geometry import HalfSpace, Points
from cadenza.safety.snapshot import WheeledBatch, WheeledSnapshot

EXAMPLE = Path(__file__).parents[4] / "examples" / "guard_differential_drive.py"
ROBOT = UnicycleModel("ego", 1.0, 1.0, 2.0, accel=2.0, yaw_accel=6.0, radius=0.25)
IDEAL = UnicycleModel("ego", 1.0, 1.0, 2.0, math.inf, math.inf, radius=0.25)
WALKER = PartnerBound("person", max_speed=0.6)


@pytest.fixture(scope="module")
def example():
    return runpy.run_path(str(EXAMPLE))


def guarded(example, **task):
    return cadenza.guard(
        example["RoomEnv"](),
        robot=example["robot"],
        partner=PartnerBound("person", max_speed=0.6),
        obstacles=[*example["walls"], example["COLUMN"]],
        snapshots=example["where"],
        control_timestep=example["DT"],
        **task,
    )


def test_robot_of_the_example_drives_around_the_column_it_ran_into(example):
    env = guarded(example)
    time_s, gap = example["drive"](env)
    assert time_s < 10.0
    assert gap > 0.0
    assert example["drive"](example["RoomEnv"]())[1] < -0.3
    env.reset(seed=0)
    action = np.array([0.5, 0.1], dtype=np.float32)  # nothing is near at the start
    info = env.step(action)[-1]["safety"]
    assert (info["backup"], info["intervened"], info["uncertified"]) == ("none", False, False)
    assert info["applied_action"].tobytes() == action.tobytes()


def test_no_policy_gets_the_robot_of_the_example_into_a_wall(example):
    env, rng = guarded(example), np.random.default_rng(0)
    for _ in range(3):
        env.reset(seed=0)
        action = np.zeros(2, dtype=np.float32)
        for step in range(150):
            if step % 15 == 0:
                action = rng.uniform([-1.0, -2.0], [1.0, 2.0]).astype(np.float32)
            info = env.step(action)[-1]["safety"]
            assert min(info["static_margin"]) > -1e-3 - 1e-6
            assert not info["static_uncertified"]


def test_disc_of_another_radius_than_the_models_is_refused():
    guard, told = BackupFilter(ROBOT, dt=0.1), "expected the 0.25 m of its UnicycleModel, got 0.1 m"
    for radius in (0.25, 0.25 * (1.0 + 1e-7)):  # as float32 may have it
        seen = WheeledSnapshot((0.0, 0.0), (0.0, 0.0), radius, heading=0.0, yaw_rate=0.0)
        assert guard.filter(np.zeros(2), {"ego": seen}).backup == "none"
    seen = WheeledSnapshot((0.0, 0.0), (0.0, 0.0), 0.1, heading=0.0, yaw_rate=0.0)
    with pytest.raises(InputError, match=told):
        guard.filter(np.zeros(2), {"ego": seen})
    still, turns = np.zeros((2, 1, 2)), np.zeros(2)
    batch = WheeledBatch(
        uids=("ego",),
        positions=still,
        velocities=still,
        radii=np.array([0.1]),
        headings=turns,
        yaw_rates=turns,
    )
    with pytest.raises(InputError, match=told):
        BatchedBackupFilter(guard, 2).filter(np.zeros((2, 2)), batch)


def test_promise_about_a_partner_is_the_one_that_holds_for_every_heading():
    assert BackupFilter(ROBOT, [WALKER], dt=0.1).guarantee == "passive"
    assert BackupFilter(ROBOT, [WALKER], dt=0.1, guarantee="escape").guarantee == "escape"
    # Ideal: v_f = min(1, l W) = 0.2 m/s, less 0.2^2 * 0.1 / (2 * 0.1) = 0.02 for turning.
    assert IDEAL.escape_speed(0.1) == pytest.approx(0.18)
    slow = PartnerBound("person", max_speed=0.17)
    assert BackupFilter(IDEAL, [slow], dt=0.1).guarantee == "escape"
    assert BackupFilter(IDEAL, [WALKER], dt=0.1).guarantee == "passive"
    with pytest.raises(ConfigurationError, match=r"no faster than the 0\.18 m/s"):
        BackupFilter(IDEAL, [WALKER], dt=0.1, guarantee="escape")


def test_memory_continues_from_its_saved_state():
    person = AgentSnapshot([1.2, 0.0], [-0.6, 0.0], 0.25)
    first = BackupFilter(ROBOT, [WALKER], dt=0.1, guarantee="escape")
    scene = {"ego": ROBOT.snapshot(0.0, 0.0, 0.0, 0.0, 0.0), "person": person}
    step = first.filter(np.array([0.0, 0.2]), scene)
    assert not step.uncertified
    second = BackupFilter(ROBOT, [WALKER], dt=0.1, guarantee="escape")
    second.load_state_dict(first.state_dict())
    near = {"ego": ROBOT.snapshot(0.0, 0.0, 0.02, 0.0, 0.2), "person": person}
    for wanted in ([1.0, 0.0], [0.0, 2.0], [-1.0, 0.0]):
        one, other = (flter.filter(np.array(wanted), near) for flter in (first, second))
        assert (one.action.tolist(), one.backup) == (other.action.tolist(), other.backup)


def test_command_beyond_the_limits_is_moved_to_them():
    ego = {"ego": ROBOT.snapshot(0.0, 0.0, 0.0, 0.0, 0.0)}
    for obstacles in ((), [HalfSpace((1, 0), -5.0)]):
        step = BackupFilter(ROBOT, dt=0.1, obstacles=obstacles).filter(np.array([1.5, -9.0]), ego)
        assert (step.action.tolist(), step.backup) == ([1.0, -2.0], "rows")


def test_scan_of_walls_stops_the_robot_as_the_walls_do():
    """Returns of 3 cm around, 5 cm apart, on a wall 1 m ahead."""
    scan = Points(np.stack([np.full(41, 1.0), np.linspace(-1.0, 1.0, 41)], axis=1), 0.03)
    x, v, flter = 0.0, 0.0, BackupFilter(ROBOT, dt=0.1)
    for _ in range(60):
        ego = {"ego": ROBOT.snapshot(x, 0.0, 0.0, v, 0.0)}
        command, w = flter.filter(np.array([1.0, 0.0]), ego, obstacles=[scan]).action
        assert w == pytest.approx(0.0, abs=1e-9)  # head on: nothing is gained by turning
        before, v = v, v + float(np.clip(command - v, -0.2, 0.2))
        ramp_s = abs(v - before) / 2.0
        x += 0.5 * (before + v) * ramp_s + v * (0.1 - ramp_s)
    # The point 0.1 m ahead stays half of that away from where the disc would touch, and a margin.
    assert x == pytest.approx(1.0 - 0.03 - 0.25 - 0.001 - 0.1 - 0.05, abs=1e-3)
    assert abs(v) < 1e-3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_speed": 0.0}, r"max_speed: expected a number in \[1e-09, 1e\+09\]"),
        ({"max_reverse": -0.1}, "max_reverse: expected a speed >= 0 m/s"),
        ({"max_yaw_rate": math.inf}, "max_yaw_rate: expected a number"),
        ({"accel": math.nan}, r"accel: expected a number in .* or infinity, got nan"),
        ({"radius": "x"}, "radius: expected a number"),
        ({"look_ahead_m": 0.0}, "look_ahead_m: expected a number"),
        ({"center_offset_m": math.inf}, "center_offset_m: expected a finite length"),
    ],
)
def test_model_refuses_numbers_out_of_range(change, message):
    numbers = {"max_speed": 1.0, "max_reverse": 1.0, "max_yaw_rate": 2.0, "accel": 2.0}
    with pytest.raises(InputError, match=message):
        UnicycleModel("ego", **(numbers | {"yaw_accel": 6.0, "radius": 0.2} | change))


def test_robot_without_a_heading_is_refused():
    flter = BackupFilter(ROBOT, dt=0.1, obstacles=[HalfSpace((1, 0), -2.0)])
    with pytest.raises(InputError, match=r"agents\['ego'\]: expected a WheeledSnapshot, which has"):
        flter.filter(np.zeros(2), {"ego": AgentSnapshot([0.0, 0.0], [0.0, 0.0], 0.25)})
    for heading in (math.nan, math.inf, "north"):
        with pytest.raises(InputError, match=r"snapshot: heading: expected a finite number"):
            ROBOT.snapshot(0.0, 0.0, heading, 0.0, 0.0)


def test_passive_robot_that_is_caught_anyway_stops_instead_of_driving_on():
    # A partner behind it that is faster: driving on leads away from it, but only rest is promised.
    chased = BackupFilter(ROBOT, [PartnerBound("person", 2.0)], dt=0.1, guarantee="passive")
    scene = {
        "ego": ROBOT.snapshot(0.0, 0.0, 0.0, 0.8, 0.0),
        "person": AgentSnapshot((-0.6, 0.0), (2.0, 0.0), 0.25),
    }
    step = chased.filter(np.array([1.0, 0.0]), scene)
    assert step.uncertified
    assert step.action.tolist() == [0.0, 0.0]
