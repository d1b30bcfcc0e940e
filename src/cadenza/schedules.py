"""Schedules of settings: what changes with the environment steps done, such as a learning rate.

    from cadenza import schedules
    cadenza.SAC("Pendulum-v1", learning_rate=schedules.linear(3e-4, 1e-5, steps=1_000_000))

In files it is a mapping, ``{schedule: linear, start: 3.0e-4, end: 1.0e-5, steps: 1000000}``. From
``steps`` on, all have their ``end``; a number is constant.
"""

from cadenza.learn.settings import ScheduleConfig

__all__ = ["cosine", "linear", "step"]


def linear(start: float, end: float, *, steps: int) -> ScheduleConfig:
    """Return a line from ``start`` to ``end`` over ``steps`` environment steps."""
    return ScheduleConfig(schedule="linear", start=start, end=end, steps=steps)


def cosine(start: float, end: float, *, steps: int) -> ScheduleConfig:
    """Return half a cosine wave from ``start`` to ``end`` over ``steps`` environment steps.

    Source: arXiv:1608.03983, equation 5, without restarts.
    """
    return ScheduleConfig(schedule="cosine", start=start, end=end, steps=steps)


def step(start: float, end: float, *, steps: int, stairs: int = 1) -> ScheduleConfig:
    """Return ``stairs`` equal jumps from ``start`` to ``end``, the last after ``steps``.

    They are evenly spaced; a single one keeps ``start`` until then.
    """
    return ScheduleConfig(schedule="step", start=start, end=end, steps=steps, stairs=stairs)
