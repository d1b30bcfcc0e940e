"""The JSON addresses of LeAgents' dashboard, which programs may rely on.

Runs come from the store, so an event's number is the number of its line in ``events.jsonl``.
Reading creates nothing: without a store there are no runs.
"""

import json
from typing import Annotated, Any, BinaryIO, Final, cast

from fastapi import APIRouter, HTTPException, Query
from fastapi import Path as InPath
from fastapi.responses import FileResponse

from cadenza.core.errors import StorageError
from cadenza.loop.config import NAME_PATTERN
from cadenza.loop.events.bus import SCHEMA
from cadenza.loop.store.jobstore import JobStore
from cadenza.loop.store.overview import overviews
from cadenza.loop.store.rows import Row, StoredEvent
from cadenza.web.site import OpenFile, Site, open_inside

RunName = Annotated[str, InPath(pattern=NAME_PATTERN, max_length=100, description="Id of a run.")]
#: Largest number of an event, and of a cycle, that a request may name.
MAX_SEQ: Final = 2**53
MAX_CYCLE: Final = 1_000_000
Number = Annotated[int, Query(ge=0, le=MAX_SEQ)]
#: Public columns of a run: those of LeAgents, its start and the digest of its rules.
_COLUMNS: Final = (
    "id",
    "created_at",
    "status",
    "stop_reason",
    "config_json",
    "constitution_sha256",
    "stop_requested_at",
)
#: Limits of an answer with knowledge: pages, bytes of one, bytes of all.
MAX_PAGES, MAX_PAGE_BYTES, MAX_BYTES = 2_000, 1 << 20, 1 << 25


def routes(site: Site) -> APIRouter:
    """Return the addresses below ``/api``."""
    router = APIRouter(prefix="/api", tags=["LeAgents"])

    @router.get("/runs", summary="All runs, oldest first, with cycles and blessed policy")
    def runs() -> list[dict[str, Any]]:
        if not site.has_store():
            return []
        found = overviews(site.store().database, newest=None, only=("cycles", "checkpoints"))
        return [
            {
                **_public(one.run),
                "cycles": one.rows["cycles"],
                "blessed": next((row for row in one.rows["checkpoints"] if row["blessed"]), None),
            }
            for one in found
        ]

    @router.get("/runs/{run_id}", summary="One run", responses={404: {}})
    def run(run_id: RunName) -> dict[str, Any]:
        store = store_of(site, run_id)
        row = store.get_run(run_id)
        return {
            **_public(row),
            "config": json.loads(row["config_json"]),
            "cycles": store.cycles_for(run_id),
            "checkpoints": [_checkpoint(one) for one in store.checkpoints_for(run_id)],
            "blessed": store.blessed_checkpoint(run_id),
            "gpu_seconds": sum(store.jobs.spent_s(run_id).values()),
        }

    @router.get("/runs/{run_id}/videos", summary="Films of evaluations", responses={404: {}})
    def videos(run_id: RunName) -> list[dict[str, Any]]:
        return films(store_of(site, run_id), run_id)

    @router.get("/video", summary="One film", response_class=FileResponse, responses={404: {}})
    def video(path: Annotated[str, Query(max_length=4096)]) -> FileResponse:
        return film(site, path)

    @router.get("/runs/{run_id}/events", summary="Events behind number `after`")
    def events(
        run_id: RunName,
        after: Number = 0,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 200,
    ) -> dict[str, Any]:
        if not site.has_store():
            return {"events": [], "next": after}
        found = site.store().events.find(run_id, after=after, limit=limit)
        told = [_event(run_id, one) for one in found]
        return {"events": told, "next": found[-1].seq if found else after}

    @router.get("/knowledge", summary="All pages of knowledge")
    def knowledge() -> list[dict[str, str]]:
        told: list[dict[str, str]] = []
        left = MAX_BYTES
        for name in page_names(site):
            told.append({"path": name, "content": read_page_text(site, name)})
            left -= len(told[-1]["content"].encode())
            if left < 0:
                break
        return told

    return router


def store_of(site: Site, run_id: str) -> JobStore:
    """Return the store, which has this run, or answer 404."""
    if not site.has_store() or not site.store().has_run(run_id):
        raise HTTPException(404, f"unknown run {run_id!r}")
    return site.store()


def _public(run: Row) -> Row:
    return {name: run[name] for name in _COLUMNS}


def _checkpoint(row: Row) -> Row:
    told = {name: value for name, value in row.items() if name != "eval_json"}
    measured: Any = json.loads(row["eval_json"] or "{}")
    return told | {"success_rate": measured.get("success_rate")}


def _event(run_id: str, event: StoredEvent) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "stage": event.stage,
        "kind": event.kind,
        "cycle": event.cycle,
        "payload": json.loads(event.payload),
        "ts": event.ts,
        "seq": event.seq,
        "schema": SCHEMA,
        "mono": event.mono,
    }


def films(store: JobStore, run_id: str) -> list[dict[str, Any]]:
    """Return the films of each measured policy of a run: ``[{cycle, videos}]``."""
    groups: list[dict[str, Any]] = []
    for row in store.checkpoints_for(run_id):
        if not row["eval_json"]:
            continue
        raw = _mapping(json.loads(row["eval_json"]).get("raw"))
        paths = _paths(_mapping(raw.get("overall")))
        for task in cast("list[Any]", raw.get("per_task") or []):
            paths += _paths(_mapping(_mapping(task).get("metrics")))
        groups.append({"cycle": row["cycle_idx"], "videos": list(dict.fromkeys(paths))})
    return groups


def _mapping(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _paths(told: dict[str, Any]) -> list[str]:
    paths = told.get("video_paths")
    return [str(one) for one in cast("list[Any]", paths)] if isinstance(paths, list) else []


def film(site: Site, path: str) -> FileResponse:
    """Return a film below the folder of all runs, or answer 404.

    A relative path starts at the parent of that folder.
    """
    return OpenFile(_open_film(site, path), "video/mp4")


def has_film(site: Site, path: str) -> bool:
    """Return whether a film is still there."""
    try:
        _open_film(site, path).close()
    except HTTPException:
        return False
    return True


def _open_film(site: Site, path: str) -> BinaryIO:
    root = site.workdir.resolve()
    try:
        place = (root.parent / path).resolve()
        if place.suffix != ".mp4" or not place.is_relative_to(root):
            raise HTTPException(404, "video not found")
        return open_inside(root, str(place.relative_to(root)))
    except (OSError, ValueError, RuntimeError, StorageError) as error:
        raise HTTPException(404, "video not found") from error


def page_names(site: Site) -> list[str]:
    """Return the names of the pages of knowledge, sorted, without links out of their folder."""
    root = site.knowledge.resolve()
    if not root.is_dir():
        return []
    found = sorted(path for path in root.rglob("*.md") if path.is_file())[:MAX_PAGES]
    return [str(path.relative_to(root)) for path in found if path.resolve().is_relative_to(root)]


def read_page_text(site: Site, name: str) -> str:
    """Return the text of a page of knowledge, cut to `MAX_PAGE_BYTES`; empty if it is gone."""
    try:
        with open_inside(site.knowledge, name) as file:
            return file.read(MAX_PAGE_BYTES).decode("utf-8", "replace")
    except StorageError:
        return ""
