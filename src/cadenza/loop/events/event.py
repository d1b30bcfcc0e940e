"""One event, and its line in a log.

A line is an ASCII JSON object with the keys that LeAgents writes (`run_id, stage, kind, cycle,
payload, ts`) and three more: `seq` counts the log's events from 1, `schema` is the version of this
layout, `mono` is the emitting machine's monotonic clock, s.
"""

import json
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from cadenza.loop.errors import EventError

#: Version of the layout of a line.
SCHEMA: Final = 1
#: Longest payload, bytes of JSON: a command that lists 100 000 episodes has a tenth of it.
MAX_PAYLOAD_BYTES: Final = 1 << 23
#: Deepest nesting of a payload; what contains itself is deeper.
_MAX_DEPTH: Final = 32


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a run.

    Paths in the payload become text, tuples become lists.

    Attributes:
        run_id: The run.
        stage: Part of the loop, e.g. ``"train"``.
        kind: What happened, e.g. ``"job_started"``.
        cycle: Cycle of the run; None outside one.
        payload: Details; only what JSON can express.
        ts: When, Unix seconds (UTC); now unless given.
    """

    run_id: str
    stage: str
    kind: str
    cycle: int | None = None
    payload: Mapping[str, Any] = field(default_factory=dict[str, Any])
    ts: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        for name in ("run_id", "stage", "kind"):
            value = getattr(self, name)
            if not (isinstance(value, str) and value.isprintable() and value):
                raise EventError(f"Event.{name}: expected printable text, got {value!r}.")
        if not math.isfinite(self.ts):
            raise EventError(f"Event.ts: expected finite Unix seconds, got {self.ts}.")
        object.__setattr__(self, "ts", float(self.ts))
        object.__setattr__(self, "payload", _strict_mapping(self.payload, "payload", 0))

    def payload_json(self) -> str:
        """Return the payload as ASCII JSON.

        Raises:
            EventError: It is longer than `MAX_PAYLOAD_BYTES`.
        """
        text = json.dumps(self.payload, allow_nan=False)
        if len(text) > MAX_PAYLOAD_BYTES:
            raise EventError(
                f"Event.payload of {self.stage}/{self.kind}: expected at most {MAX_PAYLOAD_BYTES} "
                f"bytes of JSON, got {len(text)}; write large results to a file and name it."
            )
        return text


def event_line(event: Event, *, seq: int, mono: float) -> bytes:
    """Return the event's line in a log, newline included.

    Args:
        event: What happened.
        seq: Its number in the log, from 1.
        mono: Monotonic clock when it was emitted, s.

    Raises:
        EventError: The payload is too long.
    """
    event.payload_json()
    fields = {
        "run_id": event.run_id,
        "stage": event.stage,
        "kind": event.kind,
        "cycle": event.cycle,
        "payload": event.payload,
        "ts": event.ts,
        "seq": seq,
        "schema": SCHEMA,
        "mono": mono,
    }
    return json.dumps(fields, allow_nan=False).encode("ascii") + b"\n"


def _strict(value: object, place: str, depth: int) -> Any:
    """Return ``value`` with plain JSON types, or refuse it by its ``place``."""
    if depth > _MAX_DEPTH:
        raise EventError(f"Event.{place}: expected at most {_MAX_DEPTH} levels of nesting.")
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            if not math.isfinite(value):
                raise EventError(f"Event.{place}: expected a finite number, got {value}.")
            return float(value)
        case os.PathLike():
            return os.fsdecode(cast("os.PathLike[str]", value))
        case Mapping():
            return _strict_mapping(cast("Mapping[object, object]", value), place, depth)
        case list() | tuple():
            items = enumerate(cast("list[object]", value))
            return [_strict(item, f"{place}[{index}]", depth + 1) for index, item in items]
        case _:
            raise EventError(
                f"Event.{place}: expected text, numbers, lists and mappings, got "
                f"{type(value).__name__}; convert it first."
            )


def _strict_mapping(value: object, place: str, depth: int) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise EventError(f"Event.{place}: expected a mapping, got {type(value).__name__}.")
    entries = cast("Mapping[object, object]", value)
    for key in entries:
        if not isinstance(key, str):
            raise EventError(f"Event.{place}: expected text as keys, got {key!r}.")
    return {str(key): _strict(item, f"{place}.{key}", depth + 1) for key, item in entries.items()}
