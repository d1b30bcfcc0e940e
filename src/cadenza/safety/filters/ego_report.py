"""Rate limit of one step of the ego-only filter, and the record made of the step."""

import math

import numpy as np

from cadenza.safety.filters.ego_rows import EgoRows
from cadenza.safety.filters.row_solution import Box, Solution
from cadenza.safety.rows.barrier import barrier_violation
from cadenza.safety.solvers import SolveStatus
from cadenza.safety.state import FilterInfo


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
    relaxed = bool(keys) and max(solution.lambda_) > 0.0
    outside = bool(keys) and (min(rows.h) < 0.0 or min(rows.margin) < 0.0)
    return {
        "lambda": dict(zip(keys, solution.lambda_, strict=True)),
        "constraint_violation": np.array(
            [barrier_violation(h, e, gamma) for h, e in zip(rows.h, rows.margin, strict=True)]
        )
        if outside
        else np.zeros(len(keys)),
        "prediction_gap_loss": None,
        "fallback_fired": False,
        "qp_solve_ms": elapsed_ms,
        "slack": np.zeros(len(keys)) if solved else np.array(solution.missed(rows)),
        "margin": np.array(rows.margin),
        "status": solution.status.value if changed or not solved else "inactive",
        "intervention": math.dist(solution.x, u) if changed else 0.0,
        "uncertified": not solution.proved
        or relaxed
        or rows.uncovered
        or (rows.outside and rows.passive is None),
        "rate_active": False,
        "rate_exceeded": False,
    }
