"""One step's rows solved: with lambda as tight as each row allows, or without it."""

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from cadenza.safety.filters.ego_rows import feasible_lambda
from cadenza.safety.filters.projection import RowSet, project
from cadenza.safety.solvers import QPSolver, SolveStatus

#: Lower and upper bounds of the action, n numbers each.
Box: TypeAlias = tuple[list[float], list[float]]


class LeveledRows(Protocol):
    """Rows before lambda; see `cadenza.safety.filters.ego_rows.EgoRows`."""

    a: list[list[float]]
    level: list[float]
    h: list[float]
    time_left: list[float]


@dataclass(slots=True)
class Solution:
    """One solved step.

    Attributes:
        x: The action, n numbers.
        status: How the solve ended.
        lambda_: Slack that entered the rows, one entry per row, m/s^2.
        b: Right-hand sides, likewise, m/s^2.
        proved: The action keeps what is guaranteed: it meets the rows, or needs not to.
    """

    x: list[float]
    status: SolveStatus
    lambda_: list[float]
    b: list[float]
    proved: bool

    def missed(self, rows: LeveledRows) -> list[float]:
        """Return how far the action misses each row, m/s^2; zeros after a solve that succeeded."""
        if self.status is SolveStatus.OPTIMAL:
            return [0.0] * len(self.b)
        row_set = RowSet(rows.a, self.b, rows.h, rows.time_left)
        return [max(0.0, row_set.residual(j, self.x)) for j in range(len(self.b))]


def solve_rows(
    u: list[float],
    rows: LeveledRows,
    wanted: list[float],
    box: Box,
    solver: QPSolver,
    *,
    as_given: bool,
) -> Solution:
    """Return the projection of an action.

    Args:
        u: Nominal action, n numbers.
        rows: The rows at lambda = 0.
        wanted: Slack asked for, one entry per row, m/s^2.
        box: Bounds of the action.
        solver: Solves several active rows.
        as_given: Take lambda as it is. Otherwise a negative one tightens its row no further than
            the box can follow, and is dropped where it sets rows against each other.
    """
    lower, upper = box
    used, b = wanted, rows.level
    if any(wanted):
        if not as_given:
            used = [
                feasible_lambda(value, row, level, lower, upper)
                for value, row, level in zip(wanted, rows.a, rows.level, strict=True)
            ]
        b = [level + value for level, value in zip(rows.level, used, strict=True)]
    x, status = project(u, RowSet(rows.a, b, rows.h, rows.time_left), lower, upper, solver)
    if status is not SolveStatus.OPTIMAL and not as_given and any(value < 0.0 for value in used):
        used = [max(0.0, value) for value in used]
        b = [level + value for level, value in zip(rows.level, used, strict=True)]
        x, status = project(u, RowSet(rows.a, b, rows.h, rows.time_left), lower, upper, solver)
    return Solution(x, status, used, b, status is SolveStatus.OPTIMAL)
