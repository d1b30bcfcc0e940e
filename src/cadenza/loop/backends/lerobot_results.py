"""Readers of what LeRobot and our scripts beside it left, and of the frames that it trains on.

Tasks:  are called ``<suite>_<number>``, as LeRobot names the folders of their videos.
Seeds:  a report of LeRobot 0.4 names none; episode i of every task began from seed start + i, as
        `cadenza.loop.backends.lerobot_probe` tries out before a run. Where a report does name
        seeds, they must be these.
Frames: of data and mix only the episodes that the blending script keeps count. Lengths of data on a
        hub are not known; a blend with them has about F_m / r frames at most, F_m those of the mix
        and r its share.
"""

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from cadenza.core.errors import ConfigurationError, IntegrityError
from cadenza.core.extras import load_extra
from cadenza.core.files import tree_digest
from cadenza.core.strict_json import parse_json_object
from cadenza.loop.backends.base import dataset_info
from cadenza.loop.config import EvalConfig
from cadenza.loop.contracts.records import (
    CheckpointRecord,
    DatasetRef,
    EpisodeOutcome,
    EvalReport,
    EvalRequest,
    Harvest,
    SeedRange,
    TrainRequest,
)
from cadenza.loop.errors import DataError, EvalError, ImproveError
from cadenza.loop.scripts.merge_datasets import chosen

#: What an evaluation writes at its end.
EVAL_INFO: Final = "eval_info.json"
#: Where training leaves its last policy.
CHECKPOINT: Final = Path("checkpoints/last/pretrained_model")
_STEP: Final = Path("checkpoints/last/training_state/training_step.json")
#: Largest difference between a reported mean and that of the episodes, rounding of float32.
_TOLERANCE: Final = 1e-6


def read_document(path: Path) -> dict[str, Any]:
    """Return the JSON object in ``path``, or raise `IntegrityError` without one."""
    try:
        return parse_json_object(path.read_bytes(), source=str(path))
    except OSError as error:
        raise IntegrityError(
            f"{path}: expected the result of a job, got '{error.strerror}'; run it again."
        ) from error


def read_checkpoint(folder: Path, *, rung: str, cycle: int, steps: int) -> CheckpointRecord:
    """Return a training's policy, or raise `IntegrityError` if it made none, or other steps."""
    path = folder / CHECKPOINT
    if not (path / "config.json").is_file():
        raise IntegrityError(
            f"{path}: expected a trained policy, got no config.json; see the log of the training."
        )
    step = read_document(folder / _STEP).get("step")
    if step != steps:
        raise IntegrityError(f"{path}: expected a policy after {steps} steps, got {step}.")
    return CheckpointRecord(policy_type=rung, path=str(path), cycle=cycle, sha256=tree_digest(path))


def read_report(request: EvalRequest, config: EvalConfig) -> EvalReport:
    """Return what an evaluation measured, with every episode."""
    path = request.folder / EVAL_INFO
    raw = read_document(path)
    rate = success_rate(raw, source=str(path))
    outcomes = episode_outcomes(raw, request.seeds, source=str(path))
    of_task: dict[str, list[bool]] = {}
    for outcome in outcomes:
        of_task.setdefault(outcome.task, []).append(outcome.success)
    rates = {task: sum(found) / len(found) for task, found in of_task.items()}
    if outcomes:
        mean = sum(outcome.success for outcome in outcomes) / len(outcomes)
        if abs(mean - rate) > _TOLERANCE:
            raise EvalError(
                f"{path}: expected the success rate of its episodes, {mean:.6f}, got {rate:.6f}."
            )
    return EvalReport(
        checkpoint=request.checkpoint.path,
        env_type=config.env_type,
        task_suite=config.task_suite,
        n_episodes=len(outcomes) or request.seeds.count,
        success_rate=rate,
        per_task=rates or _group_rates(raw),
        raw=raw,
        outcomes=outcomes,
    )


def success_rate(raw: Mapping[str, Any], *, source: str) -> float:
    """Return the share of successes, in [0, 1], that an evaluation states.

    It is in ``overall``, else in ``aggregated``, else at the top: ``pc_success`` in percent, else
    ``success_rate``.
    """
    aggregate: Any = raw.get("overall", raw.get("aggregated", raw))
    found: Any = None
    if isinstance(aggregate, dict):
        stated = cast("dict[str, Any]", aggregate)
        found = stated.get("pc_success")
        found = found / 100.0 if _is_number(found) else stated.get("success_rate")
    if not _is_number(found) or not -_TOLERANCE <= found <= 1.0 + _TOLERANCE:
        raise EvalError(
            f"{source}: expected pc_success in [0, 100] or success_rate in [0, 1], got {found!r}."
        )
    return min(1.0, max(0.0, float(found)))


def episode_outcomes(
    raw: Mapping[str, Any], seeds: SeedRange, *, source: str
) -> tuple[EpisodeOutcome, ...]:
    """Return every episode of every task, tasks by name; empty if the evaluation lists none.

    An `EvalError` tells of other episodes than ``seeds``, or of values that make no sense.
    """
    expected = list(range(seeds.start, seeds.start + seeds.count))
    outcomes: list[EpisodeOutcome] = []
    if not isinstance(raw.get("per_task"), list):
        return ()
    entries = cast("list[dict[str, Any]]", raw["per_task"])
    try:
        tasks = {f"{e['task_group']}_{e['task_id']}": e["metrics"] for e in entries}
        if len(tasks) != len(entries):
            raise EvalError(f"{source}: expected every task once, got {len(entries)} of them.")
        for name, metrics in sorted(tasks.items()):
            successes, scores = metrics["successes"], metrics["max_rewards"]
            if {len(successes), len(scores)} != {seeds.count}:
                raise EvalError(
                    f"{source}: expected {seeds.count} episodes of {name}, got {len(successes)}."
                )
            named = [dict(one).get("seed") for one in metrics.get("per_episode") or ()]
            if any(seed is not None for seed in named) and named != expected:
                raise EvalError(
                    f"{source}: {name}: expected episodes from the seeds {expected[0]} to "
                    f"{expected[-1]} in order, got {named[:3]}...; others may be those of training "
                    "data."
                )
            outcomes += [
                EpisodeOutcome(task=name, seed=seed, success=ok, score=score)
                for seed, ok, score in zip(expected, successes, scores, strict=True)
            ]
    except (KeyError, TypeError, ValueError) as error:
        raise EvalError(
            f"{source}: expected successes and max_rewards of every task, got {error!r}."
        ) from error
    return tuple(outcomes)


def read_harvest(folder: Path, *, repo_id: str, seeds: SeedRange, result: str) -> Harvest:
    """Return what a collection brought."""
    path = folder / result
    facts = read_document(path)
    try:
        played = cast("list[dict[str, Any]]", facts["episodes"])
        numbers = [int(entry["seed"]) for entry in played]
        kept = int(facts["kept"])
        harvest = Harvest(
            kept=kept,
            successes=facts["successes"],
            attempts=facts["attempts"],
            dataset=local_dataset(facts, repo_id) if kept else None,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ImproveError(f"{path}: expected the facts of a harvest, got {error!r}.") from error
    if numbers != list(range(seeds.start, seeds.start + harvest.attempts)):
        raise ImproveError(
            f"{path}: expected attempts from seed {seeds.start} on, got {numbers[:3]}...; a "
            "harvest from other seeds may contain the test's."
        )
    if harvest.attempts > seeds.count:
        raise ImproveError(
            f"{path}: expected at most {seeds.count} attempts, got {harvest.attempts}."
        )
    return harvest


def local_dataset(facts: Mapping[str, Any], repo_id: str, *, notes: str = "") -> DatasetRef:
    """Return the dataset that a script says it wrote, with its digest."""
    root = Path(str(facts["root"]))
    count = facts.get("kept", facts.get("episodes"))
    return DatasetRef(
        repo_id=repo_id,
        root=str(root),
        num_episodes=int(cast("int", count)),
        notes=notes,
        sha256=tree_digest(root),
    )


def read_selection(path: Path) -> tuple[tuple[int, ...], str]:
    """Return the episodes that were chosen, and a note about the tasks they cover."""
    facts = read_document(path)
    found: Any = facts.get("episodes")
    episodes = cast("list[Any]", found) if isinstance(found, list) else []
    if not episodes or not all(type(episode) is int and episode >= 0 for episode in episodes):
        raise DataError(f"{path}: expected chosen episodes, got {found!r}.")
    return tuple(episodes), f"{facts.get('tasks_covered')}/{facts.get('suite_tasks')} tasks covered"


def _group_rates(raw: Mapping[str, Any]) -> dict[str, float]:
    """Return the rates of groups of tasks, for evaluations that list no tasks."""
    groups: Any = raw.get("per_group", {})
    return {
        str(name): float(group["pc_success"]) / 100.0
        for name, group in cast("dict[str, Any]", groups).items()
        if _is_number(group.get("pc_success"))
    }


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max  # a whole number may be beyond it


def capped_steps(request: TrainRequest, max_epochs: float | None) -> int:
    """Return the gradient steps: fewer on data so small that ``max_epochs`` would be passed."""
    frames = None if max_epochs is None else trained_frames(request)
    if max_epochs is None or frames is None:
        return request.steps
    return min(request.steps, max(1, math.ceil(max_epochs * frames / request.batch_size)))


def trained_frames(request: TrainRequest) -> int | None:
    """Return the frames that a training draws from; None for data that is not here."""
    data, mix = request.dataset, request.mix
    if mix is None or mix.root is None or request.mix_ratio == 0.0:
        return _frames(data)
    if request.mix_ratio == 1.0:
        return _frames(mix)
    if not Path(mix.root).is_dir():
        return None
    mixed = episode_lengths(Path(mix.root))
    if data.root is None:
        return math.ceil(sum(mixed) / request.mix_ratio)
    if not Path(data.root).is_dir():
        return None
    own = episode_lengths(Path(data.root))
    lengths = [*own, *mixed]
    own_episodes = range(len(own)) if data.episodes is None else sorted(set(data.episodes))
    mixed_episodes = range(len(own), len(lengths))
    kept = chosen(lengths, own_episodes, mixed_episodes, request.mix_ratio)
    return sum(lengths[episode] for episode in kept)


def episode_lengths(root: Path) -> list[int]:
    """Return the frames of every episode in order; a `ConfigurationError` for a damaged dataset."""
    arrow, parquet = load_extra("pyarrow"), load_extra("pyarrow.parquet")
    found: dict[int, int] = {}
    try:
        for path in sorted((root / "meta" / "episodes").rglob("*.parquet")):
            table = parquet.ParquetFile(path).read(columns=["episode_index", "length"])
            numbers, lengths = table["episode_index"].to_pylist(), table["length"].to_pylist()
            found.update(zip(numbers, lengths, strict=True))
    except (OSError, KeyError, arrow.ArrowException) as error:
        raise ConfigurationError(
            f"{root}: expected readable tables below meta/episodes, got: {error}"
        ) from error
    if not found or sorted(found) != list(range(len(found))):
        raise ConfigurationError(
            f"{root}: expected episodes 0, 1, 2, ... below meta/episodes, got {len(found)} of "
            "other numbers; the dataset is incomplete."
        )
    return [found[number] for number in range(len(found))]


def _frames(data: DatasetRef) -> int | None:
    """Return the frames of a dataset that count; None if it is not on this machine."""
    if data.root is None or not Path(data.root).is_dir():
        return None
    root = Path(data.root)
    if data.episodes is None:
        return int(dataset_info(root).get("total_frames", 0))
    lengths = episode_lengths(root)
    return sum(lengths[episode] for episode in set(data.episodes))
