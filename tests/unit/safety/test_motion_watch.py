"""Declared accelerations that the motion disproves are named, counted, and no longer believed."""

import logging
import math

import gymnasium as gym
import numpy as np
import pytest

import cadenza
from cadenza.safety import (
    AgentSnapshot,
    Bounds,
    DifferentialDriveControlModel,
    DoubleIntegratorControlModel,
    SafetyOptions,
    SafetyRuntime,
)
from cadenza.safety.batched.driver import BatchedSafetyDriver
from cadenza.safety.control_models import BodyDrive
from cadenza.safety.runtime.env_hooks import BatchEnvHooks
from cadenza.safety.snapshot import AgentBatch

DT = 0.05
BOUNDS = Bounds(2.0, 2.0, 10.0, 0.0, 0.0)


def models(capacity=0.2, ego=None):
    return {
        "ego": DoubleIntegratorControlModel("ego", 2) if ego is None else ego,
        "p": DoubleIntegratorControlModel("p", 2, capacity=capacity),
    }


def runtime(capacity=0.2, ego=None, **options):
    return SafetyRuntime(
        ego_uid="ego",
        control_models=models(capacity, ego),
        bounds=BOUNDS,
        control_timestep=DT,
        options=SafetyOptions(**options),
    )


class World:
    """Ego and partner in the plane; the ego delivers a share of its action."""

    def __init__(self, *, share=1.0, semi_implicit=False, dtype=np.float64):
        self.share, self.late, self.dtype = share, 1.0 if semi_implicit else 0.5, dtype
        self.p = np.array([[0.0, 0.0], [2.5, 0.3]])
        self.v = np.array([[0.0, 0.1], [0.0, 0.0]])
        self.past = []

    def step(self, action, push):
        a = np.stack((self.share * np.asarray(action, self.dtype), np.asarray(push, float)))
        self.p = self.p + self.v * DT + self.late * a * DT**2
        self.v = self.v + a * DT

    def agents(self, age=0):
        self.past.append((self.p.astype(self.dtype), self.v.astype(self.dtype)))
        (p, v), (q, u) = self.past[-1], self.past[max(0, len(self.past) - 1 - age)]
        age_s = min(age, len(self.past) - 1) * DT
        return {
            "ego": AgentSnapshot(p[0], v[0], 0.2),
            "p": AgentSnapshot(q[1], u[1], 0.2, age_s=age_s),
        }


def play(guard, world, push_of, *, steps=60, ages=None, nominal=(2.0, 0.0)):
    """Return the decisions against a partner that accelerates by ``push_of(step)``."""
    found = []
    for k in range(steps):
        agents = world.agents(0 if ages is None else ages(k))
        found.append(guard.step(np.array(nominal), agents))
        world.step(found[-1].action, push_of(k))
    return found


def test_partner_beyond_its_bound_is_named_widened_counted_and_told_of_once(caplog):
    guard, world = runtime(), World()
    with caplog.at_level(logging.WARNING, logger="cadenza"):
        steps = play(guard, world, lambda k: (-3.0 if k >= 5 else 0.0, 0.0), steps=12)
    # Its packet of step 6 shows what it did after that of step 5.
    assert [bool(step.reason) for step in steps] == [k >= 6 for k in range(12)]
    assert [step.uncertified for step in steps] == [k >= 6 for k in range(12)]
    assert steps[6].reason == "'p' accelerated at 3 m/s^2, declared 0.2"
    assert guard.telemetry.run.counts["partner_breaches"] == 6
    assert guard.telemetry.run.counts["ego_breaches"] == 0
    assert len([r for r in caplog.records if "'p' accelerated" in r.getMessage()]) == 1
    guard.begin_episode()  # which believes the declaration again
    assert not any(step.uncertified for step in play(guard, World(), lambda k: (0.0, 0.0)))


def test_row_is_widened_to_what_was_seen():
    seen, declared, trusting = runtime(eta=0.0), runtime(1.5, eta=0.0), runtime(eta=0.0)
    world, gap = World(), 0.0
    for k in range(40):
        agents, nominal = world.agents(), np.array([2.0, 0.0])
        steps = [guard.step(nominal, agents) for guard in (seen, declared, trusting)]
        trusting.begin_episode()
        if k > 0:  # the first two packets show 1.5 m/s^2
            assert steps[0].action == pytest.approx(steps[1].action, abs=2e-3)
            assert (steps[0].uncertified, steps[1].uncertified) == (True, False)
        gap = max(gap, float(np.abs(steps[2].action - steps[0].action).max()))
        seen.note_executed(steps[1].action)
        world.step(steps[1].action, (-1.5, 0.0))
    assert gap > 1.0  # what believing the declaration would have allowed


@pytest.mark.parametrize("share", [0.2, 0.9, 1.2])
def test_ego_that_moves_otherwise_than_its_model_is_named_at_once(share):
    guard, world = runtime(), World(share=share)
    steps = play(guard, world, lambda k: (0.0, 0.0), steps=100)
    assert not steps[0].uncertified
    assert all(step.uncertified for step in steps[1:])
    missing = abs(1.0 - share) * 2.0
    assert steps[1].reason == f"the ego 'ego' moved {missing:.3g} m/s^2 off its control model"
    assert guard.telemetry.run.counts["ego_breaches"] >= 1
    assert np.linalg.norm(world.p[0] - world.p[1]) > 0.4  # and it kept its distance


def test_partner_that_moves_farther_than_its_packets_say_is_named():
    guard, world = runtime(), World()
    guard.step(np.zeros(2), world.agents())
    world.p[1, 0] -= 0.01  # a centimetre in a step, at a reported speed of zero
    step = guard.step(np.zeros(2), world.agents())
    assert step.reason == "'p' accelerated at 4 m/s^2, declared 0.2"  # 0.01 / dt^2


HONEST = {
    "zero-order hold": {},
    "semi-implicit": {"semi_implicit": True},
    "float32 observations": {"dtype": np.float32},
}


@pytest.mark.parametrize("kind", HONEST)
@pytest.mark.parametrize("options", [{}, {"velocity_error": 0.01, "position_error": 1e-3}])
def test_honest_motion_raises_no_alarm(kind, options):
    guard, world = runtime(**options), World(**HONEST[kind])
    turn = lambda k: 0.2 * np.array([math.cos(k), math.sin(k)])  # noqa: E731
    play(guard, world, turn, steps=300)
    assert guard.telemetry.run.counts["partner_breaches"] == 0
    assert guard.telemetry.run.counts["ego_breaches"] == 0


def test_old_and_repeated_packets_of_an_honest_partner_raise_no_alarm_and_those_of_another_do():
    ages = [0, 1, 2, 1, 0, 3, 3, 1, 2, 0]
    for push, breaches in ((0.2, False), (0.5, True)):
        guard, world = runtime(max_age_s=0.2), World()
        turn = lambda k, push=push: (push * (-1) ** (k // 7), 0.0)  # noqa: E731
        play(guard, world, turn, ages=lambda k: ages[k % 10])
        assert (guard.telemetry.run.counts["partner_breaches"] > 0) is breaches


def test_errors_that_are_stated_explain_what_they_explain():
    """0.02 m/s each way between two packets is 0.8 m/s^2; 0.011 m/s is nothing then."""
    for wrong, breaches in ((0.011, 0), (0.03, 59)):
        guard, world = runtime(velocity_error=0.02), World()
        for k in range(60):
            agents = world.agents()
            v = agents["p"].velocity + np.array([wrong * (-1) ** k, 0.0])
            agents["p"] = AgentSnapshot(agents["p"].position, v, 0.2)
            guard.step(np.zeros(2), agents)
            world.step((0.0, 0.0), (0.0, 0.0))
        assert guard.telemetry.run.counts["partner_breaches"] == breaches


@pytest.mark.parametrize("share", [1.0, 0.6])
def test_wheeled_ego_is_judged_by_how_far_its_own_model_turns_within_the_step(share):
    """Exact motion of a base with a look-ahead point, in 50 pieces per step."""
    ahead, state = 0.3, {"c": np.array([0.0, 0.0]), "th": 0.3, "s": 0.3, "w": 0.3}
    model = DifferentialDriveControlModel(
        "ego", lambda _: state["th"], ahead, BodyDrive(0.6, 0.6), credit="guaranteed"
    )

    def ego():
        e = np.array([math.cos(state["th"]), math.sin(state["th"])])
        f = np.array([-e[1], e[0]])
        p, v = state["c"] + ahead * e, state["s"] * e + ahead * state["w"] * f
        return AgentSnapshot(p, v, 0.2)

    guard = runtime(ego=model)
    far = AgentSnapshot([30.0, 0.0], [0.0, 0.0], 0.2)
    for k in range(80):
        step = guard.step(
            np.array([0.5 * math.cos(k / 3), math.sin(k / 4)]), {"ego": ego(), "p": far}
        )
        for _ in range(50):
            h = DT / 50
            state["s"] += share * step.action[0] * h
            state["w"] += share * step.action[1] * h
            state["th"] += state["w"] * h
            state["c"] += state["s"] * h * np.array([math.cos(state["th"]), math.sin(state["th"])])
    assert (guard.telemetry.run.counts["ego_breaches"] == 0) is (share == 1.0)


def test_what_was_seen_survives_a_resume_and_older_records_start_believing():
    guard, world = runtime(), World()
    play(guard, world, lambda k: (-3.0, 0.0), steps=5)
    copy = runtime()
    copy.load_state_dict(guard.state_dict())
    agents = world.agents()
    steps = [g.step(np.array([2.0, 0.0]), agents) for g in (guard, copy)]
    assert steps[0].reason == steps[1].reason != ""
    assert steps[0].action.tolist() == steps[1].action.tolist()
    older = {k: v for k, v in guard.state_dict().items() if k not in ("motion", "directions")}
    copy.load_state_dict(older)
    assert copy.step(np.array([2.0, 0.0]), agents).reason == ""


class Weak(gym.Env):
    """An ego whose motors give a part of what is asked for, beside a disc at rest."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (8,), np.float64)
    action_space = gym.spaces.Box(-2, 2, (2,), np.float32)
    ego_uid, control_timestep, plant = "ego", DT, "zoh"

    def __init__(self, share=0.2):
        self.share = share

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.world = World(share=self.share)
        return np.zeros(8), {}

    def step(self, action):
        self.world.step(action, (0.0, 0.0))
        gap = float(np.linalg.norm(self.world.p[0] - self.world.p[1]) - 0.4)
        return np.zeros(8), 0.0, gap < -1.0, False, {"gap": gap}

    def build_agent_snapshots(self):
        return self.world.agents()

    def build_control_models(self):
        return models()

    def build_bounds(self):
        return BOUNDS


def test_guards_of_one_and_of_many_environments_say_why():
    single = cadenza.guard(Weak())
    batch = cadenza.guard(gym.vector.SyncVectorEnv([Weak, lambda: Weak(share=1.0)]))
    single.reset(seed=0)
    batch.reset(seed=0)
    for k in range(60):
        *_, info = single.step(np.array([2.0, 0.0], np.float32))
        *_, many = batch.step(np.full((2, 2), [2.0, 0.0], np.float32))
        safety, both = info["safety"], many["safety"]
        assert both["reason"].tolist() == [safety["reason"], ""]
        assert both["uncertified"].tolist() == [safety["uncertified"], False]
        assert both["applied_action"][0] == pytest.approx(safety["applied_action"], abs=1e-6)
        assert info["gap"] > 0.0
        if k == 1:
            assert safety["reason"] == "the ego 'ego' moved 1.6 m/s^2 off its control model"
    assert batch.driver.vectorised
    single.reset()
    assert single.step(np.zeros(2, np.float32))[-1]["safety"]["reason"] == ""


def test_batch_finds_what_the_runtime_finds():
    rng = np.random.default_rng(3)
    envs, uids = 6, ("ego", "p", "q")
    declared = models() | {"q": DoubleIntegratorControlModel("q", 2, capacity=0.4)}
    scene = {}
    driver = BatchedSafetyDriver(
        None,
        BatchEnvHooks(
            agents=lambda: AgentBatch(
                uids=uids, positions=scene["p"], velocities=scene["v"], radii=np.full(3, 0.2)
            ),
            control_models=declared,
            bounds=BOUNDS,
            control_timestep=DT,
            plant="zoh",
            num_envs=envs,
        ),
        ego_uid="ego",
        options=SafetyOptions(),
    )
    assert driver.vectorised
    singles = [
        SafetyRuntime(ego_uid="ego", control_models=declared, bounds=BOUNDS, control_timestep=DT)
        for _ in range(envs)
    ]
    scene["p"] = rng.normal(size=(envs, 3, 2)) * 2.0
    scene["v"] = rng.normal(size=(envs, 3, 2)) * 0.2
    broken = 0
    for k in range(40):
        nominal = rng.uniform(-2, 2, (envs, 2))
        agents = driver._hooks.agents()
        step = driver.step(nominal)
        for row, single in enumerate(singles):
            one = single.step(nominal[row], agents.snapshots(row))
            assert step.reason.get(row, "") == one.reason
            assert bool(step.uncertified[row]) == one.uncertified
            assert step.action[row] == pytest.approx(one.action, abs=1e-8)
            broken += bool(one.reason)
        a = rng.normal(size=(envs, 3, 2)) * [[[1.0], [0.08], [0.16]]]
        a[:, 0] = (
            step.action * np.where(np.arange(envs) % 3 == 0, 0.9 if k > 20 else 1.0, 1.0)[:, None]
        )
        scene["p"] = scene["p"] + scene["v"] * DT + 0.5 * a * DT**2
        scene["v"] = scene["v"] + a * DT
        if k == 30:
            driver.begin_rows([1, 3])
            for row in (1, 3):
                singles[row].begin_episode()
    assert 40 < broken < 240
