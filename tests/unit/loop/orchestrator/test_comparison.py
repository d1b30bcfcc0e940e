import pytest

from cadenza.core.errors import InputError
from cadenza.loop.orchestrator.comparison import futility_tail, look_sizes


def test_sizes_grow_by_the_factor_to_the_budget():
    assert look_sizes(10, 2.0, 80) == (10, 20, 40, 80)
    assert look_sizes(10, 2.0, 100) == (10, 20, 40, 100)  # 80 is within sqrt(2) of 100
    assert look_sizes(10, 2.0, 120) == (10, 20, 40, 80, 120)
    assert look_sizes(10, 2.0, 10) == (10,)
    assert look_sizes(1, 1.1, 5) == (1, 2, 3, 4, 5)
    assert look_sizes(50, 1.5, 480) == (50, 75, 113, 170, 255, 383, 480)
    assert futility_tail((10, 20, 40, 80)) == pytest.approx(0.2 / 3)
    for first, growth in ((0, 2.0), (81, 2.0), (10, 1.0), (10, float("nan"))):
        with pytest.raises(InputError, match=r"look_sizes(\.growth)?: expected"):
            look_sizes(first, growth, 80)
