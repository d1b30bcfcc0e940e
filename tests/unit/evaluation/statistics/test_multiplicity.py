import numpy as np
import pytest
from scipy import stats

from cadenza.core.errors import InputError
from cadenza.evaluation.statistics.multiplicity import (
    benjamini_yekutieli,
    equivalence_p,
    holm,
    max_t_bounds,
)

P = np.array([0.01, 0.04, 0.03, 0.005])


def test_holm_equals_the_hand_calculation():
    # ordered .005 .01 .03 .04 times 4 3 2 1 = .02 .03 .06 .04, running maximum
    assert holm(P) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm(np.array([0.6, 0.7])) == pytest.approx([1.0, 1.0])


def test_benjamini_yekutieli_equals_scipy():
    assert benjamini_yekutieli(P) == pytest.approx(stats.false_discovery_control(P, method="by"))


def test_p_outside_its_range_is_refused():
    with pytest.raises(InputError, match="p-values in"):
        holm(np.array([0.2, 1.4]))


def test_max_t_of_one_column_is_student_t():
    values = np.array([[0.1], [0.3], [0.2], [0.5], [0.0], [0.25]])
    bounds = max_t_bounds(values, rng=np.random.default_rng(0), draws=200_000)
    expected = stats.ttest_1samp(values[:, 0], 0.0)
    assert bounds.critical == pytest.approx(stats.t.ppf(0.975, 5), rel=0.01)
    assert bounds.p[0] == pytest.approx(expected.pvalue, rel=0.05)
    assert bounds.low[0] == pytest.approx(expected.confidence_interval().low, abs=0.005)


def test_max_t_lies_between_student_and_bonferroni_and_falls_with_correlation():
    rng = np.random.default_rng(1)
    shared = rng.standard_normal((10, 1))
    loose = max_t_bounds(rng.standard_normal((10, 8)), rng=rng)
    tight = max_t_bounds(shared + 0.1 * rng.standard_normal((10, 8)), rng=rng)
    assert stats.t.ppf(0.975, 9) <= tight.critical * 1.02 < loose.critical
    assert loose.critical < stats.t.ppf(1 - 0.025 / 8, 9) * 1.02


def test_max_t_keeps_the_family_level():
    rng = np.random.default_rng(2)
    wrong = sum(
        bool((max_t_bounds(rng.standard_normal((6, 5)), rng=rng, draws=1000).p <= 0.05).any())
        for _ in range(500)
    )
    assert wrong / 500 <= 0.08  # 5 % and three standard errors


def test_equivalence_is_scipys_two_one_sided_tests():
    d = np.array([0.01, -0.02, 0.015, 0.0, -0.01, 0.02])
    below = stats.ttest_1samp(d, -0.05, alternative="greater").pvalue
    above = stats.ttest_1samp(d, 0.05, alternative="less").pvalue
    assert equivalence_p(d, margin=0.05) == pytest.approx(max(below, above))
    assert equivalence_p(d, margin=0.05) < 0.05 < equivalence_p(d, margin=0.001)
    with pytest.raises(InputError, match="margin > 0"):
        equivalence_p(d, margin=0.0)
