"""The pages of results: what evaluations, spikes, populations, trainings and streams left."""

import time
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import APIRouter, HTTPException, Request
from fastapi import Path as InPath
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response

from cadenza.core.errors import StorageError
from cadenza.evaluation.report.view import RECORDINGS_NAME, condition_css, player_data
from cadenza.web.findings import Finding, Findings, Kind, Search, state_of
from cadenza.web.site import OpenFile, Site, open_inside

ResultId = Annotated[str, InPath(pattern="^[0-9a-f]{16}$", description="Digest of a place.")]
#: Kinds in the order of the overview, with their headings.
_HEADINGS: Final[dict[Kind, str]] = {
    "evaluation": "Evaluations of several policies",
    "bundle": "Sealed bundles",
    "spike": "Spikes",
    "matrix": "Cross-play matrices",
    "seeds": "Trainings with several seeds",
    "training": "Trainings",
    "stream": "Streams",
    "recording": "Recordings of streams",
    "film": "Films",
}
#: Findings of one kind on the overview, bundles of one leaderboard, films on one page.
MAX_LISTED, MAX_BUNDLES, MAX_FILMS = 100, 100, 24


def routes(site: Site, findings: Findings) -> APIRouter:
    """Return the pages about results."""
    router = APIRouter(include_in_schema=False)
    verified: dict[str, tuple[Any, float, Any]] = {}

    def find(identity: str, *kinds: Kind) -> Finding:
        found = findings.get(identity, *(kinds or tuple(_HEADINGS)))
        if found is None:
            raise HTTPException(404, "There is no such result; it may have been moved.")
        return found

    @router.get("/results")
    def overview(request: Request) -> HTMLResponse:
        found = findings.search()
        groups = [(name, found.of(kind)) for kind, name in _HEADINGS.items()]
        return site.page(
            request,
            "results.html.j2",
            groups=[(name, len(some), some[:MAX_LISTED]) for name, some in groups if some],
            is_partial=found.is_partial,
            workdir=site.workdir,
        )

    @router.get("/results/leaderboard")
    def leaderboard(request: Request) -> HTMLResponse:
        every = findings.search().of("bundle")
        folders = [one.path for one in every[:MAX_BUNDLES]]

        def compute() -> Any:
            from cadenza.web.results import leaderboards

            return leaderboards(folders)

        boards, left_out = findings.computed("leaderboard", _state(folders), compute)
        more = len(every) - len(folders)
        return site.page(
            request, "leaderboard.html.j2", boards=boards, left_out=left_out, more=more
        )

    @router.get("/results/{result_id}")
    def result(request: Request, result_id: ResultId) -> HTMLResponse:
        found, every = find(result_id), findings.search()
        if found.kind in ("bundle", "evaluation"):
            return bundle_page(request, found, every)
        raise HTTPException(404, "There is no page for this yet.")

    def bundle_page(request: Request, found: Finding, every: Search) -> HTMLResponse:
        members = [found] if found.kind == "bundle" else _members(every, found)
        folders, home = [one.path for one in members], _home(found)
        recordings = site.workdir / home / RECORDINGS_NAME

        def compute() -> Any:
            from cadenza.web.results import show

            return show(folders, recordings if recordings.is_file() else None)

        state = _state(folders), state_of([recordings])
        shown = findings.computed(found.place, state, compute)
        checked = verified.get(found.identity)
        is_current = checked is not None and checked[0] == _state(folders)
        return site.page(
            request,
            "result.html.j2",
            found=found,
            members=members,
            shown=shown,
            badges=checked[2] if checked and is_current else shown.badges,
            verified_at=checked[1] if checked and is_current else None,
            films=every.below("film", home)[:MAX_FILMS],
            **_report(shown),
        )

    @router.post("/results/{result_id}/verify")
    def verify(result_id: ResultId) -> Response:
        found = find(result_id, "bundle", "evaluation")
        members = [found] if found.kind == "bundle" else _members(findings.search(), found)
        folders = [one.path for one in members]

        def compute() -> Any:
            from cadenza.web.results import judge

            return tuple(judge(folder)[0] for folder in folders)

        moment, state = time.time(), _state(folders)
        badges = findings.computed(f"verify {result_id}", state, compute, anew=True)
        while len(verified) >= MAX_LISTED:
            verified.pop(next(iter(verified)))
        verified[result_id] = state, moment, badges
        return RedirectResponse(f"/results/{result_id}#verification", status_code=303)

    @router.get("/results/{result_id}/film")
    def film(result_id: ResultId) -> FileResponse:
        found = find(result_id, "film")
        try:
            file = open_inside(site.workdir, found.place)
        except StorageError as error:
            raise HTTPException(404, "There is no such film.") from error
        kind = "video/mp4" if found.place.endswith(".mp4") else "image/gif"
        return OpenFile(file, kind)

    return router


def _members(every: Search, group: Finding) -> list[Finding]:
    """Return the bundles of an evaluation, by name."""
    prefix = "" if group.place == "." else f"{group.place}/"
    inside = [one for one in every.of("bundle") if one.place.startswith(f"{prefix}bundles/")]
    return sorted(inside, key=lambda one: one.place)[:MAX_BUNDLES]


def _home(found: Finding) -> str:
    """Return the folder of what a result is part of: above its bundles and its evaluation."""
    parts = Path(found.place).parts
    if found.kind == "bundle" and parts[-2:-1] == ("bundles",):
        parts = parts[:-2]
    return str(Path(*(parts[:-1] if parts[-1:] == ("evaluation",) else parts)))


def _state(folders: list[Path]) -> Any:
    """Return what changes when a file of these folders does."""
    return state_of(file for folder in folders for file in [folder, *folder.glob("*")])


def _report(shown: Any) -> dict[str, Any]:
    """Return what the templates of a report need of its view."""
    if shown.view is None:
        return {}
    view = shown.view
    return {
        "css": condition_css(view),
        "recorded": {one.partner_id for one in view.rollouts},
        "rollouts": player_data(view) if view.rollouts and view.picks else None,
    }
