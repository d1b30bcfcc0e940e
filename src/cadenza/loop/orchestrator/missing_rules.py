"""Rules that a configuration needs and its file of rules does not have, as lines to add.

A file of LeAgents has five rules and allows what it does not mention; here that is refused. All
lines are told with the first refusal, so that nobody finds them one by one.
"""

from pathlib import Path
from typing import Final

from cadenza.loop.config import LoopConfig
from cadenza.loop.constitution import Constitution, load_constitution
from cadenza.loop.constitution.jobs import LimitName
from cadenza.loop.constitution.lerobot_programs import LEROBOT_PROGRAMS
from cadenza.loop.constitution.native_programs import NATIVE_PROGRAMS
from cadenza.loop.constitution.rules import Rules
from cadenza.loop.orchestrator.proposal_bounds import collects

_PROGRAMS: Final = {"lerobot": LEROBOT_PROGRAMS, "native": NATIVE_PROGRAMS}


def lines_to_add(config: LoopConfig, rules: Constitution) -> list[str]:
    """Return the lines, in YAML, that a file without rules that ``config`` needs gets.

    Lists allow what the configuration names; limits are those of the shipped rules.
    """
    given = rules.rules
    lines: list[str] = []
    if given.allowed_programs is None:
        programs = dict.fromkeys(program.words[0] for program in _PROGRAMS[config.backend])
        lines.append(_listing("allowed_programs", programs))
    if given.allowed_env_types is None:
        lines.append(_listing("allowed_env_types", [config.eval.env_type]))
    shipped = load_constitution(None).rules
    limits: list[LimitName] = ["max_train_steps", "max_eval_episodes"]
    if collects(config) or config.improve.enabled:
        limits.append("max_collect_episodes")
    lines += [f"{name}: {shipped.limit(name)}" for name in limits if given.limit(name) is None]
    return lines + (_hub_lines(config, given) if config.backend == "lerobot" else [])


def _hub_lines(config: LoopConfig, given: Rules) -> list[str]:
    """Return the lines for weights and data that come from a hub."""
    lines: list[str] = []
    weights = [rung.init for rung in config.policy_ladder if rung.init]
    remote = [name for name in weights if not Path(name).exists()]
    if remote and not given.allowed_hub_policies:
        lines.append(_listing("allowed_hub_policies", dict.fromkeys(remote)))
    local = config.seed_root is not None or config.seed_dataset.startswith("local/")
    if not local and not given.allowed_hub_datasets:
        lines.append(_listing("allowed_hub_datasets", [config.seed_dataset]))
    return lines


def _listing(name: str, entries: "dict[str, None] | list[str]") -> str:
    return f"{name}: [{', '.join(entries)}]"
