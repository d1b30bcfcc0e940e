"""A small memory and ways to spoil its file, for the tests of the file formats.

``tests/data/memory`` holds the same memory in version 2, as earlier releases wrote it: whole,
deflated, and as an index with one segment per episode.
"""

import hashlib
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from cadenza.core.files import canonical_json
from cadenza.learn.memory.column import Column, SyntheticDones, TagColumn, VirtualColumn
from cadenza.learn.memory.table import ArrayMemoryTable

V2_FILES = Path(__file__).parents[3] / "data" / "memory"
LENGTHS = (4, 5, 3)
IDENTITIES = (5, 7, -3)
COLUMNS = (
    Column("obs", (3,), np.float32),
    Column("actions", (), np.int64),
    TagColumn("terminal", (), np.float32),
    Column("flag", (1,), bool),
    VirtualColumn("dones", (1,), np.float32, "actions", SyntheticDones),
)


def memory(identities: tuple[int, ...] = IDENTITIES, **options: object) -> ArrayMemoryTable:
    """Return a table with episodes of 4, 5 and 3 actions; every value tells its row."""
    table = ArrayMemoryTable(**{"columns": COLUMNS, "maxlen": 100, **options})
    row = 0
    for episode, (identity, length) in enumerate(zip(identities, LENGTHS, strict=True)):
        observations = np.arange(3.0 * (length + 1), dtype=np.float32).reshape(-1, 3)
        actions = np.arange(row, row + length)
        table.add_sequence(
            identity,
            {
                "obs": observations + 3 * (row + episode),
                "actions": actions,
                "terminal": [float(episode == 1)],
                "flag": (actions % 2 == 0).reshape(-1, 1),
            },
        )
        row += length
    return table


def restored(path: Path, *, allow_pickle: bool = False, **options: object) -> ArrayMemoryTable:
    """Return a new table with the content of the file at ``path``, whatever its ending."""
    table = ArrayMemoryTable(**{"columns": COLUMNS, "maxlen": 100, **options})
    table.restore(path.with_suffix(""), allow_pickle=allow_pickle)
    return table


def npy(array: np.ndarray) -> bytes:
    """Return ``array`` as a file of NumPy."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def assert_equal(got: ArrayMemoryTable, expected: ArrayMemoryTable) -> None:
    """Every episode of both has the same id and the same rows in the same types."""
    assert got.identities() == expected.identities()
    for identity in expected.identities():
        mine, theirs = got.episode(identity), expected.episode(identity)
        assert list(mine) == list(theirs)
        for name, rows in theirs.items():
            assert mine[name].dtype == rows.dtype
            np.testing.assert_array_equal(mine[name], rows)


def write_v1(table: ArrayMemoryTable, file: Path) -> None:
    """Write the content of ``table`` in the version that Emote writes, without its help."""
    entries = {"version": b"1"}
    identities = table.identities()
    episodes = [table.episode(identity) for identity in identities]
    configuration = {
        "ejector_type": type(table.ejector).__name__,
        "ejector_state": table.ejector.state(),
        "sampler_type": type(table.sampler).__name__,
        "length_key": table.length_key,
        "maxlen": table.maxlen,
        "ids": identities,
        "columns": [[c.name, type(c).__name__, c.state()] for c in table.columns],
        "part_keys": list(episodes[0]),
    }
    entries["configuration.json"] = json.dumps(configuration).encode()
    for name in episodes[0]:
        counts = [len(episode[name]) for episode in episodes]
        ranges = np.stack([identities, np.cumsum(counts) - counts, counts], axis=1)
        entries[f"{name}.ranges.npy"] = npy(ranges.astype(np.int64))
        entries[f"{name}.npy"] = npy(np.concatenate([episode[name] for episode in episodes]))
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


def tensors(file: Path) -> tuple[dict, dict[str, tuple[dict, bytes]]]:
    """Return the metadata of a safetensors file, and what is said about each tensor and its data.

    Read here by hand, as the format's description says.
    """
    data = file.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    metadata = header.pop("__metadata__")
    parts = {}
    for name, about in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        first, last = about["data_offsets"]
        parts[name] = about, data[start + first : start + last]
    return metadata, parts


def manifest(file: Path) -> dict:
    """Return the manifest of a file of version 3."""
    return json.loads(tensors(file)[1]["manifest"][1])


def reseal(file: Path, change: Callable[[dict], object], **replaced: object) -> None:
    """Write a file of version 3 with a valid checksum after ``change`` to its manifest.

    ``replaced`` are arrays by the name of the tensor, with ``__`` for the stroke, None drops it.
    """
    _, parts = tensors(file)
    contents = json.loads(parts["manifest"][1])
    change(contents)
    text = canonical_json(contents)
    parts["manifest"] = {"dtype": "U8", "shape": [len(text)]}, text
    for name, array in replaced.items():
        name = name.replace("__", "/")
        if array is None:
            del parts[name]
        else:
            codes = {"float32": "F32", "float64": "F64", "int64": "I64", "uint8": "U8"}
            about = {"dtype": codes[array.dtype.name], "shape": list(array.shape)}
            parts[name] = about, array.tobytes()
    header, data = {}, b""
    for name, (about, content) in parts.items():
        offsets = [len(data), len(data) + len(content)]
        header[name] = {**about, "data_offsets": offsets}
        data += content
    digest = hashlib.sha256(canonical_json(header) + data).hexdigest()
    metadata = {"format": "cadenza-memory/3", "sha256": digest}
    head = canonical_json({"__metadata__": metadata, **header})
    file.write_bytes(len(head).to_bytes(8, "little") + head + data)
