"""Wheeled bases reach goals behind a disc, where turning is weighed as the point ahead moves."""

import math

import pytest

from cadenza.safety.backup import unicycle
from cadenza.safety.control_models import UnicycleModel
from cadenza.safety.geometry import Ball
from tests.campaigns import size
from tests.unit.safety.backup.attacks import RADIUS
from tests.unit.safety.backup.wheels import (
    GOAL_NOMINALS,
    goals_behind_a_disc,
    pull_at_the_point_ahead,
    slow_in_turns,
)

DISC, EPISODES = Ball((1.5, 0.0), 0.5), size(4, 120)


def base(accel=2.0, yaw_accel=6.0, look_ahead_m=0.1):
    return UnicycleModel("ego", 1.0, 1.0, 2.0, accel, yaw_accel, RADIUS, look_ahead_m=look_ahead_m)


@pytest.mark.parametrize("policy", GOAL_NOMINALS, ids=lambda policy: policy.__name__)
def test_goal_behind_a_disc_is_reached_without_touching_it(policy):
    arrived, least = goals_behind_a_disc(base(), DISC, policy, episodes=EPISODES)
    assert arrived == EPISODES
    assert least > 0.0
    _, hit = goals_behind_a_disc(base(), DISC, policy, episodes=EPISODES, guarded=False)
    assert hit < -0.1


def test_base_that_follows_at_once_reaches_it_too():
    model = base(math.inf, math.inf)
    arrived, least = goals_behind_a_disc(model, DISC, slow_in_turns, episodes=EPISODES)
    assert (arrived, least > 0.0) == (EPISODES, True)


def test_less_room_ahead_parks_a_slow_braking_base_on_the_disc(monkeypatch):
    model = base(0.5, 2.0, 0.2)
    policy = pull_at_the_point_ahead
    assert goals_behind_a_disc(model, DISC, policy, episodes=EPISODES)[0] == EPISODES
    monkeypatch.setattr(unicycle, "CANDIDATE_ROOM", 0.25)
    assert goals_behind_a_disc(model, DISC, policy, episodes=EPISODES)[0] <= EPISODES // 4
