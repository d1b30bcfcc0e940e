"""Callbacks that fit every training."""

from cadenza.core.errors import PreconditionError
from cadenza.learn.callback import ORDER_STOP, Callback
from cadenza.learn.trainer import TrainingShutdownException


class BackPropStepsTerminator(Callback):
    """Ends training when the run has done ``bp_steps`` steps in total, those before a restore too.

    It comes after all other callbacks, so what they do at the end of the last step still happens.
    """

    def __init__(self, bp_steps: int) -> None:
        """Set the total.

        Raises:
            PreconditionError: ``bp_steps`` is not above 0.
        """
        if not bp_steps > 0:
            raise PreconditionError(
                f"Training steps must be above 0. Expected bp_steps >= 1, got {bp_steps}."
            )
        super().__init__(cycle=bp_steps)
        self._order = ORDER_STOP
        self._bp_steps = bp_steps

    def begin_training(self, bp_step: int) -> None:
        """Stop at once when the restored run has all its steps already."""
        if bp_step > self._bp_steps:
            raise TrainingShutdownException(
                f"the run has done {bp_step - 1} steps of {self._bp_steps}"
            )

    def end_cycle(self) -> None:
        """Stop."""
        raise TrainingShutdownException(f"{self._bp_steps} steps are done")
