"""How often whole runs decide wrongly, by simulating them with the plan and `judge` themselves.

Outcomes:  an initial state has a difficulty; the reference solves it with probability p(u), the
           candidate with q(u), where u is uniform and p, q are quantile functions of beta
           distributions of equal concentration, whose means are the success rates. Initial states
           are independent, so a look adds multinomial counts of pairs that both, only one or
           none solve. Concentration 0.5 correlates equal policies by 2/3; infinite
           concentration makes all initial states alike and the outcomes independent.
Runs:      cycle 0 sets the reference; each later cycle compares a new candidate of the same true
           success on fresh initial states. A promotion ends a simulated run.
Speed:     `judge` is asked once per distinct (look, wins, losses), not once per run.
Others:    `cadenza.loop.orchestrator.first_blessing` and `.score_characteristics` make the rest.
Command:   python -m cadenza.loop.orchestrator.operating_characteristics
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError
from cadenza.core.quantiles import beta_quantile
from cadenza.core.seeding import derive_substream
from cadenza.evaluation.statistics.paired_outcomes import exact_bounds, paired_outcome_interval
from cadenza.loop.config import ThresholdConfig
from cadenza.loop.orchestrator import score_characteristics as scores
from cadenza.loop.orchestrator.decision import Decision, judge
from cadenza.loop.orchestrator.evidence import Evidence
from cadenza.loop.orchestrator.first_blessing import FIRST_RATES, first_blessing
from cadenza.loop.orchestrator.sequential_plan import (
    RECOMMENDED_MAX_EPISODES,
    SequentialPlan,
    Spending,
)

#: Concentration of strongly shared difficulty: equal policies correlate by 1 / (1 + 0.5).
SHARED: Final = 0.5
#: Concentration at which initial states are all alike.
ALIKE: Final = float("inf")

#: Reference success at which equal policies are simulated.
RATES: Final = (0.1, 0.3, 0.5, 0.8, 0.95)
#: Reference success at which a true gain of `GAIN` takes most episodes: outcomes vary most if the
#: two rates lie around 0.5.
HARDEST: Final = 0.45
#: Reference success at which a true gain of `GAIN` is simulated.
GAINS: Final = (0.3, HARDEST, 0.5, 0.8)
#: True gain of the power tables.
GAIN: Final = 0.1
#: Episodes of the first look, and factor from look to look, of the simulated runs.
FIRST_LOOK: Final = 10
GROWTH: Final = 2.0
#: Cycles of the simulated runs.
CYCLES: Final = (3, 10)
#: Budgets whose power is shown.
BUDGETS: Final = (10, 100, 200, 300, 400, RECOMMENDED_MAX_EPISODES, 500, 600, 700)

_SHARINGS: Final = (("independent", ALIKE), ("shared", SHARED))
#: Each bound shown fails with this probability.
_TAIL: Final = 0.005

#: Midpoints at which expectations over the difficulty are taken.
_GRID: Final = 2_000

_Counts: TypeAlias = NDArray[np.int64]


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

    def __post_init__(self) -> None:
        if not (0.0 < self.reference < 1.0 and 0.0 < self.reference + self.gain < 1.0):
            raise InputError(
                f"Scenario: expected success rates in (0, 1), got {self.reference} and "
                f"{self.reference + self.gain}."
            )
        if not self.concentration > 0.0:
            raise InputError(f"Scenario.concentration: expected > 0, got {self.concentration}.")

    @property
    def pair_probabilities(self) -> tuple[float, float]:
        """Probability that only the candidate, and that only the reference, solves a state."""
        p, q = self.reference, self.reference + self.gain
        both = p * q
        if np.isfinite(self.concentration):
            both = float((self._solves(p) * self._solves(q)).mean())
        return q - both, p - both

    def _solves(self, rate: float) -> FloatArray:
        """Return chances of solving initial states of rising ease, mean ``rate``, shape (G,)."""
        a, b = rate * self.concentration, (1.0 - rate) * self.concentration
        levels = (np.arange(_GRID) + 0.5) / _GRID
        return np.array([beta_quantile(float(level), a, b) for level in levels])


@dataclass(frozen=True, slots=True, kw_only=True)
class Characteristics:
    """What became of simulated runs.

    Attributes:
        runs: Simulated runs.
        promoted: Runs that promoted at least one candidate after the first.
        promoted_at_once: Runs whose first comparison promoted.
        mean_episodes: Mean episodes per policy and comparison.
    """

    runs: int
    promoted: int
    promoted_at_once: int
    mean_episodes: float


def simulate(
    scenario: Scenario,
    plan: SequentialPlan,
    thresholds: ThresholdConfig,
    *,
    runs: int,
    rng: np.random.Generator,
) -> Characteristics:
    """Return what becomes of ``runs`` simulated runs of ``plan.comparisons`` comparisons.

    Raises:
        InputError: ``runs`` is below 1.
    """
    if runs < 1:
        raise InputError(f"simulate.runs: expected >= 1, got {runs}.")
    rules = _Rules(plan, thresholds)
    active = runs
    promoted = at_once = comparisons = 0
    episodes = 0.0
    for cycle in range(plan.comparisons):
        better, spent = _compare(scenario, rules, active, rng)
        comparisons += active
        episodes += spent
        promoted += better
        at_once += better if cycle == 0 else 0
        active -= better
        if not active:
            break
    return Characteristics(
        runs=runs,
        promoted=promoted,
        promoted_at_once=at_once,
        mean_episodes=episodes / comparisons,
    )


class _Rules:
    """Answers of `judge` by look, wins and losses; None while undecided."""

    def __init__(self, plan: SequentialPlan, thresholds: ThresholdConfig) -> None:
        self.sizes = plan.sizes
        self._alphas = plan.alphas
        self._thresholds = thresholds
        self._known: dict[tuple[int, int, int], Decision | None] = {}

    def decisions(self, look: int, wins: _Counts, losses: _Counts) -> list[Decision | None]:
        """Return the decision for each pair of counts, shape (N,)."""
        return [self._decision(look, int(w), int(c)) for w, c in zip(wins, losses, strict=True)]

    def _decision(self, look: int, wins: int, losses: int) -> Decision | None:
        """Return what `judge` says; the scores themselves matter to plateaus only."""
        key = (look, wins, losses)
        if key not in self._known:
            size = self.sizes[look]
            lower, upper = paired_outcome_interval(wins, losses, size, tail=self._alphas[look])
            evidence = Evidence(
                candidate=wins / size,
                baseline=losses / size,
                difference=(wins - losses) / size,
                lower=lower,
                upper=upper,
                n_pairs=size,
                look=look,
                method="simulated",
            )
            left = len(self.sizes) - 1 - look
            verdict = judge(evidence, (), self._thresholds, warm_up=False, looks_left=left)
            self._known[key] = verdict.decision
        return self._known[key]


def _compare(
    scenario: Scenario, rules: _Rules, runs: int, rng: np.random.Generator
) -> tuple[int, float]:
    """Return how many of ``runs`` comparisons promote, and the episodes they took together."""
    only_candidate, only_reference = scenario.pair_probabilities
    shares = [only_candidate, only_reference, 1.0 - only_candidate - only_reference]
    counts = np.zeros((runs, 2), dtype=np.int64)
    promoted, episodes, before = 0, 0.0, 0
    for look, size in enumerate(rules.sizes):
        counts = counts + rng.multinomial(size - before, shares, size=counts.shape[0])[:, :2]
        episodes += float(size - before) * counts.shape[0]
        before = size
        distinct, member = np.unique(counts, axis=0, return_inverse=True)
        answers = rules.decisions(look, distinct[:, 0], distinct[:, 1])
        promotes = np.array([answer is Decision.PROMOTE for answer in answers])
        undecided = np.array([answer is None for answer in answers])
        promoted += int(promotes[member.ravel()].sum())
        counts = counts[undecided[member.ravel()]]
        if not counts.shape[0]:
            break
    return promoted, episodes


def plan_of(cycles: int, max_episodes: int, *, spending: Spending = "late") -> SequentialPlan:
    """Return the plan of a run of ``cycles`` cycles at the default level."""
    return SequentialPlan(
        first=min(FIRST_LOOK, max_episodes),
        growth=GROWTH,
        max_episodes=max_episodes,
        alpha=ThresholdConfig().alpha,
        comparisons=cycles - 1,
        spending=spending,
    )


def report(*, runs: int, score_runs: int, seed: int, max_episodes: int) -> str:
    """Return the operating characteristics as Markdown tables.

    Args:
        runs: Simulated runs per cell on success.
        score_runs: Simulated runs per cell on scores, which take a thousand times as long.
        seed: Root of the draws.
        max_episodes: Extension budget, episodes per policy and comparison.
    """
    simulator = _Simulator(runs, seed)
    tables = [table(simulator, max_episodes) for table in (_equal_policies, _true_gain, _budgets)]
    tables += [_first_blessing(max_episodes), *_scores(score_runs, seed)]
    return "\n\n".join("\n".join(_table(*cells)) for cells in tables)


@dataclass(frozen=True, slots=True)
class _Simulator:
    """Simulates with one stream per scenario and plan, so that no table shifts another."""

    runs: int
    seed: int

    def __call__(self, scenario: Scenario, plan: SequentialPlan) -> Characteristics:
        """Return what becomes of runs with the default thresholds."""
        stream = derive_substream(
            f"loop.operating_characteristics.{scenario}.{plan}", root_seed=self.seed
        )
        return simulate(scenario, plan, ThresholdConfig(), runs=self.runs, rng=stream.default_rng())


_Cells: TypeAlias = tuple[Sequence[str], Iterable[Sequence[str]]]


def _equal_policies(simulator: _Simulator, max_episodes: int) -> _Cells:
    """Return the share of runs that promote although all policies are equal."""
    header = ["true success", "difficulty", *(f"false promotion, {c} cycles" for c in CYCLES)]
    rows: list[list[str]] = []
    for rate in RATES:
        for name, concentration in _SHARINGS:
            scenario = Scenario(reference=rate, concentration=concentration)
            cells = [simulator(scenario, plan_of(c, max_episodes)) for c in CYCLES]
            rows.append([f"{rate:.2f}", name, *(_at_most(r.promoted, r.runs) for r in cells)])
    return header, rows


def _true_gain(simulator: _Simulator, max_episodes: int) -> _Cells:
    """Return the share of comparisons and runs that promote a true gain."""
    header = ["true success", "difficulty"]
    for cycles in CYCLES:
        header += [f"promoted at once, {cycles} cycles", "in the run", "mean episodes"]
    rows: list[list[str]] = []
    for rate in GAINS:
        for name, concentration in _SHARINGS:
            scenario = Scenario(reference=rate, gain=GAIN, concentration=concentration)
            row = [f"{rate:.2f} to {rate + GAIN:.2f}", name]
            for cycles in CYCLES:
                result = simulator(scenario, plan_of(cycles, max_episodes))
                row += [
                    _at_least(result.promoted_at_once, result.runs),
                    _at_least(result.promoted, result.runs),
                    f"{result.mean_episodes:.0f}",
                ]
            rows.append(row)
    return header, rows


def _budgets(simulator: _Simulator, max_episodes: int) -> _Cells:
    """Return the power of one comparison by budget, number of cycles and spending."""
    scenario = Scenario(reference=HARDEST, gain=GAIN)
    spendings: tuple[Spending, ...] = ("late", "even")
    header = ["budget", *(f"{s} spending, {c} cycles" for c in CYCLES for s in spendings)]
    rows: list[list[str]] = []
    for budget in sorted({*BUDGETS, max_episodes}):
        row = [str(budget)]
        for cycles in CYCLES:
            for spending in spendings:
                result = simulator(scenario, plan_of(cycles, budget, spending=spending))
                row.append(f"{100.0 * result.promoted_at_once / result.runs:.1f} %")
        rows.append(row)
    return header, rows


def _first_blessing(max_episodes: int) -> _Cells:
    """Return how soon first candidates are blessed; exact."""
    header = ["first candidate"]
    for cycles in CYCLES:
        header += [f"blessed, {cycles} cycles", "mean episodes"]
    rows: list[list[str]] = []
    for rate in FIRST_RATES:
        row = [f"{rate:.2f}"]
        for cycles in CYCLES:
            found = first_blessing(rate, plan_of(cycles, max_episodes), ThresholdConfig())
            row += [f"{100.0 * found.blessed:.1f} %", f"{found.mean_episodes:.0f}"]
        rows.append(row)
    return header, rows


def _scores(runs: int, seed: int) -> tuple[_Cells, _Cells]:
    """Return the share of runs on scores that promote, without and with a true gain."""
    budgets = [f"{budget} episodes" for budget in scores.BUDGETS]
    level = [_score_row(*item, _at_most, runs, seed) for item in scores.LEVEL.items()]
    better = [_score_row(*item, _at_least, runs, seed) for item in scores.BETTER.items()]
    return (("scores of equal mean", *budgets), level), (("scores, a true gain", *budgets), better)


def _score_row(
    name: str, draw: scores.Draw, cell: Callable[[int, int], str], runs: int, seed: int
) -> list[str]:
    """Return the share of runs that promote, by budget."""
    row = [name]
    for budget in scores.BUDGETS:
        stream = derive_substream(f"loop.score_characteristics.{name}.{budget}", root_seed=seed)
        plan = plan_of(scores.CYCLES, budget)
        found = scores.simulate_scores(draw, plan, runs=runs, rng=stream.default_rng())
        row.append(cell(found.promoted, found.runs))
    return row


def _at_most(count: int, runs: int) -> str:
    """Return a share with its upper bound."""
    upper = exact_bounds(count, runs, tail=_TAIL)[1]
    return f"{100.0 * count / runs:.1f} % (<= {100.0 * upper:.1f} %)"


def _at_least(count: int, runs: int) -> str:
    """Return a share with its lower bound."""
    lower = exact_bounds(count, runs, tail=_TAIL)[0]
    return f"{100.0 * count / runs:.1f} % (>= {100.0 * lower:.1f} %)"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[str]:
    """Yield the lines of a Markdown table."""
    for row in (header, ["---"] * len(header), *rows):
        yield f"| {' | '.join(row)} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the tables to standard output."""
    parser = argparse.ArgumentParser(
        description="How often whole runs of the loop decide wrongly, by simulation."
    )
    parser.add_argument("--runs", type=int, default=20_000, help="simulated runs per cell")
    parser.add_argument(
        "--score-runs", type=int, default=1_000, help="simulated runs per cell on scores"
    )
    parser.add_argument("--seed", type=int, default=0, help="root of the draws")
    parser.add_argument(
        "--max-episodes",
        type=int,
        default=RECOMMENDED_MAX_EPISODES,
        help="extension budget, episodes per policy and comparison",
    )
    options = parser.parse_args(arguments)
    text = report(
        runs=options.runs,
        score_runs=options.score_runs,
        seed=options.seed,
        max_episodes=options.max_episodes,
    )
    sys.stdout.write(text + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
