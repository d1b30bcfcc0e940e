"""Theorems A and B under attack: exact plants, partners that move second, walls, errors and age."""

from dataclasses import replace

import pytest

from cadenza.safety.backup import BackupFilter
from cadenza.safety.verifier import AttackConfig, attack
from cadenza.safety.verifier.attacks import REST
from tests.campaigns import size

RESPONSES = ("norm", "axis", "ideal", "lag")
FURNISHED = ("corridor", "corner", "funnel", "room", "boxes", "clutter")
#: Steps of the main campaign of each kind of base, and of the others.
STEPS, FEWER = size(10_000, 1_000_000), size(1_000, 100_000)


def attacked(scheme, make_guard=None, **changes):
    """Attack a velocity base; every claim holds unless it has another filter than its own."""
    settings = {"schemes": (scheme,), "steps": FEWER, "dims": (2,), "episode_steps": 150}
    report = attack(AttackConfig(**settings | changes), make_guard=make_guard)
    if make_guard is None:
        assert report.failures == []
    return report.everything()


@pytest.mark.slow
@pytest.mark.parametrize("response", RESPONSES)
def test_lone_partner_as_fast_as_the_base_never_touches_it_in_free_space(response):
    tally = attacked(f"{response}-escape", steps=STEPS, seed=1, worlds=("free",))
    assert (tally.touched_episodes, tally.uncertified) == (0, 0), tally
    assert tally.min_gap_m < 0.01, "no partner ever came near: the attack has no teeth"


@pytest.mark.parametrize("response", RESPONSES)
def test_base_in_space_is_never_touched_either(response):
    tally = attacked(f"{response}-escape", seed=2, worlds=("free",), dims=(3,))
    assert (tally.touched_episodes, tally.uncertified) == (0, 0), tally


@pytest.mark.slow
@pytest.mark.parametrize("response", RESPONSES)
def test_walls_are_never_touched_and_partners_not_in_certified_steps(response):
    tally = attacked(f"{response}-escape", steps=STEPS, seed=3, worlds=FURNISHED)
    assert (tally.wall_contacts, tally.static_uncertified) == (0, 0), tally
    assert tally.certified_contacts == 0, tally
    assert tally.uncertified > 0, "no robot was ever pinned: the attack has no teeth"
    assert tally.min_wall_m < 0.01


@pytest.mark.parametrize("response", RESPONSES)
def test_walls_are_never_touched_by_a_base_that_is_alone(response):
    tally = attacked(f"{response}-walls", seed=9, worlds=FURNISHED, dims=(2, 3))
    assert (tally.wall_contacts, tally.static_uncertified) == (0, 0), tally
    assert tally.min_wall_m < 0.01


@pytest.mark.parametrize("response", RESPONSES)
def test_passive_base_rests_wherever_it_is_touched(response):
    tally = attacked(f"{response}-passive", seed=4, worlds=FURNISHED, dims=(2, 3))
    assert tally.touched_episodes > 0
    assert tally.largest_contact_speed <= (0.05 if response == "lag" else 0.0) + REST, tally
    assert (tally.wall_contacts, tally.uncertified) == (0, 0), tally


def deaf(robot, partners, *, position_error_m, velocity_error, **options):
    """A filter that is not told of errors."""
    return BackupFilter(robot, partners, **options)


@pytest.mark.parametrize("response", RESPONSES)
def test_errors_and_old_packets_are_counted(response):
    doubt = {"position_error": 0.005, "velocity_error": 0.05, "max_age_steps": 2}
    doubt |= {"seed": 5, "worlds": ("free",)}
    tally = attacked(f"{response}-escape", **doubt)
    assert (tally.touched_episodes, tally.uncertified) == (0, 0), tally
    ignored = attacked(f"{response}-escape", deaf, **doubt)
    assert ignored.certified_contacts > 0, "errors of this size do no harm: no teeth"


@pytest.mark.parametrize("response", RESPONSES)
def test_obstacles_that_are_measured_wrongly_are_not_touched_if_the_error_is_stated(response):
    doubt = {"position_error": 0.01, "seed": 8, "worlds": FURNISHED}
    tally = attacked(f"{response}-walls", **doubt)
    assert tally.wall_contacts == 0, tally
    ignored = attacked(f"{response}-walls", deaf, **doubt)
    assert ignored.wall_contacts > 0, "errors of this size do no harm: no teeth"


@pytest.mark.parametrize("response", RESPONSES)
@pytest.mark.parametrize("delay_steps", [1.0, 2.6])
def test_known_delay_of_commands_is_counted(response, delay_steps):
    scheme = f"{response}-escape"
    tally = attacked(scheme, seed=6, worlds=FURNISHED, delay_steps=delay_steps)
    assert (tally.wall_contacts, tally.certified_contacts) == (0, 0), tally
    free = attacked(scheme, seed=7, worlds=("free",), delay_steps=delay_steps)
    assert (free.touched_episodes, free.uncertified) == (0, 0), free


def hasty(robot, partners, **options):
    """A filter that is not told of the delay."""
    return BackupFilter(replace(robot, delay_s=0.0), partners, **options)


@pytest.mark.parametrize("response", RESPONSES)
@pytest.mark.parametrize("claim", ["escape", "passive"])
def test_late_base_keeps_its_promises_beside_walls_that_are_measured_wrongly(response, claim):
    doubt = {"position_error": 0.01, "velocity_error": 0.05, "max_age_steps": 2}
    doubt |= {"delay_steps": 1.6, "seed": 10, "worlds": FURNISHED}
    tally = attacked(f"{response}-{claim}", steps=size(300, 100_000), **doubt)
    assert (tally.wall_contacts, tally.certified_contacts) == (0, 0), tally
    assert tally.uncertified == 0 or claim == "escape"


def test_delay_that_is_not_declared_ends_in_walls():
    late = {"seed": 11, "worlds": FURNISHED, "delay_steps": 2.6}
    assert attacked("norm-walls", **late).wall_contacts == 0
    assert attacked("norm-walls", hasty, **late).wall_contacts > 0
