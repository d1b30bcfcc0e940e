"""Simulate how often whole runs of the loop decide wrongly, and at what cost, for docs/loop.md.

Outcomes:  an initial state has a difficulty; the reference solves it with probability p(u), the
           candidate with q(u), where u is uniform and p, q are quantile functions of beta
           distributions of equal concentration, whose means are the success rates. Initial states
           are independent, so a pair is a win, a loss or a tie. Concentration 0.5 correlates equal
           policies by 2/3; infinite concentration makes all initial states alike and the outcomes
           independent.
Runs:      each cycle compares a new candidate of the same truth with the reference on fresh initial
           states. A promotion ends a simulated run.
Rules:     of signs, boundaries and decisions are computed here anew, for all runs at once; a test
           holds them against those of real comparisons. Scores and own means use the same capital.

Usage:  python tools/simulate_loop_decisions.py            (some minutes)
"""

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from cadenza.core.arrays import FloatArray
from cadenza.core.seeding import derive_substream
from cadenza.evaluation.statistics.paired_outcomes import exact_bounds
from cadenza.evaluation.statistics.sequential import (
    chance_of_signs,
    comparison_level,
    log_capital,
    pairs_for_signs,
    spent_after,
)
from cadenza.loop.config import EvalConfig, ThresholdConfig
from cadenza.loop.orchestrator.comparison import (
    CHECK_EVERY,
    RECOMMENDED_MAX_EPISODES,
    SCORE_FUTILITY,
    futility_tail,
    look_sizes,
)
from cadenza.loop.orchestrator.decision import SEEN_DELTAS

#: Concentration of strongly shared difficulty: equal policies correlate by 1 / (1 + 0.5).
SHARED: Final = 0.5
#: Concentration at which initial states are all alike.
ALIKE: Final = math.inf
#: Comparisons of the simulated runs: two cycles, the shipped plan of six, and one extended often.
COMPARISONS: Final = (2, 6, 20)
#: Ends of a comparison.
PROMOTE, ROLLBACK, STOP = 1, -1, 0
#: Each bound shown fails with this probability.
_TAIL: Final = 0.005
#: Midpoints at which expectations over the difficulty are taken.
_GRID: Final = 2_000
#: Runs that are simulated at once.
_CHUNK: Final = 2_000

_Ends = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One comparison: its level, most pairs, and the first at which a candidate is given up."""

    level: float = 0.025
    most: int = RECOMMENDED_MAX_EPISODES
    first: int = 50
    growth: float = EvalConfig().extension_growth
    promote_delta: float = ThresholdConfig().promote_delta
    regression_delta: float = ThresholdConfig().regression_delta

    @property
    def checks(self) -> list[int]:
        """Pairs after which the rule is checked."""
        return sorted({*range(CHECK_EVERY, self.most, CHECK_EVERY), self.most})


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

    def draw(self, rng: np.random.Generator, runs: int, pairs: int) -> NDArray[np.int8]:
        """Return signs of wins and losses, shape (runs, pairs)."""
        win, loss = self.pair_probabilities
        luck = rng.uniform(size=(runs, pairs))
        return (luck < win).astype(np.int8) - (luck >= 1.0 - loss).astype(np.int8)

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


def ends_of_signs(signs: NDArray[np.int8], rule: Rule) -> tuple[_Ends, _Ends]:
    """Return how comparisons of signs, shape (runs, most), end, and after how many pairs."""
    runs, checks = len(signs), rule.checks
    sizes = look_sizes(rule.first, rule.growth, rule.most)
    looks = {next(check for check in checks if check >= size) for size in sizes}
    ends, stops = np.full(runs, STOP), np.full(runs, rule.most)
    open_ = np.arange(runs)
    paths = np.ones((runs, 1))  # P(w wins on paths that stopped on neither side), by w
    mirrored, spent, crossed = paths.copy(), np.zeros((runs, 2)), np.zeros((runs, 2), dtype=bool)
    before = 0
    for check in checks:
        new = (signs[open_, before:check] != 0).sum(axis=1)
        before = check
        paths, mirrored = _tossed(paths, new), _tossed(mirrored, new)
        differing = (signs[open_, :check] != 0).sum(axis=1)
        total = signs[open_, :check].sum(axis=1, dtype=np.int64)
        allowed = rule.level * (check / rule.most) ** 1.5
        for side, (part, sign) in enumerate(((paths, 1), (mirrored, -1))):
            tails = np.cumsum(part[:, ::-1], axis=1)
            stopping = (tails <= (allowed - spent[:, side])[:, None]).sum(axis=1)
            least = part.shape[1] - stopping  # wins from which on a path stops
            crossed[:, side] |= sign * total >= 2 * least - differing - 1
            rows = np.arange(len(part))
            spent[:, side] += np.where(stopping > 0, tails[rows, stopping - 1], 0.0)
            part[np.arange(part.shape[1])[None, :] >= least[:, None]] = 0.0
        mean = total / check
        done = np.where(crossed[:, 0] & (mean >= rule.promote_delta), PROMOTE, STOP)
        worse = crossed[:, 1] & (mean <= -rule.regression_delta)
        done = np.where((done == STOP) & worse, ROLLBACK, done)
        over = done != STOP
        if check in looks:
            likely = _upper((differing + total) // 2, differing, check, futility_tail(sizes))
            over |= likely < SEEN_DELTAS * rule.promote_delta
        ends[open_[over]], stops[open_[over]] = done[over], check
        keep = ~over
        open_, paths, mirrored = open_[keep], paths[keep], mirrored[keep]
        spent, crossed = spent[keep], crossed[keep]
        if not open_.size:
            break
    return ends, stops


def _tossed(paths: FloatArray, new: _Ends) -> FloatArray:
    """Return the distribution after ``new`` more fair coins in each row."""
    width = paths.shape[1]
    wider = np.zeros((len(paths), width + int(new.max(initial=0))))
    for count in np.unique(new):
        rows = np.flatnonzero(new == count)
        part, moved = paths[rows], np.zeros((rows.size, wider.shape[1]))
        for wins in range(count + 1):
            moved[:, wins : wins + width] += math.comb(count, wins) / 2.0**count * part
        wider[rows] = moved
    return wider


def _upper(wins: _Ends, differing: _Ends, pairs: int, tail: float) -> FloatArray:
    """Return upper bounds of the difference that fail with probability ``tail``, shape (runs,)."""
    least, most = _exact(differing, np.full_like(differing, pairs), tail)
    _, high = _exact(wins, differing, tail)
    slope = 2.0 * np.where(differing > 0, high, 1.0) - 1.0
    return slope * np.where(slope > 0.0, most, least)


def _exact(successes: _Ends, trials: _Ends, tail: float) -> tuple[FloatArray, FloatArray]:
    """Return Clopper-Pearson bounds, shape (runs,) each."""
    failures = trials - successes
    low = special.betaincinv(np.maximum(successes, 1), failures + 1, tail)
    high = 1.0 - special.betaincinv(np.maximum(failures, 1), successes + 1, tail)
    return np.where(successes > 0, low, 0.0), np.where(failures > 0, high, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreEnds:
    """How comparisons of scores end, after how many pairs, and the final logarithmic capital."""

    ends: _Ends
    stops: _Ends
    capital: FloatArray


def ends_of_scores(differences: FloatArray, rule: Rule) -> ScoreEnds:
    """Return how comparisons end of differences, shares of the range, shape (runs, most)."""
    y = ((differences + 1.0) / 2.0)[..., None]
    futile_null = 0.5 - SEEN_DELTAS * rule.promote_delta / 2.0
    at = np.array(rule.checks) - 1

    def reached(values: FloatArray, null: float, level: float) -> NDArray[np.bool_]:
        capital = log_capital(values, null, level=level, most=rule.most)
        return np.maximum.accumulate(capital, axis=1)[:, at] >= -math.log(level)

    means = (np.cumsum(differences, axis=1) / np.arange(1, rule.most + 1))[:, at]
    better = reached(y, 0.5, rule.level) & (means >= rule.promote_delta)
    worse = reached(1.0 - y, 0.5, rule.level) & (means <= -rule.regression_delta)
    over = better | worse | reached(1.0 - y, futile_null, SCORE_FUTILITY)
    over[:, -1] = True
    first, rows = over.argmax(axis=1), np.arange(len(over))
    ends = np.where(better[rows, first], PROMOTE, np.where(worse[rows, first], ROLLBACK, STOP))
    capital = log_capital(y, 0.5, level=rule.level, most=rule.most)[rows, at[first]]
    return ScoreEnds(ends=ends, stops=at[first] + 1, capital=capital)


@dataclass(frozen=True, slots=True, kw_only=True)
class Characteristics:
    """What became of simulated runs.

    Attributes:
        runs: Simulated runs.
        promoted: Runs that promoted a candidate within so many comparisons.
        pairs_at_once: Mean pairs of the first comparison.
        mean_pairs: The same of all comparisons.
    """

    runs: int
    promoted: tuple[int, ...]
    pairs_at_once: float
    mean_pairs: float


def simulate(
    scenario: Scenario,
    rule: Rule,
    *,
    comparisons: int,
    runs: int,
    rng: np.random.Generator,
    alpha: float = 0.05,
) -> Characteristics:
    """Return what becomes of ``runs`` simulated runs on success of so many comparisons."""
    left, spent = runs, 0.0
    promoted, made, pairs, pairs_at_once = [0], 0, 0.0, 0.0
    for failed in range(comparisons):
        level = comparison_level(alpha, spent, failed)
        ends, stops = compare(scenario, replace(rule, level=level), left, rng)
        made, pairs = made + left, pairs + float(stops.sum())
        pairs_at_once = pairs_at_once or pairs / runs
        better = int((ends == PROMOTE).sum())
        promoted.append(promoted[-1] + better)
        left, spent = left - better, spent_after(spent, level)
    return Characteristics(
        runs=runs,
        promoted=tuple(promoted[1:]),
        pairs_at_once=pairs_at_once,
        mean_pairs=pairs / made,
    )


def compare(
    scenario: Scenario, rule: Rule, runs: int, rng: np.random.Generator
) -> tuple[_Ends, _Ends]:
    """Return how simulated comparisons on success end, and after how many pairs."""
    parts = [
        ends_of_signs(scenario.draw(rng, min(_CHUNK, runs - start), rule.most), rule)
        for start in range(0, max(runs, 1), _CHUNK)
    ]
    return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])


#: Draws paired differences of scores, shares of the range, of a shape.
Draw = Callable[[np.random.Generator, tuple[int, ...]], FloatArray]


def rare_loss(gain: float, loss: float, share: float) -> Draw:
    """Return the draw of a gain that a loss, in a share of the pairs, may outweigh."""
    return lambda rng, shape: np.where(rng.uniform(size=shape) < share, -loss, gain)


def _beta(a: float, b: float, gain: float = 0.0) -> Draw:
    """Return the draw of two equal policies of beta scores, one better by ``gain``."""
    return lambda rng, shape: np.clip(
        rng.beta(a, b, shape) - rng.beta(a, b, shape) + gain, -1.0, 1.0
    )


#: Pairs of policies of which the candidate is no better.
LEVEL: Final[Mapping[str, Draw]] = {
    "equal, beta(20, 20)": _beta(20.0, 20.0),
    "equal, beta(0.5, 1.5)": _beta(0.5, 1.5),
    "always 0.25 against beta(0.5, 1.5)": lambda rng, shape: 0.25 - rng.beta(0.5, 1.5, shape),
    "beta(20, 20) against beta(0.5, 0.5)": lambda rng, shape: (
        rng.beta(20.0, 20.0, shape) - rng.beta(0.5, 0.5, shape)
    ),
    "equal mean, +0.02 but -1 in 2 %": rare_loss(0.02, 1.0, 0.02 / 1.02),
    "worse: +1 of 42 but -40 of 42 in 5 %": rare_loss(1 / 42, 40 / 42, 0.05),
    "equal mean: +1 of 21 but -19 of 21 in 5 %": rare_loss(1 / 21, 19 / 21, 0.05),
    "equal mean: +1 of 51 but -49 of 51 in 2 %": rare_loss(1 / 51, 49 / 51, 0.02),
}
#: Candidates that are better.
BETTER: Final[Mapping[str, Draw]] = {
    "+0.05, deviation 0.11": _beta(20.0, 20.0, 0.05),
    "+0.05, uniform, deviation 0.41": _beta(1.0, 1.0, 0.05),
    "+0.1, deviation 0.11": _beta(20.0, 20.0, 0.1),
    "crashes healed in a tenth": lambda rng, shape: np.where(
        rng.uniform(size=shape) < 0.1, 0.5, rng.normal(0.0, 0.1, shape).clip(-0.5, 0.5)
    ),
}


def own_mean(
    rate: float, *, bar: float, level: float, most: int, runs: int, rng: np.random.Generator
) -> tuple[int, float]:
    """Return how many first candidates are blessed, and the mean episodes that they play."""
    blessed, episodes = 0, 0.0
    checks = np.array(Rule(most=most).checks) - 1
    for start in range(0, runs, _CHUNK):
        values = (rng.uniform(size=(min(_CHUNK, runs - start), most, 1)) < rate).astype(float)
        reached, missed = (
            np.maximum.accumulate(log_capital(v, m, level=level, most=most / 4), axis=1)[:, checks]
            >= -math.log(level)
            for v, m in ((values, bar), (1.0 - values, 1.0 - bar))
        )
        over = reached | missed
        over[:, -1] = True
        first, rows = over.argmax(axis=1), np.arange(len(over))
        blessed += int(reached[rows, first].sum())
        episodes += float((checks[first] + 1).sum())
    return blessed, episodes / runs


# Tables


@dataclass(frozen=True, slots=True)
class Tables:
    """Makes tables with one stream per scenario and plan, so that no table shifts another."""

    runs: int
    seed: int
    max_episodes: int

    def all(self) -> str:
        """Return all tables as Markdown."""
        parts = (
            self.equal(),
            self.gains(),
            self.failures(),
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
            found = self._run(scenario, self.max_episodes, COMPARISONS[-1])
            share = found.mean_pairs / self.max_episodes
            false = [_at_most(found.promoted[count - 1], found.runs) for count in COMPARISONS]
            rows.append([f"{scenario.reference:.2f}", name, *false, f"{100.0 * share:.0f} %"])
        return [*header, "episodes, share of the most"], rows

    def gains(self) -> tuple[list[str], list[list[str]]]:
        """Return power and cost where every candidate is better by ten points."""
        rows: list[list[str]] = []
        for scenario, name in _scenarios((0.3, 0.45, 0.5, 0.8), 0.1):
            found = self._run(scenario, self.max_episodes, 2)
            rows.append(
                [
                    f"{scenario.reference:.2f} to {scenario.reference + 0.1:.2f}",
                    name,
                    _at_least(found.promoted[0], found.runs),
                    f"{found.pairs_at_once:.0f}",
                    _at_least(found.promoted[1], found.runs),
                ]
            )
        names = ["promoted at once", "mean episodes", "in two comparisons"]
        return ["true success", "difficulty", *names], rows

    def failures(self) -> tuple[list[str], list[list[str]]]:
        """Return the power of a comparison after others without a blessing, and what is told."""
        rows: list[list[str]] = []
        for failed in (0, 3, 6, 10, 20, 40):
            level = 0.05 / ((failed + 1) * (failed + 2))
            rng = self._stream(f"failures.{failed}")
            rule = Rule(level=level, most=self.max_episodes)
            ends, _ = compare(Scenario(reference=0.45, gain=0.1), rule, self.runs, rng)
            told = chance_of_signs(0.1, level, self.max_episodes)
            power = _at_least(int((ends == PROMOTE).sum()), self.runs)
            rows.append([str(failed), f"{100.0 * level:.2g} %", power, f"{100.0 * told:.0f} %"])
        return ["comparisons before", "level", "promoted, 0.45 to 0.55", "forecast"], rows

    def budgets(self) -> tuple[list[str], list[list[str]]]:
        """Return power and cost of first comparisons by ``max_episodes``, where it is hardest."""
        header = ["max_episodes", "promoted at once, 0.45 to 0.55", "episodes of equal policies"]
        rows: list[list[str]] = []
        for most in sorted({100, 200, 300, 400, self.max_episodes, 600, 800}):
            better = self._run(Scenario(reference=0.45, gain=0.1), most, 1)
            equal = self._run(Scenario(reference=0.5), most, 1)
            power = _at_least(better.promoted[0], better.runs)
            rows.append([str(most), power, f"{equal.mean_pairs:.0f}"])
        return header, rows

    def needed(self) -> tuple[list[str], list[list[str]]]:
        """Return what the dry run says is needed, and what it is worth."""
        rows: list[list[str]] = []
        for gain in (0.1, 0.15, 0.2, 0.3):
            count = pairs_for_signs(gain, 0.025)
            found = self._run(Scenario(reference=0.5 - gain / 2.0, gain=gain), count, 1)
            power = _at_least(found.promoted[0], found.runs)
            rows.append([f"+{100.0 * gain:.0f} points", str(count), power])
        return ["gain", "episodes needed", "promoted at once"], rows

    def first(self) -> tuple[list[str], list[list[str]]]:
        """Return how soon first candidates are blessed."""
        rows: list[list[str]] = []
        for rate in (0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5):
            row = [f"{rate:.2f}"]
            for failed in (0, 5):
                count, episodes = own_mean(
                    rate,
                    bar=ThresholdConfig().min_promote,
                    level=0.05 / ((failed + 1) * (failed + 2)),
                    most=self.max_episodes,
                    runs=self.runs,
                    rng=self._stream(f"first.{rate}.{failed}"),
                )
                row += [f"{100.0 * count / self.runs:.1f} %", f"{episodes:.0f}"]
            rows.append(row)
        names = ["blessed, cycle 0", "mean episodes", "blessed, cycle 5", "mean episodes"]
        return ["first candidate", *names], rows

    def scores(self) -> tuple[list[str], list[list[str]]]:
        """Return the share of first comparisons of scores that promote, and the pairs of each."""
        rows: list[list[str]] = []
        for draws, cell in ((LEVEL, _at_most), (BETTER, _at_least)):
            for name, draw in draws.items():
                row = [name]
                for most in (80, self.max_episodes):
                    rng = self._stream(f"scores.{name}.{most}")
                    delta = 0.0 if draws is LEVEL else 0.02
                    rule = Rule(most=most, promote_delta=delta, regression_delta=delta)
                    parts = [
                        ends_of_scores(draw(rng, (min(_CHUNK, self.runs - start), most)), rule)
                        for start in range(0, self.runs, _CHUNK)
                    ]
                    count = sum(int((part.ends == PROMOTE).sum()) for part in parts)
                    pairs = sum(float(part.stops.sum()) for part in parts) / self.runs
                    row += [cell(count, self.runs), f"{pairs:.0f}"]
                rows.append(row)
        most = self.max_episodes
        return ["scores", "max_episodes 80", "pairs", f"max_episodes {most}", "pairs"], rows

    def _run(self, scenario: Scenario, most: int, comparisons: int) -> Characteristics:
        rng = self._stream(f"{scenario}.{most}.{comparisons}")
        rule = Rule(most=most, first=min(50, most))
        return simulate(scenario, rule, comparisons=comparisons, runs=self.runs, rng=rng)

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
    parser.add_argument("--runs", type=int, default=4_000, help="simulated runs per cell")
    parser.add_argument("--seed", type=int, default=0, help="root of the draws")
    parser.add_argument("--max-episodes", type=int, default=RECOMMENDED_MAX_EPISODES)
    given = parser.parse_args(arguments)
    sys.stdout.write(Tables(given.runs, given.seed, given.max_episodes).all() + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
