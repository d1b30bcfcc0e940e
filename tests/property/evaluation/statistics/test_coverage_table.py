"""A few cells of the coverage tables; `python -m tools.coverage_table --check` simulates all."""

import numpy as np
import pytest

from tests.campaigns import size
from tools.coverage_table import EXCEPTION, LEAST, METHODS, World, coverage, paired, worlds

REPLICATES = size(1200, 4000)
DEFAULT = METHODS["beta-binomial (default)"]
#: Two standard errors of a coverage of 95 %.
SLACK = 2 * np.sqrt(0.05 * 0.95 / REPLICATES)


@pytest.mark.parametrize(
    "cell",
    [
        World(seeds=5, episodes=20, rate=0.9, spread=0.15),
        World(seeds=5, episodes=20, rate=0.97, spread=0.15),
        World(seeds=10, episodes=50, rate=0.5, spread=0.1),
        World(seeds=16, episodes=10, rate=0.99, spread=0.05),
    ],
)
def test_default_interval_covers_where_others_do_not(cell):
    assert coverage(cell, DEFAULT, REPLICATES)[0] >= LEAST - SLACK


def test_older_interval_and_student_t_would_fail():
    hard = World(seeds=5, episodes=50, rate=0.97, spread=0.15)
    for name, method in METHODS.items():
        covered = coverage(hard, method, 400)[0]
        assert covered >= LEAST - 0.02 if method is DEFAULT else covered < 0.7, name


def test_equal_methods_hardly_ever_differ_and_the_true_difference_is_covered():
    for seeds, rate, other in ((5, 0.9, 0.9), (10, 0.6, 0.5), (5, 0.97, 0.9)):
        world = World(seeds=seeds, episodes=20, rate=rate, spread=0.1)
        covered, width, shown = paired(world, other, REPLICATES)
        assert covered >= LEAST - SLACK
        assert width > 0.0
        if rate == other:
            assert shown <= 0.055 + SLACK


@pytest.mark.parametrize("shape", ["beta", "two-point", "logit-normal"])
def test_worlds_have_the_mean_and_spread_that_they_name(shape):
    for rate, spread in ((0.5, 0.15), (0.97, 0.1)):
        world = World(seeds=4, episodes=1, rate=rate, spread=spread, shape=shape)
        rates = world.rates(np.random.default_rng(1), 200_000)
        assert rates.mean() == pytest.approx(rate, abs=0.002)
        assert rates.std() == pytest.approx(spread, abs=0.004)


def test_table_holds_every_feasible_cell():
    cells = worlds()
    assert len(cells) == 22 * 9  # rates and spreads, seeds and episodes
    assert EXCEPTION in cells
