import warnings

import numpy as np
import pytest

from cadenza.core.arrays import require_finite, require_shape
from cadenza.core.errors import InputError


def test_require_shape_with_another_shape_names_both():
    require_shape("position", np.zeros((2, 3)), (2, 3))
    with pytest.raises(InputError, match=r"position: expected shape \(3,\), got \(2,\)"):
        require_shape("position", np.zeros(2), (3,))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_require_finite_with_a_bad_entry_names_index_and_count(bad):
    array = np.array([[1.0, 2.0], [bad, 4.0]])
    with pytest.raises(InputError, match=r"goal: .* at index \(1, 0\) \(1 of 4 entries"):
        require_finite("goal", array)


def test_require_finite_with_opposite_infinities_is_not_fooled_by_their_sum():
    with (
        warnings.catch_warnings(action="error"),
        pytest.raises(InputError, match="2 of 2 entries"),
    ):
        require_finite("goal", np.array([np.inf, -np.inf]))


def test_require_finite_accepts_finite_entries_whose_sum_overflows():
    with warnings.catch_warnings(action="error"):
        require_finite("goal", np.array([1.7e308, 1.7e308]))
        require_finite("every second", np.full((4, 4), 1e200)[::2, ::2])
    require_finite("empty", np.zeros(0))
    require_finite("integers", np.array([1, 2]))
