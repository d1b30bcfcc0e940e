"""What people do with the dashboard, each in a real browser."""

import re
import time

import pytest
from playwright.sync_api import expect

from cadenza.loop.incidents import incidents_of
from cadenza.loop.store import JobStore
from cadenza.loop.store.changes import request_approval
from tests.browser.scenes import FAILED, FINISHED, WAITING
from tests.dashboards import serving
from tests.loop_runs import RUN, event

LIGHT, DARK = "rgb(247, 247, 245)", "rgb(15, 18, 22)"


def store_of(workdir):
    return JobStore(workdir / "cadenza.db")


def tell(workdir, ordinal):
    """Append an event to the running run, as its controller would."""
    with store_of(workdir) as store:
        lease = store.leases.acquire(RUN, "someone", ttl_s=60.0, gone=lambda _: True)
        told = event("train", "report", 1, {"loss": f"heard-{ordinal}"}, ordinal)
        store.events.append(lease, [told])


def never_reloaded(page):
    """Mark a page; return a function that tells whether it still is the same one."""
    page.evaluate("window.isTheSame = true")
    return lambda: page.evaluate("window.isTheSame === true")


def say(page, reason, name):
    page.get_by_label("Reason").first.fill(reason)
    page.get_by_label("Your name").first.fill(name)


def test_a_run_is_opened_from_the_list_and_its_events_are_filtered(scene, open_page):
    page = open_page(scene)
    page.get_by_role("link", name=FINISHED).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(FINISHED)
    page.get_by_role("link", name="All events").click()
    expect(page.locator("#events li")).to_have_count(7)
    page.get_by_label("Text in the payload").fill("rollback")
    page.keyboard.press("Enter")
    expect(page.locator("#events li")).to_have_count(1)
    page.locator("#events a").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("6: decide/decision")
    expect(page.locator("pre")).to_contain_text('"decision": "rollback"')
    page.get_by_role("link", name="cycle 5").click()
    expect(page.get_by_role("region", name="Evaluation")).to_contain_text("unseen-partner")
    page.get_by_text("Episodes: 60 initial states").click()
    expect(page.get_by_role("region", name="Episodes")).to_contain_text("✗ not solved")


def test_a_question_is_approved_with_a_reason_that_is_kept(dashboard, workdir, open_page):
    page = open_page(dashboard)
    page.get_by_role("row", name=re.compile("1 question")).get_by_role("link").click()
    page.get_by_role("button", name="Approve").click()  # the browser asks for the reason first
    expect(page.get_by_label("Reason").first).to_be_focused()
    say(page, "the film looks <b>right</b>", "Ada")
    page.get_by_role("button", name="Approve").click()
    expect(page.get_by_role("status").filter(has_text="Cycle 0: Ada approved")).to_be_visible()
    kept = page.get_by_role("region", name="Incidents")
    expect(kept).to_contain_text("promote of cycle 0 approved: the film looks <b>right</b> by Ada")
    expect(page.get_by_role("button", name="Approve")).to_have_count(0)
    with store_of(workdir) as store:
        row = store.approvals.get(WAITING, 0, "promote")
    assert (row.status, row.by) == ("approved", "Ada")


def test_a_question_that_is_answered_elsewhere_leaves_an_open_page(dashboard, workdir, open_page):
    page = open_page(dashboard, f"/runs/{WAITING}")
    say(page, "half a reas", "Bob")
    page.get_by_label("Reason").first.focus()
    with store_of(workdir) as store:
        store.approvals.decide(WAITING, 0, "promote", "rejected", reason="no", by="Ada")
    expect(page.get_by_role("button", name="Approve")).to_have_count(0)
    expect(page.get_by_role("region", name="Incidents")).to_contain_text("rejected: no by Ada")


def test_what_is_typed_stays_while_the_run_goes_on(dashboard, workdir, open_page):
    page = open_page(dashboard, f"/runs/{RUN}")
    page.get_by_text("Stop this run").click()
    say(page, "the lab closes", "Ada")
    page.get_by_label("Reason").first.focus()
    with store_of(workdir) as store:
        lease = store.leases.acquire(RUN, "someone", ttl_s=60.0, gone=lambda _: True)
        store.apply(lease, request_approval(1, "promote"))
    expect(page.get_by_role("button", name="Approve")).to_be_visible()
    stop = page.get_by_role("form", name="Stop this run").get_by_label("Reason")
    expect(stop).to_have_value("the lab closes")
    expect(stop).to_be_focused()


def test_a_run_is_stopped_and_another_resumed_whose_log_is_followed(dashboard, workdir, open_page):
    page = open_page(dashboard, f"/runs/{RUN}")
    page.get_by_text("Stop this run").click()
    say(page, "the lab closes", "Ada")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("region", name="Incidents")).to_contain_text("the lab closes by Ada")
    expect(page.locator("#live")).to_contain_text("asked to stop")
    with store_of(workdir) as store:
        assert store.stop_requested(RUN)
    page.goto(f"/runs/{FAILED}")
    page.get_by_text("Resume this run").click()
    say(page, "room was made", "Bob")
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_text("A controller was started")).to_be_visible()
    page.get_by_role("link", name="Log of the controller").click()
    expect(page.locator("#log")).to_contain_text("error:", timeout=120_000)
    [told] = incidents_of(workdir / FAILED)
    assert (told["kind"], told["message"], told["by"]) == ("resume_asked", "room was made", "Bob")


def test_what_happens_is_seen_without_a_reload(dashboard, workdir, open_page):
    page = open_page(dashboard, f"/runs/{RUN}")
    is_the_same = never_reloaded(page)
    expect(page.locator("#link")).to_have_text("live")
    tell(workdir, 0)
    expect(page.locator("#events li").last).to_contain_text("heard-0")
    page.locator("#events li a").last.focus()
    with store_of(workdir) as store:
        store.finish_run(RUN, "failed", "no room on the disk")
    expect(page.locator("#live")).to_contain_text("no room on the disk")
    expect(page.get_by_text("Stop this run")).to_have_count(0)
    assert is_the_same()
    page.locator("#events li a").last.click()
    expect(page.locator("pre")).to_contain_text("heard-0")


def test_a_list_of_runs_and_a_log_grow_while_they_are_looked_at(dashboard, workdir, open_page):
    page = open_page(dashboard)
    is_the_same = never_reloaded(page)
    expect(page.locator("#link")).to_have_text("live")
    with store_of(workdir) as store:
        store.create_run("brand-new", "{}")
    expect(page.locator("#runs tr").first).to_contain_text("brand-new")
    assert is_the_same()
    page.goto(f"/runs/{RUN}/cycles/1/log/train")
    is_the_same = never_reloaded(page)
    with (workdir / RUN / "cycle_1" / "train.log").open("a") as file:
        file.write("the newest line\n")
    expect(page.locator("#log")).to_contain_text("step 399 loss 0.0025\nthe newest line")
    assert is_the_same()


def test_a_page_comes_back_when_its_server_does(workdir, open_page):
    folders = workdir, workdir.parent / "knowledge"
    with serving(*folders) as (host, port):
        page = open_page(f"http://{host}:{port}", f"/runs/{RUN}", watched=False)
        is_the_same = never_reloaded(page)
        expect(page.locator("#link")).to_have_text("live")
    expect(page.locator("#link")).to_have_text("not connected")
    tell(workdir, 0)
    with serving(*folders, port=port):
        expect(page.locator("#link")).to_have_text("live")
        expect(page.locator("#events li").last).to_contain_text("heard-0")
        assert is_the_same()
        page.close()


def test_a_hidden_tab_gives_its_connection_back_and_misses_nothing(dashboard, workdir, open_page):
    page = open_page(dashboard, f"/runs/{RUN}")
    expect(page.locator("#link")).to_have_text("live")
    turn = """state => {
        Object.defineProperty(document, "visibilityState", { value: state, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.evaluate(turn, "hidden")
    for ordinal in range(3):
        tell(workdir, ordinal)
    time.sleep(1.2)  # longer than the server waits between two looks
    assert page.locator("#events").get_by_text("heard-").count() == 0
    page.evaluate(turn, "visible")
    expect(page.locator("#events").get_by_text("heard-")).to_have_count(3)


def test_many_tabs_of_one_browser_all_load(dashboard, workdir, open_page):
    first = open_page(dashboard, f"/runs/{RUN}")
    hide = """Object.defineProperty(document, "visibilityState", { value: "hidden" });"""
    for _ in range(7):
        page = first.context.new_page()
        page.add_init_script(hide)
        page.goto(f"{dashboard}/runs/{RUN}")
    expect(page.get_by_role("heading", level=1)).to_have_text(RUN)


def test_selected_text_and_the_focus_survive_an_update(dashboard, workdir, open_page):
    page = open_page(dashboard, f"/runs/{RUN}")
    table = page.get_by_role("region", name="Cycles")
    table.focus()
    with store_of(workdir) as store:
        store.request_stop(RUN)
    expect(page.locator("#live")).to_contain_text("asked to stop")
    expect(table).to_be_focused()
    page.evaluate("getSelection().selectAllChildren(document.querySelector('#live h2'))")
    with store_of(workdir) as store:
        store.finish_run(RUN, "failed", "no room on the disk")
    expect(page.get_by_text("Stop this run")).to_have_count(0)
    assert page.evaluate("getSelection().toString()") == "Cycles"
    page.evaluate("getSelection().removeAllRanges()")
    expect(page.locator("#live")).to_contain_text("no room on the disk")


def test_a_run_is_compared_with_one_that_the_page_proposes(scene, open_page):
    page = open_page(scene, f"/runs/{RUN}")
    offered = page.locator("#others option").evaluate_all("all => all.map(one => one.value)")
    assert sorted(offered) == sorted([WAITING, FINISHED, FAILED])
    page.get_by_label("Compare with run").fill(FINISHED)
    page.keyboard.press("Enter")
    table = page.get_by_role("region", name="Compared runs")
    expect(table.get_by_role("row", name="budgets.max_cycles")).to_have_text(re.compile("4.*7"))


def opened_bundle(page):
    page.get_by_role("link", name="Results").click()
    page.get_by_role("link", name="bundles/goal_pd").click()
    return page.get_by_role("region", name="Verification").get_by_role("status")


def test_a_recorded_episode_is_played_stepped_and_scrubbed(scene, open_page):
    page = open_page(scene)
    opened_bundle(page)
    player = page.get_by_role("region", name="Rollout player")
    clock, shown = player.locator(".clock"), "canvas => canvas.toDataURL()"
    expect(clock).to_contain_text("0.00")
    before = player.locator("canvas").first.evaluate(shown)
    player.get_by_role("button", name="Step forward").click()
    expect(clock).to_contain_text("0.05")
    player.get_by_role("button", name="Play").click()
    expect(clock).to_contain_text("1.95")  # 40 frames of 0.05 s
    assert player.locator("canvas").first.evaluate(shown) != before
    player.get_by_label("Time in the episode").focus()
    page.keyboard.press("Home")
    expect(clock).to_contain_text("0.00")


def test_a_bundle_is_verified_anew_and_a_changed_byte_is_seen(dashboard, workdir, open_page):
    page = open_page(dashboard)
    verdict = opened_bundle(page)
    expect(verdict).to_contain_text("Sealed and verified")
    page.get_by_role("button", name="Verify").click()
    expect(page.get_by_text("Read anew and verified at")).to_be_visible()
    journal = workdir / "quickstart/evaluation/bundles/goal_pd/episodes_seed3.jsonl"
    data = bytearray(journal.read_bytes())
    data[100] ^= 1
    journal.write_bytes(data)
    page.get_by_role("button", name="Verify").click()
    expect(verdict).to_contain_text("Does not verify")
    expect(page.locator("main")).to_contain_text("episodes_seed3.jsonl")


def background(page):
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


@pytest.mark.parametrize(
    ("system", "seen", "other"), [("light", LIGHT, DARK), ("dark", DARK, LIGHT)]
)
def test_the_theme_is_the_systems_until_the_button_says_otherwise(
    system, seen, other, scene, open_page
):
    page = open_page(scene, color_scheme=system)
    assert background(page) == seen
    page.get_by_role("button", name="Light or dark").click()
    assert background(page) == other
    page.goto("/knowledge")
    assert background(page) == other


def test_the_keyboard_alone_reaches_all_in_order_and_the_focus_is_seen(
    dashboard, workdir, open_page
):
    page = open_page(dashboard, f"/runs/{WAITING}")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    expect(page.get_by_role("link", name="Skip to the content")).to_be_in_viewport()
    told = []
    for _ in range(13):
        page.keyboard.press("Tab")
        told.append(
            page.evaluate(
                """() => {
                    const one = document.activeElement, style = getComputedStyle(one);
                    const isSeen = style.outlineStyle === "solid" && style.outlineWidth === "3px";
                    return [one.name || one.ariaLabel || one.textContent.trim(), isSeen];
                }"""
            )
        )
    names = [name for name, _ in told]
    assert names[:12] == [
        *("cadenza", "Runs", "Results", "Knowledge", "Light or dark", "Runs"),
        *("See cycle 0", "reason", "by", "✓ Approve", "✗ Reject", "Stop this run"),
    ]
    assert all(is_seen for _, is_seen in told)
    page.goto(f"/runs/{WAITING}")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    for words in ("", "", "", "seen by nobody's mouse", "Ada"):
        page.keyboard.type(words)
        page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Cycle 0: Ada rejected")).to_be_visible()
    with store_of(workdir) as store:
        assert store.approvals.get(WAITING, 0, "promote").reason == "seen by nobody's mouse"


def test_without_scripts_pages_and_buttons_work(dashboard, workdir, open_page):
    page = open_page(dashboard, f"/runs/{WAITING}", java_script_enabled=False)
    say(page, "no scripts here", "Ada")
    page.get_by_role("button", name="Reject").click()
    expect(page.get_by_text("Cycle 0: Ada rejected")).to_be_visible()
    page.get_by_role("link", name="Knowledge").click()
    page.get_by_role("link", name="tasks/crossing.md").click()
    expect(page.get_by_role("heading", name="Crossing", exact=True)).to_be_visible()
