"""How two agents that run the same filter share the right-hand side of their common row.

Row of a pair:   -n @ a_i + n @ a_j <= b            (both brake; nobody pushes)
Shares:          -n @ a_i <= beta_i b   and   n @ a_j <= beta_j b,   beta_i + beta_j = 1,
                 whose sum is the row: each agent keeps its part without knowing the other's action.
Authority:       in the safe set of alpha, b >= -alpha (docs/safety.md). An agent of authority
                 alpha_i keeps its part in every state iff beta_i alpha <= alpha_i, so the pair is
                 credited with
                     alpha = min(alpha_i / beta_i, alpha_j / beta_j) <= alpha_i + alpha_j.
                 Equality holds iff the shares are proportional to the authorities.
Units:           alpha in m/s^2, beta a number in (0, 1).
Limits:          the partner must run the same filter with the same options and models.
"""

from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from cadenza.core.checks import is_real
from cadenza.core.errors import ConfigurationError
from cadenza.safety.bounds import MAX_BOUND, MIN_BOUND

#: Names `make_budget_split` knows.
SUPPORTED_STRATEGIES: Final = ("proportional",)
#: How far the sum of two shares may be from 1: rounding of the divisions.
_SUM_TOLERANCE: Final = 1e-12


@runtime_checkable
class BudgetSplitStrategy(Protocol):
    """Decides which share of a row each of two agents keeps."""

    @property
    def name(self) -> str:
        """Name under which reports mention it."""
        ...

    def split(self, alpha_i: float, alpha_j: float) -> tuple[float, float]:
        """Return (beta_i, beta_j), both > 0, with sum 1.

        Swapping the agents swaps the shares; otherwise the two would not keep the same row.
        """
        ...


@dataclass(frozen=True, slots=True)
class ProportionalBudgetSplit:
    """Shares proportional to the authorities: beta_i = alpha_i / (alpha_i + alpha_j).

    The only split that leaves the pair its whole authority alpha_i + alpha_j.
    """

    @property
    def name(self) -> str:
        """Name under which reports mention it."""
        return "proportional"

    def split(self, alpha_i: float, alpha_j: float) -> tuple[float, float]:
        """Return the shares.

        Raises:
            ConfigurationError: An authority is not > 0.
        """
        for alpha in (alpha_i, alpha_j):
            if not (is_real(alpha) and 0.0 < alpha <= MAX_BOUND):
                raise ConfigurationError(
                    f"budget_split {self.name!r}: expected authorities > 0 m/s^2 and <= "
                    f"{MAX_BOUND:.0e}, got {alpha_i!r} and {alpha_j!r}."
                )
        total = alpha_i + alpha_j
        return alpha_i / total, alpha_j / total


def make_budget_split(name: str) -> BudgetSplitStrategy:
    """Return a strategy by name.

    Raises:
        ConfigurationError: Unknown name.
    """
    if name not in SUPPORTED_STRATEGIES:
        raise ConfigurationError(
            f"budget_split: expected one of {SUPPORTED_STRATEGIES}, got {name!r}."
        )
    return ProportionalBudgetSplit()


def shared_authority(
    strategy: BudgetSplitStrategy, alpha_i: float, alpha_j: float
) -> tuple[float, float]:
    """Return the authority of the pair, m/s^2, and the asking agent's share; see the module.

    Raises:
        ConfigurationError: An authority is not > 0, or the strategy returns no valid shares.
    """
    if not (MIN_BOUND <= alpha_i <= MAX_BOUND and MIN_BOUND <= alpha_j <= MAX_BOUND):
        raise ConfigurationError(
            f"budget_split: expected both agents to have an authority > 0 m/s^2, got {alpha_i} and "
            f"{alpha_j}; an agent that cannot brake cannot cooperate, guard without a split."
        )
    beta_i, beta_j = strategy.split(alpha_i, alpha_j)
    if not (beta_i > 0.0 and beta_j > 0.0 and abs(beta_i + beta_j - 1.0) <= _SUM_TOLERANCE):
        raise ConfigurationError(
            f"budget_split: expected two shares > 0 with sum 1 of {strategy.name!r}, got {beta_i} "
            f"and {beta_j}."
        )
    return min(alpha_i / beta_i, alpha_j / beta_j), beta_i
