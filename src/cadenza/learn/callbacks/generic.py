"""Callbacks that end a training: after so many steps, or with a verdict, for tests that learn."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from cadenza.core.errors import CadenzaError, InputError, NotReadyError, PreconditionError, refuse
from cadenza.learn.callback import ORDER_STOP, Callback
from cadenza.learn.callbacks.logging_mixin import LoggingMixin
from cadenza.learn.callbacks.loss import LossCallback
from cadenza.learn.trainer import TrainingShutdownException

Logged = TypeVar("Logged")


class BackPropStepsTerminator(Callback):
    """Ends training when the run has done ``bp_steps`` steps in total, those before a restore too.

    It comes after all other callbacks, so what they do at the end of the last step still happens.
    """

    def __init__(self, bp_steps: int) -> None:
        """Set the total, above 0."""
        if not bp_steps > 0:
            told = f"Training steps must be above 0. Expected bp_steps >= 1, got {bp_steps}."
            raise PreconditionError(told)
        super().__init__(cycle=bp_steps)
        self._order = ORDER_STOP
        self._bp_steps = bp_steps

    def begin_training(self, bp_step: int) -> None:
        """Stop at once when the restored run has all its steps already."""
        if bp_step > self._bp_steps:
            told = f"the run has done {bp_step - 1} steps of {self._bp_steps}"
            raise TrainingShutdownException(told)

    def end_cycle(self) -> None:
        """Stop."""
        raise TrainingShutdownException(f"{self._bp_steps} steps are done")


class CheckFailedError(CadenzaError, AssertionError):
    """A training did not reach what a test expects of it."""


class FinalLossTestCheck(Callback):
    """Stops at step ``test_length``, and fails if a loss is above its limit then."""

    def __init__(
        self, callbacks: Sequence[LossCallback], cutoffs: Sequence[float], test_length: int
    ) -> None:
        """Choose losses and as many limits."""
        super().__init__(cycle=test_length)
        if len(callbacks) != len(cutoffs):
            got = f"{len(cutoffs)} for {len(callbacks)}"
            refuse(InputError, "FinalLossTestCheck", expected="one cutoff per loss", got=got)
        self._order = ORDER_STOP
        self._limits = list(zip(callbacks, cutoffs, strict=True))

    def end_cycle(self) -> None:
        """Judge and stop.

        Raises:
            CheckFailedError: A loss is too high or NaN.
            NotReadyError: A loss has logged nothing.
        """
        for callback, cutoff in self._limits:
            loss = _logged(callback.scalar_logs, f"loss/{callback.name}_loss")
            if not loss <= cutoff:  # written this way round so that NaN fails too
                told = f"Loss for {callback.name} too high"
                refuse(CheckFailedError, told, expected=f"at most {cutoff}", got=loss)
        raise TrainingShutdownException("the final loss check passed")


class FinalRewardTestCheck(Callback):
    """Stops at step ``test_length``, and fails if a logged reward is below ``cutoff`` then."""

    def __init__(
        self,
        callback: LoggingMixin,
        cutoff: float,
        test_length: int,
        key: str = "training/scaled_reward",
        use_windowed: bool = False,
    ) -> None:
        """Choose a reward and its limit; ``use_windowed`` judges the mean of the key's window."""
        super().__init__(cycle=test_length)
        self._order = ORDER_STOP
        self._logs, self._cutoff = callback, cutoff
        self._key, self._use_windowed = key, use_windowed

    def end_cycle(self) -> None:
        """Judge and stop.

        Raises:
            CheckFailedError: The reward is too low or NaN.
            NotReadyError: Nothing is logged under the key.
        """
        if self._use_windowed:
            window = _logged({k: v for k, v in self._logs.windowed_scalar.items() if v}, self._key)
            reward = sum(window) / len(window)
        else:
            reward = _logged(self._logs.scalar_logs, self._key)
        if not reward >= self._cutoff:  # written this way round so that NaN fails too
            expected = f"at least {self._cutoff}"
            refuse(CheckFailedError, "Reward too low", expected=expected, got=reward)
        raise TrainingShutdownException("the final reward check passed")


def _logged(logs: Mapping[str, Logged], key: str) -> Logged:
    if key not in logs:
        raise NotReadyError(f"expected a logged {key!r}, got {sorted(logs)}; check the key.")
    return logs[key]
