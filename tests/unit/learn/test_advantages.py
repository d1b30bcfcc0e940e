import numpy as np
import pytest

from cadenza.core.errors import InputError
from cadenza.learn.advantages import compute_gae, normalize_advantages

ONES = np.ones(4, dtype=np.float32)
ZEROS = np.zeros(4, dtype=np.float32)
THIRD_ENDS = np.array([False, False, True, False])


def test_gae_with_boundary_stops_propagation():
    # From the back: 1; boundary, so 1; 1 + 0.5 * 1; 1 + 0.5 * 1.5.
    result = compute_gae(ONES, ZEROS, ZEROS, THIRD_ENDS, gamma=0.5, gae_lambda=1.0)
    assert result.tolist() == [1.75, 1.5, 1.0, 1.0]
    assert result.dtype == np.float32


@pytest.mark.parametrize("name", ["values", "next_values", "episode_boundaries"])
def test_gae_with_other_shape_raises(name):
    arrays = {"values": ZEROS, "next_values": ZEROS, "episode_boundaries": THIRD_ENDS}
    arrays[name] = arrays[name][:3]
    with pytest.raises(InputError, match=rf"{name}: expected shape \(4,\), got \(3,\)"):
        compute_gae(ONES, **arrays, gamma=0.9, gae_lambda=0.9)


@pytest.mark.parametrize("name", ["rewards", "values", "next_values"])
def test_gae_with_nan_names_the_array(name):
    arrays = {"rewards": ONES, "values": ZEROS, "next_values": ZEROS}
    arrays[name] = np.array([0, np.nan, 0, 0], dtype=np.float32)
    with pytest.raises(InputError, match=f"compute_gae: {name}: expected finite"):
        compute_gae(**arrays, episode_boundaries=THIRD_ENDS, gamma=0.9, gae_lambda=0.9)


def test_normalised_advantages_of_one_to_four():
    # mean 2.5, population deviation sqrt(1.25); 1.5 / (1.1180340 + 1e-5) = 1.3416288.
    result = normalize_advantages(np.array([1, 2, 3, 4], dtype=np.float32))
    assert result.tolist() == pytest.approx(
        [-1.3416288, -0.4472096, 0.4472096, 1.3416288], abs=1e-7
    )
    assert result.dtype == np.float32


@pytest.mark.parametrize("shape", [(1000,), (250, 4), (0,)])
def test_normalised_constant_is_zero(shape):
    result = normalize_advantages(np.full(shape, 0.1, dtype=np.float32))
    assert np.array_equal(result, np.zeros(shape, dtype=np.float32))
