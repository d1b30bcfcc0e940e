"""Writes down what an environment shows to a policy, and whether its seeds choose what it shows.

    run.py describe --env-type=pusht --task=PushT-v0 [--env.obs_type=...] --result-json=FILE

Shapes are those after LeRobot's processing of the environment, images as (C, H, W). What a
configuration declares is not trusted: LeRobot 0.4.4 ignores the image size declared for PushT.
Result:  ``{observation, action, fps, tasks, seeds, evaluated_seeds}``; ``seeds`` has the facts of
    every task, ``evaluated_seeds`` the seeds of LeRobot's evaluation (see `seed_checks`).
"""

import argparse
import importlib
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .files import write_result
from .playing import close_environments, environment_config, make_environments
from .seed_checks import evaluated_seeds, seed_facts
from .starting import start


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
