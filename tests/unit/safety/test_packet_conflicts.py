"""Packets whose age is not known for sure: what the rows are built for, and that nobody is hit."""

import math

import numpy as np
import pytest

from cadenza.safety.bounds import Bounds
from cadenza.safety.control_models import DoubleIntegratorControlModel
from cadenza.safety.runtime.options import SafetyOptions
from cadenza.safety.runtime.packets import PacketAges
from cadenza.safety.runtime.runtime import SafetyRuntime
from cadenza.safety.snapshot import AgentSnapshot

DT = 0.05
CONTACT = 0.4


def models(partner_accel):
    return {
        "e": DoubleIntegratorControlModel("e", 2),
        "p": DoubleIntegratorControlModel("p", 2, partner_accel),
    }


def ages(latency_ms=0.0, **options):
    return PacketAges(
        ego_uid="e",
        control_models=models(0.6),
        bounds=Bounds(2.0, 2.0, 1.0, latency_ms, 0.0),
        dt=DT,
        options=SafetyOptions(**options),
    )


def ball(position, velocity, age=0.0):
    return AgentSnapshot(np.array(position), np.array(velocity), 0.2, age)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_conflict_widened_ball_holds_the_ball_of_every_possible_age(share):
    agents = {"e": ball([0.0, 0.0], [0.0, 0.0]), "p": ball([3.0, 1.0], [-1.2, 0.5], 0.05)}
    taken, conflict = ages().applied(agents, {"p": 0.25})
    widened = taken["p"]
    assert conflict
    assert widened.age_s == 0.25
    centre = widened.position + 0.25 * widened.velocity
    # 3 - 1.2 * 0.15 and 1 + 0.5 * 0.15; the speed is 1.3.
    assert centre == pytest.approx([2.82, 1.075])
    assert widened.radius == pytest.approx(0.2 + 0.1 * (1.3 + 0.6 * 0.3))
    age = 0.05 + share * 0.2
    possible = np.array([3.0, 1.0]) + age * np.array([-1.2, 0.5])
    assert math.dist(possible, centre) + 0.2 <= widened.radius + 1e-12


def test_conflict_of_no_source_leaves_the_very_agents():
    agents = {"e": ball([0.0, 0.0], [0.0, 0.0]), "p": ball([3.0, 1.0], [-1.2, 0.5], 0.1)}
    assert ages().applied(agents, {})[0] is agents
    taken, conflict = ages().applied(agents, {"p": 0.1 + DT, "e": 9.0})
    assert not conflict
    assert taken == agents


def drive(seed, *, floor, lag_of, steps=150):
    """Chase a partner that turns on the ego, seen through packets of an unknown age."""
    rng = np.random.default_rng(seed)
    accel, latency = 0.6, 0.2
    runtime = SafetyRuntime(
        ego_uid="e",
        control_models=models(accel),
        bounds=Bounds(2.0, 2.0, 1.0, latency * 1e3 if floor else 0.0, 0.0),
        control_timestep=DT,
        options=SafetyOptions(max_age_s=latency, latency_floor=floor),
    )
    angle = rng.uniform(0.0, 2.0 * math.pi)
    ego, partner = np.zeros(2), 1.2 * np.array([math.cos(angle), math.sin(angle)])
    v_ego = v_partner = 1.5 * np.array([math.cos(angle), math.sin(angle)])
    seen, nearest, certified = [], math.inf, 0
    for k in range(steps):
        seen.append((partner, v_partner))
        lag = min(k, lag_of(k, rng))
        agents = {"e": ball(ego, v_ego), "p": ball(*seen[-1 - lag])}
        away = (partner - ego) / math.dist(partner, ego)
        if floor:
            step = runtime.step(2.0 * away, agents)
        else:
            obs = {"agent_states": agents, "comm": {"aoi": {"p": 4}}}
            step = runtime.step_from_obs(2.0 * away, obs)
        certified += not step.uncertified
        side = np.array([-away[1], away[0]]) if seed % 3 == 0 else -away
        push = accel * side if k > 40 else np.zeros(2)
        ego = ego + DT * v_ego + 0.5 * DT * DT * step.action
        v_ego = v_ego + DT * step.action
        partner = partner + DT * v_partner + 0.5 * DT * DT * push
        v_partner = v_partner + DT * push
        nearest = min(nearest, math.dist(ego, partner))
    return nearest, certified


LAGS = {
    "fresh": lambda k, rng: 0,
    "oldest": lambda k, rng: 4,
    "any": lambda k, rng: int(rng.integers(5)),
    "switching": lambda k, rng: 4 * (k // 7 % 2),
}


@pytest.mark.parametrize("lag", LAGS)
@pytest.mark.parametrize("floor", [True, False])
def test_conflict_of_ages_never_ends_in_contact_and_is_never_certified(floor, lag):
    for seed in range(3):
        nearest, certified = drive(seed, floor=floor, lag_of=LAGS[lag])
        assert nearest > CONTACT
        assert certified == 0
