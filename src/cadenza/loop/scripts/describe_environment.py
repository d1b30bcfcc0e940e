"""Writes down what an environment shows to a policy, and whether its seeds choose what it shows.

    run.py describe --env-type=pusht --task=PushT-v0 [--env.obs_type=...] --result-json=FILE

Shapes are those after LeRobot's processing of the environment, images as (C, H, W). What a
configuration declares is not trusted: LeRobot 0.4.4 ignores the image size declared for PushT.
Result:  ``{observation, action, fps, tasks, seeds, evaluated_seeds}``; ``seeds`` has the facts of
    every task, ``evaluated_seeds`` the seeds of LeRobot's evaluation.
Modules of LeRobot are imported by name when they are needed: this file is also read where it is not
installed, and releases move their modules.
"""

import argparse
import dataclasses
import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from .files import start, write_result


def environment_config(env_type: str, task: str | None, words: Sequence[str]) -> Any:
    """Return LeRobot's configuration of an environment, read as its own tools read it.

    ``task`` None is the environment's own; ``words`` are further ones, ``--env.key=value``.
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
    # 0.6.1 adds the task inside its evaluation; its words change no shape.
    if hasattr(utils, "add_envs_task"):
        processed = utils.add_envs_task(environment, processed)
    else:
        processed = {**processed, "task": [""]}
    processed = preprocess(processed)
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


#: Seeds that an environment is reset from; the first one again at last.
SEEDS: Final = (1, 2, 3)
#: Largest difference of one state from itself: rounding, and two of 256 shades of a picture.
_ROUNDING: Final = 1e-6
_SHADES: Final = 2
#: First seed and episodes of the evaluation, and environments at once.
FIRST_SEED: Final = 100
EPISODES: Final = 5
_AT_ONCE: Final = 2


def seed_facts(environment: Any) -> dict[str, bool]:
    """Return whether a vector of one environment follows its seeds.

    ``repeats``: the same seed shows the same state; ``differs``: no other seed shows it.
    """
    first, *others = (_state(environment, seed) for seed in SEEDS)
    low, high = environment.action_space.low, environment.action_space.high
    environment.step(np.clip(np.zeros_like(low), low, high))
    return {
        "repeats": same(first, _state(environment, SEEDS[0])),
        "differs": not any(same(first, other) for other in others),
    }


def same(first: Mapping[str, NDArray[Any]], second: Mapping[str, NDArray[Any]]) -> bool:
    """Return whether two states are one, rounding aside."""
    if first.keys() != second.keys():
        return False
    return all(_alike(value, second[key]) for key, value in first.items())


def _alike(first: NDArray[Any], second: NDArray[Any]) -> bool:
    if first.shape != second.shape:
        return False
    if first.dtype.kind in "ui":
        return bool(np.all(np.abs(first.astype(np.int64) - second.astype(np.int64)) <= _SHADES))
    return bool(np.allclose(first, second, rtol=_ROUNDING, atol=_ROUNDING, equal_nan=True))


def _state(environment: Any, seed: int) -> dict[str, NDArray[Any]]:
    """Return copies of what is seen after a reset, by name."""
    observation, _ = environment.reset(seed=[seed])
    return {name: np.array(value) for name, value in _leaves("", observation)}


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, part in cast("Mapping[str, Any]", value).items():
            yield from _leaves(f"{name}/{key}", part)
    else:
        yield name, value


def evaluated_seeds() -> list[int] | None:
    """Return the seeds of the episodes of LeRobot's evaluation from `FIRST_SEED` on, in order.

    None for a release whose evaluation is not played in this way.
    """
    try:
        module = importlib.import_module("lerobot.scripts.lerobot_eval")
        evaluate, policy = module.eval_policy_all, _still_policy()
    except (ImportError, AttributeError):
        return None
    processors = ("env_preprocessor", "env_postprocessor", "preprocessor", "postprocessor")
    known = inspect.signature(evaluate).parameters
    needed = {name for name, one in known.items() if one.default is inspect.Parameter.empty}
    told = {"envs", "policy", "n_episodes", "start_seed", *processors}
    if "start_seed" not in known or not needed <= told:
        return None
    report = evaluate(
        envs={"seeds": {0: _echoes()}},
        policy=policy,
        **{name: _unchanged for name in processors if name in known},
        n_episodes=EPISODES,
        start_seed=FIRST_SEED,
    )
    rewards: Sequence[float] = report["per_task"][0]["metrics"]["max_rewards"]
    return [int(reward) for reward in rewards]


def _unchanged(value: Any) -> Any:
    return value


def _echoes() -> Any:
    """Return environments whose reward is their seed, and -1 after they restart without one."""
    gym = importlib.import_module("gymnasium")
    box = gym.spaces.Box(-1.0, 1.0, (1,))

    class Echo(gym.Env):
        observation_space = gym.spaces.Dict({"agent_pos": box})
        action_space = box
        task = task_description = "say the seed"
        _max_episode_steps = 4

        def reset(self, *, seed: int | None = None, **_options: Any) -> tuple[Any, Any]:
            self.reward = -1.0 if seed is None else float(seed)
            self.left = 9 if seed is None else 1 + seed % 3  # episodes of unequal length
            return self._seen(), {}

        def step(self, _action: Any) -> tuple[Any, float, bool, bool, Any]:
            self.left -= 1
            return self._seen(), self.reward, self.left == 0, False, {"is_success": False}

        def _seen(self) -> Any:
            return {"agent_pos": np.zeros(1, np.float32)}

    mode = gym.vector.AutoresetMode.SAME_STEP
    return gym.vector.SyncVectorEnv([Echo] * _AT_ONCE, autoreset_mode=mode)


def _still_policy() -> Any:
    """Return a policy that does nothing."""
    torch = importlib.import_module("torch")
    base = importlib.import_module("lerobot.policies.pretrained").PreTrainedPolicy

    class Still(base):
        config_class = object
        name = "still"

        def __init__(self) -> None:
            torch.nn.Module.__init__(self)

        def get_optim_params(self) -> dict[str, Any]:
            return {}

        def reset(self) -> None:
            pass

        def forward(self, _batch: Any) -> Any:
            return torch.zeros(_AT_ONCE, 1), None

        def predict_action_chunk(self, _batch: Any, **_options: Any) -> Any:
            return torch.zeros(_AT_ONCE, 1, 1)

        def select_action(self, _batch: Any, **_options: Any) -> Any:
            return torch.zeros(_AT_ONCE, 1)

    return Still()


if __name__ == "__main__":
    start("describe", main)
