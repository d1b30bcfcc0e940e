"""The filter with a backup, around a base that takes velocity commands."""

import json
import math

import numpy as np
import pytest

from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety.backup import BackupFilter, BatchedBackupFilter
from cadenza.safety.control_models import PartnerBound, UnicycleModel, VelocityModel
from cadenza.safety.geometry import HalfSpace, Points
from cadenza.safety.snapshot import AgentBatch, AgentSnapshot, WheeledBatch

RADIUS, DT = 0.2, 0.1


def base(**settings):
    return VelocityModel("ego", 2, 1.0, limit="none", **settings)


def agents(*, at, ego_velocity=(0.0, 0.0), velocity=(0.0, 0.0), age_s=0.0):
    return {
        "ego": AgentSnapshot((0.0, 0.0), ego_velocity, RADIUS),
        "walker": AgentSnapshot(at, velocity, RADIUS, age_s),
    }


def guard(robot=None, *, speed=0.8, accel=math.inf, **options):
    bound = PartnerBound("walker", speed, accel)
    return BackupFilter(robot or base(), [bound], dt=DT, margin_m=0.0, **options)


def test_command_that_is_safe_comes_back_as_the_same_object():
    nominal = np.array([0.3, 0.4])
    step = guard().filter(nominal, agents(at=(3.0, 0.0)))
    assert step.action is nominal
    assert (step.backup, step.uncertified) == ("none", False)
    assert step.margin == {"walker": pytest.approx(2.6)}


def test_ideal_base_approaches_as_fast_as_the_partner_can_close_in_one_step():
    # e = 0.1 m, the partner closes 0.08 m in the step: 0.02 m are left for 0.1 s.
    step = guard().filter(np.array([1.0, 0.0]), agents(at=(0.5, 0.0)))
    assert step.backup == "rows"
    assert step.action[0] == pytest.approx(0.2, abs=1e-3)
    assert step.action[0] <= 0.2 + 1e-9


def test_command_faster_than_the_base_is_scaled():
    step = guard().filter(np.array([-3.0, 4.0]), agents(at=(9.0, 0.0)))
    np.testing.assert_allclose(step.action, [-0.6, 0.8], atol=1e-12)


def test_passive_base_that_comes_to_rest_within_the_step_may_do_so():
    robot = VelocityModel("ego", 2, 1.0, max_accel=2.0)
    step = guard(robot, speed=2.0).filter(np.zeros(2), agents(at=(3.0, 0.0), ego_velocity=(0.1, 0)))
    assert (step.backup, step.uncertified) == ("none", False)


def test_escape_from_a_partner_that_outruns_the_robot_is_refused():
    with pytest.raises(ConfigurationError, match="no faster than the 1 m/s that the robot flees"):
        guard(speed=1.01, guarantee="escape")
    assert guard(speed=1.01).guarantee == "passive"
    assert guard(speed=1.0).guarantee == "escape"


def test_partner_measured_faster_than_declared_is_uncertified():
    scene = agents(at=(5.0, 0.0), velocity=(0.0, 0.81))
    assert guard(speed=0.8).filter(np.zeros(2), scene).uncertified
    assert not guard(speed=0.82).filter(np.zeros(2), scene).uncertified


def test_resumed_filter_decides_like_the_unbroken_one():
    robot = VelocityModel("ego", 2, 1.0, 1.5)
    whole = guard(robot, accel=2.0)
    scene = agents(at=(0.8, 0.1), ego_velocity=(0.3, 0.0), velocity=(-0.5, 0.0))
    whole.filter(np.array([1.0, 0.0]), scene)
    resumed = guard(robot, accel=2.0)
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    later = agents(at=(0.7, 0.1), ego_velocity=(0.25, 0.0), velocity=(-0.6, 0.0))
    first, second = (one.filter(np.array([1.0, 0.0]), later) for one in (whole, resumed))
    assert first.action.tolist() == second.action.tolist()
    assert first.backup == second.backup
    assert whole.state_dict() == resumed.state_dict()


@pytest.mark.parametrize(
    ("nominal", "scene", "named"),
    [
        (np.zeros(3), agents(at=(1.0, 0.0)), "nominal action"),
        (np.array([math.nan, 0.0]), agents(at=(1.0, 0.0)), "nominal action"),
        (np.zeros(2), {"ego": AgentSnapshot((0.0, 0.0), (0.0, 0.0), RADIUS)}, "walker"),
        (np.zeros(2), agents(at=(1.0, 0.0)) | {"dog": None}, "dog"),
    ],
)
def test_malformed_call_is_one_sentence(nominal, scene, named):
    with pytest.raises(InputError, match=named):
        guard().filter(nominal, scene)


def test_scan_of_one_call_stands_beside_the_obstacles_of_the_filter():
    wall = HalfSpace((-1, 0), -0.25)
    alone = BackupFilter(base(), dt=DT, margin_m=0.0, obstacles=[wall])
    scene = {"ego": AgentSnapshot((0.0, 0.0), (0.0, 0.0), RADIUS)}
    scan = Points([(0.0, 0.35)], 0.1)  # 5 cm above, as far as the wall at the right
    wanted = np.array([0.7, 0.7])
    step = alone.filter(wanted, scene, obstacles=[scan])
    assert step.static_margin == pytest.approx((0.05, 0.05))
    assert max(step.action) <= 0.5 + 1e-6  # 5 cm in a step of 0.1 s
    assert alone.filter(wanted, scene).static_margin == pytest.approx((0.05,))


def test_commands_on_their_way_end_with_their_episode():
    late = guard(base(delay_s=0.3))
    scene = agents(at=(3.0, 0.0))
    for _ in range(3):
        late.filter(np.array([1.0, 0.0]), scene)
    assert late.state_dict() != guard(base(delay_s=0.3)).state_dict()
    late.reset()
    assert late.state_dict() == guard(base(delay_s=0.3)).state_dict()


def test_late_base_slows_down_along_a_wall_by_where_its_command_acts():
    # 0.3 s late and 1 m/s fast: rows of the gap as it is now would ask for too little, be refused,
    # and leave the base to stand still where it could slide along the wall.
    late = BackupFilter(base(delay_s=0.3), dt=DT, obstacles=[HalfSpace((1, 0), -2.0)])
    x, coming, sources = np.zeros(2), [np.zeros(2)] * 3, []
    for _ in range(40):
        step = late.filter(np.array([-0.9, 0.3]), {"ego": AgentSnapshot(x, coming[0], RADIUS)})
        coming.append(step.action)
        x = x + coming.pop(0) * DT
        sources.append(step.backup)
    assert set(sources) == {"none", "rows"}
    assert x[0] == pytest.approx(-2.0 + RADIUS + 1e-3, abs=1e-6)
    assert x[1] == pytest.approx(0.3 * DT * 37)


@pytest.mark.parametrize("count", [1, 40])  # one by one, and together
def test_backup_of_a_passive_base_is_told_as_the_brake_that_it_is(count):
    # Both partners are 5 cm away and close 8 cm in a step: only a base that rests may be touched.
    bounds = [PartnerBound("walker", 0.8), PartnerBound("other", 0.8)]
    single = BackupFilter(base(), bounds, dt=DT, margin_m=0.0)
    alone = agents(at=(0.45, 0.0)) | {"other": AgentSnapshot((-0.45, 0.0), (0.0, 0.0), RADIUS)}
    batch = BatchedBackupFilter(single, count)
    places = np.tile([[0.0, 0.0], [0.45, 0.0], [-0.45, 0.0]], (count, 1, 1))
    scene = AgentBatch(
        uids=tuple(alone), positions=places, velocities=0.0 * places, radii=np.full(3, RADIUS)
    )
    for _ in range(2):  # without a remembered plan, and with one
        step = single.filter(np.array([1.0, 0.0]), alone)
        assert (step.backup, step.action.tolist(), step.uncertified) == ("brake", [0, 0], False)
        found = batch.filter(np.tile([1.0, 0.0], (count, 1)), scene)
        assert set(found.backup) == {"brake"}
        assert not found.action.any()
        assert not found.uncertified.any()


@pytest.mark.parametrize(("speed", "broken"), [(np.float32(0.7), False), (0.707, True)])
def test_partner_at_its_top_speed_in_float32_keeps_its_bound(speed, broken):
    directions = np.linspace(0.0, 2.0 * np.pi, 64, endpoint=False)
    velocities = np.float32(speed) * np.stack((np.cos(directions), np.sin(directions)), axis=1)
    velocities = velocities.astype(np.float32)
    assert broken or (np.hypot(*velocities.astype(float).T) > 0.7).any()
    guard = BackupFilter(VelocityModel("ego", 2, 1.0, 2.0), [PartnerBound("walker", 0.7)], dt=0.1)
    for velocity in velocities:
        scene = {
            "ego": AgentSnapshot((0.0, 0.0), (0.0, 0.0), 0.2),
            "walker": AgentSnapshot((3.0, 0.0), velocity, 0.2),
        }
        step = guard.filter(np.zeros(2), scene)
        assert (step.bounds_broken, step.uncertified) == (broken, broken)
    batch = BatchedBackupFilter(guard, len(velocities))
    places = np.zeros((len(velocities), 2, 2))
    places[:, 1, 0] = 3.0
    speeds = np.zeros_like(places)
    speeds[:, 1] = velocities
    agents = AgentBatch(
        uids=("ego", "walker"), positions=places, velocities=speeds, radii=np.full(2, 0.2)
    )
    found = batch.filter(np.zeros((len(velocities), 2)), agents)
    assert (found.bounds_broken == broken).all()


def test_plan_is_dropped_when_a_partner_breaks_its_bound():
    robot = VelocityModel("ego", 2, 1.0, limit="none")
    guard = BackupFilter(robot, [PartnerBound("walker", 0.5)], dt=DT, position_error_m=0.1)
    batch = BatchedBackupFilter(guard, 64)
    ahead, towards = np.array([1.0, 0.0]), (0.56, 0.45, 0.32, 0.31)
    for x, speed in zip(towards, (-0.5, -3.0, -0.2, -0.2), strict=True):
        step = guard.filter(ahead, agents(at=(x, 0.0), velocity=(speed, 0.0)))
        places, speeds = np.zeros((64, 2, 2)), np.zeros((64, 2, 2))
        places[:, 1, 0], speeds[:, 1, 0] = x, speed
        scene = AgentBatch(
            uids=("ego", "walker"),
            positions=places,
            velocities=speeds,
            radii=np.full(2, RADIUS),
        )
        found = batch.filter(np.tile(ahead, (64, 1)), scene)
        assert (found.uncertified == step.uncertified).all()
        assert step.uncertified is (x < 0.5)  # afterwards they overlap: nothing is promised


@pytest.mark.parametrize("gap", [0.3, -0.05])
def test_wheeled_robot_that_moves_within_a_partner_is_not_certified(gap):
    robot = UnicycleModel("ego", 1.0, 1.0, 2.0, 2.0, 6.0, RADIUS)
    guard = BackupFilter(robot, [PartnerBound("walker", 0.0)], dt=DT, guarantee="passive")
    for x in (3.0, 2.0 * RADIUS + gap):
        scene = {
            "ego": robot.snapshot(0.0, 0.0, 0.0, 1.0, 0.0),
            "walker": AgentSnapshot((x, 0.0), (0.0, 0.0), RADIUS),
        }
        step = guard.filter(np.array([0.0, 0.0]), scene)
    assert step.uncertified is (gap < 0.0)


@pytest.mark.parametrize(
    "plan",
    [
        [[-1.0, 0.0], [-0.5, 0.0]],  # to flee
        [[], [0.0, 0.0]],  # to stop, whoever comes from wherever
    ],
)
def test_plans_of_another_guarantee_or_robot_are_not_loaded(plan):
    parts = {"guarantee": "passive"}
    passive = BackupFilter(base(), [PartnerBound("walker", 0.5)], dt=DT, **parts)
    before = passive.state_dict()
    with pytest.raises(InputError, match="expected what state_dict returned"):
        passive.load_state_dict({**before, "plan": plan})
    assert passive.state_dict() == before
    fleeing = BackupFilter(base(), [PartnerBound("walker", 0.5)], dt=DT)
    away = [-1.0, 0.0]
    for other in ([[], [0.0, 0.0]], [[-2.0, 0.0], [-0.5, 0.0]], [away, []], [away, [-3.0, 0.0]]):
        with pytest.raises(InputError, match="expected what state_dict returned"):
            fleeing.load_state_dict({**fleeing.state_dict(), "plan": other})


SLOW = {
    "norm": VelocityModel("ego", 2, 1.0, 2.0),
    "axis": VelocityModel("ego", 2, 1.0, 2.0, limit="axis"),
    "late": VelocityModel("ego", 2, 1.0, 2.0, delay_s=2 * DT),
    "wheels": UnicycleModel("ego", 1.0, 1.0, 2.0, 2.0, 6.0, RADIUS),
}


class Both:
    """The filter by itself and for many environments, asked the same."""

    def __init__(self, model, bounds, count=40, **options):
        self.single = BackupFilter(model, bounds, dt=DT, margin_m=0.0, **options)
        self.batch, self.count = BatchedBackupFilter(self.single, count), count

    def uncertified(self, nominal, scene, obstacles=()):
        """Return whether all of them say so."""
        step = self.single.filter(nominal, scene, obstacles=obstacles)
        count, seen = self.count, list(scene.values())
        parts = {
            "uids": tuple(scene),
            "positions": np.tile([one.position for one in seen], (count, 1, 1)),
            "velocities": np.tile([one.velocity for one in seen], (count, 1, 1)),
            "radii": np.array([one.radius for one in seen]),
            "ages_s": np.tile([one.age_s for one in seen], (count, 1)),
            "headings": np.zeros(count),
            "yaw_rates": np.zeros(count),
        }
        actions, agents = np.tile(nominal, (count, 1)), WheeledBatch(**parts)
        found = self.batch.filter(actions, agents, obstacles=obstacles)
        assert (found.uncertified == step.uncertified).all()
        assert (found.static_uncertified == step.static_uncertified).all()
        return step.uncertified


@pytest.mark.parametrize("count", [1, 40])  # one by one, and together
@pytest.mark.parametrize("seen", ["jump", "growth", "age"])
@pytest.mark.parametrize("robot", SLOW)
def test_plan_to_stop_falls_when_its_path_is_seen_to_be_within_reach(robot, seen, count):
    # At 1 m/s the base takes 0.25 m and 0.5 s to rest, in which a partner of 0.5 m/s comes 0.25 m.
    # A late one drives on for 0.2 s first: 0.2 m more, and 0.1 m of the partner's. In a packet of
    # 0.3 s the partner may have come for one step, the plan's, and have fled before: 0.05 m less.
    model, room, ahead = SLOW[robot], 0.8 if robot == "late" else 0.5, np.array([1.0, 0.0])
    for spare in (-0.01, 0.01):
        both = Both(model, [PartnerBound("walker", 0.5)], count, guarantee="passive")
        x = room + spare + 2 * RADIUS
        jump = {
            "jump": (x, RADIUS, 0.0),
            "growth": (3.0, 3.0 - x + RADIUS, 0.0),
            "age": (x - 0.05, RADIUS, 0.3),
        }[seen]

        def scene(x, radius, age_s):
            ego = agents(at=(x, 0.0), ego_velocity=ahead)["ego"]
            ego = model.snapshot(0.0, 0.0, 0.0, 1.0, 0.0) if robot == "wheels" else ego
            return {"ego": ego, "walker": AgentSnapshot((x, 0.0), (0.0, 0.0), radius, age_s)}

        for _ in range(3):
            assert not both.uncertified(ahead, scene(3.0, RADIUS, 0.0))
        assert both.uncertified(np.zeros(2), scene(*jump)) is (spare < 0.0)


@pytest.mark.parametrize("count", [1, 40])
def test_wall_that_seems_too_near_takes_no_certificate_away(count):
    # All distances are wrong by up to 1 cm: at first they seem too large, and then too small.
    errors = {"position_error_m": 0.01, "guarantee": "passive"}
    both = Both(VelocityModel("ego", 2, 1.0, 2.0), [PartnerBound("walker", 0.5)], count, **errors)
    for step, (x, speed, gap) in enumerate([(0.0, 1.0, 0.511), (0.09, 0.8, 0.351)]):
        # 0.25 m and 0.25 m of the partner's are needed at first; then 0.16 m and 0.2 m.
        scene = agents(at=(gap + 2 * RADIUS, 0.0), ego_velocity=(speed, 0.0))
        wall = HalfSpace((-1, 0), -(0.461 - x - 0.02 * step))
        assert not both.uncertified(np.zeros(2), scene, obstacles=[wall])


@pytest.mark.parametrize("count", [1, 40])
def test_late_base_that_is_touched_before_its_command_acts_is_not_certified(count):
    # It drives away from a slow partner, and is free again when it may begin to brake.
    late = VelocityModel("ego", 2, 1.0, 2.0, delay_s=3 * DT)
    both = Both(late, [PartnerBound("walker", 0.1)], count, guarantee="passive")
    ahead = np.array([1.0, 0.0])
    for x in (-3.0, -3.0, -3.0, -0.35):
        uncertified = both.uncertified(ahead, agents(at=(x, 0.0), ego_velocity=ahead))
    assert uncertified
