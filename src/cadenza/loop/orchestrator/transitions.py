"""What a step of a run comes to: the next state, what is told of it, what is changed beside it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cadenza.loop.state import LoopState, Step
from cadenza.loop.store.changes import Change


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """An event that a transition emits.

    Attributes:
        stage: Part of the loop.
        kind: What happened.
        cycle: Cycle of the run; None for the run itself.
        payload: Details.
    """

    stage: str
    kind: str
    cycle: int | None = None
    payload: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """What is committed after a step, in one transaction.

    Attributes:
        state: The new state.
        events: What to tell, in order.
        rows: Changes of the store's tables, in order.
    """

    state: LoopState
    events: tuple[Notice, ...] = ()
    rows: tuple[Change, ...] = ()


def moved(state: LoopState, step: Step, **update: object) -> LoopState:
    """Return ``state`` at another step, with other values of its fields."""
    return state.model_copy(update={"step": step, **update})


def in_cycle(state: LoopState, step: Step, **update: object) -> LoopState:
    """Return ``state`` at another step, with other values of its cycle's fields."""
    return moved(state, step, current=state.current.model_copy(update=update))
