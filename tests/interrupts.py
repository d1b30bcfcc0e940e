"""Ends a call in the middle by an exception, at a place of one's choice or by chance."""

import dis
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from types import CodeType, FrameType
from typing import Any

import numpy as np

#: Instructions after which the interpreter looks whether a signal came.
CHECKED = frozenset({"CALL", "CALL_FUNCTION_EX", "JUMP_BACKWARD", "RESUME"})


class Interrupt(BaseException):
    """Stands in for the KeyboardInterrupt of a user."""


def interrupted_everywhere(
    call: Callable[[], object], *modules: str, anywhere: bool = False
) -> Iterator[int]:
    """Interrupt ``call`` at each of its instructions in turn, and yield the number after each.

    Args:
        call: What to run; once for every instruction.
        modules: Names of modules whose instructions count.
        anywhere: Also where the interpreter never looks for signals.
    """
    step = 1
    while _is_interrupted_at(step, call, modules, anywhere=anywhere):
        yield step
        step += 1


def interrupted_often(
    call: Callable[[], object], times: int, between_s: tuple[float, float]
) -> None:
    """Repeat ``call`` until a clock has interrupted it ``times`` times.

    The interpreter takes these interrupts where it would take those of a user, which no tracing can
    tell exactly. None is traced: in coverage's tracer they would leave a lock behind, for ever.

    Args:
        call: What to run.
        times: How often it shall be interrupted.
        between_s: Shortest and longest time to the next interrupt, s.
    """

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def report(lost: Any) -> None:  # an interrupt in a destructor goes no further
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            told(lost)

    chance, caught, deadline = np.random.default_rng(0), 0, time.monotonic() + 800.0
    before, told = signal.signal(signal.SIGALRM, interrupt), sys.unraisablehook
    limit_s = signal.getitimer(signal.ITIMER_REAL)[0]  # of what guards against hanging
    sys.unraisablehook, tracer = report, sys.gettrace()
    sys.settrace(None)
    try:
        while caught < times:
            assert time.monotonic() < deadline, f"{caught} of {times} interrupts"
            try:
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(*between_s))
                ends = time.monotonic() + max(10.0 * between_s[1], 0.01)
                while time.monotonic() < ends:
                    call()
            except KeyboardInterrupt:
                caught += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        sys.unraisablehook = told
        sys.settrace(tracer)


def _is_interrupted_at(
    step: int, call: Callable[[], object], modules: tuple[str, ...], *, anywhere: bool
) -> bool:
    """Run ``call``; raise before its instruction ``step``; return whether it came to that one."""
    seen, before = 0, sys.gettrace()
    last: dict[FrameType, int] = {}

    def count(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal seen
        if event == "opcode":
            previous = last.get(frame)
            last[frame] = frame.f_lasti
            if anywhere or (previous is not None and previous in _checked(frame.f_code)):
                seen += 1
            if seen == step:
                raise Interrupt
        return count

    def enter(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_globals.get("__name__") not in modules:
            return None
        frame.f_trace_opcodes = True
        return count

    sys._getframe().f_trace_opcodes = True  # else Python 3.12 asks no frame
    sys.settrace(enter)
    try:
        call()
    except Interrupt:
        return True
    finally:
        sys.settrace(before)
        last.clear()
    return False


@cache
def _checked(code: CodeType) -> frozenset[int]:
    return frozenset(i.offset for i in dis.get_instructions(code) if i.opname in CHECKED)
