"""Reports on runs beside their status: a comparison, metrics, a systemd unit, logs.

Metrics:  text format 0.0.4; counters end in ``_total``, units are base units (seconds, bytes).
          A run that nobody works on has no heartbeat.
Unit:     systemd.service(5), systemd.syntax(7): words quoted, ``%`` and ``$`` doubled.
"""

import json
import shutil
import sys
import time
from collections import Counter, deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from cadenza.core.errors import InputError, UnknownNameError
from cadenza.loop.config import LoopConfig
from cadenza.loop.contracts.records import Record
from cadenza.loop.incidents import incidents_of
from cadenza.loop.orchestrator.assembly import new_run_id
from cadenza.loop.orchestrator.loop import LEASE_TTL_S
from cadenza.loop.resuming import stored_config
from cadenza.loop.status_report import Measurement, run_status
from cadenza.loop.store.database import plain_text, shown
from cadenza.loop.store.jobstore import JobStore
from cadenza.loop.store.overview import OPEN, Overview, overviews, run_counts
from cadenza.loop.store.rows import StoredEvent
from cadenza.loop.store.schema import RUN_STATUSES


class RunComparison(Record):
    """One run beside others: where its configuration differs, and what it reached.

    Attributes:
        decisions: What was decided, with what a person refused, in the order of cycles.
        settings: Values of the keys that are not equal in all compared runs, as JSON.
        blessed: Success of the blessed policy in its own cycle; None if the run started from it.
    """

    run_id: str
    status: str
    settings: dict[str, str]
    decisions: tuple[str, ...]
    policy: str | None
    blessed: Measurement | None
    hours: float
    cost_usd: float | None


def compare_runs(store: JobStore, run_ids: Sequence[str], *, workdir: Path) -> list[RunComparison]:
    """Return two or more runs side by side.

    Raises:
        InputError: Fewer than two different runs are named.
        UnknownRowError: There is no such run.
    """
    if len(set(run_ids)) < max(2, len(run_ids)):
        raise InputError(f"compare: expected two different runs or more, got {[*run_ids]}.")
    flat = {run_id: _flat(json.loads(store.get_run(run_id)["config_json"])) for run_id in run_ids}
    keys = sorted({key for one in flat.values() for key in one})
    differing = [key for key in keys if len({one.get(key, "") for one in flat.values()}) > 1]
    found: list[RunComparison] = []
    for run_id, settings in flat.items():
        status = run_status(store, run_id, workdir=workdir, newest=None)
        best, model = status.blessed, status.language_model
        cycles, refused = {one.idx: one for one in status.cycles}, store.approvals.refusals(run_id)
        own = None if best is None or best.cycle is None else cycles.get(best.cycle)
        found.append(
            RunComparison(
                run_id=run_id,
                status=status.status,
                settings={key: settings.get(key, "") for key in differing},
                decisions=tuple(
                    one.decision + refused.get(one.idx, "") for one in status.cycles if one.decision
                ),
                policy=None if best is None else best.policy_type,
                blessed=None if own is None else own.candidate,
                hours=status.spending.wall_hours,
                cost_usd=None if model is None else model.cost_usd,
            )
        )
    return found


def _flat(document: Mapping[str, Any], above: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in document.items():
        if isinstance(value, dict):
            flat |= _flat(cast("dict[str, Any]", value), f"{above}{key}.")
        else:
            flat[f"{above}{key}"] = json.dumps(value)
    return flat


#: Most runs that metrics tell of one by one, and kinds of incidents of one of them.
MAX_RUNS, MAX_KINDS = 200, 30
#: Rows of the store that metrics read.
_READ: Final = ("counts", "seconds", "replies", "jobs")
#: Families by name: type, help.
_FAMILIES: Final = {
    "runs": ("gauge", "Runs of the store by status."),
    "cycles_total": ("counter", "Cycles that came to a decision."),
    "promotions_total": ("counter", "Policies that were blessed."),
    "job_seconds_total": ("counter", "Seconds of all jobs by device."),
    "incidents_total": ("counter", "What runs survived, by kind."),
    "model_cost_usd_total": ("counter", "Cost of calls of the language model, US dollars."),
    "error_budget": ("gauge", "Probability of a wrong blessing: spent, and left."),
    "heartbeat_age_seconds": ("gauge", "Seconds since a run at work showed a sign of life."),
    "disk_free_bytes": ("gauge", "Room on the disk of the folder of all runs."),
}


def metrics_text(store: JobStore, workdir: Path) -> str:
    """Return how runs of a store stand, in Prometheus' text format.

    All runs are counted; `MAX_RUNS` have their own samples, active ones first, then the newest.
    """
    counted = run_counts(store.database)
    samples: dict[str, list[tuple[dict[str, str], float]]] = {name: [] for name in _FAMILIES}
    samples["runs"] = [({"status": name}, counted.get(name, 0)) for name in RUN_STATUSES]
    for one in overviews(store.database, newest=1, most=MAX_RUNS, only=_READ):
        for name, labels, value in _of_run(one, workdir):
            samples[name].append(({"run": one.run["id"], **labels}, value))
    if workdir.is_dir():
        samples["disk_free_bytes"] = [({}, shutil.disk_usage(workdir).free)]
    lines: list[str] = []
    for name, (kind, told) in _FAMILIES.items():
        full = f"cadenza_loop_{name}"
        lines += [f"# HELP {full} {told}", f"# TYPE {full} {kind}"]
        for labels, value in samples[name]:
            marks = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
            lines.append(f"{full}{{{marks}}} {float(value)!r}" if marks else f"{full} {value!r}")
    return "\n".join(lines) + "\n"


def _escaped(label: str) -> str:
    plain = plain_text(label[:100])
    return plain.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _of_run(found: Overview, workdir: Path) -> Iterable[tuple[str, dict[str, str], float]]:
    """Yield family, further labels and value of each sample of a run."""
    run, rows = found.run, found.rows
    config, state = json.loads(run["config_json"]), json.loads(run["state_json"])
    yield "cycles_total", {}, sum(row["decided"] for row in rows["counts"])
    yield "promotions_total", {}, list(state.get("decisions", ())).count("promote")
    for row in rows["seconds"]:
        yield "job_seconds_total", {"device": row["device"]}, row["seconds"]
    kinds = Counter(str(one.get("kind")) for one in incidents_of(workdir / run["id"]))
    often = dict(sorted(kinds.most_common(MAX_KINDS)))
    for kind, count in often.items():
        yield "incidents_total", {"kind": kind}, count
    if len(kinds) > MAX_KINDS:
        yield "incidents_total", {"kind": "others"}, kinds.total() - sum(often.values())
    for row in rows["replies"]:
        yield "model_cost_usd_total", {}, row["cost_usd"] or 0.0
    alpha = config.get("thresholds", {}).get("alpha")
    if alpha is not None:
        spent = min(alpha, state.get("spent") or 0.0)
        yield "error_budget", {"part": "spent"}, spent
        yield "error_budget", {"part": "left"}, alpha - spent
    if run["status"] in OPEN and run["lease_owner"] is not None:
        beats = [row["heartbeat"] or 0.0 for row in rows["jobs"]]
        latest = max(run["lease_expires_at"] - LEASE_TTL_S, *beats, 0.0)
        yield "heartbeat_age_seconds", {}, max(0.0, found.moment - latest)


def service_of_run(
    store: JobStore, run_id: str, workdir: Path, location: str | None, *, final: Sequence[int]
) -> str:
    """Return a systemd user unit that continues a run of the store at ``location``.

    It is not started again after the exit codes in ``final``, which need a person.
    """
    words = ["resume", run_id, "--workdir", str(workdir.absolute())]
    words += [] if location is None else ["--store", shown(location)]
    return service_unit(run_id, words, stored_config(store, run_id).jobs.grace_s, final)


def service_of_config(file: Path, *, final: Sequence[int]) -> str:
    """Return a systemd user unit that begins a run of a configuration, and later continues it."""
    settings = LoopConfig.from_yaml(file)
    run_id = new_run_id(settings)
    words = ["run", "--config", str(file.absolute()), "--run-id", run_id, "--resume"]
    return service_unit(run_id, words, settings.jobs.grace_s, final)


def service_unit(run_id: str, words: Sequence[str], grace_s: float, final: Sequence[int]) -> str:
    """Return a unit that runs ``cadenza loop`` with ``words`` in the current folder.

    Stopping leaves ``grace_s`` to the job at work.
    """
    name = f"cadenza-{run_id}.service"
    program = Path(sys.executable).with_name("cadenza")
    begin = [str(program)] if program.exists() else [sys.executable, "-m", "cadenza"]
    command = " ".join(_quoted(word) for word in (*begin, "loop", *words, "--quiet"))
    folder = str(Path.cwd()).replace("%", "%%")
    return f"""\
# Save it as ~/.config/systemd/user/{name}, then:
#   systemctl --user daemon-reload && systemctl --user enable --now {name}
#   loginctl enable-linger      # it also runs while you are not logged in
# Keys (model, webhook, PGPASSWORD) stand in ~/.config/cadenza-loop.env as NAME=VALUE.
[Unit]
Description=cadenza loop {run_id}
StartLimitIntervalSec=1h
StartLimitBurst=5

[Service]
WorkingDirectory={folder}
EnvironmentFile=-%h/.config/cadenza-loop.env
ExecStart={command}
Restart=on-failure
RestartSec=60
RestartPreventExitStatus={" ".join(str(int(code)) for code in final)}
SuccessExitStatus=129 130 143
KillMode=mixed
TimeoutStopSec={round(grace_s) + 60}
OOMPolicy=continue

[Install]
WantedBy=default.target
"""


def _quoted(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


#: Pause between two looks for something new, s.
_PAUSE_S: Final = 0.5


def event_in_words(kind: str, payload: str) -> str:
    """Return one sentence about an event; a payload that is cut, or no object, as it is."""
    try:
        told: Any = json.loads(payload)
        said = {
            name: plain_text(str(told.get(name)))
            for name in ("decision", "gate", "by", "reason", "stage")
        }
    except (ValueError, AttributeError):
        return payload
    match kind:
        case "decision":
            return f"{said['decision']}: {said['reason']}"
        case "approval_requested":
            return f"waits for approval, whether to {said['gate']}: {said['reason']}"
        case "approval_decided":
            status = "approved" if told.get("approved") else "rejected"
            return f"{said['by']} {status}, asked whether to {said['gate']}: {said['reason']}"
        case "undecided":
            return f"goes on measuring: {said['reason']}"
        case "job_started":
            return said["stage"]
        case _:
            return ", ".join(f"{plain_text(name)}={_short(value)}" for name, value in told.items())


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return f"({len(cast('dict[str, Any]', value))} values)"
    if isinstance(value, list):
        return " ".join(_short(one) for one in cast("list[Any]", value))
    return f"{value:.6g}" if isinstance(value, float) else plain_text(str(value))


def tail_events(
    store: JobStore, run_id: str, *, cycle: int | None, last: int, follow: bool
) -> Generator[StoredEvent]:
    """Yield the ``last`` events of a run, or of a cycle; with ``follow`` new ones as they come.

    That ends when nobody works on the run any more.
    """
    store.get_run(run_id)
    found = store.events.find(run_id, cycle=cycle, limit=last)
    seq = store.events.last_seq(run_id) if not found else found[-1].seq
    yield from found
    works = follow
    while works:
        works = store.leases.holder(run_id) is not None  # asked first, so that nothing is missed
        while found := store.events.find(run_id, cycle=cycle, after=seq):
            yield from found
            seq = found[-1].seq
        time.sleep(_PAUSE_S if works else 0.0)


def tail_log(
    store: JobStore,
    run_id: str,
    stage: str,
    *,
    workdir: Path,
    cycle: int | None,
    last: int,
    follow: bool,
) -> Generator[str]:
    """Yield the ``last`` lines of a job's log, its newest if ``cycle`` is None; then new text.

    Raises:
        UnknownNameError: The run has no such job.
    """
    store.get_run(run_id)
    keys = [job.key for job in store.jobs.of_run(run_id)]
    own = [key for key in keys if key.stage == stage and cycle in (None, key.cycle)]
    if not own:
        known = sorted({f"{key.stage} of cycle {key.cycle}" for key in keys})
        where = "" if cycle is None else f" in cycle {cycle}"
        raise UnknownNameError(
            f"job {stage!r}{where}: expected one of run {run_id!r}, got none; it has "
            f"{', '.join(known) or 'none yet'}."
        )
    with (
        own[-1]
        .log_in(workdir / run_id)
        .open("r", encoding="utf-8", errors="replace", newline="") as file
    ):
        yield "".join(deque(file, maxlen=last))
        works = follow
        while works:
            job = store.jobs.get(own[-1])
            works = job is not None and job.status == "running"
            yield file.read()
            time.sleep(_PAUSE_S if works else 0.0)
