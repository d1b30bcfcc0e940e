"""The application: all routes of the dashboard behind its guard."""

import asyncio
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exception_handlers import request_validation_exception_handler
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.staticfiles import StaticFiles

from cadenza import __version__
from cadenza.core.errors import CadenzaError, InputError
from cadenza.evaluation.report.svg import ASSETS
from cadenza.evaluation.statistics.paired_outcomes import exact_bounds
from cadenza.loop.errors import (
    StoreCorruptError,
    StoreUnavailableError,
    StoreVersionError,
    UnknownRowError,
)
from cadenza.web import api, pages, result_pages
from cadenza.web.findings import Findings
from cadenza.web.live import Hub
from cadenza.web.security import SESSION, Access, Guard, address_of, cookie
from cadenza.web.site import Site


def create_app(
    workdir: Path | str,
    knowledge_root: Path | str,
    *,
    store: str | None = None,
    host: str = "127.0.0.1",
    token: str | None = None,
    names: Collection[str] = (),
    repo_root: Path | None = None,
    allowed_signers: Path | None = None,
) -> FastAPI:
    """Return the dashboard of the runs below ``workdir`` and the pages below ``knowledge_root``.

    Args:
        workdir: Folder of all runs.
        knowledge_root: Folder of the knowledge pages.
        store: URL of the job store, if it is not in ``workdir``.
        host: Where it is served; requests that name another host are refused.
        token: What visitors must know; see `cadenza.web.security.read_token`.
        names: Further names of the host, of a reverse proxy for example.
        repo_root: Git repository with the tags of registrations and the file ``allowed_signers``;
            None looks around every bundle, then around the current folder.
        allowed_signers: Keys that are trusted; None: those of ``repo_root``, or the current folder.
    """
    access = Access(token=token, host=host, names=names)
    site = Site(Path(workdir), Path(knowledge_root), store=store, access=access)
    hub, findings = Hub(), Findings(site.workdir)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        await asyncio.to_thread(exact_bounds, 1, 2, tail=0.025)  # loads scipy: nobody waits yet
        yield
        hub.close()
        site.close()

    app = FastAPI(
        title="cadenza dashboard",
        version=__version__,
        openapi_url="/api/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        middleware=[Middleware(Guard, access=access)],
    )
    app.include_router(api.routes(site))
    app.include_router(pages.routes(site, hub))
    app.include_router(result_pages.routes(site, hub, findings, repo_root, allowed_signers))
    _add_login(app, site)
    app.mount("/static/report", StaticFiles(directory=ASSETS), name="report")
    app.mount("/static", StaticFiles(directory=Path(__file__).parent / "static"), name="static")
    _add_errors(app, site)
    return app


def _add_login(app: FastAPI, site: Site) -> None:
    # coroutines: failures and ended sessions are counted in one thread, as the guard does
    @app.get("/login", include_in_schema=False)
    def login(
        request: Request, target: Annotated[str, Query(alias="next", max_length=2048)] = "/"
    ) -> Response:
        return site.page(request, "login.html.j2", target=target, problem="")

    @app.post("/login", include_in_schema=False)
    async def log_in(request: Request) -> Response:
        form, address = request.scope["form"], address_of(request.scope)
        target = form.get("next", "/")
        if not site.access.needs_token or site.access.is_blocked(address):
            problem, code = "Too many wrong tokens. Wait a minute.", 429
        elif site.access.has_token(form.get("token", "").strip()):
            answer = RedirectResponse(_own_path(target), status_code=303)
            value = cookie(SESSION, site.access.new_session(), request.scope)
            answer.headers.append("set-cookie", value)
            return answer
        else:
            site.access.note_failure(address)
            problem, code = "This is not the token.", 401
        return site.page(request, "login.html.j2", status_code=code, target=target, problem=problem)

    @app.post("/logout", include_in_schema=False)
    async def log_out(request: Request) -> Response:
        site.access.end_session(request.scope["cookies"].get(SESSION, ""))
        answer = RedirectResponse("/login", status_code=303)
        answer.headers.append("set-cookie", cookie(SESSION, "", request.scope, max_age=0))
        return answer


def _own_path(target: str) -> str:
    """Return a path of this server to go to, whatever was asked for."""
    is_own = target.startswith("/") and not target.startswith(("//", "/\\"))
    return target if is_own and target.isascii() and target.isprintable() else "/"


def _add_errors(app: FastAPI, site: Site) -> None:
    def answer(request: Request, status_code: int, why: str) -> Response:
        if request.url.path.startswith(("/api/", "/live/")):
            return JSONResponse({"detail": why}, status_code=status_code)
        phrase = f"{status_code} {HTTPStatus(status_code).phrase}"
        return site.page(request, "error.html.j2", status_code=status_code, phrase=phrase, why=why)

    @app.exception_handler(HTTPException)
    def refused(request: Request, error: Any) -> Response:
        told = answer(request, error.status_code, str(error.detail))
        told.headers.update(error.headers or {})
        return told

    @app.exception_handler(RequestValidationError)
    async def unreadable(request: Request, error: Any) -> Response:
        if request.url.path.startswith("/api/"):
            return await request_validation_exception_handler(request, error)
        what = "; ".join(f"{one['loc'][-1]}: {one['msg']}" for one in error.errors())
        return answer(request, 404, f"There is no such page: {what}.")

    @app.exception_handler(CadenzaError)
    def failed(request: Request, error: Any) -> Response:
        codes: tuple[tuple[Any, int], ...] = (
            (UnknownRowError, 404),
            (InputError, 400),
            ((StoreUnavailableError, StoreCorruptError, StoreVersionError), 503),
        )
        code = next((code for kind, code in codes if isinstance(error, kind)), 409)
        return answer(request, code, str(error))
