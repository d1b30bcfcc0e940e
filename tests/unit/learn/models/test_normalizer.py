import numpy as np
import pytest
import torch

from cadenza.core.errors import InputError
from cadenza.learn.models.model import Normalizer

ROWS = torch.tensor([[1.0, 10.0], [3.0, 10.0], [5.0, 40.0]])


def test_before_the_first_update_both_directions_are_the_identity():
    normalizer = Normalizer()
    assert torch.equal(normalizer.normalize(ROWS), ROWS)
    assert torch.equal(normalizer.denormalize(ROWS), ROWS)


def test_normalize_updates_only_when_asked():
    normalizer = Normalizer()
    normalizer.update_stats(ROWS)
    normalizer.normalize(ROWS + 100.0)
    assert normalizer.mean.tolist() == [3.0, 20.0]
    normalizer.normalize(ROWS + 100.0, True)
    assert normalizer.mean.tolist() == [53.0, 70.0]


def test_results_keep_the_type_of_the_input_and_gradients_reach_it():
    normalizer = Normalizer()
    normalizer.update_stats(ROWS)
    value = torch.ones(1, 2, requires_grad=True)
    scaled = normalizer.normalize(value)
    assert scaled.dtype == torch.float32
    scaled.sum().backward()
    expected = (1.0 / normalizer.std).float().unsqueeze(0)
    torch.testing.assert_close(value.grad, expected)


def test_long_streams_far_from_zero_keep_their_spread():
    rng = np.random.default_rng(0)
    data = rng.normal(1e6, 1.0, size=(4000, 1))
    normalizer = Normalizer()
    for part in np.split(data, 40):
        normalizer.update_stats(torch.from_numpy(part))
    # sums of squares in float32 would lose everything here
    assert normalizer.std.item() == pytest.approx(data.std(), rel=1e-6)


def test_eps_floors_the_spread_of_a_constant_column():
    normalizer = Normalizer(eps=0.5)
    normalizer.update_stats(torch.tensor([[2.0], [2.0]]))
    assert normalizer.normalize(torch.tensor([[3.0]])).item() == 2.0  # (3 - 2) / 0.5


def test_state_loads_into_a_fresh_normalizer_and_empties_a_used_one():
    used = Normalizer()
    used.update_stats(ROWS)
    fresh = Normalizer()
    fresh.load_state_dict(used.state_dict())
    assert torch.equal(fresh.normalize(ROWS), used.normalize(ROWS))
    fresh.update_stats(ROWS)
    used.update_stats(ROWS)
    assert torch.equal(fresh.squared_deviation, used.squared_deviation)
    used.load_state_dict(Normalizer().state_dict())
    assert torch.equal(used.normalize(ROWS), ROWS)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_update_names_the_column_that_is_not_finite_and_changes_nothing(bad: float):
    normalizer = Normalizer()
    normalizer.update_stats(ROWS)
    before = normalizer.mean.clone()
    with pytest.raises(InputError, match=r"column \(1\) that holds NaN or infinity"):
        normalizer.update_stats(torch.tensor([[0.0, bad], [0.0, 1.0]]))
    assert torch.equal(normalizer.mean, before)


def test_eps_must_be_positive():
    with pytest.raises(InputError, match="expected eps > 0, got 0"):
        Normalizer(eps=0.0)
