"""Theorems A and B under attack: exact plants, partners that move second, walls, errors and age."""

import pytest

from cadenza.safety.control_models import VelocityModel
from cadenza.safety.verifier.plants import VelocityPlant
from tests.campaigns import size
from tests.unit.safety.backup.attacks import REST, attack

LIMITS = ("norm", "axis", "none", "lag")
#: Steps of the main campaign of each kind of base, and of the others.
STEPS, FEWER = size(10_000, 1_000_000), size(1_000, 100_000)


def base(limit, dim=2, **settings):
    if limit == "lag":
        return VelocityModel("ego", dim, 1.0, lag_s=0.3, **settings)
    rate = {} if limit == "none" else {"max_accel": 1.5}
    return VelocityModel("ego", dim, 1.0, limit=limit, **rate, **settings)


def plant(model, position):
    return VelocityPlant(model, position, (0.0,) * model.dim)


@pytest.mark.slow
@pytest.mark.parametrize("limit", LIMITS)
def test_lone_partner_as_fast_as_the_base_never_touches_it_in_free_space(limit):
    tally = attack(plant, base(limit), steps=STEPS, seed=1)
    assert (tally.contacts, tally.uncertified) == (0, 0), tally
    assert tally.worst_gap < 0.01, "no partner ever came near: the attack has no teeth"


@pytest.mark.parametrize("limit", LIMITS)
def test_base_in_space_is_never_touched_either(limit):
    tally = attack(plant, base(limit, dim=3), steps=FEWER, seed=2, dim=3)
    assert (tally.contacts, tally.uncertified) == (0, 0), tally


@pytest.mark.slow
@pytest.mark.parametrize("limit", LIMITS)
def test_walls_are_never_touched_and_partners_not_in_certified_steps(limit):
    tally = attack(plant, base(limit), steps=STEPS, seed=3, walls=True)
    assert (tally.wall_contacts, tally.static_uncertified) == (0, 0), tally
    assert tally.certified_contacts == 0, tally
    assert tally.worst_wall < 0.01


@pytest.mark.parametrize("limit", LIMITS)
def test_passive_base_rests_wherever_it_is_touched(limit):
    tolerated = 0.05 if limit == "lag" else 0.0
    tally = attack(
        plant,
        base(limit),
        steps=FEWER,
        seed=4,
        walls=True,
        partners=3,
        speeds=(0.5, 3.0),
        contact_speed=tolerated,
    )
    assert tally.contacts > 0
    assert tally.contact_speed <= tolerated + REST, tally
    assert (tally.wall_contacts, tally.uncertified) == (0, 0), tally


@pytest.mark.parametrize("limit", LIMITS)
def test_errors_and_old_packets_are_counted(limit):
    doubt = {"error_m": 0.005, "error_speed": 0.05, "age_steps": 2}
    tally = attack(plant, base(limit), steps=FEWER, seed=5, **doubt)
    assert (tally.contacts, tally.uncertified) == (0, 0), tally
    ignored = attack(plant, base(limit), steps=FEWER, seed=5, counted=False, **doubt)
    assert ignored.contacts > 0, "errors of this size do no harm: the test has no teeth"


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("delay_s", [0.1, 0.13])
def test_known_delay_of_commands_is_counted(limit, delay_s):
    late = base(limit, delay_s=delay_s)
    tally = attack(plant, late, steps=FEWER, seed=6, walls=True)
    assert (tally.wall_contacts, tally.certified_contacts) == (0, 0), tally
    free = attack(plant, late, steps=FEWER, seed=7)
    assert (free.contacts, free.uncertified) == (0, 0), free
