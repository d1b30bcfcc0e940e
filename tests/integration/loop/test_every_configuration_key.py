"""Each key of a configuration changes what the loop does; a new key needs an entry here.

Each entry changes one key and looks at the cheapest place where that must show: a command of a dry
run, a decision, a prompt, a file. Keys of decisions, looks and attempts have tests of their own.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest

from cadenza.core.errors import MissingExtraError
from cadenza.loop.backends.lerobot_probe import LeRobotEnvironment
from cadenza.loop.config import LoopConfig
from cadenza.loop.schedule import seed_range
from cadenza.loop.validation import dotted_keys
from tests.integration.loop import key_effects as see
from tests.integration.loop.key_effects import Lab, flag

NATIVE: dict[str, Any] = {
    "run_name": "a",
    "seed_dataset": "local/a",
    "data": {"initial_episodes": 4},
    "budgets": {"max_cycles": 1},
    "eval": {"n_episodes": 10, "max_episodes": 10},
}
TWO = {"budgets": {"max_cycles": 2}}
HARVEST = {"improve": {"enabled": True}}
ADAPT = {**TWO, "improve": {"enabled": True, "adapt_steps": 7}}
LEROBOT = {
    "backend": "lerobot",
    "seed_dataset": "lerobot/pusht",
    "policy_ladder": [{"name": "act"}],
    "eval": {"env_type": "pusht", "task_suite": "PushT-v0"},
    "improve": {"enabled": True, "device": "cpu"},
}
MODEL = {"llm": "openai:m", "knowledge": {"enabled": False}}
CURATED = {**MODEL, "curation": {"enabled": True}}
PRICES = {"usd_per_million_input": 1.0, "usd_per_million_output": 1.0}
PRICED = {**MODEL, "llm_calls": PRICES}
GATED = {"approval": {"gates": ["promote"], "timeout_s": 1e-9}}
SEEDS = [str(seed_range(seed, "data", 0, count=20).start) for seed in (0, 1)]


@dataclass(frozen=True)
class Case:
    """What a key changes.

    Attributes:
        key: The key.
        change: Its other value.
        look: Where the effect shows.
        before: What shows with the default, or the value in ``base``.
        after: What shows with the other value.
        base: Settings of both.
    """

    key: str
    change: Any
    look: see.Look
    before: Any
    after: Any
    base: dict[str, Any] = field(default_factory=dict)


CASES = [
    Case("run_name", "b", see.name_in_run_id, "a", "b"),
    Case("seed_dataset", "local/b", flag("data", "repo-id"), "local/a", "local/b"),
    Case("seed_root", "FOLDER/x", flag("train", "dataset.root"), None, "FOLDER/x", LEROBOT),
    Case(
        "backend", "lerobot", flag("train", ""), "cadenza", "lerobot-train",
        {"backend": "native", "seed_dataset": "lerobot/pusht"},
    ),
    Case("seed", 1, flag("data", "seed-start"), *SEEDS),
    Case("workdir", "FOLDER/b", see.folder_of_run, "FOLDER/runs/run", "FOLDER/b/run"),
    Case("store", "sqlite:///FOLDER/b.db", see.store_files, [], ["FOLDER/b.db"]),
    Case("llm", "openai:m", see.questions, 0, 2, {"knowledge": {"enabled": False}}),
    Case("constitution", "FOLDER/rules.yaml", see.refusal, None, "max_train_steps"),
    Case("policy_ladder[].name", "bc_large", flag("train", "rung"), "bc", "bc_large"),
    Case(
        "policy_ladder[].init", "lerobot/smolvla_base", flag("train", "policy.path"),
        None, "lerobot/smolvla_base", LEROBOT,
    ),
    Case(
        "reference", "FOLDER/rules.yaml", flag("eval_baseline_0", "policy"),
        None, "FOLDER/rules.yaml",
    ),
    Case("llm_calls.timeout_s", 7.5, see.question(lambda q: q.timeout_s), 120.0, 7.5, MODEL),
    Case("llm_calls.retries", 1, see.questions_to_a_failing_model, 3, 2, MODEL),
    Case("llm_calls.max_prompt_chars", 8000, see.prompt_fits_8000, False, True, MODEL),
    Case(
        "llm_calls.max_reply_tokens", 99, see.tokens_asked_for, {4096}, {99}, {"llm": "openai:m"}
    ),
    Case("llm_calls.usd_per_million_input", 3.0, see.cost, 2.0, 4.0, PRICED),
    Case("llm_calls.usd_per_million_output", 0.0, see.cost, 2.0, 1.0, PRICED),
    Case("llm_calls.max_cost_usd", 1e-9, see.questions, 2, 0, PRICED),
    Case("knowledge.enabled", False, see.pages, ["pages"], []),
    Case("knowledge.root", "FOLDER/b", see.pages, ["pages"], ["b"]),
    Case("data.initial_episodes", 5, flag("data", "episodes"), "4", "5"),
    Case("data.growth", 3.0, flag("data", "episodes", cycle=1), "8", "12", TWO),
    Case("data.max_episodes", 6, flag("data", "episodes", cycle=1), "8", "6", TWO),
    Case("data.task_filter", "leaving_way", flag("data", "partners"), "default", "leaving_way"),
    Case(
        "data.instructions", "FOLDER/i.json", flag("data", "instructions"), None, "FOLDER/i.json",
        {**LEROBOT, "data": {"task_filter": "mine"}},
    ),
    Case("budgets.max_cycles", 2, see.stage_runs("train"), 1, 2),
    Case(
        "budgets.max_gpu_hours", 0.4, see.why_it_ends, "budget: max_cycles",
        "budget: max_gpu_hours", TWO,
    ),
    Case(
        "budgets.max_wall_hours", 0.4, see.why_it_ends, "budget: max_cycles",
        "budget: max_wall_hours", TWO,
    ),
    Case("thresholds.min_promote", 0.9, see.decisions(0.5), "promote", "provisional"),
    Case("train.steps", 3000, flag("train", "steps"), "2000", "3000"),
    Case("train.batch_size", 32, flag("train", "batch-size"), "256", "32"),
    Case(
        "train.continue_from_blessed", False, flag("train", "init", cycle=1),
        "FOLDER/runs/run/cycle_0/train/policy", None, TWO,
    ),
    Case("train.max_epochs", 3.0, flag("train", "max-epochs"), None, "3.0"),
    Case("train.extra_args", ["--log_freq=7"], flag("train", "log_freq"), None, "7", LEROBOT),
    Case(
        "eval.env_type", "mpe_cooperative_push", flag("eval_candidate_0", "task"),
        "crossing", "mpe_cooperative_push",
    ),
    Case(
        "eval.task_suite", "leaving_way", flag("eval_candidate_0", "partners"),
        "default", "leaving_way",
    ),
    Case(
        "eval.n_episodes", 12, flag("eval_candidate_0", "episodes"), "10", "12",
        {"eval": {"max_episodes": 12}},
    ),
    Case(
        "eval.episodes_per_job", 7, flag("eval_candidate_0", "episodes"), "10", "7",
        {"eval": {"max_episodes": 14}},
    ),
    Case("eval.batch_size", 3, flag("eval_candidate_0", "batch-size"), "10", "3"),
    Case(
        "eval.extra_args", ["--filter=on"], flag("eval_candidate_0", "filter"), None, "on"
    ),
    Case("eval.env_args", ["--filter=on"], flag("harvest", "filter"), None, "on", HARVEST),
    Case("improve.enabled", True, see.stage_runs("harvest"), 0, 1),
    Case("improve.starts", "failed", flag("harvest", "starts"), None, "failed", HARVEST),
    Case("improve.episodes", 7, flag("harvest", "episodes"), "20", "7", HARVEST),
    Case("improve.adapt_steps", 9, flag("adapt", "steps", cycle=1), "7", "9", ADAPT),
    Case("improve.mix_ratio", 0.25, flag("adapt", "mix-ratio", cycle=1), "0.5", "0.25", ADAPT),
    Case("improve.device", "cuda", flag("harvest", "device"), "cpu", "cuda", LEROBOT),
    Case("improve.task_text", "push", flag("harvest", "task-text"), None, "push", LEROBOT),
    Case("improve.extra_args", ["--filter=on"], flag("harvest", "filter"), None, "on", HARVEST),
    Case("curation.enabled", True, see.question(see.plans_asked_for), None, 3, MODEL),
    Case("curation.candidates", 5, see.question(see.plans_asked_for), 3, 5, CURATED),
    Case("curation.max_tokens", 99, see.question(lambda q: q.max_tokens), 8192, 99, CURATED),
    Case("approval.on_timeout", "approve", see.decisions(0.5), "iterate", "promote", GATED),
]  # fmt: skip

#: Keys whose effect tests of their own show: of decisions, plans, runners, attempts, gates, news
#: and retention.
ELSEWHERE = {
    *(f"thresholds.{name}" for name in ("promote_delta", "regression_delta", "plateau_epsilon")),
    *(f"thresholds.{name}" for name in ("plateau_cycles", "escalate_floor", "alpha")),
    *("thresholds.warm_up_cycles", "eval.max_episodes", "eval.metric"),
    *("eval.extension_growth", "eval.score_range"),
    *(f"jobs.{name}" for name in ("runner", "ray_address", "max_attempts", "max_interruptions")),
    *(f"jobs.{name}" for name in ("max_kills", "backoff_s", "time_limit_s", "silent_limit_s")),
    *("jobs.grace_s", "jobs.environment", "approval.gates", "approval.timeout_s"),
    *(f"jobs.slurm.{name}" for name in ("partition", "account", "gpus", "cpus", "memory")),
    *("jobs.slurm.time", "jobs.slurm.options"),
    *(f"notify.{name}" for name in ("command", "webhook", "events", "timeout_s")),
    *(f"retention.{name}" for name in ("older_than", "keep_cycles", "max_size")),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("keys")


@pytest.fixture(scope="module")
def known():
    return {}


@pytest.fixture
def lab(folder, known, sqlite_template, monkeypatch):
    place = folder / str(len(list(folder.iterdir())))
    with pytest.MonkeyPatch.context() as lasting:
        lasting.setattr(LeRobotEnvironment, "find", _nowhere)
        yield Lab(place, sqlite_template, monkeypatch, known)


def _nowhere(*_):
    raise MissingExtraError("no LeRobot here")


def joined(*documents):
    """Return the documents as one, sections key by key."""
    result: dict[str, Any] = {}
    for document in documents:
        for key, value in document.items():
            both = isinstance(value, dict) and isinstance(result.get(key), dict)
            result[key] = {**result[key], **value} if both else value
    return result


def changed(key, value):
    """Return a document that says ``value`` at a dotted key; for a list, in its only section."""
    section, _, name = key.rpartition(".")
    if section.endswith("[]"):
        only = {"name": "smolvla"} if name == "init" else {}
        return {section.removesuffix("[]"): [{**only, name: value}]}
    return {section: {name: value}} if section else {name: value}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.key)
def test_key_changes_what_the_loop_does(case, lab):
    base = joined(NATIVE, case.base)
    other = joined(base, changed(case.key, case.change))
    assert base != other
    assert case.look(lab, lab.config(base)) == case.before
    assert case.look(lab, lab.config(other)) == case.after
    assert case.before != case.after


def test_every_key_has_an_entry():
    assert sorted([*ELSEWHERE, *(case.key for case in CASES)]) == sorted(dotted_keys(LoopConfig))
