import numpy as np
import pytest

from cadenza.core.seeding import derive_substream
from cadenza.envs.batched_streams import named_uniforms

PREFIX = "env.mpe_cooperative_push.episode."


@pytest.mark.parametrize("root_seed", [0, 2**32, 2**64 + 3, 2**200 + 17])
def test_named_uniforms_have_the_bytes_of_single_substreams(root_seed):
    indices = np.array([0, 1, 5, 77, 2**31, 10**12])
    draws = named_uniforms(PREFIX, indices, root_seed=root_seed, count=11)
    for index, row in zip(indices.tolist(), draws, strict=True):
        stream = derive_substream(f"{PREFIX}{index}", root_seed=root_seed)
        assert row.tobytes() == stream.default_rng().random(11).tobytes()


def test_uniforms_of_no_rows_are_empty():
    none = np.array([], dtype=np.int64)
    assert named_uniforms("x", none, root_seed=0, count=3).shape == (0, 3)
