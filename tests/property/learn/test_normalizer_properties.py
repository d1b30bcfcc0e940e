import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cadenza.learn.models.model import Normalizer

FINITE = st.floats(-1e3, 1e3, width=32)
DATA = st.integers(1, 12).flatmap(lambda rows: arrays(np.float64, (rows, 3), elements=FINITE))


@settings(deadline=None)  # the first call of a torch kernel is slow
@given(data=DATA, cuts=st.lists(st.integers(0, 12), max_size=4))
def test_any_way_of_cutting_the_data_gives_the_statistics_of_all_of_it(
    data: np.ndarray, cuts: list[int]
):
    normalizer = Normalizer()
    for part in np.split(data, sorted(min(cut, len(data)) for cut in cuts)):
        if len(part) > 0:
            normalizer.update_stats(torch.from_numpy(part))
    np.testing.assert_allclose(normalizer.mean.numpy(), data.mean(axis=0), atol=1e-9)
    expected = np.maximum(data.std(axis=0), 1e-5)
    np.testing.assert_allclose(normalizer.std.numpy(), expected, atol=1e-6)
    assert int(normalizer.count) == len(data)


@settings(deadline=None)  # the first call of a torch kernel is slow
@given(data=DATA)
def test_denormalize_undoes_normalize(data: np.ndarray):
    normalizer = Normalizer()
    rows = torch.from_numpy(data)
    scaled = normalizer.normalize(rows, True)
    torch.testing.assert_close(normalizer.denormalize(scaled), rows, atol=1e-6, rtol=0.0)
