"""Named events of a task, counted from what the robots see: how a partner behaves, in numbers.

Counts:   per control step and environment; durations in seconds, passings and arrivals once each.
          They describe the partner, robot 1.
Use:      `behavior` trains partners that seek or shun events; selection and manifests tell members
          apart by their mean counts per episode.
Axes:     2 = ego and partner, N = environments, O = state, E = events.
Adding:   one function and one `register_events`; without it, a task has ``effort`` and ``rests``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError

#: Speed below which a partner waits, m/s.
WAIT_SPEED: Final = 0.1
#: Distance within which two robots of `crossing` meet, m: half the circle they start on.
MEETING_DISTANCE: Final = 2.0
#: Distance at which a robot of `crossing` has arrived, m, and one of the push task covers, units.
NEAR: Final = 0.15
#: Distance at which two robots of the push task crowd each other, units.
CROWDED: Final = 0.3
#: Share of the bound below which an action counts as rest.
REST: Final = 0.05
#: Control steps of the two tasks, s.
_CROSSING_S: Final = 0.05
_PUSH_S: Final = 0.1

#: States before, (2, N, O), both robots' actions, states after, to increments, (N, E).
EventCounter = Callable[[NDArray[Any], Sequence[NDArray[Any]], NDArray[Any]], FloatArray]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEvents:
    """The events of one task.

    Attributes:
        names: One per event.
        count: Increments of a step, (N, E).
        preferences: Weights that a behavior-preferring partner draws from, in rewards per event.
    """

    names: tuple[str, ...]
    count: EventCounter
    preferences: tuple[float, ...]


_events: dict[str, TaskEvents] = {}


def register_events(task: str, events: TaskEvents) -> None:
    """Let ``task`` have ``events``.

    Raises:
        InputError: It has some.
    """
    if task in _events:
        raise InputError(f"register_events: task {task!r} already has events; name another task.")
    _events[task] = events


def events_of(task: str) -> TaskEvents:
    """Return the events of ``task``; those that any task has if it registered none."""
    return _events.get(task, ANY_TASK)


def crossing_events(
    before: NDArray[Any], actions: Sequence[NDArray[Any]], after: NDArray[Any]
) -> FloatArray:
    """Count ``waits``, ``yields`` (s), ``passes_left``, ``passes_right``, ``arrives``, (N, 5).

    A partner yields while it loses speed and the robots close in within `MEETING_DISTANCE`. It
    passes the ego in the step in which their distance begins to grow, on the side of its own
    velocity where the ego is: with the ego on its right it passes left.
    """
    del actions
    old, new = before[1].astype(np.float64), after[1].astype(np.float64)
    speed = np.hypot(new[:, 2], new[:, 3])
    slower = speed < np.hypot(old[:, 2], old[:, 3]) - 1e-6
    offset, drift = new[:, 6:8], new[:, 8:10]
    near = np.hypot(*offset.T) < MEETING_DISTANCE
    closing = (old[:, 6:8] * old[:, 8:10]).sum(axis=1) < 0.0
    opening = (offset * drift).sum(axis=1) >= 0.0
    side = new[:, 2] * offset[:, 1] - new[:, 3] * offset[:, 0]  # > 0: the ego is on its left
    arrived = np.hypot(new[:, 4], new[:, 5]) < NEAR
    arrives = arrived & (np.hypot(old[:, 4], old[:, 5]) >= NEAR)
    passes = near & closing & opening
    return np.stack(
        (
            _CROSSING_S * ((speed < WAIT_SPEED) & ~arrived),
            _CROSSING_S * (slower & near & ~opening),
            1.0 * (passes & (side < 0.0)),
            1.0 * (passes & (side >= 0.0)),
            1.0 * arrives,
        ),
        axis=1,
    )


def push_events(
    before: NDArray[Any], actions: Sequence[NDArray[Any]], after: NDArray[Any]
) -> FloatArray:
    """Count the seconds of ``covers_first``, ``covers_second``, ``waits``, ``crowds``, (N, 4)."""
    del before, actions
    new = after[1].astype(np.float64)
    near = [np.hypot(new[:, k], new[:, k + 1]) for k in (4, 6, 8)]
    waits = np.hypot(new[:, 2], new[:, 3]) < WAIT_SPEED
    told = (near[0] < NEAR, near[1] < NEAR, waits, near[2] < CROWDED)
    return _PUSH_S * np.stack(told, axis=1)


def any_events(
    before: NDArray[Any], actions: Sequence[NDArray[Any]], after: NDArray[Any]
) -> FloatArray:
    """Count ``effort``, Σ |a|, and ``rests``, steps without any, (N, 2)."""
    del before, after
    effort = np.abs(actions[1].astype(np.float64)).sum(axis=1)
    return np.stack((effort, 1.0 * (effort < REST)), axis=1)


ANY_TASK: Final = TaskEvents(
    names=("effort", "rests"), count=any_events, preferences=(-0.1, 0.0, 0.1)
)
register_events(
    "crossing",
    TaskEvents(
        names=("waits", "yields", "passes_left", "passes_right", "arrives"),
        count=crossing_events,
        preferences=(-2.0, 0.0, 2.0),
    ),
)
register_events(
    "mpe_cooperative_push",
    TaskEvents(
        names=("covers_first", "covers_second", "waits", "crowds"),
        count=push_events,
        preferences=(-10.0, 0.0, 10.0),
    ),
)
