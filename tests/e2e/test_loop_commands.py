"""`cadenza loop status | stop | approve | doctor`: what they print, and how they end.

One is a process, the others run in this one.
"""

import json

import pytest
import yaml

from cadenza.loop.incidents import incidents_of
from cadenza.loop.processes import readable, this_process
from cadenza.loop.store import JobStore, changes
from tests.e2e.commands import REPOSITORY, cadenza
from tests.e2e.in_process import here
from tests.loop_runs import REASON, RUN, begun_run


@pytest.fixture
def runs(tmp_path):
    """Folder of a run that nobody works on."""
    begun_run(tmp_path / "runs").close()
    return tmp_path


def loop(*words, cwd):
    return here("loop", *words, cwd=cwd)


def test_status_shows_cycles_decisions_intervals_jobs_hours_and_pages(runs):
    done = loop("status", cwd=runs)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].startswith(f"Run {RUN}: running, but no controller runs, begun ")
    assert lines[0].endswith(", 1 of 4 cycles decided, cycle 1 undecided")
    first, second = (next(line.split() for line in lines if line[1:2] == n) for n in "01")
    assert " ".join(first) == "0 bc done promote 60.0% [26, 88] 10 2 min 06 s"
    assert " ".join(second) == "1 bc train 30 s"
    assert f"cycle 0: promote. {REASON}" in lines
    assert "blessed: cycle_0/train/policy (bc, cycle 0, success 60.0%)" in lines
    job = "job: train of cycle 1 as process 4243, runs for 30 s, about 1 min 10 s left"
    assert any(line.startswith(job) for line in lines)
    assert "hours: 0.04 (at most 0.5) of all jobs, there is no GPU" in lines
    assert "knowledge: policies/bc.md, tasks/crossing.md in pages" in lines
    assert f"continue with: cadenza loop resume {RUN}" in lines


@pytest.mark.parametrize(
    ("command", "words"), [(cadenza, ["status"]), (here, ["stop", RUN])], ids=["process", "here"]
)
def test_without_a_store_commands_end_with_1_and_make_none(tmp_path, command, words):
    done = command("loop", *words, cwd=tmp_path)
    assert done.code == 1
    assert done.err == (
        "error: runs/cadenza.db: expected a job store, got no file; start a run first, or name "
        "its folder.\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_nobody_works_on_is_stopped_at_once(runs):
    done = loop("stop", RUN, cwd=runs)
    assert done.out.splitlines() == [
        f"run {RUN}: no controller was running; it is now stopped",
        f"continue with: cadenza loop resume {RUN}",
    ]
    [run] = loop("status", "--json", cwd=runs).json["runs"]
    assert (run["status"], run["stop_reason"]) == ("stopped", "stop requested")


def test_who_stops_and_resumes_a_run_and_why_is_noted(runs, monkeypatch):
    (runs / "runs" / RUN).mkdir(exist_ok=True)
    monkeypatch.setenv("LOGNAME", "bob")
    loop("stop", RUN, "--by", "Ada", "--reason", "the lab closes", cwd=runs)
    [run] = loop("status", "--json", cwd=runs).json["runs"]
    assert (run["status"], run["stop_reason"]) == ("stopped", "Ada asked for it: the lab closes")
    loop("resume", RUN, cwd=runs)  # it cannot go on, which comes later
    loop("resume", RUN, "--by=", cwd=runs)  # whoever starts it has noted it
    told = [(one["kind"], one["message"], one["by"]) for one in incidents_of(runs / "runs" / RUN)]
    assert told == [
        ("stop_asked", "the lab closes", "Ada"),
        ("resume_asked", "no reason given", "bob"),
    ]
    elsewhere = ["--store", f"sqlite:///{runs}/runs/cadenza.db", "--workdir", str(runs / "none")]
    assert loop("stop", RUN, *elsewhere, cwd=runs).code == 0
    assert not (runs / "none").exists()


def test_a_live_controller_is_asked_to_stop(tmp_path):
    begun_run(tmp_path / "runs", owner=this_process()).close()
    done = loop("stop", RUN, cwd=tmp_path)
    assert f"{readable(this_process())} was asked to stop it" in done.out
    [run] = loop("status", "--json", cwd=tmp_path).json["runs"]
    assert (run["status"], run["stop_requested"]) == ("running", True)
    assert (
        f"controller: {readable(this_process())}, asked to stop" in loop("status", cwd=tmp_path).out
    )


@pytest.fixture
def asking(runs):
    """Folder of a run that waits for an answer."""
    with begun_run(runs / "runs", run_id="asking") as store:
        lease = store.leases.acquire("asking", "someone", ttl_s=60.0)
        store.apply(lease, changes.request_approval(0, "promote", timeout_s=3000.0))
        store.leases.release(lease)
    return runs


def test_an_answer_is_recorded_once(asking):
    shown = loop("status", "asking", cwd=asking).out
    assert "waits for approval: promote in cycle 0, decides by itself in " in shown
    assert "cadenza loop approve asking --by NAME --reason TEXT" in shown
    words = ["approve", "asking", "--by", "Ada", "--reason", "watched the videos", "--reject"]
    done = loop(*words, cwd=asking)
    assert done.out.splitlines() == [
        "run asking: promote in cycle 0 is rejected by Ada",
        "no controller runs it; continue with: cadenza loop resume asking",
    ]
    again = loop(*words, cwd=asking)
    assert again.code == 2
    assert "expected a decision that waits for approval, got none" in again.err


def test_doctor_fails_for_a_configuration_that_cannot_run_here(tmp_path):
    text = (REPOSITORY / "configs" / "loop" / "lerobot_pusht.yaml").read_text()
    config = tmp_path / "config.yaml"
    config.write_text(text + "\nstore: postgresql+psycopg://me:secret@127.0.0.1:9/x\n")
    words = ("loop", "doctor", "--config", config, "--json")
    done = here(*words, cwd=tmp_path)
    assert done.code == 1
    assert not done.json["ok"]
    failed = {check["name"]: check for check in done.json["checks"] if check["level"] == "fail"}
    assert {"store", "inputs"} <= set(failed)
    assert "secret" not in done.out


def test_lint_ends_with_1_if_and_only_if_a_page_is_wrong(tmp_path):
    page = tmp_path / "knowledge" / "tasks" / "crossing.md"
    page.parent.mkdir(parents=True)
    assert loop("lint", cwd=tmp_path).out == "nothing wrong\n"
    page.write_text("---\ntype: song\n---\n")
    done = loop("lint", cwd=tmp_path)
    assert done.code == 1
    assert "knowledge/tasks/crossing.md: bad type 'song'" in done.out.splitlines()
    assert done.out.splitlines()[-1].endswith(" findings")
    done = loop("lint", "-k", tmp_path / "knowledge", "--json", cwd=tmp_path)
    assert (done.code, done.json["ok"]) == (1, False)
    assert {"page": str(page), "problem": "missing provenance"} in done.json["findings"]


def test_runs_are_listed_compared_and_their_logs_shown(runs):
    begun_run(runs / "runs", run_id="b").close()
    listed = loop("list", "--status", "running", cwd=runs).out
    assert listed.index("b ") < listed.index(RUN)
    assert "1 of 4" in listed
    unknown = loop("list", "--status", "foo", cwd=runs)
    assert unknown.code == 2
    assert "one of running, pending_approval, stopped, finished, failed, got 'foo'" in unknown.err
    found = loop("list", "--status", "failed", "--json", cwd=runs)
    assert (found.code, found.json) == (0, {"runs": []})
    log = runs / "runs" / RUN / "cycle_1" / "train.log"
    log.parent.mkdir(parents=True)
    log.write_text("one\ntwo\x1b[2J\n")
    shown = loop("logs", RUN, "--tail", "1", cwd=runs).out
    assert shown.splitlines()[-1].partition(" UTC ")[2].startswith("[cycle 0] knowledge/knowledge_")
    assert loop("logs", RUN, "--job", "train", "--tail", "1", cwd=runs).out == "two [2J\n"
    unknown = loop("logs", RUN, "--job", "train", "--cycle", "7", cwd=runs)
    assert (unknown.code, "expected one of run" in unknown.err) == (2, True)
    beside = loop("compare", RUN, "b", cwd=runs).out
    assert beside.count("60.0% [26, 88]") == 2
    both = loop("compare", RUN, "b", "--json", cwd=runs).json["runs"]
    assert [one["decisions"] for one in both] == [["promote"], ["promote"]]


def test_prune_says_what_would_go_and_removes_it_if_told_to(runs):
    with JobStore(runs / "runs" / "cadenza.db") as store:
        state, version = store.load_state(RUN)
        lease = store.leases.acquire(RUN, "someone", ttl_s=60.0)
        store.commit(lease, version, state.model_copy(update={"cycle": 1}))
        store.leases.release(lease)
    folder = runs / "runs" / RUN / "cycle_0"
    for name in ("data", "train"):
        (folder / name).mkdir(parents=True)
        (folder / name / "policy").write_text("x" * 2_000_000)
    words = ("prune", RUN, "--max-size", "3MB")
    would = loop(*words, cwd=runs)
    assert would.out.splitlines() == [
        f"run {RUN}: 2.0 MB in 1 folders",
        "  cycle_0/data",
        "nothing was removed; do it with --yes",
    ]
    assert (folder / "data").is_dir()
    done = loop(*words, "--yes", "--json", cwd=runs).json
    assert done == {
        "dry_run": False,
        "runs": {RUN: {"bytes": 2_000_000, "paths": ["cycle_0/data"]}},
    }
    assert (folder / "train" / "policy").is_file()  # the blessed one
    assert not (folder / "data").exists()
    assert "removed: 1 folders of ended cycles, to make room" in loop("status", RUN, cwd=runs).out
    [run] = loop("status", "--json", cwd=runs).json["runs"]
    assert run["removed"] == ["cycle_0/data"]
    assert loop(*words, "--yes", cwd=runs).out == "removed\n"
    assert loop("prune", cwd=runs).code == 2
    for flag, text, expected in (
        ("--older-than", "3x", "older_than: expected a number and m, h or d, as 30d, got '3x'"),
        ("--max-size", "3", "max_size: expected a number and kB, MB, GB or TB, as 50GB, got '3'"),
    ):
        assert expected in loop("prune", flag, text, cwd=runs).err


def test_a_unit_continues_a_run_or_begins_one_of_a_configuration(runs):
    config = REPOSITORY / "configs" / "loop" / "native_crossing.yaml"
    (runs / "c.yaml").write_text(config.read_text())
    unit = loop("service", "--config", "c.yaml", cwd=runs).out
    assert f'"run" "--config" "{runs}/c.yaml" "--run-id" "' in unit
    assert '"--resume" "--quiet"' in unit
    for words in ((), (RUN, "--config", "c.yaml"), ("nobody",)):
        assert loop("service", *words, cwd=runs).code == 2


def test_the_error_budget_is_told_with_what_is_left_of_it(runs):
    with JobStore(runs / "runs" / "cadenza.db") as store:
        text = (REPOSITORY / "configs" / "loop" / "native_crossing.yaml").read_text()
        store.create_run(
            "whole", json.dumps(yaml.safe_load(text) | {"thresholds": {"alpha": 0.05}})
        )
    told = loop("status", "whole", cwd=runs).out
    assert "error budget: 5.00% over all cycles, 0.00% of it spent by 0 comparisons" in told
    assert "without a blessing, 5.00% left" in told
    [run] = loop("status", "whole", "--json", cwd=runs).json["runs"]
    assert (run["error_budget"], run["error_spent"], run["error_left"]) == (0.05, 0.0, 0.05)
