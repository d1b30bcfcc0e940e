"""`cadenza.guard(env, robot=...)` around a wheeled base, a scan, and where it does not fit."""

import dataclasses
import re

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

import cadenza
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety import AgentSnapshot, PartnerBound, SafetyOptions, UnicycleModel, VelocityModel
from cadenza.safety.geometry import HalfSpace, Points
from cadenza.safety.verifier.robots import UnicyclePlant

DT, RADIUS = 0.1, 0.2
CART = UnicycleModel("cart", 1.0, 0.5, 2.0, 1.0, 4.0, RADIUS)


class CartEnv(gym.Env):
    """A cart that starts at the origin and faces +x; the action is (speed, rate of turn)."""

    action_space = gym.spaces.Box(np.array([-0.5, -2.0]), np.array([1.0, 2.0]), dtype=np.float64)
    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cart = UnicyclePlant((0.0, 0.0), 0.0, accel=1.0, yaw_accel=4.0)
        return np.array(self.cart.position), {}

    def step(self, action):
        self.path = self.cart.step(action, DT)
        return np.array(self.cart.position), 0.0, False, False, {}


def scene(env, _observation, _info):
    cart = env.unwrapped.cart
    return {
        "cart": CART.snapshot(
            *map(float, (*cart.position, cart.heading, cart.speed, cart.yaw_rate))
        )
    }


def rays(env, _observation, _info):
    """Return what a scan of the wall x = 1 shows: points up to 0.05 m apart."""
    y = env.unwrapped.cart.position[1] + np.arange(-1.0, 1.0, 0.05)
    return [Points(np.stack((np.ones(len(y)), y), axis=1), 0.025)]


@pytest.mark.parametrize("obstacles", [[HalfSpace((-1.0, 0.0), -1.0)], rays])
def test_cart_that_drives_at_a_wall_stops_before_it(obstacles):
    env = cadenza.guard(
        CartEnv(), robot=CART, obstacles=obstacles, snapshots=scene, control_timestep=DT
    )
    env.reset(seed=0)
    reached, sources = 0.0, set()
    for _ in range(60):
        *_, info = env.step(np.array([1.0, 0.0]))
        reached = max(reached, max(x for x, _ in env.unwrapped.path))
        sources.add(info["safety"]["backup"])
        assert not info["safety"]["static_uncertified"]
    assert 0.6 < reached <= 1.0 - RADIUS + 1e-6
    assert "none" in sources
    assert len(sources) > 1


def test_options_of_another_kind_and_missing_parts_are_refused():
    parts = {"robot": CART, "snapshots": scene, "control_timestep": DT}
    with pytest.raises(ConfigurationError, match="expected the option agents for a vector"):
        cadenza.guard(SyncVectorEnv([CartEnv]), **parts)
    with pytest.raises(ConfigurationError, match=r"guard control_timestep=, the") as told:
        cadenza.guard(CartEnv(), robot=CART, snapshots=scene)
    assert "bounds=" not in str(told.value)
    drone = VelocityModel("drone", 3, 1.0, limit="none")
    with pytest.raises(InputError, match="expected 3-D shapes for the 3-D robot 'drone', got 2-D"):
        cadenza.guard(CartEnv(), **{**parts, "robot": drone}, obstacles=[HalfSpace((1, 0), -1)])
    with pytest.raises(ConfigurationError, match="it catches up"):
        cadenza.guard(CartEnv(), partner=PartnerBound("dog", 3.0), guarantee="escape", **parts)


def test_action_space_that_is_too_small_is_told_component_by_component():
    fast = dataclasses.replace(CART, max_speed=1.5)
    told = r"up to \[1.5, 2\], got low \[-0.5, -2\] and high \[1, 2\]:"
    for env in (CartEnv(), SyncVectorEnv([CartEnv] * 2)):
        source = "agents" if isinstance(env, SyncVectorEnv) else "snapshots"
        with pytest.raises(ConfigurationError, match=told):
            cadenza.guard(env, robot=fast, control_timestep=DT, **{source: scene})


@pytest.mark.parametrize("env", [CartEnv, lambda: SyncVectorEnv([CartEnv])])
@pytest.mark.parametrize("given", [{"partner": PartnerBound("dog", 0.3)}, {"margin_m": 0.1}])
def test_option_of_a_robot_that_takes_velocities_asks_for_its_model(env, given):
    told = (
        r"for this option, got none; pass robot=VelocityModel\(.*Unicycle.*build_robot_models\(\)"
    )
    with pytest.raises(ConfigurationError, match=f"guard: {next(iter(given))}: .* {told}"):
        cadenza.guard(env(), **given)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"guarantee": "passive"},
            'guarantee: .*; pass options=SafetyOptions(guarantee="passive")',
        ),
        (
            {"contact_speed": 0.1, "guarantee": "passive"},
            'contact_speed: .*; pass options=SafetyOptions(guarantee="passive", contact_speed=0.1)',
        ),
        (
            {"position_error_m": 0.1},
            "position_error_m: .*; pass options=SafetyOptions(position_error=0.1)",
        ),
        ({"guarantee": "escape"}, "guarantee: .*; leave guarantee= out"),
        ({"partner": PartnerBound("dog", 0.3)}, "partner: .*; pass control_models="),
    ],
)
@pytest.mark.parametrize("make", [gym.make, lambda name: SyncVectorEnv([lambda: gym.make(name)])])
def test_option_for_accelerations_names_the_field_that_says_it(make, given, told):
    env = make("cadenza/Crossing-v1")
    told = re.escape(told).replace(
        r"\.\*", r"this robot's action is an acceleration \(control_models\)"
    )
    with pytest.raises(ConfigurationError, match=f"^guard: {told}"):
        cadenza.guard(env, **given)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (SafetyOptions(margin_m=0.1, position_error=0.1), "margin_m=, position_error_m=."),
        (SafetyOptions(), "guarantee=, contact_speed=, margin_m=, .*obstacles="),
    ],
)
def test_options_of_accelerations_name_the_keywords_for_velocities(options, told):
    with pytest.raises(ConfigurationError, match=f"^guard: options: .*a keyword; pass {told}"):
        cadenza.guard(HookedCartEnv(), options=options)


def test_snapshots_of_others_are_refused_with_both_lists_of_ids():
    parts = {"robot": CART, "control_timestep": DT, "partner": PartnerBound("dog", 0.3)}
    env = cadenza.guard(CartEnv(), snapshots=lambda *_: {"carts": 0, "dog": 0}, **parts)
    env.reset(seed=0)
    told = r"agents: expected the states of \['cart', 'dog'\], got those of \['carts', 'dog'\]; "
    with pytest.raises(InputError, match=told):
        env.step(np.zeros(2))


class HookedCartEnv(CartEnv):
    """The cart, with a wall and a dog that stands before it, all told by hooks."""

    ego_uid = "cart"
    control_timestep = DT

    def build_robot_models(self):
        return {"cart": CART}

    def build_obstacles(self):
        return [HalfSpace((-1.0, 0.0), -1.0)]

    def build_partner_bound(self):
        return PartnerBound("dog", 0.0)

    def build_agent_snapshots(self):
        cart = self.cart
        own = CART.snapshot(*map(float, (*cart.position, cart.heading, cart.speed, cart.yaw_rate)))
        return {"cart": own, "dog": AgentSnapshot((-2.0, 0.0), (0.0, 0.0), RADIUS)}


@pytest.mark.parametrize("given", [{}, {"robot": CART}, {"margin_m": 0.1}])
def test_environment_offers_its_robot_partner_and_walls_by_itself(given):
    env = cadenza.guard(HookedCartEnv(), **given)
    env.reset(seed=0)
    gaps = []
    for _ in range(40):
        *_, info = env.step(np.array([1.0, 0.0]))
        gaps.append(min(info["safety"]["static_margin"]))
        assert set(info["safety"]["margin"]) == {"dog"}
    assert min(gaps) >= 0.0
    assert max(x for x, _ in env.unwrapped.path) <= 1.0 - RADIUS - given.get("margin_m", 0.0) + 1e-9


def test_what_is_given_stands_in_for_what_is_offered():
    env = cadenza.guard(HookedCartEnv(), obstacles=(), snapshots=scene, partner=())
    env.reset(seed=0)
    for _ in range(40):
        *_, info = env.step(np.array([1.0, 0.0]))
        assert (info["safety"]["margin"], info["safety"]["static_margin"]) == ({}, ())
    assert env.unwrapped.cart.position[0] > 1.0


@pytest.mark.parametrize("many", [False, True])
def test_partner_that_is_faster_than_declared_is_the_reason(many):
    def run(speed):
        class Run(HookedCartEnv):
            def build_agent_snapshots(self):
                dog = AgentSnapshot((-2.0, 0.0), (speed, 0.0), RADIUS)
                return super().build_agent_snapshots() | {"dog": dog}

        env = cadenza.guard(SyncVectorEnv([Run] * 2) if many else Run())
        env.reset(seed=0)
        return env.step(np.zeros(env.action_space.shape))[-1]["safety"]

    told = "a partner was measured faster than declared"
    for speed, reason in ((0.0, ""), (1.0, told)):
        found = run(speed)["reason"]
        assert (found.tolist() if many else found) == ([reason] * 2 if many else reason)


class Robotless(HookedCartEnv):
    def build_robot_models(self):
        return {"other": CART}


class Untimed(HookedCartEnv):
    control_timestep = None


@pytest.mark.parametrize(
    ("env", "given", "told"),
    [
        (Robotless, {}, r"build_robot_models: expected a model of the ego 'cart', got \['other'"),
        (Untimed, {}, "expected an environment with control_timestep"),
        (HookedCartEnv, {"bounds": None}, "bounds: unknown option"),
        (HookedCartEnv, {"agents": None}, "agents: expected the option snapshots for one env"),
        (HookedCartEnv, {"margin": 0.1}, "margin: unknown option.*margin_m"),
    ],
)
def test_hooks_that_do_not_fit_and_options_of_others_are_refused(env, given, told):
    with pytest.raises(ConfigurationError, match=told):
        cadenza.guard(env(), **given)


@pytest.mark.parametrize("name", ["cadenza/Doorway-v1", "cadenza/DoorwayDiffDrive-v1"])
def test_task_at_the_door_is_guarded_by_its_name(name):
    env = cadenza.guard(name)
    env.reset(seed=0)
    over = False
    while not over:
        _, _, terminated, truncated, info = env.step(np.array([1.0, 0.0], np.float32))
        over = terminated or truncated
        assert not info["contact"]
        assert not info["wall_contact"]
        assert not info["safety"]["static_uncertified"]
    with pytest.raises(ConfigurationError, match="guarded already"):
        cadenza.guard(env)
