"""A file of rules from LeAgents is refused once, with everything that it lacks."""

import re

import pytest
import yaml

from cadenza.loop.backends.lerobot import LeRobotBackend
from cadenza.loop.config import LoopConfig
from cadenza.loop.constitution import Constitution, ConstitutionError
from cadenza.loop.orchestrator.preflight import require_commands_allowed, require_foreseen_allowed

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
