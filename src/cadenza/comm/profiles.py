"""How bad a link is: delay, spread, losses, bursts and bandwidth, in one record with six presets.

Delay:    normal with the profile's mean m and standard deviation s, truncated to [0, 2 m]: the
          tails are redrawn in effect, not heaped on the ends.
Losses:   Gilbert-Elliott. A link is either good, and loses nothing, or bad, and loses each packet
          with probability b. Bad spells last L packets on average, and the share of bad time is
          drop_rate / b, so that drop_rate is the share of lost packets whatever L and b are.
Queue:    with a bandwidth, a packet waits until the sender has sent what came before it.
Source:   E. N. Gilbert, Bell System Technical Journal 39 (1960); presets: URLLC targets of 3GPP
          Release 17 and industrial trials, arXiv:2501.12792.
Filter:   `saturation_guard` says whether a link and a solver leave it the time it needs.
Units:    ms, kbit/s; one packet is sent per tick.
"""

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist, median
from typing import Any, Final

import numpy as np

from cadenza.comm.packets import ChamberCommQPSaturationWarning
from cadenza.core.checks import is_real, shown
from cadenza.core.errors import InputError

#: Standard normal distribution.
_NORMAL: Final = NormalDist()
#: Stands for a probability that rounds to zero where a quantile is asked for.
_TINY: Final = 1e-300


@dataclass(frozen=True, slots=True)
class DegradationProfile:
    """What a link does to the packets on it.

    Attributes:
        latency_mean_ms: Mean delay, ms, >= 0.
        latency_std_ms: Standard deviation of the delay before truncation, ms, >= 0.
        drop_rate: Share of packets lost, in [0, 1].
        burst_length: Mean length of a bad spell, packets, >= 1; None makes losses independent.
        burst_loss: Probability of a loss within one, in (0, 1].
        bandwidth_kbps: What the sender can send, kbit/s, > 0; None sends in no time.

    Raises:
        InputError: A value is out of range, or losses so frequent need longer bursts.
    """

    latency_mean_ms: float
    latency_std_ms: float
    drop_rate: float
    burst_length: float | None = None
    burst_loss: float = 1.0
    bandwidth_kbps: float | None = None

    def __post_init__(self) -> None:
        self._require("latency_mean_ms", self.latency_mean_ms, low=0.0)
        self._require("latency_std_ms", self.latency_std_ms, low=0.0)
        self._require("drop_rate", self.drop_rate, low=0.0, high=1.0)
        self._require("burst_loss", self.burst_loss, low=_TINY, high=1.0)
        if self.burst_length is not None:
            self._require("burst_length", self.burst_length, low=1.0)
        if self.bandwidth_kbps is not None:
            self._require("bandwidth_kbps", self.bandwidth_kbps, low=_TINY)
        if self.burst_length is None and self.burst_loss != 1.0:
            raise InputError(
                f"DegradationProfile.burst_loss: expected 1 without burst_length, got "
                f"{self.burst_loss}; set burst_length too."
            )
        share = self.bad_share
        if share > 1.0 or (self.burst_length or math.inf) * (1.0 - share) < share < 1.0:
            raise InputError(
                f"DegradationProfile: expected bad spells that can make up drop_rate = "
                f"{self.drop_rate}, got burst_length = {self.burst_length} and burst_loss = "
                f"{self.burst_loss}; raise one of them."
            )

    @property
    def bad_share(self) -> float:
        """Share of time in which the link is bad."""
        return self.drop_rate / self.burst_loss

    @property
    def bad_after_good(self) -> float:
        """Probability that a good link is bad for the next packet."""
        share = self.bad_share
        if self.burst_length is None or share >= 1.0:
            return share
        return share / (self.burst_length * (1.0 - share))

    @property
    def bad_after_bad(self) -> float:
        """Probability that a bad link is bad for the next packet as well."""
        if self.burst_length is None or self.bad_share >= 1.0:
            return self.bad_share
        return 1.0 - 1.0 / self.burst_length

    def latency_ms(self, u: float) -> float:
        """Return the delay below which a share ``u`` of all delays lies, ms.

        Args:
            u: Uniform in [0, 1).
        """
        mean, std = self.latency_mean_ms, self.latency_std_ms
        if std == 0.0 or mean == 0.0:
            return mean
        below_zero = 0.5 * math.erfc(mean / (std * math.sqrt(2.0)))
        quantile = max(_TINY, below_zero + u * (1.0 - 2.0 * below_zero))
        return min(2.0 * mean, max(0.0, mean + std * _NORMAL.inv_cdf(quantile)))

    def _require(self, name: str, value: object, *, low: float, high: float = math.inf) -> None:
        if not (is_real(value) and low <= value <= high and math.isfinite(value)):
            above = "> 0" if low == _TINY else f">= {low:g}"
            expected = f"a number {above}" + (f" and <= {high:g}" if high < math.inf else "")
            raise InputError(f"DegradationProfile.{name}: expected {expected}, got {shown(value)}.")


#: Presets by name, from a perfect link to one beyond what control should rely on.
URLLC_3GPP_R17: Final[dict[str, DegradationProfile]] = {
    "ideal": DegradationProfile(0.0, 0.0, 0.0),
    "urllc": DegradationProfile(1.0, 0.0, 1e-6),
    "factory": DegradationProfile(5.0, 0.1, 1e-4),
    "wifi": DegradationProfile(10.0, 1.0, 1e-2),
    "lossy": DegradationProfile(30.0, 5.0, 1e-2),
    "saturation": DegradationProfile(100.0, 10.0, 1e-1),
}


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
    """What the guard found."""

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
