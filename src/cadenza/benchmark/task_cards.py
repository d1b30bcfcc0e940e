"""Task cards: what a task is, in Markdown, from its description and its environment.

`cadenza tasks show` prints them; docs/reference/task-cards.md holds what it prints.
"""

from typing import Any, Final

from cadenza.benchmark.tasks import EnvRequest, TaskOption, TaskSpec
from cadenza.core.errors import MissingExtraError
from cadenza.envs.inputs import ChamberEnvCompatibilityError

#: What the numbers of `TaskSpec.tier` stand for.
TIERS: Final = ("diagnostic", "planar robots", "arms", "experimental")


def task_card(task: TaskSpec) -> str:
    """Return a task's card; sizes and times are left out where its extra is not installed."""
    usual = f"`{task.seen_partner}`"
    facts = {
        "Tier": f"{task.tier}, {TIERS[task.tier]}",
        "Robots": "2" if task.max_robots == 2 else f"2 to {task.max_robots}",
        "Episode": f"{task.episode_length} steps",
        **_of_the_environment(task),
        "Score": "success" if task.has_success else "return",
        "Partners": ", ".join(f"`{name}`" for name in task.partners)
        + f"; the usual one is {usual}",
        "Conditions": ", ".join(f"`{name}`" for name in task.conditions),
        "Also": ", ".join(
            words
            for supported, words in (
                (task.supports_safety, "safety filter"),
                (task.supports_batches, "batches"),
                (task.supports_links, "degraded links"),
            )
            if supported
        ),
        "Extra": f"`pip install 'cadenza[{task.extra}]'`" if task.extra else "",
    }
    rows = [("Task", f"`{task.task_id}`, version {task.version}"), *facts.items()]
    parts = [f"## {task.task_id}", f"**{task.title}** {task.summary}", _table(("", ""), rows)]
    if task.options:
        options = [(f"`{name}`", *_option(option)) for name, option in task.options.items()]
        parts.append(_table(("Option", "Default", "Allowed", "What it is"), options))
    return "\n\n".join(parts)


def _of_the_environment(task: TaskSpec) -> dict[str, str]:
    """Return the rows that only the environment knows."""
    request = EnvRequest(
        episode_length=task.episode_length,
        options=task.complete_options({}),
        condition_id=next(iter(task.conditions), None),
    )
    try:
        env = task.make_env(request)
    except (MissingExtraError, ChamberEnvCompatibilityError):
        return {}
    states, actions = env.observation_space["agent"], env.action_space
    ego, partner = env.ego_uid, env.partner_uid
    rows = {
        "Step": f"{env.control_timestep:g} s",
        "State": _sizes(states[ego]["state"], states[partner]["state"]),
        "Action": _sizes(actions[ego], actions[partner]),
    }
    env.close()
    return rows


def _sizes(ego: Any, partner: Any) -> str:
    """Return what two spaces hold, in words."""
    own, other = (
        f"{space.shape[0]} numbers"
        if (count := getattr(space, "n", None)) is None
        else f"one of {count} choices"
        for space in (ego, partner)
    )
    return own if own == other else f"{own}, the partner's {other}"


def _option(option: TaskOption) -> tuple[str, str, str]:
    return f"`{option.default}`", option.expected(), option.summary


def _table(head: tuple[str, ...], rows: list[Any]) -> str:
    """Return a Markdown table of the rows whose last cell says something."""
    lines = [head, ("---",) * len(head), *(row for row in rows if row[-1])]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
