"""A file of rules from LeAgents is refused once, with everything that it lacks."""

import re
from pathlib import Path

import pytest
import yaml

from cadenza.loop.backends.lerobot import LeRobotBackend
from cadenza.loop.config import LoopConfig
from cadenza.loop.constitution import Constitution, ConstitutionError
from cadenza.loop.orchestrator.foreseen import require_commands_allowed, require_foreseen_allowed

GUIDE = Path(__file__).parents[4] / "docs" / "how-to" / "coming-from-leagents.md"
#: The keys of LeAgents' own file.
THEIRS = {
    "forbidden_commands": ["lerobot-record"],
    "forbidden_args": ["--robot"],
    "max_train_steps": 200000,
    "allowed_env_types": ["libero"],
    "max_eval_episodes": 500,
}


def config(**changes):
    document = {"run_name": "r", "seed_dataset": "lerobot/libero", "backend": "lerobot", **changes}
    return LoopConfig.from_document(document, source="test")


def require(settings, rules):
    require_foreseen_allowed(settings, rules)
    require_commands_allowed(settings, rules, LeRobotBackend(settings))


@pytest.mark.parametrize("improve", [False, True])
def test_every_rule_that_is_missing_is_told_at_once_and_is_enough(improve):
    settings = config(improve={"enabled": improve, "adapt_steps": 5})
    with pytest.raises(ConstitutionError) as caught:
        require(settings, Constitution.from_rules(THEIRS))
    reason = str(caught.value)
    assert "change the configuration or the rules; what the configuration needs" in reason
    lines = re.findall("`(.*?)`", reason)
    added = yaml.safe_load("\n".join(lines))
    names = ["allowed_programs", "allowed_hub_policies", "allowed_hub_datasets"]
    assert list(added) == [*names[:1], *["max_collect_episodes"] * improve, *names[1:]]
    assert added["allowed_hub_policies"] == ["lerobot/smolvla_base", "lerobot/pi05_base"]
    require(settings, Constitution.from_rules({**THEIRS, **added}))


def test_rules_that_say_enough_get_no_advice(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    settings = LoopConfig.from_document(
        {
            "run_name": "r",
            "seed_dataset": "local/x",
            "data": {"initial_episodes": 9},
            "train": {"steps": 200_001},
            "policy_ladder": [{"name": "bc", "init": str(tmp_path)}],
        },
        source="test",
    )
    limits = {"max_train_steps": 200000, "max_eval_episodes": 500, "max_collect_episodes": 100}
    rules = {**limits, "allowed_programs": ["cadenza"], "allowed_env_types": ["crossing"]}
    with pytest.raises(ConstitutionError, match=r"200001; change the configuration or the rules$"):
        require_foreseen_allowed(settings, Constitution.from_rules(rules))


def test_lines_of_the_guide_make_a_file_of_leagents_do():
    [block] = re.findall(r"```yaml\n(allowed_programs.*?)```", GUIDE.read_text(), re.DOTALL)
    rules = Constitution.from_rules({**THEIRS, **yaml.safe_load(block)})
    require(config(improve={"enabled": True, "adapt_steps": 5}), rules)
