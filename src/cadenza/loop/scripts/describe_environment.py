"""Writes down what an environment shows to a policy, and whether its seeds choose what it shows.

    run.py describe --env-type=pusht --task=PushT-v0 [--env.obs_type=...] --result-json=FILE

Shapes are those after LeRobot's processing of the environment, images as (C, H, W). What a
configuration declares is not trusted: LeRobot 0.4.4 ignores the image size declared for PushT.
Result:  ``{observation, action, fps, tasks, seeds, evaluated_seeds}``; ``seeds`` has the facts of
    every task, ``evaluated_seeds`` the seeds of LeRobot's evaluation (see `seed_checks`).
Modules of LeRobot are imported by name when they are needed: this file is also read where it is not
installed, and releases move their modules.
"""

import argparse
import dataclasses
import importlib
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .files import start, write_result
from .seed_checks import evaluated_seeds, seed_facts


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


def main(words: Sequence[str]) -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(prog="describe", allow_abbrev=False)
    parser.add_argument("--env-type", required=True)
    parser.add_argument("--task")
    parser.add_argument("--result-json", type=Path, required=True)
    given, rest = parser.parse_known_args(words)
    config = environment_config(given.env_type, given.task, rest)
    environments = make_environments(config)
    observation, action = _seen(config, environments[0][1])
    seeds = {name: seed_facts(one) for name, one in environments}
    close_environments(environments)
    write_result(
        given.result_json,
        {
            "observation": observation,
            "action": action,
            "fps": int(config.fps),
            "tasks": [name for name, _ in environments],
            "seeds": seeds,
            "evaluated_seeds": evaluated_seeds(),
        },
    )
    return 0


def _seen(config: Any, environment: Any) -> tuple[dict[str, list[int]], list[int]]:
    """Return the shapes of an observation as a policy gets it, and of an action."""
    utils = importlib.import_module("lerobot.envs.utils")
    observation, _ = environment.reset(seed=[0])
    processed = utils.preprocess_observation(observation)
    preprocess, _ = processors(config, policy_config=None)
    processed = preprocess(utils.add_envs_task(environment, processed))
    shapes = {
        key: list(value.shape[1:]) for key, value in processed.items() if hasattr(value, "shape")
    }
    return shapes, list(environment.single_action_space.shape)


def processors(config: Any, *, policy_config: Any) -> tuple[Any, Any]:
    """Return LeRobot's processors of an environment, whatever its release wants to know for it."""
    make = importlib.import_module("lerobot.envs.factory").make_env_pre_post_processors
    known = inspect.signature(make).parameters
    extra = {"policy_cfg": policy_config} if "policy_cfg" in known else {}
    return make(env_cfg=config, **extra)


if __name__ == "__main__":
    start("describe", main)
