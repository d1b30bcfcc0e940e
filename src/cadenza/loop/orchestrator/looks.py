"""The rule of comparisons of success that earlier versions began: they end as they began.

At each look exact bounds at a share of the level of the comparison, which is half of what is left
of the run's error budget. Later comparisons follow `cadenza.loop.orchestrator.comparison`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from cadenza.core.errors import InputError
from cadenza.core.proportions import normal_level, normal_quantile
from cadenza.evaluation.statistics.paired_outcomes import exact_bounds, paired_outcome_interval
from cadenza.loop.contracts.records import EpisodeOutcome
from cadenza.loop.orchestrator.evidence import Evidence, paired_rounds

#: Probability, over all looks, of giving up a candidate that is better by `SEEN_DELTAS` deltas.
FUTILITY: Final = 0.2


def look_sizes(first: int, growth: float, most: int) -> tuple[int, ...]:
    """Return the episodes after which candidates may be given up, all so far together, to ``most``.

    Raises:
        InputError: ``first`` is not in 1..``most``, or ``growth`` not finite and above 1.
    """
    if not 1 <= first <= most:
        raise InputError(f"look_sizes: expected 1 <= first <= most, got {first} and {most}.")
    if not 1.0 < growth < math.inf:
        raise InputError(f"look_sizes.growth: expected > 1, got {growth}.")
    sizes: list[int] = []
    size = first
    while size * math.sqrt(growth) < most:
        sizes.append(size)
        size = max(size + 1, math.ceil(min(size * growth, most)))
    if not sizes:
        sizes = [first]
    return (*sizes, most) if sizes[-1] < most else tuple(sizes)


def futility_tail(sizes: Sequence[int]) -> float:
    """Return the probability that each look but the last may add of giving up what is worth it."""
    return FUTILITY / max(1, len(sizes) - 1)


@dataclass(frozen=True, slots=True)
class EarlierPlan:
    """Looks of a comparison after ``sizes`` episodes per policy, in a run of level ``alpha``."""

    sizes: tuple[int, ...]
    alpha: float

    def alphas(self, spent: float) -> tuple[float, ...]:
        """Return the one-sided probability of a wrong promotion that each look may add."""
        share = max(0.0, self.alpha - spent) / 2.0
        used = [_late_spending(size / self.sizes[-1], share) for size in self.sizes]
        return tuple(now - before for now, before in zip(used, [0.0, *used], strict=False))

    def bar_alpha(self, cycle: int) -> float:
        """Return the probability that a look may add of a first blessing below the bar."""
        return self.alpha / ((cycle + 1) * (cycle + 2)) / len(self.sizes)


def _late_spending(fraction: float, alpha: float) -> float:
    """Return the part of ``alpha`` spent when ``fraction`` of all episodes, in (0, 1], is in."""
    bound = -normal_quantile(alpha / 2.0) / math.sqrt(fraction)
    return min(alpha, 2.0 * normal_level(-bound))


def look_evidence(
    plan: EarlierPlan,
    candidate: Sequence[EpisodeOutcome],
    reference: Sequence[EpisodeOutcome] | None,
    *,
    look: int,
    cycle: int,
    spent: float,
    blessed: bool,
) -> Evidence:
    """Return what all episodes up to a look show; without a reference, of the candidate alone.

    Raises:
        InputError: The two sides do not pair up.
    """
    successes = [outcome.success for outcome in candidate]
    bar = plan.bar_alpha(cycle)
    own = exact_bounds(sum(successes), len(successes), tail=bar)
    found = Evidence(
        candidate=fmean(successes),
        n_pairs=len(successes),
        look=look,
        most=plan.sizes[-1] * (len(successes) // plan.sizes[look]),
        candidate_lower=own[0],
        candidate_upper=own[1],
        candidate_confidence=1.0 - 2.0 * bar,
        method="success/clopper-pearson/v1",
    )
    if reference is None:
        return found
    pairs = [
        (one.success, other.success)
        for left, right in zip(*paired_rounds(candidate, reference), strict=True)
        for one, other in zip(left, right, strict=True)
    ]
    wins, losses = sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)
    alphas = plan.alphas(spent)
    lower, upper = paired_outcome_interval(wins, losses, len(pairs), tail=alphas[look])
    update: dict[str, object] = {
        "baseline": fmean(b for _, b in pairs),
        "difference": (wins - losses) / len(pairs),
        "lower": lower,
        "upper": upper,
        "wins": wins,
        "losses": losses,
        "confidence": 1.0 - 2.0 * alphas[look],
        "level": sum(alphas),
        "spent": spent + sum(alphas),
        "method": "success/paired/exact-mcnemar/v1",
    }
    if blessed:
        tail = futility_tail(plan.sizes)
        likely = paired_outcome_interval(wins, losses, len(pairs), tail=tail)
        unset = {"candidate_lower": None, "candidate_upper": None, "candidate_confidence": None}
        update |= {"likely_lower": likely[0], "likely_upper": likely[1], **unset}
    return found.model_copy(update=update)
