"""Whose heading and whose walls a guard believes, where environments offer them by hooks."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import cadenza
from cadenza.core.errors import ConfigurationError, InputError, NotReadyError
from cadenza.safety import (
    AgentSnapshot,
    Bounds,
    DoubleIntegratorControlModel,
    PartnerBound,
    UnicycleModel,
    WheeledSnapshot,
)
from cadenza.safety.batched.driver import BatchedSafetyDriver
from cadenza.safety.batched.robot_driver import BatchedRobotDriver
from cadenza.safety.geometry import HalfSpace, Obstacles
from cadenza.safety.runtime.driver import SafetyDriver
from cadenza.safety.runtime.options import SafetyOptions
from cadenza.safety.runtime.robot_driver import RobotDriver
from cadenza.safety.verifier.robots import UnicyclePlant
from cadenza.safety.wrappers.vector import stack_snapshots

DT, RADIUS = 0.1, 0.2
CART = UnicycleModel("cart", 1.0, 0.5, 2.0, 1.0, 4.0, RADIUS)
DOG = WheeledSnapshot((-5.0, 0.0), (0.0, 0.0), RADIUS, heading=np.pi / 2, yaw_rate=0.0)


class RoomEnv(gym.Env):
    """A cart that faces the wall x = ``wall``, and a dog on wheels that stands far away."""

    action_space = gym.spaces.Box(np.array([-0.5, -2.0]), np.array([1.0, 2.0]), dtype=np.float64)
    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    ego_uid = "cart"
    control_timestep = DT

    def __init__(self, *, wall=1.0, order=("dog", "cart"), top_speed=1.0, length=10_000):
        self.wall, self.order, self.length = wall, order, length
        self.model = UnicycleModel("cart", top_speed, 0.5, 2.0, 1.0, 4.0, RADIUS)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cart = UnicyclePlant((0.0, 0.0), 0.0, accel=1.0, yaw_accel=4.0)
        self.steps = 0
        return np.array(self.cart.position), {}

    def step(self, action):
        self.cart.step(action, DT)
        self.steps += 1
        return np.array(self.cart.position), 0.0, False, self.steps >= self.length, {}

    def build_robot_models(self):
        return {"cart": self.model}

    def build_partner_bound(self):
        return PartnerBound("dog", 0.3)

    def build_obstacles(self):
        return [HalfSpace((-1.0, 0.0), -self.wall)]

    def build_agent_snapshots(self):
        cart = self.cart
        own = CART.snapshot(*map(float, (*cart.position, cart.heading, cart.speed, cart.yaw_rate)))
        scene = {"cart": own, "dog": DOG}
        return {uid: scene[uid] for uid in self.order}


class PointEnv(gym.Env):
    """A point that is accelerated, and offers a wall at x = 1."""

    action_space = gym.spaces.Box(-2.0, 2.0, (2,), np.float64)
    observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float64)
    ego_uid, control_timestep, plant = "ego", DT, "zoh"
    wall, speed = 1.0, 0.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = np.array([0.0, 0.0, self.speed, 0.0])
        return self.state.copy(), {}

    def step(self, action):
        self.state[:2] += self.state[2:] * DT + 0.5 * DT**2 * action
        self.state[2:] += DT * action
        return self.state.copy(), 0.0, False, False, {}

    def build_control_models(self):
        return {
            "ego": DoubleIntegratorControlModel("ego", 2),
            "dog": DoubleIntegratorControlModel("dog", 2, capacity=0.2),
        }

    def build_bounds(self):
        return Bounds(2.0, 2.0, 10.0, 0.0, 0.0)

    def build_obstacles(self):
        return (HalfSpace((-1.0, 0.0), -self.wall),)

    def build_agent_snapshots(self):
        return {
            "ego": AgentSnapshot(self.state[:2], self.state[2:], RADIUS),
            "dog": AgentSnapshot((-5.0, 0.0), (0.0, 0.0), RADIUS),
        }


class PointBatch(SyncVectorEnv):
    """Points as one batch, which tells where they are; each tells of its own wall."""

    ego_uid, control_timestep, plant = "ego", DT, "zoh"

    def build_agent_batch(self):
        return stack_snapshots([one.unwrapped.build_agent_snapshots() for one in self.envs])


class RoomBatch(PointBatch):
    """The same for carts."""

    ego_uid = "cart"

    def build_agent_batch(self):
        scenes = [one.unwrapped.build_agent_snapshots() for one in self.envs]
        return stack_snapshots(scenes, ego_uid="cart")


def drive(env, steps=40):
    """Return the positions that a batch at full speed reaches, (B, 2), and the last record."""
    env.reset(seed=0)
    for _ in range(steps):
        seen, *_, info = env.step(np.tile([1.0, 0.0], (env.num_envs, 1)))
    return seen, info["safety"]


@pytest.mark.parametrize("order", [("cart", "dog"), ("dog", "cart")])
def test_heading_is_the_guarded_robots_whoever_comes_first(order):
    batch = cadenza.guard(SyncVectorEnv([lambda: RoomEnv(order=order)] * 2))
    seen, record = drive(batch)
    assert (seen[:, 0] > 0.6).all()
    assert (seen[:, 0] <= 1.0 - RADIUS).all()
    assert not record["static_uncertified"].any()


@pytest.mark.parametrize(
    ("second", "told"),
    [
        ({"wall": 2.0}, "build_obstacles: expected the same answer of every env.*one Obstacles"),
        ({"top_speed": 0.5}, "build_robot_models: expected the same answer of every environment"),
    ],
)
def test_environments_that_differ_are_refused(second, told):
    with pytest.raises(ConfigurationError, match=told):
        cadenza.guard(SyncVectorEnv([RoomEnv, lambda: RoomEnv(**second)]))


def test_walls_that_differ_can_be_given_for_each_environment():
    def walls(env, _observation, _info):
        return [Obstacles(one.build_obstacles()) for one in env.unwrapped.envs]

    batch = SyncVectorEnv([lambda: RoomEnv(wall=2.0), RoomEnv])
    seen, _ = drive(cadenza.guard(batch, obstacles=walls))
    assert 1.0 < seen[0, 0] <= 2.0 - RADIUS
    assert 0.6 < seen[1, 0] <= 1.0 - RADIUS


@pytest.mark.parametrize("env", [RoomEnv, PointEnv])
def test_room_that_changes_between_episodes_is_refused(env):
    single = cadenza.guard(env())
    single.reset(seed=0)
    single.unwrapped.wall = 0.8
    with pytest.raises(ConfigurationError, match="expected the same obstacles in every episode"):
        single.reset(seed=1)
    with pytest.raises(NotReadyError, match="expected an episode in progress"):
        single.step(np.zeros(2))
    batch = cadenza.guard(SyncVectorEnv([env] * 2))
    batch.reset(seed=0)
    for one in batch.unwrapped.envs:
        one.wall = 0.8
    with pytest.raises(ConfigurationError, match="expected the same obstacles in every episode"):
        batch.reset(seed=1)
    with pytest.raises(NotReadyError, match="expected an episode in progress"):
        batch.step(np.zeros((2, 2)))


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_room_that_changes_at_an_automatic_reset_is_refused(mode):
    class Moving(RoomEnv):
        def reset(self, *, seed=None, options=None):
            self.wall -= 0.1 * (seed is None)
            return super().reset(seed=seed, options=options)

    batch = cadenza.guard(SyncVectorEnv([lambda: Moving(length=3)] * 2, autoreset_mode=mode))
    batch.reset(seed=0)
    for _ in range(2 if mode is AutoresetMode.SAME_STEP else 3):
        batch.step(np.zeros((2, 2)))
    with pytest.raises(ConfigurationError, match="expected the same obstacles in every episode"):
        batch.step(np.zeros((2, 2)))
    with pytest.raises(NotReadyError, match="expected an episode in progress"):
        batch.step(np.zeros((2, 2)))


@pytest.mark.parametrize("env", [RoomEnv, PointEnv])
def test_batch_in_which_only_some_tell_of_walls_is_refused(env):
    class Silent(env):
        build_obstacles = property()  # which nobody can read

    for makers in ([env, Silent], [Silent, env]):
        with pytest.raises(ConfigurationError, match=r"got it of 1 of 2; one with nothing around"):
            cadenza.guard(SyncVectorEnv(makers))


def test_walls_that_an_accelerated_environment_offers_are_kept_clear():
    single = cadenza.guard(PointEnv())
    single.reset(seed=0)
    for _ in range(60):
        seen, *_, info = single.step(np.array([2.0, 0.0]))
    assert 0.6 < seen[0] <= 1.0 - RADIUS
    assert info["safety"]["static_margin"].min() >= 0.0
    batch = cadenza.guard(SyncVectorEnv([PointEnv] * 2))
    places, record = drive(batch, 60)
    assert (places[:, 0] > 0.6).all()
    assert (places[:, 0] <= 1.0 - RADIUS).all()
    assert (record["static_margin"] >= 0.0).all()


def test_batch_tells_of_walls_what_one_environment_tells():
    class Fast(PointEnv):
        speed = 3.0  # 1 m is not enough to stop

    single, batch = cadenza.guard(Fast()), cadenza.guard(SyncVectorEnv([Fast] * 2))
    single.reset(seed=0)
    batch.reset(seed=0)
    *_, alone = single.step(np.zeros(2))
    *_, together = batch.step(np.zeros((2, 2)))
    assert alone["safety"]["static_uncertified"]
    assert together["safety"]["static_uncertified"].all()
    assert (together["safety"]["static_margin"] == alone["safety"]["static_margin"].min()).all()


def test_walls_that_an_environment_offers_are_kept_clear_by_its_drivers():
    env, batch = PointEnv(), PointBatch([PointEnv] * 2)
    one = SafetyDriver.from_env(env, ego_uid="ego", options=SafetyOptions())
    many = BatchedSafetyDriver.from_env(batch, ego_uid="ego")
    for world, driver in ((env, one), (batch, many)):
        world.reset(seed=0)
        driver.begin_run(0)
        driver.begin_episode()
    for _ in range(60):
        seen, *_ = env.step(one.step(np.array([2.0, 0.0])).action)
        step = many.step(np.tile([2.0, 0.0], (2, 1)))
        places, *_ = batch.step(step.action)
    assert 0.6 < seen[0] <= 1.0 - RADIUS
    assert (places[:, :2] == seen[:2]).all()
    assert (step.static_margin >= 0.0).all()


def test_drivers_refuse_rooms_that_change_or_differ():
    env, batch = PointEnv(), PointBatch([PointEnv] * 2)
    one = SafetyDriver.from_env(env, ego_uid="ego", options=SafetyOptions())
    many = BatchedSafetyDriver.from_env(batch, ego_uid="ego")
    room, rooms = RoomEnv(), RoomBatch([RoomEnv] * 2)
    robot, robots = RobotDriver.from_env(room), BatchedRobotDriver.from_env(rooms)
    many.begin_rows([1])
    for each in (env, *batch.envs, room, *rooms.envs):
        each.wall = 0.8
    changes = (
        *(one.begin_episode, lambda: one.begin_run(0)),
        *(many.begin_episode, lambda: many.begin_run(0), lambda: many.begin_rows([1])),
        *(
            lambda: many.begin_run_rows([1], [0]),
            robot.begin_episode,
            lambda: robots.begin_rows([0]),
        ),
    )
    for begin in changes:
        with pytest.raises(ConfigurationError, match="expected the same obstacles in every epis"):
            begin()
    many.begin_rows([])  # nobody begins anything
    batch.envs[0].wall = 0.7
    with pytest.raises(ConfigurationError, match="build_obstacles: expected the same answer of"):
        BatchedSafetyDriver.from_env(batch, ego_uid="ego")


NEARER = HalfSpace((-1.0, 0.0), -0.8)  # before the wall that the environment offers


def scan(*_):
    return (NEARER,)


def scans(env, _observation, _info):
    return [Obstacles([NEARER]), Obstacles([HalfSpace((-1.0, 0.0), -0.7)])]


@pytest.mark.parametrize(
    ("given", "ends"),
    [
        ((NEARER,), (0.8, 0.8)),
        (Obstacles([NEARER]), (0.8, 0.8)),
        (scan, (0.8, 0.8)),
        (lambda *sources: iter(scan(*sources)), (0.8, 0.8)),
        (scans, (0.8, 0.7)),
    ],
)
def test_batch_of_accelerated_robots_heeds_the_obstacles_that_are_given(given, ends):
    places, record = drive(cadenza.guard(SyncVectorEnv([PointEnv] * 2), obstacles=given), 60)
    for x, end in zip(places[:, 0], ends, strict=True):
        assert end - 0.3 < x <= end - RADIUS
    assert (record["static_margin"] >= 0.0).all()
    assert not record["static_uncertified"].any()


def test_given_obstacles_stand_in_for_offered_ones():
    places, record = drive(cadenza.guard(SyncVectorEnv([PointEnv] * 2), obstacles=()), 60)
    assert (places[:, 0] > 1.0).all()
    assert "static_margin" not in record
    single = cadenza.guard(PointEnv(), obstacles=())
    single.reset(seed=0)
    for _ in range(30):
        seen, *_ = single.step(np.array([2.0, 0.0]))
    assert seen[0] > 1.0


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ([Obstacles([NEARER])], "obstacles: expected one for each of 2 environments, got 1"),
        (["wall"], r"shapes\[0\]: expected one of HalfSpace"),
        (3, "obstacles: expected a sequence of shapes"),
    ],
)
def test_scan_of_a_batch_that_is_malformed_is_bad_input(answer, told):
    batch = SyncVectorEnv([PointEnv] * 2)
    refusing = cadenza.guard(batch, obstacles=lambda *_: answer)
    refusing.reset(seed=0)
    with pytest.raises(InputError, match=told):
        refusing.step(np.ones((2, 2)))
    answers = iter([(NEARER,), answer])
    options = SafetyOptions(on_bad_input="brake")
    braking = cadenza.guard(batch, obstacles=lambda *_: next(answers), options=options)
    braking.reset(seed=0)
    braking.step(np.ones((2, 2)))
    *_, info = braking.step(np.ones((2, 2)))
    assert info["safety"]["bad_input"][1]
    assert (info["safety"]["applied_action"][:, 0] < 0.0).all()
    assert np.isfinite(info["safety"]["static_margin"]).all()


@pytest.mark.parametrize("env", [RoomEnv, PointEnv])
def test_scan_that_forgets_to_return_is_no_empty_room(env):
    for many in (env(), SyncVectorEnv([env] * 2)):
        guarded = cadenza.guard(many, obstacles=lambda *_: None)
        guarded.reset(seed=0)
        with pytest.raises(InputError, match=r"sequence of shapes, got None; .* \[\] where the"):
            guarded.step(np.zeros(guarded.action_space.shape))


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (lambda env: env, "build_agent_snapshots.*pass cadenza.guard snapshots=, a function of"),
        (lambda env: SyncVectorEnv([lambda: env]), "build_agent_batch.*guard agents=, a function"),
    ],
)
def test_environment_that_offers_nothing_is_told_the_keyword_it_lacks(kind, told):
    class Bare(gym.Env):
        action_space = PointEnv.action_space
        observation_space = PointEnv.observation_space

    with pytest.raises(ConfigurationError, match=told):
        cadenza.guard(kind(Bare()))
