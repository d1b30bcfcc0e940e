"""Packets whose age is not known for sure: what the rows are built for, and that nobody is hit."""

import math

import numpy as np
import pytest

from cadenza.safety.bounds import Bounds
from cadenza.safety.control_models import DoubleIntegratorControlModel
from cadenza.safety.runtime.options import SafetyOptions
from cadenza.safety.runtime.packets import PacketAges
from cadenza.safety.snapshot import AgentSnapshot

DT = 0.05


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
