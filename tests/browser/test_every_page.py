"""What holds on every page: accessible, no wider than a phone, nothing from elsewhere."""

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.browser.scenes import FAILED, FINISHED, WAITING
from tests.dashboards import WORD, serving
from tests.loop_runs import RUN

PAGES = {
    "runs": "/",
    "runs-none": "/?status=stopped",
    "run-running": f"/runs/{RUN}",
    "run-waiting": f"/runs/{WAITING}",
    "run-finished": f"/runs/{FINISHED}",
    "run-failed": f"/runs/{FAILED}?done=stop",
    "cycle": f"/runs/{FINISHED}/cycles/3",
    "cycle-running": f"/runs/{RUN}/cycles/1",
    "events": f"/runs/{FINISHED}/events",
    "events-none": f"/runs/{FINISHED}/events?kind=absent",
    "event": f"/runs/{FINISHED}/events/3",
    "log": f"/runs/{RUN}/cycles/1/log/train",
    "log-none": f"/runs/{FINISHED}/log",
    "knowledge": "/knowledge",
    "knowledge-page": "/knowledge/tasks/crossing.md",
    "compare": f"/compare?run={RUN}&run={FINISHED}",
    "results": "/results",
    "leaderboard": "/results/leaderboard",
}
#: Results by the place that their link names.
RESULTS = {
    "result-bundle": "quickstart/evaluation/bundles/goal_pd",
    "result-evaluation": "quickstart/evaluation",
    "training": f"going/artifacts/{7:016x}",
    "trainings": "many",
    "matrix": "zoo",
    "stream": "status.json",
}


def findings(page, *rules):
    """Return what axe finds: rule, elements and what is wrong with them."""
    options = {"resultTypes": ["violations"], **({"runOnly": rules} if rules else {})}
    found = Axe().run(page, options=options).response["violations"]
    return [
        (one["id"], [(node["target"], node["failureSummary"]) for node in one["nodes"]])
        for one in found
    ]


def overflow(page):
    """Return by how many pixels a page is wider than its window."""
    return page.evaluate("document.documentElement.scrollWidth - innerWidth")


def inspect(page, name, keep):
    """Look at a page light and wide, dark, and on a phone."""
    keep(page, f"{name}-light")
    assert findings(page) == []
    page.emulate_media(color_scheme="dark")
    assert findings(page, "color-contrast") == []
    keep(page, f"{name}-dark")
    page.set_viewport_size({"width": 390, "height": 844})
    assert overflow(page) == 0
    page.emulate_media(color_scheme="light")
    keep(page, f"{name}-phone")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_accessible_light_and_dark_and_fits_a_phone(name, scene, open_page, keep):
    inspect(open_page(scene, PAGES[name]), name, keep)


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_accessible_light_and_dark_and_fits_a_phone(name, scene, open_page, keep):
    page = open_page(scene, "/results")
    page.get_by_role("link", name=RESULTS[name], exact=True).click()
    page.wait_for_url("**/results/*")
    inspect(page, name, keep)


def test_a_missing_page_says_so_in_the_same_house(scene, open_page, keep):
    page = open_page(scene, "/runs/absent", watched=False)
    inspect(page, "error", keep)
    assert [text for text in page.watch.problems if "404" not in text] == []


def test_the_login_is_accessible_and_leads_to_the_page_that_was_asked_for(workdir, open_page, keep):
    knowledge = workdir.parent / "knowledge"
    with serving(workdir, knowledge, token=WORD) as (host, port):
        place = f"/runs/{FINISHED}/events?kind=decision&cycle=5"
        page = open_page(f"http://{host}:{port}", place, watched=False)
        inspect(page, "login", keep)
        page.keyboard.type("not the token")
        page.keyboard.press("Enter")
        page.get_by_role("alert").get_by_text("This is not the token.").wait_for()
        page.get_by_label("Token").fill(WORD)
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Events").wait_for()
        assert page.url.endswith(place)
        page.get_by_role("button", name="Log out").click()
        page.get_by_role("heading", name="Log in").wait_for()
        assert [text for text in page.watch.problems if "401" not in text] == []


def test_the_watch_and_axe_see_what_is_wrong(scene, open_page):
    page = open_page(scene, watched=False)
    assert page.watch.problems == []
    page.evaluate("""document.body.insertAdjacentHTML("beforeend",
        '<img src="http://elsewhere.example/x.png"><p style="width: 2000px">wide</p>')""")
    assert any("Content Security Policy" in text for text in page.watch.problems)
    assert "image-alt" in [rule for rule, _ in findings(page)]
    page.evaluate("document.querySelector('footer').style.minWidth = '2000px'")
    assert overflow(page) > 0
