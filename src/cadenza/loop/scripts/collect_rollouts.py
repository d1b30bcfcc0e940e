"""Plays a policy and keeps its successful episodes as a dataset of LeRobot.

    run.py collect --policy-path=DIR --env-type=pusht --task=PushT-v0 --out=DIR --repo-id=ID
        --seed=N [--env.obs_type=...] --result-json=FILE

Attempt k (from 0) starts from seed N + k, in task k of the tasks in turn; tasks in focus have two
turns. It succeeds if any of its steps does; what follows the first end is left out.
Stored:  observations after the environment's own processing, done exactly once, images as video;
         actions as the environment got them.
Result:  ``{kept, successes, attempts, success_rate, repo_id, root, fps, frames, episodes}``, with
         task, seed and success of every attempt; root is null where nothing was kept.
Axes:    a batch of one; images (1, C, H, W) in [0, 1] become (H, W, C) bytes, everything else
         float32 without the batch.
"""

import argparse
import importlib
import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .describe_environment import (
    close_environments,
    environment_config,
    make_environments,
    processors,
)
from .files import ScriptError, partial_of, publish, start, write_result

#: Begin of the names of images.
_IMAGE = "observation.image"
ACTION = "action"


def tensors_of(observation: Mapping[str, Any]) -> dict[str, NDArray[np.generic]]:
    """Return copies of the observation's tensors, as stored; texts and nested parts are left out.

    Later steps of LeRobot change observations in place, so that views would not do.
    """
    return {
        key: _stored(key, value.detach().cpu().numpy())
        for key, value in observation.items()
        if key.startswith("observation.") and hasattr(value, "detach")
    }


def _stored(key: str, batch: NDArray[Any]) -> NDArray[Any]:
    value = batch[0]
    if key.startswith(_IMAGE):
        pixels = np.rint(np.clip(value, 0.0, 1.0) * 255.0).astype(np.uint8)
        return np.ascontiguousarray(np.moveaxis(pixels, 0, -1))
    return np.array(value, dtype=np.float32)


def features_of(
    observation: Mapping[str, NDArray[Any]], action_shape: tuple[int, ...]
) -> dict[str, dict[str, Any]]:
    """Return the features of a dataset with such observations and actions."""
    features: dict[str, dict[str, Any]] = {}
    for key, value in observation.items():
        image = key.startswith(_IMAGE)
        features[key] = {
            "dtype": "video" if image else "float32",
            "shape": value.shape,
            "names": ["height", "width", "channels"] if image else None,
        }
    features[ACTION] = {"dtype": "float32", "shape": tuple(action_shape), "names": None}
    return features


def episode_frames(
    observations: Sequence[Mapping[str, NDArray[Any]]], actions: NDArray[Any]
) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield the frames of an episode: what was seen, and what was done then."""
    for observation, action in zip(observations, actions, strict=True):
        yield {**observation, ACTION: np.asarray(action, dtype=np.float32)}


_logger = logging.getLogger(__name__)


def main(words: Sequence[str]) -> int:
    """Return the exit code: 2 for words that make no sense."""
    parser = _parser()
    given, rest = parser.parse_known_args(words)
    strangers = [word for word in rest if not word.startswith("--env.")]
    if strangers:
        parser.error(f"expected known flags, got {strangers}")
    if not Path(given.policy_path).is_dir():
        parser.error(f"--policy-path: expected a folder, got {given.policy_path}")
    config = environment_config(given.env_type, given.task, rest)
    try:
        result = _collect(given, config)
    except ScriptError as error:
        sys.stderr.write(f"collect: {error}\n")
        return 2
    line = {key: value for key, value in result.items() if key != "episodes"}
    sys.stdout.write(json.dumps(line) + "\n")
    if given.result_json is not None:
        write_result(given.result_json, result)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="collect", allow_abbrev=False)
    parser.add_argument("--policy-path", required=True)
    parser.add_argument("--env-type", required=True)
    parser.add_argument("--task", required=True)
    parser.add_argument("--episodes", type=int, default=20, help="episodes to keep")
    parser.add_argument("--max-attempts", type=int, help="5 times --episodes if left out")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repo-id", required=True)
    parser.add_argument("--device", default="cuda", help="'auto' takes the training's")
    parser.add_argument("--seed", type=int, required=True, help="seed of the first attempt")
    parser.add_argument("--fps", type=int, help="the environment's if left out")
    parser.add_argument("--task-text", help="instruction; the environment's if left out")
    parser.add_argument("--focus", default="", help="tasks with two turns, comma-separated")
    parser.add_argument("--rename-map", type=json.loads, default={}, help="JSON object")
    parser.add_argument("--keep-failures", action="store_true")
    parser.add_argument("--result-json", type=Path)
    return parser


def turns(tasks: Sequence[str], focus: Sequence[str]) -> list[int]:
    """Return the numbers of the tasks in turn; a `ScriptError` for a focus on another one."""
    strangers = sorted(set(focus) - set(tasks))
    if strangers:
        raise ScriptError(f"--focus: expected some of {', '.join(tasks)}, got {strangers}")
    return [*range(len(tasks)), *(tasks.index(name) for name in focus)]


def instruction(env_type: str, name: str, environment: Any) -> str:
    """Return the instruction for policies: the environment's words, else ``<env>:<suite>/<id>``."""
    if hasattr(environment.envs[0], "task_description"):
        return str(environment.call("task_description")[0])
    suite, _, number = name.rpartition("_")
    return f"{env_type}:{suite}/{number}"


def _collect(given: argparse.Namespace, config: Any) -> dict[str, Any]:
    player = _Player(given, config)
    most = 5 * given.episodes if given.max_attempts is None else given.max_attempts
    fps = int(config.fps if given.fps is None else given.fps)
    partial = partial_of(given.out)
    writer = _Writer(given.repo_id, partial, fps)
    focus = [name for name in given.focus.split(",") if name]
    order = turns([name for name, _ in player.environments], focus)
    episodes: list[dict[str, Any]] = []
    kept = frames = 0
    while kept < given.episodes and len(episodes) < most:
        seed = given.seed + len(episodes)
        name, environment = player.environments[order[len(episodes) % len(order)]]
        observations, actions, success = player.play(environment, seed)
        keep = success or given.keep_failures
        if keep:
            text = given.task_text or instruction(given.env_type, name, environment)
            writer.add(observations, actions, text)
            kept, frames = kept + 1, frames + len(actions)
        episodes.append({"task": name, "seed": seed, "success": success, "kept": keep})
        _logger.info("attempt %d: seed %d, success %s", len(episodes), seed, success)
    player.close()
    writer.finish()
    if kept:
        publish(partial, given.out)
    successes = sum(one["success"] for one in episodes)
    return {
        "kept": kept,
        "successes": successes,
        "attempts": len(episodes),
        "success_rate": successes / len(episodes) if episodes else 0.0,
        "repo_id": given.repo_id,
        "root": str(given.out) if kept else None,
        "fps": fps,
        "frames": frames,
        "episodes": episodes,
    }


class _Player:
    """A policy with the tasks that it plays."""

    def __init__(self, given: argparse.Namespace, config: Any) -> None:
        self.environments = make_environments(config)
        policies = importlib.import_module("lerobot.configs.policies")
        factory = importlib.import_module("lerobot.policies.factory")
        path = str(given.policy_path)
        device = [] if given.device == "auto" else [f"--device={given.device}"]
        policy_config = policies.PreTrainedConfig.from_pretrained(path, cli_overrides=device)
        policy_config.pretrained_path = Path(path)
        self.policy = factory.make_policy(
            cfg=policy_config, env_cfg=config, rename_map=given.rename_map
        )
        self.policy.eval()
        before, after = factory.make_pre_post_processors(
            policy_cfg=policy_config,
            pretrained_path=path,
            preprocessor_overrides={
                "device_processor": {"device": str(self.policy.config.device)},
                "rename_observations_processor": {"rename_map": given.rename_map},
            },
        )
        self.before, self.after = before, after
        self.env_before, self.env_after = processors(config, policy_config=policy_config)
        self.rollout = importlib.import_module("lerobot.scripts.lerobot_eval").rollout
        self.set_seed = importlib.import_module("lerobot.utils.random_utils").set_seed
        self.torch = importlib.import_module("torch")

    def play(self, environment: Any, seed: int) -> tuple[list[dict[str, Any]], Any, bool]:
        """Return observations and actions up to the first end, and whether a step succeeded."""
        seen: list[dict[str, Any]] = []

        def process_and_remember(observation: Mapping[str, Any]) -> Any:
            processed = self.env_before(observation)
            seen.append(tensors_of(processed))
            return processed

        self.set_seed(seed)
        with self.torch.no_grad():
            played = self.rollout(
                env=environment,
                policy=self.policy,
                env_preprocessor=process_and_remember,
                env_postprocessor=self.env_after,
                preprocessor=self.before,
                postprocessor=self.after,
                seeds=[seed],
            )
        steps = int(played["done"][0].to(int).argmax()) + 1
        success = bool(played["success"][0, :steps].any())
        return seen[:steps], played["action"][0, :steps].numpy(), success

    def close(self) -> None:
        close_environments(self.environments)


class _Writer:
    """A dataset that begins with its first episode."""

    def __init__(self, repo_id: str, root: Path, fps: int) -> None:
        self._facts = {"repo_id": repo_id, "root": root, "fps": fps}
        self._dataset: Any = None

    def add(self, observations: Sequence[Mapping[str, Any]], actions: Any, text: str) -> None:
        if self._dataset is None:
            module = importlib.import_module("lerobot.datasets.lerobot_dataset")
            features = features_of(observations[0], actions.shape[1:])
            self._dataset = module.LeRobotDataset.create(**self._facts, features=features)
        for frame in episode_frames(observations, actions):
            self._dataset.add_frame({**frame, "task": text})
        self._dataset.save_episode()

    def finish(self) -> None:
        if self._dataset is not None:
            self._dataset.finalize()


if __name__ == "__main__":
    start("collect", main)
