"""What planar robots say about themselves, in the form that channels of `cadenza.comm` take."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

#: Planar robots do not turn.
UPRIGHT: Final = (1.0, 0.0, 0.0, 0.0)


def planar_comm_state(
    uids: Iterable[str],
    positions: Iterable[Sequence[float]],
    velocities: Iterable[Sequence[float]],
) -> dict[str, Any]:
    """Return ``{"pose": ..., "velocity": ..., "task_state": {}}`` by robot, z = 0.

    Args:
        uids: The robots.
        positions: [x, y] of each, m.
        velocities: [vx, vy] of each, m/s.
    """
    state: dict[str, Any] = {"pose": {}, "velocity": {}, "task_state": {}}
    for uid, (x, y), (vx, vy) in zip(uids, positions, velocities, strict=True):
        state["pose"][uid] = {"xyz": (x, y, 0.0), "quat_wxyz": UPRIGHT}
        state["velocity"][uid] = (vx, vy, 0.0)
    return state
