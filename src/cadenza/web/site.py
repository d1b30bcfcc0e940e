"""What all pages share: the store of the runs, files below their folder, and templates."""

import os
import re
import stat
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final

from fastapi import Request
from jinja2 import ChoiceLoader, Environment, FileSystemLoader, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from starlette.responses import FileResponse, HTMLResponse
from starlette.types import Receive, Scope, Send

from cadenza import __version__
from cadenza.core.errors import StorageError
from cadenza.core.files import confined_path
from cadenza.core.timing import duration
from cadenza.evaluation.report.svg import ASSETS
from cadenza.loop.errors import StoreNotFoundError
from cadenza.loop.resuming import STORE_FILE
from cadenza.loop.store.jobstore import JobStore
from cadenza.web.security import Access

#: Renders text that others wrote; markup in it is escaped, pictures stay links.
MARKDOWN: Final = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
#: Most bytes of a file that a page shows.
MAX_SHOWN: Final = 1 << 16
#: Progress bars draw over their line: what was drawn over is left out.
_DRAWN_OVER: Final = re.compile(r"[^\n]*\r(?!\n)")
_CONTROLS: Final = re.compile("[^\t\n\x20-\x7e\x85\xa0-\U0010ffff]")


def _aligned(self: Any, tokens: Any, place: int, options: Any, env: Any) -> str:
    """Return the start of a table's cell, aligned by a class: the policy forbids inline styles."""
    if "right" in str(tokens[place].attrs.pop("style", "")):
        tokens[place].attrs["class"] = "n"
    return self.renderToken(tokens, place, options, env)


for _cell in ("td_open", "th_open"):
    MARKDOWN.add_render_rule(_cell, _aligned)


class Site:
    """The folders that one dashboard shows."""

    #: Places in the bar at the top: address and name.
    NAVIGATION: Final = (("/", "Runs"), ("/results", "Results"), ("/knowledge", "Knowledge"))

    def __init__(
        self, workdir: Path, knowledge: Path, *, store: str | None = None, access: Access
    ) -> None:
        """Show the runs of ``workdir`` and their pages; ``store`` is the URL of another store."""
        self.workdir = workdir
        self.knowledge = knowledge
        self.location: Path | str = store or workdir / STORE_FILE
        self.access = access
        self._opened: tuple[JobStore, Any] | None = None
        self._lock = threading.Lock()
        self.templates: Environment = Environment(
            loader=ChoiceLoader([PackageLoader("cadenza.web"), FileSystemLoader(ASSETS)]),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment: Any = self.templates  # Jinja has no types for these
        environment.filters.update(duration=duration, percent=percent, when=when)
        environment.globals.update(navigation=self.NAVIGATION, version=__version__)

    def store(self) -> JobStore:
        """Return the open store; a file that was replaced is opened anew.

        Raises:
            StoreNotFoundError: There is none yet.
            StoreError: It does not answer, is damaged or of another version.
        """
        with self._lock:
            mark = _mark(self.location)
            if self._opened is not None and self._opened[1] != mark:
                self.close()
            if self._opened is None:
                self._opened = (JobStore.open_existing(self.location), mark)
            return self._opened[0]

    def has_store(self) -> bool:
        """Return whether there is a store yet."""
        try:
            self.store()
        except StoreNotFoundError:
            return False
        return True

    def close(self) -> None:
        """Close the store."""
        if self._opened is not None:
            self._opened[0].close()
            self._opened = None

    def render(self, template: str, **context: Any) -> str:
        """Return a template's text; all values in it are escaped."""
        return self.templates.get_template(template).render(context)

    def page(
        self, request: Request, template: str, *, status_code: int = 200, **context: Any
    ) -> HTMLResponse:
        """Return a page; templates know its path, the visitor's form number and theme."""
        theme = request.scope["cookies"].get("theme")
        text = self.render(
            template,
            path=request.url.path,
            form_number=self.access.form_number(request.scope["visitor"]),
            theme=theme if theme in ("light", "dark") else "",
            has_logout=self.access.needs_token,
            **context,
        )
        return HTMLResponse(text, status_code=status_code)


def _mark(location: Path | str) -> Any:
    """Return a value that changes when the file at a path is replaced; None for addresses."""
    if isinstance(location, str):
        return None
    try:
        status = location.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def open_inside(root: Path, relative: str) -> BinaryIO:
    """Open an ordinary file below ``root``, links resolved; pipes and devices are none.

    Raises:
        StorageError: It leads outside, or is no file that can be read.
    """
    try:
        path = confined_path(root, relative)
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError, RuntimeError) as error:  # a loop of links is a RuntimeError
        raise StorageError(f"{relative}: expected a file, got '{error}'.") from error
    # a folder on the way may have become a link since: where the open file lies, the kernel says
    place = Path(place_of(descriptor)).readlink()
    if not stat.S_ISREG(os.fstat(descriptor).st_mode) or not place.is_relative_to(root.resolve()):
        os.close(descriptor)
        raise StorageError(f"{relative}: expected a file, got something else.")
    return os.fdopen(descriptor, "rb")


def place_of(descriptor: int) -> str:
    """Return a path that leads to an open file, whatever becomes of its name."""
    return f"/proc/self/fd/{descriptor}"


class OpenFile(FileResponse):
    """An answer from an open file, even if another file has its name by then."""

    def __init__(self, file: BinaryIO, kind: str) -> None:
        number = file.fileno()
        super().__init__(place_of(number), media_type=kind, stat_result=os.fstat(number))
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, and close the file however that ends."""
        with self._file:
            await super().__call__(scope, receive, send)


def read_tail(root: Path, relative: str, *, limit: int = MAX_SHOWN) -> tuple[str, int]:
    """Return the last ``limit`` bytes of a file as text, and its size; errors as `open_inside`."""
    with open_inside(root, relative) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - limit))
        data = file.read(limit)
    if size > limit:
        data = data.partition(b"\n")[2] or data
    return printable(data), size


def printable(data: bytes) -> str:
    """Return the output of a program without control characters and what it drew over."""
    return _CONTROLS.sub(
        "\N{REPLACEMENT CHARACTER}", _DRAWN_OVER.sub("", data.decode("utf-8", "replace"))
    )


def when(seconds: float | None) -> str:
    """Return a time in UTC, to the second."""
    if seconds is None:
        return "–"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def percent(rate: float | None) -> str:
    """Return a share in percent."""
    return "–" if rate is None else f"{rate:.1%}"
