"""`cadenza loop status`: the tables and lines of a run; with `--watch`, on one screen.

Here are also the options of all loop commands, and where they find their runs.
"""

import json
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from cadenza.cli.output import make_table, print_table, print_text
from cadenza.loop.processes import readable

if TYPE_CHECKING:
    from rich.console import Console, Group, RenderableType

    from cadenza.loop.reports import RunComparison
    from cadenza.loop.status_report import (
        CycleStatus,
        LiveJob,
        Measurement,
        PendingApproval,
        RunStatus,
        RunSummary,
    )
    from cadenza.loop.store.jobstore import JobStore

#: File of the job store below the folder of all runs.
STORE_FILE: Final = "cadenza.db"


RunId: TypeAlias = Annotated[str, typer.Argument(metavar="RUN_ID", help="Id of the run.")]
Workdir: TypeAlias = Annotated[
    Path, typer.Option("--workdir", "-w", help="Folder of all runs.", is_eager=True)
]
StoreUrl: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--store",
        envvar="CADENZA_STORE",
        help="SQLAlchemy URL of the job store, if it is not WORKDIR/cadenza.db. Its password may "
        "be in PGPASSWORD or ~/.pgpass instead.",
        is_eager=True,
    ),
]
Config: TypeAlias = Annotated[
    Path | None, typer.Option("--config", "-c", help="YAML file, or the name of a shipped one.")
]
Quiet: TypeAlias = Annotated[
    bool, typer.Option("--quiet", "-q", help="Show neither events nor progress.")
]


def store_location(workdir: Path, store: str | None) -> Path | str:
    """Return where the job store is."""
    return store or workdir / STORE_FILE


def open_store(workdir: Path, store: str | None, *, upgrade: bool = False) -> "JobStore":
    """Open the job store; never creates one, but may ``upgrade`` one of an older version.

    Raises:
        StoreNotFoundError: There is none.
        LeaseHeldError: It needs an upgrade while a run is at work.
        StoreError: It does not answer, is damaged or of another version.
    """
    from cadenza.loop.errors import StoreOutdatedError
    from cadenza.loop.store.jobstore import JobStore

    location = store_location(workdir, store)
    if not upgrade:
        return JobStore.open_existing(location)
    with suppress(StoreOutdatedError):
        JobStore.open_existing(location).close()
    return JobStore(location)


def command(verb: str, run_id: str | None, workdir: Path, store: str | None, *more: str) -> str:
    """Return a command line to copy: ``cadenza loop <verb> [<run_id>]`` with the same store.

    A password in the store's URL is hidden; the command then takes it from where libpq does.
    """
    import os
    import shlex

    words = ["cadenza", "loop", verb, *([] if run_id is None else [run_id])]
    if workdir != Path("runs"):
        words += ["--workdir", str(workdir)]
    if store is not None and store != os.environ.get("CADENZA_STORE"):
        from cadenza.loop.store.database import shown

        words += ["--store", shown(store)]
    elif store is None and os.environ.get("CADENZA_STORE"):  # which the command would take
        words += ["--store", f"sqlite:///{(workdir / STORE_FILE).absolute()}"]
    return " ".join([shlex.join(words), *more])


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
    """Return ``"about 8 s left"``, or that it is unknown."""
    return "time left unknown" if seconds is None else f"about {duration(seconds)} left"


def event_line(cycle: int | None, stage: str, kind: str, payload: Mapping[str, Any]) -> str:
    """Return ``[cycle N] stage/kind payload`` with the payload's JSON cut short."""
    text = json.dumps(payload, ensure_ascii=False)
    shown = text if len(text) <= PAYLOAD_WIDTH else f"{text[: PAYLOAD_WIDTH - 3]}..."
    return f"[cycle {'-' if cycle is None else cycle}] {stage}/{kind} {shown}"


def plain(text: str) -> str:
    """Return ``text`` without characters that move a terminal's cursor or colour it."""
    return "".join(c if c.isprintable() else " " for c in text)


#: Silence of a job that is worth a word, s; a host gives a sign of life each second.
_SILENT_S: Final = 10.0
#: Time without output of a job that is worth a word, s.
QUIET_S: Final = 60.0
#: Characters of the reason of a failure that are shown; older runs stored whole logs there.
_REASON_WIDTH: Final = 800
#: Statuses of runs that somebody should be working on.
_GOING_ON: Final = ("running", "pending_approval")
#: Runs of these statuses can be resumed.
_RESUMABLE: Final = ("running", "pending_approval", "stopped", "failed")
#: Reasons of ends by a budget that may be raised, with its key.
_RAISABLE: Final = {
    f"budget: {key}": key for key in ("max_cycles", "max_gpu_hours", "max_wall_hours")
}


def print_status(status: "RunStatus", workdir: Path, store: str | None) -> None:
    """Write how a run stands to stdout; commands to copy name its folder and store."""
    print_text(headline(status))
    if status.cycles:
        print_table("", cycle_columns(status), cycle_rows(status))
    if status.cycles_left_out:
        more = command("status", status.run_id, workdir, store, "--cycles 0")
        print_text(f"{status.cycles_left_out} earlier cycles are left out; all of them: {more}")
    for line in notes(status, workdir, store):
        print_text(line)


def utc(moment: float) -> str:
    """Return Unix seconds as people write them."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M UTC")


def run_row(run: "RunSummary") -> tuple[str, ...]:
    """Return the line of a list of runs: name, status, cycles, where it is, blessed policy."""
    of = "" if run.max_cycles is None else f" of {run.max_cycles}"
    word = run.status.replace("_", " ")
    if run.status in _GOING_ON and run.worked_on_by is None:
        word += ", but no controller runs"
    return run.run_id, word, f"{run.decided}{of}", run.step, _success(run.success)


def comparison_rows(runs: "Sequence[RunComparison]") -> list[tuple[str, ...]]:
    """Return the lines of runs side by side, what is measured first."""
    cells = {
        "status": [one.status.replace("_", " ") for one in runs],
        "decisions": [", ".join(one.decisions) for one in runs],
        "blessed": [f"{one.policy or 'nothing'} {_success(one.blessed)}".strip() for one in runs],
        "hours": [f"{one.hours:.2f}" for one in runs],
        "cost, USD": ["" if one.cost_usd is None else f"{one.cost_usd:.2f}" for one in runs],
    }
    cells |= {key: [plain(one.settings[key]) for one in runs] for key in runs[0].settings}
    return [(name, *line) for name, line in cells.items()]


def headline(status: "RunStatus") -> str:
    """Return the line above the table of cycles."""
    begun = utc(status.created_at)
    word = status.status.replace("_", " ")
    if status.status in _GOING_ON and status.worked_on_by is None:
        word += ", but no controller runs"
    reason = status.stop_reason
    why = f" ({plain(reason)})" if reason and status.status != "failed" else ""
    return f"Run {status.run_id}: {word}{why}, begun {begun}, {_cycles(status)}"


def may_change(status: "RunStatus") -> bool:
    """Return whether somebody works on a run that has not ended."""
    return status.status in _GOING_ON and status.worked_on_by is not None


def cycle_columns(status: "RunStatus") -> tuple[str, ...]:
    """Return the names of the columns of a run's table of cycles.

    The last two are the times that its jobs took, by the device that they worked on.
    """
    compared = ("success",) if status.metric == "success" else ("score", "success")
    last = ("reference", "n", "cpu jobs", "gpu jobs")
    return "cycle", "rung", "stage", "decision", *compared, *last


def cycle_rows(status: "RunStatus") -> list[tuple[str, ...]]:
    """Return one row per cycle, fit for `cycle_columns`."""
    return [_row(cycle, status.metric) for cycle in status.cycles]


def beyond_budget(stop_reason: str | None, resume: str) -> str:
    """Return how to continue a run that ran out of cycles or hours; empty for another end."""
    key = _RAISABLE.get(stop_reason or "")
    if key is None:
        return ""
    return (
        f"to continue, raise budgets.{key} in a copy of its configuration, then: "
        f"{resume} --config COPY.yaml"
    )


def notes(status: "RunStatus", workdir: Path, store: str | None) -> list[str]:
    """Return the lines below the table; arguments as `print_status`."""
    return [
        *past_lines(status),
        *present_lines(status, workdir, store),
        *sum_lines(status),
        *controller_lines(status, workdir, store),
    ]


def past_lines(status: "RunStatus") -> list[str]:
    """Return what a run decided, what it blessed, and what it obeys."""
    lines: list[str] = []
    for cycle in status.cycles:
        if cycle.reason:
            lines.append(f"cycle {cycle.idx}: {cycle.decision}. {plain(cycle.reason)}")
        lines += _training_lines(cycle)
    lines += [_blessed(status), _error_budget(status)]
    if status.seed_data == "unknown":
        lines.append(
            "seed dataset: its initial states are unknown, policies may be measured on some of them"
        )
    lines.append(rules_line(status.constitution, status.constitution_sha256))
    return [line for line in lines if line]


def rules_line(constitution: str | None, sha256: str | None) -> str:
    """Return which rules a run obeys."""
    from cadenza.loop.resuming import shown_rules

    return plain(f"rules: {shown_rules(constitution, sha256)}")


def _training_lines(cycle: "CycleStatus") -> list[str]:
    """Return what a cycle's harvests brought: those trained on in it, and its own for later."""
    lines: list[str] = []
    if cycle.adapted is not None:
        plain_one, copy = cycle.adapted
        kept = "taken" if copy > plain_one else "left"
        lines.append(
            f"cycle {cycle.idx}: the copy trained on harvests was {kept}: {copy:.3f} against "
            f"{plain_one:.3f} without"
        )
    found = cycle.harvest
    if found is not None and found.starts == "failed":
        failed = found.attempts - found.successes
        lines.append(
            f"cycle {cycle.idx}: the policy failed at {failed} of {found.attempts} further starts; "
            f"the expert showed {found.kept} of them, for later cycles"
        )
    return lines


def present_lines(status: "RunStatus", workdir: Path, store: str | None) -> list[str]:
    """Return what a run does, waits for, failed of or may soon fail of."""
    from cadenza.loop.retention import shortage

    more = ("--by NAME", "--reason TEXT", "[--reject]")
    approve = command("approve", status.run_id, workdir, store, *more)
    questions = [
        f"waits for approval: {question.gate} in cycle {question.cycle}{_deadline(question)}; "
        f"answer with: {approve}"
        for question in status.pending
    ]
    lines = [*(_job(job) for job in status.jobs), *questions, *_failure(status)]
    told = shortage(status.disk, workdir) if status.status in _RESUMABLE else ""
    return [*lines, plain(told)] if told else lines


def sum_lines(status: "RunStatus") -> list[str]:
    """Return what a run used, and where it left what it learned."""
    lines = [_spending(status), _model(status)]
    if status.removed:
        lines.append(f"removed: {len(status.removed)} folders of ended cycles, to make room")
    if status.knowledge_pages:
        pages = [Path(page) for page in status.knowledge_pages]
        names = ", ".join("/".join(page.parts[-2:]) for page in pages)
        lines.append(plain(f"knowledge: {names} in {pages[0].parent.parent}"))
    return [line for line in lines if line]


def controller_lines(status: "RunStatus", workdir: Path, store: str | None) -> list[str]:
    """Return who works on a run, or how to resume it; arguments as `present_lines`."""
    if status.worked_on_by is not None:
        asked = ", asked to stop" if status.stop_requested else ""
        return [f"controller: {plain(readable(status.worked_on_by))}{asked}"]
    resume = command("resume", status.run_id, workdir, store)
    if status.status in _RESUMABLE:
        return [f"continue with: {resume}"]
    hint = beyond_budget(status.stop_reason, resume)
    return [hint] if hint else []


def _cycles(status: "RunStatus") -> str:
    """Return how many cycles came to a decision, and which one is on its way to it."""
    undecided = [str(cycle.idx) for cycle in status.cycles if cycle.decision is None]
    of = "" if status.max_cycles is None else f" of {status.max_cycles}"
    open_one = f", cycle {undecided[-1]} undecided" if undecided else ""
    return f"{status.decided}{of} cycles decided{open_one}"


def _row(cycle: "CycleStatus", metric: str) -> tuple[str, ...]:
    compared = (_success(cycle.candidate), _success(cycle.baseline))
    if metric != "success":
        compared = (_score(cycle.candidate), _success(cycle.candidate), _score(cycle.baseline))
    n = max((m.n_episodes for m in (cycle.candidate, cycle.baseline) if m), default=0)
    return (
        str(cycle.idx),
        cycle.rung or "",
        cycle.stage,
        cycle.decision or "",
        *compared,
        str(n) if n else "",
        _seconds(cycle, "cpu"),
        _seconds(cycle, "gpu"),
    )


def _success(measured: "Measurement | None") -> str:
    if measured is None:
        return ""
    return f"{measured.rate:.1%} [{100.0 * measured.low:.0f}, {100.0 * measured.high:.0f}]"


def _score(measured: "Measurement | None") -> str:
    return "" if measured is None or measured.score is None else f"{measured.score:.3f}"


def _seconds(cycle: "CycleStatus", device: str) -> str:
    seconds = {str(name): value for name, value in cycle.seconds.items()}.get(device)
    return "" if seconds is None else duration(seconds)


def _blessed(status: "RunStatus") -> str:
    best = status.blessed
    if best is None:
        return "blessed: nothing yet"
    success = "" if best.success is None else f", success {best.success:.1%}"
    if status.metric != "success" and best.score is not None:
        success = f", score {best.score:.3f}{success}"
    source = "the run started from it" if best.cycle is None else f"cycle {best.cycle}"
    return f"blessed: {plain(best.path)} ({best.policy_type}, {source}{success})"


def _error_budget(status: "RunStatus") -> str:
    alpha, spent = status.error_budget, status.error_spent
    if alpha is None or spent is None:
        return ""
    ahead = "" if status.next_comparison is None else f". {status.next_comparison.rstrip('.')}"
    return (
        f"error budget: {alpha:.2%} over all cycles, {spent:.2%} of it spent by "
        f"{status.error_failed} comparisons without a blessing, {status.error_left:.2%} left{ahead}"
    )


def _job(job: "LiveJob") -> str:
    process = "" if job.pid is None else f" as process {job.pid}"
    done = "" if job.done is None else f", {job.done:.0%} done"
    silent = f", last sign of life {duration(job.silent_s)} ago" if job.silent_s > _SILENT_S else ""
    attempt = f", attempt {job.attempt}{_earlier(job)}" if job.attempt > 1 else ""
    quiet = f", no output for {duration(job.quiet_s)}" if job.quiet_s >= QUIET_S else ""
    what = f"job: {job.stage} of cycle {job.cycle}{process}{attempt}"
    if job.waits_for is not None:
        return f"{what}, waits for room: {plain(job.waits_for)}"
    left = time_left(job.left_s)
    return f"{what}, runs for {duration(job.elapsed_s)}{done}, {left}{quiet}{silent}"


def _earlier(job: "LiveJob") -> str:
    """Return what became of earlier attempts, in parentheses; empty if unknown."""
    counts = ((job.interrupted, "interrupted"), (job.failed, "failed"))
    words = [f"{count} {word}" for count, word in counts if count]
    if not words:
        return ""
    last = f", the last: {plain(job.last_problem)}" if job.last_problem else ""
    return f" ({', '.join(words)}{last})"


def _failure(status: "RunStatus") -> list[str]:
    if status.status != "failed":
        return []
    reason = plain((status.stop_reason or "").partition("\\n")[0])
    shown = reason if len(reason) <= _REASON_WIDTH else f"{reason[:_REASON_WIDTH]}..."
    log = status.failed_log
    told = log is None or str(Path(log).absolute()) in reason
    return [f"failed: {shown}", *([] if told else [f"log of the job that failed: {log}"])]


def _deadline(question: "PendingApproval") -> str:
    if question.deadline is None:
        return ""
    if question.overdue:
        return ", overdue"
    return f", decides by itself in {duration(max(0.0, question.deadline - time.time()))}"


def _spending(status: "RunStatus") -> str:
    spent = status.spending
    everything = f"{spent.wall_hours:.2f}{_of(spent.max_wall_hours)} of all jobs"
    if spent.uses_gpu:
        return f"hours: {spent.gpu_hours:.2f}{_of(spent.max_gpu_hours)} on the GPU, {everything}"
    if spent.max_wall_hours is not None:
        return f"hours: {everything}; without a GPU they count for max_gpu_hours, too"
    return f"hours: {spent.wall_hours:.2f}{_of(spent.max_gpu_hours)} of all jobs, there is no GPU"


def _model(status: "RunStatus") -> str:
    used = status.language_model
    if used is None:
        return ""
    failed = f", {used.failed} of them without a reply" if used.failed else ""
    cost = "" if used.cost_usd is None else f", {used.cost_usd:.2f}{_of(used.max_cost_usd)} dollars"
    scheduled = f", {used.fallbacks} proposals by the schedule instead" if used.fallbacks else ""
    now = ", is being asked now" if used.asked_now else ""
    return f"language model: {used.calls} calls{failed}{cost}{scheduled}{now}"


def _of(limit: float | None) -> str:
    return "" if limit is None else f" (at most {limit:g})"


#: Pause between two looks, s.
_PAUSE_S: Final = 2.0
#: Newest cycles of a run that a screen shows, by how much is left out.
_CYCLES: Final = (None, 4, 1, 0)


def looks(
    look: "Callable[[], Sequence[RunStatus]]", *, pause_s: float = _PAUSE_S
) -> "Generator[Sequence[RunStatus]]":
    """Look at runs, every ``pause_s``, until none of them may change any more."""
    while True:
        statuses = look()
        yield statuses
        if not any(may_change(one) for one in statuses):
            return
        time.sleep(pause_s)


def watch(
    look: "Callable[[], Sequence[RunStatus]]",
    workdir: Path,
    store: str | None,
    *,
    console: "Console | None" = None,
    pause_s: float = _PAUSE_S,
) -> "Sequence[RunStatus]":
    """Show runs on the screen until none of them may change any more.

    Return how those stand that were at work meanwhile; all of them if none was.
    """
    from rich.console import Console
    from rich.live import Live

    console = Console() if console is None else console
    worked: set[str] = set()
    statuses: Sequence[RunStatus] = ()
    with Live(console=console, auto_refresh=False) as live:
        for statuses in looks(look, pause_s=pause_s):
            worked.update(one.run_id for one in statuses if may_change(one))
            live.update(screen(statuses, workdir, store, console=console), refresh=True)
        live.transient = True  # what is stopped half-way stays; the end is told in full
    return [one for one in statuses if one.run_id in worked] or statuses


def screen(
    statuses: "Sequence[RunStatus]", workdir: Path, store: str | None, *, console: "Console"
) -> "Group":
    """Return what fits on the screen; what has no room is left out, the past before the present."""
    frames = [_frame(statuses, workdir, store, level=level) for level in range(len(_CYCLES))]
    fitting = (one for one in frames if len(console.render_lines(one)) < console.height)
    return next(fitting, frames[-1])


def _frame(
    statuses: "Sequence[RunStatus]", workdir: Path, store: str | None, *, level: int
) -> "Group":
    """Return runs at work, newest first, then the others; the higher the level, the less of all."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    for one in filter(may_change, reversed(statuses)):
        told = (*present_lines(one, workdir, store), *controller_lines(one, workdir, store))
        parts += [Text(headline(one), style="bold"), *map(Text, told)]
        rows = cycle_rows(one)[::-1][: _CYCLES[level]][::-1]
        if rows:
            parts.append(make_table("", cycle_columns(one), rows))
        if level == 0:
            parts += map(Text, (*past_lines(one), *sum_lines(one)))
    others = [one for one in reversed(statuses) if not may_change(one)]
    below = [headline(one) for one in others]
    if level > 0:
        more = f"{len(others)} more runs; " if others else ""
        all_of_it = command("status", None, workdir, store)
        below = [f"{more}shortened to this screen, all of it: {all_of_it}"]
    return Group(*parts, *(Text(line, style="dim") for line in below))
