"""Wrong units and wrong control steps are told once; robots that are right are not told of."""

import logging
import math

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import cadenza
from cadenza.safety import AgentSnapshot, PartnerBound, UnicycleModel, VelocityModel
from cadenza.safety.geometry import HalfSpace, Sphere
from cadenza.safety.verifier.robots import UnicyclePlant, VelocityPlant

DT, RADIUS = 0.1, 0.2
NEXT, SAME = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP
WALLS = [HalfSpace(n, -1.5) for n in ((1, 0), (-1, 0), (0, 1), (0, -1))] + [Sphere((0.6, 0.6), 0.2)]
WHEELS = UnicycleModel("robot", 1.0, 0.5, 2.0, 2.0, 6.0, RADIUS)
BASE = VelocityModel("robot", 2, 1.0, 2.0)


class Room(gym.Env):
    """The robot among walls, and a person who walks in a circle; everything is told in float32."""

    def __init__(self, model, *, degrees=(), noise=0.0, length=40):
        self.model, self.degrees, self.noise, self.length = model, degrees, noise, length
        low, high = model.action_box()
        self.action_space = gym.spaces.Box(np.array(low), np.array(high), dtype=np.float64)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        m, self.steps = self.model, 0
        start, heading = self.np_random.uniform(-1.0, 0.2, 2), self.np_random.uniform(-3.0, 3.0)
        if isinstance(m, UnicycleModel):
            self.plant = UnicyclePlant(start, heading, accel=m.accel, yaw_accel=m.yaw_accel)
        else:
            response = {"limit": m.limit, "max_accel": m.max_accel, "lag_s": m.lag_s}
            self.plant = VelocityPlant(start, (0.0, 0.0), delay_steps=m.delay_s / DT, **response)
        return np.float32(self.plant.position), {}

    def step(self, action):
        self.plant.step(action, DT)
        self.steps += 1
        return np.float32(self.plant.position), 0.0, False, self.steps >= self.length, {}

    def told(self, name):
        value = getattr(self.plant, name)
        return np.float32(np.degrees(value) if name in self.degrees else value)

    def build_agent_snapshots(self):
        error = self.np_random.uniform(-self.noise, self.noise, 2)
        x, y = self.told("position") + error
        if isinstance(self.model, UnicycleModel):
            motion = [self.told(name) for name in ("heading", "speed", "yaw_rate")]
            robot = self.model.snapshot(x, y, *motion)
        else:
            robot = AgentSnapshot((x, y), self.told("velocity") + error, RADIUS)
        turn = 0.6 * self.steps * DT / 0.5
        person = AgentSnapshot(
            (0.5 * math.sin(turn) - 0.8, -0.5 * math.cos(turn) + 0.8),
            (0.6 * math.cos(turn), 0.6 * math.sin(turn)),
            RADIUS,
        )
        return {"robot": robot, "person": person}


def messages(
    caplog, model, *, envs=0, dt=DT, speed=0.6, steps=130, options=None, mode=NEXT, **room
):
    """Return what is logged while robots are driven at random for three episodes and more."""

    def make():
        return Room(model, **room)

    env = cadenza.guard(
        SyncVectorEnv([make] * envs, autoreset_mode=mode) if envs else make(),
        robot=model,
        partner=PartnerBound("person", speed),
        obstacles=WALLS,
        **{"control_timestep": dt, **(options or {})},
    )
    rng = np.random.default_rng(5)
    with caplog.at_level(logging.WARNING, logger="cadenza"):
        env.reset(seed=2)
        for step in range(steps):
            if step % 8 == 0:
                wish = rng.uniform(env.action_space.low, env.action_space.high)
            over = env.step(wish)[3]
            if not envs and over:
                env.reset()
    return [record.getMessage() for record in caplog.records if "safety:" in record.getMessage()]


@pytest.mark.parametrize("envs", [0, 3])
@pytest.mark.parametrize(
    "mistake",
    [
        {"model": WHEELS, "degrees": ("heading",)},
        {"model": WHEELS, "degrees": ("yaw_rate",)},
        *({"model": model, "dt": dt} for model in (BASE, WHEELS) for dt in (0.05, 0.02)),
    ],
    ids=str,
)
def test_wrong_unit_or_control_step_is_told_once(caplog, mistake, envs):
    (told,) = messages(caplog, **mistake, envs=envs)
    assert "'robot' moved by [" in told
    assert f"in a step of {mistake.get('dt', DT)} s" in told
    assert "control_timestep, the units (rad" in told


@pytest.mark.parametrize("envs", [0, 40])
@pytest.mark.parametrize(
    ("model", "noise"),
    [
        (VelocityModel("robot", 2, 1.0, limit="none"), 0.0),
        (BASE, 0.0),
        (BASE, 0.03),
        (VelocityModel("robot", 2, 1.0, 4.0, limit="axis"), 0.0),
        (VelocityModel("robot", 2, 1.0, limit="none", lag_s=0.2), 0.0),
        (VelocityModel("robot", 2, 1.0, 4.0, delay_s=0.15), 0.0),
        (VelocityModel("robot", 2, 1.0, limit="none", delay_s=0.2), 0.0),
        (WHEELS, 0.0),
        (UnicycleModel("robot", 1.0, 0.5, 4.0, math.inf, math.inf, RADIUS), 0.0),
    ],
    ids=str,
)
def test_nothing_is_told_of_a_robot_that_is_right(caplog, model, noise, envs):
    options = {"position_error_m": 0.05, "velocity_error": 0.05} if noise else {}
    if model.__class__ is VelocityModel and model.lag_s:
        options = {"contact_speed": 0.05, "guarantee": "passive"}
    assert messages(caplog, model, envs=envs, noise=noise, options=options) == []


@pytest.mark.parametrize("envs", [0, 3])
def test_faster_partner_is_told_with_measured_and_declared_speed(caplog, envs):
    (told,) = messages(caplog, BASE, envs=envs, speed=0.5)
    assert "'person' moved at 0.6 m/s, declared 0.5" in told


@pytest.mark.parametrize("envs", [0, 3])
def test_jumps_from_episode_to_episode_are_no_motion(caplog, envs):
    assert messages(caplog, BASE, envs=envs, steps=30, mode=SAME, length=1) == []


def test_ideal_base_may_leave_its_velocity_out(caplog):
    class Silent(Room):
        def told(self, name):
            return super().told(name) * (name != "velocity")

    guard = cadenza.guard(
        Silent(VelocityModel("robot", 2, 1.0, limit="none")),
        robot=VelocityModel("robot", 2, 1.0, limit="none"),
        partner=PartnerBound("person", 0.6),
        control_timestep=DT,
    )
    guard.reset(seed=0)
    for _ in range(10):
        guard.step(np.array([0.9, 0.3]))
    assert caplog.records == []
