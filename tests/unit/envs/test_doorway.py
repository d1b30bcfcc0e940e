"""The door: motion against independent plants, walls against their shapes, and how episodes end."""

import math

import numpy as np
import pytest

from cadenza.core.errors import InputError, NotReadyError
from cadenza.envs import doorway
from cadenza.envs.doorway import (
    DoorwayDiffDriveEnv,
    DoorwayEnv,
    VectorDoorwayDiffDriveEnv,
    VectorDoorwayEnv,
    wall_gap,
)
from cadenza.safety.backup import BackupFilter
from cadenza.safety.geometry import Obstacles
from cadenza.safety.verifier.robots import UnicyclePlant, VelocityPlant

ENVS = [DoorwayEnv, DoorwayDiffDriveEnv]
BATCHES = [VectorDoorwayEnv, VectorDoorwayDiffDriveEnv]


def placed(batch, ego, partner=(1.5, 1.0), goals=((1.5, 1.0), (-1.5, -1.0))):
    """Return a batch of one that starts where the test wants it; robots on wheels face the door."""
    env = batch(1)
    env.reset(seed=0)
    was = env.snapshot([0])
    was["positions"][0] = [ego, partner]
    was["goals"][0] = goals
    if "headings" in was:
        was["headings"][0] = [0.0, 0.5]
    env.restore([0], was)
    return env


def step(env, ego=(0.0, 0.0), partner=(0.0, 0.0)):
    return env.step({"ego": np.array([ego]), "partner": np.array([partner])})


def test_velocity_follows_the_ramp_of_the_verifiers_own_plant():
    env, rng = placed(VectorDoorwayEnv, (-1.5, 0.5)), np.random.default_rng(0)
    plants = [
        VelocityPlant(env.robot_positions()[uid][0], (0.0, 0.0), max_accel=model.max_accel)
        for uid, model in env.build_robot_models().items()
    ]
    for _ in range(60):
        commands = [speed * rng.uniform(-0.7, 0.7, 2) for speed in doorway.SPEEDS]  # inside |V|
        step(env, *commands)
        for (uid, place), plant, command in zip(
            env.robot_positions().items(), plants, commands, strict=True
        ):
            plant.step(command, doorway.CONTROL_TIMESTEP)
            np.testing.assert_allclose(place[0], plant.position, atol=1e-12)
            moving = env.snapshots(0)[uid]
            np.testing.assert_allclose(moving.velocity, plant.velocity, atol=1e-12)


def test_wheels_follow_the_ramps_of_the_verifiers_own_plant():
    env, rng = placed(VectorDoorwayDiffDriveEnv, (-1.5, 0.5)), np.random.default_rng(1)
    plants = [
        UnicyclePlant(
            env.robot_positions()[uid][0],
            heading,
            accel=doorway.ACCELERATION,
            yaw_accel=doorway.YAW_ACCELERATION,
        )
        for uid, heading in (("ego", 0.0), ("partner", math.pi))
    ]
    for _ in range(60):
        commands = [[speed, 2.0] * rng.uniform(-1, 1, 2) for speed in doorway.SPEEDS]
        step(env, *commands)
        for one, plant, command in zip(env.snapshots(0).values(), plants, commands, strict=True):
            plant.step(command, doorway.CONTROL_TIMESTEP)
            # The plant's rule ignores where ramps end: up to a h^2 / 12 = 4e-7 m a step.
            np.testing.assert_allclose(one.position, plant.position, atol=2e-5)
            np.testing.assert_allclose(one.velocity, plant.velocity, atol=1e-9)
            turn = math.remainder(one.heading - plant.heading, 2.0 * math.pi)
            assert turn == pytest.approx(0.0, abs=1e-9)
            assert one.yaw_rate == pytest.approx(plant.yaw_rate, abs=1e-12)


def test_command_is_shortened_to_the_speed_of_the_robot():
    env = placed(VectorDoorwayEnv, (-1.5, 0.5))
    for _ in range(20):  # 1 m/s at 2 m/s^2 takes 10 steps
        step(env, (1.0, -1.0), (-0.75, -0.75))
    speeds = [np.linalg.norm(one.velocity) for one in env.snapshots(0).values()]
    assert speeds == pytest.approx(doorway.SPEEDS, abs=1e-12)


def test_gap_to_the_walls_is_that_of_the_shapes_that_filters_get():
    points = np.random.default_rng(2).uniform(-1, 1, (4000, 2)) * [2.4, 1.5]
    outside = np.abs(points[:, 0]) > doorway.WALL_HALF_THICKNESS
    outside |= np.abs(points[:, 1]) < doorway.DOOR_HALF_WIDTH
    shapes = Obstacles(doorway.obstacles())
    expected = shapes.gaps(points)[0].min(axis=1)
    actual = wall_gap(*points.T)
    np.testing.assert_allclose(actual[outside], expected[outside], atol=1e-12)
    assert ((actual < 0.0) == ~outside).all()
    assert (~outside).sum() > 50


#: Ego, its command, partner, its command; flags of the last info after one step.
OUTCOMES = {
    "robots touch": ((-0.2, 0.0), (1.0, 0.0), (0.2001, 0.0), (-0.75, 0.0), {"contact"}),
    "robots miss": ((-0.21, 0.0), (0.0, 0.0), (0.21, 0.0), (0.0, 0.0), set()),
    "ego at the jamb": ((0.0, 0.149), (0.0, 1.0), (1.5, 1.0), (0.0, 0.0), {"wall_contact"}),
    "ego in the door": ((0.0, 0.14), (0.0, 0.0), (1.5, 1.0), (0.0, 0.0), set()),
    "partner at the room's wall": (
        (-1.5, 1.0),
        (0.0, 0.0),
        (2.2999, 1.0),
        (0.75, 0.0),
        {"partner_wall_contact"},
    ),
    "one arrives": ((1.5, 1.0), (0.0, 0.0), (0.5, -1.0), (0.0, 0.0), set()),
    "both arrive": ((1.5, 1.0), (0.0, 0.0), (-1.5, -1.0), (0.0, 0.0), {"success", "reached"}),
}


@pytest.mark.parametrize("case", OUTCOMES)
def test_step_ends_in_what_happened_within_it(case):
    ego, moves, partner, others, expected = OUTCOMES[case]
    env = placed(VectorDoorwayEnv, ego, partner)
    _, reward, terminated, truncated, info = step(env, moves, others)
    last = info["final_info"] if terminated[0] else info
    assert {name for name, kept in last.items() if np.ravel(kept)[0] is np.True_} == expected
    assert (terminated[0], truncated[0]) == (bool(expected), False)
    bonus = 10.0 if "success" in expected else -0.5 if expected else 0.0
    assert reward[0] == pytest.approx(bonus - 0.01, abs=0.01)  # they moved by less than a cm


def test_reward_is_the_way_both_came_nearer_through_the_door():
    env = placed(VectorDoorwayEnv, (-1.5, 0.0), (1.0, 0.0), ((1.5, 0.0), (-1.5, 0.0)))
    total = sum(step(env, (1.0, 0.0), (-0.75, 0.0))[1][0] for _ in range(4))
    # Both speed up at 2 m/s^2 for 0.2 s, straight at the door: 0.04 m each.
    assert total == pytest.approx(2 * 0.04 - 4 * 0.01, abs=1e-12)
    env = placed(VectorDoorwayEnv, (-0.5, 0.0), (1.0, 0.0), ((1.5, 0.0), (1.5, 0.0)))
    apart = sum(step(env, (-1.0, 0.0))[1][0] for _ in range(4))
    assert apart == pytest.approx(-0.04 - 4 * 0.01, abs=1e-12)


@pytest.mark.parametrize("kind", ENVS)
def test_takt_ends_an_episode_without_success(kind):
    env = kind(takt_s=0.2, episode_length=10)
    env.reset(seed=0)
    still = {uid: np.zeros(2) for uid in env.agent_uids}
    flags = [env.step(still)[2:] for _ in range(4)]
    assert [flag[:2] for flag in flags] == [(False, False)] * 3 + [(True, False)]
    assert flags[-1][2]["time"] == pytest.approx(0.2)
    assert not flags[-1][2]["success"]
    with pytest.raises(NotReadyError, match=r"call reset\(\)"):
        env.step(still)


@pytest.mark.parametrize("kind", ENVS)
def test_starts_leave_the_other_robots_goal_free_and_face_the_door(kind):
    env = kind(root_seed=3)
    for seed in range(60):
        state = env.reset(seed=seed)[0]["agent"]["ego"]["state"]
        starts, goals = env.robot_positions(), env.goal_positions()
        assert starts["ego"][0] < -1.3 < 1.0 < starts["partner"][0]
        for uid, other in (("ego", "partner"), ("partner", "ego")):
            assert starts[uid][1] * goals[uid][1] > 0.0
            assert np.linalg.norm(goals[uid] - starts[other]) > 2 * doorway.CONTACT_DISTANCE - 0.01
        np.testing.assert_allclose(state[4:6], goals["ego"] - starts["ego"], atol=1e-6)
        np.testing.assert_allclose(state[6:8], starts["partner"] - starts["ego"], atol=1e-6)
        if kind is DoorwayDiffDriveEnv:
            ego, partner = env.build_agent_snapshots().values()
            np.testing.assert_allclose(
                state[10:12], [math.cos(ego.heading), math.sin(ego.heading)], atol=1e-6
            )
            assert math.cos(ego.heading) > 0.7
            assert math.cos(partner.heading) < -0.7


@pytest.mark.parametrize("kind", ENVS)
def test_hooks_make_a_filter_that_no_wall_is_touched_behind(kind):
    """Random commands hit walls; the same commands behind the filter do not, whoever comes."""
    env, rng = kind(), np.random.default_rng(4)

    def walls_hit(filtered):
        hits = 0
        for seed in range(6):
            env.reset(seed=seed)
            guard = BackupFilter(
                env.build_robot_models()["ego"],
                [env.build_partner_bound()],
                dt=env.control_timestep,
                obstacles=env.build_obstacles(),
            )
            over = False
            while not over:
                action = np.array([1.0, rng.uniform(-0.5, 0.5)])
                if filtered:
                    action = guard.filter(action, env.build_agent_snapshots()).action
                *_, ended, cut, info = env.step({"ego": action, "partner": np.zeros(2)})
                over = ended or cut
            hits += info["wall_contact"]
        return hits

    assert walls_hit(filtered=False) >= 4
    assert walls_hit(filtered=True) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"takt_s": 0.0}, "takt_s: expected a time > 0 s, got 0"),
        ({"takt_s": math.nan}, "takt_s"),
        ({"agent_uids": ("a",)}, "2-tuple"),
        ({"render_mode": "human"}, "render_mode None or 'rgb_array'"),
        ({"episode_length": 0}, "episode_length: expected an integer >= 1"),
    ],
)
def test_bad_argument_is_named(arguments, message):
    with pytest.raises(InputError, match=message):
        DoorwayEnv(**arguments)


@pytest.mark.parametrize("kind", ENVS)
def test_picture_shows_walls_goals_and_robots_where_they_are(kind):
    env = kind(render_mode="rgb_array")
    env.reset(seed=0)
    image = env.render().astype(int)
    scale = image.shape[0] / 5.5  # the picture shows 5.5 m

    def color(x, y):
        return image[round((2.75 - y) * scale), round((x + 2.75) * scale)]

    assert color(0.0, 1.0).max() < 60  # the wall
    assert color(0.0, 0.0).min() > 240  # the door
    assert color(0.0, 2.2).min() > 240  # outside
    blue, orange = (0, 114, 178), (230, 159, 0)
    for uid, paint in (("ego", blue), ("partner", orange)):
        x, y = env.robot_positions()[uid]
        assert np.abs(color(x, y + 0.15) - paint).max() < 30
        goal = color(*env.goal_positions()[uid])
        assert goal.min() > 180  # pale
        assert np.ptp(goal) > 20  # and not gray
    assert kind().render() is None
