"""The status file of an online data engine: what it says, in rows for a terminal or a page."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cadenza.core.errors import ConfigurationError, IntegrityError
from cadenza.core.strict_json import parse_json_object

#: Columns of `producer_rows`; with the padding they fit into 80 characters.
PRODUCER_COLUMNS: Final = (
    "no.",
    "state",
    "pid",
    "episodes",
    "steps",
    "dropped",
    "starts",
    "wait/s",
    "quiet/s",
)
#: States that a stream does not leave.
ENDED: Final = ("FAILED", "STOPPED")
_VERSION: Final = 1
#: Age of a status beyond which its engine has probably been killed, s; it writes one each second.
_OLD_S: Final = 10.0


def read_status(file: Path) -> dict[str, Any]:
    """Return the status that an engine wrote.

    Raises:
        ConfigurationError: There is no such file.
        IntegrityError: It is no status of this version.
    """
    try:
        data = file.read_bytes()
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"{file}: expected the status file of an online data engine, got none; set "
            "status_path in its configuration."
        ) from error
    status = parse_json_object(data, source=str(file))
    if status.get("schema_version") != _VERSION:
        raise IntegrityError(
            f"{file}: expected a status of version {_VERSION}, got "
            f"{status.get('schema_version')!r}; use the cadenza that wrote it."
        )
    try:
        for show in (headline, summary_rows, producer_rows, producer_errors):
            show(status)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise IntegrityError(
            f"{file}: expected the status of an online data engine, got one with missing or other "
            f"values ({error!r}); give the file that status_path names."
        ) from error
    return status


def headline(status: Mapping[str, Any]) -> str:
    """Return the line above the tables."""
    line = f"Stream of process {status['owner_pid']}: {status['state']}"
    if status["frozen_s"]:
        line += f", blocked for {status['frozen_s']:.0f} s: draws wait, all producers pause"
    age_s = (time.time_ns() - int(status["time_ns"])) / 1e9
    if status["state"] in ENDED or age_s < _OLD_S:
        return line
    return f"{line}, but without news for {age_s:.0f} s"


def summary_rows(status: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return name and value of every total."""
    return [
        (
            "produced",
            f"{status['episodes']} episodes, {status['frames']} steps, "
            f"{status['frames_per_s']:.0f} steps/s, {status['dropped']} dropped",
        ),
        (
            "drawn",
            f"{status['chunks']} chunks, {status['chunks_per_s']:.0f} chunks/s, "
            f"{status['redraws']} drawn anew, {status['replay_ratio']:.2f} per step",
        ),
        (
            "readable",
            f"{status['readable']} episodes, {status['unread']} of them unread, "
            f"{status['passed_over']} passed over",
        ),
        (
            "age when drawn",
            f"{status['staleness_mean_s']:.2f} s mean, {status['staleness_p95_s']:.2f} s at 95 %",
        ),
        (
            "policy",
            f"version {status['policy_version']}; data is {status['version_lag_mean']:.2f} "
            f"versions behind, {status['version_lag_p95']} at 95 %",
        ),
        (
            "left out",
            f"{status['excluded_mean']:.1%} of the episodes or segments, shorter than a chunk",
        ),
        (
            "waiting",
            f"producers {status['stalled_s']:.1f} s, consumers {status['blocked_s']:.1f} s",
        ),
        ("fills requested", str(status["fills_requested"])),
    ]


def producer_rows(status: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return one row per producer."""
    return [
        (
            str(row["producer"]),
            str(row["state"]),
            str(row["pid"]),
            str(row["episodes"]),
            str(row["frames"]),
            str(row["dropped"]),
            str(int(row["restarts"]) + 1),
            f"{row['stalled_s']:.1f}",
            f"{row['silent_s']:.1f}",
        )
        for row in status["producers"]
    ]


def producer_errors(status: Mapping[str, Any]) -> list[str]:
    """Return one line per producer that has failed: its last error."""
    return [
        f"producer {row['producer']}: " + str(row["error"]).partition("\n")[0]
        for row in status["producers"]
        if row["error"] is not None
    ]
