"""Tables of a LeRobotDataset v3.0, see `cadenza.core.lerobot_dataset`, as its writer makes them.

Source:  the layout that LeRobot 0.4.4 writes and reads (codebase version v3.0).
"""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cadenza.core.extras import load_extra
from cadenza.core.files import atomic_writer
from cadenza.core.lerobot_dataset import IMAGE, INDEX_COLUMNS
from cadenza.stream.bridges.lerobot_features import Feature

Array = NDArray[Any]

STATS: Final = Path("meta/stats.json")
DATA_PATTERN: Final = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
EPISODES_PATTERN: Final = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"

#: Column that holds the texts of the tasks, as pandas names an index without a name.
_TASK_COLUMN: Final = "__index_level_0__"
#: Deflate level of PNG; higher ones take several times as long for a few percent.
_PNG_LEVEL: Final = 1


@dataclass(frozen=True, slots=True)
class FilePlace:
    """Which file of a kind: its chunk, which is a folder, and its number in there."""

    chunk_index: int = 0
    file_index: int = 0

    def path(self, pattern: str) -> Path:
        """Return the path below the dataset's root."""
        return Path(pattern.format(chunk_index=self.chunk_index, file_index=self.file_index))

    def following(self, chunks_size: int) -> "FilePlace":
        """Return the next place when a chunk holds ``chunks_size`` files."""
        if self.file_index + 1 < chunks_size:
            return FilePlace(self.chunk_index, self.file_index + 1)
        return FilePlace(self.chunk_index + 1, 0)


def write_tables(path: Path, tables: Sequence[Any]) -> None:
    """Replace ``path`` by Arrow tables of one schema, a row group each, in one durable step.

    Raises:
        StorageError: The file system refused; ``path`` is unchanged.
    """
    parquet = load_extra("pyarrow.parquet")
    with (
        atomic_writer(path) as file,
        parquet.ParquetWriter(file, tables[0].schema, compression="snappy") as writer,
    ):
        for table in tables:
            writer.write_table(table)


def frames_table(features: Sequence[Feature], columns: Mapping[str, Array]) -> Any:
    """Return one episode as an Arrow table: features, (L, *shape), and index columns, (L,)."""
    arrow = load_extra("pyarrow")
    arrays = [_feature_array(feature, columns[feature.key]) for feature in features]
    arrays += [arrow.array(columns[name]) for name in INDEX_COLUMNS]
    table = arrow.Table.from_arrays(arrays, names=[*(f.key for f in features), *INDEX_COLUMNS])
    types = {feature.key: _library_type(feature) for feature in features}
    types |= {name: {"dtype": dtype, "_type": "Value"} for name, dtype in INDEX_COLUMNS.items()}
    # By this entry the library that LeRobot reads with tells images from other structures.
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": types}})})


def tasks_table(tasks: Sequence[str]) -> Any:
    """Return the tasks as the table that pandas makes of a frame whose index are their texts."""
    arrow = load_extra("pyarrow")
    index_type = {"name": None, "field_name": _TASK_COLUMN, "metadata": None}
    number_type = {"name": "task_index", "field_name": "task_index", "metadata": None}
    frame = {
        "index_columns": [_TASK_COLUMN],
        "column_indexes": [],
        "columns": [
            {**number_type, "pandas_type": "int64", "numpy_type": "int64"},
            {**index_type, "pandas_type": "unicode", "numpy_type": "object"},
        ],
        "creator": {"library": "pyarrow", "version": arrow.__version__},
        "pandas_version": "2.0.0",
    }
    numbers = arrow.array(range(len(tasks)), type=arrow.int64())
    table = arrow.table({"task_index": numbers, _TASK_COLUMN: arrow.array(tasks, arrow.string())})
    return table.replace_schema_metadata({"pandas": json.dumps(frame)})


def episodes_table(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return rows of one kind, values by column, as an Arrow table."""
    return load_extra("pyarrow").Table.from_pylist(list(rows))


def _feature_array(feature: Feature, values: Array) -> Any:
    """Return ``values``, (L, *shape), as an Arrow array."""
    arrow = load_extra("pyarrow")
    if feature.dtype == IMAGE:
        pictures = arrow.array([_png(image) for image in values], arrow.binary())
        names = arrow.array([f"frame-{i:06d}.png" for i in range(len(values))])
        return arrow.StructArray.from_arrays([pictures, names], names=["bytes", "path"])
    array = arrow.array(values.reshape(-1))
    if feature.shape == (1,):
        return array
    if len(feature.shape) == 1:
        return arrow.FixedSizeListArray.from_arrays(array, feature.shape[0])
    for size in reversed(feature.shape):
        offsets = np.arange(0, len(array) + 1, size, dtype=np.int32)
        array = arrow.ListArray.from_arrays(offsets, array)
    return array


def _library_type(feature: Feature) -> dict[str, Any]:
    """Return how the library `datasets` describes the feature."""
    if feature.dtype == IMAGE:
        return {"_type": "Image"}
    value = {"dtype": feature.dtype, "_type": "Value"}
    if feature.shape == (1,):
        return value
    if len(feature.shape) == 1:
        return {"feature": value, "length": feature.shape[0], "_type": "List"}
    shape = list(feature.shape)
    return {"shape": shape, "dtype": feature.dtype, "_type": f"Array{len(shape)}D"}


def _png(image: Array) -> bytes:
    """Return an image, uint8 (H, W, 3), as PNG."""
    buffer = io.BytesIO()
    load_extra("PIL.Image").fromarray(np.ascontiguousarray(image)).save(
        buffer, format="PNG", compress_level=_PNG_LEVEL
    )
    return buffer.getvalue()
