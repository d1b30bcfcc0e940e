"""A small table content and ways to spoil its file, for the tests of the file formats."""

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from cadenza.learn.memory.archive import ReadOptions
from cadenza.learn.memory.column import Column, SyntheticDones, TagColumn, VirtualColumn
from cadenza.learn.memory.snapshot import StoredRows, TableSnapshot

LENGTHS = np.array([4, 5, 3])
COLUMNS = (
    Column("obs", (3,), np.float32),
    Column("actions", (), np.int64),
    TagColumn("terminal", (), np.float32),
    Column("flag", (1,), bool),
    VirtualColumn("dones", (1,), np.float32, "actions", SyntheticDones),
)


def snapshot(identities: tuple[int, ...] = (5, 7, -3)) -> TableSnapshot:
    """Three episodes of 4, 5 and 3 actions; every value tells its row."""
    rows = int(LENGTHS.sum())
    return TableSnapshot(
        columns=COLUMNS,
        length_key="actions",
        maxlen=100,
        identities=identities,
        stored={
            "obs": StoredRows(
                rows=np.arange(3.0 * (rows + 3), dtype=np.float32).reshape(-1, 3),
                counts=LENGTHS + 1,
            ),
            "actions": StoredRows(rows=np.arange(rows), counts=LENGTHS.copy()),
            "terminal": StoredRows(
                rows=np.array([0, 1, 0], np.float32), counts=np.ones(3, np.int64)
            ),
            "flag": StoredRows(
                rows=(np.arange(rows) % 2 == 0).reshape(-1, 1), counts=LENGTHS.copy()
            ),
        },
        sampler_type="UniformSampleStrategy",
        ejector_type="FifoEjectionStrategy",
        ejector_state={"identities": [5, 7, -3]},
    )


def npy(array: np.ndarray) -> bytes:
    """Return ``array`` as a file of NumPy."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def options(**changes: object) -> ReadOptions:
    """What the table that wrote `snapshot` would accept."""
    values: dict[str, object] = {
        "columns": COLUMNS,
        "length_key": "actions",
        "maxlen": 100,
        "sampler_type": "UniformSampleStrategy",
        "ejector_type": "FifoEjectionStrategy",
    }
    return ReadOptions(**(values | changes))


def assert_equal(got: TableSnapshot, expected: TableSnapshot) -> None:
    """Every episode of both has the same id and the same rows in the same types."""
    assert got.identities == expected.identities
    assert list(got.stored) == list(expected.stored)
    for (_, mine), (_, theirs) in zip(got.episodes(), expected.episodes(), strict=True):
        for name, rows in theirs.items():
            assert mine[name].dtype == rows.dtype
            np.testing.assert_array_equal(mine[name], rows)


def write_v1(content: TableSnapshot, file: Path) -> None:
    """Write ``content`` in the version that Emote writes, without its help."""
    entries = {"version": b"1"}
    configuration = {
        "ejector_type": content.ejector_type,
        "sampler_type": content.sampler_type,
        "length_key": content.length_key,
        "maxlen": content.maxlen,
        "ids": list(content.identities),
        "columns": [[c.name, type(c).__name__, c.state()] for c in content.columns],
        "part_keys": list(content.stored),
    }
    if content.ejector_state is not None:
        configuration["ejector_state"] = content.ejector_state
    entries["configuration.json"] = json.dumps(configuration).encode()
    for name, part in content.stored.items():
        starts = np.cumsum(part.counts) - part.counts
        ranges = np.stack([np.array(content.identities, np.int64), starts, part.counts], axis=1)
        for entry, array in ((f"{name}.ranges.npy", ranges), (f"{name}.npy", part.rows)):
            buffer = io.BytesIO()
            np.save(buffer, array, allow_pickle=False)
            entries[entry] = buffer.getvalue()
    with zipfile.ZipFile(file, "w") as archive:
        for entry, data in entries.items():
            archive.writestr(entry, data)


def rewrite(
    source: Path,
    change: Callable[[str, bytes], bytes | None],
    extra: dict[str, bytes] | None = None,
    compression: int = zipfile.ZIP_STORED,
) -> None:
    """Write the zip file anew; ``change`` gets each entry and returns its new content or None."""
    with zipfile.ZipFile(source) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(source, "w", compression) as archive:
        for name, content in entries.items():
            changed = change(name, content)
            if changed is not None:
                archive.writestr(name, changed)
        for name, content in (extra or {}).items():
            archive.writestr(name, content)


def rewrite_json(source: Path, name: str, change: Callable[[dict], object]) -> None:
    """Let ``change`` work on the JSON entry ``name``; what it returns replaces it, if not None."""

    def edit(entry: str, content: bytes) -> bytes:
        if entry != name:
            return content
        value = json.loads(content)
        replacement = change(value)
        return json.dumps(value if replacement is None else replacement).encode()

    rewrite(source, edit)
