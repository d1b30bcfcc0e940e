"""The record of filtered steps: counts, margins, reasons. Everything that reports steps reads it.

Figures:   one stretch of steps, or one stretch per lane of a batch: every field is a number, or an
           array (N,) then. Stretches that follow each other are added: counts and sums add up, of
           names that begin with ``min_`` the smaller stays, of ``max_`` and ``largest_`` the
           larger, moments merge.
Units:     m, m/s, m/s^2; changes of an action in its own unit.
Source:    B. P. Welford, Technometrics 4(3), 1962; merged as in Chan, Golub and LeVeque, "Updating
           formulae and a pairwise algorithm", 1979: a variance of 1e-12 beside a mean of 1 is still
           resolved.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Final, NamedTuple, Self, TypeAlias

import numpy as np

from cadenza.core.arrays import FloatArray

#: A count or a figure of one stretch, or those of lanes, (N,).
Figure: TypeAlias = Any
#: Overlap that is rounding, m: actions rounded to float32 move a robot by less in one step.
OVERLAP_TOLERANCE_M: Final = 1e-6


class RunningMoments:
    """Count, mean, population variance and extrema of a stream of numbers."""

    __slots__ = ("count", "maximum", "mean", "minimum", "squares")

    def __init__(self) -> None:
        self.count: int = 0
        self.mean: float = 0.0
        self.squares: float = 0.0
        self.maximum: float = float("-inf")
        self.minimum: float = float("inf")

    def add(self, value: float) -> None:
        """Take in one number."""
        self.count += 1
        delta = value - self.mean
        self.mean += delta / self.count
        self.squares += delta * (value - self.mean)
        if value > self.maximum:
            self.maximum = value
        if value < self.minimum:
            self.minimum = value

    def add_many(self, values: list[float] | FloatArray) -> None:
        """Take in every number of a list, one by one, or of an array of any shape."""
        if isinstance(values, list):
            for value in values:
                self.add(value)
        elif values.size:
            batch = RunningMoments()
            batch.count = values.size
            batch.mean = float(values.mean())
            batch.squares = float(((values - batch.mean) ** 2).sum())
            batch.maximum, batch.minimum = float(values.max()), float(values.min())
            self.merge(batch)

    def merge(self, other: "RunningMoments") -> None:
        """Take in everything ``other`` took in."""
        if other.count == 0:
            return
        count = self.count + other.count
        delta = other.mean - self.mean
        self.mean += delta * other.count / count
        self.squares += other.squares + delta * delta * self.count * other.count / count
        self.count = count
        self.maximum = max(self.maximum, other.maximum)
        self.minimum = min(self.minimum, other.minimum)

    @property
    def variance(self) -> float:
        """Population variance; 0 without numbers."""
        return self.squares / self.count if self.count else 0.0

    @property
    def high(self) -> float:
        """Largest number; 0 without numbers."""
        return self.maximum if self.count else 0.0

    @property
    def low(self) -> float:
        """Smallest number; 0 without numbers."""
        return self.minimum if self.count else 0.0

    def state_dict(self) -> dict[str, float]:
        """Return the state as JSON numbers."""
        state = {name: getattr(self, name) for name in ("count", "mean", "squares")}
        return {**state, "maximum": self.high, "minimum": self.low}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Continue from `state_dict`."""
        for name in self.__slots__:
            setattr(self, name, state[name])
        if not self.count:
            self.maximum, self.minimum = float("-inf"), float("inf")


class Figures:
    """Base of dataclasses of figures; every field has a default, that of no steps."""

    __slots__ = ()

    @classmethod
    def of_lanes(cls, lanes: int) -> Self:
        """Return the figures of ``lanes`` stretches that begin side by side."""
        figures = cls()
        for name, blank in _blanks(figures):
            own = [blank() for _ in range(lanes)] if callable(blank) else np.full(lanes, blank)
            setattr(figures, name, own)
        return figures

    def begin(self, lane: int) -> None:
        """Forget the stretch of one lane."""
        for name, blank in _blanks(self):
            getattr(self, name)[lane] = blank() if callable(blank) else blank

    def lane(self, lane: int) -> Self:
        """Return the figures of one lane."""
        figures = type(self)()
        for name, _ in _blanks(self):
            value = getattr(self, name)[lane]
            setattr(figures, name, value.item() if isinstance(value, np.generic) else value)
        return figures

    def add(self, later: Self) -> None:
        """Take in the figures of the steps that followed."""
        for name, _ in _blanks(self):
            mine, theirs = getattr(self, name), getattr(later, name)
            if isinstance(mine, RunningMoments):
                mine.merge(theirs)
            elif name.startswith("min_"):
                setattr(self, name, min(mine, theirs))
            elif name.startswith(("max_", "largest_")):
                setattr(self, name, max(mine, theirs))
            else:
                setattr(self, name, mine + theirs)


def _blanks(figures: Any) -> list[tuple[str, Any]]:
    """Return the name of every field and its value without steps, or what makes it."""
    return [
        (each.name, each.default if each.default is not MISSING else each.default_factory)
        for each in fields(figures)
    ]


class Decision(NamedTuple):
    """What a filter decided in one step, or in one step of every lane: `StepRecord` counts it."""

    braked: Figure  # Whether the emergency controller's action is executed
    infeasible: Figure  # Whether no action met every row
    uncertified: Figure  # Whether the guarantee does not cover the step
    violation: Figure  # Largest max(0, -h) of any pair before the action, m/s
    margin: Figure  # Smallest free distance less the safety margin, at most 0, m
    slack: Figure  # Most by which the action misses a row, m/s^2
    lambda_mean: Figure  # Mean of lambda over pairs, m/s^2
    partner_breached: Figure  # Whether a partner's motion disproved its declaration
    ego_breached: Figure  # Whether the ego's did
    reasons: Mapping[int, tuple[str, ...]]  # Reasons for braking, by lane; lane 0 for one step
    static_margin: Figure = math.inf  # Smallest gap to an obstacle less what is kept, m
    static_uncertified: Figure = False  # Whether the guarantee about obstacles does not cover it


@dataclass(slots=True, kw_only=True)
class StepRecord(Figures):
    """What a filter did in some steps: `observe` takes in decisions.

    What disturbs the assumptions of the guarantee is counted, too: overlaps (A1: the barrier's
    gradient is bounded), partners beyond their declared acceleration (A2), steps in which no
    action meets every row (A3), and an ego off its control model (A5).
    """

    steps: Figure = 0
    infeasible: Figure = 0  # Steps in which no action met every row
    uncertified: Figure = 0  # Steps that the guarantee does not cover
    braked: Figure = 0  # Steps in which braking replaced the action
    changed: Figure = 0  # Steps in which the executed action differs from the nominal one
    violating: Figure = 0  # Steps that began outside the safe set
    overlapping: Figure = 0  # Steps that began with balls, margins included, overlapping
    partner_breaches: Figure = 0  # Steps in which a partner was seen beyond its declaration
    ego_breaches: Figure = 0  # Steps in which the ego was seen off its control model
    change_sum: Figure = 0.0  # Sum of the distances between executed and nominal action
    max_change: Figure = 0.0  # Largest of them
    max_violation: Figure = 0.0  # Largest max(0, -h), m/s
    max_slack: Figure = 0.0  # Most by which an executed action missed a row, m/s^2
    lambda_mean: Figure = 0.0  # Mean over steps of the mean over pairs, m/s^2
    lambda_squares: Figure = 0.0  # Sum over steps of its squared distances from that mean
    static_uncertified: Figure = 0  # Steps that the guarantee about obstacles does not cover
    min_static_margin: Figure = math.inf  # Smallest gap to an obstacle less what is kept, m
    #: Dangerous pairs in steps that braked, by reason
    reasons: Figure = field(default_factory=Counter[str])

    @property
    def change_mean(self) -> float:
        """Mean size of the changes; 0 without any."""
        return self.change_sum / self.changed if self.changed else 0.0

    @property
    def lambda_var(self) -> float:
        """Variance over steps of lambda's mean over pairs; 0 without steps."""
        return self.lambda_squares / self.steps if self.steps else 0.0

    def observe(self, decision: Decision, change: Figure) -> None:
        """Take in one step: a decision, and by how much it changed the action (0: it did not)."""
        single = isinstance(self.steps, int)
        larger: Any = max if single else np.maximum
        smaller: Any = min if single else np.minimum
        self.steps += 1
        self.braked += decision.braked
        self.infeasible += decision.infeasible
        self.uncertified += decision.uncertified
        self.changed += change > 0.0
        self.change_sum += change
        self.max_change = larger(self.max_change, change)
        self.violating += decision.violation > 0.0
        self.max_violation = larger(self.max_violation, decision.violation)
        self.overlapping += decision.margin < -OVERLAP_TOLERANCE_M
        self.max_slack = larger(self.max_slack, decision.slack)
        self.partner_breaches += decision.partner_breached
        self.ego_breaches += decision.ego_breached
        self.static_uncertified += decision.static_uncertified
        self.min_static_margin = smaller(self.min_static_margin, decision.static_margin)
        delta = decision.lambda_mean - self.lambda_mean
        self.lambda_mean += delta / self.steps
        self.lambda_squares += delta * (decision.lambda_mean - self.lambda_mean)
        for lane, reasons in decision.reasons.items():
            (self.reasons if single else self.reasons[lane]).update(reasons)
