"""Evaluation of one policy: who succeeded from which initial state beside whom.

Episode j has the seed ``seed_start + j``, and its partner is number ``seed mod P`` of the P
partners. So two policies that are given the same seeds meet the same partners from the same initial
states, and each episode of one pairs with one of the other.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cadenza.benchmark.builders import code_digest
from cadenza.benchmark.jobs.encounters import (
    Encounters,
    chosen_partners,
    is_filtered,
    job_task,
)
from cadenza.benchmark.output_folder import Blocks, open_job_folder
from cadenza.benchmark.policies import open_policy
from cadenza.core.device import single_torch_thread
from cadenza.core.errors import ConfigurationError

#: Folder of the finished parts inside the job's folder.
BLOCKS: Final = "blocks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What to measure.

    Attributes:
        policy: Checkpoint.
        task: Task.
        partners: Whom the ego meets; see `encounters.chosen_partners`.
        filtered: ``on`` or ``off``: the safety filter; None for on wherever the task has one.
        seed_start: Initial-state seed of the first episode.
        episodes: Episodes, >= 1.
        batch_size: Episodes between two saves, >= 1; no figure depends on it.
        out: Folder of the job.
        result: Result file.
        report: Called now and then with the episodes done, and those wanted.
    """

    policy: Path
    task: str
    partners: tuple[str, ...] = ()
    filtered: str | None = None
    seed_start: int
    episodes: int
    batch_size: int = 16
    out: Path
    result: Path
    report: Callable[[int, int], None] = lambda _done, _wanted: None

    def __post_init__(self) -> None:
        if self.episodes < 1 or self.batch_size < 1 or self.seed_start < 0:
            raise ConfigurationError(
                "expected --episodes >= 1, --batch-size >= 1 and --seed-start >= 0, got "
                f"{self.episodes}, {self.batch_size} and {self.seed_start}."
            )


def evaluate(evaluation: Evaluation) -> dict[str, Any]:
    """Play every episode and return the result.

    Raises:
        CheckpointError: The policy is missing, damaged or of another task.
        ConfigurationError: A flag does not fit, or the folder belongs to another job.
        NotReadyError: Another process works in the folder.
        StorageError: The file system refused.
    """
    task = job_task(evaluation.task)
    partners = chosen_partners(task, evaluation.partners)
    filtered = is_filtered(evaluation.filtered, task)
    policy = open_policy(evaluation.policy, task=task.task_id)
    request = {
        "policy_sha256": policy.sha256,
        "task": task.task_id,
        "partners": list(partners),
        "filter": filtered,
        "seed_start": evaluation.seed_start,
        "episodes": evaluation.episodes,
    }
    with (
        single_torch_thread(),
        Encounters(task, filtered=filtered, make_policy=policy.load) as encounters,
        open_job_folder(
            evaluation.out, "evaluate", request, code_sha256=code_digest(task, partners)
        ) as folder,
    ):
        features = encounters.features()
        blocks = Blocks(folder=folder.root / BLOCKS, request_sha256=folder.request_sha256)
        episodes = _play(evaluation, partners, encounters, blocks)
        facts = {
            "policy_sha256": policy.sha256,
            "task": task.task_id,
            "features": features,
            "seeds": {"start": evaluation.seed_start, "count": evaluation.episodes},
            "overall": summary(episodes),
            "per_task": {
                name: summary([e for e in episodes if e["partner"] == name])
                for name in partners
                if any(e["partner"] == name for e in episodes)
            },
            "episodes": episodes,
        }
        return folder.write_result(evaluation.result, facts)


def _play(
    evaluation: Evaluation, partners: Sequence[str], encounters: Encounters, blocks: Blocks
) -> list[dict[str, Any]]:
    """Play, or read what an earlier process has played."""
    episodes: list[dict[str, Any]] = []
    number = 0
    while len(episodes) < evaluation.episodes:
        stored = blocks.read(number)
        if stored is None:
            first = evaluation.seed_start + len(episodes)
            count = min(evaluation.batch_size, evaluation.episodes - len(episodes))
            played = [
                _episode(encounters, partners[seed % len(partners)], seed)
                for seed in range(first, first + count)
            ]
            stored = {"episodes": played}
            blocks.write(number, stored)
        episodes += stored["episodes"]
        evaluation.report(len(episodes), evaluation.episodes)
        number += 1
    return episodes


def _episode(encounters: Encounters, partner: str, seed: int) -> dict[str, Any]:
    result, _ = encounters.play(partner, seed)
    return {
        "partner": partner,
        "seed": seed,
        "success": result.success,
        "return": result.episode_return,
        "steps": result.n_steps,
        "contact": result.contact,
    }


def summary(episodes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures of some episodes, at least one."""
    count = len(episodes)
    return {
        "n_episodes": count,
        "success_rate": sum(bool(e["success"]) for e in episodes) / count,
        "mean_return": sum(float(e["return"]) for e in episodes) / count,
    }
