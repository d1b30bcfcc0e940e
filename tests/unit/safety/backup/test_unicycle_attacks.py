"""Theorems C and C' under attack: exact plants, partners that move second, walls."""

from typing import NamedTuple

import numpy as np
import pytest

from cadenza.safety.verifier import AttackConfig, attack
from cadenza.safety.verifier.attacks import REST
from tests.campaigns import size

#: Steps of the main campaigns.
STEPS = size(10_000, 1_000_000)
RESPONSES = ("rates", "offset", "ideal")
FURNISHED = ("corridor", "corner", "funnel", "room", "boxes", "clutter")


def attacked(response, claim, steps=None, make_guard=None, **changes):
    """Attack a wheeled base; every claim holds unless it has another filter than its own.

    A theorem's own base is attacked longest.
    """
    steps = steps or size(1_500, 200_000 if response == "offset" else 1_000_000)
    settings = {"robot": "unicycle", "schemes": (f"{response}-{claim}",), "steps": steps}
    settings |= {"episode_steps": 150, "worlds": FURNISHED}
    report = attack(AttackConfig(**settings | changes), make_guard=make_guard)
    if make_guard is None:
        assert report.failures == []
    return report.everything()


@pytest.mark.slow
def test_walls_are_never_touched_by_a_disc_about_its_axle():
    tally = attacked("rates", "walls", STEPS, seed=1)
    assert (tally.wall_contacts, tally.static_uncertified) == (0, 0), tally
    assert tally.min_wall_m < 1e-3, "no robot ever came near: the attack has no teeth"


@pytest.mark.parametrize("response", ["offset", "ideal"])
def test_walls_are_never_touched_by_other_bases_either(response):
    tally = attacked(response, "walls", seed=22)
    assert (tally.wall_contacts, tally.static_uncertified) == (0, 0), tally
    assert tally.min_wall_m < 0.01


@pytest.mark.parametrize("response", RESPONSES)
def test_passive_base_rests_wherever_it_is_touched(response):
    tally = attacked(response, "passive", seed=3)
    assert tally.touched_episodes > 0
    assert tally.largest_contact_speed <= REST, tally
    assert (tally.wall_contacts, tally.static_uncertified, tally.uncertified) == (0, 0, 0), tally


@pytest.mark.slow
def test_lone_partner_never_touches_a_base_that_faces_it_or_turned_away():
    tally = attacked("rates", "escape", STEPS, seed=4, worlds=("free",))
    assert (tally.touched_episodes, tally.uncertified) == (0, 0), tally
    assert tally.min_gap_m < 0.01, "no partner ever came near: the attack has no teeth"


@pytest.mark.parametrize("response", ["offset", "ideal"])
def test_lone_partner_never_touches_other_bases_either(response):
    tally = attacked(response, "escape", seed=25, worlds=("free",))
    assert (tally.touched_episodes, tally.uncertified) == (0, 0), tally
    assert tally.min_gap_m < 0.01


@pytest.mark.parametrize("response", RESPONSES)
def test_beside_walls_no_contact_falls_into_a_certified_step(response):
    tally = attacked(response, "escape", seed=6)
    assert (tally.wall_contacts, tally.static_uncertified) == (0, 0), tally
    assert tally.certified_contacts == 0, tally
    assert tally.uncertified > 0, "no robot was ever pinned: the attack has no teeth"


class Step(NamedTuple):
    action: np.ndarray
    backup: str = "none"
    uncertified: bool = False
    static_uncertified: bool = False


class TakenForIdeal:
    """Meets the row of the nearest wall as if speeds were followed at once."""

    def __init__(self, robot, partners, *, dt, obstacles, **_):
        self.dt, self.obstacles = dt, obstacles

    def filter(self, nominal, agents):
        ego = agents["ego"]
        distances, normals = self.obstacles.gaps(ego.position)
        nearest = distances.argmin()
        room = max(0.0, distances[nearest] - ego.radius) / self.dt
        ahead = -float(normals[nearest] @ [np.cos(ego.heading), np.sin(ego.heading)])
        v, w = nominal
        return Step(np.array([v * min(1.0, room / (v * ahead)) if v * ahead > room else v, w]))


def test_base_with_rates_that_is_taken_for_an_ideal_one_hits_walls():
    tally = attacked("rates", "walls", 2_000, TakenForIdeal, seed=1)
    assert tally.wall_contacts > 50
    assert tally.min_wall_m < -0.02
