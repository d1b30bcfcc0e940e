"""Solution of one step of the ego-only filter, its box, and the record made of it."""

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from cadenza.safety.barrier import barrier_violation
from cadenza.safety.ego_rows import EgoRows
from cadenza.safety.projection import RowSet
from cadenza.safety.solvers import SolveStatus
from cadenza.safety.state import FilterInfo

#: Lower and upper bounds of the action, n numbers each.
Box: TypeAlias = tuple[list[float], list[float]]


@dataclass(slots=True)
class Solution:
    """One solved step.

    Attributes:
        x: The action, n numbers.
        status: How the solve ended.
        lambda_: Slack that entered the rows, one entry per partner, m/s^2.
        b: Right-hand sides, likewise, m/s^2.
    """

    x: list[float]
    status: SolveStatus
    lambda_: list[float]
    b: list[float]


def rate_box(previous: list[float], rate: float, box: Box) -> Box:
    """Return the part of the box within ``rate`` of the previous action, in every component.

    A previous action outside the box leaves the bound next to it.
    """
    lower, upper = box
    return (
        [
            min(max(p - rate, low), high)
            for p, low, high in zip(previous, lower, upper, strict=True)
        ],
        [
            max(min(p + rate, high), low)
            for p, low, high in zip(previous, lower, upper, strict=True)
        ],
    )


def inside(x: list[float], box: Box) -> bool:
    """Return whether every component lies within its bounds."""
    return all(low <= x_k <= high for x_k, low, high in zip(x, *box, strict=True))


def report(
    u: list[float],
    rows: EgoRows,
    solution: Solution,
    keys: list[tuple[str, str]],
    elapsed_ms: float,
    *,
    changed: bool,
    gamma: float,
) -> FilterInfo:
    """Return the record of one step without a rate limit; ``gamma`` is for overlap, 1/s."""
    solved = solution.status is SolveStatus.OPTIMAL
    if solved:
        slack = np.zeros(len(keys))
    else:
        row_set = RowSet(rows.a, solution.b, rows.h, rows.time_left)
        slack = np.array([max(0.0, row_set.residual(j, solution.x)) for j in range(len(keys))])
    relaxed = bool(keys) and max(solution.lambda_) > 0.0
    return {
        "lambda": dict(zip(keys, solution.lambda_, strict=True)),
        "constraint_violation": np.array(
            [barrier_violation(h, e, gamma) for h, e in zip(rows.h, rows.margin, strict=True)]
        ),
        "prediction_gap_loss": None,
        "fallback_fired": False,
        "qp_solve_ms": elapsed_ms,
        "slack": slack,
        "margin": np.array(rows.margin),
        "status": solution.status.value if changed or not solved else "inactive",
        "intervention": math.dist(solution.x, u) if changed else 0.0,
        "uncertified": not solved or relaxed or rows.uncovered,
        "rate_active": False,
        "rate_exceeded": False,
    }
