"""Runs built from a configuration, with the real workers of proposals and knowledge."""

import json

import pytest

from cadenza.cli.loop_status import notes
from cadenza.core.errors import MissingExtraError
from cadenza.core.strict_json import write_sealed_json
from cadenza.loop.backends.base import make_backend
from cadenza.loop.backends.lerobot_probe import LeRobotEnvironment
from cadenza.loop.constitution import ConstitutionError
from cadenza.loop.contracts.records import SeedRange
from cadenza.loop.dry_run import DryBackend, dry_jobs
from cadenza.loop.orchestrator import build_loop
from cadenza.loop.orchestrator.assembly import write_demo_config
from cadenza.loop.status_report import run_status
from tests.integration.loop.loop_harness import built
from tests.integration.loop.loop_harness import configured as config
from tests.loop_fakes import FakeStack


def test_run_from_a_configuration_writes_store_log_and_pages(tmp_path):
    stack = FakeStack([0.4, 0.9])

    settings = config(tmp_path)
    told = []
    with built(settings, stack) as loop:
        loop.bus.subscribe(lambda event: told.append(event.kind))
        summary = loop.run()
        assert loop.folder == tmp_path / "runs" / "run"
    assert summary.decisions == ["promote", "promote"]
    assert told[-1] == "run_finished"
    assert (tmp_path / "runs" / "cadenza.db").is_file()
    assert (loop.folder / "events.jsonl").is_file()
    pages = {str(p.relative_to(tmp_path)) for p in (tmp_path / "knowledge").rglob("*.md")}
    assert {"knowledge/policies/bc.md", "knowledge/tasks/default.md"} <= pages
    assert stack.flags(0, "data")["episodes"] == "4"
    assert stack.flags(1, "data")["episodes"] == "8"
    same_start = {stack.flags(cycle, "data")["seed-start"] for cycle in (0, 1)}
    assert len(same_start) == 1  # more episodes extend the earlier ones


@pytest.mark.parametrize("named", [True, False])
def test_initial_states_of_the_seed_dataset_are_reserved_where_it_names_them(named, tmp_path):
    stack, root = FakeStack([0.4, 0.9]), tmp_path / "seed"
    if named:
        episodes = [{"seed": seed, "partner": "p"} for seed in (12, 10)]
        (root / "meta").mkdir(parents=True)
        write_sealed_json(
            root / "meta/cadenza.json", {"episodes": episodes}, kind="cadenza-dataset"
        )

    settings = config(tmp_path, seed_root=str(root))
    with built(settings, stack) as loop:
        loop.run()
        ranges = loop.store.seed_ranges("run")
        events = loop.store.events.find("run")
        [told] = [event for event in events if event.kind == "seed_data_seeds"]
        status = run_status(loop.store, "run", workdir=settings.workdir)
    assert {use for _, use, _ in ranges} == ({"seed_data", "compare"} if named else {"compare"})
    assert ranges.get((0, "seed_data", 0)) == (SeedRange(start=10, count=3) if named else None)
    assert json.loads(told.payload) == {"seeds": [[10, 12]] if named else "unknown"}
    assert status.seed_data == ("reserved" if named else "unknown")
    lines = notes(status, settings.workdir, None)
    assert any("initial states are unknown" in line for line in lines) != named


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            # 16 * 2^12 in the last cycle
            {"data": {"initial_episodes": 17}, "budgets": {"max_cycles": 13}},
            r"max_collect_episodes: data.initial_episodes, data.growth, data.max_episodes \(69632 "
            r"episodes in cycle 12, with failures\): expected at most 65536, got 69632",
        ),
        (
            {"improve": {"enabled": True, "adapt_steps": 200_001}},
            r"max_train_steps: improve.adapt_steps: expected at most 200000, got 200001",
        ),
        (
            {"eval": {"max_episodes": 700, "episodes_per_job": 600}},
            r"max_eval_episodes: eval.n_episodes, .* \(a job of 600 episodes\): .* got 600",
        ),
    ],
)
def test_numbers_that_the_rules_refuse_are_refused_before_a_run_exists(tmp_path, changes, words):
    with pytest.raises(ConstitutionError, match=words):
        build_loop(config(tmp_path, **changes), "r")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"policy_ladder": [{"name": "act"}, {"name": "pi0", "init": "evil/weights"}]},
            r"policy_ladder\[1\], train, seed_dataset: .*'?evil/weights",
        ),
        ({"improve": {"enabled": True, "extra_args": ["--fly=1"]}}, "eval, improve: .*fly"),
    ],
)
def test_commands_that_the_rules_refuse_are_refused_before_a_run_exists(
    tmp_path, monkeypatch, changes, words
):
    def nowhere(*_):
        raise MissingExtraError("no LeRobot here")

    monkeypatch.setattr(LeRobotEnvironment, "find", nowhere)
    fine = {
        "backend": "lerobot",
        "seed_dataset": "lerobot/pusht",
        "policy_ladder": [{"name": "act"}],
        "eval": {"env_type": "pusht", "task_suite": "PushT-v0"},
    }
    allowed = config(tmp_path, **fine)
    stack = DryBackend(make_backend(allowed), allowed)
    build_loop(config(tmp_path / "fine", **fine), "r", backend=stack, open_jobs=dry_jobs).close()
    refused = config(tmp_path, **{**fine, **changes})
    stack = DryBackend(make_backend(refused), refused)
    with pytest.raises(ConstitutionError, match=words):
        build_loop(refused, "r", backend=stack, open_jobs=dry_jobs)
    assert not (tmp_path / "runs").exists()


def test_a_changed_configuration_of_the_demonstration_is_kept_and_obeyed(tmp_path):
    first = write_demo_config(tmp_path / "runs", tmp_path / "pages")
    path = tmp_path / "runs" / "demo.yaml"
    changed = path.read_text().replace(f"max_cycles: {first.budgets.max_cycles}", "max_cycles: 1")
    path.write_text(changed)
    again = write_demo_config(tmp_path / "runs", tmp_path / "others")
    assert path.read_text() == changed
    assert (again.budgets.max_cycles, again.knowledge.root) == (1, tmp_path / "others")
    assert again.workdir == first.workdir
