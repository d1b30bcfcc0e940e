"""Events that a bus wrote to the log of a run while no controller was at work on it.

LeAgents' users emit to the bus of a run before they start it. The run takes such events over: into
its table, under the numbers that they have in the log.

Taken:    what the run's own bus wrote behind the events that the store has; and whatever stands in
          the log of a new run, unless a controller wrote it.
Refused:  the log of a run whose store is lost, and events that the store ought to have.
"""

from pathlib import Path
from typing import Final

from cadenza.core.errors import IntegrityError
from cadenza.core.strict_json import parse_json_object
from cadenza.loop.errors import EventError, EventLogError
from cadenza.loop.events.bus import last_seq
from cadenza.loop.events.event import Event, event_line
from cadenza.loop.events.log_file import LogFile
from cadenza.loop.store.rows import StoredEvent

#: Step key of the events taken over, before their number in the log.
_STEP: Final = "outside"
#: What only a controller emits, first in every run.
_BEGINNING: Final = ("orchestrator", "cycle_started")


def require_usable_log(path: Path, run_id: str, own_from: int | None) -> None:
    """Raise unless a new run can use the log at ``path``, which need not exist.

    Args:
        path: The log.
        run_id: The run, which its store does not know yet.
        own_from: Number of the first event that the run's own bus wrote; None for none.

    Raises:
        EventLogError: Another writer owns it, or it is another run's.
    """
    if not path.exists():
        return
    log = LogFile(path)
    try:
        earlier_events(log, path, run_id, known=0, own_from=own_from)
    finally:
        log.close()


def earlier_events(
    log: LogFile, path: Path, run_id: str, *, known: int, own_from: int | None
) -> list[StoredEvent]:
    """Return the events of a log behind the first ``known`` ones, which the store has.

    Args:
        log: The log.
        path: Where it is.
        run_id: The run.
        known: Number of the last event in the store, 0 for none.
        own_from: Number of the first event that the run's own bus wrote; None for none.

    Raises:
        EventLogError: They are not for the run to take.
    """
    seq = last_seq(log, path)
    if seq <= known:
        return []
    own = seq + 1 if own_from is None else own_from
    if known and own > known + 1:
        raise EventLogError(
            f"{path}: expected event {known} in the last line, as in the store, got {seq}; they "
            "were emitted while nobody worked on the run, or log and store are of different runs: "
            "move the log away and resume, and it is written anew."
        )
    lines = path.read_bytes().splitlines(keepends=True)
    if len(lines) != seq:
        raise _not_of_run(path, run_id, f"{len(lines)} lines up to number {seq}")
    found: list[StoredEvent] = []
    for number, line in enumerate(lines[known:], start=known + 1):
        event = _parsed(line, number, path, run_id)
        if number < own and (event.stage, event.kind) == _BEGINNING:
            raise EventLogError(
                f"{path}: expected a log without a run, got the {seq} events of a run that the "
                f"store does not know; give the new run another id than {run_id!r}, or name the "
                "store that the old one was begun with."
            )
        found.append(event)
    return found


def _parsed(line: bytes, number: int, path: Path, run_id: str) -> StoredEvent:
    """Return the event of a line that a bus wrote.

    Raises:
        EventLogError: The line is something else.
    """
    try:
        document = parse_json_object(line, source=f"{path}, line {number}")
        match document:
            case {
                "run_id": str(of_run),
                "stage": str(stage),
                "kind": str(kind),
                "cycle": int() | None as cycle,
                "payload": payload,
                "ts": float(ts),
                "mono": float(mono),
            } if of_run == run_id:
                event = Event(run_id, stage, kind, cycle, payload, ts)
            case _:
                raise _not_of_run(path, run_id, f"another one in line {number}")
    except (IntegrityError, EventError) as error:
        raise _not_of_run(path, run_id, f"{error}") from error
    if event_line(event, seq=number, mono=mono) != line:
        raise _not_of_run(path, run_id, f"another layout in line {number}")
    return StoredEvent(
        step_key=f"{_STEP}/{number}",
        ordinal=0,
        stage=stage,
        kind=kind,
        cycle=cycle,
        payload=event.payload_json(),
        ts=ts,
        mono=mono,
    )


def _not_of_run(path: Path, run_id: str, got: str) -> EventLogError:
    return EventLogError(
        f"{path}: expected events of run {run_id!r} as an EventBus writes them, got {got}; move "
        "the log away, or give the run another id."
    )
