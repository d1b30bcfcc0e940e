"""Files of memories as they are written now: layout, checksums, compression, ids of any size."""

import hashlib
import json
import zipfile

import numpy as np
import pytest
import safetensors.numpy

from cadenza.core.errors import ConfigurationError, IntegrityError
from cadenza.core.files import canonical_json
from cadenza.learn.memory.column import Column
from cadenza.learn.memory.table import ArrayMemoryTable, TableSerializationVersion
from tests.unit.learn.memory.memory_file_parts import (
    COLUMNS,
    assert_equal,
    memory,
    reseal,
    restored,
    tensors,
)

EMPTY = {"name": "a", "kind": "Column", "state": {}}


@pytest.fixture
def file(tmp_path):
    memory().store(tmp_path / "memory")
    return tmp_path / "memory.safetensors"


def test_layout_is_as_documented(file):
    metadata, parts = tensors(file)
    arrays = safetensors.numpy.load_file(file)
    assert arrays.keys() == parts.keys()
    names = ("obs", "actions", "terminal", "flag")
    assert set(parts) == {
        "manifest",
        *(f"{part}/{n}" for part in ("rows", "counts") for n in names),
    }
    header = {name: about for name, (about, _) in parts.items()}
    content = canonical_json(header) + b"".join(data for _, data in parts.values())
    assert metadata == {
        "format": "cadenza-memory/3",
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    assert arrays["counts/obs"].tolist() == [5, 6, 4]
    assert arrays["rows/obs"].dtype == np.float32
    assert arrays["rows/obs"][:, 0].tolist() == [3.0 * row for row in range(15)]
    assert arrays["rows/flag"].shape == (12, 1)
    manifest = json.loads(arrays["manifest"].tobytes())
    assert arrays["manifest"].tobytes() == canonical_json(manifest)
    assert manifest["identities"] == [5, 7, -3]
    assert manifest["columns"][0] == {
        "name": "obs",
        "kind": "Column",
        "state": {"shape": [3], "dtype": "float32"},
    }
    assert manifest["columns"][4]["mapper"] == "SyntheticDones"


@pytest.mark.parametrize("compress", [False, True])
def test_read_gives_every_episode_and_column_back(tmp_path, compress):
    memory().store(tmp_path / "memory", compress=compress)
    got = restored(tmp_path / "memory.zip")
    assert_equal(got, memory())
    assert got.ejector.state() == memory().ejector.state()


def test_deflated_file_holds_the_same_bytes(file, tmp_path):
    memory().store(tmp_path / "small", compress=True)
    with zipfile.ZipFile(tmp_path / "small.zip") as archive:
        assert archive.namelist() == ["memory.safetensors"]
        assert archive.read("memory.safetensors") == file.read_bytes()


def test_the_last_store_counts_whether_it_was_deflated_or_not(tmp_path):
    for compress in (False, True, False):
        table = memory((1, 2, 3) if compress else (4, 5, 6))
        table.store(tmp_path / "memory", compress=compress)
        assert restored(tmp_path / "memory").identities() == table.identities()
        assert len(list(tmp_path.iterdir())) == 1


def test_ids_may_have_any_size(tmp_path):
    table = memory((2**70, -(2**65), 0))
    table.store(tmp_path / "memory")
    assert_equal(restored(tmp_path / "memory"), table)


def test_types_that_safetensors_does_not_know_go_round(tmp_path):
    columns = [Column("actions", (2,), np.complex128), Column("wide", (), np.longdouble)]
    table = ArrayMemoryTable(columns=columns, maxlen=10)
    table.add_sequence(0, {"actions": [[1 + 2j, 3j]], "wide": np.array([1, 3], np.longdouble) / 3})
    table.store(tmp_path / "memory")
    assert_equal(restored(tmp_path / "memory", columns=columns), table)


def test_empty_table_goes_round(tmp_path):
    ArrayMemoryTable(columns=COLUMNS, maxlen=100).store(tmp_path / "memory")
    assert restored(tmp_path / "memory").size() == 0


def test_smaller_table_gets_the_newest_episodes(file):
    got = restored(file, maxlen=3)
    assert got.identities() == [-3]
    assert got.episode(-3)["actions"].tolist() == [9, 10, 11]
    with pytest.raises(ConfigurationError, match="at most 2 transitions"):
        restored(file, maxlen=2)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.5, 0.9, 0.999])
def test_one_changed_bit_of_the_data_or_header_is_found(file, share):
    content = bytearray(file.read_bytes())
    content[int(share * len(content))] ^= 1
    file.write_bytes(content)
    with pytest.raises(IntegrityError, match=r"memory\.safetensors: "):
        restored(file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"identities": [1, 1, 2]}, "different ids"),
        ({"identities": [1, 2]}, "expected 2 counts >= 0 that sum to 15 rows"),
        ({"identities": 1}, "expected 'identities' to be list"),
        ({"identities": [1, True, 2]}, "integers only"),
        ({"columns": [3]}, "expected columns with different names"),
        ({"columns": [EMPTY, EMPTY]}, "expected columns with different names"),
        ({"columns": [{**EMPTY, "state": 3}]}, "expected columns with different names"),
        ({"columns": [EMPTY]}, "expected rows and counts of"),
        ({"columns": {}}, "expected 'columns' to be list"),
        ({"sampler_state": 3}, "expected 'sampler_state' to be dict"),
        ({"maxlen": "1"}, "expected 'maxlen' to be int"),
        ({"segments": {}}, "expected 'segments' to be list"),
        ({"segments": [{"file": "../../etc/passwd", "sha256": ""}]}, "with file"),
    ],
)
def test_wrong_fields_are_one_error_each_even_with_a_valid_checksum(file, change, message):
    reseal(file, lambda manifest: manifest.update(change))
    with pytest.raises(IntegrityError, match=message):
        restored(file)


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({"counts__actions": np.array([12, -3, 3])}, "'actions': expected 3 counts >= 0"),
        ({"counts__actions": np.array([2**62] * 4)}, "'actions': expected rows as in the"),
        ({"counts__actions": np.array([4, 5, 9])}, "'actions': expected rows as in the"),
        ({"counts__actions": None}, "expected rows and counts of .*'actions'"),
        ({"rows__obs": np.zeros((15, 4), np.float32)}, "'obs': expected rows as in the manifest"),
        ({"rows__obs": np.zeros((14, 3), np.float32)}, "'obs': expected rows as in the manifest"),
        ({"rows__obs": np.zeros((15, 3))}, "'obs': expected rows as in the manifest"),
        ({"rows__flag": np.full((12, 1), 7, np.uint8)}, "'flag': expected booleans as bytes"),
        ({"rows__more": np.zeros(3)}, "expected rows and counts of"),
        ({"manifest": np.zeros(3, np.uint8)}, "expected strict JSON"),
    ],
)
def test_wrong_tensors_are_one_error_each_even_with_a_valid_checksum(file, replaced, message):
    reseal(file, lambda manifest: None, **replaced)
    with pytest.raises(IntegrityError, match=message):
        restored(file)


def test_columns_that_differ_are_errors(file):
    with pytest.raises(ConfigurationError, match=r"expected column 'obs' of shape \(2,\)"):
        restored(file, columns=(Column("obs", (2,), np.float32), *COLUMNS[1:]))
    with pytest.raises(ConfigurationError, match=r"expected rows of the columns .*, got .*'obs'"):
        restored(file, columns=COLUMNS[1:])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "header too small"),
        (b"\xff" * 100, "header too large"),
        ((2).to_bytes(8, "little") + b"{}", "expected the format 'cadenza-memory/3', got None"),
        (
            (88).to_bytes(8, "little")
            + b'{"a":{"dtype":"F32","shape":[4611686018427387904,1024],"data_offsets":[0,2]}}'
            + b" " * 11
            + b"ab",
            "overflow",
        ),
    ],
)
def test_foreign_and_hostile_headers_are_refused(file, content, message):
    file.write_bytes(content)
    with pytest.raises(IntegrityError, match=message):
        restored(file)


def test_older_versions_are_not_written(tmp_path):
    with pytest.raises(ConfigurationError, match=r"expected V3 to write a memory, got .*V2"):
        memory().store(tmp_path / "memory", TableSerializationVersion.V2)
    with pytest.raises(FileNotFoundError, match="expected a stored memory"):
        restored(tmp_path / "memory")
