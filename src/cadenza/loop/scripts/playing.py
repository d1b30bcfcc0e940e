"""What collecting and describing share: LeRobot's environments made from words.

Modules are imported by name when they are needed: this file is also read where LeRobot is not
installed, and releases move their modules.
"""

import dataclasses
import importlib
from collections.abc import Sequence
from typing import Any


def environment_config(env_type: str, task: str | None, words: Sequence[str]) -> Any:
    """Return LeRobot's configuration of an environment, read as its own tools read it.

    Args:
        env_type: Environment, e.g. ``"pusht"``.
        task: Task or suite; None for the environment's own.
        words: Further words ``--env.key=value``.
    """
    base = importlib.import_module("lerobot.envs.configs").EnvConfig
    holder = dataclasses.make_dataclass("Holder", [("env", base)])
    named = [f"--env.type={env_type}", *([] if task is None else [f"--env.task={task}"])]
    return importlib.import_module("draccus").parse(holder, args=[*named, *words]).env


def make_environments(config: Any) -> list[tuple[str, Any]]:
    """Return the tasks of an environment, each alone in a vector of one, by name.

    A task is called ``<suite>_<number>``, like the folder of its evaluation videos.
    """
    factory = importlib.import_module("lerobot.envs.factory")
    suites = factory.make_env(config, n_envs=1, use_async_envs=False)
    return [
        (f"{suite}_{number}", environment)
        for suite, tasks in suites.items()
        for number, environment in tasks.items()
    ]


def close_environments(environments: Sequence[tuple[str, Any]]) -> None:
    """Close what `make_environments` made."""
    for _, environment in environments:
        environment.close()
