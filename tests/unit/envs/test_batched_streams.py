import numpy as np
import pytest

from cadenza.core.seeding import derive_substream
from cadenza.envs.batched_streams import counter_uniforms, named_uniforms

PREFIX = "env.mpe_cooperative_push.episode."


@pytest.mark.parametrize("root_seed", [0, 2**32, 2**64 + 3, 2**200 + 17])
def test_named_uniforms_have_the_bytes_of_single_substreams(root_seed):
    indices = np.array([0, 1, 5, 77, 2**31, 10**12])
    draws = named_uniforms(PREFIX, indices, root_seed=root_seed, count=11)
    for index, row in zip(indices.tolist(), draws, strict=True):
        stream = derive_substream(f"{PREFIX}{index}", root_seed=root_seed)
        assert row.tobytes() == stream.default_rng().random(11).tobytes()


@pytest.mark.parametrize("count", [1, 4, 5, 8])
def test_counter_uniforms_have_the_bytes_of_numpys_philox(count):
    rows, episodes = np.array([0, 3, 10**9]), np.array([5, 0, 2**40])
    draws = counter_uniforms("env.crossing", rows, episodes, root_seed=2, count=count)
    stream = derive_substream("env.crossing", root_seed=2)
    key = int(stream.seed_sequence.generate_state(1, np.uint64)[0])
    for i, e, row in zip(rows.tolist(), episodes.tolist(), draws, strict=True):
        words = np.array([key, i], dtype=np.uint64)
        counter = np.array([0, e, 0, 0], dtype=np.uint64)
        rng = np.random.Generator(np.random.Philox(key=words, counter=counter))
        assert row.tobytes() == rng.random(count).tobytes()


def test_uniforms_of_no_rows_are_empty():
    none = np.array([], dtype=np.int64)
    assert named_uniforms("x", none, root_seed=0, count=3).shape == (0, 3)
    assert counter_uniforms("x", none, none, root_seed=0, count=3).shape == (0, 3)
