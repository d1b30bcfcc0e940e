"""Runs built from a configuration, with the real workers of proposals and knowledge."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from cadenza.cli.loop_status import notes
from cadenza.core.errors import ConfigurationError, MissingExtraError
from cadenza.core.sealed_json import write_sealed_json
from cadenza.loop.agents import DataAgent, ImproveAgent
from cadenza.loop.backends.base import SeedRange
from cadenza.loop.backends.lerobot_environment import LeRobotEnvironment
from cadenza.loop.backends.native import NativeBackend
from cadenza.loop.backends.registry import make_backend
from cadenza.loop.config import EvalConfig, ImproveConfig, LoopConfig
from cadenza.loop.constitution import ConstitutionError, load_constitution
from cadenza.loop.dry_run import DryBackend, dry_jobs
from cadenza.loop.events import EventBus
from cadenza.loop.jobs.callable_runner import CallableRunner
from cadenza.loop.jobs.durable_runner import LocalJobRunner
from cadenza.loop.jobs.stopping import never
from cadenza.loop.llm.protocol import Answer
from cadenza.loop.orchestrator import build_loop
from cadenza.loop.orchestrator.assembly import (
    new_run_id,
    read_roots,
    run_folder,
)
from cadenza.loop.orchestrator.proposer import (
    CuratedProposer,
    DeterministicProposer,
    LLMProposer,
)
from cadenza.loop.orchestrator.session import IncidentLog
from cadenza.loop.resuming import store_location
from cadenza.loop.status_report import run_status
from tests.loop_fakes import FakeBackend, FakeStack


def config(tmp_path, **changes):
    document = {
        "run_name": "crossing",
        "seed_dataset": "local/crossing",
        "workdir": str(tmp_path / "runs"),
        "data": {"initial_episodes": 4},
        "budgets": {"max_cycles": 2},
        "eval": {"n_episodes": 20, "max_episodes": 20},
        "knowledge": {"root": str(tmp_path / "knowledge")},
        **changes,
    }
    return LoopConfig.from_document(document, source="test")


def proposer_of(loop):
    return loop.controller._workers.proposer


def test_run_from_a_configuration_writes_store_log_and_pages(tmp_path):
    stack = FakeStack([0.4, 0.9])

    def open_jobs(session, stop):
        return CallableRunner(session.store, session.lease, stack)

    settings = config(tmp_path)
    told = []
    with build_loop(settings, "run", backend=FakeBackend(), open_jobs=open_jobs) as loop:
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

        def open_jobs(session, stop):
            return CallableRunner(session.store, session.lease, stack)

        settings = config(tmp_path, seed=seed, budgets={"max_cycles": 1})
        with build_loop(settings, run, backend=FakeBackend(), open_jobs=open_jobs) as loop:
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

    def open_jobs(session, stop):
        return CallableRunner(session.store, session.lease, stack)

    settings = config(tmp_path, seed_root=str(root))
    with build_loop(settings, "run", backend=FakeBackend(), open_jobs=open_jobs) as loop:
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


def test_runs_of_one_id_in_two_stores_keep_apart_in_the_pages_they_share(tmp_path):
    for place, rates in (("one", [0.9, 0.9]), ("two", [0.4, 0.4])):
        stack = FakeStack(rates)

        def open_jobs(session, stop, stack=stack):
            return CallableRunner(session.store, session.lease, stack)

        settings = config(tmp_path, workdir=str(tmp_path / place))
        with build_loop(settings, "run", backend=FakeBackend(), open_jobs=open_jobs) as loop:
            loop.run()
    assert len(list((tmp_path / "knowledge/experiments").glob("run*.md"))) == 2
    page = (tmp_path / "knowledge/tasks/default.md").read_text()
    assert [page.count(f" · run {name}") for name in ("run · ", "run~")] == [2, 2]


def test_parts_follow_the_configuration(tmp_path):
    with build_loop(config(tmp_path), "run") as loop:
        assert isinstance(proposer_of(loop), DeterministicProposer)
        assert isinstance(loop.controller._workers.train.backend, NativeBackend)
        assert loop.controller._workers.improve is None
    bare = config(
        tmp_path, knowledge={"enabled": False}, improve={"enabled": True}, llm="openai:model"
    )
    with build_loop(bare, "run") as loop:
        assert loop.controller._workers.knowledge is None
        assert loop.controller._workers.improve is not None
        assert isinstance(proposer_of(loop), LLMProposer)
    curated = config(tmp_path, llm="openai:model", curation={"enabled": True})
    with build_loop(curated, "run") as loop:
        assert isinstance(proposer_of(loop), CuratedProposer)


class OwnPrograms(FakeBackend):
    """A back end whose program lies elsewhere, and whose jobs need a GPU."""

    programs = {"lerobot-train": (sys.executable, "-c", "pass")}  # noqa: RUF012 - a constant
    capabilities = {"device": "cuda"}  # noqa: RUF012 - a constant


@pytest.mark.parametrize("backend", [FakeBackend(), OwnPrograms()])
def test_local_runner_knows_the_programs_and_the_budget_of_the_back_end(tmp_path, backend):
    class Session:
        run_id = "run"
        lease = None

        class incidents:  # noqa: N801 - an attribute
            note_job = None

    settings = config(tmp_path, budgets={"max_gpu_hours": 1.0})
    with build_loop(settings, "run", backend=backend) as loop:
        session = Session()
        session.store = loop.store
        runner = loop.controller._open_jobs(session, never)
        assert isinstance(runner, LocalJobRunner)
        own = tuple(getattr(backend, "programs", {}))
        assert set(runner.programs.names) == {"cadenza", *own}
        assert runner.budget.left_s("gpu") == 3600.0
        counts_cpu = runner.budget.left_s("cpu") == 3600.0
        assert counts_cpu == (backend.capabilities.get("device") != "cuda")


class Model:
    """A language model that always plans the same; as clients of a service do, it may fail."""

    provider = "fake"
    model = "planner"

    def __init__(self):
        self.questions = []

    def ask(self, question):
        self.questions.append(question)
        plan = {"action": "reuse_seed", "dataset": "local/crossing", "num_episodes": 3}
        return Answer(text=json.dumps(plan))


def test_model_is_asked_once_per_place_and_its_use_of_pages_is_told(tmp_path, monkeypatch):
    model = Model()
    monkeypatch.setattr("cadenza.loop.llm.recording.make_llm", lambda spec: model)
    stack = FakeStack([0.4, 0.9])

    def open_jobs(session, stop):
        return CallableRunner(session.store, session.lease, stack)

    settings = config(tmp_path, llm="openai:planner")
    with build_loop(settings, "run", backend=FakeBackend(), open_jobs=open_jobs) as loop:
        loop.run()
        asked = len(model.questions)
        assert loop.store.replies.get("run", 0, "propose", 0).text.startswith('{"action"')
        used = [e for e in loop.store.events.after("run", 0) if e.kind == "knowledge_used"]
        pages = [page["path"] for page in json.loads(used[1].payload)["pages"]]
    assert stack.flags(0, "data")["episodes"] == "3"
    assert [event.cycle for event in used] == [0, 1]
    assert any("policies/bc" in page for page in pages)
    with build_loop(settings, "run", backend=FakeBackend(), open_jobs=open_jobs) as loop:
        loop.run()
    assert len(model.questions) == asked


def test_model_that_reached_its_limit_is_asked_no_more_and_the_schedule_goes_on(
    tmp_path, monkeypatch
):
    model = Model()
    monkeypatch.setattr("cadenza.loop.llm.recording.make_llm", lambda spec: model)
    stack = FakeStack([0.4, 0.5, 0.6])

    def open_jobs(session, stop):
        return CallableRunner(session.store, session.lease, stack)

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
    with build_loop(settings, "run", backend=FakeBackend(), open_jobs=open_jobs) as loop:
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
    with build_loop(again, "run", backend=FakeBackend(), open_jobs=open_jobs) as loop:
        assert loop.run() == summary  # a run may go on with another limit


def test_prompts_with_their_instructions_keep_to_the_configured_length(tmp_path, monkeypatch):
    longest = {}
    for most in (8000, 20_000):
        model = Model()
        monkeypatch.setattr("cadenza.loop.llm.recording.make_llm", lambda spec, m=model: m)
        folder = tmp_path / str(most)
        pages = folder / "knowledge" / "policies"
        pages.mkdir(parents=True)
        pages.joinpath("bc.md").write_text("# Policy: bc\n\n## Lessons\n\n" + "- a lesson\n" * 3000)
        stack = FakeStack([0.4, 0.9])

        def open_jobs(session, stop, stack=stack):
            return CallableRunner(session.store, session.lease, stack)

        settings = config(folder, llm="openai:planner", llm_calls={"max_prompt_chars": most})
        with build_loop(settings, "run", backend=FakeBackend(), open_jobs=open_jobs) as loop:
            loop.run()
        longest[most] = max(len(q.prompt) + len(q.system or "") for q in model.questions)
        # proposals and lessons of both cycles: nothing was too long to be sent
        assert len(model.questions) == 6
    assert 6000 < longest[8000] <= 8000 < longest[20_000] <= 20_000


def test_ray_runner_is_taken_where_it_is_configured(tmp_path, monkeypatch):
    made = {}

    class Runner:
        def __init__(self, store, lease, jobs, programs, **options):
            made.update(options, jobs=jobs)
            self.hosts = SimpleNamespace(require_room=lambda device: made.update(device=device))

    monkeypatch.setattr("cadenza.loop.jobs.ray_runner.RayJobRunner", Runner)

    class Session:
        run_id = "run"
        lease = store = None
        incidents = None

    settings = config(tmp_path, jobs={"runner": "ray"})
    with build_loop(settings, "run", backend=FakeBackend()) as loop:
        session = Session()
        session.store = loop.store
        session.incidents = IncidentLog(tmp_path)
        assert isinstance(loop.controller._open_jobs(session, never), Runner)
    assert made["jobs"].runner == "ray"
    assert made["stop"] is never


def test_lerobot_is_the_back_end_of_its_configurations_and_of_workers_without_one(tmp_path):
    settings = config(
        tmp_path, backend="lerobot", policy_ladder=[{"name": "act"}], eval={"env_type": "pusht"}
    )
    assert make_backend(settings).name == "lerobot"
    bus = EventBus(tmp_path / "events.jsonl")
    rules = load_constitution(None)
    assert ImproveAgent(ImproveConfig(), EvalConfig(), rules, bus).backend.name == "lerobot"
    assert DataAgent(bus, task_filter="libero_spatial")._backend.name == "lerobot"


def test_broken_parts_are_told_and_the_store_is_closed(tmp_path, monkeypatch):
    rules = tmp_path / "rules.yaml"
    rules.write_text("no_such_rule: 1\n")
    with pytest.raises(ConstitutionError, match="unknown_rule"):
        build_loop(config(tmp_path, constitution=str(rules)), "run")
    for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigurationError, match="expected GEMINI_API_KEY or GOOGLE_API_KEY"):
        build_loop(config(tmp_path, llm="gemini:model"), "run")


def test_places_follow_the_configuration(tmp_path):
    weights = tmp_path / "weights"
    weights.mkdir()
    settings = config(
        tmp_path,
        seed_root=str(tmp_path / "seed"),
        policy_ladder=[{"name": "bc", "init": str(weights)}, {"name": "bc_large", "init": "hub/x"}],
    )
    assert read_roots(settings) == (weights, tmp_path / "seed")
    assert run_folder(settings, "r") == tmp_path / "runs" / "r"
    assert store_location(settings) == tmp_path / "runs" / "cadenza.db"
    elsewhere = config(tmp_path, store="postgresql+psycopg://host/db")
    assert store_location(elsewhere) == "postgresql+psycopg://host/db"
    assert Path(new_run_id(settings)).name.endswith("-crossing")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            # 16 * 2^12 in the last cycle
            {"data": {"initial_episodes": 17}, "budgets": {"max_cycles": 13}},
            r"max_collect_episodes: data.initial_episodes, data.growth, data.max_episodes \(69632 "
            r"episodes in cycle 12, with failures\): expected at most 65536, got 69632",
        ),
        ({"train": {"steps": 200_001}}, r"max_train_steps: train.steps: expected at most 200000"),
        (
            {"improve": {"enabled": True, "adapt_steps": 200_001}},
            r"max_train_steps: improve.adapt_steps: expected at most 200000, got 200001",
        ),
        (
            {"eval": {"n_episodes": 100, "max_episodes": 700, "extension_growth": 7.0}},
            r"max_eval_episodes: eval.n_episodes, .* after 100, 700 episodes\): .* got 600",
        ),
        (
            {"eval": {"env_type": "elsewhere", "n_episodes": 10}},
            r"allowed_env_types: eval.env_type: .* got 'elsewhere'",
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
        # five attempts per episode
        (
            {"data": {"initial_episodes": 30}},
            r"data.max_episodes \(60 episodes in .* at most 299, g",
        ),
        (
            {"improve": {"enabled": True, "episodes": 300}},
            r"improve.episodes: expected at most 299, got 300",
        ),
    ],
)
def test_attempts_beyond_the_limit_of_the_rules_are_foreseen(tmp_path, changes, words):
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "allowed_programs: [cadenza]\nallowed_env_types: [crossing]\nmax_train_steps: 9000\n"
        "max_eval_episodes: 500\nmax_collect_episodes: 299\n"
    )
    with pytest.raises(ConstitutionError, match=rf"max_collect_episodes: .*{words}"):
        build_loop(config(tmp_path, constitution=str(rules), **changes), "r")
    capped = {"data": {"initial_episodes": 30, "max_episodes": 59}}
    capped |= {"improve": {"enabled": True, "episodes": 299}}  # fewer attempts then
    build_loop(config(tmp_path, constitution=str(rules), **capped), "r").close()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"policy_ladder": [{"name": "act"}, {"name": "pi0", "init": "evil/weights"}]},
            r"policy_ladder\[1\], train, seed_dataset: .*'?evil/weights",
        ),
        (
            {"train": {"extra_args": ["--output_directory=/x"]}},
            r"policy_ladder\[0\], train, .*outpu",
        ),
        ({"eval": {"env_type": "pusht", "extra_args": ["--hub=1"]}}, "eval: .*hub"),
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


def test_numbers_at_the_limit_are_allowed(tmp_path):
    changes = {
        "train": {"steps": 200_000},
        "improve": {"enabled": False, "adapt_steps": 200_001},
        "eval": {"n_episodes": 100, "max_episodes": 600, "extension_growth": 6.0},
    }
    build_loop(config(tmp_path, **changes), "r").close()
