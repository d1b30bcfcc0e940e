"""The certificate, by simulation: an adversary that also chooses when news arrives never gets in.

The true state must stay in the safe set of the derated alpha', whatever the packets say, and the
balls never touch; ages vary from step to step within the declared bound. Every figure is a distance
of centres, m, against the sum of the radii, at four points per step.
"""

import math
from collections import deque
from dataclasses import dataclass

import numpy as np
import pytest

from cadenza.safety.runtime.driver import SafetyDriver
from cadenza.safety.runtime.options import SafetyOptions
from cadenza.safety.snapshot import AgentSnapshot
from tests.campaigns import size
from tests.unit.safety.scenes import (
    CONTACT,
    RADIUS,
    Duel,
    GuardedEnv,
    agent,
    box,
    call,
    ego_filter,
    hypot,
    safe_duel,
    safe_speed,
    slack,
)

LINF = 2.0
#: float64 rounding of positions of a few metres over an episode.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Setting:
    """One kind of episode; packets are up to ``late_steps`` steps old."""

    dim: int
    dt: float
    plant: str
    late_steps: int
    partner_accel: float = 0.6

    @property
    def max_age_s(self):
        return self.late_steps * self.dt

    @property
    def alpha(self):
        """alpha' by its definition: delta and the chord of asin(delta / D), written out."""
        age, a_p = self.max_age_s, self.partner_accel
        delta = 0.5 * a_p * age * (age + self.dt)
        chord = 2.0 * math.sin(0.5 * math.asin(delta / CONTACT))
        return LINF - a_p - math.sqrt(self.dim) * LINF * chord


def pair_state(duel):
    offset = [a - b for a, b in zip(*duel.positions, strict=True)]
    relative = [a - b for a, b in zip(*duel.velocities, strict=True)]
    r = hypot(offset)
    return r - CONTACT, -sum(o * v for o, v in zip(offset, relative, strict=True)) / r


def adversary(rng, duel, mode, k, setting):
    """Full acceleration: chase, cut off, turn across, or lure and pounce within one packet age."""
    toward = duel.toward_ego()
    relative = [a - b for a, b in zip(*duel.velocities[:2], strict=True)]
    along = sum(t * v for t, v in zip(toward, relative, strict=True))
    across = [v - along * t for t, v in zip(toward, relative, strict=True)]
    aim = toward
    if mode == 1:
        aim = [t + 1.5 * v for t, v in zip(toward, across, strict=True)]
    elif mode == 2:
        sign = rng.choice((-1.0, 1.0))
        aim = [0.4 * t + sign * v for t, v in zip(toward, across, strict=True)]
    elif mode == 3 and setting.late_steps:
        sign = -1.0 if (k // (setting.late_steps + 1)) % 2 == 0 else 1.0
        aim = [sign * t for t in toward]
    length = hypot(aim) or 1.0
    return [setting.partner_accel * a / length for a in aim]


def ram(rng, duel):
    """The ego drives at where the partner truly is, all components at the box, or wanders."""
    aim = [-t for t in duel.toward_ego()]
    if rng.random() < 0.3:
        return rng.uniform(-LINF, LINF, size=len(aim)).tolist()
    largest = max(abs(a) for a in aim)
    return [LINF * a / largest for a in aim]


@dataclass
class Outcome:
    nearest: float = math.inf
    outside: float = math.inf
    infeasible: int = 0
    uncertified: int = 0
    active: int = 0
    steps: int = 0


def choose_age(rng, policy, k, late_steps):
    """Age of the packet of step k, in steps: always late, jittering, or the freshest lie."""
    if policy == 0:
        return min(k, late_steps)
    if policy == 1:
        return min(k, int(rng.integers(0, late_steps + 1)))
    return min(k, k % (late_steps + 1))


def fight(rng, guard, setting, outcome, *, steps, variant):
    duel = safe_duel(rng, setting.dim, setting.dt, setting.plant, setting.alpha)
    history = deque(maxlen=setting.late_steps + 1)
    state, bounds = slack(("p1",)), box(LINF)
    for k in range(steps):
        history.append((list(duel.positions[1]), list(duel.velocities[1])))
        e, w = pair_state(duel)
        outcome.outside = min(outcome.outside, safe_speed(e, setting.alpha, setting.dt) - w, e)
        back = choose_age(rng, variant % 3, k, setting.late_steps)
        position, velocity = history[-1 - back]
        agents = {
            "ego": agent(duel.positions[0], duel.velocities[0]),
            "p1": AgentSnapshot(position, velocity, RADIUS, back * setting.dt),
        }
        action, info = call(
            guard, ram(rng, duel), agents, bounds=bounds, state=state, dt=setting.dt
        )
        push = adversary(rng, duel, variant % 4, k, setting)
        outcome.nearest = min(outcome.nearest, duel.step([action.tolist(), push]))
        outcome.infeasible += info["status"] == "infeasible"
        outcome.uncertified += info["uncertified"]
        outcome.active += info["status"] == "optimal"
        outcome.steps += 1


def tournament(setting, *, episodes, steps=60, declared_age=None):
    # The guard keeps its default plant, "zoh", which covers both.
    age = setting.max_age_s if declared_age is None else declared_age
    guard = ego_filter(setting.partner_accel, setting.dim, ("p1",), max_age_s=age)
    rng, outcome = np.random.default_rng(0), Outcome()
    for variant in range(episodes):
        fight(rng, guard, setting, outcome, steps=steps, variant=variant)
    return outcome


SETTINGS = [
    Setting(2, 0.05, "zoh", 0, 0.5),
    Setting(3, 0.02, "zoh", 0, 0.5),
    Setting(3, 0.05, "semi_implicit", 0, 0.5),
    Setting(2, 0.05, "zoh", 1),
    Setting(2, 0.05, "zoh", 4),
    Setting(3, 0.1, "zoh", 3),
    Setting(3, 0.02, "zoh", 5),
    Setting(2, 0.005, "zoh", 20),
    Setting(2, 0.1, "semi_implicit", 3),
    Setting(3, 0.05, "semi_implicit", 4),
    Setting(2, 0.02, "semi_implicit", 7),
]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_adversary_never_gets_in_and_never_leaves_the_certificate(setting):
    outcome = tournament(setting, episodes=size(24, 120))
    assert outcome.nearest >= CONTACT - ROUNDING
    assert outcome.outside >= -ROUNDING
    assert outcome.infeasible == 0
    assert outcome.uncertified == 0
    assert outcome.active > outcome.steps / 15  # the rows had work to do


def test_packets_older_than_declared_are_flagged_and_still_held_against_their_age():
    outcome = tournament(Setting(2, 0.05, "zoh", 4), episodes=36, declared_age=0.1)
    assert outcome.uncertified > outcome.steps / 4
    assert outcome.nearest > CONTACT - 1e-3  # what ignoring the age would lose is 1e-2


@pytest.mark.parametrize("dt", [0.05, 0.02])
def test_stationary_partner_is_never_driven_through(dt):
    # Ego drives at a partner 8 m away with 1 m/s^2; box and capacity 5, gamma 5.
    duel = Duel([[-8.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]], dt)
    guard = ego_filter(0.0, 2, ("p1",), cbf_gamma=5.0)
    nearest = math.inf
    for _ in range(round(8.0 / dt)):
        action, info = call(
            guard, [1.0, 0.0], duel.snapshots(), bounds=box(5.0), state=slack(("p1",)), dt=dt
        )
        assert info["status"] in ("inactive", "optimal")
        nearest = min(nearest, duel.step([action.tolist(), [0.0, 0.0]]))
    assert nearest >= CONTACT
    assert nearest < CONTACT + 1e-3  # it does go all the way


def test_driver_with_float32_actions_and_adaptive_lambda_keeps_the_certificate():
    rng, setting = np.random.default_rng(5), Setting(2, 0.05, "zoh", 0, 0.5)
    nearest, learned, active = math.inf, 0.0, 0
    for variant in range(20):
        duel = safe_duel(rng, 2, setting.dt, setting.plant, setting.alpha, margin=1e-3)
        env = GuardedEnv(duel, partner_accel=setting.partner_accel, linf=LINF)
        driver = SafetyDriver.from_env(env, ego_uid="ego", options=SafetyOptions())
        for k in range(100):
            step = driver.step(np.array(ram(rng, duel), dtype=np.float32))
            executed = step.action.astype(np.float32).astype(float).tolist()
            push = adversary(rng, duel, variant % 3, k, setting)
            nearest = min(nearest, duel.step([executed, push]))
            assert (step.infeasible, step.braked, step.uncertified) == (False, False, False)
            active += step.intervention > 0.0
            learned = min(learned, *step.lambda_.values())
    assert nearest >= CONTACT
    assert active > 500
    assert learned < -0.01


@pytest.mark.parametrize("partners", [2, 5])
def test_several_partners_never_get_the_nominal_action_after_a_failed_solve(partners):
    rng = np.random.default_rng(partners)
    uids = tuple(f"p{k}" for k in range(1, partners + 1))
    guard = ego_filter(0.5, 2, uids)
    failed = 0
    for _ in range(400):
        agents = {"ego": agent([0, 0], rng.normal(size=2))}
        for uid, angle in zip(uids, rng.uniform(0, 2 * math.pi, size=partners), strict=True):
            spot = rng.uniform(0.3, 0.8) * np.array([math.cos(angle), math.sin(angle)])
            agents[uid] = agent(spot, rng.normal(size=2))
        nominal = rng.uniform(-LINF, LINF, size=2)
        action, info = call(guard, nominal, agents)
        assert np.abs(action).max() <= LINF
        if info["status"] == "infeasible":
            failed += 1
            assert info["uncertified"]
            assert action.tobytes() != nominal.tobytes()
            assert info["slack"].max() > 0.0
    assert failed > 50
