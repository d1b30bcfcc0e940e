"""`cadenza loop status`: the tables and lines of a run; with `--watch`, on one screen.

Here are also the options of all loop commands, and where they find their runs.
"""

import getpass
import json
import os
import shlex
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from cadenza.cli.output import make_table, print_table, print_text
from cadenza.core.timing import duration
from cadenza.loop.processes import readable

if TYPE_CHECKING:
    from rich.console import Console, Group, RenderableType

    from cadenza.loop.reports import RunComparison
    from cadenza.loop.status_report import (
        LiveJob,
        Measurement,
        PendingApproval,
        RunStatus,
        RunSummary,
    )
    from cadenza.loop.store.jobstore import JobStore

#: File of the job store below the folder of all runs.
STORE_FILE: Final = "cadenza.db"
#: Where runs and the pages that they write are unless somebody says otherwise.
RUNS, KNOWLEDGE = Path("runs"), Path("knowledge")

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
Knowledge: TypeAlias = Annotated[
    Path, typer.Option("--knowledge", "-k", help="Folder of the pages.")
]
By: TypeAlias = Annotated[
    str | None, typer.Option("--by", help="Who asks; default: the login name.", show_default=False)
]
Reason: TypeAlias = Annotated[str | None, typer.Option("--reason", help="Why, for the record.")]
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
    words = ["cadenza", "loop", verb, *([] if run_id is None else [run_id])]
    if workdir != RUNS:
        words += ["--workdir", str(workdir)]
    if store is not None and store != os.environ.get("CADENZA_STORE"):
        from cadenza.loop.store.database import shown

        words += ["--store", shown(store)]
    elif store is None and os.environ.get("CADENZA_STORE"):  # which the command would take
        words += ["--store", f"sqlite:///{(workdir / STORE_FILE).absolute()}"]
    return " ".join([shlex.join(words), *more])


def approval_command(run_id: str, workdir: Path, store: str | None) -> str:
    """Return the command line that answers a run's question, with what is to be filled in."""
    more = ("--by NAME", "--reason TEXT", "[--reject]")
    return command("approve", run_id, workdir, store, *more)


def login_name() -> str:
    """Return the name of who gives a command, or their number where there is no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"


#: Characters of an event's payload that a line shows.
PAYLOAD_WIDTH: Final = 160


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
_QUIET_S: Final = 60.0
#: Statuses of runs that somebody should be working on.
_GOING_ON: Final = ("running", "pending_approval")
#: Runs of these statuses can be resumed.
_RESUMABLE: Final = ("running", "pending_approval", "stopped", "failed")


def print_status(status: "RunStatus", workdir: Path, store: str | None) -> None:
    """Write how a run stands to stdout; commands to copy name its folder and store."""
    print_text(headline(status))
    columns, rows = cycle_table(status)
    if rows:
        print_table("", columns, rows)
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
    return run.run_id, _standing(run), f"{run.decided}{_most(run)}", run.step, _success(run.success)


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
    reason = status.stop_reason
    why = f" ({plain(reason)})" if reason and status.status != "failed" else ""
    undecided = [cycle.idx for cycle in status.cycles if cycle.decision is None]
    open_one = f", cycle {undecided[-1]} undecided" if undecided else ""
    return (
        f"Run {status.run_id}: {_standing(status)}{why}, begun {utc(status.created_at)}, "
        f"{status.decided}{_most(status)} cycles decided{open_one}"
    )


def _standing(run: "RunStatus | RunSummary") -> str:
    alone = run.status in _GOING_ON and run.worked_on_by is None
    return run.status.replace("_", " ") + (", but no controller runs" if alone else "")


def _most(run: "RunStatus | RunSummary") -> str:
    return "" if run.max_cycles is None else f" of {run.max_cycles}"


def may_change(status: "RunStatus") -> bool:
    """Return whether somebody works on a run that has not ended."""
    return status.status in _GOING_ON and status.worked_on_by is not None


def cycle_table(status: "RunStatus") -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the columns of a run's table of cycles, and one row per cycle.

    The last two columns are the times that its jobs took, by the device that they worked on.
    """
    scored = status.metric != "success"
    first, last = ("cycle", "rung", "stage", "decision"), ("n", "cpu jobs", "gpu jobs")
    compared = ("score", "success", "reference") if scored else ("success", "reference")
    rows: list[tuple[str, ...]] = []
    for one in status.cycles:
        candidate, baseline = one.candidate, one.baseline
        cells = (_success(candidate), _success(baseline))
        if scored:
            cells = (_score(candidate), _success(candidate), _score(baseline))
        n = max((found.n_episodes for found in (candidate, baseline) if found), default="")
        times = {str(name): duration(seconds) for name, seconds in one.seconds.items()}
        done = (str(one.idx), one.rung or "", one.stage, one.decision or "")
        rows.append((*done, *cells, str(n), times.get("cpu", ""), times.get("gpu", "")))
    return (*first, *compared, *last), rows


def _success(measured: "Measurement | None") -> str:
    if measured is None:
        return ""
    return f"{measured.rate:.1%} [{100.0 * measured.low:.0f}, {100.0 * measured.high:.0f}]"


def _score(measured: "Measurement | None") -> str:
    return "" if measured is None or measured.score is None else f"{measured.score:.3f}"


def beyond_budget(stop_reason: str | None, resume: str) -> str:
    """Return how to continue a run that ran out of cycles or hours; empty for another end."""
    from cadenza.loop.status_report import raisable_budget

    key = raisable_budget(stop_reason)
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


def past_lines(status: "RunStatus") -> "Generator[str]":
    """Yield what a run decided, what it blessed, and what it obeys."""
    for cycle in status.cycles:
        if cycle.reason:
            yield f"cycle {cycle.idx}: {cycle.decision}. {plain(cycle.reason)}"
        if cycle.adapted is not None:
            without, copy = cycle.adapted
            yield (
                f"cycle {cycle.idx}: the copy trained on harvests was "
                f"{'taken' if copy > without else 'left'}: {copy:.3f} against {without:.3f} without"
            )
        found = cycle.harvest
        if found is not None and found.starts == "failed":
            yield (
                f"cycle {cycle.idx}: the policy failed at {found.attempts - found.successes} of "
                f"{found.attempts} further starts; the expert showed {found.kept} of them, for "
                "later cycles"
            )
    yield blessed_line(status)
    if status.error_budget is not None and status.error_spent is not None:
        told = status.next_comparison
        yield (
            f"error budget: {status.error_budget:.2%} over all cycles, {status.error_spent:.2%} of "
            f"it spent by {status.error_failed} comparisons without a blessing, "
            f"{status.error_left:.2%} left" + ("" if told is None else f". {told.rstrip('.')}")
        )
    if status.seed_data == "unknown":
        yield (
            "seed dataset: its initial states are unknown, policies may be measured on some of them"
        )
    yield rules_line(status.constitution, status.constitution_sha256)


def rules_line(constitution: str | None, sha256: str | None) -> str:
    """Return which rules a run obeys."""
    from cadenza.loop.resuming import shown_rules

    return plain(f"rules: {shown_rules(constitution, sha256)}")


def blessed_line(status: "RunStatus") -> str:
    """Return which policy is the run's best, and what it reached in its own cycle."""
    best = status.blessed
    if best is None:
        return "blessed: nothing yet"
    source = "the run started from it" if best.cycle is None else f"cycle {best.cycle}"
    words = [best.policy_type, source]
    if status.metric != "success" and best.score is not None:
        words.append(f"score {best.score:.3f}")
    if best.success is not None:
        words.append(f"success {best.success:.1%}")
    return f"blessed: {plain(best.path)} ({', '.join(words)})"


def present_lines(status: "RunStatus", workdir: Path, store: str | None) -> "Generator[str]":
    """Yield what a run does, waits for, failed of or may soon fail of."""
    from cadenza.loop.retention import shortage

    yield from map(_job, status.jobs)
    approve = approval_command(status.run_id, workdir, store)
    for question in status.pending:
        yield (
            f"waits for approval: {question.gate} in cycle {question.cycle}{_deadline(question)}; "
            f"{plain(question.why)}{' ' if question.why else ''}answer with: {approve}"
        )
    if status.status == "failed":
        reason, log = plain(status.stop_reason or ""), status.failed_log
        yield f"failed: {reason}"
        if log is not None and str(Path(log).absolute()) not in reason:
            yield f"log of the job that failed: {log}"
    if status.status in _RESUMABLE and (told := shortage(status.disk, workdir)):
        yield plain(told)


def _job(job: "LiveJob") -> str:
    what = f"job: {job.stage} of cycle {job.cycle}"
    if job.pid is not None:
        what += f" as process {job.pid}"
    if job.attempt > 1:
        what += f", attempt {job.attempt}{_earlier(job)}"
    if job.waits_for is not None:
        return f"{what}, waits for room: {plain(job.waits_for)}"
    done = "" if job.done is None else f", {job.done:.0%} done"
    what += f", runs for {duration(job.elapsed_s)}{done}, {time_left(job.left_s)}"
    what += no_output(job.quiet_s)
    if job.silent_s > _SILENT_S:
        what += f", last sign of life {duration(job.silent_s)} ago"
    return what


def no_output(quiet_s: float) -> str:
    """Return for how long a job was silent, if that is worth a word; else nothing."""
    return f", no output for {duration(quiet_s)}" if quiet_s >= _QUIET_S else ""


def _earlier(job: "LiveJob") -> str:
    """Return what became of earlier attempts, in parentheses; empty if unknown."""
    counts = ((job.interrupted, "interrupted"), (job.failed, "failed"))
    words = [f"{count} {word}" for count, word in counts if count]
    if words and job.last_problem:
        words.append(f"the last: {plain(job.last_problem)}")
    return f" ({', '.join(words)})" if words else ""


def _deadline(question: "PendingApproval") -> str:
    if question.deadline is None:
        return ""
    if question.overdue:
        return ", overdue"
    return f", decides by itself in {duration(question.deadline - time.time())}"


def sum_lines(status: "RunStatus") -> "Generator[str]":
    """Yield what a run used, and where it left what it learned."""
    spent, used = status.spending, status.language_model
    everything = f"{spent.wall_hours:.2f}{_of(spent.max_wall_hours)} of all jobs"
    if spent.uses_gpu:
        gpu = f"{spent.gpu_hours:.2f}{_of(spent.max_gpu_hours)}"
        yield f"hours: {gpu} on the GPU, {everything}"
    elif spent.max_wall_hours is not None:
        yield f"hours: {everything}; without a GPU they count for max_gpu_hours, too"
    else:
        total = f"{spent.wall_hours:.2f}{_of(spent.max_gpu_hours)}"
        yield f"hours: {total} of all jobs, there is no GPU"
    if used is not None:
        told = f"language model: {used.calls} calls"
        if used.failed:
            told += f", {used.failed} of them without a reply"
        if used.cost_usd is not None:
            told += f", {used.cost_usd:.2f}{_of(used.max_cost_usd)} dollars"
        if used.fallbacks:
            told += f", {used.fallbacks} proposals by the schedule instead"
        yield told + (", is being asked now" if used.asked_now else "")
    if status.removed:
        yield f"removed: {len(status.removed)} folders of ended cycles, to make room"
    if status.knowledge_pages:
        pages = [Path(page) for page in status.knowledge_pages]
        names = ", ".join("/".join(page.parts[-2:]) for page in pages)
        yield plain(f"knowledge: {names} in {pages[0].parent.parent}")


def _of(limit: float | None) -> str:
    return "" if limit is None else f" (at most {limit:g})"


def controller_lines(status: "RunStatus", workdir: Path, store: str | None) -> "Generator[str]":
    """Yield who works on a run, or how to resume it; arguments as `present_lines`."""
    resume = command("resume", status.run_id, workdir, store)
    if status.worked_on_by is not None:
        asked = ", asked to stop" if status.stop_requested else ""
        yield f"controller: {plain(readable(status.worked_on_by))}{asked}"
    elif status.status in _RESUMABLE:
        yield f"continue with: {resume}"
    elif hint := beyond_budget(status.stop_reason, resume):
        yield hint


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
        columns, rows = cycle_table(one)
        if newest := rows[::-1][: _CYCLES[level]][::-1]:
            parts.append(make_table("", columns, newest))
        if level == 0:
            parts += map(Text, (*past_lines(one), *sum_lines(one)))
    others = [one for one in reversed(statuses) if not may_change(one)]
    below = [headline(one) for one in others]
    if level > 0:
        more = f"{len(others)} more runs; " if others else ""
        all_of_it = command("status", None, workdir, store)
        below = [f"{more}shortened to this screen, all of it: {all_of_it}"]
    return Group(*parts, *(Text(line, style="dim") for line in below))
