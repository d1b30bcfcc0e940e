import pytest

from cadenza.core.errors import PreconditionError
from cadenza.learn import Callback, Trainer
from cadenza.learn.callbacks import BackPropStepsTerminator, LoggingMixin
from cadenza.learn.callbacks.generic import (
    CheckFailedError,
    FinalLossTestCheck,
    FinalRewardTestCheck,
)


def endless():
    while True:
        yield {"batch_size": 1}


class Logs(LoggingMixin, Callback):
    def __init__(self, name="fit"):
        super().__init__()
        self.name = name

    def backward(self, bp_step):
        self.log_scalar(f"loss/{self.name}_loss", 10.0 - bp_step)
        self.log_scalar("training/scaled_reward", -10.0 + bp_step)
        self.log_windowed_scalar("windowed[2]:episode/reward", bp_step)


class Restored(Callback):
    def __init__(self, bp_step):
        super().__init__()
        self.bp_step = bp_step

    def restore_state(self):
        return {"bp_step": self.bp_step}


@pytest.mark.parametrize("steps", [0, -3])
def test_terminator_refuses_a_total_that_is_not_above_zero(steps):
    with pytest.raises(PreconditionError, match=r"Training steps must be above 0\. .* got"):
        BackPropStepsTerminator(steps)
    with pytest.raises(AssertionError):
        BackPropStepsTerminator(steps)


@pytest.mark.parametrize(("restored", "last"), [(3, 4), (4, 4), (5, 5), (9, 9)])
def test_terminator_counts_the_steps_before_a_restore(restored, last):
    trained = []

    class Seen(Callback):
        def end_batch(self, bp_step):
            trained.append(bp_step)

    trainer = Trainer([Restored(restored), Seen(), BackPropStepsTerminator(4)], endless())
    trainer.train()
    assert trained == list(range(restored, 5))
    assert trainer.state["bp_step"] == last


def test_loss_check_fails_when_a_loss_is_too_high_or_nan():
    logs = Logs()
    with pytest.raises(
        CheckFailedError, match=r"Loss for fit too high: expected at most 3\.9, got 4\.0"
    ):
        Trainer([FinalLossTestCheck([logs], [3.9], 6), logs], endless()).train()
    logs.log_scalar("loss/fit_loss", float("nan"))
    with pytest.raises(CheckFailedError, match="got nan"):
        FinalLossTestCheck([logs], [3.9], 6).end_cycle()


def test_reward_check_fails_below_its_limit():
    logs = Logs()
    with pytest.raises(
        CheckFailedError, match=r"Reward too low: expected at least -3\.9, got -4\.0"
    ):
        Trainer([logs, FinalRewardTestCheck(logs, -3.9, 6)], endless()).train()
    logs.log_scalar("training/scaled_reward", float("nan"))
    with pytest.raises(CheckFailedError, match="got nan"):
        FinalRewardTestCheck(logs, -3.9, 6).end_cycle()


def test_reward_check_takes_the_mean_of_a_window():
    logs, key = Logs(), "windowed[2]:episode/reward"
    Trainer([logs, FinalRewardTestCheck(logs, 5.5, 6, key, True)], endless()).train()  # (5 + 6) / 2
    with pytest.raises(CheckFailedError, match=r"got 5\.5"):
        FinalRewardTestCheck(logs, 5.6, 6, key=key, use_windowed=True).end_cycle()
