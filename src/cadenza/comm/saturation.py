"""Whether a link and a solver leave a safety filter the time it needs."""

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import numpy as np

from cadenza.comm.packets import ChamberCommQPSaturationWarning
from cadenza.comm.profiles import DegradationProfile
from cadenza.core.checks import is_real
from cadenza.core.errors import InputError

#: Time one solve may take, ms: a kilohertz control loop.
QP_TIME_BUDGET_MS: Final = 1.0
#: Losses and mean delay from which a link is beyond what control should rely on.
SATURATED_DROP_RATE: Final = 0.1
SATURATED_LATENCY_MS: Final = 100.0
#: Solves that are timed, after one that loads and warms everything; the median ignores a few
#: interruptions by other processes.
TIMED_SOLVES: Final = 7

_Q: Final = np.array([0.1, -0.2])


@dataclass(frozen=True, slots=True, kw_only=True)
class SaturationReport:
    """What the guard found.

    Attributes:
        solve_ms: Median time of one solve, ms.
        budget_ms: What it may take, ms.
        reasons: What is wrong, one sentence each; empty if nothing is.
    """

    solve_ms: float
    budget_ms: float
    reasons: tuple[str, ...]

    @property
    def saturated(self) -> bool:
        """Whether anything is wrong."""
        return bool(self.reasons)


def solve_qp_stub() -> tuple[float, float]:
    """Solve min 1/2 |x|^2 + q @ x within |x_k| <= 1, q = (0.1, -0.2).

    Returns:
        Euclidean norm of the minimiser, and the seconds it took.
    """
    started = time.perf_counter()
    x = np.clip(-_Q, -1.0, 1.0)  # the Hessian is the identity, so the box projects by component
    return math.hypot(*x.tolist()), time.perf_counter() - started


def saturation_guard(
    profile: DegradationProfile,
    qp_solve_fn: Callable[..., Any] = solve_qp_stub,
    *,
    qp_time_budget_ms: float = QP_TIME_BUDGET_MS,
) -> SaturationReport:
    """Warn, once and with all reasons, if the link or the solver is beyond its limits.

    Args:
        profile: The link.
        qp_solve_fn: One solve of the filter's problem, without arguments; it is timed from outside.
        qp_time_budget_ms: What one solve may take, ms.

    Returns:
        What was measured, and the reasons for the warning.

    Raises:
        InputError: ``qp_time_budget_ms`` is not a number > 0.
    """
    if not (is_real(qp_time_budget_ms) and qp_time_budget_ms > 0.0):
        raise InputError(f"saturation_guard: expected a budget > 0 ms, got {qp_time_budget_ms!r}.")
    times_ms = [_timed_ms(qp_solve_fn) for _ in range(1 + TIMED_SOLVES)]
    solve_ms = median(times_ms[1:])
    reasons: list[str] = []
    if solve_ms > qp_time_budget_ms:
        reasons.append(
            f"a solve of {solve_ms:.3f} ms exceeds its budget of {qp_time_budget_ms:.3f} ms"
        )
    if profile.drop_rate >= SATURATED_DROP_RATE or profile.latency_mean_ms >= SATURATED_LATENCY_MS:
        reasons.append(
            f"a link that loses {profile.drop_rate:.0%} and delays {profile.latency_mean_ms:g} ms "
            f"is in the saturation regime (from {SATURATED_DROP_RATE:.0%} or "
            f"{SATURATED_LATENCY_MS:g} ms)"
        )
    if reasons:
        message = f"saturation_guard: {'; '.join(reasons)}."
        warnings.warn(message, ChamberCommQPSaturationWarning, stacklevel=2)
    return SaturationReport(
        solve_ms=solve_ms, budget_ms=float(qp_time_budget_ms), reasons=tuple(reasons)
    )


def _timed_ms(solve: Callable[..., Any]) -> float:
    started = time.perf_counter()
    solve()
    return 1e3 * (time.perf_counter() - started)
