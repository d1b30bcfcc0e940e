"""Collecting successful episodes: of a scripted expert (`collect`) or of a policy (`harvest`).

Attempt i starts from the initial-state seed ``seed_start + i`` beside partner i of the rounds of
`encounters.partner_round`, until as many succeeded as are wanted or the seeds are used up. So a
larger collection begins with the smaller one. A harvest of failed starts keeps what the task's
expert shows from the initial states, beside the partners, with which the policy failed.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from cadenza.benchmark.builders import code_digest
from cadenza.benchmark.jobs.dataset_files import (
    DATASET,
    KeptEpisode,
    dataset_facts,
    read_page,
    write_dataset,
)
from cadenza.benchmark.jobs.encounters import (
    Encounters,
    Recording,
    chosen_partners,
    is_filtered,
    job_task,
    partner_round,
)
from cadenza.benchmark.output_folder import Blocks, JobFolder, open_job_folder
from cadenza.benchmark.policies import EgoPolicy, EgoSeat, open_policy
from cadenza.benchmark.stream_tasks import EXPERTS, LawPolicy
from cadenza.benchmark.tasks import TaskSpec
from cadenza.core.arrays import Float32Array
from cadenza.core.device import single_torch_thread
from cadenza.core.errors import ConfigurationError, IntegrityError, NotReadyError
from cadenza.stream.bridges.episodes import Episode

#: Attempts between two saves: half a second of work or so.
BLOCK: Final = 16
#: Standard deviation of what disturbs the expert's wanted action, unit of the action: shows
#: clones how to get back. Source: noise injection, arXiv:1703.09327.
EXPERT_NOISE: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """What to collect; the flags of `cadenza job collect`."""

    task: str
    partners: tuple[str, ...] = ()
    focus: tuple[str, ...] = ()
    episodes: int
    seed_start: int
    seed_count: int
    repo_id: str
    out: Path
    result: Path
    report: Callable[[int, int], None] = lambda _done, _wanted: None

    def __post_init__(self) -> None:
        if self.episodes < 1 or self.seed_count < self.episodes or self.seed_start < 0:
            raise ConfigurationError(
                "expected --episodes >= 1, --seed-count >= --episodes and --seed-start >= 0, got "
                f"{self.episodes}, {self.seed_count} and {self.seed_start}."
            )

    def flags(self, round_: Sequence[str]) -> dict[str, Any]:
        """Return what determines the product, as JSON values."""
        return {
            "task": self.task,
            "round": list(round_),
            "episodes": self.episodes,
            "seed_start": self.seed_start,
            "seed_count": self.seed_count,
            "repo_id": self.repo_id,
        }


@dataclass(slots=True)
class _Gathered:
    """What the attempts brought."""

    kept: list[KeptEpisode]
    attempts: int = 0
    successes: int = 0


def collect(collection: Collection, *, expert: str | None = None) -> dict[str, Any]:
    """Let a scripted expert play behind the safety filter, where there is one; return the result.

    None takes the task's first expert.

    Raises:
        ConfigurationError: A flag does not fit, or the folder belongs to another job.
        NotReadyError: The expert succeeded too rarely, or another process works in the folder.
    """
    task = job_task(collection.task)
    name = _expert_of(task, expert)
    facts = {"expert": name, "filter": task.supports_safety}
    return _run(collection, task, "collect", facts, _noisy(name))


def harvest(
    collection: Collection, *, policy: Path, filtered: str | None, starts: str = "solved"
) -> dict[str, Any]:
    """Keep a policy's own successes and return the result; none at all is a result too.

    Args:
        collection: What to collect; its seed count bounds the attempts.
        policy: Checkpoint.
        filtered: ``on`` or ``off``: the safety filter; None for on wherever the task has one.
        starts: ``solved``, or ``failed`` to keep what the task's expert shows from failed starts.

    Raises:
        CheckpointError: The policy is missing, damaged or of another task.
        ConfigurationError: A flag does not fit, or the folder belongs to another job.
        NotReadyError: Another process works in the folder.
    """
    task = job_task(collection.task)
    digest, make_policy = open_policy(policy, task=task.task_id)
    facts: dict[str, Any] = {"policy_sha256": digest, "filter": is_filtered(filtered, task)}
    expert = None
    if starts == "failed":
        name = _expert_of(task, None)
        facts |= {"starts": starts, "expert": name}
        expert = _noisy(name)
    elif starts != "solved":
        raise ConfigurationError(f"--starts: expected solved or failed, got {starts!r}.")
    with single_torch_thread():
        return _run(collection, task, "harvest", facts, make_policy, expert=expert)


def _expert_of(task: TaskSpec, name: str | None) -> str:
    own = [known for known, expert in EXPERTS.items() if expert.task == task.task_id]
    if name is None and own:
        return own[0]
    if name is None or name not in own:
        raise ConfigurationError(
            f"--expert: expected one of {task.task_id!r} ({', '.join(own) or 'none'}), got "
            f"{name!r}."
        )
    return name


def _noisy(expert: str) -> Callable[[EgoSeat], EgoPolicy]:
    return partial(LawPolicy, law=EXPERTS[expert].law, noise=EXPERT_NOISE)


def _run(
    collection: Collection,
    task: TaskSpec,
    kind: str,
    facts: Mapping[str, Any],
    make_policy: Callable[[EgoSeat], EgoPolicy],
    *,
    expert: Callable[[EgoSeat], EgoPolicy] | None = None,
) -> dict[str, Any]:
    """Do the job in its folder; ``facts`` say where the episodes come from.

    With an ``expert``, its episodes are kept, from starts that the other ego failed at.
    """
    partners = partner_round(chosen_partners(task, collection.partners), collection.focus)
    request = {**collection.flags(partners), **facts}
    with (
        Encounters(task, filtered=facts["filter"], make_policy=make_policy) as encounters,
        open_job_folder(
            collection.out,
            kind,
            request,
            result=collection.result,
            code_sha256=code_digest(task, partners),
        ) as folder,
    ):
        egos = [encounters]
        if expert is not None:
            second = Encounters(task, filtered=task.supports_safety, make_policy=expert)
            egos.append(encounters.enter_context(second))
        dataset = folder.root / DATASET
        gathered = _Gathered(kept=[])
        if not dataset.exists():
            gathered = _gather(collection, partners, egos, folder)
            if kind == "collect" and len(gathered.kept) < collection.episodes:
                raise NotReadyError(
                    f"{kind}: expected {collection.episodes} successful episodes within "
                    f"{collection.seed_count} attempts, got {len(gathered.kept)}; raise "
                    "--seed-count or choose another --expert."
                )
            if gathered.kept:
                _publish(collection, gathered, encounters, folder, facts)
        if dataset.exists():
            folder.drop_work()
        return folder.write_result(collection.result, _facts(collection, dataset, gathered))


def _gather(
    collection: Collection, partners: Sequence[str], egos: Sequence[Encounters], folder: JobFolder
) -> _Gathered:
    """Play, or read what an earlier process has played, until enough was kept."""
    blocks = Blocks(folder=folder.work / "blocks", request_sha256=folder.request_sha256)
    gathered = _Gathered(kept=[])
    for number, first in enumerate(range(0, collection.seed_count, BLOCK)):
        stored = blocks.read(number)
        if stored is None:
            wanted = collection.episodes - len(gathered.kept)
            last = min(first + BLOCK, collection.seed_count)
            stored = {"attempts": _play(collection, partners, egos, first, last, wanted)}
            blocks.write(number, stored)
        for attempt in stored["attempts"]:
            gathered.attempts += 1
            gathered.successes += attempt.get("success", attempt["arrays"] is not None)
            if attempt["arrays"] is not None:
                gathered.kept.append(_kept(attempt))
        collection.report(len(gathered.kept), collection.episodes)
        if len(gathered.kept) >= collection.episodes:
            break
    return gathered


def _play(
    collection: Collection,
    partners: Sequence[str],
    egos: Sequence[Encounters],
    first: int,
    last: int,
    wanted: int,
) -> list[dict[str, Any]]:
    """Play the attempts from ``first`` up to ``last``, or until ``wanted`` are kept.

    A second ego plays what the first one failed at, and its successes alone are kept.
    """
    attempts: list[dict[str, Any]] = []
    for index in range(first, last):
        partner, seed = partners[index % len(partners)], collection.seed_start + index
        result, recording = egos[0].play(partner, seed)
        success = keeps = result.success
        for expert in egos[1:]:
            if not success:
                result, recording = expert.play(partner, seed)
            keeps = not success and result.success
        arrays = _packed(recording) if keeps else None
        attempts.append({"seed": seed, "partner": partner, "success": success, "arrays": arrays})
        wanted -= keeps
        if not wanted:
            break
    return attempts


def _packed(recording: Recording) -> dict[str, Any]:
    """Return a recording as JSON values, to the last bit."""
    return {
        "states": _text(np.stack(recording.states)),
        "actions": _text(np.stack(recording.actions)),
        "rewards": _text(np.array(recording.rewards, dtype=np.float32)),
        "terminated": recording.terminated,
        "length": len(recording.actions),
    }


def _text(array: Float32Array) -> str:
    return base64.b64encode(array.astype("<f4").tobytes()).decode("ascii")


def _array(text: str, rows: int) -> Float32Array:
    flat = np.frombuffer(base64.b64decode(text), dtype="<f4").astype(np.float32)
    return flat.reshape(rows, -1)


def _kept(attempt: Mapping[str, Any]) -> KeptEpisode:
    """Return the episode of a successful attempt."""
    arrays, length = attempt["arrays"], attempt["arrays"]["length"]
    steps = {
        "actions": _array(arrays["actions"], length),
        "rewards": _array(arrays["rewards"], length)[:, 0],
    }
    states = {"obs": _array(arrays["states"], length + 1)}
    episode = Episode(steps=steps, states=states, success=True)
    return KeptEpisode(seed=attempt["seed"], partner=attempt["partner"], episode=episode)


def _publish(
    collection: Collection,
    gathered: _Gathered,
    encounters: Encounters,
    folder: JobFolder,
    facts: Mapping[str, Any],
) -> None:
    """Write the dataset beside what is unfinished, and move it into place."""
    draft, contract = folder.new_draft(DATASET), encounters.contract()
    write_dataset(
        draft,
        gathered.kept,
        task=collection.task,
        fps=encounters.control_rate_hz(),
        page={
            **({} if contract is None else {"contract": contract.facts()}),
            "repo_id": collection.repo_id,
            "source": facts,
            "attempts": gathered.attempts,
            "successes": gathered.successes,
        },
    )
    folder.publish(draft, DATASET)


def _facts(collection: Collection, dataset: Path, gathered: _Gathered) -> dict[str, Any]:
    """Return what the result file says."""
    counts = {"successes": gathered.successes, "attempts": gathered.attempts}
    facts: dict[str, Any] = {"kept": 0, **counts, "dataset": None}
    if dataset.exists():
        page, kept = read_page(dataset), 0
        if page is None:
            raise IntegrityError(
                f"{dataset}: expected the page of this job, got a dataset without one; remove the "
                "folder of the job and run it again."
            )
        kept = len(page["episodes"])
        successes = page.get("successes", kept)  # earlier pages name none
        facts = {"kept": kept, "successes": successes, "attempts": page["attempts"]}
        facts["dataset"] = dataset_facts(dataset, collection.repo_id)
    used = {"start": collection.seed_start, "count": facts["attempts"]}
    return {**facts, "seeds": used}
