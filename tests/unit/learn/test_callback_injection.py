import copy
import inspect
import pickle
import warnings
from typing import TypedDict, Unpack

import pytest

from cadenza.core.errors import ConfigurationTypeError
from cadenza.learn import BatchCallback, Callback
from cadenza.learn.callback import HOOKS
from cadenza.learn.injection import HookReturnError, MissingStateKeyError


class Recorder(Callback):
    """Remembers what its hooks are given."""

    def __init__(self, data_group=None):
        super().__init__()
        self.data_group = data_group
        self.seen = []

    def begin_training(self, bp_step=-1):
        self.seen.append(bp_step)

    def begin_batch(self, rewards, bp_step, gain=2):
        self.seen.append((rewards, bp_step, gain))
        return {self.data_group: {"scaled": rewards * gain}, "count": bp_step + 1}

    def end_training(self):
        self.seen.append("end")


class Pickled(Callback):
    def begin_batch(self, rewards):
        return {"doubled": rewards * 2}


@pytest.mark.parametrize("hook", HOOKS)
def test_hook_that_is_not_overridden_accepts_anything_and_returns_nothing(hook):
    assert getattr(Callback(), hook)(1, "two", three=3) is None


def test_group_of_the_class_counts_when_the_instance_has_none():
    class Grouped(Callback):
        DATA_GROUP = "rl"

        def begin_batch(self, rewards):
            return {"seen": rewards}

    assert Grouped().begin_batch(rl={"rewards": 3}, rewards=1) == {"seen": 3}
    instance = Grouped()
    instance.data_group = "other"
    assert instance.begin_batch(rl={"rewards": 3}, other={"rewards": 4}) == {"seen": 4}


def test_hook_without_parameters_drops_everything_it_is_given():
    callback = Recorder()
    callback.end_training(ValueError("why"), bp_step=3)
    assert callback.seen == ["end"]

    class OddlyNamed(Callback):
        def end_training(this):  # noqa: N805 -- the name of the object must not matter
            return {"ok": True}

    assert OddlyNamed().end_training(ValueError("why"), bp_step=3) == {"ok": True}


def test_missing_key_is_an_error_that_names_everything():
    match = (
        r"Recorder \(Recorder\)\.begin_batch: expected the key 'rewards' in group 'default', which "
        r"has \['actions'\], or the outer state, which has \['bp_step', 'default'\]"
    )
    with pytest.raises(MissingStateKeyError, match=match):
        Recorder("default").begin_batch(bp_step=1, default={"actions": 0})


def test_absent_group_is_an_error_even_when_defaults_would_hide_it():
    class Optional(Callback):
        def __init__(self):
            super().__init__()
            self.data_group = "defualt"

        def begin_batch(self, rewards=None):
            return {"got": rewards}

    with pytest.raises(MissingStateKeyError, match=r"group 'defualt', which is absent"):
        Optional().begin_batch(default={"rewards": 1}, bp_step=1)
    assert Optional().begin_batch(rewards=4, bp_step=1) == {"got": 4}
    assert Optional().begin_batch() == {"got": None}  # by hand, outside a training


def test_begin_training_of_a_grouped_callback_uses_the_outer_state_before_a_batch_exists():
    callback = Recorder("default")
    callback.begin_training(bp_step=1)
    callback.begin_training(other=1)
    assert callback.seen == [1, -1]


def test_super_reaches_the_function_as_written():
    class Child(Recorder):
        def begin_batch(self, actions):
            return super().begin_batch(actions, bp_step=0, gain=100)

    child = Child("default")
    group = {"actions": 4}
    assert child.begin_batch(default=group) == {"count": 1}
    assert child.seen == [(4, 0, 100)]
    assert group == {"actions": 4, "scaled": 400}


def test_hook_with_keywords_gets_the_whole_state_and_a_warning():
    class Greedy(Callback):
        data_group = "default"

        def begin_batch(self, **kwargs):
            return {"got": sorted(kwargs)}

    with pytest.warns(UserWarning, match=r"Deprecated: Greedy\.begin_batch takes"):
        greedy = Greedy()
    assert greedy.begin_batch(a=1, default={"b": 2}) == {"got": ["a", "default"]}


def test_backward_and_marked_hooks_take_the_whole_state_without_a_warning():
    class Quiet(Callback):
        def backward(self, *args, **kwargs):
            return {"got": kwargs}

        @Callback.whole_state
        def end_batch(self, **state):
            return {"got": state}

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quiet = Quiet()
    assert quiet.backward(a=1) == {"got": {"a": 1}}
    assert quiet.end_batch(a=1) == {"got": {"a": 1}}


def test_extended_method_of_a_subclass_is_injected():
    class Judge(Callback):
        @Callback.extend
        def judge(self, *args, **kwargs):
            return "raw", kwargs

    class Strict(Judge):
        data_group = "default"

        def judge(self, rewards):
            return rewards

    assert Judge().judge(rewards=1) == ("raw", {"rewards": 1})
    assert Strict().judge(default={"rewards": 5}) == 5
    assert set(Strict._callbacks) == {*HOOKS, "judge"}


def test_batch_callback_passes_the_batch_to_get_batch():
    class Fields(BatchCallback):
        data_group = "default"

        def get_batch(self, rewards):
            return {"default": {"twice": rewards * 2}, "seen": True}

    group = {"rewards": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fields = Fields()
    assert fields.begin_batch(default=group, other=1) == {"seen": True}
    assert group["twice"] == 4
    assert BatchCallback().begin_batch(anything=1) is None


class MemberKeys(Callback):
    def __init__(self, key, group=None):
        super().__init__()
        self.size_key = key
        self.data_group = group

    @Callback.keys_from_member(size="size_key")
    def begin_batch(self, size=-1):
        return {"got": size}


def test_key_from_a_member_prefers_the_value_in_the_group():
    callback = MemberKeys("rows", "default")
    assert callback.begin_batch(rows=3, default={"rows": 7}) == {"got": 7}
    assert callback.begin_batch(rows=3, default={}) == {"got": 3}
    assert callback.begin_batch(default={"rows": 7}) == {"got": 7}


def test_signature_spells_out_keywords_that_a_constructor_passes_on():
    class Settings(TypedDict, total=False):
        cycle: int | None

    class Others(TypedDict, total=False):
        unknown: int

    class Passing(Callback):
        def __init__(self, a, **others: Unpack[Settings]):
            super().__init__(**others)

    class Keeping(Callback):
        def __init__(self, a, **others: Unpack[Others]):
            super().__init__()

    cycle = inspect.signature(Passing).parameters["cycle"]
    assert (cycle.kind, cycle.default) == (inspect.Parameter.KEYWORD_ONLY, None)
    assert list(inspect.signature(Keeping).parameters) == ["a", "others"]
    assert Passing(1, cycle=3).cycle == 3


def test_group_result_that_is_no_mapping_is_an_error():
    class Wrong(Callback):
        data_group = "default"

        def begin_batch(self):
            return {"default": 3}

    with pytest.raises(HookReturnError, match=r"group 'default': expected a mapping .* got int"):
        Wrong().begin_batch(default={})


def test_callback_survives_pickling_and_deep_copies_with_its_injection():
    for twin in (pickle.loads(pickle.dumps(Pickled())), copy.deepcopy(Pickled())):  # noqa: S301
        assert twin.begin_batch(rewards=2, other=1) == {"doubled": 4}
    assert "begin_batch" not in vars(Pickled())


@pytest.mark.parametrize("name", ["end_bacth", "begin_trainig", "bakward", "restore_sate"])
def test_misspelt_hook_is_refused_with_the_one_it_resembles(name):
    with pytest.raises(ConfigurationTypeError, match=rf"Typo\.{name}: expected the hook '\w+', or"):
        type("Typo", (Callback,), {name: lambda self: None})
    names = ("end_batches", "begin_epoch", "_end_bacth", "forward", "losses", "after_end_batch")
    type("Fine", (Callback,), {each: lambda self: None for each in names})
