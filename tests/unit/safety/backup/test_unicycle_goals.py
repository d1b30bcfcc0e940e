"""Wheeled bases reach goals behind a disc, where turning is weighed as the point ahead moves."""

import math
from dataclasses import replace

import pytest

from cadenza.safety.backup import unicycle
from perf.usefulness import Scene, Wheeled, measure
from tests.campaigns import size

EPISODES = size(4, 120)


def behind_a_disc(policy, kind="passive", **limits):
    """Return what became of bases on their way to a goal behind a disc."""

    class Base(Wheeled):
        model = replace(Wheeled.model, **limits)

    return measure(Scene(Base, "disc", policy=policy), kind, EPISODES)


@pytest.mark.parametrize("policy", ["straight", "turning", "pulling"])
def test_goal_behind_a_disc_is_reached_without_touching_it(policy):
    counts = behind_a_disc(policy)
    assert counts.reached == EPISODES
    assert counts.nearest_m > 0.0
    assert behind_a_disc(policy, "none").wall_contacts == EPISODES


def test_base_that_follows_at_once_reaches_it_too():
    counts = behind_a_disc("straight", accel=math.inf, yaw_accel=math.inf)
    assert counts.reached == EPISODES
    assert counts.nearest_m > 0.0


def test_less_room_ahead_parks_a_slow_braking_base_on_the_disc(monkeypatch):
    limits = {"accel": 0.5, "yaw_accel": 2.0, "look_ahead_m": 0.2}
    assert behind_a_disc("pulling", **limits).reached == EPISODES
    monkeypatch.setattr(unicycle, "CANDIDATE_ROOM", 0.25)
    assert behind_a_disc("pulling", **limits).reached <= EPISODES // 4
