"""The pages of results: what evaluations, spikes, populations, trainings and streams left."""

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi import Path as InPath
from markupsafe import Markup
from starlette.responses import FileResponse, RedirectResponse, Response

from cadenza.benchmark.finding import Finding, Kind, Search, Sources, claimed
from cadenza.core.errors import CadenzaError, InputError, NotReadyError, StorageError
from cadenza.evaluation.report.view import RECORDINGS_NAME, condition_css, player_data
from cadenza.stream import status
from cadenza.web.findings import SHOWING, Findings, state_of
from cadenza.web.live import Feed, Hub
from cadenza.web.site import MARKDOWN, OpenFile, Site, open_inside

ResultId = Annotated[str, InPath(pattern="^[0-9a-f]{16}$", description="Digest of a place.")]
#: Kinds in the order of the overview, with their headings.
_HEADINGS: Final[dict[Kind, str]] = {
    "evaluation": "Evaluations of several policies",
    "spike": "Spikes",
    "matrix": "Cross-play matrices",
    "bundle": "Sealed bundles",
    "seeds": "Trainings with several seeds",
    "training": "Trainings",
    "stream": "Streams",
    "recording": "Recordings of streams",
    "film": "Films",
}
#: Findings of one kind on the overview; bundles, films and related groups of one page; bytes of a
#: file that is no bundle's.
MAX_LISTED, MAX_BUNDLES, MAX_FILMS, MAX_RELATED, MAX_BYTES = 100, 100, 24, 12, 1 << 25


def routes(
    site: Site, hub: Hub, findings: Findings, repo_root: Path | None, allowed_signers: Path | None
) -> APIRouter:
    """Return the pages about results; whose tags and keys count, `Sources` says."""
    router = APIRouter(include_in_schema=False)

    def find(identity: str, *kinds: Kind) -> Finding:
        found = findings.get(identity, *kinds)
        if found is None:
            raise HTTPException(404, "There is no such result; it may have been moved.")
        return found

    def read(path: Path) -> bytes:
        with open_inside(site.workdir, str(path.relative_to(site.workdir.resolve()))) as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise InputError(f"{path.name}: expected at most {MAX_BYTES >> 20} MB, got more.")
        return data

    sources = Sources(read=read, repo_root=repo_root, allowed_signers=allowed_signers)

    def computed(what: str, name: str, state: Any, *args: Any, anew: bool = False) -> Any:
        def compute() -> Any:
            # imported where it is computed: the benchmark takes seconds to import
            found = getattr(import_module(SHOWING), what)(*args)
            return _report(site, found) if what == "show" else found

        try:
            return findings.computed(f"{what} {name}", state, compute, anew=anew)
        except NotReadyError as error:
            again = {"Retry-After": "5", "Refresh": f"5; url=/results/{name or 'leaderboard'}"}
            raise HTTPException(503, str(error), again) from error

    def shown_state(found: Finding, folders: list[Path]) -> tuple[Any, Path]:
        recordings = site.workdir.resolve() / found.home / RECORDINGS_NAME
        return (_state(folders), state_of([recordings])), recordings

    def about(found: Finding) -> tuple[str, str, str, Any]:
        """Return a bundle's task and policy, and of a computed page its score and badge."""
        known = findings.known(f"show {found.identity}", shown_state(found, [found.path])[0])
        badge = known[0].badges[0] if known and known[0].badges else None
        return *claimed(read, found), known[0].score if known else "", badge

    @router.get("/results")
    def overview(request: Request, text: Annotated[str, Query(max_length=200)] = "") -> Response:
        found = findings.search()
        findings.prepare()
        groups = {
            name: [one for one in found.of(kind) if text.lower() in one.place.lower()]
            for kind, name in _HEADINGS.items()
        }
        return site.page(
            request,
            "results.html.j2",
            about={one.identity: about(one) for one in groups[_HEADINGS["bundle"]][:MAX_LISTED]},
            groups=[(name, len(some), some[:MAX_LISTED]) for name, some in groups.items() if some],
            text=text,
            is_partial=found.is_partial,
            workdir=site.workdir,
        )

    @router.get("/results/leaderboard")
    def leaderboard(request: Request) -> Response:
        bundles = findings.search().of("bundle")
        folders = [one.path for one in bundles[:MAX_BUNDLES]]
        parts = computed("sheets", "", _state(folders), None, folders, sources)
        return sheets_page(request, "Leaderboard", parts, left_out=len(bundles) - len(folders))

    def sheets_page(request: Request, title: str, parts: Sequence[Any], **more: Any) -> Response:
        # made with `html` off: it escapes
        told = [(one, Markup(MARKDOWN.render(one.markdown))) for one in parts]  # noqa: S704
        heading = next((one.heading for one in parts if one.heading), title)
        found: dict[str, Any] = {"title": heading, "place": "" if heading == title else title}
        found |= {"sheets": told, "films": (), "related": (), "left_out": 0}
        return site.page(request, "sheets.html.j2", **found | more)

    @router.get("/results/{result_id}")
    def result(request: Request, result_id: ResultId) -> Response:
        found, every = find(result_id), findings.search()
        related = every.related(found)
        if found.kind in ("spike", "seeds"):
            related += every.members(found)
        related = related[:MAX_RELATED]
        if found.kind in ("bundle", "evaluation"):
            return bundle_page(request, found, every, related=related)
        if found.kind == "stream":
            part = site.render("_stream.html.j2", **stream_details(site, found))
            return site.page(request, "stream.html.j2", found=found, part=Markup(part))  # noqa: S704
        if found.kind == "film":
            return sheets_page(request, found.place, (), films=[found], related=related)
        members = every.members(found)
        paths = [one.path for one in members[:MAX_BUNDLES]]
        parts = computed("sheets", found.identity, _state(paths), found.kind, paths, sources)
        films = every.below("film", found.home)[:MAX_FILMS]
        more: dict[str, Any] = {"films": films, "related": related}
        return sheets_page(request, found.place, parts, left_out=len(members) - len(paths), **more)

    def bundle_page(
        request: Request, found: Finding, every: Search, *, related: list[Finding]
    ) -> Response:
        whole = every.members(found)
        members = whole[:MAX_BUNDLES]
        folders, beside = [one.path for one in members], every.below("bundle", found.home)
        both, recordings = shown_state(found, folders)
        state, known = both[0], recordings if recordings.is_file() else None
        shown, title, report = computed("show", found.identity, both, folders, known, sources)
        last = findings.known(f"judge_all {found.identity}", state)
        verified_at, badges = last or (None, shown.badges)
        if last and any(badge.state == "bad" for badge in badges):
            report = ""
        return site.page(
            request,
            "result.html.j2",
            found=found,
            members=members,
            left_out=len(whole) - len(members),
            shown=shown,
            title=title or found.place,
            report=Markup(report),  # noqa: S704 -- a template's text
            badges=badges,
            recorded=next((one for one in beside if one.path.name == shown.recorded), None),
            verified_at=verified_at,
            films=every.below("film", found.home)[:MAX_FILMS],
            related=related,
        )

    @router.post("/results/{result_id}/verify")
    def verify(result_id: ResultId) -> Response:
        found = find(result_id, "bundle", "evaluation")
        folders = [one.path for one in findings.search().members(found)[:MAX_BUNDLES]]
        computed("judge_all", result_id, _state(folders), folders, sources, anew=True)
        return RedirectResponse(f"/results/{result_id}#verification", status_code=303)

    @router.get("/results/{result_id}/film")
    def film(result_id: ResultId) -> FileResponse:
        found = find(result_id, "film")
        try:
            file = open_inside(site.workdir, found.place)
        except StorageError as error:
            raise HTTPException(404, "There is no such film.") from error
        return OpenFile(file, "video/mp4" if found.place.endswith(".mp4") else "image/gif")

    @router.get("/live/results/{result_id}")
    def live_stream(result_id: ResultId) -> Response:
        found = find(result_id, "stream")
        return hub.response(("stream", result_id), lambda: StreamFeed(site, found), position=0)

    return router


class StreamFeed(Feed):
    """The counters of a stream."""

    def __init__(self, site: Site, found: Finding) -> None:
        self._site, self._found, self._shown = site, found, ""

    def changes(self) -> dict[str, Any] | None:
        """Return the page's part that changes."""
        html = self._site.render("_stream.html.j2", **stream_details(self._site, self._found))
        if html == self._shown:
            return None
        self._shown = html
        return {"live": html}


def stream_details(site: Site, found: Finding) -> dict[str, Any]:
    """Return what the page of a stream shows, or what is wrong with its status file."""
    try:
        open_inside(site.workdir, found.place).close()
        told = status.read_status(found.path)
    except CadenzaError as error:
        return {"problem": str(error)}
    return {
        "problem": "",
        "headline": status.headline(told),
        "facts": status.summary_rows(told),
        "columns": status.PRODUCER_COLUMNS,
        "producers": status.producer_rows(told),
        "errors": status.producer_errors(told),
    }


def _report(site: Site, shown: Any) -> tuple[Any, str, str]:
    """Return ``shown`` without its episodes, and the report's title and text."""
    view = shown.view
    if view is None:
        return shown, "", ""
    text = site.render(
        "_report.html.j2",
        shown=shown,
        css=condition_css(view),
        recorded={one.partner_id for one in view.rollouts},
        rollouts=player_data(view) if view.rollouts else None,
    )
    return replace(shown, view=None, page=None), view.title, text


def _state(paths: list[Path]) -> Any:
    """Return a value that changes when these files or folders do, or what lies beside the files."""
    beside = [path.parent for path in paths if path.is_file()]  # a training's curve, and its log
    folders = [*paths, *beside, *(folder.parent / "logs" for folder in beside)]
    return state_of([*paths, *(file for folder in folders for file in folder.glob("*"))])
