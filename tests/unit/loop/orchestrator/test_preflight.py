"""What a run would ask of the rules in any of its cycles is asked before it begins."""

import json
import re

import pytest
import yaml

from cadenza.loop.backends.base import make_backend
from cadenza.loop.backends.lerobot import LeRobotBackend
from cadenza.loop.backends.native import NativeBackend
from cadenza.loop.config import LoopConfig
from cadenza.loop.constitution import Constitution, ConstitutionError, load_constitution
from cadenza.loop.orchestrator.preflight import refusals, require_commands_allowed

SHIPPED = load_constitution(None)
RULES = {
    "allowed_programs": ["cadenza"],
    "allowed_env_types": ["crossing"],
    "max_train_steps": 9000,
    "max_eval_episodes": 500,
    "max_collect_episodes": 1000,
}


def config(**changes):
    document = {
        "run_name": "r",
        "seed_dataset": "local/x",
        "data": {"initial_episodes": 60},
        "budgets": {"max_cycles": 3},
        **changes,
    }
    return LoopConfig.from_document(document, source="test")


def require(settings, rules):
    require_commands_allowed(settings, rules, LeRobotBackend(settings))


def lerobot(**changes):
    document = {
        "backend": "lerobot",
        "seed_dataset": "lerobot/libero",
        "data": {},
        "policy_ladder": [{"name": "act"}],
        **changes,
    }
    return config(**document)


@pytest.mark.parametrize(
    ("changes", "rule", "words"),
    [
        ({"max_eval_episodes": 400}, "max_eval_episodes", r"at most 400, got 401"),
        ({"max_collect_episodes": 400}, "max_collect_episodes", r"at most 400, got 401"),
    ],
)
def test_harvest_counts_as_playing_and_as_collecting(changes, rule, words):
    settings = config(
        data={"initial_episodes": 20},
        improve={"enabled": True, "episodes": 401},
        eval={"n_episodes": 50, "max_episodes": 50},
    )
    stack = NativeBackend(settings)
    require_commands_allowed(settings, Constitution(RULES), stack)
    with pytest.raises(ConstitutionError, match=rf"improve.episodes: expected {words}") as caught:
        require_commands_allowed(settings, Constitution({**RULES, **changes}), stack)
    assert caught.value.verdict.rule == rule


def test_suite_that_nobody_knows_is_refused_unless_its_instructions_are_given(
    tmp_path, monkeypatch
):
    monkeypatch.delenv("CADENZA_LEROBOT_PYTHON", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # no LeRobot to ask
    measured = {"env_type": "libero", "task_suite": "mine", "n_episodes": 5, "max_episodes": 5}
    with pytest.raises(ConstitutionError, match=r"unknown_suite: eval.task_suite: .* got 'mine'"):
        require(lerobot(eval=measured), SHIPPED)
    path = tmp_path / "suites.json"
    path.write_text(json.dumps({"mine": ["open it"] * 100}))
    data = {"instructions": str(path)}
    settings = lerobot(eval=measured, data=data)
    require(settings, load_constitution(None, path))
    refusals(settings, tmp_path / "cadenza.db", tmp_path)["back end"]()
    path.write_text(json.dumps({"mine": ["open it"] * 101}))
    with pytest.raises(ConstitutionError, match=r"of 101 tasks\): expected at most 500, got 505"):
        require(settings, load_constitution(None, path))


@pytest.mark.parametrize(("total", "fits"), [(None, False), (16_000, True), (20_000, False)])
def test_schedule_that_a_command_has_no_room_to_name_is_refused(total, fits, tmp_path):
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "info.json").write_text(json.dumps({"total_episodes": total}))
    settings = lerobot(
        data={"initial_episodes": 4001},
        seed_root=str(tmp_path),
        eval={"env_type": "pusht", "task_suite": "PushT-v0", "n_episodes": 9, "max_episodes": 9},
    )
    if fits:
        require(settings, SHIPPED)
        return
    with pytest.raises(ConstitutionError, match=r"too_long: .*16004 episodes in cycle 2.*or all"):
        require(settings, SHIPPED)


def test_adaptation_and_merge_are_asked_for():
    settings = config(improve={"enabled": True, "adapt_steps": 5, "episodes": 9})
    asked = []

    class Rules(Constitution):
        def clear(self, job, roots):
            asked.append((job.WORDS[2], "mix" in job.values()))
            return super().clear(job, roots)

    require_commands_allowed(settings, Rules(SHIPPED.rules), NativeBackend(settings))
    assert asked == [
        *[("collect", False), ("train", False), ("train", False), ("evaluate", False)],
        *[("harvest", False), ("train", True), ("merge", False)],
    ]


@pytest.mark.parametrize(
    ("back_end", "changes", "rule", "flag"),
    [
        ("lerobot", {"train": {"extra_args": ["--steps=9"]}}, "repeated_flag", "steps"),
        ("lerobot", {"train": {"extra_args": ["--output-dir=/x"]}}, "repeated_flag", "output_dir"),
        ("lerobot", {"train": {"extra_args": ["--resume=true"]}}, "unknown_flag", "resume"),
        (
            "lerobot",
            {"train": {"extra_args": ["--policy.push_to_hub=true"]}},
            "repeated_flag",
            "policy.push_to_hub",
        ),
        (
            "lerobot",
            {"train": {"extra_args": ["--log_freq=1", "--log_freq=2"]}},
            "repeated_flag",
            "log_freq once",
        ),
        ("lerobot", {"eval": {"extra_args": ["--seed=1000"]}}, "repeated_flag", "seed"),
        (
            "lerobot",
            {"eval": {"extra_args": ["--eval.n_episodes=1"]}},
            "repeated_flag",
            "eval.n_episodes",
        ),
        (
            "lerobot",
            {"improve": {"enabled": True, "extra_args": ["--max-attempts=9"]}},
            "repeated_flag",
            "max-attempts",
        ),
        ("lerobot", {"eval": {"env_args": ["--env.task=x"]}}, "repeated_flag", "env.task"),
        ("native", {"eval": {"extra_args": ["--partners=a"]}}, "repeated_flag", "partners"),
        (
            "native",
            {"improve": {"enabled": True, "extra_args": ["--seed-count=3"]}},
            "repeated_flag",
            "seed-count",
        ),
        *(
            (
                "native",
                {key: words | ({"enabled": True} if key == "improve" else {})},
                "unknown_flag",
                "device",
            )
            for key in ("train", "eval", "improve")
            for words in [{"extra_args": ["--device=cpu"]}]
        ),
    ],
)
def test_argument_that_the_loop_sets_or_no_job_has_is_refused(
    back_end, changes, rule, flag, tmp_path, monkeypatch
):
    monkeypatch.delenv("CADENZA_LEROBOT_PYTHON", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # no LeRobot to ask
    settings = lerobot(**changes) if back_end == "lerobot" else config(**changes)
    key = next(iter(changes))
    with pytest.raises(ConstitutionError, match=rf"rule {rule}: .*{key}.*: expected .*--{flag}"):
        require_commands_allowed(settings, SHIPPED, make_backend(settings))


#: The keys of LeAgents' own file.
THEIRS = {
    "forbidden_commands": ["lerobot-record"],
    "forbidden_args": ["--robot"],
    "max_train_steps": 200000,
    "allowed_env_types": ["libero"],
    "max_eval_episodes": 500,
}


def leagents(**changes):
    document = {"run_name": "r", "seed_dataset": "lerobot/libero", "backend": "lerobot", **changes}
    return LoopConfig.from_document(document, source="test")


@pytest.mark.parametrize("improve", [False, True])
def test_every_rule_that_is_missing_is_told_at_once_and_is_enough(improve):
    settings = leagents(improve={"enabled": improve, "adapt_steps": 5})
    with pytest.raises(ConstitutionError) as caught:
        require(settings, Constitution(THEIRS))
    reason = str(caught.value)
    assert "change the configuration or the rules; what the configuration needs" in reason
    lines = re.findall("`(.*?)`", reason)
    added = yaml.safe_load("\n".join(lines))
    names = ["allowed_programs", "allowed_hub_policies", "allowed_hub_datasets"]
    assert list(added) == [*names[:1], *["max_collect_episodes"] * improve, *names[1:]]
    assert added["allowed_hub_policies"] == ["lerobot/smolvla_base", "lerobot/pi05_base"]
    require(settings, Constitution({**THEIRS, **added}))
