"""The certificate with old packets: an adversary that also chooses when news arrives.

The true state must stay in the safe set of the derated alpha', whatever the packets say, and the
balls never touch. Ages vary from step to step within the declared bound.
"""

import math
from collections import deque
from dataclasses import dataclass

import numpy as np
import pytest

from cadenza.safety.filters import ego_constants, ego_rows
from cadenza.safety.rows.barrier import PairParameters, row_level
from cadenza.safety.rows.stale import staleness
from cadenza.safety.snapshot import AgentSnapshot
from tests.unit.safety.scenes import (
    CONTACT,
    RADIUS,
    Duel,
    agent,
    box,
    call,
    ego_filter,
    hypot,
    slack,
)

LINF = 2.0
ROUNDING = 1e-9


@dataclass(frozen=True)
class Setting:
    """One kind of delayed episode."""

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


def safe_speed(e, alpha, dt):
    return 0.5 * (-alpha * dt + math.sqrt((alpha * dt) ** 2 + 8.0 * alpha * max(e, 0.0)))


def pair_state(duel):
    offset = [a - b for a, b in zip(*duel.positions, strict=True)]
    relative = [a - b for a, b in zip(*duel.velocities, strict=True)]
    r = hypot(offset)
    return r - CONTACT, -sum(o * v for o, v in zip(offset, relative, strict=True)) / r


def start(rng, setting):
    """A pair in the safe set, half of the time on its boundary or in contact."""
    dim = setting.dim
    direction = rng.normal(size=dim)
    direction /= np.linalg.norm(direction)
    excess = 0.0 if rng.random() < 0.1 else rng.uniform(0.0, 0.8)
    velocity = rng.normal(size=dim) * 1.5
    limit = safe_speed(excess, setting.alpha, setting.dt)
    closing = -velocity @ direction
    if closing > limit or rng.random() < 1 / 2:
        velocity += (closing - limit) * direction
    share = rng.normal(size=dim)
    return Duel(
        [((CONTACT + excess) * direction).tolist(), [0.0] * dim],
        [(velocity + share).tolist(), share.tolist()],
        setting.dt,
        setting.plant,
    )


def partner_accel(rng, duel, mode, k, late_steps, bound):
    """Full acceleration: chase, cut off, turn across, or lure and pounce within one packet age."""
    toward = duel.toward_ego()
    relative = [a - b for a, b in zip(*duel.velocities[:2], strict=True)]
    along = sum(t * v for t, v in zip(toward, relative, strict=True))
    across = [v - along * t for t, v in zip(toward, relative, strict=True)]
    if mode == 1:
        aim = [t + 1.5 * v for t, v in zip(toward, across, strict=True)]
    elif mode == 2:
        sign = rng.choice((-1.0, 1.0))
        aim = [0.4 * t + sign * v for t, v in zip(toward, across, strict=True)]
    elif mode == 3:
        sign = -1.0 if (k // (late_steps + 1)) % 2 == 0 else 1.0
        aim = [sign * t for t in toward]
    else:
        aim = toward
    length = hypot(aim) or 1.0
    return [bound * a / length for a in aim]


def ego_nominal(rng, duel):
    """The ego drives at where the partner truly is, all components at the box."""
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


def episode(rng, guard, setting, outcome, *, steps, variant):
    duel = start(rng, setting)
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
        nominal = ego_nominal(rng, duel)
        action, info = call(guard, nominal, agents, bounds=bounds, state=state, dt=setting.dt)
        push = partner_accel(rng, duel, variant % 4, k, setting.late_steps, setting.partner_accel)
        outcome.nearest = min(outcome.nearest, duel.step([action.tolist(), push]))
        outcome.infeasible += info["status"] == "infeasible"
        outcome.uncertified += info["uncertified"]
        outcome.active += info["status"] == "optimal"
        outcome.steps += 1


def tournament(setting, *, episodes, steps=60, seed=0, declared_age=None, declared=None):
    guard = ego_filter(
        setting.partner_accel if declared is None else declared,
        setting.dim,
        ("p1",),
        max_age_s=setting.max_age_s if declared_age is None else declared_age,
    )
    rng, outcome = np.random.default_rng(seed), Outcome()
    for variant in range(episodes):
        episode(rng, guard, setting, outcome, steps=steps, variant=variant)
    return outcome


SETTINGS = [
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
def test_delayed_adversary_never_gets_in_and_never_leaves_the_certificate(setting):
    # The guard keeps its default plant, "zoh", which covers both.
    outcome = tournament(setting, episodes=36)
    assert outcome.nearest >= CONTACT - ROUNDING
    assert outcome.outside >= -ROUNDING
    assert outcome.infeasible == 0
    assert outcome.uncertified == 0
    assert outcome.active > outcome.steps / 15


def without(field, value):
    def mutant(*arguments):
        return staleness(*arguments)._replace(**{field: value})

    return mutant


@pytest.mark.parametrize("field", ["position", "velocity"])
def test_forgetting_what_age_leaves_open_lets_the_adversary_in(monkeypatch, field):
    monkeypatch.setattr(ego_rows, "staleness", without(field, 0.0))
    outcome = tournament(Setting(2, 0.05, "zoh", 4), episodes=60)
    assert outcome.nearest < CONTACT - 1e-3


def test_forgetting_to_extrapolate_lets_the_adversary_in(monkeypatch):
    monkeypatch.setattr(ego_rows, "_extrapolated", lambda partner: list(partner.position_numbers))
    assert tournament(Setting(2, 0.05, "zoh", 4), episodes=36).nearest < CONTACT - 1e-2


def test_packet_that_hides_its_age_lets_the_adversary_in(monkeypatch):
    def ageless(position, velocity, radius, age_s):
        del age_s
        return agent(position, velocity, radius)

    monkeypatch.setitem(episode.__globals__, "AgentSnapshot", ageless)
    assert tournament(Setting(2, 0.05, "zoh", 4), episodes=36).nearest < CONTACT - 1e-2


def test_packets_older_than_declared_are_flagged_and_still_held_against_their_age():
    outcome = tournament(Setting(2, 0.05, "zoh", 4), episodes=36, declared_age=0.1)
    assert outcome.uncertified > outcome.steps / 4
    assert outcome.nearest > CONTACT - 1e-3  # what ignoring the age would lose is 1e-2


# One step, all of the uncertainty: whatever the packet hides, the row implies the true row.


def worst_action(n, row, level):
    """Return the smallest n @ a over |a_k| <= LINF with row @ a <= level, in the plane."""
    corners = [(x, y) for x in (-LINF, LINF) for y in (-LINF, LINF)]
    candidates = [p for p in corners if row[0] * p[0] + row[1] * p[1] <= level]
    for fixed in (-LINF, LINF):
        for k in (0, 1):
            if abs(row[1 - k]) > 1e-12:
                other = (level - row[k] * fixed) / row[1 - k]
                if abs(other) <= LINF:
                    candidates.append((fixed, other) if k == 0 else (other, fixed))
    return min((n[0] * a + n[1] * b for a, b in candidates), default=None)


def shortfall(rng, *, late, dt, plant, a_p=0.8):
    """By how much the worst action that the stale row admits misses the true row, m/s^2."""
    setting = Setting(2, dt, plant, late, a_p)
    age = setting.max_age_s
    alpha = setting.alpha
    guard = ego_filter(a_p, 2, ("p",), max_age_s=age, plant=plant)
    angle = rng.uniform(0.0, 2.0 * math.pi)
    n, across = (math.cos(angle), math.sin(angle)), (-math.sin(angle), math.cos(angle))
    e = 0.0 if rng.random() < 0.3 else 0.3 * rng.random() ** 2
    limit = safe_speed(e, alpha, dt)
    w = limit if rng.random() < 0.5 else limit - rng.exponential(0.3)
    t = rng.normal() * rng.choice((0.02, 0.2, 2.0))
    relative = [-w * n_k + t * s_k for n_k, s_k in zip(n, across, strict=True)]
    turn = (
        rng.uniform(0.0, 2.0 * math.pi) if rng.random() < 0.7 else angle + rng.choice((1.6, -1.6))
    )
    accel = [a_p * math.cos(turn), a_p * math.sin(turn)]
    # The partner now: at the origin, at rest. Its packet, one age ago, under constant `accel`.
    # Semi-implicit steps: p - p_0 = sum of v_i dt = v_0 A + a A (A + dt) / 2, with v_0 = -a A.
    delta = 0.5 * age * (age - (dt if plant == "semi_implicit" else 0.0))
    packet = AgentSnapshot([a * delta for a in accel], [-a * age for a in accel], RADIUS, age)
    ego = agent([(CONTACT + e) * n_k for n_k in n], relative)
    rows = guard._rows({"ego": ego, "p": packet}, {"p": packet}, *pair_call(guard, dt))
    true_pair = PairParameters(
        alpha=alpha,
        partner_accel=a_p,
        relative_accel=LINF * math.sqrt(2.0) + a_p,
        dt=dt,
        gamma=5.0,
        plant=plant,
    )
    level, h = row_level(CONTACT + e, CONTACT, w, abs(t), true_pair)
    assert h >= -1e-9
    push = worst_action(n, rows.a[0], rows.level[0] + 1e-12)
    return math.inf if push is None else -push - (level - a_p)


def pair_call(guard, dt):
    return guard._pairs_of("ego", {"ego": None, "p": None}), box(LINF), dt


CASES = [(2, 0.1, "zoh"), (6, 0.05, "zoh"), (4, 0.1, "semi_implicit"), (20, 0.01, "zoh")]


def largest_shortfall(samples=1200):
    rng = np.random.default_rng(7)
    return max(
        shortfall(rng, late=late, dt=dt, plant=plant)
        for late, dt, plant in CASES
        for _ in range(samples)
    )


def test_stale_row_implies_the_true_row_and_is_feasible():
    assert largest_shortfall() <= 1e-9


def test_stale_row_implies_the_true_row_for_any_step_age_and_partner():
    rng = np.random.default_rng(11)
    for _ in range(3000):
        dt = float(rng.uniform(0.005, 0.1))
        late = max(1, int(rng.uniform(0.0, 0.35) / dt))
        plant = str(rng.choice(["zoh", "semi_implicit"]))
        a_p = float(rng.uniform(0.0, 0.9))
        assert shortfall(rng, late=late, dt=dt, plant=plant, a_p=a_p) <= 1e-9


@pytest.mark.parametrize(
    ("field", "value"), [("position", 0.0), ("velocity", 0.0), ("sine", 0.0), ("tilt", 0.0)]
)
def test_stale_row_without_one_of_its_terms_does_not(monkeypatch, field, value):
    def mutant(*arguments):
        whole = staleness(*arguments)
        return whole._replace(**({"cosine": 1.0} if field == "sine" else {}), **{field: value})

    monkeypatch.setattr(ego_rows, "staleness", mutant)
    assert largest_shortfall() > 1e-6


def test_stale_row_without_derating_does_not(monkeypatch):
    monkeypatch.setattr(ego_constants, "derated", lambda pair, *_, **__: pair)
    assert largest_shortfall() > 1e-6


def test_position_error_of_a_semi_implicit_plant_needs_its_extra_half_step(monkeypatch):
    def textbook(age_s, partner_accel, dt, distance, contact):
        del dt
        return staleness(age_s, partner_accel, 0.0, distance, contact)

    monkeypatch.setattr(ego_rows, "staleness", textbook)
    rng = np.random.default_rng(7)
    worst = max(shortfall(rng, late=2, dt=0.1, plant="semi_implicit") for _ in range(1500))
    assert worst > 1e-6
