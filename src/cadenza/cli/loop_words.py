"""How loops are told to people: durations, shares, one line per event."""

import json
from collections.abc import Mapping
from typing import Any, Final

#: Characters of an event's payload that a line shows.
PAYLOAD_WIDTH: Final = 160
_MINUTE_S: Final = 60
_HOUR_S: Final = 3600


def duration(seconds: float) -> str:
    """Return seconds as people say them: ``"8 s"``, ``"2 min 05 s"``, ``"3 h 20 min"``."""
    whole = round(seconds)
    if whole < _MINUTE_S:
        return f"{whole} s"
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S} min {whole % _MINUTE_S:02d} s"
    return f"{whole // _HOUR_S} h {whole % _HOUR_S // _MINUTE_S:02d} min"


def time_left(seconds: float | None) -> str:
    """Return ``"about 8 s left"``, or that nobody knows."""
    return "time left unknown" if seconds is None else f"about {duration(seconds)} left"


def event_line(cycle: int | None, stage: str, kind: str, payload: Mapping[str, Any]) -> str:
    """Return ``[cycle N] stage/kind payload`` with the payload's JSON cut short."""
    text = json.dumps(payload, ensure_ascii=False)
    shown = text if len(text) <= PAYLOAD_WIDTH else f"{text[: PAYLOAD_WIDTH - 3]}..."
    return f"[cycle {'-' if cycle is None else cycle}] {stage}/{kind} {shown}"


def plain(text: str) -> str:
    """Return ``text`` without characters that move a terminal's cursor or colour it."""
    return "".join(c if c.isprintable() else " " for c in text)
