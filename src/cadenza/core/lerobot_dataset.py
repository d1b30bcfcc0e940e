"""LeRobot datasets on disk, layouts v3.0 and v2.1: descriptions, episodes, and columns as arrays.

    v3.0                                       v2.1
    meta/info.json                             meta/info.json
    meta/tasks.parquet                         meta/tasks.jsonl
    meta/episodes/chunk-000/file-000.parquet   meta/episodes.jsonl
    data/chunk-000/file-000.parquet            data/chunk-000/episode_000000.parquet

Source:  what LeRobot 0.4.4 (v3.0) and 0.3.3 (v2.1) write and read.
Limits:  images inside the tables are decoded; videos and image files beside them are not.
Axes:    L = frames of an episode, H, W = pixels.
"""

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from cadenza.core.errors import ConfigurationError, IntegrityError, StorageError
from cadenza.core.extras import load_extra
from cadenza.core.files import confined_path
from cadenza.core.strict_json import parse_json_object

Array = NDArray[Any]

INFO: Final = Path("meta/info.json")
TASKS: Final = Path("meta/tasks.parquet")
#: Tables of episodes of v3.0, and the list of v2.1.
EPISODE_TABLES: Final = "meta/episodes/chunk-*/file-*.parquet"
_EPISODE_LIST: Final = Path("meta/episodes.jsonl")
#: The layout that is written, and the one before it.
CODEBASE_VERSION: Final = "v3.0"
_EARLIER_VERSION: Final = "v2.1"
#: Columns that every dataset has besides its features, and their types.
INDEX_COLUMNS: Final = {
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}
#: Types of features that are pictures.
IMAGE: Final = "image"
VIDEO: Final = "video"
#: Parts of a path's pattern: text without braces, or the name of a number and how wide it is.
_PATTERN: Final = re.compile(r"(?:[^{}]|\{(?:\w+)(?::0[1-9]d)?\})+")


@dataclass(frozen=True, slots=True)
class EpisodePlace:
    """Where an episode lies: its data file, below the root, and how many frames it has."""

    file: str
    length: int


@dataclass(frozen=True, slots=True, eq=False)
class _Opened:
    """Columns of one data file, and the first and last row, exclusive, of each of its episodes."""

    key: tuple[str, tuple[str, ...]]
    table: Any
    bounds: Mapping[int, tuple[int, int]]


@dataclass(slots=True, eq=False)
class LeRobotDataset:
    """A dataset that is read one episode at a time; of v3.0 the last data file stays in memory.

    Attributes:
        root: Folder of the dataset.
        info: Its description.
        features: Columns by name, as described.
        rate_hz: Frames per second.
        episodes: Where each episode lies.

    Raises:
        ConfigurationError: ``root`` holds no dataset of a layout that is known.
        IntegrityError: Its description or its list of episodes is damaged.
        MissingExtraError: The extra ``lerobot`` is not installed.
    """

    root: Path
    info: dict[str, Any] = field(init=False)
    features: dict[str, dict[str, Any]] = field(init=False)
    rate_hz: float = field(init=False)
    episodes: tuple[EpisodePlace, ...] = field(init=False)
    _opened: _Opened | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.info = read_info(self.root, versions=(CODEBASE_VERSION, _EARLIER_VERSION))
        self.features = self.info["features"]
        self.rate_hz = self._positive("fps")
        rows = self._rows()
        self._require_counting("meta/episodes", [row["episode_index"] for row in rows])
        self.episodes = tuple(map(self._place, rows))
        for name, found in (
            ("total_episodes", len(rows)),
            ("total_frames", sum(place.length for place in self.episodes)),
        ):
            if self.info.get(name) != found:
                self._refuse(f"{name} {found} as in meta/episodes", self.info.get(name))

    def read(self, number: int, names: Iterable[str]) -> dict[str, Array]:
        """Return columns of one episode by name, each (L, *shape), or (L,) of numbers.

        Raises:
            IntegrityError: They are not what the description says; names episode and column.
        """
        names = tuple(names)
        place = self.episodes[number]
        opened = self._open(place.file, names)
        where = f"episode {number}, column "
        if number not in opened.bounds:
            self._refuse(f"its frames in {place.file}", "none", f"{where}'episode_index'")
        first, last = opened.bounds[number]
        if last - first != place.length:
            self._refuse(f"{place.length} frames", last - first, f"{where}'episode_index'")
        columns: dict[str, Array] = {}
        for name in opened.table.column_names:
            rows = opened.table.column(name).slice(first, last - first)
            try:
                columns[name] = column_array(rows, self.features.get(name, _NUMBER))
            except (TypeError, ValueError, load_extra("pyarrow").ArrowException) as error:
                raise IntegrityError(f"{self.root}: {where}{name!r}: {error}.") from error
        self._require_counting(f"{where}'frame_index'", columns["frame_index"])
        if not (np.diff(columns.get("timestamp", columns["frame_index"])) > 0).all():
            self._refuse("times that increase", "others", f"{where}'timestamp'")
        return {name: columns[name] for name in names}

    def _rows(self) -> list[Mapping[str, Any]]:
        """Return what is noted about each episode."""
        if self.info["codebase_version"] == _EARLIER_VERSION:
            path = self.root / _EPISODE_LIST
            try:
                lines = path.read_bytes().splitlines()
            except OSError as error:
                raise IntegrityError(
                    f"{path}: expected a list of episodes, got '{error.strerror}'."
                ) from error
            return [
                parse_json_object(line, source=f"{path}, line {number}")
                for number, line in enumerate(lines, 1)
                if line.strip()
            ]
        files = sorted(path.relative_to(self.root) for path in self.root.glob(EPISODE_TABLES))
        if not files:
            raise IntegrityError(
                f"{self.root}: expected tables of episodes below meta/episodes, got none."
            )
        names = ["episode_index", "length", "data/chunk_index", "data/file_index"]
        return [
            row
            for file in files
            for row in read_table(confined_path(self.root, str(file)), names).to_pylist()
        ]

    def _place(self, row: Mapping[str, Any]) -> EpisodePlace:
        number, length = row["episode_index"], row.get("length")
        if type(length) is not int or length < 1:
            self._refuse("a length >= 1", length, f"episode {number}, column 'length'")
        words = {
            "episode_index": number,
            "episode_chunk": number // int(self._positive("chunks_size")),
            "chunk_index": row.get("data/chunk_index"),
            "file_index": row.get("data/file_index"),
        }
        pattern = self.info.get("data_path")
        if not isinstance(pattern, str) or not _PATTERN.fullmatch(pattern):
            self._refuse("a pattern 'data_path' of chunks and files", repr(pattern))
        try:
            file = pattern.format(**words)
            confined_path(self.root, file)
        except (ValueError, KeyError, TypeError, StorageError) as error:
            raise IntegrityError(
                f"{self.root}: episode {number}: expected 'data_path' to name its file inside the "
                f"dataset, got {error}."
            ) from error
        return EpisodePlace(file, length)

    def _open(self, file: str, names: tuple[str, ...]) -> _Opened:
        """Return columns of a data file; the last one asked for is kept."""
        if self._opened is None or self._opened.key != (file, names):
            self._opened = None  # before the next one takes its room
            clock = ["timestamp"] if "timestamp" in self.features else []
            wanted = [*dict.fromkeys((*names, *clock, "frame_index", "episode_index"))]
            table = read_table(confined_path(self.root, file), wanted)
            numbers = column_array(table.column("episode_index"), _NUMBER)
            starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
            bounds: dict[int, tuple[int, int]] = {}
            for first, last in pairwise(starts):
                if int(numbers[first]) in bounds:
                    where = f"episode {numbers[first]}, column 'episode_index'"
                    self._refuse("one run of frames", f"a second one in {file}", where)
                bounds[int(numbers[first])] = (first, last)
            self._opened = _Opened((file, names), table, bounds)
        return self._opened

    def _positive(self, name: str) -> float:
        value = self.info.get(name)
        if type(value) not in (int, float) or not 0 < cast("float", value) < float("inf"):
            self._refuse(f"{name!r} > 0 in {INFO}", value)
        return cast("float", value)

    def _require_counting(self, what: str, numbers: Sequence[Any] | Array) -> None:
        """Raise unless the numbers count up from 0: none is missing, repeated or negative."""
        wrong = np.flatnonzero(np.asarray(numbers) != np.arange(len(numbers)))
        if wrong.size:
            self._refuse(f"{wrong[0]} at place {wrong[0]}", numbers[wrong[0]], what)

    def _refuse(self, expected: str, got: object, where: str = "") -> NoReturn:
        raise IntegrityError(
            f"{self.root}: {where and f'{where}: '}expected {expected}, got {got}."
        )


def read_info(root: Path, *, versions: Sequence[str] = (CODEBASE_VERSION,)) -> dict[str, Any]:
    """Return the description of the dataset ``root``, which has one of the layouts ``versions``.

    Raises:
        ConfigurationError: There is no dataset, or one of another layout.
        IntegrityError: The description is damaged.
    """
    path, known = root / INFO, " or ".join(versions)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"{root}: expected a LeRobotDataset {known}, got no readable {INFO}; check the path."
        ) from error
    info = parse_json_object(data, source=str(path))
    if info.get("codebase_version") not in versions:
        raise ConfigurationError(
            f"{root}: expected codebase version {known}, got "
            f"{info.get('codebase_version')!r}; convert the dataset with LeRobot's own script."
        )
    features = info.get("features")
    if not isinstance(features, dict):
        raise IntegrityError(f"{path}: expected 'features', got {features!r}.")
    for name, feature in cast("dict[str, Any]", features).items():
        facts = cast("dict[str, Any]", feature) if isinstance(feature, dict) else {}
        shape = facts.get("shape")
        sizes = cast("list[Any]", shape) if isinstance(shape, list) else [0]
        is_shape = all(type(size) is int and size >= 1 for size in sizes)
        if not is_shape or not isinstance(facts.get("dtype"), str):
            raise IntegrityError(f"{path}: expected dtype and shape of {name!r}, got {feature!r}.")
    return info


def read_table(path: Path, columns: Sequence[str] | None = None) -> Any:
    """Return an Arrow table from a Parquet file: ``columns``, each of which it has, or all.

    Raises:
        IntegrityError: The file or a column is missing, or damaged.
    """
    arrow, parquet = load_extra("pyarrow"), load_extra("pyarrow.parquet")
    try:
        file = parquet.ParquetFile(path)
        missing = set(columns or ()) - set(file.schema_arrow.names)
        if missing:
            raise _missing(path, missing, file.schema_arrow.names)
        return file.read(columns=None if columns is None else list(columns))
    except (OSError, arrow.ArrowException) as error:
        raise IntegrityError(
            f"{path}: expected a readable Parquet file, got an error: {error}."
        ) from error


def _missing(path: Path, missing: Iterable[str], found: Sequence[str]) -> IntegrityError:
    return IntegrityError(f"{path}: expected the columns {sorted(missing)} too, got {found}.")


_NUMBER: Final[Mapping[str, Any]] = {"dtype": "int64", "shape": [1]}


def column_array(column: Any, feature: Mapping[str, Any]) -> Array:
    """Return an Arrow column as ``feature`` describes it: (L, *shape), or (L,) of the shape [1].

    Raises:
        ValueError: It holds something else.
    """
    array, dtype = column.combine_chunks(), feature["dtype"]
    shape = tuple(int(size) for size in feature["shape"])
    if dtype == IMAGE:
        return _pictures(array.to_pylist(), shape)
    array = getattr(array, "storage", array)  # of an extension type
    per_frame = 1
    for size in shape if shape != (1,) or array.type.num_fields else ():
        if array.null_count or not array.type.num_fields:
            raise ValueError(f"expected lists of {size} everywhere, got {array.type}")
        lengths = load_extra("pyarrow.compute").list_value_length(array)
        wrong = np.flatnonzero(lengths.to_numpy(zero_copy_only=False) != size)
        if wrong.size:
            got, frame = lengths[int(wrong[0])], wrong[0] // per_frame
            raise ValueError(f"expected {size} entries, got {got} at frame {frame}")
        array, per_frame = array.flatten(), per_frame * size
    if array.null_count or array.type.num_fields:
        raise ValueError(f"expected one number everywhere, got {array.type} with gaps")
    values: Array = array.to_numpy(zero_copy_only=False)
    if values.dtype.kind != np.dtype(dtype).kind or not np.can_cast(values.dtype, dtype):
        raise ValueError(f"expected {dtype} as described, got {array.type}")
    return values.astype(dtype, copy=False).reshape(-1, *(shape if shape != (1,) else ()))


def _pictures(entries: Sequence[Any], shape: tuple[int, ...]) -> Array:
    """Return pictures, uint8 (L, H, W, C), from a column; ``shape`` is (H, W, C) or (C, H, W)."""
    if len(shape) != 3:
        raise ValueError(f"expected pictures of three axes, got the shape {shape}")
    height, width, colours = shape if shape[2] in (1, 3, 4) else (*shape[1:], shape[0])
    loader = load_extra("PIL.Image")
    found = np.empty((len(entries), height, width, colours), np.uint8)
    for frame, entry in enumerate(entries):
        data = entry and entry.get("bytes")
        if not data:
            raise ValueError(f"expected pictures inside the table, got none at frame {frame}")
        try:
            with loader.open(io.BytesIO(data)) as image:
                size, pixels = image.size, np.asarray(image if image.size == (width, height) else 0)
        except (OSError, SyntaxError) as error:
            raise ValueError(f"expected a picture at frame {frame}, got {error}") from error
        if pixels.size != found[frame].size or pixels.dtype != np.uint8:
            wanted = f"{width} x {height} of {colours} colours"
            raise ValueError(f"expected pictures {wanted}, got one of {size} at frame {frame}")
        found[frame] = pixels.reshape(found.shape[1:])
    return found
