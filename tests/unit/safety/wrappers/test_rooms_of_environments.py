"""Whose heading and whose walls a guard believes, where environments offer them by hooks."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import cadenza
from cadenza.core.errors import ConfigurationError
from cadenza.safety import (
    AgentSnapshot,
    Bounds,
    DoubleIntegratorControlModel,
    PartnerBound,
    UnicycleModel,
    WheeledSnapshot,
)
from cadenza.safety.geometry import HalfSpace, Obstacles
from cadenza.safety.verifier.robots import UnicyclePlant

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
    batch = cadenza.guard(SyncVectorEnv([env] * 2))
    batch.reset(seed=0)
    for one in batch.unwrapped.envs:
        one.wall = 0.8
    with pytest.raises(ConfigurationError, match="expected the same obstacles in every episode"):
        batch.reset(seed=1)


def test_room_that_changes_at_an_automatic_reset_is_refused():
    class Moving(RoomEnv):
        def reset(self, **given):
            self.wall -= 0.1
            return super().reset(**given)

    batch = SyncVectorEnv([lambda: Moving(length=3)] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    for one in batch.envs:
        one.wall = 1.0
    guarded = cadenza.guard(batch)
    with pytest.raises(ConfigurationError, match="expected the same obstacles in every episode"):
        drive(guarded)


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
