"""How two agents that run the same filter share the right-hand side of their common row.

Row of a pair:   -n @ a_i + n @ a_j <= b            (both brake; nobody pushes)
Shares:          -n @ a_i <= beta_i b   and   n @ a_j <= beta_j b,   beta_i + beta_j = 1,
                 whose sum is the row: each agent keeps its part without knowing the other's action.
Authority:       in the safe set of alpha, b >= -alpha (docs/safety.md). An agent of authority
                 alpha_i keeps its part in every state iff beta_i alpha <= alpha_i, so the pair is
                 credited with
                     alpha = min(alpha_i / beta_i, alpha_j / beta_j) <= alpha_i + alpha_j.
                 Equality holds iff the shares are proportional to the authorities.
Ramps:           an agent that delivers only the fraction phi of its command within a step, on
                 average, counts with phi_i alpha_i, and commands 1 / phi_i of its part.
Units:           alpha in m/s^2, beta a number in (0, 1).
Limits:          the partner must run the same filter with the same options and models.
"""

from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from cadenza.core.checks import is_real, is_whole
from cadenza.core.errors import ConfigurationError
from cadenza.safety.contracts import MAX_BOUND, MIN_BOUND

#: Names `make_budget_split` knows.
SUPPORTED_STRATEGIES: Final = ("proportional",)
#: How far the sum of two shares may be from 1: rounding of the divisions.
_SUM_TOLERANCE: Final = 1e-12
#: Largest relative degree a split accepts; no drive is a chain of a hundred integrators.
MAX_DEGREE: Final = 100
#: Relative degree of a position to the command of an agent whose acceleration obeys at once.
_SECOND_ORDER: Final = 2


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
        return _shares(self.name, alpha_i, alpha_j)


@dataclass(frozen=True, slots=True)
class RelativeDegreeAwareBudgetSplit:
    """Shares proportional to what the agents deliver within one control step.

    The position of an ideal double integrator has relative degree 2: the commanded acceleration
    acts during the whole step. One integrator more (degree 3, say a drive with a current loop)
    and the acceleration ramps up within the step, alpha s / dt at time s; its mean, which is what
    changes the speed until the next sample, is alpha / 2. A chain of m integrators rises with
    s^(m-2) and delivers alpha / (m - 1). So the authorities count with these weights:
        beta_i = w_i alpha_i / (w_i alpha_i + w_j alpha_j),   w = 1 / (m - 1).
    Equal degrees give the same shares as the proportional split, but above degree 2 an agent also
    commands m - 1 times its part, because that is what delivers the part. The speeds after the
    step are then those of the row; the distance is not, as a ramp moves the ball later than the
    proof assumes, so a filter with a degree above 2 marks every step ``uncertified``.

    Attributes:
        own_degree: Relative degree m of the agent that asks, >= 2.
        other_degree: Relative degree of its partner, >= 2; the partner's filter names the two in
            the other order.

    Raises:
        ConfigurationError: A degree below 2 or above `MAX_DEGREE`.
    """

    own_degree: int = _SECOND_ORDER
    other_degree: int = _SECOND_ORDER

    def __post_init__(self) -> None:
        if not all(
            is_whole(degree) and _SECOND_ORDER <= degree <= MAX_DEGREE
            for degree in (self.own_degree, self.other_degree)
        ):
            raise ConfigurationError(
                "RelativeDegreeAwareBudgetSplit: expected whole degrees >= 2, the one of a double "
                f"integrator, and <= {MAX_DEGREE}, got {self.own_degree!r} and "
                f"{self.other_degree!r}; velocity-controlled agents need "
                "a control model with an acceleration map."
            )

    @property
    def name(self) -> str:
        """Name under which reports mention it."""
        return "relative_degree_aware"

    @property
    def delivered(self) -> tuple[float, float]:
        """Fractions of their commands that the two agents deliver within a step, 1 / (m - 1)."""
        return 1.0 / (self.own_degree - 1), 1.0 / (self.other_degree - 1)

    def split(self, alpha_i: float, alpha_j: float) -> tuple[float, float]:
        """Return the shares.

        Raises:
            ConfigurationError: An authority is not > 0.
        """
        own, other = self.delivered
        return _shares(self.name, alpha_i, alpha_j, own, other)


def make_budget_split(name: str) -> BudgetSplitStrategy:
    """Return a strategy by name; `RelativeDegreeAwareBudgetSplit` has none, it needs degrees.

    Raises:
        ConfigurationError: Unknown name.
    """
    if name not in SUPPORTED_STRATEGIES:
        raise ConfigurationError(
            f"budget_split: expected one of {SUPPORTED_STRATEGIES}, got {name!r}; agents whose "
            "acceleration ramps up take RelativeDegreeAwareBudgetSplit(own, other) itself."
        )
    return ProportionalBudgetSplit()


def shared_authority(
    strategy: BudgetSplitStrategy, alpha_i: float, alpha_j: float
) -> tuple[float, float]:
    """Return the authority of the pair, m/s^2, and the asking agent's share; see the module.

    With agents that ramp, the share is what the command has to keep: beta_i / phi_i.

    Args:
        strategy: The split both agents use.
        alpha_i: Authority of the agent that asks, m/s^2.
        alpha_j: Authority of its partner, m/s^2.

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
    own, other = delivered_fractions(strategy)
    return min(own * alpha_i / beta_i, other * alpha_j / beta_j), beta_i / own


def delivered_fractions(strategy: BudgetSplitStrategy) -> tuple[float, float]:
    """Return which fractions of their commands the two agents deliver within a step."""
    if isinstance(strategy, RelativeDegreeAwareBudgetSplit):
        return strategy.delivered
    return 1.0, 1.0


def _shares(
    name: str, alpha_i: float, alpha_j: float, own: float = 1.0, other: float = 1.0
) -> tuple[float, float]:
    """Return shares proportional to authorities times delivered fractions."""
    for alpha in (alpha_i, alpha_j):
        if not (is_real(alpha) and 0.0 < alpha <= MAX_BOUND):
            raise ConfigurationError(
                f"budget_split {name!r}: expected authorities > 0 m/s^2 and <= {MAX_BOUND:.0e}, "
                f"got {alpha_i!r} and {alpha_j!r}."
            )
    weight_i, weight_j = own * alpha_i, other * alpha_j
    total = weight_i + weight_j
    return weight_i / total, weight_j / total
