"""Datasets of jobs: LeRobotDataset v3.0 folders, a page of our own about them, and merging.

Our page:  ``meta/cadenza.json``, sealed: the task, where the episodes come from, and seed, partner
           and success of each. Other programs ignore it; datasets of other writers lack it.
Merging:   datasets of equal features; episodes of the first source, then of the second, ...; tasks
           by first appearance. Whole tables are shifted and written again: frames and their
           statistics per episode are those of the sources; the statistics of the whole are computed
           again from all frames. Datasets with images or videos are refused: LeRobot's own merge
           knows them.
Axes:      N = frames, O = state, A = action.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from cadenza.benchmark.output_folder import open_job_folder
from cadenza.core.arrays import Float32Array
from cadenza.core.errors import ConfigurationError, IntegrityError
from cadenza.core.files import atomic_write_text
from cadenza.core.sealed_json import read_sealed_json, write_sealed_json
from cadenza.core.strict_json import parse_json_object
from cadenza.core.tree_digest import tree_digest
from cadenza.stream.bridges.episodes import Episode
from cadenza.stream.bridges.lerobot import LeRobotWriter
from cadenza.stream.bridges.lerobot_features import DONE, SUCCESS, Feature
from cadenza.stream.bridges.lerobot_files import (
    CODEBASE_VERSION,
    DATA_PATTERN,
    EPISODES_PATTERN,
    INFO,
    STATS,
    TASKS,
    FilePlace,
    load_arrow,
    tasks_table,
    write_tables,
)
from cadenza.stream.bridges.lerobot_stats import NumberStatistics

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


def read_info(root: Path) -> dict[str, Any]:
    """Return the description of the dataset ``root``."""
    path = root / INFO
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"{root}: expected a LeRobotDataset {CODEBASE_VERSION}, got no readable {INFO}; check "
            "the path."
        ) from error
    info = parse_json_object(data, source=str(path))
    if info.get("codebase_version") != CODEBASE_VERSION:
        raise ConfigurationError(
            f"{root}: expected codebase version {CODEBASE_VERSION}, got "
            f"{info.get('codebase_version')!r}; convert the dataset with LeRobot's own script."
        )
    if not isinstance(info.get("features"), dict):
        raise IntegrityError(f"{path}: expected 'features', got {info.get('features')!r}.")
    return info


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


def data_files(root: Path) -> list[Path]:
    """Return the files of frames, in order."""
    return sorted((root / "data").glob("chunk-*/file-*.parquet"))


def read_table(path: Path, columns: Sequence[str] | None = None) -> Any:
    """Return an Arrow table from a Parquet file."""
    arrow, parquet = load_arrow(), load_arrow("pyarrow.parquet")
    try:
        return parquet.ParquetFile(path).read(columns=None if columns is None else list(columns))
    except (OSError, arrow.ArrowException) as error:
        raise IntegrityError(
            f"{path}: expected a readable Parquet file, got an error: {error}."
        ) from error


def read_frames(root: Path) -> Frames:
    """Return the states and actions of a dataset.

    Raises:
        ConfigurationError: ``root`` holds no dataset with states and actions.
        IntegrityError: Its files do not hold what its description says, or numbers that are not
            finite.
    """
    info = read_info(root)
    shapes = feature_shapes(info, source=root)
    arrow = load_arrow()
    names = [STATE, ACTION, "episode_index"]
    tables = [read_table(path, names) for path in data_files(root)]
    frames = sum(len(table) for table in tables)
    if not frames or frames != info.get("total_frames"):
        raise IntegrityError(
            f"{root}: expected {info.get('total_frames')} frames as described, got {frames}."
        )
    try:
        table = arrow.concat_tables(tables)
        states = _matrix(table.column(STATE), shapes[STATE][0])
        actions = _matrix(table.column(ACTION), shapes[ACTION][0])
        episodes = table.column("episode_index").to_numpy().astype(np.int64)
    except (KeyError, ValueError, arrow.ArrowException) as error:
        raise IntegrityError(
            f"{root}: expected states and actions of the shapes {shapes}, got an error: {error}."
        ) from error
    if not (np.isfinite(states).all() and np.isfinite(actions).all()):
        raise IntegrityError(f"{root}: expected finite states and actions, got NaN or infinity.")
    return Frames(states=states, actions=actions, episodes=episodes)


def _matrix(column: Any, width: int) -> Float32Array:
    """Return a column of numbers or of lists of them as (N, width)."""
    array = column.combine_chunks()
    flat = array.flatten() if hasattr(array, "flatten") and array.type.num_fields else array
    return flat.to_numpy(zero_copy_only=False).astype(np.float32).reshape(len(array), width)


#: Column of `TASKS` with the texts.
_TEXTS: Final = "__index_level_0__"
#: Statistics of an episode that move with its numbers; the others stay.
_MOVING: Final = ("min", "max", "mean", "q01", "q10", "q50", "q90", "q99")


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


@dataclass(slots=True)
class _Joined:
    """What has been joined so far."""

    frames: int = 0
    episodes: int = 0
    place: FilePlace = field(default_factory=FilePlace)


def merge(job: Merge) -> dict[str, Any]:
    """Join the datasets and return the result.

    Raises:
        ConfigurationError: The sources do not fit together, or the folder belongs to another job.
        IntegrityError: A source is damaged.
        NotReadyError: Another process works in the folder.
    """
    infos = [read_info(root) for root in job.sources]
    _require_equal(job.sources, infos)
    digests = [tree_digest(root) for root in job.sources]
    request = {"sources_sha256": digests, "repo_id": job.repo_id}
    with open_job_folder(job.out, "merge", request) as folder:
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
    """Write the joined dataset to ``draft``."""
    arrow = load_arrow()
    numbers, joined = _task_numbers(job.sources), _Joined()
    columns = cast("dict[str, dict[str, Any]]", infos[0]["features"])
    statistics = {key: NumberStatistics(tuple(f["shape"])) for key, f in columns.items()}
    rows: list[Any] = []
    for root in job.sources:
        tables = [read_table(path) for path in data_files(root)]
        frames = _moved_frames(tables, joined, _renumbered(root, numbers))
        rows.append(_moved_rows(root, joined, numbers))
        for table in frames:
            write_tables(draft / joined.place.path(DATA_PATTERN), [table])
            joined.place = joined.place.following(int(infos[0]["chunks_size"]))
            for key, counted in statistics.items():
                counted.add(_values(table.column(key), tuple(columns[key]["shape"])))
        joined.frames += sum(len(table) for table in tables)
        joined.episodes += len(rows[-1])
    write_tables(draft / TASKS, [tasks_table(list(numbers))])
    write_tables(draft / FilePlace().path(EPISODES_PATTERN), [arrow.concat_tables(rows)])
    _write_json(draft / STATS, {key: counted.total() for key, counted in statistics.items()})
    info = {
        **infos[0],
        "total_episodes": joined.episodes,
        "total_frames": joined.frames,
        "total_tasks": len(numbers),
        "splits": {"train": f"0:{joined.episodes}"},
        "data_path": DATA_PATTERN,
    }
    _write_json(draft / INFO, info)
    _write_page(job, digests, draft)


def _task_numbers(sources: Sequence[Path]) -> dict[str, int]:
    """Return the new number of every task text."""
    numbers: dict[str, int] = {}
    for root in sources:
        for text in _task_texts(root):
            numbers.setdefault(text, len(numbers))
    return numbers


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


def _renumbered(root: Path, numbers: Mapping[str, int]) -> Any:
    """Return the new task number by the old one, as an array."""
    return np.array([numbers[text] for text in _task_texts(root)], dtype=np.int64)


def _moved_frames(tables: Sequence[Any], joined: _Joined, renumbered: Any) -> list[Any]:
    """Return the tables of a source with the numbers they have in the joined dataset."""
    moved: list[Any] = []
    for table in tables:
        new = {
            "episode_index": table.column("episode_index").to_numpy() + joined.episodes,
            "index": table.column("index").to_numpy() + joined.frames,
            "task_index": renumbered[table.column("task_index").to_numpy()],
        }
        moved.append(_with_columns(table, new))
    return moved


def _moved_rows(root: Path, joined: _Joined, numbers: Mapping[str, int]) -> Any:
    """Return the rows about the episodes of a source, as they are in the joined dataset."""
    arrow = load_arrow()
    paths = sorted((root / "meta" / "episodes").glob("chunk-*/file-*.parquet"))
    if not paths:
        raise IntegrityError(f"{root}: expected tables of episodes below meta/episodes, got none.")
    table = arrow.concat_tables([read_table(path) for path in paths])
    chunks = table.column("data/chunk_index").to_numpy()
    files = table.column("data/file_index").to_numpy()
    places = _new_places(root, joined)
    found = [places[(int(c), int(f))] for c, f in zip(chunks, files, strict=True)]
    tasks = np.array([numbers[texts[0]] for texts in table.column("tasks").to_pylist()])
    new: dict[str, Any] = {
        "episode_index": table.column("episode_index").to_numpy() + joined.episodes,
        "dataset_from_index": table.column("dataset_from_index").to_numpy() + joined.frames,
        "dataset_to_index": table.column("dataset_to_index").to_numpy() + joined.frames,
        "data/chunk_index": np.array([place.chunk_index for place in found]),
        "data/file_index": np.array([place.file_index for place in found]),
        "meta/episodes/chunk_index": np.zeros(len(table), dtype=np.int64),
        "meta/episodes/file_index": np.zeros(len(table), dtype=np.int64),
    }
    for name in _MOVING:
        for key, offset in (("episode_index", joined.episodes), ("index", joined.frames)):
            column = f"stats/{key}/{name}"
            new[column] = table.column(column).combine_chunks().flatten().to_numpy() + offset
        column = f"stats/task_index/{name}"
        new[column] = tasks.astype(table.column(column).combine_chunks().flatten().to_numpy().dtype)
    return _with_columns(table, new)


def _new_places(root: Path, joined: _Joined) -> dict[tuple[int, int], FilePlace]:
    """Return where the data files of a source come to lie, by their old place."""
    places: dict[tuple[int, int], FilePlace] = {}
    place, chunks_size = joined.place, int(read_info(root)["chunks_size"])
    for path in data_files(root):
        old = (int(path.parent.name.removeprefix("chunk-")), int(path.stem.removeprefix("file-")))
        places[old] = place
        place = place.following(chunks_size)
    return places


def _with_columns(table: Any, new: Mapping[str, Any]) -> Any:
    """Return ``table`` with some columns replaced; numbers become lists of one where they were."""
    arrow = load_arrow()
    for name, values in new.items():
        kind = table.schema.field(name).type
        array = arrow.array(values)
        if kind.num_fields:
            offsets = arrow.array(np.arange(len(values) + 1, dtype=np.int32))
            array = arrow.ListArray.from_arrays(offsets, array)
        place = table.schema.get_field_index(name)
        table = table.set_column(place, table.schema.field(name), array.cast(kind))
    return table


def _values(column: Any, shape: tuple[int, ...]) -> Any:
    """Return a column as an array, (n, *shape)."""
    array = column.combine_chunks()
    while array.type.num_fields:
        array = array.flatten()
    return array.to_numpy(zero_copy_only=False).reshape(len(column), *shape)


def _write_page(job: Merge, digests: Sequence[str], draft: Path) -> None:
    """Write our page: the episodes of the sources' pages, where all of them have one."""
    pages = [read_page(root) for root in job.sources]
    facts: dict[str, Any] = {"repo_id": job.repo_id, "source": {"merged_sha256": list(digests)}}
    known = [page for page in pages if page is not None]
    if len(known) == len(pages):
        facts["task"] = known[0]["task"]
        facts["attempts"] = sum(page["attempts"] for page in known)
        facts["episodes"] = [entry for page in known for entry in page["episodes"]]
        write_page(draft, facts)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    atomic_write_text(path, json.dumps(value, indent=4, ensure_ascii=False, allow_nan=False) + "\n")
