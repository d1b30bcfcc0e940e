"""Version 2 files: checksums, compression, ids of any size; and the oldest format."""

import io
import json
import pickle
import zipfile

import numpy as np
import pytest

from cadenza.core.errors import IntegrityError
from cadenza.core.files import canonical_json, sha256_bytes
from cadenza.learn.memory.column import Column
from cadenza.learn.memory.emote_formats import load_plain_pickle
from cadenza.learn.memory.files import TableSerializationVersion, read_snapshot, write_snapshot
from tests.unit.learn.memory.memory_file_parts import (
    assert_equal,
    npy,
    options,
    rewrite,
    rewrite_json,
    snapshot,
)

V2 = TableSerializationVersion.V2
EMPTY = {"name": "a", "kind": "Column", "state": {}, "stored": None}


@pytest.fixture(params=[False, True], ids=["stored", "deflated"])
def file(request, tmp_path):
    write_snapshot(snapshot(), tmp_path / "memory", V2, compress=request.param)
    return tmp_path / "memory.zip"


def read(file, **changes):
    return read_snapshot(file.with_suffix(""), options(**changes))


def reseal(file, change):
    """Change the manifest and renew its checksum, as an attacker could."""
    rewrite_json(file, "manifest.json", change)
    with zipfile.ZipFile(file) as archive:
        digest = sha256_bytes(archive.read("manifest.json"))
    rewrite(file, lambda name, old: digest.encode() if name == "manifest.sha256" else old)


def test_layout_is_as_documented(file):
    with zipfile.ZipFile(file) as archive:
        assert archive.namelist() == [
            "version",
            *(f"columns/{i}{part}.npy" for i in range(4) for part in (".counts", "")),
            "manifest.json",
            "manifest.sha256",
        ]
        assert archive.read("version") == b"2"
        manifest = json.loads(archive.read("manifest.json"))
        counts = np.load(io.BytesIO(archive.read("columns/0.counts.npy")))
        obs = manifest["columns"][0]
        assert obs["stored"] == {
            "counts_sha256": sha256_bytes(archive.read("columns/0.counts.npy")),
            "rows_sha256": sha256_bytes(archive.read("columns/0.npy")),
        }
        assert archive.read("manifest.json") == canonical_json(manifest)
        assert archive.read("manifest.sha256").decode() == sha256_bytes(canonical_json(manifest))
    assert counts.tolist() == [5, 6, 4]
    assert manifest["identities"] == [5, 7, -3]
    assert manifest["columns"][4]["mapper"] == "SyntheticDones"
    assert manifest["columns"][4]["stored"] is None


def test_read_gives_every_episode_and_column_back(file):
    got = read(file)
    assert_equal(got, snapshot())
    assert got.ejector_state == {"identities": [5, 7, -3]}
    assert got.maxlen == 100


def test_ids_may_have_any_size(tmp_path):
    content = snapshot((2**70, -(2**65), 0))
    write_snapshot(content, tmp_path / "memory", V2)
    assert_equal(read(tmp_path / "memory.zip"), content)


def test_smaller_table_gets_the_newest_episodes_and_every_checksum_is_still_checked(file):
    got = read(file, maxlen=3)
    assert got.identities == (-3,)
    assert got.stored["actions"].rows.tolist() == [9, 10, 11]

    def spoil(name, content):  # a row of an episode that is skipped
        return content[:140] + b"\x01" + content[141:] if name == "columns/1.npy" else content

    rewrite(file, spoil)
    with pytest.raises(IntegrityError, match=r"columns/1\.npy': expected SHA-256"):
        read(file, maxlen=3)


@pytest.mark.parametrize("index", range(4))
@pytest.mark.parametrize("part", [".counts", ""])
def test_changed_data_do_not_match_their_checksum(file, index, part):
    entry = f"columns/{index}{part}.npy"

    def spoil(name, content):
        return content[:-1] + bytes([content[-1] ^ 1]) if name == entry else content

    rewrite(file, spoil)
    with pytest.raises(IntegrityError, match=f"{entry}': expected SHA-256"):
        read(file)


@pytest.mark.parametrize(
    ("entry", "content", "message"),
    [
        ("manifest.json", b"{}", r"entry 'manifest\.json': expected the SHA-256 that"),
        ("manifest.sha256", b"0" * 64, "changed after it was written"),
        ("manifest.sha256", b"0" * 128, "expected at most 64 bytes, got more"),
    ],
)
def test_changed_manifest_or_seal_is_found(file, entry, content, message):
    rewrite(file, lambda name, old: content if name == entry else old)
    with pytest.raises(IntegrityError, match=message):
        read(file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "expected format 'cadenza-memory' version 2, got 'other'"),
        ({"version": 3}, "version 2, got 'cadenza-memory' version 3"),
        ({"identities": [1, 1, 2]}, "different ids"),
        ({"identities": [1, 2]}, r"expected int64 of shape \(2,\), got int64 of shape \(3,\)"),
        ({"identities": 1}, "expected 'identities' to be list"),
        ({"columns": [3]}, "expected columns with different names"),
        ({"columns": [EMPTY, EMPTY]}, "expected columns with different names"),
        ({"columns": [{**EMPTY, "state": 3}]}, "expected columns with different names"),
        ({"columns": {}}, "expected 'columns' to be list"),
        ({"sampler_state": 3}, "expected 'sampler_state' to be dict"),
    ],
)
def test_wrong_fields_are_one_error_each_even_with_a_valid_seal(file, change, message):
    reseal(file, lambda manifest: manifest.update(change))
    with pytest.raises(IntegrityError, match=message):
        read(file)


@pytest.mark.parametrize("counts", [[12, -3, 3], [2**62, 2**62, 2**62]])
def test_hostile_counts_are_one_error(file, counts):
    content = npy(np.array(counts))
    rewrite(file, lambda name, old: content if name == "columns/1.counts.npy" else old)

    def change(manifest):
        manifest["columns"][1]["stored"]["counts_sha256"] = sha256_bytes(content)

    reseal(file, change)
    with pytest.raises(IntegrityError, match="column 'actions': expected counts >= 0 and at most"):
        read(file)


def legacy_file(tmp_path, **entries):
    with zipfile.ZipFile(tmp_path / "memory.zip", "w") as archive:
        for name, value in entries.items():
            content = value if isinstance(value, bytes) else pickle.dumps(value, protocol=4)
            archive.writestr(name.replace("__", "."), content)
    return tmp_path / "memory.zip"


ONE_COLUMN = (Column("actions", (), np.int64),)


def old_data(**changes):
    return {"lengths": {3: 2, 4: 1, -7: 5}, "maxlen": 10, "filled": False} | changes


def old_rows():
    return {3: np.array([1, 2]), 4: np.array([3]), -7: np.zeros(5, np.int64)}


def read_legacy(file, **changes):
    with pytest.warns(DeprecationWarning, match="legacy memory format is a pickle"):
        return read(file, allow_pickle=True, **({"columns": ONE_COLUMN} | changes))


def test_legacy_ids_become_negative_and_imported_ones_stay_out(tmp_path):
    file = legacy_file(tmp_path, data__pickle=old_data(), actions__npy=old_rows())
    got = read_legacy(file)
    assert got.identities == (-4, -5)
    assert [rows["actions"].tolist() for _, rows in got.episodes()] == [[1, 2], [3]]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"data__pickle": b"junk"}, "expected a pickle of plain data, got an error"),
        ({"data__pickle": [1]}, "expected a dictionary, got list"),
        ({"data__pickle": {"lengths": 3}}, "expected lengths and maxlen"),
        ({"data__pickle": old_data()}, "expected an entry 'actions.npy'"),
        (
            {"data__pickle": old_data(), "actions__npy": {3: np.array([1, 2])}},
            "expected an array for id 4, got none",
        ),
        (
            {"data__pickle": old_data(), "actions__npy": {**old_rows(), 4: np.array([1.0])}},
            r"expected int64 of shape \('any',\) for id 4, got float64",
        ),
        (
            {"data__pickle": old_data(), "actions__npy": {**old_rows(), 4: np.array(1)}},
            r"for id 4, got int64 of shape \(\)",
        ),
    ],
)
def test_spoiled_legacy_files_are_one_error_each(tmp_path, entries, message):
    file = legacy_file(tmp_path, **entries)
    with (
        pytest.warns(DeprecationWarning, match="legacy"),
        pytest.raises(IntegrityError, match=message),
    ):
        read(file, allow_pickle=True, columns=ONE_COLUMN)


class Runs:
    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def load(value):
    return load_plain_pickle(io.BytesIO(pickle.dumps(value, protocol=4)), source="test")


def test_code_in_a_pickle_is_refused_and_does_not_run(tmp_path):
    marker = tmp_path / "ran"
    with pytest.raises(IntegrityError, match="is not plain data"):
        load({"a": Runs(open, str(marker), "w")})
    with pytest.raises(IntegrityError, match=r"test: expected .* builtins\.eval is not plain data"):
        load({"a": Runs(eval, f"open({str(marker)!r}, 'w')")})
    assert not marker.exists()


def test_attributes_of_known_types_cannot_be_reached():
    with pytest.raises(IntegrityError, match=r"an attribute of .* is asked for"):
        load({"a": Runs(getattr, dict, "fromkeys")})


def foreign(module, name):
    """Opcodes that push the global ``module.name``."""
    return (
        b"".join(b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name)) + b"\x93"
    )


def test_objects_of_the_old_package_become_inert():
    """{"s": emote.memory.storage.BaseStorage with item 1: 2 and state {"x": 3}}, and a method."""
    storage = foreign("emote.memory.storage", "BaseStorage")
    opcodes = (
        b"\x80\x04}(\x8c\x01s" + storage + b")\x81"  # NEWOBJ
        b"K\x01K\x02s}\x8c\x01xK\x03sb"  # item 1: 2, state {"x": 3}
        b"\x8c\x01m" + foreign("builtins", "getattr") + storage + b"\x8c\x07as_mask\x86R"
        b"u."
    )
    got = load_plain_pickle(io.BytesIO(opcodes), source="test")
    assert type(got["s"]).__name__ == "BaseStorage"
    assert got["s"] == {1: 2}
    assert got["s"].inert_state == {"x": 3}
    assert got["m"].__name__ == "BaseStorage"
