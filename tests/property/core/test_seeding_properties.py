from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.seeding import derive_substream

names = st.text(min_size=1, max_size=30)
roots = st.integers(0, 2**80)


@given(name=names, root=roots)
def test_equal_identity_always_draws_equal_bytes(name, root):
    first = derive_substream(name, root_seed=root).default_rng()
    second = derive_substream(name, root_seed=root).default_rng()
    assert first.bytes(32) == second.bytes(32)


@given(identities=st.lists(st.tuples(names, roots), min_size=2, max_size=2, unique=True))
def test_different_identities_always_draw_different_bytes(identities):
    draws = [derive_substream(n, root_seed=r).default_rng().bytes(16) for n, r in identities]
    assert draws[0] != draws[1]


@given(name=names, root=roots, indices=st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)))
def test_children_differ_exactly_when_their_index_does(name, root, indices):
    stream = derive_substream(name, root_seed=root)
    children = [stream.child(index).default_rng().bytes(16) for index in indices]
    assert (children[0] == children[1]) == (indices[0] == indices[1])
    assert children[0] != stream.default_rng().bytes(16)
