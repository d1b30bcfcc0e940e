import pytest
from scipy import stats

from cadenza.core.quantiles import (
    beta_quantile,
    normal_level,
    normal_quantile,
    student_quantile,
)


def test_quantiles_equal_scipys_distributions():
    assert normal_quantile(0.975) == pytest.approx(stats.norm.ppf(0.975), abs=1e-12)
    assert normal_level(1.3) == pytest.approx(stats.norm.cdf(1.3), abs=1e-12)
    assert student_quantile(0.975, 9) == pytest.approx(stats.t.ppf(0.975, 9), abs=1e-10)
    assert beta_quantile(0.025, 4.5, 7.0) == pytest.approx(stats.beta.ppf(0.025, 4.5, 7.0))
