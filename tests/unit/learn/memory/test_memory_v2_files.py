"""Version 2 files, which earlier releases wrote: checksums, segments; and the oldest format."""

import io
import json
import pickle
import shutil
import zipfile

import numpy as np
import pytest

from cadenza.core.errors import ConfigurationError, IntegrityError
from cadenza.core.files import sha256_bytes
from cadenza.learn.memory.column import Column
from cadenza.learn.memory.loading import load_plain_pickle
from tests.unit.learn.memory.memory_file_parts import (
    V2_FILES,
    assert_equal,
    memory,
    npy,
    restored,
    rewrite,
    rewrite_json,
)


@pytest.fixture(params=["v2", "v2_deflated"])
def file(request, tmp_path):
    return shutil.copyfile(V2_FILES / f"{request.param}.zip", tmp_path / "memory.zip")


@pytest.fixture
def index(tmp_path):
    """Three segments of one episode each."""
    shutil.copytree(V2_FILES / "v2_index.segments", tmp_path / "memory.segments")
    return shutil.copyfile(V2_FILES / "v2_index.zip", tmp_path / "memory.zip")


def reseal(file, change):
    """Change the manifest and renew its checksum, as an attacker could."""
    rewrite_json(file, "manifest.json", change)
    with zipfile.ZipFile(file) as archive:
        digest = sha256_bytes(archive.read("manifest.json"))
    rewrite(file, lambda name, old: digest.encode() if name == "manifest.sha256" else old)


def test_read_gives_every_episode_and_column_back(file):
    got = restored(file)
    assert_equal(got, memory())
    assert got.ejector.state() == memory().ejector.state()
    assert_equal(restored(file, maxlen=3), memory_of_the_newest())


def memory_of_the_newest():
    table = memory()
    newest = table.episode(-3)
    table.clear()
    table.add_sequence(-3, newest)
    return table


def test_every_checksum_is_checked_in_a_smaller_table_too(file):
    def spoil(name, content):  # a row of an episode that is skipped
        return content[:140] + b"\x01" + content[141:] if name == "columns/1.npy" else content

    rewrite(file, spoil)
    with pytest.raises(IntegrityError, match=r"columns/1\.npy': expected SHA-256"):
        restored(file, maxlen=3)


def test_segments_are_read_newest_first_and_only_as_many_as_fit(index):
    assert_equal(restored(index), memory())
    with zipfile.ZipFile(index) as archive:
        oldest = json.loads(archive.read("manifest.json"))["segments"][0]["file"]
    (index.parent / "memory.segments" / oldest).unlink()
    assert restored(index, maxlen=8).identities() == [7, -3]
    with pytest.raises(IntegrityError, match="got no such file; copy the folder too"):
        restored(index)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"file": "../../../etc/passwd"}, "expected segments with file"),
        ({"manifest_sha256": "0" * 64}, "whose manifest has SHA-256 00000"),
    ],
)
def test_spoiled_index_is_one_error(index, change, message):
    reseal(index, lambda manifest: manifest["segments"][1].update(change))
    with pytest.raises(IntegrityError, match=message):
        restored(index)


def test_changed_segment_is_found(index):
    file = next((index.parent / "memory.segments").iterdir())
    rewrite(file, lambda n, c: c[:-1] + b"\x07" if n == "columns/0.npy" else c)
    with pytest.raises(IntegrityError, match="expected SHA-256"):
        restored(index)


@pytest.mark.parametrize("index", range(4))
@pytest.mark.parametrize("part", [".counts", ""])
def test_changed_data_do_not_match_their_checksum(file, index, part):
    entry = f"columns/{index}{part}.npy"

    def spoil(name, content):
        return content[:-1] + bytes([content[-1] ^ 1]) if name == entry else content

    rewrite(file, spoil)
    with pytest.raises(IntegrityError, match=f"{entry}': expected SHA-256"):
        restored(file)


@pytest.mark.parametrize(
    ("entry", "content", "message"),
    [
        ("manifest.json", b"{}", r"entry 'manifest\.json': expected SHA-256 "),
        ("manifest.sha256", b"0" * 64, "changed after it was written"),
        ("manifest.sha256", b"0" * 128, "expected SHA-256 0000"),
    ],
)
def test_changed_manifest_or_seal_is_found(file, entry, content, message):
    rewrite(file, lambda name, old: content if name == entry else old)
    with pytest.raises(IntegrityError, match=message):
        restored(file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "expected format 'cadenza-memory' version 2, got 'other'"),
        ({"version": 3}, "version 2, got 'cadenza-memory' version 3"),
        ({"identities": [1, 2]}, "expected 2 counts >= 0 that sum to 15 rows"),
        ({"columns": [3]}, "expected columns with different names"),
        ({"sampler_state": 3}, "expected 'sampler_state' to be dict"),
    ],
)
def test_wrong_fields_are_one_error_each_even_with_a_valid_seal(file, change, message):
    reseal(file, lambda manifest: manifest.update(change))
    with pytest.raises(IntegrityError, match=message):
        restored(file)


@pytest.mark.parametrize("counts", [[12, -3, 3], [2**62, 2**62, 2**62]])
def test_hostile_counts_are_one_error(file, counts):
    content = npy(np.array(counts))
    rewrite(file, lambda name, old: content if name == "columns/1.counts.npy" else old)

    def change(manifest):
        manifest["columns"][1]["stored"]["counts_sha256"] = sha256_bytes(content)

    reseal(file, change)
    with pytest.raises(IntegrityError, match="column 'actions': expected 3 counts >= 0 that"):
        restored(file)


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
        return restored(file, allow_pickle=True, **({"columns": ONE_COLUMN} | changes))


def test_legacy_ids_become_negative_and_imported_ones_stay_out(tmp_path):
    file = legacy_file(tmp_path, data__pickle=old_data(), actions__npy=old_rows())
    got = read_legacy(file)
    assert got.identities() == [-4, -5]
    assert [got.episode(i)["actions"].tolist() for i in (-4, -5)] == [[1, 2], [3]]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"data__pickle": b"junk"}, "expected a pickle of plain data, got an error"),
        ({"data__pickle": [1]}, "expected a dictionary, got list"),
        ({"data__pickle": {"lengths": 3}}, "expected lengths and maxlen"),
        ({"data__pickle": old_data()}, "expected an entry 'actions.npy'"),
        (
            {"data__pickle": old_data(), "actions__npy": {3: np.array([1, 2])}},
            r"arrays in 'actions.npy', got none for the ids \[4\]",
        ),
        (
            {"data__pickle": old_data(), "actions__npy": {**old_rows(), 4: np.array([1.0])}},
            "'actions' of .*int64, got .*float64",
        ),
        (
            {"data__pickle": old_data(), "actions__npy": {**old_rows(), 4: np.array(1)}},
            "'actions.npy': expected arrays of one shape per step",
        ),
    ],
)
def test_spoiled_legacy_files_are_one_error_each(tmp_path, entries, message):
    file = legacy_file(tmp_path, **entries)
    with (
        pytest.warns(DeprecationWarning, match="legacy"),
        pytest.raises((IntegrityError, ConfigurationError), match=message),
    ):
        restored(file, allow_pickle=True, columns=ONE_COLUMN)


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
