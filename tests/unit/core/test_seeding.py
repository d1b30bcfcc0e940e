import numpy as np
import pytest

from cadenza.core.errors import InputError
from cadenza.core.seeding import Substream, derive_substream


@pytest.mark.parametrize(
    ("name", "root", "expected"),
    [
        ("training.ego_ppo.torch", 0, 140323428),
        ("training.ego_ppo.torch", 1, 2136522470),
        ("training.ego_ppo.torch", 7, 85195721),
        ("training.episode.1", 0, 719330884),
        ("training.episode.1", 1, 2073131834),
        ("training.episode.2", 0, 9216789),
        ("chamber.benchmarks.stage1_as.episode.0", 0, 678920255),
        ("chamber.benchmarks.stage1_om.episode.0", 0, 1510080509),
        ("training.joint_mappo.torch", 0, 1846697086),
        ("training.joint_mappo.episode.1", 0, 1731667119),
    ],
)
def test_integer_seed_equals_the_published_value(name, root, expected):
    assert derive_substream(name, root_seed=root).integer_seed() == expected


def test_spawn_key_equals_the_published_value():
    assert derive_substream("training.ego_ppo.torch").spawn_key == (
        3550139180638298569,
        15371094120528868866,
    )
    assert derive_substream("comm.degrade").spawn_key == (1392021837352598450, 13087477352519782169)


def test_generator_draws_equal_the_published_values():
    permutation = derive_substream("training.ego_ppo.minibatch").default_rng().permutation(8)
    assert permutation.tolist() == [2, 1, 4, 0, 5, 7, 6, 3]
    uniform = derive_substream("training.ego_random").default_rng().uniform(-1, 1, 2)
    np.testing.assert_array_equal(
        uniform.astype(np.float32), np.array([0.29777068, 0.18317541], dtype=np.float32)
    )
    fixed = derive_substream("comm.fixed").default_rng().random(2)
    np.testing.assert_allclose(fixed, [0.85519069, 0.88337018], atol=5e-9)
    degrade = derive_substream("comm.degrade").default_rng().random(3)
    np.testing.assert_allclose(degrade, [0.732823519, 0.832325992, 0.193327931], atol=5e-10)


def test_children_draw_what_numpy_spawn_draws():
    stream = derive_substream("workers", root_seed=5)
    theirs = stream.seed_sequence.spawn(2)
    for child, sequence in zip(stream.spawn(2), theirs, strict=True):
        expected = np.random.default_rng(sequence).random(4)
        np.testing.assert_array_equal(child.default_rng().random(4), expected)


def test_numpy_root_seed_is_the_same_stream_as_a_python_one():
    assert derive_substream("a", root_seed=np.int64(4)) == derive_substream("a", root_seed=4)
    assert type(derive_substream("a", root_seed=np.int64(4)).root_seed) is int


@pytest.mark.parametrize("root", [-1, 1.0, True, "3", None, np.bool_(True)])
def test_derive_with_a_bad_root_names_it(root):
    with pytest.raises(InputError, match=r"root_seed: expected an integer >= 0, got"):
        derive_substream("a", root_seed=root)


@pytest.mark.parametrize("method", ["child", "spawn"])
def test_child_or_spawn_with_a_negative_number_is_refused(method):
    stream = Substream("a", 0, (1, 2))
    with pytest.raises(InputError, match=r"expected an integer >= 0, got -1"):
        getattr(stream, method)(-1)
