"""What the pages show, and what their buttons do."""

import json
import re
import time

import pytest
from starlette.testclient import TestClient

from cadenza.loop.errors import LeaseHeldError
from cadenza.loop.incidents import IncidentLog, incidents_of
from cadenza.loop.requests import resume_run, stop_run
from cadenza.loop.retention import PRUNED
from cadenza.loop.state import CycleState, LoopState
from cadenza.loop.status_report import CycleStatus, Measurement
from cadenza.loop.store import JobStore
from cadenza.loop.store.changes import (
    request_approval,
    set_config,
    set_run_status,
    set_stage,
)
from cadenza.web import create_app
from cadenza.web.figures import success_chart
from cadenza.web.site import when
from tests.dashboards import WORD, furnished, token_in
from tests.loop_runs import CONFIG, REASON, RUN, event

SAID = {"reason": "the lab closes", "by": "Ada"}


@pytest.fixture
def folders(tmp_path):
    return furnished(tmp_path)


@pytest.fixture
def client(folders):
    return TestClient(create_app(*folders), base_url="http://127.0.0.1", follow_redirects=False)


def pressed(client, action, **fields):
    """Press a button of the run's page, as a browser would."""
    number = token_in(client.get(f"/runs/{RUN}").text)
    return client.post(f"/runs/{RUN}/{action}", data={"form": number, **SAID, **fields})


WHY = "It is better: 0.750 against 0.300 on 20 shared initial states."


def ask(folders, cycle=0):
    """Ask as a controller does that waits for its answer."""
    with JobStore(folders[0] / "cadenza.db") as store:
        lease = store.leases.acquire(RUN, "someone", ttl_s=60.0, gone=lambda _: True)
        current = CycleState(decision="promote", reason=WHY)
        state = LoopState(run_id=RUN, cycle=cycle, step="approve", current=current)
        version = store.load_state(RUN)[1]
        told = event("decide", "approval_requested", cycle, {"gate": "promote", "reason": WHY}, 9)
        waits = [set_stage(cycle, "approve"), set_run_status("pending_approval")]
        rows = [request_approval(cycle, "promote"), *waits]
        store.commit(lease, version, state, events=[told], rows=rows)


def test_a_run_shows_decision_interval_job_and_events(client):
    text = client.get(f"/runs/{RUN}").text
    for part in (
        REASON,
        "✓</span> promote",
        "60.0%",
        "[26, 88]",
        "<b>train</b>",
        "decide/decision",
    ):
        assert part in text
    assert 'class="interval candidate"' in text


def test_every_page_loads_nothing_from_elsewhere_and_has_no_inline_code(client):
    for path in ("/", f"/runs/{RUN}", f"/runs/{RUN}/cycles/0", f"/runs/{RUN}/events", "/knowledge"):
        answer = client.get(path)
        assert answer.status_code == 200
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        for mark in ("http://", "https://", " style=", " onclick=", "<style", "<script>"):
            assert mark not in answer.text


def test_what_others_wrote_is_text_and_never_markup(client, folders):
    evil = "<img src=x onerror=alert(1)>"
    (folders[1] / "tasks" / "crossing.md").write_text(
        f"---\nname: '{evil}'\n---\n{evil}\n\n## {evil}\n"
    )
    (folders[0] / RUN / "cycle_1" / "train.log").write_text(f"{evil}\x1b[31m\rover\n")
    (folders[0] / RUN / "incidents.jsonl").write_text(json.dumps({"kind": evil, "message": evil}))
    with JobStore(folders[0] / "cadenza.db") as store:
        store.finish_run(RUN, "failed", evil)
    pages = ("/", f"/runs/{RUN}", f"/runs/{RUN}/cycles/1/log/train", "/knowledge/tasks/crossing.md")
    for path in (*pages, "/knowledge/%3Cimg%3E", f"/runs/{RUN}/events?text=%3Cimg%3E"):
        text = client.get(path).text
        assert "<img" not in text
        assert "\x1b" not in text


def test_a_page_that_would_unfold_to_gigabytes_is_shown_as_it_is(client, folders):
    lines = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}' if n else 'x'] * 9)}]" for n in range(12)]
    (folders[1] / "tasks" / "crossing.md").write_text("\n".join(["---", *lines, "---", "# One"]))
    answer = client.get("/knowledge/tasks/crossing.md")
    assert answer.status_code == 200
    assert "front matter that repeats a part of itself" in answer.text
    assert len(answer.text) < 10_000


def test_events_are_filtered_and_paged_by_number(client):
    shown = client.get(f"/runs/{RUN}/events", params={"kind": "decision"}).text
    assert "decide/decision" in shown
    assert "knowledge/knowledge_updated" not in shown
    shown = client.get(f"/runs/{RUN}/events", params={"before": 2}).text
    assert "knowledge/knowledge_updated" not in shown
    assert "success_rate" in client.get(f"/runs/{RUN}/events/1").text
    assert client.get(f"/runs/{RUN}/events/3").status_code == 404


def test_events_say_how_many_fit_and_which_words_there_are(client):
    shown = client.get(f"/runs/{RUN}/events", params={"kind": "decision"}).text
    assert "1 of 2 events" in shown
    assert '<datalist id="stages"><option value="decide"></option><option value="know' in shown
    for name in ("cycle", "after", "before"):
        wrong = client.get(f"/runs/{RUN}/events", params={name: "first"})
        assert wrong.status_code == 400
        assert f"{name}: expected a whole number" in wrong.text


def test_events_are_sentences_and_never_cut_json(client, folders):
    with JobStore(folders[0] / "cadenza.db") as store:
        lease = store.leases.acquire(RUN, "someone", ttl_s=60.0, gone=lambda _: True)
        command = {"stage": "train", "cmd": ["cadenza", *["--word"] * 200]}
        odd = {"loss": 0.123456789, "of": {"a": 1}, "text": "\ud800<b>\x1b"}
        told = [event("train", "job_started", 1, command, 7), event("train", "report", 1, odd, 8)]
        store.events.append(lease, told)
    text = client.get(f"/runs/{RUN}").text
    assert f'<span class="text">promote: {REASON}</span>' in text
    assert '<span class="text">train</span>' in text
    assert "--word" not in text
    assert "loss=0.123457, of=(1 values), text=" in text
    assert "--word" in client.get(f"/runs/{RUN}/events/3").text


def test_a_log_shows_its_end_only(client, folders):
    lines = "".join(f"line {number}\n" for number in range(50_000))
    (folders[0] / RUN / "cycle_1" / "train.log").write_text(lines)
    text = client.get(f"/runs/{RUN}/cycles/1/log/train").text
    assert "line 49999" in text
    assert "line 1000\n" not in text
    assert len(text) < 80_000
    assert client.get(f"/runs/{RUN}/cycles/1/log/absent").status_code == 404


def test_an_answer_is_recorded_with_name_and_reason_and_only_once(client, folders):
    ask(folders)
    assert "Waits for approval: promote" in client.get(f"/runs/{RUN}").text
    answer = pressed(client, "reject", cycle="0")
    place = f"/runs/{RUN}?done=reject&cycle=0"
    assert (answer.status_code, answer.headers["location"]) == (303, place)
    assert "Cycle 0: Ada rejected this at " in client.get(place).text
    with JobStore(folders[0] / "cadenza.db") as store:
        row = store.approvals.get(RUN, 0, "promote")
    assert (row.status, row.reason, row.by) == ("rejected", "the lab closes", "Ada")
    late = pressed(client, "approve", cycle="0", by="Bob")
    assert late.status_code == 409
    assert re.search(r"Cycle 0: Ada rejected this at \d\d:\d\d: the lab closes", late.text)
    assert pressed(client, "approve").status_code == 404
    assert pressed(client, "approve", cycle="0x").status_code == 400


def test_a_question_says_what_is_decided_wherever_it_waits(client, folders):
    ask(folders, 1)
    text = client.get(f"/runs/{RUN}").text
    form = text.partition('action="/runs/crossing-1/approve"')[2].partition("</form>")[0]
    assert WHY in form
    assert f'href="/runs/{RUN}/cycles/1"' in form
    table = text.partition("<tbody>")[2].partition("</tbody>")[0]
    assert WHY in table
    assert "waits for approval" in table
    page = client.get(f"/runs/{RUN}/cycles/1").text
    assert WHY in page
    assert "waits for approval" in page
    assert "approve" not in text.partition("<tbody>")[2].partition("</tbody>")[0]


def test_an_answer_goes_to_the_question_that_the_form_showed(client, folders):
    ask(folders)
    pressed(client, "reject", cycle="0")
    ask(folders, 1)
    assert pressed(client, "approve", cycle="0").status_code == 409
    with JobStore(folders[0] / "cadenza.db") as store:
        assert store.approvals.get(RUN, 1, "promote").status == "pending"


def test_a_stage_does_not_look_like_a_decision(client):
    assert '<span class="soft">step: train</span>' in client.get(f"/runs/{RUN}").text
    assert '<span class="soft">step: train</span>' in client.get(f"/runs/{RUN}/cycles/1").text


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ("reject", "it counts as rejected"),
        ("approve", "it counts as approved"),
        ("stop", "the run stops"),
    ],
)
def test_a_question_says_when_silence_counts_and_as_what(client, folders, policy, told):
    with JobStore(folders[0] / "cadenza.db") as store:
        lease = store.leases.acquire(RUN, "someone", ttl_s=60.0, gone=lambda _: True)
        config = json.dumps(CONFIG | {"approval": {"on_timeout": policy}})
        store.apply(lease, set_config(config), request_approval(0, "promote", timeout_s=60.0))
        [row] = store.approvals.pending(RUN)
    assert f"without an answer by {when(row.deadline)}, {told}" in client.get(f"/runs/{RUN}").text


def test_a_button_without_a_short_reason_and_name_does_nothing(client, folders):
    ask(folders)
    for wrong in ({"reason": " "}, {"by": ""}, {"reason": "x" * 501}, {"by": "x" * 101}):
        for action in ("approve", "stop", "resume"):
            assert pressed(client, action, **wrong).status_code == 400
    with JobStore(folders[0] / "cadenza.db") as store:
        assert store.approvals.get(RUN, 0, "promote").status == "pending"
        assert not store.stop_requested(RUN)


def test_stop_asks_the_controller_and_keeps_who_and_why(client, folders):
    assert pressed(client, "stop").status_code == 303
    with JobStore(folders[0] / "cadenza.db") as store:
        assert store.stop_requested(RUN)
    [told] = incidents_of(folders[0] / RUN)
    assert (told["kind"], told["message"], told["by"]) == ("stop_asked", "the lab closes", "Ada")


def test_a_run_that_somebody_works_on_is_not_resumed(client, folders):
    answer = pressed(client, "resume")
    assert answer.status_code == 409
    assert "nobody works on" in answer.text
    with JobStore(folders[0] / "cadenza.db") as store, pytest.raises(LeaseHeldError):
        resume_run(store, RUN, workdir=folders[0], **SAID)
    assert not (folders[0] / RUN / "controller.log").exists()


def test_resume_starts_a_controller_of_its_own_that_tells_into_a_log(folders, monkeypatch):
    monkeypatch.setenv("CADENZA_DASH_TOKEN", "kept back")
    started = []

    class Popen:
        pid = 77

        def __init__(self, command, **options):
            started.append((command, options))

    monkeypatch.setattr("cadenza.loop.requests.subprocess.Popen", Popen)
    with JobStore(folders[0] / "cadenza.db") as store:
        lease = store.leases.acquire(RUN, "someone", ttl_s=60.0, gone=lambda _: True)
        store.leases.release(lease)
        stop_run(store, RUN, workdir=folders[0])
        address = "postgresql://ada:word@db/x"
        outcome = resume_run(store, RUN, workdir=folders[0], location=address, **SAID)
    [(command, options)] = started
    assert command[1:6] == ["-m", "cadenza", "loop", "resume", RUN]
    assert command[6:] == ["--by=", "--workdir", str(folders[0])]  # who asked is noted here
    assert options["start_new_session"]
    assert options["env"]["CADENZA_STORE"] == address
    assert "CADENZA_DASH_TOKEN" not in options["env"]
    assert (outcome.pid, outcome.log) == (77, str(folders[0] / RUN / "controller.log"))
    assert incidents_of(folders[0] / RUN)[-1]["kind"] == "resume_asked"


def test_a_run_out_of_cycles_shows_its_policy_and_how_to_go_on(client, folders):
    assert "Blessed policy: <code>cycle_0/train/policy</code>" in client.get(f"/runs/{RUN}").text
    assert "--config COPY.yaml" not in client.get(f"/runs/{RUN}").text
    with JobStore(folders[0] / "cadenza.db") as store:
        store.finish_run(RUN, "finished", "budget: max_cycles")
    text = client.get(f"/runs/{RUN}").text
    assert "<code>budgets.max_cycles</code>" in text
    assert f"cadenza loop resume {RUN} --workdir {folders[0]} --config COPY.yaml" in text


def test_a_page_of_knowledge_tells_its_provenance_in_words(client, folders):
    front = "name: x\nprovenance:\n- run: a\n  cycle: 0\n- run: b\n  cycle: 2\n"
    (folders[1] / "tasks" / "x.md").write_text(f"---\n{front}---\n# X\n")
    text = client.get("/knowledge/tasks/x.md").text
    assert "<dd>run a, cycle 0; run b, cycle 2</dd>" in text


def test_two_runs_are_compared(client, folders):
    with JobStore(folders[0] / "cadenza.db") as store:
        store.create_run("other", json.dumps({"budgets": {"max_cycles": 9}}))
    text = client.get("/compare", params={"run": [RUN, "other"]}).text
    assert "budgets.max_cycles" in text
    assert client.get("/compare", params={"run": [RUN, "unknown"]}).status_code == 404
    assert client.get("/compare", params={"run": [RUN, RUN]}).status_code == 400


def test_a_cycle_says_what_was_removed_and_which_films_are_gone(client, folders):
    with JobStore(folders[0] / "cadenza.db") as store:
        number = store.add_checkpoint(RUN, 0, "bc", "/p")
        paths = ["runs/film.mp4", f"runs/{RUN}/cycle_0/eval_candidate_0/a.mp4"]
        raw = {"overall": {"video_paths": paths}}
        store.attach_eval(number, {"success_rate": 0.25, "raw": raw})
    notes = IncidentLog(folders[0] / RUN)
    notes.note(PRUNED, "80.0 MB are removed", paths=["cycle_0/eval_candidate_0", "cycle_1/data"])
    notes.note(PRUNED, "without paths")
    text = client.get(f"/runs/{RUN}/cycles/0").text
    assert "Removed to make room: cycle_0/eval_candidate_0." in text
    assert "1 film of this cycle is no longer there" in text
    assert f'src="/runs/{RUN}/films/0"' in text
    assert f'src="/runs/{RUN}/films/1"' not in text
    (folders[0] / RUN / "cycle_1" / "data").mkdir()  # made anew since
    assert "Removed" not in client.get(f"/runs/{RUN}/cycles/1").text


def test_metrics_want_the_token_and_need_no_store(tmp_path):
    app = create_app(tmp_path / "runs", tmp_path / "knowledge", token=WORD)
    client = TestClient(app, base_url="http://127.0.0.1", follow_redirects=False)
    refused = client.get("/metrics")
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    answer = client.get("/metrics", headers={"authorization": f"Bearer {WORD}"})
    assert (answer.status_code, answer.text) == (200, "")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert not (tmp_path / "runs").exists()


def test_metrics_are_in_the_format_of_prometheus(client):
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'cadenza_loop_runs{status="running"} 1' in answer.text


def measured_cycles(count):
    """Return cycles whose candidates were measured."""
    one = Measurement(rate=0.5, low=0.4, high=0.6, n_episodes=10)
    told = {"rung": "bc", "stage": "learn", "decision": "iterate", "reason": None, "seconds": {}}
    told |= {"difference": None, "checkpoint": None, "started_at": 1.0, "finished_at": 2.0}
    return tuple(CycleStatus(idx=k, candidate=one, baseline=one, **told) for k in range(count))


def test_a_chart_of_few_cycles_is_no_wider_than_a_phone():
    widths = [float(re.search(r'width="([0-9.]+)"', success_chart(c))[1])
              for c in map(measured_cycles, (1, 3, 20))]  # fmt: skip
    assert widths[0] == 300.0
    assert widths[1] <= 340.0 < widths[2]


def test_a_run_starts_until_its_controller_works_or_its_time_is_over(client, folders):
    with JobStore(folders[0] / "cadenza.db") as store:
        store.leases.release(store.leases.acquire(RUN, "me", ttl_s=60.0, gone=lambda _: True))
        stop_run(store, RUN, workdir=folders[0], reason="need the machine for a demo", by="Bob")
    text = client.get(f"/runs/{RUN}").text
    assert "Bob asked for it: need the machine for a demo" in text
    assert "Resume</button>" in text
    log = folders[0] / RUN / "incidents.jsonl"
    line = {"kind": "resume_asked", "message": "the demo is over", "by": "Bob"}
    for age_s, is_starting in ((1.0, True), (31.0, False)):
        log.write_text(json.dumps({**line, "ts": time.time() - age_s}) + "\n")
        text = client.get(f"/runs/{RUN}").text
        assert ("</span> starting</span>" in text) == is_starting
        assert ("Resume</button>" in text) != is_starting
