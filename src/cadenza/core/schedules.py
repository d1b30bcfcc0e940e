"""Numbers that change with the training step.

A `Schedule` starts at ``initial``; call number s (counted from 0) of `Schedule.step` sets the value
that the class's formula gives for s, so the first call usually leaves it unchanged. The formulas
are exact at any s, so a schedule resumes from its step count alone.
"""

import math
from dataclasses import dataclass
from typing import Final, Literal

from cadenza.core.errors import InputError

#: Widths below this count as a step function; from the engine this package follows.
_MIN_WIDTH: Final = 1e-10

CyclicMode = Literal["triangular", "triangular2"]


def truncated_linear(min_x: float, max_x: float, min_y: float, max_y: float, x: float) -> float:
    """Return the line from ``(min_x, min_y)`` to ``(max_x, max_y)`` at ``x``, flat outside.

    ``max_y < min_y`` gives a falling line. A range narrower than 1e-10 gives ``max_y``.
    """
    if max_x - min_x < _MIN_WIDTH:
        return max_y
    if x <= min_x:
        return min_y
    return min_y + min(1.0, (x - min_x) / (max_x - min_x)) * (max_y - min_y)


@dataclass(frozen=True, slots=True)
class BPStepScheduler:
    """A line between two backprop steps, from ``value_min`` to ``value_max``, flat outside."""

    bp_step_begin: float
    bp_step_end: float
    value_min: float
    value_max: float

    def evaluate_at(self, bp: float) -> float:
        """Return the value at backprop step ``bp``."""
        return truncated_linear(
            self.bp_step_begin, self.bp_step_end, self.value_min, self.value_max, bp
        )


class Schedule:
    """A number that changes on every call of `step`; this class's own stays at ``initial``.

    A schedule of your own overrides `_value_at`, which makes it resume, or `value` and `step`.
    """

    def __init__(self, initial: float, final: float, steps: int) -> None:
        if steps < 1:
            raise InputError(f"{type(self).__name__}: expected steps >= 1, got {steps}.")
        self.initial = initial
        self.final = final
        self.steps = steps
        self._calls = 0
        self._value = initial

    @property
    def value(self) -> float:
        """Current value."""
        return self._value

    def at(self, s: int) -> float:
        """Return the formula's value for ``s``, wherever the schedule is."""
        return self._value_at(s)

    def step(self) -> None:
        """Move on by one step."""
        self._value = self._value_at(self._calls)
        self._calls += 1

    def state_dict(self) -> dict[str, int]:
        """Return what `load_state_dict` needs to continue here."""
        return {"calls": self._calls}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue where ``state`` was taken.

        Raises:
            InputError: ``state`` holds no number of calls >= 0.
        """
        calls = state.get("calls", -1)
        if calls < 0:
            raise InputError(
                f"{type(self).__name__}.load_state_dict: expected 'calls' >= 0, got {state}."
            )
        self._calls = calls
        self._value = self._value_at(calls - 1) if calls > 0 else self.initial

    def _value_at(self, s: int) -> float:
        """Return the value that call ``s`` sets."""
        del s
        return self.initial


class ConstantSchedule(Schedule):
    """Always the same value."""

    def __init__(self, value: float) -> None:
        super().__init__(value, value, 1)


class LinearSchedule(Schedule):
    """A line that reaches ``final`` after ``steps`` and stays there; optionally in stairs."""

    def __init__(
        self,
        initial: float,
        final: float,
        steps: int,
        use_staircase: bool = False,
        staircase_steps: int = 5,
    ) -> None:
        super().__init__(initial, final, steps)
        if staircase_steps < 1:
            raise InputError(
                f"LinearSchedule: expected staircase_steps >= 1, got {staircase_steps}."
            )
        self._stairs = staircase_steps if use_staircase else None

    def _value_at(self, s: int) -> float:
        share = s / self.steps
        if self._stairs is not None:  # rounded down to equal steps
            share = (s * self._stairs // self.steps) / self._stairs
        return self.initial + min(share, 1.0) * (self.final - self.initial)


class CyclicSchedule(Schedule):
    """A triangular wave (arXiv:1506.01186); ``triangular2`` halves its height every cycle."""

    def __init__(
        self,
        initial: float,
        final: float,
        half_period_steps: int,
        mode: CyclicMode = "triangular",
    ) -> None:
        super().__init__(initial, final, half_period_steps)
        if mode not in ("triangular", "triangular2"):
            raise InputError(
                f"CyclicSchedule: expected mode 'triangular' or 'triangular2', got {mode!r}."
            )
        self._halve = mode == "triangular2"

    def _value_at(self, s: int) -> float:
        cycle = s // (2 * self.steps)
        height = 1.0 - abs(s / self.steps - 2 * cycle - 1.0)
        amplitude = 0.5**cycle if self._halve else 1.0
        return self.initial + (self.final - self.initial) * max(0.0, height) * amplitude


class CosineAnnealing(Schedule):
    """A cosine wave between ``initial`` and ``final`` with period 2 * ``steps``."""

    def _value_at(self, s: int) -> float:
        wave = 1.0 + math.cos(math.pi * s / self.steps)
        return self.final + 0.5 * (self.initial - self.final) * wave


class CosineAnnealingWarmRestarts(CosineAnnealing):
    """Falls along a half cosine and jumps back to ``initial`` every ``steps``."""

    def _value_at(self, s: int) -> float:
        return super()._value_at(s % self.steps)
