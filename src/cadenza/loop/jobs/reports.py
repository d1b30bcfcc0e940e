"""What a runner tells while it works: how a job goes on, and what went wrong on the way."""

from typing import Literal, TypeAlias

from cadenza.loop.contracts.records import JobKey, Record

#: A live job of an earlier controller was taken over; processes of a dead host were killed; an
#: attempt was killed from outside; an attempt failed; a host without a sign of life was killed; a
#: host waits for a machine that has room for it; a command leaves no trace for long.
IncidentKind: TypeAlias = Literal[
    "adopted",
    "reaped",
    "interrupted",
    "attempt_failed",
    "host_killed",
    "waiting_for_room",
    "silent",
]


class Incident(Record):
    """Something that a run survived; no event, as an undisturbed run does not have it.

    Attributes:
        kind: What happened.
        key: To which job.
        attempt: In which attempt.
        message: Details for people.
    """

    kind: IncidentKind
    key: JobKey
    attempt: int
    message: str


class JobProgress(Record):
    """How a running job stands.

    Attributes:
        key: Which job.
        attempt: Number of the attempt.
        attempt_s: Seconds of this attempt so far.
        spent_s: Seconds of earlier attempts.
        time_limit_s: Seconds it may take; None for no limit.
        waits_for: What keeps it from starting; None if nothing does.
        quiet_s: Seconds since it left a trace in its log or folder.
    """

    key: JobKey
    attempt: int
    attempt_s: float
    spent_s: float
    time_limit_s: float | None
    waits_for: str | None = None
    quiet_s: float = 0.0
