"""Datasets of jobs: LeRobotDataset v3.0 folders, a page of our own about them, and merging.

Our page:  ``meta/cadenza.json``, sealed: the task, the contract of the ego's numbers, where the
           episodes come from, and seed, partner and success of each. Other programs ignore it;
           datasets of other writers lack it.
Merging:   datasets of equal features and, where they name one, of one contract; episodes of the
           first source, then of the second, ..., as one writer would have written them all.
           Datasets with images or videos are refused: LeRobot's own merge knows them.
Axes:      N = frames, O = state, A = action.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from cadenza.benchmark.output_folder import open_job_folder
from cadenza.core.arrays import Float32Array
from cadenza.core.contracts import TaskContract
from cadenza.core.episodes import read_episodes
from cadenza.core.errors import ConfigurationError, IntegrityError, refuse
from cadenza.core.files import tree_digest
from cadenza.core.lerobot_dataset import INDEX_COLUMNS, TASKS, LeRobotDataset, read_info, read_table
from cadenza.core.strict_json import read_sealed_json, write_sealed_json
from cadenza.stream.bridges.episodes import Episode
from cadenza.stream.bridges.lerobot import LeRobotWriter
from cadenza.stream.bridges.lerobot_features import DONE, SUCCESS, Feature

#: Folder of a dataset inside the folder of its job.
DATASET: Final = "dataset"
#: Our page about a dataset.
PAGE: Final = Path("meta/cadenza.json")
_PAGE_KIND: Final = "cadenza-dataset"
STATE: Final = "observation.state"
ACTION: Final = "action"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # eq=False: array == is ambiguous
class Frames:
    """Every step of a dataset: states (N, O), actions (N, A), number of the episode (N,)."""

    states: Float32Array
    actions: Float32Array
    episodes: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptEpisode:
    """An episode that goes into a dataset."""

    seed: int
    partner: str
    episode: Episode


def write_dataset(
    root: Path, kept: Sequence[KeptEpisode], *, task: str, fps: int, page: Mapping[str, Any]
) -> None:
    """Write a new dataset."""
    first = kept[0].episode
    features = _features(first.states["obs"].shape[1], first.steps["actions"].shape[1])
    with LeRobotWriter(root, features, fps=fps, robot_type=task) as writer:
        for one in kept:
            writer.add(one.episode, f"{task} beside {one.partner}")
    entries = [{"seed": one.seed, "partner": one.partner, "success": True} for one in kept]
    write_page(root, {**page, "task": task, "episodes": entries})


def _features(state_dim: int, action_dim: int) -> list[Feature]:
    return [
        Feature(key=STATE, source="obs", shape=(state_dim,), dtype="float32"),
        Feature(key=ACTION, source="actions", shape=(action_dim,), dtype="float32"),
        Feature(key="next.reward", source="rewards", shape=(1,), dtype="float32"),
        Feature(key="next.done", source=DONE, shape=(1,), dtype="bool"),
        Feature(key="next.success", source=SUCCESS, shape=(1,), dtype="bool"),
    ]


def write_page(root: Path, facts: Mapping[str, Any]) -> None:
    """Write our page about the dataset ``root``."""
    write_sealed_json(root / PAGE, facts, kind=_PAGE_KIND)


def read_page(root: Path) -> dict[str, Any] | None:
    """Return our page about the dataset ``root``; None for a dataset of another writer."""
    path = root / PAGE
    return read_sealed_json(path, kind=_PAGE_KIND) if path.exists() else None


def read_contract(root: Path) -> TaskContract | None:
    """Return what the numbers of the dataset ``root`` mean; None if its page does not say it."""
    facts = (read_page(root) or {}).get("contract")
    return None if facts is None else TaskContract.from_facts(facts)


def require_one_contract(flag: str, roots: Sequence[Path]) -> None:
    """Refuse datasets, given by ``flag``, whose pages name contracts that differ.

    Raises:
        ConfigurationError: A number of one means something else in another.
    """
    known = [(root, each) for root in roots if (each := read_contract(root)) is not None]
    for root, contract in known[1:]:
        if differing := known[0][1].differences(contract):
            expected = f"datasets of one task contract, {known[0][1].title} of {known[0][0]}"
            got = f"another one in {root}: {'; '.join(differing)}"
            refuse(ConfigurationError, flag, expected=expected, got=got)


def feature_shapes(info: Mapping[str, Any], *, source: object) -> dict[str, list[int]]:
    """Return the shapes of state and action."""
    shapes: dict[str, list[int]] = {}
    features = cast("dict[str, dict[str, Any]]", info["features"])
    for key in (STATE, ACTION):
        shape = features.get(key, {}).get("shape")
        if not isinstance(shape, list) or len(cast("list[Any]", shape)) != 1:
            raise ConfigurationError(
                f"{source}: expected the feature {key!r} as a vector, got {features.get(key)}; "
                "behaviour cloning here knows states, no images."
            )
        shapes[key] = cast("list[int]", shape)
    return shapes


def dataset_facts(dataset: Path, repo_id: str) -> dict[str, Any]:
    """Return what result files say about a dataset in the folder of a job."""
    info = read_info(dataset)
    return {
        "folder": dataset.name,
        "repo_id": repo_id,
        "sha256": tree_digest(dataset),
        "episodes": info["total_episodes"],
        "frames": info["total_frames"],
        "features": feature_shapes(info, source=dataset),
    }


def read_frames(root: Path) -> Frames:
    """Return the states and actions of a dataset.

    Raises:
        ConfigurationError: ``root`` holds no dataset with states and actions.
        IntegrityError: Its files do not hold what its description says, or numbers that are not
            finite.
    """
    shapes = feature_shapes(read_info(root), source=root)
    episodes = list(read_episodes(root, observations=["state"]))
    states = np.concatenate([episode.observations["state"] for episode in episodes])
    actions = np.concatenate([episode.actions for episode in episodes])
    return Frames(
        states=states.astype(np.float32).reshape(-1, *shapes[STATE]),
        actions=actions.astype(np.float32).reshape(-1, *shapes[ACTION]),
        episodes=np.repeat(np.arange(len(episodes)), [len(episode) for episode in episodes]),
    )


#: Settings of a writer that a description names.
_LIMITS: Final = ("chunks_size", "data_files_size_in_mb")
#: Column of `TASKS` with the texts.
_TEXTS: Final = "__index_level_0__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """What to join."""

    sources: tuple[Path, ...]
    repo_id: str
    out: Path
    result: Path

    def __post_init__(self) -> None:
        if len(self.sources) < 2:
            raise ConfigurationError(
                f"--sources: expected two datasets or more, got {len(self.sources)}."
            )


def merge(job: Merge) -> dict[str, Any]:
    """Join the datasets and return the result.

    Raises:
        ConfigurationError: The sources do not fit together, or the folder belongs to another job.
        IntegrityError: A source is damaged.
        NotReadyError: Another process works in the folder.
    """
    infos = [read_info(root) for root in job.sources]
    _require_equal(job.sources, infos)
    require_one_contract("--sources", job.sources)
    digests = [tree_digest(root) for root in job.sources]
    request = {"sources_sha256": digests, "repo_id": job.repo_id}
    with open_job_folder(job.out, "merge", request, result=job.result) as folder:
        if not (folder.root / DATASET).exists():
            draft = folder.new_draft(DATASET)
            _join(job, infos, digests, draft)
            folder.publish(draft, DATASET)
        folder.drop_work()
        facts = {
            "dataset": dataset_facts(folder.root / DATASET, job.repo_id),
            "sources": [
                {"sha256": digest, "episodes": info["total_episodes"]}
                for digest, info in zip(digests, infos, strict=True)
            ],
        }
        return folder.write_result(job.result, facts)


def _require_equal(sources: Sequence[Path], infos: Sequence[Mapping[str, Any]]) -> None:
    """Raise unless the datasets can be joined."""
    for root, info in zip(sources, infos, strict=True):
        for key, feature in cast("dict[str, dict[str, Any]]", info["features"]).items():
            if feature.get("dtype") in ("image", "video"):
                raise ConfigurationError(
                    f"--sources: expected numbers alone, got the {feature['dtype']} feature "
                    f"{key!r} in {root}; join such datasets with LeRobot's own merge."
                )
        for key in ("features", "fps", "robot_type"):
            if info.get(key) != infos[0].get(key):
                raise ConfigurationError(
                    f"--sources: expected equal {key}, got {infos[0].get(key)} in {sources[0]} and "
                    f"{info.get(key)} in {root}."
                )


def _join(
    job: Merge, infos: Sequence[Mapping[str, Any]], digests: Sequence[str], draft: Path
) -> None:
    """Write the joined dataset to ``draft``, episode by episode."""
    described = cast("dict[str, dict[str, Any]]", infos[0]["features"])
    features = [
        _feature(key, facts) for key, facts in described.items() if key not in INDEX_COLUMNS
    ]
    limits = {name: int(infos[0][name]) for name in _LIMITS if name in infos[0]}
    robot_type = infos[0].get("robot_type")
    with LeRobotWriter(
        draft, features, fps=int(infos[0]["fps"]), robot_type=robot_type, **limits
    ) as writer:
        for root in job.sources:
            for episode, task in _episodes_of(root, features):
                writer.add(episode, task)
    _write_page(job, digests, draft)


def _feature(key: str, facts: Mapping[str, Any]) -> Feature:
    names = facts.get("names")
    return Feature(
        key=key,
        source=key,
        shape=tuple(facts["shape"]),
        dtype=facts["dtype"],
        names=tuple(cast("list[str]", names)) if isinstance(names, list) else None,
    )


def _episodes_of(root: Path, features: Sequence[Feature]) -> Iterator[tuple[Episode, str]]:
    """Yield the episodes of a dataset, each with its task."""
    dataset, texts = LeRobotDataset(root), _task_texts(root)
    for number in range(len(dataset.episodes)):
        steps = dataset.read(number, [*(feature.key for feature in features), "task_index"])
        task = steps.pop("task_index")
        yield Episode(steps=steps, states={}), texts[int(task[0])]


def _task_texts(root: Path) -> list[str]:
    """Return the task texts of a dataset, by their old number."""
    table = read_table(root / TASKS)
    try:
        old = table.column("task_index").to_numpy()
        texts: list[str] = table.column(_TEXTS).to_pylist()
    except KeyError as error:
        raise IntegrityError(f"{root / TASKS}: expected a table of tasks, got {error}.") from error
    if sorted(old.tolist()) != list(range(len(texts))):
        raise IntegrityError(f"{root / TASKS}: expected tasks numbered from 0, got {old.tolist()}.")
    return [texts[int(place)] for place in np.argsort(old)]


def _write_page(job: Merge, digests: Sequence[str], draft: Path) -> None:
    """Write our page: the episodes of the sources' pages, where all of them have one."""
    pages = [read_page(root) for root in job.sources]
    facts: dict[str, Any] = {"repo_id": job.repo_id, "source": {"merged_sha256": list(digests)}}
    known = [page for page in pages if page is not None]
    if len(known) == len(pages):
        facts["task"], contract = known[0]["task"], known[0].get("contract")
        if contract is not None and all("contract" in page for page in known):
            facts["contract"] = contract
        facts["attempts"] = sum(page["attempts"] for page in known)
        facts["episodes"] = [entry for page in known for entry in page["episodes"]]
        write_page(draft, facts)
