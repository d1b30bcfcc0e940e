import pytest

from cadenza.core.errors import ConfigurationError
from cadenza.learn import BatchCallback, Callback, Trainer, TrainingShutdownException
from cadenza.learn.injection import HookReturnError, MissingStateKeyError
from cadenza.learn.trainer import TrainingStartError


def batches(count, rows=2, **more):
    return [{"batch_size": rows, **more} for _ in range(count)]


class Spy(Callback):
    """Notes the name of every hook that runs."""

    def __init__(self, calls, name, cycle=None, order=0):
        super().__init__(cycle)
        self.calls = calls
        self.name = name
        self._order = order

    def note(self, hook):
        self.calls.append(f"{self.name}.{hook}")

    def restore_state(self):
        self.note("restore_state")

    def begin_training(self):
        self.note("begin_training")

    def begin_cycle(self):
        self.note("begin_cycle")

    def begin_batch(self):
        self.note("begin_batch")

    def backward(self):
        self.note("backward")

    def end_batch(self):
        self.note("end_batch")

    def end_cycle(self):
        self.note("end_cycle")

    def end_training(self, exception):
        self.note(f"end_training({type(exception).__name__})")


class Raising(Callback):
    """Raises ``error`` in one hook."""

    def __init__(self, hook, error, at_step=1, order=0, name="Raising"):
        super().__init__(cycle=1)
        self.hook, self.error, self.at_step = hook, error, at_step
        self._order = order
        self.name = name

    def maybe(self, hook, step=None):
        if hook == self.hook and (step is None or step == self.at_step):
            raise self.error

    def restore_state(self):
        self.maybe("restore_state")

    def begin_training(self):
        self.maybe("begin_training")

    def begin_batch(self, bp_step):
        self.maybe("begin_batch", bp_step)

    def end_batch(self, bp_step):
        self.maybe("end_batch", bp_step)

    def end_training(self):
        self.maybe("end_training")


def test_every_hook_runs_for_all_callbacks_before_the_next_hook():
    calls = []
    Trainer([Spy(calls, "a", cycle=1), Spy(calls, "b")], batches(1)).train()
    assert calls == [
        "a.restore_state",
        "b.restore_state",
        "a.begin_training",
        "b.begin_training",
        "a.begin_cycle",
        "a.begin_batch",
        "b.begin_batch",
        "a.backward",
        "b.backward",
        "a.end_batch",
        "b.end_batch",
        "a.end_cycle",
        "a.end_training(NoneType)",
        "b.end_training(NoneType)",
    ]


def test_order_sorts_callbacks_stably():
    names = [("late", 5), ("first", 0), ("second", 0), ("early", -1)]
    callbacks = [Spy([], name, order=order) for name, order in names]
    trainer = Trainer(callbacks, [])
    assert [callback.name for callback in trainer.callbacks] == ["early", "first", "second", "late"]


def test_cycles_begin_and_end_at_absolute_steps():
    class Steps(Callback):
        def __init__(self, first):
            super().__init__(cycle=3)
            self.first, self.began, self.ended = first, [], []

        def restore_state(self):
            return {"bp_step": self.first}

        def begin_cycle(self, bp_step):
            self.began.append(bp_step)

        def end_cycle(self, bp_step):
            self.ended.append(bp_step)

    fresh, resumed = Steps(1), Steps(5)
    Trainer([fresh], batches(7)).train()
    Trainer([resumed], batches(7)).train()
    assert (fresh.began, fresh.ended) == ([1, 4, 7], [3, 6])
    assert (resumed.began, resumed.ended) == ([7, 10], [6, 9])


def test_counters_count_from_one_and_sum_the_batch_sizes():
    seen = []

    class Reader(Callback):
        def begin_batch(self, bp_step, bp_samples):
            seen.append((bp_step, bp_samples))

    trainer = Trainer([Reader()], batches(3, rows=4))
    trainer.state.update(bp_step=100, bp_samples=100, mine="kept")
    trainer.train()
    assert seen == [(1, 4), (2, 8), (3, 12)]
    assert trainer.state["mine"] == "kept"


def test_batch_without_its_size_is_an_error_that_names_the_keys():
    calls = []
    with pytest.raises(
        MissingStateKeyError, match=r"expected the batch to have 'batch_size', got \['rows'\]"
    ):
        Trainer([Spy(calls, "a")], [{"rows": 3}]).train()
    assert calls[-1] == "a.end_training(MissingStateKeyError)"
    with pytest.raises(KeyError):
        Trainer([], [{"batch_size": 1}, {"rows": 3}]).train()


class Reward(Callback):
    """Adds a field to its group, or replaces the group if it belongs to none."""

    def __init__(self, group, key="shaped"):
        super().__init__()
        self.data_group = group
        self.key = key

    def begin_batch(self):
        return {"default": {self.key: 1}}


def test_grouped_result_is_merged_into_the_group_and_an_ungrouped_one_replaces_it():
    grouped = Trainer([Reward("default")], batches(1, default={"rewards": 5}))
    grouped.train()
    assert grouped.state["default"] == {"rewards": 5, "shaped": 1}
    ungrouped = Trainer([Reward(None)], batches(1, default={"rewards": 5}))
    ungrouped.train()
    assert ungrouped.state["default"] == {"shaped": 1}


def test_group_written_at_the_start_of_a_cycle_stays():
    class Phase(Callback):
        def __init__(self):
            super().__init__(cycle=3)
            self.seen = []

        def begin_cycle(self, bp_step):
            return {"phase": {"number": bp_step}}

        def begin_batch(self, phase):
            self.seen.append(phase["number"])

    phase = Phase()
    Trainer([phase], batches(4)).train()
    assert phase.seen == [1, 1, 1, 4]


@pytest.mark.parametrize("wrong", [3, "text", [("a", 1)], False])
def test_hook_result_that_is_no_dict_is_an_error(wrong):
    class Wrong(Callback):
        def end_batch(self):
            return wrong

    with pytest.raises(HookReturnError, match=r"Wrong\.end_batch: expected None or a dict"):
        Trainer([Wrong()], batches(1)).train()


# --- how training ends ---------------------------------------------------------------------------


def test_shutdown_signal_stops_before_the_batch_is_trained_on():
    calls, answers = [], iter([False, True])
    trainer = Trainer([Spy(calls, "a")], batches(9))
    trainer.train(lambda: next(answers))
    assert calls.count("a.backward") == 1
    assert trainer.state["bp_step"] == 2  # counted, not trained on
    assert calls[-1] == "a.end_training(TrainingShutdownException)"


@pytest.mark.parametrize("error", [ZeroDivisionError("boom"), KeyboardInterrupt()])
def test_error_in_a_step_ends_all_callbacks_and_is_raised_as_it_is(error):
    calls = []
    with pytest.raises(type(error)) as caught:
        Trainer([Raising("end_batch", error), Spy(calls, "a")], batches(3)).train()
    assert caught.value is error
    assert calls[-1] == f"a.end_training({type(error).__name__})"


def test_error_while_starting_is_wrapped_and_chained():
    calls = []
    error = ZeroDivisionError("boom")
    callbacks = [Spy(calls, "a"), Raising("begin_training", error), Spy(calls, "b")]
    with pytest.raises(
        TrainingStartError, match=r"^Error in begin_training, aborting: boom"
    ) as caught:
        Trainer(callbacks, batches(1)).train()
    assert caught.value.__cause__ is error
    assert "b.begin_training" not in calls
    assert calls.count("a.end_training(TrainingStartError)") == 1


def test_callback_that_never_started_is_not_ended():
    class Plain(Callback):
        def __init__(self):
            super().__init__()
            self.calls = []

        def begin_training(self):
            self.calls.append("begin")

        def end_training(self):
            self.calls.append("end")

    before, after = Plain(), Plain()
    stop = Raising("begin_training", TrainingShutdownException("enough"))
    Trainer([before, stop, after], batches(1)).train()
    assert before.calls == ["begin", "end"]
    assert after.calls == []


def test_all_callbacks_are_ended_even_if_one_fails():
    calls = []
    failing = [
        Raising("end_training", ValueError("one"), name="one"),
        Raising("end_training", KeyError("two"), name="two"),
    ]
    with pytest.raises(ExceptionGroup, match="end_training failed") as caught:
        Trainer([failing[0], Spy(calls, "a"), failing[1]], batches(1)).train()
    assert [type(error) for error in caught.value.exceptions] == [ValueError, KeyError]
    assert caught.value.exceptions[0].__notes__ == ["raised by one.end_training"]
    assert calls[-1] == "a.end_training(NoneType)"


def test_original_error_stays_the_one_that_is_raised():
    class Both(Raising):
        def end_training(self):
            raise ValueError("while ending")

    original = ZeroDivisionError("original")
    with pytest.raises(ZeroDivisionError, match="original") as caught:
        Trainer([Both("begin_batch", original)], batches(1)).train()
    assert caught.value.__notes__ == ["end_training failed too: ValueError('while ending')"]


def test_generator_that_the_loader_makes_is_closed_and_the_callers_own_is_not():
    closed = []

    def generate():
        try:
            while True:
                yield {"batch_size": 1}
        finally:
            closed.append(True)

    class Loader:
        def __iter__(self):
            return generate()

    stop = Raising("end_batch", TrainingShutdownException())
    Trainer([stop], Loader()).train()
    assert closed == [True]
    own = generate()
    Trainer([stop], own).train()
    assert closed == [True]
    assert next(own) == {"batch_size": 1}


# --- who writes what -----------------------------------------------------------------------------


def test_strict_trainer_refuses_two_writers_of_one_key():
    first, second = Reward("default"), Reward("default")
    first.name, second.name = "first", "second"
    with pytest.raises(
        ConfigurationError,
        match=r"second\.begin_batch: .* writer of 'default/shaped' in step 1, got first\.begin_ba",
    ):
        Trainer([first, second], batches(1, default={}), strict=True).train()


def test_strict_trainer_accepts_declared_overwrites_and_other_keys():
    first, second, third = Reward("default"), Reward("default"), Reward("default", "other")
    second.overwrites = frozenset({"default/shaped"})
    trainer = Trainer([first, second, third], batches(3, default={}), strict=True)
    trainer.train()
    assert trainer.state["default"] == {"shaped": 1, "other": 1}


def test_trace_says_who_wrote_a_key_last():
    class Fields(BatchCallback):
        data_group = "default"

        def get_batch(self):
            return {"default": {"doubled": 2}, "count": 1}

    trainer = Trainer([Reward("default"), Fields()], batches(1, default={}), trace=True)
    trainer.train()
    assert trainer.writers == {
        "default/shaped": "Reward.begin_batch",
        "default/doubled": "Fields.begin_batch",
        "count": "Fields.begin_batch",
    }
    silent = Trainer([Reward("default")], batches(1, default={}))
    silent.train()
    assert silent.writers == {}


# --- a loop of one's own -------------------------------------------------------------------------


def test_single_batches_run_the_steps_and_count_on():
    calls = []
    spy = Spy(calls, "a", cycle=2)
    trainer = Trainer([spy], [])
    trainer.train_on({"batch_size": 3})
    assert (trainer.state["bp_step"], trainer.state["bp_samples"]) == (1, 3)
    assert calls == ["a.begin_cycle", "a.begin_batch", "a.backward", "a.end_batch"]
    trainer.train_on({"batch_size": 4})
    assert (trainer.state["bp_step"], trainer.state["bp_samples"]) == (2, 7)
    assert calls[-1] == "a.end_cycle"


def test_batch_of_the_loader_is_not_changed():
    batch = {"batch_size": 1, "default": {"rewards": 5}}
    Trainer([Reward("default")], [batch, batch]).train()
    assert batch == {"batch_size": 1, "default": {"rewards": 5}}
