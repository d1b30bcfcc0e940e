"""Wheeled bases reach goals behind a disc, where turning is weighed as the point ahead moves."""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from cadenza.safety.affine import AffineCBFFilter, KinematicUnicycle, keep_out_ball
from cadenza.safety.backup import unicycle
from cadenza.safety.verifier.robots import UnicyclePlant
from perf.usefulness import DISC, DT, GAIN, RADIUS, Counts, Episode, Scene, Wheeled, measure
from tests.campaigns import size

EPISODES = size(4, 120)
#: Of the naive ways, which stand still until their time is over.
PARKED = size(2, 20)


def scene_of(policy, limits):
    """Return the scene with a goal behind a disc for a base of other limits."""

    class Base(Wheeled):
        model = replace(Wheeled.model, **limits)

    return Scene(Base, "disc", policy=policy)


def behind_a_disc(policy, kind="passive", **limits):
    """Return what became of bases on their way to a goal behind a disc."""
    return measure(scene_of(policy, limits), kind, EPISODES)


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


class Step(NamedTuple):
    action: np.ndarray
    uncertified: bool = False
    static_uncertified: bool = False


class Naive:
    """The first of some commands that is clear of the disc: a step of it, and the brake after it.

    Commands are made of the nominal one and of the nearest, in the metric of the point ahead, that
    meets its row, half a look-ahead from the disc; an ``axle`` has to keep away as far.
    """

    def __init__(self, model, commands, *, axle=False):
        self.model, self.commands = model, commands
        base = KinematicUnicycle(model.look_ahead_m)
        kept = DISC.radius + RADIUS + 0.5 * model.look_ahead_m
        gain = 1.0 / (DT + 0.5 * model.max_speed / model.accel)  # What braking allows
        points = [base.point_ahead, (0, 1)][: 1 + axle]
        self.rows = AffineCBFFilter(
            base,
            [
                keep_out_ball(DISC.center, kept, position=point, gains=gain, name=f"{point}")
                for point in points
            ],
            box=model.action_box(),
            action_weights=(1.0, model.look_ahead_m**2),
        )

    def filter(self, nominal, agents):
        ego = agents["robot"]
        best, _ = self.rows.filter(np.array([*ego.position, ego.heading]), nominal)
        for action in self.commands(tuple(nominal), tuple(best)):
            if self.is_clear(ego, action):
                return Step(np.array(action))
        return Step(np.zeros(2))

    def is_clear(self, ego, action):
        ahead = np.array((math.cos(ego.heading), math.sin(ego.heading)))
        plant = UnicyclePlant(
            ego.position,
            ego.heading,
            speed=ego.velocity @ ahead,
            yaw_rate=ego.yaw_rate,
            accel=self.model.accel,
            yaw_accel=self.model.yaw_accel,
        )
        path = [plant.step(action, DT)]
        while plant.speed or plant.yaw_rate:
            path.append(plant.step((0.0, 0.0), DT))
        return np.linalg.norm(np.concatenate(path) - DISC.center, axis=1).min() >= 0.7


def naively(policy, commands, *, axle=False, **limits):
    """Return what becomes of bases with the naive filter."""
    scene, counts = scene_of(policy, limits), Counts()
    for index in range(PARKED):
        episode = Episode(scene, "passive", index, GAIN)
        episode.guard = Naive(scene.robot.model, commands, axle=axle)
        episode.play(counts)
    return counts


def turning_first(nominal, best):
    return [best, *((share * best[0], best[1]) for share in (0.75, 0.5, 0.25, 0.0))]


def stopping_first(nominal, best):
    return [best, *((share * best[0], share * best[1]) for share in (0.75, 0.5, 0.25, 0.0))]


def test_row_of_the_axle_beside_that_of_the_point_ahead_parks_the_base():
    # Around the disc the axle trails the point on a smaller circle, which its own row forbids.
    assert naively("pulling", turning_first).reached == PARKED
    parked = naively("pulling", turning_first, axle=True)
    assert parked.stuck == PARKED
    assert parked.nearest_m == pytest.approx(0.05, abs=1e-3)
    assert behind_a_disc("pulling").reached == EPISODES


def test_stopping_tried_before_turning_parks_the_base():
    # What is safe is let through, up to the disc. There the base may still turn, or stand for good.
    limits = {"accel": 0.7, "yaw_accel": 1.2, "look_ahead_m": 0.2}
    turns = naively("turning", lambda u, best: [u, *turning_first(u, best)], **limits)
    assert turns.reached == PARKED
    parked = naively("turning", lambda u, best: [u, *stopping_first(u, best)], **limits)
    assert parked.reached <= PARKED // 4
    assert parked.nearest_m < 0.01
    assert behind_a_disc("turning", **limits).reached == EPISODES
