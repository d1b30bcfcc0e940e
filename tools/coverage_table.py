"""Simulate how often the intervals for rates over seeds hold the truth; print the tables.

Run from the repository root:  python -m tools.coverage_table [--replicates N] [--check]

Worlds: S seeds of E episodes, seed rates beta-distributed around p with a standard deviation; other
shapes (two-point, logit-normal) stand beside. Pairs of rate and spread that no distribution has are
left out; rates below 1/2 mirror those above. The numbers are those of `docs/statistics.md`.
``--check`` ends with an error if a beta cell, but the named exception, covers less than 93 %, or if
equal methods differ significantly in more than 5.5 %.
"""

import argparse
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from cadenza.core.proportions import student_quantile
from cadenza.evaluation.statistics.beta_binomial import beta_binomial_intervals
from cadenza.evaluation.statistics.differences import paired_outcome_bounds
from cadenza.evaluation.statistics.estimate import korn_graubard_interval

RATES = (0.5, 0.8, 0.9, 0.95, 0.97, 0.99)
SPREADS = (0.0, 0.05, 0.1, 0.15)
SEEDS, EPISODES = (5, 10, 16), (10, 20, 50)
EQUAL = ((0.5, 0.5), (0.9, 0.9), (0.97, 0.97))
UNEQUAL = ((0.6, 0.5), (0.9, 0.8), (0.97, 0.9), (0.99, 0.95))
REPLICATES, REPEATED = 4000, 40_000
LEAST, MOST_FALSE = 0.93, 0.055

#: Bounds of many experiments, (B, 2), of successes (B, S) and the episodes of a seed.
Intervals = Callable[[np.ndarray, int], np.ndarray]


@dataclass(frozen=True, kw_only=True)
class World:
    """One cell: S seeds of E episodes whose rates have this mean, spread and shape."""

    seeds: int
    episodes: int
    rate: float
    spread: float
    shape: str = "beta"

    @property
    def feasible(self) -> bool:
        """Whether a distribution on [0, 1] has this mean and spread."""
        return self.spread**2 < 0.999 * self.rate * (1 - self.rate)

    def rates(self, rng: np.random.Generator, replicates: int) -> np.ndarray:
        """Return seed rates, shape (replicates, S)."""
        p, sd, size = self.rate, self.spread, (replicates, self.seeds)
        if sd == 0.0:
            return np.full(size, p)
        if self.shape == "two-point":  # equally far on both sides, or as far as 1 allows
            high = min(1.0, p + sd)
            low = p - sd**2 / (high - p)
            return np.where(rng.random(size) < (p - low) / (high - low), high, low)
        if self.shape == "logit-normal":
            shift, scale = logit_normal(p, sd)
            return 1 / (1 + np.exp(-shift - scale * rng.standard_normal(size)))
        total = p * (1 - p) / sd**2 - 1
        return rng.beta(p * total, (1 - p) * total, size=size)


#: The one beta cell with less than 93 %: few episodes, nearly all of them successes.
EXCEPTION = World(seeds=5, episodes=10, rate=0.99, spread=0.0)


def logit_normal(p: float, sd: float) -> tuple[float, float]:
    """Return location and scale on the logit scale of rates with mean p and deviation sd."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(61)
    weights /= weights.sum()

    def located(scale: float) -> tuple[float, np.ndarray]:
        left, right = -30.0, 30.0
        for _ in range(50):
            shift = (left + right) / 2
            rates = 1 / (1 + np.exp(-shift - scale * nodes))
            left, right = (shift, right) if weights @ rates < p else (left, shift)
        return shift, rates

    low, high = 0.0, 12.0
    for _ in range(50):
        scale = (low + high) / 2
        shift, rates = located(scale)
        low, high = (scale, high) if weights @ (rates - p) ** 2 < sd**2 else (low, scale)
    return shift, scale


def korn_graubard(successes: np.ndarray, episodes: int) -> np.ndarray:
    """Return the older default."""
    trials = np.full(successes.shape[1], float(episodes))
    return np.array([korn_graubard_interval(row.astype(float), trials) for row in successes])


def student_t(successes: np.ndarray, episodes: int) -> np.ndarray:
    """Return t on seed means; a point where they agree."""
    means = successes / episodes
    seeds = successes.shape[1]
    half = student_quantile(0.975, seeds - 1) * means.std(axis=1, ddof=1) / np.sqrt(seeds)
    return means.mean(axis=1)[:, None] + half[:, None] * np.array([-1.0, 1.0])


METHODS: dict[str, Intervals] = {
    "beta-binomial (default)": beta_binomial_intervals,
    "Korn-Graubard": korn_graubard,
    "Student t on seed means": student_t,
}


def coverage(world: World, intervals: Intervals, replicates: int) -> tuple[float, float]:
    """Return the share of intervals that hold the rate, and their mean width."""
    rng = np.random.default_rng([world.seeds, world.episodes, round(1e4 * world.rate)])
    successes = rng.binomial(world.episodes, world.rates(rng, replicates))
    # the order of seeds does not matter, so each set of counts is bounded once
    rows, repeats = np.unique(np.sort(successes, axis=1), axis=0, return_counts=True)
    low, high = intervals(rows, world.episodes).T
    held = (low <= world.rate + 1e-12) & (world.rate - 1e-12 <= high)
    return float(held @ repeats / replicates), float((high - low) @ repeats / replicates)


def worlds(shape: str = "beta", seeds: Iterable[int] = SEEDS) -> list[World]:
    """Return all feasible cells."""
    cells = [
        World(seeds=s, episodes=e, rate=p, spread=sd, shape=shape)
        for p in RATES
        for sd in SPREADS
        for s in seeds
        for e in EPISODES
        if shape == "beta" or sd > 0.0
    ]
    return [cell for cell in cells if cell.feasible]


def paired(world: World, other: float, replicates: int) -> tuple[float, float, float]:
    """Return coverage, mean width and share of significant differences of two methods."""
    rng = np.random.default_rng([world.seeds, world.episodes, round(1e4 * other), 1])
    means = world, replace(world, rate=other)
    truth = world.rate - other
    held = width = shown = 0.0
    for start in range(0, replicates, REPLICATES):
        size = min(REPLICATES, replicates - start)
        ours, theirs = (
            rng.random((size, world.seeds, world.episodes)) < m.rates(rng, size)[..., None]
            for m in means
        )
        low, high = paired_outcome_bounds(ours, theirs).T
        held += float(((low <= truth) & (truth <= high)).sum())
        shown += float(((low > 0.0) | (high < 0.0)).sum())
        width += float((high - low).sum())
    return held / replicates, width / replicates, shown / replicates


def rate_tables(replicates: int) -> tuple[list[str], list[str]]:
    """Return lines of the tables of rates, and the cells that fail."""
    found = {name: {w: coverage(w, m, replicates) for w in worlds()} for name, m in METHODS.items()}
    for shape in ("two-point", "logit-normal"):
        default = METHODS["beta-binomial (default)"]
        found[f"beta-binomial, {shape} seeds"] = {
            w: coverage(w, default, replicates) for w in worlds(shape)
        }
    lines = [
        f"| interval | least coverage, S = {' / '.join(map(str, SEEDS))} | cells below 93 % | "
        "mean width |",
        "|---|---:|---:|---:|",
    ]
    for name, cells in found.items():
        by_seeds = [[v for w, v in cells.items() if w.seeds == s] for s in SEEDS]
        least = " / ".join(f"{100 * min(c for c, _ in group):.1f}" for group in by_seeds)
        below = " / ".join(
            f"{100 * np.mean([c < LEAST for c, _ in group]):.0f} %" for group in by_seeds
        )
        width = " / ".join(f"{np.mean([w for _, w in group]):.3f}" for group in by_seeds)
        lines.append(f"| {name} | {least} | {below} | {width} |")
    default = found["beta-binomial (default)"]
    sizes = [(s, e) for s in SEEDS for e in EPISODES]
    lines += ["", "| p | sd | " + " | ".join(f"{s} x {e}" for s, e in sizes) + " |"]
    lines.append("|---:" * (2 + len(sizes)) + "|")
    for p in RATES:
        for sd in SPREADS:
            cells = [World(seeds=s, episodes=e, rate=p, spread=sd) for s, e in sizes]
            if cells[0].feasible:
                shown = " | ".join(f"{100 * default[cell][0]:.1f}" for cell in cells)
                lines.append(f"| {p} | {sd} | {shown} |")
    failed = [
        f"{cell}: {100 * value:.1f} %"
        for cell, (value, _) in default.items()
        if value < LEAST and cell != EXCEPTION
    ]
    return lines, failed


def paired_table(replicates: int) -> tuple[list[str], list[str]]:
    """Return lines of the table of paired differences, and the cells that fail."""
    lines = [
        "| methods | S | least coverage | mean width | most significant |",
        "|---|---:|---:|---:|---:|",
    ]
    failed: list[str] = []
    for label, pairs in (("equal", EQUAL), ("unequal", UNEQUAL)):
        for seeds in SEEDS:
            found: list[tuple[float, float, float]] = []
            for (a, b), sd, e in ((p, sd, e) for p in pairs for sd in SPREADS for e in (20, 50)):
                world = World(seeds=seeds, episodes=e, rate=a, spread=sd)
                if not (world.feasible and replace(world, rate=b).feasible):
                    continue
                cell = paired(world, b, replicates)
                if label == "equal" and cell[2] > 0.05 and replicates >= REPLICATES:
                    cell = paired(world, b, REPEATED)
                if label == "equal" and cell[2] > MOST_FALSE:
                    failed.append(f"{world}: significant in {100 * cell[2]:.2f} %")
                found.append(cell)
            least, width, most = (
                min(c[0] for c in found),
                np.mean([c[1] for c in found]),
                max(c[2] for c in found),
            )
            shown = f"{100 * most:.1f} %" if label == "equal" else ""
            lines.append(f"| {label} | {seeds} | {100 * least:.1f} % | {width:.3f} | {shown} |")
    return lines, failed


def main() -> None:
    """Print the tables; with ``--check``, fail where a promise is missed."""
    parser = argparse.ArgumentParser(prog="python -m tools.coverage_table", description=__doc__)
    parser.add_argument("--replicates", type=int, default=REPLICATES)
    parser.add_argument("--check", action="store_true", help="end with an error if a cell fails")
    options = parser.parse_args()
    rates, failed = rate_tables(options.replicates)
    sys.stdout.write("\n".join(rates) + "\n\n")
    sys.stdout.flush()
    differences, more = paired_table(options.replicates)
    sys.stdout.write("\n".join(differences) + "\n")
    if options.check and (failed or more):
        raise SystemExit("\n".join(["", "missed:", *failed, *more]))


if __name__ == "__main__":
    main()
