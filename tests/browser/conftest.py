"""Runs only where a Chromium is named: `make test-browser` installs and names it.

Every page that a test opens is watched: an error in its console, a refusal by its content security
policy or a request to another host fails the test. Set ``CADENZA_SCREENSHOTS`` to a folder to keep
pictures of all pages.
"""

import os
from pathlib import Path

import pytest

from tests.browser.scenes import busy
from tests.dashboards import evaluated, serving

#: The browser's program; set by `make test-browser`.
VARIABLE = "CADENZA_CHROMIUM"
#: Longest wait for what a page is to show, ms: machines are shared.
PATIENCE_MS = 60_000

collect_ignore_glob = [] if VARIABLE in os.environ else ["test_*.py"]


@pytest.fixture(scope="module")
def chromium():
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE_MS)
    options = ["--no-sandbox"] if os.geteuid() == 0 else []  # it refuses to be root's with one
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=os.environ[VARIABLE], args=options)
        yield browser
        browser.close()


class Watch:
    """What went wrong in a page that nobody sees on it."""

    def __init__(self, page, origin):
        self.problems = []
        self._origin = origin
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", self._asked)

    def _heard(self, message):
        if message.type in ("error", "warning"):
            self.problems.append(message.text)

    def _asked(self, request):
        if not request.url.startswith(f"{self._origin}/"):
            self.problems.append(f"asks {request.url}")


@pytest.fixture(scope="session")
def results(tmp_path_factory):
    return evaluated(tmp_path_factory.mktemp("results") / "evaluation")


@pytest.fixture(scope="module")
def scene(tmp_path_factory, results):
    """Give the address of a dashboard that a module's tests only look at."""
    with serving(*busy(tmp_path_factory.mktemp("scene"), results)) as (host, port):
        yield f"http://{host}:{port}"


@pytest.fixture
def workdir(tmp_path, results):
    return busy(tmp_path, results)[0]


@pytest.fixture
def dashboard(workdir):
    """Give the address of a dashboard of the test's own."""
    with serving(workdir, workdir.parent / "knowledge") as (host, port):
        yield f"http://{host}:{port}"


@pytest.fixture
def open_page(chromium):
    """Give a function that opens a watched page in a new browser profile."""
    contexts, watches = [], []

    def open_page(origin, path="/", *, watched=True, **options):
        options = {"viewport": {"width": 1280, "height": 900}, "locale": "en", **options}
        context = chromium.new_context(base_url=origin, **options)
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        page = context.new_page()
        page.watch = Watch(page, origin)
        if watched:
            watches.append(page.watch)
        page.goto(path)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [watch.problems for watch in watches if watch.problems] == []


@pytest.fixture
def keep(request):
    """Give a function that keeps a picture of a page, if pictures are wanted."""
    folder = os.environ.get("CADENZA_SCREENSHOTS")

    def keep(page, name):
        if folder:
            page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)

    return keep
