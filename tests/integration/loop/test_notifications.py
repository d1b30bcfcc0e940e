"""Who is told what of a run, by real commands and a real server, through failures and kills."""

import json
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from cadenza.core.errors import ConfigurationError
from cadenza.loop import retention
from cadenza.loop.config import LoopConfig
from cadenza.loop.errors import TrainError
from cadenza.loop.notify import WEBHOOK_VARIABLE, news_of
from cadenza.loop.resuming import stored_config
from cadenza.loop.store import JobStore
from cadenza.loop.store.rows import StoredEvent
from tests.e2e.commands import LIMIT_S, Started, wait_for
from tests.integration.loop.command_line_runs import LITTLE, LoopCommands
from tests.integration.loop.loop_harness import Loop, config
from tests.loop_fakes import FakeStack

#: Notes what it is told in a file, then does what the file ``do`` beside it says.
HOOK = """
import json, os, pathlib, sys, time
here = pathlib.Path(__file__).parent
told = json.load(sys.stdin) | {"line": os.environ["CADENZA_NOTIFY_TEXT"]}
with (here / "told").open("a") as file:
    file.write(json.dumps(told) + "\\n")
do = here / "do"
exec(do.read_text() if do.exists() else "")
"""
KEY = "T0KEN-that-nobody-may-see"


@pytest.fixture
def hook(tmp_path):
    (tmp_path / "hook.py").write_text(HOOK)
    return [sys.executable, str(tmp_path / "hook.py")]


def told(folder, what="event"):
    path = folder / "told"
    return (
        [json.loads(line)[what] for line in path.read_text().splitlines()] if path.exists() else []
    )


@contextmanager
def server(answers):
    """Serve on this machine; yield its address and what was posted to it."""
    posted = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            posted.append((self.path, json.loads(body)))
            self.send_response(answers.pop(0) if answers else 200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as one:
        threading.Thread(target=one.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{one.server_port}/hooks/{KEY}?k={KEY}", posted
        one.shutdown()


def incidents(folder):
    path = folder / "run" / "incidents.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [one["message"] for one in map(json.loads, lines) if one["kind"] == "notify_failed"]


def test_command_and_webhook_are_told_once_of_what_was_asked_for(tmp_path, hook):
    with JobStore(tmp_path / "cadenza.db") as store, server([503]) as (address, posted):
        notify = {"command": hook, "webhook": address, "events": ["promoted", "finished"]}
        stack = FakeStack([0.3, 0.9])
        Loop(store, tmp_path, stack, notify=notify, budgets={"max_cycles": 2}).run()
        Loop(store, tmp_path, stack, notify=notify, budgets={"max_cycles": 2}).run()
        assert told(tmp_path) == ["promoted", "promoted", "finished"]
        first, *_, last = [body for _, body in posted]
        assert [body["event"] for _, body in posted] == ["promoted", *told(tmp_path)]  # 503: again
        assert first["text"].startswith("run run promoted the policy of cycle 0: ")
        assert last["text"].startswith("run run finished (budget: max_cycles) after 2 cycles; ")
        assert (last["run_id"], last["payload"]["decisions"]) == ("run", ["promote", "promote"])
        assert told(tmp_path, "line") == told(tmp_path, "text")
        assert posted[0][0] == f"/hooks/{KEY}?k={KEY}"
        assert incidents(tmp_path) == []


def test_questions_failures_and_spent_budgets_are_told(tmp_path, hook):
    gates = {"approval": {"gates": ["promote"], "timeout_s": 1e-9, "on_timeout": "approve"}}
    with JobStore(tmp_path / "cadenza.db") as store:
        stack = FakeStack([0.5, 0.5], failing=[(1, "train")], seconds=1800.0)
        changes = {"notify": {"command": hook}, **gates}
        with pytest.raises(TrainError):
            Loop(store, tmp_path, stack, **changes).run()
        assert told(tmp_path) == ["approval", "promoted", "failed"]
        stack.failing.clear()
        Loop(store, tmp_path, stack, budgets={"max_gpu_hours": 2.0}, **changes).run()
        assert told(tmp_path)[3:] == ["budget"]
        how = f"Answer with: cadenza loop approve run --workdir {tmp_path} --by NAME --reason TEXT"
        assert told(tmp_path, "text")[0].endswith(how)  # it works from every folder


def test_a_long_reason_leaves_room_for_the_command_that_answers(tmp_path):
    reason = {"gate": "promote", "reason": "so " * 500}
    what = {"stage": "decide", "kind": "approval_requested", "cycle": 0}
    asked = StoredEvent(
        **what, payload=json.dumps(reason), step_key="s", ordinal=0, ts=0.0, mono=0.0
    )
    _, text = news_of("run", asked, place=f"--workdir {tmp_path}")
    assert len(text) <= 800
    assert text.endswith(f"cadenza loop approve run --workdir {tmp_path} --by NAME --reason TEXT")


def test_a_resumed_run_whose_webhook_is_unknown_says_so_and_still_tells_the_command(
    tmp_path, hook, caplog, monkeypatch
):
    monkeypatch.delenv(WEBHOOK_VARIABLE, raising=False)
    with JobStore(tmp_path / "cadenza.db") as store:
        hidden = {"command": hook, "webhook": "https://h/***", "events": ["finished"]}
        Loop(store, tmp_path, FakeStack([0.5]), notify=hidden, budgets={"max_cycles": 1}).run()
    assert told(tmp_path) == ["finished"]
    [noted] = incidents(tmp_path)
    assert noted.startswith("the webhook is told nothing: ")
    assert WEBHOOK_VARIABLE in noted
    assert noted in caplog.text


@pytest.mark.parametrize(
    ("do", "problem"),
    [
        ("time.sleep(600)", "it was ended after 0.3 s"),
        ("print('no', file=sys.stderr); sys.exit(3)", "exit code 3 no"),
    ],
)
def test_a_hook_that_hangs_or_fails_is_tried_thrice_noted_and_does_no_harm(
    do, problem, tmp_path, hook
):
    (tmp_path / "do").write_text(do)
    with JobStore(tmp_path / "cadenza.db") as store:
        timeout = 0.3 if "sleep" in do else 30.0
        notify = {"command": hook, "events": ["finished"], "timeout_s": timeout}
        loop = Loop(store, tmp_path, FakeStack([0.5]), notify=notify, budgets={"max_cycles": 1})
        assert loop.run().decisions == ["promote"]
    [noted] = incidents(tmp_path)
    assert noted.endswith(f" was not told of finished: {problem}")
    assert len(told(tmp_path)) in ({0, 1, 2, 3} if timeout < 1 else {3})  # slow to start


def test_a_nearly_full_disk_is_told_once_until_there_is_room_again(tmp_path, hook, monkeypatch):
    notify = {"command": hook, "events": ["disk"]}

    def run(cycles, *, short):
        space = retention.DiskSpace(free_gib=0.5 if short else 2.0, short_gib=1.0)
        monkeypatch.setattr("cadenza.loop.notify.disk_space", lambda *_: space)
        Loop(store, tmp_path, stack, notify=notify, budgets={"max_cycles": cycles}).run()
        return len(told(tmp_path))

    stack = FakeStack([0.5] * 4)
    with JobStore(tmp_path / "cadenza.db") as store:
        counts = [run(n, short=short) for n, short in enumerate([True, True, False, True], start=1)]
    assert counts == [1, 1, 1, 2]
    assert "disk nearly full: 0.5 GiB left at " in told(tmp_path, "text")[0]


@pytest.mark.parametrize("what", ["promoted", "failed"])
def test_what_a_killed_controller_did_not_tell_the_next_one_tells(what, tmp_path, hook):
    """Who is killed while it tells tells a failure again, and a promotion not."""
    folder = tmp_path / "there"
    notify = {"command": hook, "timeout_s": 600.0}
    run = LoopCommands(folder, f"{LITTLE}notify: {json.dumps(notify)}\n", "run")
    if what == "failed":
        (run.run_folder / "cycle_0").mkdir(parents=True)
        (run.run_folder / "cycle_0" / "data").write_text("in the way")
        words = ["loop", "run", "--config", str(folder / "run.yaml"), "--run-id", "run"]
    else:
        words = run.words
    # Nobody ends the hook of a killed controller: it ends with its file.
    (tmp_path / "do").write_text("while do.exists(): time.sleep(0.05)")
    started = Started("cadenza", *words, cwd=folder)
    end = b"run_failed" if what == "failed" else b"run_finished"
    events = run.run_folder / "events.jsonl"
    wait_for(lambda: events.exists() and end in events.read_bytes(), started.process)
    wait_for(lambda: told(tmp_path) == [what], started.process)
    started.process.kill()
    started.process.wait(LIMIT_S)
    (tmp_path / "do").unlink()
    if what == "failed":
        (run.run_folder / "cycle_0" / "data").unlink()
    run.finish()
    again = ["failed", "promoted"] if what == "failed" else []
    assert told(tmp_path) == [what, *again, "finished"]


def test_the_address_is_shown_and_stored_without_its_key(tmp_path, hook, caplog, monkeypatch):
    with server([500] * 9) as (address, posted), JobStore(tmp_path / "cadenza.db") as store:
        notify = {"webhook": address, "events": ["finished"]}
        stack = FakeStack([0.5, 0.5, 0.5])
        Loop(store, tmp_path, stack, notify=notify, budgets={"max_cycles": 1}).run()
        assert [path for path, _ in posted] == [f"/hooks/{KEY}?k={KEY}"] * 3
        assert incidents(tmp_path) == ["webhook 127.0.0.1 was not told of finished: status 500"]
        kept = stored_config(store, "run")
        assert kept.model_dump()["notify"]["webhook"] == f"{address.partition('/hooks')[0]}/***"
        hidden = {"webhook": kept.notify.webhook.get_secret_value(), "events": ["finished"]}
        Loop(store, tmp_path, stack, notify=hidden, budgets={"max_cycles": 2}).run()
        assert len(posted) == 3
        assert WEBHOOK_VARIABLE in caplog.text
        monkeypatch.setenv(WEBHOOK_VARIABLE, address)
        Loop(store, tmp_path, stack, notify=hidden, budgets={"max_cycles": 3}).run()
        assert [body["payload"]["cycles_run"] for _, body in posted[3:]] == [2, 2, 2, 3, 3, 3]
    assert KEY not in caplog.text + repr(kept) + repr(config(notify=notify))
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path


@pytest.mark.parametrize(
    "address",
    [
        "http://example.com/x",
        "ftp://localhost/x",
        "https:///x",
        "https://h/a b",
        "https://h:x/",
        "x",
    ],
)
def test_an_address_that_others_can_read_is_refused_and_not_quoted(address):
    document = {"run_name": "r", "seed_dataset": "local/d", "notify": {"webhook": address + KEY}}
    with pytest.raises(ConfigurationError, match=r"notify.webhook: expected https://") as refused:
        LoopConfig.from_document(document, source="test")
    assert KEY not in str(refused.value)
