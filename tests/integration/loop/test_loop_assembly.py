"""Runs built from a configuration, with the real workers of proposals and knowledge."""

import json

import pytest

from cadenza.cli.loop_status import notes
from cadenza.core.errors import ConfigurationError, MissingExtraError
from cadenza.core.sealed_json import write_sealed_json
from cadenza.loop.backends.base import SeedRange
from cadenza.loop.backends.lerobot_environment import LeRobotEnvironment
from cadenza.loop.backends.registry import make_backend
from cadenza.loop.constitution import ConstitutionError
from cadenza.loop.dry_run import DryBackend, dry_jobs
from cadenza.loop.llm.protocol import Answer
from cadenza.loop.orchestrator import build_loop
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


def test_runs_of_different_seeds_replicate_in_the_pages_and_of_one_seed_do_not(tmp_path):
    def status_after(run, seed):
        stack = FakeStack([0.9])

        settings = config(tmp_path, seed=seed, budgets={"max_cycles": 1})
        with built(settings, stack, run_id=run) as loop:
            loop.run()
        text = (tmp_path / "knowledge" / "policies" / "bc.md").read_text()
        assert f"· run {run} · cycle 0 · default · policy bc · success " in text
        return next(line for line in text.splitlines() if line.startswith("status: "))

    assert [status_after("one", 3), status_after("again", 3)] == ["status: observed-once"] * 2
    assert status_after("other", 4) == "status: replicated"


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
        [told] = loop.store.events.of_kind("run", "collect", "seed_data_seeds")
        status = run_status(loop.store, "run", workdir=settings.workdir)
    assert {use for _, use, _ in ranges} == ({"seed_data", "compare"} if named else {"compare"})
    assert ranges.get((0, "seed_data", 0)) == (SeedRange(start=10, count=3) if named else None)
    assert json.loads(told.payload) == {"seeds": [[10, 12]] if named else "unknown"}
    assert status.seed_data == ("reserved" if named else "unknown")
    lines = notes(status, settings.workdir, None)
    assert any("initial states are unknown" in line for line in lines) != named


class Model:
    """A language model that always plans the same; as clients of a service do, it may fail."""

    provider = "fake"
    model = "planner"

    def __init__(self, episodes=3):
        self.questions, self.episodes = [], episodes

    def ask(self, question):
        self.questions.append(question)
        plan = {"action": "reuse_seed", "dataset": "local/crossing", "num_episodes": self.episodes}
        return Answer(text=json.dumps(plan))


def test_model_is_asked_once_per_place_and_its_use_of_pages_is_told(tmp_path, monkeypatch):
    model = Model()
    monkeypatch.setattr("cadenza.loop.llm.recording.make_llm", lambda spec: model)
    stack = FakeStack([0.4, 0.9])

    settings = config(tmp_path, llm="openai:planner")
    with built(settings, stack) as loop:
        loop.run()
        asked = len(model.questions)
        assert loop.store.replies.get("run", 0, "propose", 0).text.startswith('{"action"')
        used = [e for e in loop.store.events.after("run", 0) if e.kind == "knowledge_used"]
        pages = [page["path"] for page in json.loads(used[1].payload)["pages"]]
    assert stack.flags(0, "data")["episodes"] == "3"
    assert [event.cycle for event in used] == [0, 1]
    assert any("policies/bc" in page for page in pages)
    with built(settings, stack) as loop:
        loop.run()
    assert len(model.questions) == asked


def test_model_that_reached_its_limit_is_asked_no_more_and_the_schedule_goes_on(
    tmp_path, monkeypatch
):
    model = Model()
    monkeypatch.setattr("cadenza.loop.llm.recording.make_llm", lambda spec: model)
    stack = FakeStack([0.4, 0.5, 0.6])

    # the model says no number of tokens, so a call counts as the most it can cost: 1024 tokens of
    # reply at a dollar per million are 0.001024 dollars, and two of them fit
    calls = {
        "usd_per_million_input": 0.0,
        "usd_per_million_output": 1.0,
        "max_cost_usd": 0.0025,
        "max_reply_tokens": 1024,
    }
    settings = config(
        tmp_path, llm="openai:planner", llm_calls=calls, budgets={"max_cycles": 3},
        knowledge={"enabled": False},
    )  # fmt: skip
    with built(settings, stack) as loop:
        summary = loop.run()
        rows = [loop.store.replies.get("run", cycle, "propose", 0) for cycle in range(3)]
    assert summary.cycles_run == 3
    assert len(model.questions) == 2
    # the model's count, then the schedule's: 4 * 2^2
    assert [stack.flags(cycle, "data")["episodes"] for cycle in range(3)] == ["3", "3", "16"]
    assert [row.cost_usd for row in rows] == pytest.approx([0.001024, 0.001024, 0.0])
    assert "max_cost_usd" in rows[2].error
    raised = settings.llm_calls.model_copy(update={"max_cost_usd": 1.0})
    again = settings.model_copy(update={"llm_calls": raised})
    with built(again, stack) as loop:
        assert loop.run() == summary  # a run may go on with another limit


def test_broken_parts_are_told_and_the_store_is_closed(tmp_path, monkeypatch):
    rules = tmp_path / "rules.yaml"
    rules.write_text("no_such_rule: 1\n")
    with pytest.raises(ConstitutionError, match="unknown_rule"):
        build_loop(config(tmp_path, constitution=str(rules)), "run")
    for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigurationError, match="expected GEMINI_API_KEY or GOOGLE_API_KEY"):
        build_loop(config(tmp_path, llm="gemini:model"), "run")


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
            {"eval": {"n_episodes": 100, "max_episodes": 700, "extension_growth": 7.0}},
            r"max_eval_episodes: eval.n_episodes, .* after 100, 700 episodes\): .* got 600",
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
    stack = DryBackend(make_backend(config(tmp_path, **fine)))
    build_loop(config(tmp_path / "fine", **fine), "r", backend=stack, open_jobs=dry_jobs).close()
    refused = config(tmp_path, **{**fine, **changes})
    with pytest.raises(ConstitutionError, match=words):
        build_loop(refused, "r", backend=DryBackend(make_backend(refused)), open_jobs=dry_jobs)
    assert not (tmp_path / "runs").exists()


#: As many attempts as 200 episodes may take.
RULES = """
allowed_programs: [cadenza]
allowed_env_types: [crossing]
max_train_steps: 9000
max_eval_episodes: 500
max_collect_episodes: 1000
"""


def test_models_greed_ends_in_the_most_that_the_rules_allow(tmp_path, monkeypatch):
    monkeypatch.setattr("cadenza.loop.llm.recording.make_llm", lambda spec: Model(300))
    (tmp_path / "rules.yaml").write_text(RULES)
    settings = config(
        tmp_path,
        llm="openai:greedy",
        constitution=str(tmp_path / "rules.yaml"),
        data={"initial_episodes": 4, "max_episodes": 9000},
        improve={"enabled": True, "episodes": 250},
        budgets={"max_cycles": 1},
    )
    stack = FakeStack([0.9])
    with built(settings, stack) as loop:
        assert loop.run().cycles_run == 1
    data, harvest = stack.flags(0, "data"), stack.flags(0, "harvest")
    assert (data["episodes"], data["seed-count"]) == ("200", "1000")
    assert (harvest["episodes"], harvest["seed-count"]) == ("250", "1000")
