"""What is told of runs beside their status."""

import json
import shutil
import subprocess

import pytest

from cadenza.core.errors import ConfigurationError, InputError, UnknownNameError
from cadenza.loop import reports
from cadenza.loop.errors import UnknownRowError
from cadenza.loop.incidents import IncidentLog
from cadenza.loop.processes import this_process
from cadenza.loop.reports import (
    compare_runs,
    metrics_text,
    service_unit,
    tail_events,
    tail_log,
)
from cadenza.loop.retention import parse_rules
from tests.loop_runs import CONFIG, RUN, begun_run


def samples(store, workdir):
    """Return what a scraper reads, by name and labels."""
    parser = pytest.importorskip("prometheus_client.parser", reason="of the extra dev")
    families = parser.text_string_to_metric_families(metrics_text(store, workdir))
    return {
        (one.name.removeprefix("cadenza_loop_"), *sorted(one.labels.items())): one.value
        for family in families
        for one in family.samples
    }


def test_metrics_are_what_prometheus_reads(tmp_path):
    with begun_run(tmp_path, owner=this_process()) as store:
        log = IncidentLog(tmp_path / RUN)
        for kind in ("resumed", "resumed", "stopped"):
            log.note(kind, "why")
        begun_run(tmp_path, run_id="old").finish_run("old", "finished", "budget: max_cycles")
        found = samples(store, tmp_path)
    run = ("run", RUN)
    assert found["runs", ("status", "running")] == 1.0
    assert found["runs", ("status", "finished")] == 1.0
    assert found["runs", ("status", "failed")] == 0.0
    assert found["cycles_total", run] == 1.0
    assert found["job_seconds_total", ("device", "cpu"), run] == 156.0
    assert found["incidents_total", ("kind", "resumed"), run] == 2.0
    assert found["incidents_total", ("kind", "stopped"), run] == 1.0
    assert 0.0 <= found["heartbeat_age_seconds", run] < 3600.0
    assert ("heartbeat_age_seconds", ("run", "old")) not in found
    assert found["disk_free_bytes",] > 0.0
    assert "# TYPE cadenza_loop_cycles_total counter" in metrics_text(store, tmp_path)


def test_metrics_stay_few_and_readable_whatever_runs_wrote(tmp_path, monkeypatch):
    monkeypatch.setattr(reports, "MAX_RUNS", 3)
    monkeypatch.setattr(reports, "MAX_KINDS", 2)
    odd = 'a"b\\c\nd\ud800\0é'
    with begun_run(tmp_path, run_id="first") as store:
        for number in range(4):
            store.create_run(f"later-{number}", "{}")
            store.finish_run(f"later-{number}", "finished")
        kinds = [odd, odd, "often", "often", *map(str, range(50))]
        lines = "".join(json.dumps({"kind": kind}) + "\n" for kind in kinds)
        (tmp_path / "first").mkdir()
        (tmp_path / "first" / "incidents.jsonl").write_text(lines)
        found = samples(store, tmp_path)
    assert found["runs", ("status", "finished")] == 4.0
    shown = [dict(labels)["run"] for name, *labels in found if name == "cycles_total"]
    assert sorted(shown) == ["first", "later-2", "later-3"]
    incidents = {
        dict(labels)["kind"]: count
        for (name, *labels), count in found.items()
        if name == "incidents_total"
    }
    assert incidents == {'a"b\\c\nd\\ud800\\x00é': 2.0, "often": 2.0, "others": 50.0}


def test_the_error_budget_is_spent_and_left(tmp_path):
    with begun_run(tmp_path) as store:
        document = json.dumps({**CONFIG, "thresholds": {"alpha": 0.05}})
        store.create_run("other", document)
        found = samples(store, tmp_path)
    of_other = [value for key, value in found.items() if ("run", "other") in key]
    assert found["error_budget", ("part", "spent"), ("run", "other")] == 0.0
    assert found["error_budget", ("part", "left"), ("run", "other")] == 0.05
    assert len(of_other) == 4


def test_runs_are_compared_by_what_differs_and_what_they_came_to(tmp_path):
    with begun_run(tmp_path) as store:
        budgets = {"max_cycles": 4, "max_gpu_hours": 1.0}
        store.create_run("other", json.dumps({**CONFIG, "seed": 7, "budgets": budgets}))
        first, other = compare_runs(store, [RUN, "other"], workdir=tmp_path)
        with pytest.raises(InputError, match="two different runs"):
            compare_runs(store, [RUN, RUN], workdir=tmp_path)
        with pytest.raises(UnknownRowError):
            compare_runs(store, [RUN, "nobody"], workdir=tmp_path)
    assert first.settings == {"budgets.max_gpu_hours": "0.5", "seed": ""}
    assert other.settings == {"budgets.max_gpu_hours": "1.0", "seed": "7"}
    assert (first.decisions, first.policy, other.decisions) == (("promote",), "bc", ())
    assert (first.blessed.rate, first.blessed.n_episodes, other.blessed) == (0.6, 10, None)
    assert first.hours == pytest.approx(156.0 / 3600.0)


def test_logs_end_with_what_nobody_works_on_and_follow_what_comes(tmp_path):
    log = tmp_path / RUN / "cycle_1" / "train.log"
    log.parent.mkdir(parents=True)
    log.write_text("".join(f"line {number}\n" for number in range(5)))
    with begun_run(tmp_path) as store:
        kinds = [one.kind for one in tail_events(store, RUN, cycle=None, last=1, follow=True)]
        assert kinds == ["knowledge_updated"]
        assert not [*tail_events(store, RUN, cycle=1, last=9, follow=False)]
        place = {"workdir": tmp_path, "cycle": None, "last": 2}
        assert "".join(tail_log(store, RUN, "train", follow=False, **place)) == ("line 3\nline 4\n")
        told = tail_log(store, RUN, "train", follow=True, **place)
        next(told)
        with log.open("a") as file:
            file.write("line 5\n")
        assert next(told) == "line 5\n"  # the job runs, so more may come
        told.close()
        with pytest.raises(UnknownNameError, match="it has eval_candidate_0 of cycle 0, "):
            [*tail_log(store, RUN, "../../etc", follow=False, **place)]


def test_the_unit_is_one_that_systemd_takes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["resume", "run", '--odd=50%$HOME"\\']
    unit = service_unit("run", words, 10.0, (2, 13))
    lines = unit.splitlines()
    assert lines[:1] == ["# Save it as ~/.config/systemd/user/cadenza-run.service, then:"]
    assert {"Restart=on-failure", "KillMode=mixed", "TimeoutStopSec=70"} <= set(lines)
    assert "RestartPreventExitStatus=2 13" in lines
    [command] = [line for line in lines if line.startswith("ExecStart=")]
    assert command.endswith(' "--odd=50%%$$HOME\\"\\\\" "--quiet"')
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("needs systemd-analyze")
    path = tmp_path / "cadenza-run.service"

    def complaints(text):
        path.write_text(text)
        environment = {"XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)}
        words = [analyze, "verify", "--user", str(path)]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        return [line for line in done.stderr.splitlines() if path.name in line]

    assert len(complaints(unit.replace("KillMode=mixed", "KillMode=gently"))) == 1
    assert complaints(unit) == []


@pytest.mark.parametrize(
    "words", [(None, None, None), ("2 weeks", None, None), (None, None, "50"), (None, None, "-1GB")]
)
def test_rules_that_say_nothing_or_are_malformed_are_refused(words):
    with pytest.raises(ConfigurationError, match="expected a"):
        parse_rules(*words)
