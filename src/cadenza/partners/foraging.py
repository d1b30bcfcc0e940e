"""Scripted foragers: partners of level-based foraging that pursue food by one rule each.

Rules:    lexicographic, reverse     the first or last food left, by row, then column
          column, reverse_column     the first or last food left, by column, then row
          nearest, farthest          by the fewest steps between, ties by row, then column
          entitled                   as nearest, but loads only while the other stands there, too
          h1                         the food nearest to itself
          h2                         the food nearest to the middle of both players
          h3                         as h1, among food that its own level suffices for
          h4                         as h2, among food that both levels suffice for
Paths:    the first seven keep to a food until it is gone, walk a shortest way round food and the
          other player, draw one where several are shortest, and hesitate now and then near the
          other, or both could step into one cell, where neither moves, or aside in turn for ever;
          h1 to h4, as in their source, choose anew in every step, go straight, rows first, measure
          by the straight line, and act at random where food is in the way or none suits them.
Source:   h1 to h4 arXiv:2006.07869's package (arXiv:1907.09189 tells their idea).
Random:   row i of a batch draws from child i of the episode's stream, row 0 from the stream itself.
Reads:    the layout of `cadenza.envs.foraging`; acts by its numbers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import Float32Array
from cadenza.core.errors import InputError
from cadenza.partners.interface import read_state
from cadenza.partners.options import FamilyPartner
from cadenza.partners.registry import register_partner
from cadenza.partners.spec import PartnerSpec

#: Row and column.
Cell: TypeAlias = tuple[int, int]

#: Numbers of the actions: nothing, load, and the four moves with their direction.
NONE: Final = 0
LOAD: Final = 5
MOVES: Final[dict[int, Cell]] = {1: (-1, 0), 2: (1, 0), 3: (0, -1), 4: (0, 1)}
#: Probability of waiting before a step that ends near the other: large enough that two who are in
#: each other's way part within a few steps, small enough to cost little.
HESITATION: Final = 0.25
#: Steps from the other within which a cell is near it.
NEAR: Final = 2
#: Numbers of a state that describe the two players.
_PLAYERS: Final = 6


class Food(NamedTuple):
    """One food: where it is and its level."""

    cell: Cell
    level: int


class Field(NamedTuple):
    """What a forager sees: the food left by row and column, and both players."""

    foods: tuple[Food, ...]
    me: Cell
    level: int
    other: Cell
    other_level: int

    @classmethod
    def of(cls, state: Sequence[float]) -> "Field":
        """Read a state of `cadenza.envs.foraging`.

        Raises:
            InputError: It has another length.
        """
        if len(state) <= _PLAYERS or len(state) % 3:
            raise InputError(
                f"forager: expected a state of 3 numbers per food and player, got {len(state)}; "
                "it plays the task 'foraging' only."
            )
        rows = [tuple(map(int, state[i : i + 3])) for i in range(0, len(state), 3)]
        *foods, (y, x, level), (other_y, other_x, other_level) = rows
        left = tuple(Food((row, column), power) for row, column, power in foods if power > 0)
        return cls(left, (y, x), level, (other_y, other_x), other_level)


def steps_between(a: Cell, b: Cell) -> int:
    """Return the steps from ``a`` to ``b`` on an empty field."""
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


def moved(cell: Cell, action: int) -> Cell:
    """Return the cell that ``action`` leads to, if nothing is in the way."""
    down, right = MOVES.get(action, (0, 0))
    return cell[0] + down, cell[1] + right


def first_moves(field: Field, goal: Cell) -> list[int]:
    """Return the moves that begin a shortest way to a cell beside ``goal``; none if there is none.

    The field's size is not seen, but food never lies on its rim, so that every cell up to one
    beyond the last food or player is certainly on it.
    """
    cells = [food.cell for food in field.foods]
    last_row = max([field.me[0], field.other[0], *(row + 1 for row, _ in cells)])
    last_column = max([field.me[1], field.other[1], *(column + 1 for _, column in cells)])
    closed = {field.other, *cells}
    frontier = [moved(goal, action) for action in MOVES]
    while frontier:  # breadth first, from the goal: one ring of equal distance after the other
        ring: list[Cell] = []
        for cell in frontier:
            inside = 0 <= cell[0] <= last_row and 0 <= cell[1] <= last_column
            if inside and cell not in closed:
                closed.add(cell)
                ring.append(cell)
        here = [action for action in MOVES if moved(field.me, action) in ring]
        if here:
            return here
        frontier = [moved(cell, action) for cell in ring for action in MOVES]
    return []


@dataclass(frozen=True, slots=True)
class Rule:
    """What a forager pursues.

    Attributes:
        text: For its card.
        rank: What orders the food left; the smallest is pursued.
        suits: Whether a food is pursued at all; None pursues any.
        straight: Whether it goes straight, as h1 to h4, instead of planning its way.
        waits: Whether it loads only while the other stands beside the food, too.
    """

    text: str
    rank: Callable[[Field, Food], tuple[float, ...]]
    suits: Callable[[Field, Food], bool] | None = None
    straight: bool = False
    waits: bool = False


def _by_steps(field: Field, food: Food) -> tuple[float, ...]:
    return (steps_between(field.me, food.cell), *food.cell)


def _from_me(field: Field, food: Food) -> tuple[float, ...]:
    return (_squared(food, *field.me), *food.cell)


def _from_middle(field: Field, food: Food) -> tuple[float, ...]:
    row, column = (round((a + b) / 2) for a, b in zip(field.me, field.other, strict=True))
    return (_squared(food, row, column), *food.cell)


def _squared(food: Food, row: int, column: int) -> int:
    return (food.cell[0] - row) ** 2 + (food.cell[1] - column) ** 2


#: Rules by name.
RULES: Final[Mapping[str, Rule]] = {
    "lexicographic": Rule("Eats by row, then column.", lambda _, food: food.cell),
    "reverse": Rule(
        "Eats by row, then column, the last first.",
        lambda _, food: (-food.cell[0], -food.cell[1]),
    ),
    "column": Rule("Eats by column, then row.", lambda _, food: food.cell[::-1]),
    "reverse_column": Rule(
        "Eats by column, then row, the last first.",
        lambda _, food: (-food.cell[1], -food.cell[0]),
    ),
    "nearest": Rule("Eats what it reaches in the fewest steps.", _by_steps),
    "farthest": Rule(
        "Eats what is the most steps away.",
        lambda field, food: (-steps_between(field.me, food.cell), *food.cell),
    ),
    "entitled": Rule(
        "Waits beside the nearest food until its partner has come there.", _by_steps, waits=True
    ),
    "h1": Rule("Goes straight to the nearest food.", _from_me, straight=True),
    "h2": Rule(
        "Goes straight to the food nearest to the middle of both players.",
        _from_middle,
        straight=True,
    ),
    "h3": Rule(
        "Goes straight to the nearest food that it can load alone.",
        _from_me,
        lambda field, food: food.level <= field.level,
        straight=True,
    ),
    "h4": Rule(
        "Goes straight to the food nearest to both that they can load together.",
        _from_middle,
        lambda field, food: food.level <= field.level + field.other_level,
        straight=True,
    ),
}
#: Names of the partners of this module.
FORAGERS: Final = tuple(f"forager_{name}" for name in RULES)


class Forager(FamilyPartner):
    """Goes to the food its rule names and loads it."""

    tasks: ClassVar[tuple[str, ...]] = ("foraging",)
    rule: ClassVar[Rule]

    def __init__(self, spec: PartnerSpec) -> None:
        super().__init__(spec)
        self._goals: dict[int, Food] = {}

    def reset(self, *, seed: int | None = None) -> None:
        """Open the random stream of a new episode."""
        super().reset(seed=seed)
        self._goals = {}

    def reset_row(self, row: int, *, seed: int) -> None:
        """Start a new episode in one row; see `PartnerBase.reset_row`."""
        super().reset_row(row, seed=seed)
        self._goals.pop(row, None)

    def act(self, obs: Mapping[str, Any], *, deterministic: bool = True) -> Float32Array:
        """Return the number of the action, (1,), or (N, 1) for a batch of states."""
        del deterministic  # it draws only between ways that are equally good
        states = read_state(obs, self._uid)
        chosen = [self._choice(row, state) for row, state in enumerate(np.atleast_2d(states))]
        return self.checked(np.array(chosen, dtype=np.float32).reshape(*states.shape[:-1], 1))

    def act_rows(
        self, obs: Mapping[str, Any], rows: NDArray[np.intp], *, deterministic: bool = True
    ) -> Float32Array:
        """Return the actions of some rows alone, (n, 1); see `PartnerBase.act_rows`."""
        del deterministic
        states = read_state(obs, self._uid)
        chosen = [[self._choice(row, states[row])] for row in rows.tolist()]
        return self.checked(np.array(chosen, dtype=np.float32))

    def _choice(self, row: int, state: NDArray[Any]) -> int:
        field, rng = Field.of(state.tolist()), self.generators[row]
        if self.rule.straight:
            return _straight(self.rule, field, rng)
        return self._planned(field, row, rng)

    def _planned(self, field: Field, row: int, rng: np.random.Generator) -> int:
        """Return the action of a row that keeps to its food and plans its way there."""
        if not field.foods:
            return NONE
        goal = self._goals.get(row)
        if goal is None or goal not in field.foods:
            goal = min(field.foods, key=lambda food: self.rule.rank(field, food))
            self._goals[row] = goal
        if steps_between(field.me, goal.cell) == 1:
            alone = steps_between(field.other, goal.cell) != 1
            return NONE if self.rule.waits and alone else LOAD
        ways = first_moves(field, goal.cell)
        if not ways:
            return NONE
        way = int(ways[rng.integers(len(ways))])
        is_near = steps_between(moved(field.me, way), field.other) <= NEAR
        return NONE if is_near and rng.random() < HESITATION else way


def _straight(rule: Rule, field: Field, rng: np.random.Generator) -> int:
    """Return the action that goes straight to the food, rows first, or one at random."""
    suits = rule.suits
    suitable = [food for food in field.foods if suits is None or suits(field, food)]
    if suitable:
        goal = min(suitable, key=lambda food: rule.rank(field, food)).cell
        if steps_between(field.me, goal) == 1:
            return LOAD
        (y, x), (row, column) = field.me, goal
        wanted = {1: row < y, 2: row > y, 4: column > x, 3: column < x}
        for action, leads in wanted.items():
            if leads and _is_open(field, action):
                return action
    beside = any(steps_between(field.me, food.cell) == 1 for food in field.foods)
    allowed = [NONE, *(a for a in MOVES if _is_open(field, a)), *([LOAD] if beside else [])]
    return int(allowed[rng.integers(len(allowed))])


def _is_open(field: Field, action: int) -> bool:
    """Return whether no food and no near rim is in the way; the far rim is not seen."""
    cell = moved(field.me, action)
    return min(cell) >= 0 and all(food.cell != cell for food in field.foods)


for _name, _rule in RULES.items():
    register_partner(f"forager_{_name}")(
        type(f"Forager_{_name}", (Forager,), {"__doc__": _rule.text, "rule": _rule})
    )
