"""How often whole runs promote a policy whose score is no better, by simulation.

Scores:  drawn per initial state for candidate and reference; `LEVEL` has pairs of equal mean, whose
         difference may be skewed, `BETTER` a candidate that is better.
Runs:    as in `cadenza.loop.orchestrator.operating_characteristics`, through `paired_evidence` and
         `judge`, with deltas of 0, so that the bounds alone decide.
Speed:   evidence is made only where the sum of the differences exceeds the root of the sum of
         their squares. Elsewhere more than one in twenty sign flips reaches that sum, so that no
         level below 0.05 promotes; such a look counts as undecided: that can only add promotions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError
from cadenza.loop.config import ThresholdConfig
from cadenza.loop.contracts.records import EpisodeOutcome
from cadenza.loop.orchestrator.decision import Decision, judge
from cadenza.loop.orchestrator.evidence import paired_evidence
from cadenza.loop.orchestrator.sequential_plan import SequentialPlan

#: Draws scores of candidate and reference on N initial states, each of shape (N,).
Draw: TypeAlias = Callable[[np.random.Generator, int], tuple[FloatArray, FloatArray]]

#: Budgets and number of cycles of the simulated runs.
BUDGETS: Final = (10, 40, 160)
CYCLES: Final = 3
#: Thresholds with which every difference counts that is shown.
ANY_DIFFERENCE: Final = ThresholdConfig(
    promote_delta=0.0, regression_delta=0.0, plateau_epsilon=0.0
)


def _equal(rng: np.random.Generator, n: int) -> tuple[FloatArray, FloatArray]:
    return rng.beta(0.5, 1.5, n), rng.beta(0.5, 1.5, n)


def _spread(rng: np.random.Generator, n: int) -> tuple[FloatArray, FloatArray]:
    return rng.normal(0.0, 1.0, n), rng.normal(0.0, 3.0, n)


def _steady_beta(rng: np.random.Generator, n: int) -> tuple[FloatArray, FloatArray]:
    return np.full(n, 0.25), rng.beta(0.5, 1.5, n)


def _steady_exponential(rng: np.random.Generator, n: int) -> tuple[FloatArray, FloatArray]:
    return np.full(n, 1.0), rng.exponential(1.0, n)


def _rare_failure(rng: np.random.Generator, n: int) -> tuple[FloatArray, FloatArray]:
    return (rng.uniform(size=n) >= 0.1).astype(np.float64), np.full(n, 0.9)


def _steady_lognormal(rng: np.random.Generator, n: int) -> tuple[FloatArray, FloatArray]:
    return np.full(n, np.exp(0.5)), rng.lognormal(0.0, 1.0, n)


def _half_a_deviation(rng: np.random.Generator, n: int) -> tuple[FloatArray, FloatArray]:
    return rng.normal(2.0**-0.5, 1.0, n), rng.normal(0.0, 1.0, n)


#: Pairs of policies of equal mean score.
LEVEL: Final[Mapping[str, Draw]] = {
    "equal policies, beta(0.5, 1.5)": _equal,
    "normal, deviations 1 against 3": _spread,
    "always 0.25 against beta(0.5, 1.5)": _steady_beta,
    "1, but 0 in a tenth, against always 0.9": _rare_failure,
    "always 1 against exponential": _steady_exponential,
    "always 1.65 against lognormal, sigma 1": _steady_lognormal,
}
#: Candidates that are better by half a standard deviation of the difference.
BETTER: Final[Mapping[str, Draw]] = {"normal, better by half a deviation": _half_a_deviation}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreCharacteristics:
    """What became of simulated runs.

    Attributes:
        runs: Simulated runs.
        promoted: Runs that promoted at least one candidate after the first.
    """

    runs: int
    promoted: int


def simulate_scores(
    draw: Draw, plan: SequentialPlan, *, runs: int, rng: np.random.Generator
) -> ScoreCharacteristics:
    """Return what becomes of ``runs`` simulated runs of ``plan.comparisons`` comparisons.

    Raises:
        InputError: ``runs`` is below 1.
    """
    if runs < 1:
        raise InputError(f"simulate_scores.runs: expected >= 1, got {runs}.")
    promoted = sum(
        any(_promotes(draw, plan, rng) for _ in range(plan.comparisons)) for _ in range(runs)
    )
    return ScoreCharacteristics(runs=runs, promoted=promoted)


def _promotes(draw: Draw, plan: SequentialPlan, rng: np.random.Generator) -> bool:
    """Return whether one comparison ends in a promotion."""
    candidate, reference = draw(rng, plan.sizes[-1])
    seeds: list[int] = rng.integers(2**31, size=len(plan.sizes)).tolist()
    for look, (size, alpha) in enumerate(zip(plan.sizes, plan.alphas, strict=True)):
        differences: FloatArray = candidate[:size] - reference[:size]
        if float(differences.sum()) <= float((differences**2).sum()) ** 0.5:
            continue
        evidence = paired_evidence(
            _episodes(candidate[:size]),
            _episodes(reference[:size]),
            metric="score",
            alpha=alpha,
            look=look,
            seed=seeds[look],
        )
        left = plan.looks_left(look)
        verdict = judge(evidence, (), ANY_DIFFERENCE, warm_up=False, looks_left=left)
        if verdict.decision is not None:
            return verdict.decision is Decision.PROMOTE
    return False


def _episodes(scores: FloatArray) -> list[EpisodeOutcome]:
    return [
        EpisodeOutcome(task="t", seed=seed, success=False, score=float(score))
        for seed, score in enumerate(scores)
    ]
