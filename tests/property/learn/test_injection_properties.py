import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.learn import Callback, StateDict
from cadenza.learn.injection import MissingStateKeyError

KEYS = ("a", "b", "c", "d")
values = st.dictionaries(st.sampled_from(KEYS), st.integers(0, 9))


def hook(needed, optional):
    """Return a callback whose hook has these parameters and returns what it got."""
    source = ", ".join(["self", *needed, *(f"{name}=-1" for name in optional)])
    names = ", ".join(f"{name!r}: {name}" for name in (*needed, *optional))
    space = {}
    exec(f"def begin_batch({source}): return {{'got': {{{names}}}}}", space)  # noqa: S102
    return type("Asker", (Callback,), {"begin_batch": space["begin_batch"], "data_group": None})()


def expected(names, outer, group):
    """Return what the rules say: group first, then outer state."""
    return {name: (group or {}).get(name, outer.get(name)) for name in names}


@given(needed=st.lists(st.sampled_from(KEYS), unique=True), outer=values, group=st.none() | values)
def test_each_parameter_gets_the_value_of_the_group_then_that_of_the_state(needed, outer, group):
    callback = hook(needed, [])
    state = dict(outer)
    if group is not None:
        callback.data_group = "g"
        state["g"] = group
    available = set(outer) | set(group or {})
    if set(needed) <= available:
        assert callback.begin_batch(**state) == {"got": expected(needed, outer, group)}
    else:
        with pytest.raises(MissingStateKeyError):
            callback.begin_batch(**state)


@given(optional=st.lists(st.sampled_from(KEYS), unique=True), outer=values, group=values)
def test_defaults_fill_exactly_what_is_absent(optional, outer, group):
    callback = hook([], optional)
    callback.data_group = "g"
    got = callback.begin_batch(**outer, g=group)["got"]
    both = {**outer, **group}
    assert got == {name: both.get(name, -1) for name in optional}


@given(
    needed=st.lists(st.sampled_from(KEYS), unique=True, min_size=1),
    count=st.integers(0, 4),
    outer=values,
)
def test_positional_arguments_take_the_leading_parameters(needed, count, outer):
    callback = hook(needed, [])
    leading = [100 + i for i in range(count)]
    given_names, rest = needed[:count], needed[count:]
    if set(rest) <= set(outer):
        got = callback.begin_batch(*leading, **outer)["got"]
        assert got == {
            **dict(zip(given_names, leading, strict=False)),
            **expected(rest, outer, None),
        }
    else:
        with pytest.raises(MissingStateKeyError):
            callback.begin_batch(*leading, **outer)


batches = st.dictionaries(st.sampled_from("pqr"), st.integers() | st.just({"x": 1}))
writes = st.dictionaries(st.sampled_from("qrs"), st.integers() | st.just({"y": 2}))


@given(steps=st.lists(st.tuples(batches, writes), min_size=1, max_size=6))
def test_state_after_a_batch_has_that_batch_and_plain_values_of_earlier_steps_only(steps):
    state = StateDict()
    plain = {}
    for batch, written in steps:
        state.next_batch(batch)
        plain = {key: value for key, value in plain.items() if key not in batch}
        assert dict(state) == {**plain, **batch}
        state.write(written, in_step=True)
        for key, value in written.items():
            if isinstance(value, int) and key not in batch:
                plain[key] = value
            else:
                plain.pop(key, None)
