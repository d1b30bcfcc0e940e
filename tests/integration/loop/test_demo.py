"""The demonstration: its configuration, and its command over the fake stack."""

import json
from functools import partial

import yaml
from typer.testing import CliRunner

from cadenza.cli.main import app
from cadenza.loop.agents.base import CallableRunner
from cadenza.loop.orchestrator import assembly
from tests.loop_fakes import FakeBackend, FakeStack

TINY = {
    "run_name": "demo",
    "seed_dataset": "local/crossing",
    "data": {"initial_episodes": 4},
    "train": {"steps": 20, "batch_size": 32},
    "eval": {"n_episodes": 6, "max_episodes": 6},
    "budgets": {"max_cycles": 1},
    "thresholds": {"min_promote": 0.0},
}


def test_the_demonstration_runs_to_its_end_and_only_once(tmp_path, monkeypatch):
    def open_jobs(session, stop):
        return CallableRunner(session.store, session.lease, FakeStack([0.9]))

    build = partial(assembly.build_loop, backend=FakeBackend(), open_jobs=open_jobs)
    monkeypatch.setattr(assembly, "build_loop", build)
    tiny = tmp_path / "tiny.yaml"
    tiny.write_text(yaml.safe_dump(TINY))
    monkeypatch.setattr(assembly, "shipped_config", lambda _: tiny)
    workdir = tmp_path / "runs"
    words = ["loop", "demo", "--workdir", str(workdir)]
    first = CliRunner().invoke(app, words)
    assert first.exit_code == 0, first.output
    assert "Run demo: finished (budget: max_cycles), begun " in first.stdout
    assert f"policies/bc.md, tasks/default.md in {workdir}/knowledge" in first.stdout
    assert "[cycle 0] decide/decision" in first.stderr
    events = (workdir / "demo" / "events.jsonl").read_bytes()
    again = CliRunner().invoke(app, [*words, "--json"])
    assert again.exit_code == 0, again.output
    summary = json.loads(again.stdout)
    assert (summary["run_id"], summary["decisions"]) == ("demo", ["promote"])
    assert summary["run"]["cycles"][0]["candidate"]["n_episodes"] == 6
    assert (workdir / "demo" / "events.jsonl").read_bytes() == events
