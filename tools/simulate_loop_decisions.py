"""Simulate how often whole runs of the loop decide wrongly, and at what cost, for docs/loop.md.

Outcomes:  an initial state has a difficulty; the reference solves it with probability p(u), the
           candidate with q(u), where u is uniform and p, q are quantile functions of beta
           distributions of equal concentration, whose means are the success rates. Initial states
           are independent, so a look adds multinomial counts of pairs that both, only one or
           none solve. Concentration 0.5 correlates equal policies by 2/3; infinite
           concentration makes all initial states alike and the outcomes independent.
Runs:      each cycle compares a new candidate of the same true success with the reference on fresh
           initial states. A promotion ends a simulated run.
Rules:     of success, levels, bounds and decisions are computed here anew, for all runs at once; a
           test holds them against the plan and `judge`. Scores and first blessings ask `judge`.

Usage:  python tools/simulate_loop_decisions.py            (some minutes)
"""

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from cadenza.core.arrays import FloatArray
from cadenza.core.seeding import derive_substream
from cadenza.evaluation.statistics.paired_outcomes import exact_bounds
from cadenza.loop.config import ThresholdConfig
from cadenza.loop.contracts.records import EpisodeOutcome
from cadenza.loop.orchestrator.decision import (
    FUTILITY,
    RECOMMENDED_MAX_EPISODES,
    SEEN_DELTAS,
    Decision,
    SequentialPlan,
    judge,
)
from cadenza.loop.orchestrator.evidence import Evidence, paired_evidence

#: Concentration of strongly shared difficulty: equal policies correlate by 1 / (1 + 0.5).
SHARED: Final = 0.5
#: Concentration at which initial states are all alike.
ALIKE: Final = math.inf
#: Comparisons of the simulated runs: two cycles, the shipped plan of six, and one extended often.
COMPARISONS: Final = (2, 6, 20)
#: Decisions of a comparison.
PROMOTE, STOP, GO_ON = 1, 0, -1
#: Smaller tails count as 0, as in the package.
_MIN_TAIL: Final = 1e-100
#: Each bound shown fails with this probability.
_TAIL: Final = 0.005
#: Midpoints at which expectations over the difficulty are taken.
_GRID: Final = 2_000

_Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """True state of affairs of simulated runs.

    Attributes:
        reference: True success of the reference, in (0, 1).
        gain: True success of every candidate minus that of the reference.
        concentration: Concentration of the difficulty's distribution, > 0.
    """

    reference: float
    gain: float = 0.0
    concentration: float = ALIKE

    @property
    def pair_probabilities(self) -> tuple[float, float]:
        """Probability that only the candidate, and that only the reference, solves a state."""
        p, q = self.reference, self.reference + self.gain
        both = p * q
        if math.isfinite(self.concentration):
            both = float((self._solves(p) * self._solves(q)).mean())
        return q - both, p - both

    def _solves(self, rate: float) -> FloatArray:
        """Return chances of solving initial states of rising ease, mean ``rate``, shape (G,)."""
        levels = (np.arange(_GRID) + 0.5) / _GRID
        a, b = rate * self.concentration, (1.0 - rate) * self.concentration
        return special.betaincinv(a, b, levels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Characteristics:
    """What became of simulated runs.

    Attributes:
        runs: Simulated runs.
        promoted: Runs that promoted at least one candidate.
        promoted_at_once: Runs whose first comparison promoted.
        episodes_at_once: Mean episodes per policy of the first comparison.
        mean_episodes: The same of all comparisons.
    """

    runs: int
    promoted: int
    promoted_at_once: int
    episodes_at_once: float
    mean_episodes: float


def simulate(
    scenario: Scenario,
    plan: SequentialPlan,
    thresholds: ThresholdConfig,
    *,
    comparisons: int,
    runs: int,
    rng: np.random.Generator,
) -> Characteristics:
    """Return what becomes of ``runs`` simulated runs of so many comparisons."""
    spent = np.zeros(runs)
    made = promoted = at_once = 0
    episodes = episodes_at_once = 0.0
    for number in range(comparisons):
        better, played = compare(scenario, plan, thresholds, spent, rng)
        made += spent.size
        episodes += float(played.sum())
        promoted += int(better.sum())
        if number == 0:
            at_once, episodes_at_once = promoted, float(played.mean())
        spent = (spent + look_levels(plan, spent).sum(axis=1))[~better]
        if not spent.size:
            break
    return Characteristics(
        runs=runs,
        promoted=promoted,
        promoted_at_once=at_once,
        episodes_at_once=episodes_at_once,
        mean_episodes=episodes / made,
    )


def compare(
    scenario: Scenario,
    plan: SequentialPlan,
    thresholds: ThresholdConfig,
    spent: FloatArray,
    rng: np.random.Generator,
) -> tuple[NDArray[np.bool_], FloatArray]:
    """Return which of R comparisons promote, and the episodes that each plays, shape (R,)."""
    only_one, only_other = scenario.pair_probabilities
    shares = [only_one, only_other, 1.0 - only_one - only_other]
    sizes, levels = plan.sizes, look_levels(plan, spent)
    counts = np.zeros((spent.size, 2), dtype=np.int64)
    better = np.zeros(spent.size, dtype=np.bool_)
    played, open_ = np.zeros(spent.size), np.arange(spent.size)
    for look, size in enumerate(sizes):
        new = size - (sizes[look - 1] if look else 0)
        counts[open_] += rng.multinomial(new, shares, size=open_.size)[:, :2]
        played[open_] = size
        wins, losses = counts[open_].T
        told = decisions(plan, thresholds, look, wins, losses, levels[open_, look])
        better[open_[told == PROMOTE]] = True
        open_ = open_[told == GO_ON]
    return better, played


def look_levels(plan: SequentialPlan, spent: FloatArray) -> FloatArray:
    """Return the levels of all looks after so much was spent, shape (R, L)."""
    share = np.maximum(plan.alpha - spent, 0.0)[:, None] / 2.0
    fractions = np.array(plan.sizes) / plan.max_episodes
    spending = 2.0 * special.ndtr(special.ndtri(share / 2.0) / np.sqrt(fractions))
    return np.diff(np.minimum(share, spending), axis=1, prepend=0.0)


def decisions(
    plan: SequentialPlan,
    thresholds: ThresholdConfig,
    look: int,
    wins: _Counts,
    losses: _Counts,
    level: FloatArray,
) -> NDArray[np.int64]:
    """Return `PROMOTE`, `STOP` or `GO_ON` for the counts of R comparisons at one look."""
    size, last = plan.sizes[look], len(plan.sizes) - 1
    gain, loss = thresholds.promote_delta, thresholds.regression_delta
    difference = (wins - losses) / size
    lower, upper = -_upper(losses, wins, size, level), _upper(wins, losses, size, level)
    likely = _upper(wins, losses, size, np.full(wins.shape, FUTILITY / max(1, last)))
    found = np.where((lower > 0.0) & (difference >= gain), PROMOTE, STOP)
    worse = (upper < 0.0) & (difference <= -loss)
    possible = (likely >= SEEN_DELTAS * gain) & ((upper >= gain) | (lower <= -loss))
    goes_on = (found == STOP) & ~worse & possible & (look < last)
    return np.where(goes_on, GO_ON, found)


def _upper(wins: _Counts, losses: _Counts, size: int, tail: FloatArray) -> FloatArray:
    """Return upper bounds of the difference that fail with probability ``tail``, shape (R,)."""
    differing = wins + losses
    known = tail >= _MIN_TAIL
    least, most = _exact(differing, np.full(wins.shape, size), tail)
    _, high = _exact(wins, differing, tail)
    slope = 2.0 * np.where(known & (differing > 0), high, 1.0) - 1.0
    return slope * np.where(slope > 0.0, np.where(known, most, 1.0), np.where(known, least, 0.0))


def _exact(successes: _Counts, trials: _Counts, tail: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return Clopper-Pearson bounds, shape (R,) each."""
    failures = trials - successes
    low = special.betaincinv(np.maximum(successes, 1), failures + 1, tail)
    high = 1.0 - special.betaincinv(np.maximum(failures, 1), successes + 1, tail)
    return np.where(successes > 0, low, 0.0), np.where(failures > 0, high, 1.0)


# First blessings: exact


def first_blessing(
    rate: float, plan: SequentialPlan, thresholds: ThresholdConfig, *, cycle: int = 0
) -> tuple[float, float]:
    """Return how likely a first candidate is blessed in a cycle, and the mean episodes it plays.

    Successes of the looks are binomial; the distribution of those that `judge` leaves undecided is
    carried from look to look.
    """
    open_: FloatArray = np.ones(1)  # probability of s successes, undecided so far, shape (n + 1,)
    blessed = episodes = 0.0
    before = 0
    for look, size in enumerate(plan.sizes):
        episodes += (size - before) * float(open_.sum())
        new = size - before
        shares = [math.comb(new, k) * rate**k * (1.0 - rate) ** (new - k) for k in range(new + 1)]
        open_ = np.convolve(open_, shares)
        before = size
        for successes in np.flatnonzero(open_):
            decision = _first_decision(int(successes), look, plan, thresholds, cycle)
            if decision is Decision.PROMOTE:
                blessed += float(open_[successes])
            if decision is not None:
                open_[successes] = 0.0
    return blessed, episodes


def _first_decision(
    successes: int, look: int, plan: SequentialPlan, thresholds: ThresholdConfig, cycle: int
) -> Decision | None:
    size = plan.sizes[look]
    lower, upper = exact_bounds(successes, size, tail=plan.bar_alphas(cycle)[look])
    evidence = Evidence(
        candidate=successes / size,
        n_pairs=size,
        look=look,
        candidate_lower=lower,
        candidate_upper=upper,
        method="simulated",
    )
    left = plan.looks_left(look)
    return judge(evidence, (), thresholds, warm_up=False, looks_left=left).decision


# Scores

#: Draws scores of candidate and reference on N initial states, each of shape (N,).
Draw = Callable[[np.random.Generator, int], tuple[FloatArray, FloatArray]]

#: Pairs of policies of equal mean score.
LEVEL: Final[Mapping[str, Draw]] = {
    "equal policies, beta(0.5, 1.5)": lambda r, n: (r.beta(0.5, 1.5, n), r.beta(0.5, 1.5, n)),
    "normal, deviations 1 against 3": lambda r, n: (r.normal(0.0, 1.0, n), r.normal(0.0, 3.0, n)),
    "always 0.25 against beta(0.5, 1.5)": lambda r, n: (np.full(n, 0.25), r.beta(0.5, 1.5, n)),
    "1, but 0 in a tenth, against always 0.9": lambda r, n: (
        (r.uniform(size=n) >= 0.1).astype(np.float64),
        np.full(n, 0.9),
    ),
    "always 1 against exponential": lambda r, n: (np.full(n, 1.0), r.exponential(1.0, n)),
    "always 1.65 against lognormal, sigma 1": lambda r, n: (
        np.full(n, np.exp(0.5)),
        r.lognormal(0.0, 1.0, n),
    ),
}
#: Candidates that are better by half a standard deviation of the difference.
BETTER: Final[Mapping[str, Draw]] = {
    "normal, better by half a deviation": lambda r, n: (
        r.normal(2.0**-0.5, 1.0, n),
        r.normal(0.0, 1.0, n),
    )
}
#: Thresholds with which every difference counts that is shown.
ANY_DIFFERENCE: Final = ThresholdConfig(
    promote_delta=0.0, regression_delta=0.0, plateau_epsilon=0.0
)


def simulate_scores(
    draw: Draw, plan: SequentialPlan, *, comparisons: int, runs: int, rng: np.random.Generator
) -> int:
    """Return how many of ``runs`` runs promote, with deltas of 0, so that bounds alone decide.

    Evidence is made only where the sum of the differences exceeds the root of the sum of their
    squares. Elsewhere more than one in twenty sign flips reaches that sum, so that no level below
    0.05 promotes; such a look counts as undecided: that can only add promotions.
    """
    return sum(_promotes(draw, plan, comparisons, rng) for _ in range(runs))


def _promotes(draw: Draw, plan: SequentialPlan, comparisons: int, rng: np.random.Generator) -> bool:
    spent = 0.0
    for _ in range(comparisons):
        candidate, reference = draw(rng, plan.sizes[-1])
        seeds: list[int] = rng.integers(2**31, size=len(plan.sizes)).tolist()
        alphas = plan.alphas(spent)
        spent += sum(alphas)
        for look, size in enumerate(plan.sizes):
            differences: FloatArray = candidate[:size] - reference[:size]
            if float(differences.sum()) <= float((differences**2).sum()) ** 0.5:
                continue
            evidence = paired_evidence(
                _episodes(candidate[:size]),
                _episodes(reference[:size]),
                metric="score",
                alpha=alphas[look],
                look=look,
                seed=seeds[look],
            )
            left = plan.looks_left(look)
            verdict = judge(evidence, (), ANY_DIFFERENCE, warm_up=False, looks_left=left)
            if verdict.decision is Decision.PROMOTE:
                return True
            if verdict.decision is not None:
                break
    return False


def _episodes(scores: FloatArray) -> list[EpisodeOutcome]:
    return [
        EpisodeOutcome(task="t", seed=seed, success=False, score=float(score))
        for seed, score in enumerate(scores)
    ]


# Tables


def plan_of(max_episodes: int, *, first: int = 50) -> SequentialPlan:
    """Return the plan of a run at the default level; the shipped one looks first after 50."""
    return SequentialPlan(
        first=min(first, max_episodes),
        growth=2.0,
        max_episodes=max_episodes,
        alpha=ThresholdConfig().alpha,
    )


@dataclass(frozen=True, slots=True)
class Tables:
    """Makes tables with one stream per scenario and plan, so that no table shifts another."""

    runs: int
    score_runs: int
    seed: int
    max_episodes: int

    def all(self) -> str:
        """Return all tables as Markdown."""
        parts = (
            self.equal(),
            self.gains(),
            self.budgets(),
            self.needed(),
            self.first(),
            self.scores(),
        )
        return "\n\n".join("\n".join(_table(header, rows)) for header, rows in parts)

    def equal(self) -> tuple[list[str], list[list[str]]]:
        """Return the share of runs that promote although all policies are equal."""
        header = ["true success", "difficulty"]
        header += [f"false blessing, {count} comparisons" for count in COMPARISONS]
        rows: list[list[str]] = []
        for scenario, name in _scenarios((0.1, 0.3, 0.5, 0.8, 0.95), 0.0):
            cells = [self._run(scenario, self.max_episodes, count) for count in COMPARISONS]
            share = cells[-1].mean_episodes / self.max_episodes
            told = [_at_most(cell.promoted, cell.runs) for cell in cells]
            rows.append([f"{scenario.reference:.2f}", name, *told, f"{100.0 * share:.0f} %"])
        return [*header, "episodes, share of the most"], rows

    def gains(self) -> tuple[list[str], list[list[str]]]:
        """Return the share of first comparisons and of runs that promote a true gain."""
        header = ["true success", "difficulty", "promoted at once", "mean episodes"]
        rows: list[list[str]] = []
        for scenario, name in _scenarios((0.3, 0.45, 0.5, 0.8), 0.1):
            found = self._run(scenario, self.max_episodes, 2)
            rows.append(
                [
                    f"{scenario.reference:.2f} to {scenario.reference + scenario.gain:.2f}",
                    name,
                    _at_least(found.promoted_at_once, found.runs),
                    f"{found.episodes_at_once:.0f}",
                    _at_least(found.promoted, found.runs),
                ]
            )
        return [*header, "in two comparisons"], rows

    def budgets(self) -> tuple[list[str], list[list[str]]]:
        """Return power and cost of first comparisons by ``max_episodes``, where it is hardest."""
        header = ["max_episodes", "promoted at once, 0.45 to 0.55", "episodes of equal policies"]
        rows: list[list[str]] = []
        for most in sorted({100, 200, 300, 400, self.max_episodes, 600, 800}):
            better = self._run(Scenario(reference=0.45, gain=0.1), most, 1)
            equal = self._run(Scenario(reference=0.5), most, 1)
            power = _at_least(better.promoted_at_once, better.runs)
            rows.append([str(most), power, f"{equal.mean_episodes:.0f}"])
        return header, rows

    def needed(self) -> tuple[list[str], list[list[str]]]:
        """Return what the dry run says is needed, and what it is worth."""
        rows: list[list[str]] = []
        for gain in (0.1, 0.15, 0.2, 0.3):
            count = plan_of(self.max_episodes).episodes_needed(gain)
            found = self._run(Scenario(reference=0.5 - gain / 2.0, gain=gain), count, 1)
            power = _at_least(found.promoted_at_once, found.runs)
            rows.append([f"+{100.0 * gain:.0f} points", str(count), power])
        return ["gain", "episodes needed", "promoted at once"], rows

    def first(self) -> tuple[list[str], list[list[str]]]:
        """Return how soon first candidates are blessed; exact."""
        rows: list[list[str]] = []
        for rate in (0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5):
            row = [f"{rate:.2f}"]
            for cycle in (0, 5):
                plan = plan_of(self.max_episodes, first=10)
                found = first_blessing(rate, plan, ThresholdConfig(), cycle=cycle)
                row += [f"{100.0 * found[0]:.1f} %", f"{found[1]:.0f}"]
            rows.append(row)
        names = ["blessed, cycle 0", "mean episodes", "blessed, cycle 5", "mean episodes"]
        return ["first candidate", *names], rows

    def scores(self) -> tuple[list[str], list[list[str]]]:
        """Return the share of runs on scores that promote, without and with a true gain."""
        budgets = (10, 40, 160)
        rows: list[list[str]] = []
        for draws, cell in ((LEVEL, _at_most), (BETTER, _at_least)):
            for name, draw in draws.items():
                row = [name]
                for most in budgets:
                    rng = self._stream(f"scores.{name}.{most}")
                    plan = plan_of(most, first=10)
                    count = simulate_scores(
                        draw, plan, comparisons=2, runs=self.score_runs, rng=rng
                    )
                    row.append(cell(count, self.score_runs))
                rows.append(row)
        return ["scores of equal mean, and better", *(f"{b} episodes" for b in budgets)], rows

    def _run(self, scenario: Scenario, most: int, comparisons: int) -> Characteristics:
        rng = self._stream(f"{scenario}.{most}.{comparisons}")
        plan, limits = plan_of(most), ThresholdConfig()
        return simulate(scenario, plan, limits, comparisons=comparisons, runs=self.runs, rng=rng)

    def _stream(self, name: str) -> np.random.Generator:
        return derive_substream(f"loop.decisions.{name}", root_seed=self.seed).default_rng()


def _scenarios(rates: Sequence[float], gain: float) -> Iterable[tuple[Scenario, str]]:
    for rate in rates:
        for name, concentration in (("independent", ALIKE), ("shared", SHARED)):
            yield Scenario(reference=rate, gain=gain, concentration=concentration), name


def _at_most(count: int, runs: int) -> str:
    upper = exact_bounds(count, runs, tail=_TAIL)[1]
    return f"{100.0 * count / runs:.1f} % (<= {100.0 * upper:.1f} %)"


def _at_least(count: int, runs: int) -> str:
    lower = exact_bounds(count, runs, tail=_TAIL)[0]
    return f"{100.0 * count / runs:.1f} % (>= {100.0 * lower:.1f} %)"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[str]:
    for row in (header, ["---"] * len(header), *rows):
        yield f"| {' | '.join(row)} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the tables to standard output."""
    parser = argparse.ArgumentParser(description="How often runs of the loop decide wrongly.")
    parser.add_argument("--runs", type=int, default=20_000, help="simulated runs per cell")
    parser.add_argument("--score-runs", type=int, default=1_000, help="the same on scores")
    parser.add_argument("--seed", type=int, default=0, help="root of the draws")
    parser.add_argument("--max-episodes", type=int, default=RECOMMENDED_MAX_EPISODES)
    given = parser.parse_args(arguments)
    tables = Tables(given.runs, given.score_runs, given.seed, given.max_episodes)
    sys.stdout.write(tables.all() + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
