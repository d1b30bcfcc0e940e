"""Scripted foragers on fields drawn by hand."""

import numpy as np
import pytest

from cadenza.core.errors import InputError
from cadenza.partners.foraging import FORAGERS, Field, first_moves
from cadenza.partners.registry import load_partner
from cadenza.partners.spec import PartnerSpec

NONE, NORTH, SOUTH, WEST, EAST, LOAD = range(6)


def state(foods, me, other, level=1, other_level=1):
    """Foods as (row, column, level); those that are gone fill up to three."""
    rows = [*foods, *[(-1, -1, 0)] * (3 - len(foods)), (*me, level), (*other, other_level)]
    return np.array(rows, dtype=np.float32).reshape(-1)


def forager(name, seed=0):
    partner = load_partner(PartnerSpec(f"forager_{name}", 0, extra={"uid": "partner"}))
    partner.reset(seed=seed)
    return partner


def choices(name, seen, seeds=range(40)):
    """Return everything the forager does on one field, over several episodes."""
    obs = {"agent": {"partner": {"state": seen}}}
    return {int(forager(name, seed).act(obs)[0]) for seed in seeds}


# One row and column per food, so that every order begins with another one:
# food (1, 6), (3, 1) and (6, 3); I stand at (3, 4), the other far away at (0, 0).
THREE = [(1, 6, 2), (3, 1, 2), (6, 3, 2)]


@pytest.mark.parametrize(
    ("name", "moves"),
    [
        ("lexicographic", {NORTH, EAST}),  # (1, 6)
        ("reverse", {SOUTH, WEST}),  # (6, 3), beside it at (5, 3) or (6, 4)
        ("column", {WEST}),  # (3, 1)
        ("reverse_column", {NORTH, EAST}),  # (1, 6)
        ("nearest", {WEST}),  # three steps; the others four
        ("farthest", {NORTH, EAST}),  # (1, 6) is the first of the two four steps away
        ("entitled", {WEST}),
        ("h1", {NORTH}),  # straight, (1, 6) is the nearest: 8 squared cells against 9 and 10
        ("h2", {WEST}),  # from the middle (2, 2) it is (3, 1)
        ("h4", {WEST}),
    ],
)
def test_forager_goes_to_the_food_its_rule_names(name, moves):
    assert choices(name, state(THREE, (3, 4), (0, 0))) == moves


def test_heuristic_that_loads_alone_takes_food_of_its_level_or_acts_at_random():
    near, far, lower = (3, 3, 2), (6, 6, 1), (6, 3, 1)
    assert choices("h3", state([near, far], (2, 1), (7, 7))) == {SOUTH}
    # No food is light enough: anything possible; east of (3, 2) is food, which can be loaded.
    anything = {NONE, NORTH, SOUTH, WEST, LOAD}
    assert choices("h3", state([near], (3, 2), (7, 7)), range(200)) == anything
    # The heavy food stands in the only straight way down.
    anything = {NONE, NORTH, WEST, EAST, LOAD}
    assert choices("h3", state([near, lower], (2, 3), (7, 7)), range(200)) == anything


@pytest.mark.parametrize("name", [name.removeprefix("forager_") for name in FORAGERS])
def test_forager_beside_its_food_loads_only_the_entitled_one_waits(name):
    alone = state([(3, 3, 1)], (3, 2), (0, 0))
    together = state([(3, 3, 1)], (3, 2), (2, 3))
    assert choices(name, alone) == ({NONE} if name == "entitled" else {LOAD})
    assert choices(name, together) == {LOAD}


def test_ways_lead_round_food_and_the_other_player():
    # Food at (3, 2) stands between me at (3, 1) and the goal (3, 4).
    field = Field.of(state([(3, 2, 1), (3, 4, 1)], (3, 1), (0, 0)).tolist())
    assert first_moves(field, (3, 4)) == [NORTH, SOUTH]
    # The other at (2, 1) closes the way north.
    field = Field.of(state([(3, 2, 1), (3, 4, 1)], (3, 1), (2, 1)).tolist())
    assert first_moves(field, (3, 4)) == [SOUTH]
    # The field reaches as far as its food and its players do.
    field = Field.of(state([(1, 8, 1)], (6, 1), (0, 0)).tolist())
    assert first_moves(field, (1, 8)) == [NORTH, EAST]
    # In the corner, between the rim and the other, there is none.
    field = Field.of(state([(1, 1, 1), (3, 3, 1)], (0, 1), (0, 2)).tolist())
    assert first_moves(field, (3, 3)) == [WEST]
    # With food on its other side, too, there is no way out of it.
    field = Field.of(state([(1, 0, 1), (3, 3, 1)], (0, 0), (0, 1)).tolist())
    assert first_moves(field, (3, 3)) == []


def test_forager_keeps_to_its_food_until_it_is_gone():
    partner = forager("farthest")

    def act(foods, me):
        return int(partner.act({"agent": {"partner": {"state": state(foods, me, (0, 7))}}})[0])

    west, east = (4, 1, 1), (4, 6, 1)
    assert act([west, east], (4, 3)) == EAST  # 2 and 3 steps away
    assert act([west, east], (4, 4)) == EAST  # now the other one is farther
    assert act([west], (4, 4)) == WEST
    partner.reset(seed=0)
    assert act([west, east], (4, 4)) == WEST


def test_forager_hesitates_near_the_other():
    assert choices("nearest", state([(3, 6, 1)], (3, 1), (3, 3))) == {NONE, NORTH, SOUTH, EAST}
    assert choices("nearest", state([(3, 6, 1)], (3, 1), (5, 3))) == {EAST}


def test_states_of_other_tasks_are_refused():
    obs = {"agent": {"partner": {"state": np.zeros(10, np.float32)}}}
    with pytest.raises(InputError, match=r"3 numbers per food and player, got 10; it plays the"):
        forager("nearest").act(obs)
