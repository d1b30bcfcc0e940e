"""Datasets of jobs: LeRobotDataset v3.0 folders, and a page of our own about their episodes.

Our page:  ``meta/cadenza.json``, sealed: the task, where the episodes come from, and seed, partner
           and success of each. Other programs ignore it; datasets of other writers lack it.
Axes:      N = frames, O = state, A = action.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import Float32Array
from cadenza.core.errors import ConfigurationError, IntegrityError
from cadenza.core.sealed_json import read_sealed_json, write_sealed_json
from cadenza.core.strict_json import parse_json_object
from cadenza.core.tree_digest import tree_digest
from cadenza.stream.bridges.episodes import Episode
from cadenza.stream.bridges.lerobot import LeRobotWriter
from cadenza.stream.bridges.lerobot_features import DONE, SUCCESS, Feature
from cadenza.stream.bridges.lerobot_files import CODEBASE_VERSION, INFO, load_arrow

#: Folder of a dataset inside the folder of its job.
DATASET: Final = "dataset"
#: Our page about a dataset.
PAGE: Final = Path("meta/cadenza.json")
_PAGE_KIND: Final = "cadenza-dataset"
STATE: Final = "observation.state"
ACTION: Final = "action"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # eq=False: array == is ambiguous
class Frames:
    """Every step of a dataset.

    Attributes:
        states: What the ego saw, (N, O).
        actions: What it did, (N, A).
        episodes: Number of the episode, (N,).
    """

    states: Float32Array
    actions: Float32Array
    episodes: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptEpisode:
    """An episode that goes into a dataset.

    Attributes:
        seed: Seed of its initial state.
        partner: Who the ego met.
        episode: What happened.
    """

    seed: int
    partner: str
    episode: Episode


def write_dataset(
    root: Path, kept: Sequence[KeptEpisode], *, task: str, fps: int, page: Mapping[str, Any]
) -> None:
    """Write a new dataset.

    Args:
        root: Folder that does not exist.
        kept: Its episodes, at least one, in order.
        task: Task they were played on.
        fps: Steps per second.
        page: Further facts of our page.

    Raises:
        StorageError: The file system refused.
    """
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
    """Return our page about the dataset ``root``; None for a dataset of another writer.

    Raises:
        IntegrityError: The page was changed.
    """
    path = root / PAGE
    return read_sealed_json(path, kind=_PAGE_KIND) if path.exists() else None


def read_info(root: Path) -> dict[str, Any]:
    """Return the description of the dataset ``root``.

    Raises:
        ConfigurationError: There is no dataset, or one of another version of the format.
        IntegrityError: The description is damaged.
    """
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
    """Return the shapes of state and action.

    Args:
        info: Description of a dataset.
        source: How messages call it.

    Raises:
        ConfigurationError: One of them is missing or no vector of numbers.
    """
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
    """Return an Arrow table from a Parquet file.

    Raises:
        IntegrityError: The file is missing or damaged, or lacks a column.
    """
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
