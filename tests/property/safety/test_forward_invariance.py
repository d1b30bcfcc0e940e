"""The certificate, by simulation: an adversary within its bound never gets in.

Every figure is a distance of centres, m, against the sum of the radii; between sampling instants
the plants are evaluated at four points per step.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from cadenza.safety.filters import ego_options
from cadenza.safety.rows.barrier import row_level
from cadenza.safety.runtime.driver import SafetyDriver
from cadenza.safety.runtime.options import SafetyOptions
from tests.unit.safety.scenes import (
    CONTACT,
    Duel,
    GuardedEnv,
    agent,
    box,
    call,
    ego_filter,
    hypot,
    slack,
)

LINF, PARTNER_ACCEL = 2.0, 0.5
ALPHA = LINF - PARTNER_ACCEL
#: float64 rounding of positions of a few metres over an episode.
ROUNDING = 1e-9


def random_start(rng, dim, dt, plant="zoh", margin=0.0):
    """A pair somewhere in the safe set, one time in three exactly on its boundary."""
    direction = rng.normal(size=dim)
    direction /= np.linalg.norm(direction)
    excess = rng.uniform(0.0, 1.5)
    distance = CONTACT + margin + excess
    velocity = rng.normal(size=dim) * 1.5
    reach = ALPHA * dt
    limit = 0.5 * (-reach + math.sqrt(reach * reach + 8.0 * ALPHA * excess))
    closing = -velocity @ direction
    if closing > limit or rng.random() < 1 / 3:
        velocity += (closing - limit) * direction
    share = rng.normal(size=dim)
    return Duel(
        [(distance * direction).tolist(), [0.0] * dim],
        [(velocity + share).tolist(), share.tolist()],
        dt,
        plant,
    )


def ram(duel):
    """An ego nominal that stops the sideways motion and drives at the partner, box exhausted."""
    toward = duel.toward_ego()
    relative = [a - b for a, b in zip(*duel.velocities[:2], strict=True)]
    along = sum(t * v for t, v in zip(toward, relative, strict=True))
    aim = [-t - 2.0 * (v - along * t) for t, v in zip(toward, relative, strict=True)]
    largest = max(abs(a) for a in aim)
    return [LINF * a / largest for a in aim]


def adversary(rng, duel, mode):
    """A partner acceleration of the full bound: chase, cut off, or turn across the line."""
    toward = duel.toward_ego()
    relative = [a - b for a, b in zip(*duel.velocities[:2], strict=True)]
    if mode == 1:
        lead = rng.uniform(0.0, 1.5)
        aim = [t * 0.5 + lead * v for t, v in zip(toward, relative, strict=True)]
    elif mode == 2:
        along = sum(t * v for t, v in zip(toward, relative, strict=True))
        aim = [v - along * t for t, v in zip(toward, relative, strict=True)]
        aim = [rng.choice((-1.0, 1.0)) * a + 0.3 * t for a, t in zip(aim, toward, strict=True)]
    else:
        aim = toward
    length = hypot(aim) or 1.0
    return [PARTNER_ACCEL * a / length for a in aim]


@dataclass
class Outcome:
    nearest: float = math.inf
    infeasible: int = 0
    uncertified: int = 0
    active: int = 0
    steps: int = 0

    def holds(self):
        """Whether the certificate held: no penetration, and an admissible action every step."""
        return self.nearest >= CONTACT - ROUNDING and self.infeasible == 0


def fight(rng, guard, outcome, *, dim, dt, plant, steps, mode):
    """One episode: the ego's nominal drives at the partner, the partner at the ego."""
    duel = random_start(rng, dim, dt, plant)
    state, bounds = slack(("p1",)), box(LINF)
    for _ in range(steps):
        nominal = ram(duel)
        if rng.random() < 0.2:
            nominal = rng.uniform(-LINF, LINF, size=dim).tolist()
        action, info = call(guard, nominal, duel.snapshots(), bounds=bounds, state=state, dt=dt)
        distance = duel.step([action.tolist(), adversary(rng, duel, mode)])
        outcome.nearest = min(outcome.nearest, distance)
        outcome.infeasible += info["status"] == "infeasible"
        outcome.uncertified += info["uncertified"]
        outcome.active += info["status"] == "optimal"
        outcome.steps += 1


def tournament(*, dim, dt, plant, episodes, steps=80, seed=0, guard_plant=None, declared=None):
    outcome = Outcome()
    guard = ego_filter(
        PARTNER_ACCEL if declared is None else declared,
        dim,
        ("p1",),
        plant=guard_plant or plant,
    )
    rng = np.random.default_rng(seed)
    for k in range(episodes):
        fight(rng, guard, outcome, dim=dim, dt=dt, plant=plant, steps=steps, mode=k % 3)
    return outcome


@pytest.mark.parametrize("plant", ["zoh", "semi_implicit"])
@pytest.mark.parametrize("dt", [0.05, 0.02])
@pytest.mark.parametrize("dim", [2, 3])
def test_adversarial_partner_never_gets_in(dim, dt, plant):
    outcome = tournament(dim=dim, dt=dt, plant=plant, episodes=120)
    assert outcome.holds()
    assert outcome.uncertified == 0
    assert outcome.active > outcome.steps / 6  # the rows had work to do


def test_default_row_covers_the_semi_implicit_plant_too():
    outcome = tournament(dim=2, dt=0.05, plant="semi_implicit", guard_plant="zoh", episodes=45)
    assert outcome.holds()


def flip_closing_speed(distance, contact, closing, tangential, pair):
    return row_level(distance, contact, -closing, tangential, pair)


def count_on_the_partner(distance, contact, closing, tangential, pair):
    # The classical choice: both agents brake.
    generous = replace(pair, alpha=LINF + PARTNER_ACCEL)
    return row_level(distance, contact, closing, tangential, generous)


def forget_the_push(distance, contact, closing, tangential, pair):
    level, h = row_level(distance, contact, closing, tangential, pair)
    return level + 2.0 * pair.partner_accel, h  # as if the push helped


def ignore_the_step(distance, contact, closing, tangential, pair):
    # The continuous-time row, alpha / psi w + gamma h, on the sampled plant.
    excess = max(distance - contact, 0.0)
    psi = max(math.sqrt(2.0 * pair.alpha * excess), 1e-3)
    h = psi - closing
    return -pair.alpha / psi * closing + tangential**2 / distance + pair.gamma * h, h


@pytest.mark.parametrize(
    "mutant", [flip_closing_speed, count_on_the_partner, forget_the_push, ignore_the_step]
)
def test_mutated_row_loses_the_certificate(monkeypatch, mutant):
    monkeypatch.setattr(ego_options, "row_level", mutant)
    assert not tournament(dim=2, dt=0.05, plant="zoh", episodes=45).holds()


def test_semi_implicit_row_on_a_zero_order_hold_plant_is_not_enough():
    outcome = tournament(dim=2, dt=0.05, plant="zoh", guard_plant="semi_implicit", episodes=90)
    assert outcome.nearest < CONTACT - 1e-5


def test_partner_stronger_than_declared_gets_in():
    outcome = tournament(dim=2, dt=0.05, plant="zoh", declared=0.0, episodes=45)
    assert outcome.nearest < CONTACT - 1e-3


@pytest.mark.parametrize("dt", [0.05, 0.02, 0.005])
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


def test_head_on_meeting_of_the_two_agent_example_keeps_its_distance():
    # +-2 m, +-1 m/s, box 5: the ego yields to a partner that keeps coming.
    duel = Duel([[-2.0, 0.0], [2.0, 0.0]], [[1.0, 0.0], [-1.0, 0.0]], 0.05, "semi_implicit")
    guard = ego_filter(0.5, 2, ("p1",), cbf_gamma=2.0)
    for _ in range(200):
        action, info = call(
            guard, [1.0, 0.0], duel.snapshots(), bounds=box(5.0), state=slack(("p1",)), dt=0.05
        )
        assert info["status"] in ("inactive", "optimal")
        assert duel.step([action.tolist(), [0.0, 0.0]]) > CONTACT


@pytest.mark.parametrize("dim", [2, 3])
def test_driver_with_float32_actions_and_adaptive_lambda_keeps_the_certificate(dim):
    rng = np.random.default_rng(5)
    nearest, learned, active = math.inf, 0.0, 0
    for k in range(20):
        duel = random_start(rng, dim, 0.05, margin=1e-3)
        env = GuardedEnv(duel, partner_accel=PARTNER_ACCEL, linf=LINF)
        driver = SafetyDriver.from_env(env, ego_uid="ego", options=SafetyOptions())
        for _ in range(100):
            nominal = np.array(ram(duel), dtype=np.float32)
            step = driver.step(nominal)
            executed = step.action.astype(np.float32).astype(float)
            nearest = min(nearest, duel.step([executed.tolist(), adversary(rng, duel, k % 3)]))
            assert (step.infeasible, step.braked, step.uncertified) == (False, False, False)
            active += step.intervention > 0.0
            learned = min(learned, *step.lambda_.values())
    assert nearest >= CONTACT
    assert active > 500
    assert learned < -0.01


@pytest.mark.parametrize("partners", [2, 3, 5])
def test_several_partners_never_get_the_nominal_action_after_a_failed_solve(partners):
    rng = np.random.default_rng(partners)
    uids = tuple(f"p{k}" for k in range(1, partners + 1))
    guard = ego_filter(PARTNER_ACCEL, 2, uids)
    failed = 0
    for _ in range(400):
        angles = rng.uniform(0, 2 * math.pi, size=partners)
        agents = {"ego": agent([0, 0], rng.normal(size=2))}
        for uid, angle in zip(uids, angles, strict=True):
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
