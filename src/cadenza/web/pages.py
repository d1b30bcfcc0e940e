"""The pages about runs and knowledge, and what keeps them live."""

import json
import shlex
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi import Path as InPath
from markupsafe import Markup
from starlette.responses import (
    FileResponse,
    HTMLResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
)

from cadenza.core.errors import InputError, StorageError
from cadenza.loop.contracts.records import JobKey
from cadenza.loop.errors import ApprovalDecidedError
from cadenza.loop.incidents import incidents_of
from cadenza.loop.knowledge.pages import read_page
from cadenza.loop.processes import readable
from cadenza.loop.reports import compare_runs, event_in_words, metrics_text
from cadenza.loop.requests import CONTROLLER_LOG, answer, resume_run, stop_run
from cadenza.loop.retention import removed, shortage
from cadenza.loop.status_report import (
    Measurement,
    RunStatus,
    cycle_evaluation,
    raisable_budget,
    run_list,
    run_status,
)
from cadenza.loop.store import database
from cadenza.loop.store.jobstore import JobStore
from cadenza.loop.store.overview import NEWEST, newest_ids
from cadenza.loop.store.rows import JobRow, StoredEvent
from cadenza.loop.store.schema import RUN_STATUSES, RunState
from cadenza.web.api import (
    MAX_CYCLE,
    MAX_SEQ,
    Number,
    RunName,
    film,
    films,
    has_film,
    page_names,
    read_page_text,
    store_of,
)
from cadenza.web.figures import intervals, success_chart
from cadenza.web.live import Feed, Growth, Hub
from cadenza.web.site import MARKDOWN, MAX_SHOWN, Site, open_inside, read_tail, when

Action: TypeAlias = Literal["approve", "reject", "stop", "resume"]
CycleNumber: TypeAlias = Annotated[int, InPath(ge=0, le=MAX_CYCLE)]
Stage: TypeAlias = Annotated[str, InPath(pattern="^[a-z0-9_]{1,64}$")]
#: Logs below a run's folder: the controller's, and those of jobs.
LOG_NAME: Final = r"^(controller|cycle_[0-9]{1,7}/[a-z0-9_]{1,64})\.log$"
Word: TypeAlias = Annotated[str, Query(max_length=200, pattern="^[^\x00]*$")]
#: Runs on a page of the list; events on a page, at the end of a run's; characters that are read of
#: one, and shown; episodes and jobs on a cycle's.
RUNS_SHOWN, EVENTS_SHOWN, LAST_SHOWN, TEXT_READ, TEXT_SHOWN = 50, 200, 30, 4000, 220
EPISODES_SHOWN, JOBS_SHOWN = 500, 200
#: Longest answers of a form, characters.
_LONGEST: Final = {"reason": 500, "by": 100}
#: What the page of a run says after a button was pressed.
_DONE: Final = {
    "stop": "The run was asked to stop; its job goes on when the run is resumed.",
    "resume": "A controller was started; the log of the controller says if it cannot go on.",
}
#: What happens to a question without an answer in time, by ``approval.on_timeout``.
_SILENCE: Final = {
    "reject": "it counts as rejected",
    "approve": "it counts as approved",
    "stop": "the run stops",
}
#: Columns of a run whose change is shown at once; changes by the clock, a job's files or the death
#: of a process are looked for at these intervals, with and without a job, s.
_STAMP: Final = ("status", "state_version", "stop_requested_at", "lease_owner", "stop_reason")
_BUSY_S, _IDLE_S = 2.0, 5.0
#: Time that a controller has to begin before its run counts as left alone again, s.
_STARTS_S: Final = 30.0


def routes(site: Site, hub: Hub) -> APIRouter:
    """Return the pages about runs and knowledge."""
    router = APIRouter(include_in_schema=False)
    _add_runs(router, site, hub)
    _add_run(router, site, hub)
    _add_events(router, site)
    _add_cycles(router, site)
    _add_logs(router, site, hub)
    _add_knowledge(router, site)
    return router


def _add_runs(router: APIRouter, site: Site, hub: Hub) -> None:
    """Add the list of runs, their comparison and metrics."""

    @router.get("/")
    def runs(
        request: Request, status: RunState | None = None, before: Word | None = None
    ) -> HTMLResponse:
        found = (
            run_list(site.store(), status=status, limit=RUNS_SHOWN + 1, before=before)
            if site.has_store()
            else []
        )
        return site.page(
            request,
            "runs.html.j2",
            runs=found[:RUNS_SHOWN],
            more=len(found) > RUNS_SHOWN,
            status=status,
            before=before,
            statuses=RUN_STATUSES,
            workdir=site.workdir,
            place=database.shown(site.location),
        )

    @router.get("/live/runs")
    def live_runs() -> Response:
        return hub.response("runs", lambda: RunsFeed(site), position=0)

    @router.get("/compare")
    def compare(
        request: Request, run: Annotated[list[Word], Query(min_length=2, max_length=8)]
    ) -> HTMLResponse:
        names = list(dict.fromkeys(name.strip() for name in run))
        for name in names:
            store_of(site, name)
        found = compare_runs(site.store(), names, workdir=site.workdir)
        return site.page(request, "compare.html.j2", runs=found)

    @router.get("/metrics")
    def metrics() -> PlainTextResponse:
        text = metrics_text(site.store(), site.workdir) if site.has_store() else ""
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


def _add_run(router: APIRouter, site: Site, hub: Hub) -> None:
    """Add the page of a run, and its buttons."""

    @router.get("/runs/{run_id}")
    def run(
        request: Request,
        run_id: RunName,
        done: Action | None = None,
        cycle: Annotated[int | None, Query(ge=0, le=MAX_CYCLE)] = None,
        cycles: Literal["all"] | None = None,
    ) -> HTMLResponse:
        store = store_of(site, run_id)
        last = store.events.find(run_id, limit=LAST_SHOWN, width=TEXT_READ)
        newest = None if cycles else NEWEST
        status = run_status(store, run_id, workdir=site.workdir, newest=newest)
        config = json.loads(store.get_run(run_id)["config_json"])
        return site.page(
            request,
            "run.html.j2",
            is_live=cycles is None,
            events=[event_row(one) for one in last],
            done=_DONE.get(done or "") or _answered(store, run_id, cycle),
            others=[one for one in newest_ids(store.database, limit=RUNS_SHOWN) if one != run_id],
            silence=_SILENCE.get(config.get("approval", {}).get("on_timeout", ""), ""),
            **details(site, status),
        )

    @router.post("/runs/{run_id}/{action}")
    def act(request: Request, run_id: RunName, action: Action) -> Response:
        store, form = store_of(site, run_id), request.scope["form"]
        said = {name: form.get(name, "") for name in _LONGEST}
        for name, longest in _LONGEST.items():
            if len(said[name]) > longest:
                raise InputError(f"{name}: expected at most {longest} characters; say it in fewer.")
        of_cycle = ""
        if action == "stop":
            stop_run(store, run_id, workdir=site.workdir, **said)
        elif action == "resume":
            location = site.location if isinstance(site.location, str) else None
            resume_run(store, run_id, workdir=site.workdir, location=location, **said)
        else:
            cycle = number_in("cycle", form.get("cycle", ""))
            try:
                row = answer(store, run_id, approve=action == "approve", cycle=cycle, **said)
            except ApprovalDecidedError as error:
                raise HTTPException(409, _answered(store, run_id, cycle)) from error
            of_cycle = f"&cycle={row.cycle}"
        return RedirectResponse(f"/runs/{run_id}?done={action}{of_cycle}", status_code=303)

    @router.get("/live/runs/{run_id}")
    def live_run(request: Request, run_id: RunName, after: Number = 0) -> Response:
        store_of(site, run_id)
        position = _position(request, after)
        return hub.response(("run", run_id), lambda: RunFeed(site, run_id), position=position)


def _add_events(router: APIRouter, site: Site) -> None:
    """Add the events of a run."""

    @router.get("/runs/{run_id}/events")
    def events(
        request: Request,
        run_id: RunName,
        stage: Word = "",
        kind: Word = "",
        cycle: Word = "",
        text: Word = "",
        after: Word = "",
        before: Word = "",
    ) -> HTMLResponse:
        store = store_of(site, run_id)
        last = store.events.last_seq(run_id)
        found = store.events.find(
            run_id,
            stage=stage or None,
            kind=kind or None,
            cycle=number_in("cycle", cycle),
            text=text,
            after=number_in("after", after, MAX_SEQ),
            before=number_in("before", before, MAX_SEQ),
            limit=EVENTS_SHOWN,
            width=TEXT_READ,
        )
        asked = {"stage": stage, "kind": kind, "cycle": cycle, "text": text}
        return site.page(
            request,
            "events.html.j2",
            run_id=run_id,
            events=[event_row(one) for one in found],
            asked=asked,
            words=store.events.words(run_id),
            after=after,
            before=before,
            last=last,
            full=len(found) == EVENTS_SHOWN,
        )

    @router.get("/runs/{run_id}/events/{seq}")
    def event(
        request: Request, run_id: RunName, seq: Annotated[int, InPath(ge=1, le=MAX_SEQ)]
    ) -> HTMLResponse:
        found = store_of(site, run_id).events.find(
            run_id, after=seq - 1, before=seq + 1, width=MAX_SHOWN
        )
        if not found:
            raise HTTPException(404, f"Run {run_id!r} has no event {seq}.")
        return site.page(
            request,
            "event.html.j2",
            run_id=run_id,
            event=event_row(found[0]),
            text=_pretty(found[0].payload),
        )


def _add_cycles(router: APIRouter, site: Site) -> None:
    """Add the cycles of a run, with their films."""

    @router.get("/runs/{run_id}/cycles/{cycle}")
    def cycle(request: Request, run_id: RunName, cycle: CycleNumber) -> HTMLResponse:
        return site.page(request, "cycle.html.j2", **cycle_details(site, run_id, cycle))

    @router.get("/runs/{run_id}/films/{number}")
    def run_film(
        run_id: RunName, number: Annotated[int, InPath(ge=0, le=MAX_CYCLE)]
    ) -> FileResponse:
        found = [path for one in films(store_of(site, run_id), run_id) for path in one["videos"]]
        if number >= len(found):
            raise HTTPException(404, f"Run {run_id!r} has no film {number}.")
        return film(site, found[number])


def _add_logs(router: APIRouter, site: Site, hub: Hub) -> None:
    """Add the logs of a run."""

    @router.get("/runs/{run_id}/cycles/{cycle}/log/{stage}")
    def job_log(
        request: Request, run_id: RunName, cycle: CycleNumber, stage: Stage
    ) -> HTMLResponse:
        key = JobKey(run_id=run_id, cycle=cycle, stage=stage)
        job = store_of(site, run_id).jobs.get(key)
        if job is None:
            raise HTTPException(404, f"Cycle {cycle} of run {run_id!r} has no job {stage!r}.")
        return log_page(request, run_id, key.log_in(Path()).as_posix(), job)

    @router.get("/runs/{run_id}/log")
    def controller_log(request: Request, run_id: RunName) -> HTMLResponse:
        store_of(site, run_id)
        return log_page(request, run_id, CONTROLLER_LOG, None)

    def log_page(request: Request, run_id: str, name: str, job: JobRow | None) -> HTMLResponse:
        try:
            text, size = read_tail(site.workdir, f"{run_id}/{name}")
        except StorageError:
            text, size = "", 0
        told: dict[str, Any] = {"name": name, "job": job, "text": text, "size": size}
        told["shown"] = MAX_SHOWN
        return site.page(request, "log.html.j2", run_id=run_id, **told)

    @router.get("/live/runs/{run_id}/log")
    def live_log(
        request: Request,
        run_id: RunName,
        name: Annotated[str, Query(pattern=LOG_NAME)] = CONTROLLER_LOG,
        after: Number = 0,
    ) -> Response:
        store_of(site, run_id)
        path, position = f"{run_id}/{name}", _position(request, after)
        return hub.response(("log", path), lambda: LogFeed(site, path), position=position)


def _add_knowledge(router: APIRouter, site: Site) -> None:
    """Add the pages of knowledge."""

    @router.get("/knowledge")
    def knowledge(request: Request) -> HTMLResponse:
        return site.page(
            request, "knowledge.html.j2", names=page_names(site), root=site.knowledge, name=""
        )

    @router.get("/knowledge/{name:path}")
    def page(request: Request, name: str) -> HTMLResponse:
        names = page_names(site)
        if name not in names:
            raise HTTPException(404, "There is no such page.")
        found = read_page(read_page_text(site, name).encode())
        parts = [f"## {heading}\n\n{text}" if heading else text for heading, text in found.sections]
        body = "\n\n".join([*parts, found.below.decode("utf-8", "replace")])
        html = Markup(MARKDOWN.render(body))  # noqa: S704 -- made with `html` off: it escapes
        return site.page(
            request,
            "knowledge.html.j2",
            names=names,
            root=site.knowledge,
            name=name,
            meta=found.meta,
            problem=found.problem,
            html=html,
        )


def number_in(name: str, text: str, most: int = MAX_CYCLE) -> int | None:
    """Return a number that somebody typed; None for nothing."""
    number = int(text) if text.isdecimal() and text.isascii() and len(text) < 20 else most + 1
    if text and number > most:
        raise InputError(f"{name}: expected a whole number up to {most}, got {text[:50]!r}.")
    return number if text else None


def _answered(store: JobStore, run_id: str, cycle: int | None) -> str:
    """Return who answered the question of a cycle, when and why; empty if nobody did."""
    for row in store.approvals.of_run(run_id) if cycle is not None else ():
        if row.cycle == cycle and row.decided_at is not None:
            at = when(row.decided_at)[11:16]
            return f"Cycle {cycle}: {row.by} {row.status} this at {at}: {row.reason}"
    return ""


def _position(request: Request, after: int) -> int:
    """Return the position that a browser has: of its last message, else of its page."""
    heard = request.headers.get("last-event-id", "")
    return int(heard) if heard.isdecimal() and heard.isascii() and len(heard) < 17 else after


def event_row(event: StoredEvent) -> dict[str, Any]:
    """Return an event as a line of the log; ``payload`` is what a filter by text looks at."""
    text = event_in_words(event.kind, event.payload)
    row = {name: getattr(event, name) for name in ("seq", "ts", "stage", "kind", "cycle")}
    text = text if len(text) <= TEXT_SHOWN else f"{text[:TEXT_SHOWN]}…"
    return {**row, "text": text, "payload": event.payload[:TEXT_SHOWN]}


def _pretty(document: str | None) -> str:
    """Return a JSON document with one value a line; a damaged one as it is."""
    try:
        text = json.dumps(json.loads(document or "null"), indent=2, ensure_ascii=False)
    except ValueError:
        text = document or ""
    return database.plain_text(text[:MAX_SHOWN])


def details(site: Site, status: RunStatus) -> dict[str, Any]:
    """Return what the changing part of a run's page shows."""
    blessed = status.blessed
    measured = [
        one.candidate for one in status.cycles if blessed is not None and one.idx == blessed.cycle
    ]
    log, where = status.failed_log, ["--workdir", str(site.workdir.absolute())]
    if isinstance(site.location, str):
        where += ["--store", database.shown(site.location)]
    incidents = _incidents(site, status.run_id)
    begun = [one["ts"] for one in incidents[:1] if one.get("kind") == "resume_asked"]
    starting = status.worked_on_by is None and begun > [time.time() - _STARTS_S]
    asked = [f"{one.cycle}/{one.gate}" for one in status.pending]
    return {
        "run": status,
        "blessed": measured[0] if measured else None,
        "blessed_path": "" if blessed is None else _below(site.workdir, blessed.path),
        "more_of": raisable_budget(status.stop_reason),
        "where": shlex.join(where),
        "controller": readable(status.worked_on_by) if status.worked_on_by else None,
        "drawings": {
            one.idx: intervals(f"cycle-{one.idx}", candidate=one.candidate, baseline=one.baseline)
            for one in status.cycles
            if one.candidate is not None or one.baseline is not None
        },
        "chart": success_chart(status.cycles),
        "failed_job": None if log is None else _job_of(log),
        "shortage": shortage(status.disk, site.workdir),
        "incidents": incidents,
        "starting": starting,
        "key": " ".join([status.status, str(status.worked_on_by is not None or starting), *asked]),
        "pages": [_page_of(site, page) for page in status.knowledge_pages],
    }


def _below(folder: Path, path: str) -> str:
    """Return a path as it is below a folder; another one as it is."""
    root = folder.absolute()
    return str(Path(path).relative_to(root)) if Path(path).is_relative_to(root) else path


def _incidents(site: Site, run_id: str) -> list[dict[str, Any]]:
    """Return the newest incidents of a run, and answers to its questions, newest first."""
    answers: list[dict[str, Any]] = [
        {
            "ts": row.decided_at,
            "kind": f"{row.gate} of cycle {row.cycle} {row.status}",
            "message": row.reason,
            "by": row.by,
        }
        for row in site.store().approvals.of_run(run_id)
        if row.decided_at is not None
    ]
    noted = incidents_of(site.workdir / run_id)
    found = [one | {"ts": _seconds(one.get("ts"))} for one in noted]
    return sorted([*found, *answers], key=lambda one: one["ts"])[:-21:-1]


def _seconds(value: object) -> float:
    """Return a time that was read from a file; 0 if it is none."""
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e11 else 0.0


def _page_of(site: Site, page: str) -> tuple[str, bool]:
    """Return the name of a page that a run wrote to, and whether it is among those shown."""
    name = _below(site.knowledge, page)
    return name, (site.knowledge / name).is_file()


def _job_of(log: str) -> tuple[str, str]:
    """Return cycle and stage of the job that writes a log."""
    folder, _, name = log.rpartition("/")
    return folder.rpartition("_")[2], name.removesuffix(".log")


def cycle_details(site: Site, run_id: str, cycle: int) -> dict[str, Any]:
    """Return what the page of a cycle shows, or answer 404."""
    store = store_of(site, run_id)
    rows = {row["idx"]: row for row in store.cycles_for(run_id)}
    if cycle not in rows:
        raise HTTPException(404, f"Run {run_id!r} has no cycle {cycle}.")
    decisions = store.events.find(run_id, kind="decision", cycle=cycle, limit=1)
    if not decisions:
        decisions = store.events.find(run_id, kind="approval_requested", cycle=cycle, limit=1)
    tasks: defaultdict[str, dict[str, Measurement]] = defaultdict(dict)
    for one in cycle_evaluation(store, run_id, cycle):
        tasks[one.task][one.subject] = one.measured
    subjects = sorted({name for found in tasks.values() for name in found}, key=_order)
    played: defaultdict[tuple[str, int], dict[str, bool]] = defaultdict(dict)
    for subject in subjects[:4]:
        for one in store.episodes(run_id, cycle, subject):
            played[one.task, one.seed][subject] = one.success
    jobs = [one for one in store.jobs.of_run(run_id, since=cycle) if one.key.cycle == cycle]
    numbered = enumerate(
        (group["cycle"], path) for group in films(store, run_id) for path in group["videos"]
    )
    videos = {number: path for number, (of, path) in numbered if of == cycle}
    shown = [number for number, path in videos.items() if has_film(site, path)]
    gone = [one for one in removed(site.workdir / run_id) if one.startswith(f"cycle_{cycle}/")]
    return {
        "run_id": run_id,
        "cycle": rows[cycle],
        "neighbors": [one for one in (cycle - 1, cycle + 1) if one in rows],
        "decision": json.loads(decisions[0].payload) if decisions else {},
        "subjects": subjects[:4],
        "tasks": tasks,
        "drawings": {
            task: intervals(
                f"task-{place}", candidate=found.get("candidate"), baseline=found.get("baseline")
            )
            for place, (task, found) in enumerate(tasks.items())
        },
        "played": dict(list(played.items())[:EPISODES_SHOWN]),
        "n_played": len(played),
        "jobs": jobs[:JOBS_SHOWN],
        "films": shown,
        "n_lost": len(videos) - len(shown),
        "removed": sorted(gone),
        "proposal": _pretty(rows[cycle]["proposal_json"]),
        "dataset": _pretty(rows[cycle]["dataset_json"]),
    }


def _order(subject: str) -> tuple[int, str]:
    first = ("candidate", "baseline")
    return (first.index(subject) if subject in first else len(first)), subject


class RunsFeed(Feed):
    """The rows of the newest runs."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._rows: Mapping[str, str] = {}

    def changes(self) -> dict[str, Any] | None:
        """Return the rows that changed."""
        if not self._site.has_store():
            return None
        runs = run_list(self._site.store(), limit=RUNS_SHOWN)
        rows = {one.run_id: self._site.render("_run_row.html.j2", run=one) for one in runs}
        new = {name: row for name, row in rows.items() if self._rows.get(name) != row}
        self._rows = rows
        return {"rows": new} if new else None


class RunFeed(Feed):
    """The events of a run, and how it stands."""

    def __init__(self, site: Site, run_id: str) -> None:
        self._site = site
        self._run_id = run_id
        self._shown: dict[str, Any] = {}
        self._stamp: Any = None
        self._due = 0.0

    def end(self) -> int:
        """Return the number of the last event."""
        return self._site.store().events.last_seq(self._run_id)

    def read(self, position: int, /) -> Growth | None:
        """Return events behind number ``position``."""
        found = self._site.store().events.find(
            self._run_id, after=position, limit=EVENTS_SHOWN, width=TEXT_READ
        )
        return Growth("events", [event_row(one) for one in found], position) if found else None

    def changes(self) -> dict[str, Any] | None:
        """Return the part of the run's page that changes."""
        store, moment = self._site.store(), time.monotonic()
        run = store.get_run(self._run_id)
        stamp = {name: run[name] for name in _STAMP}, store.events.last_seq(self._run_id)
        if stamp == self._stamp and moment < self._due:
            return None
        status = run_status(store, self._run_id, workdir=self._site.workdir)
        self._stamp, self._due = stamp, moment + (_BUSY_S if status.jobs else _IDLE_S)
        found = details(self._site, status)
        html = self._site.render("_run.html.j2", **found)
        shown = {"live": html, "actions": found["key"]}
        if shown == self._shown:
            return None
        self._shown = shown
        return shown


class LogFeed(Feed):
    """The bytes of a log."""

    def __init__(self, site: Site, name: str) -> None:
        self._site = site
        self._name = name

    def end(self) -> int:
        """Return the size of the log."""
        try:
            with open_inside(self._site.workdir, self._name) as file:
                return file.seek(0, 2)
        except StorageError:
            return 0

    def read(self, position: int, /) -> Growth | None:
        """Return bytes behind ``position``."""
        try:
            with open_inside(self._site.workdir, self._name) as file:
                file.seek(position)
                data = file.read(MAX_SHOWN)
        except StorageError:
            return None
        return Growth("log", data, position) if data else None
