"""The pages about runs, and what keeps them live."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, cast

from fastapi import APIRouter, HTTPException, Query, Request
from starlette.responses import HTMLResponse, Response

from cadenza.loop.retention import INCIDENTS_FILE
from cadenza.loop.status_report import RunStatus, run_list, run_status
from cadenza.loop.store.jobstore import JobStore
from cadenza.loop.store.overview import events_of_run
from cadenza.loop.store.rows import StoredEvent
from cadenza.web.api import Number, RunName
from cadenza.web.live import Growth, Hub
from cadenza.web.site import Site, read_tail

Status = Literal["running", "pending_approval", "stopped", "finished", "failed"]
STATUSES: Final = ("running", "pending_approval", "stopped", "finished", "failed")
#: Runs on a page of the list; events on a page, and characters of a payload there.
RUNS_SHOWN, EVENTS_SHOWN, TEXT_SHOWN = 50, 200, 220


def routes(site: Site, hub: Hub) -> APIRouter:
    """Return the pages about runs."""
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    def runs(
        request: Request,
        status: Status | None = None,
        before: Annotated[str | None, Query(max_length=100, pattern="^[^\x00]*$")] = None,
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
            statuses=STATUSES,
            workdir=site.workdir,
        )

    @router.get("/live/runs")
    def live_runs() -> Response:
        return hub.response("runs", lambda: RunsFeed(site), position=0)

    @router.get("/runs/{run_id}")
    def run(request: Request, run_id: RunName) -> HTMLResponse:
        store = store_of(site, run_id)
        status = run_status(store, run_id, workdir=site.workdir)
        last = events_of_run(store.database, run_id, limit=30)
        return site.page(
            request,
            "run.html.j2",
            run=status,
            events=[told(one) for one in last],
            **details(site, status),
        )

    @router.get("/live/runs/{run_id}")
    def live_run(request: Request, run_id: RunName, after: Number = 0) -> Response:
        store_of(site, run_id)
        position = _position(request, after)
        return hub.response(("run", run_id), lambda: RunFeed(site, run_id), position=position)

    return router


def store_of(site: Site, run_id: str) -> JobStore:
    """Return the store that has a run, or answer 404."""
    if not site.has_store() or not site.store().has_run(run_id):
        raise HTTPException(404, f"There is no run {run_id!r}.")
    return site.store()


def _position(request: Request, after: int) -> int:
    """Return what a browser had last: a number that it heard, else the one of its page."""
    heard = request.headers.get("last-event-id", "")
    return int(heard) if heard.isdecimal() and len(heard) < 17 else after


def told(event: StoredEvent) -> dict[str, Any]:
    """Return an event as a line of the log."""
    text = event.payload
    return {
        "seq": event.seq,
        "ts": event.ts,
        "stage": event.stage,
        "kind": event.kind,
        "cycle": event.cycle,
        "text": text if len(text) <= TEXT_SHOWN else f"{text[:TEXT_SHOWN]}…",
    }


def details(site: Site, status: RunStatus) -> dict[str, Any]:
    """Return what the template of a run shows beside its status."""
    return {"incidents": incidents(site, status.run_id)}


def incidents(site: Site, run_id: str, *, limit: int = 20) -> list[dict[str, Any]]:
    """Return what the run survived, newest first; what cannot be read is left out."""
    try:
        text, _ = read_tail(site.workdir, f"{run_id}/{INCIDENTS_FILE}")
    except OSError:
        return []
    found: list[dict[str, Any]] = []
    for line in text.splitlines():
        try:
            one: Any = json.loads(line)
        except ValueError:
            continue
        if isinstance(one, dict):
            found.append(cast("dict[str, Any]", one))
    return found[: -limit - 1 : -1]


class RunsFeed:
    """The rows of the newest runs."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._rows: Mapping[str, str] = {}

    def end(self) -> int:
        """Return 0: nothing grows."""
        return 0

    def read(self, _position: int, /) -> Growth | None:
        """Return nothing."""
        return None

    def changes(self) -> dict[str, Any] | None:
        """Return the rows that changed."""
        if not self._site.has_store():
            return None
        runs = run_list(self._site.store(), limit=RUNS_SHOWN)
        rows = {one.run_id: self._site.render("_run_row.html.j2", run=one) for one in runs}
        new = {name: row for name, row in rows.items() if self._rows.get(name) != row}
        self._rows = rows
        return {"rows": new} if new else None


class RunFeed:
    """The events of a run, and how it stands."""

    def __init__(self, site: Site, run_id: str) -> None:
        self._site = site
        self._run_id = run_id
        self._shown = ""

    def end(self) -> int:
        """Return the number of the last event."""
        return self._site.store().events.last_seq(self._run_id)

    def read(self, position: int) -> Growth | None:
        """Return events behind number ``position``."""
        found = events_of_run(
            self._site.store().database, self._run_id, after=position, limit=EVENTS_SHOWN
        )
        return Growth("events", [told(one) for one in found], position) if found else None

    def changes(self) -> dict[str, Any] | None:
        """Return the part of the run's page that changes."""
        status = run_status(self._site.store(), self._run_id, workdir=self._site.workdir)
        html = self._site.render("_run.html.j2", run=status, **details(self._site, status))
        if html == self._shown:
            return None
        self._shown = html
        return {"live": html, "actions": action_key(status)}


def action_key(status: RunStatus) -> str:
    """Return what changes when other buttons are wanted."""
    asked = [f"{one.cycle}/{one.gate}" for one in status.pending]
    return " ".join([status.status, str(status.worked_on_by is not None), *asked])
