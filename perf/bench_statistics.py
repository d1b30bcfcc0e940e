"""Statistics: intervals of an interquartile mean, resampled and exact, beside rliable.

Five methods with scores of 10 runs on 100 tasks, resampled by task 50 000 times.

Usage:  python -m perf.bench_statistics
"""

import time
from collections.abc import Callable

import numpy as np

from cadenza.evaluation.statistics.beta_binomial import beta_binomial_interval
from cadenza.evaluation.statistics.resampling import (
    count_trimmed_means,
    exact_stratified_pmf,
    gather_trimmed_means,
    pmf_bounds,
    stratified_counts,
    trimmed_mean_of_counts,
)
from perf.timing import Row, measure_us, print_table

METHODS, RUNS, TASKS = 5, 10, 100
REPLICATES = 50_000
#: Replicates that are timed; the peer's and ours alternate, and both are scaled up.
SLICE, SLICES = 1_250, 4
PEER = "rliable, get_interval_estimates"


def rows() -> list[Row]:
    """Return the rows; times are processor seconds, as a shared machine stretches the clock."""
    scores = [np.random.default_rng(seed).random((RUNS, TASKS)) for seed in range(METHODS)]
    binary = [(s < 0.7).astype(np.float64) for s in scores]
    rng = np.random.default_rng(7)

    def counted(values: list[np.ndarray]) -> None:
        for one in values:
            blocks = stratified_counts(RUNS, TASKS, replicates=SLICE, rng=rng)
            np.quantile(count_trimmed_means(blocks, one.T.ravel()), (0.025, 0.975))

    def gathered() -> None:
        for one in scores:
            drawn = gather_trimmed_means(one, replicates=SLICE, rng=rng)
            np.quantile(drawn, (0.025, 0.975))

    def exact() -> None:
        support = trimmed_mean_of_counts(np.arange(RUNS * TASKS + 1.0), RUNS * TASKS)
        for one in binary:
            pmf_bounds(exact_stratified_pmf(one.sum(axis=0).astype(int), [RUNS] * TASKS), support)

    peer = rliable_intervals()
    spent = {"counts": 0.0, "gather": 0.0, "peer": 0.0, "peer 0/1": 0.0}
    counted(scores)  # tables of counts, imports
    for _ in range(SLICES):
        spent["counts"] += seconds(lambda: counted(scores))
        spent["gather"] += seconds(gathered)
        if peer is not None:
            spent["peer"] += seconds(lambda: peer(scores))
            spent["peer 0/1"] += seconds(lambda: peer(binary))
    full = {name: value * REPLICATES / (SLICE * SLICES) for name, value in spent.items()}
    theirs, theirs_binary = (full[name] or None for name in ("peer", "peer 0/1"))
    exact_s = measure_us(exact, 30) / 1e6
    seeds = np.full(10, 46.0), np.full(10, 50.0)
    one_interval = measure_us(lambda: beta_binomial_interval(*seeds), 300)
    name = "IQM bootstrap, 5 x (10 x 100), 50 000 replicates"
    return [
        Row(f"{name}, counts", full["counts"], theirs, "s", 10.0, peer_name=PEER),
        Row(f"{name}, gather", full["gather"], theirs, "s", peer_name=PEER),
        Row(f"{name}, 0/1, exact", exact_s, theirs_binary, "s", 1000.0, peer_name=PEER),
        Row("beta-binomial interval of a rate, 10 seeds", one_interval),
    ]


def seconds(call: Callable[[], object]) -> float:
    """Return the processor seconds of one call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def rliable_intervals() -> Callable[[list[np.ndarray]], object] | None:
    """Return the peer's call for a slice of replicates, None where it is not installed."""
    try:
        from rliable import library, metrics
    except ImportError as error:
        print(f"note: no rliable (pip install 'cadenza[bench-rliable]'): no peer ({error})")
        return None

    def iqm(scores: np.ndarray) -> np.ndarray:
        return np.array([metrics.aggregate_iqm(scores)])

    def intervals(scores: list[np.ndarray]) -> object:
        named = {str(at): one for at, one in enumerate(scores)}
        return library.get_interval_estimates(named, iqm, reps=SLICE)

    return intervals


if __name__ == "__main__":
    print_table((__doc__ or "").splitlines()[0], rows())
