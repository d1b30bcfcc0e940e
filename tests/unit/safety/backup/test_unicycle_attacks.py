"""Theorems C and C' under attack: exact plants, partners that move second, walls."""

import numpy as np
import pytest

from tests.campaigns import size
from tests.unit.safety.backup.attacks import REST, nearest_wall
from tests.unit.safety.backup.wheels import attack

#: Steps of the main campaigns.
STEPS = size(10_000, 1_000_000)
KINDS = {
    "axle": {},
    "ahead": {"offset_m": 0.1},
    "behind": {"offset_m": -0.1},
    "ideal": {"ideal": True},
}


def steps_of(kind):
    """Return the steps of another campaign: a theorem's own base is attacked longest."""
    return size(1_500, 1_000_000 if kind in ("axle", "ideal") else 200_000)


@pytest.mark.slow
def test_walls_are_never_touched_by_a_disc_about_its_axle():
    tally = attack(steps=STEPS, seed=1)
    assert (tally.wall_contacts, tally.static_uncertified) == (0, 0), tally
    assert tally.worst_wall < 1e-3, "no robot ever came near: the attack has no teeth"


@pytest.mark.parametrize("kind", ["ahead", "behind", "ideal"])
def test_walls_are_never_touched_by_other_bases_either(kind):
    tally = attack(steps=steps_of(kind), seed=2, **KINDS[kind])
    assert (tally.wall_contacts, tally.static_uncertified) == (0, 0), tally
    assert tally.worst_wall < 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_passive_base_rests_wherever_it_is_touched(kind):
    tally = attack(steps=steps_of(kind), seed=3, guarantee="passive", partners=2, **KINDS[kind])
    assert tally.contacts > 0
    assert tally.contact_speed <= REST, tally
    assert (tally.wall_contacts, tally.static_uncertified, tally.uncertified) == (0, 0, 0), tally


@pytest.mark.slow
def test_lone_partner_never_touches_a_base_that_faces_it_or_turned_away():
    tally = attack(steps=STEPS, seed=4, guarantee="escape", partners=1, walls=False)
    assert (tally.contacts, tally.uncertified) == (0, 0), tally
    assert tally.worst_gap < 0.01, "no partner ever came near: the attack has no teeth"


@pytest.mark.parametrize("kind", ["ahead", "behind", "ideal"])
def test_lone_partner_never_touches_other_bases_either(kind):
    tally = attack(
        steps=steps_of(kind), seed=5, guarantee="escape", partners=1, walls=False, **KINDS[kind]
    )
    assert (tally.contacts, tally.uncertified) == (0, 0), tally
    assert tally.worst_gap < 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_beside_walls_no_contact_falls_into_a_certified_step(kind):
    tally = attack(steps=steps_of(kind), seed=6, guarantee="escape", partners=1, **KINDS[kind])
    assert (tally.wall_contacts, tally.static_uncertified) == (0, 0), tally
    assert tally.certified_contacts == 0, tally
    assert tally.uncertified > 0, "no robot was ever pinned: the attack has no teeth"


def test_base_with_rates_that_is_taken_for_an_ideal_one_hits_walls():
    def taken_for_ideal(nominal, model, plant, obstacles, dt):
        """Meet the row of the nearest wall as if speeds were followed at once."""
        gap, into = nearest_wall(obstacles, np.array(plant.position))
        ahead = float(into @ [np.cos(plant.heading), np.sin(plant.heading)])
        room = max(0.0, gap - 0.2) / dt
        v, w = nominal
        return np.array([v * min(1.0, room / (v * ahead)) if v * ahead > room else v, w])

    tally = attack(steps=2_000, seed=1, guard=taken_for_ideal)
    assert tally.wall_contacts > 50
    assert tally.worst_wall < -0.02
