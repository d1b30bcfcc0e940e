"""Version 1 files: what is read, what is refused."""

import io
import logging
import zipfile

import numpy as np
import pytest

from cadenza.core.errors import ConfigurationError, IntegrityError
from cadenza.learn.memory.column import Column
from cadenza.learn.memory.strategy import UniformEjectionStrategy
from tests.unit.learn.memory.memory_file_parts import (
    COLUMNS,
    assert_equal,
    memory,
    npy,
    restored,
    rewrite,
    rewrite_json,
    write_v1,
)

CONFIGURATION = "configuration.json"


@pytest.fixture
def file(tmp_path):
    write_v1(memory(), tmp_path / "memory.zip")
    return tmp_path / "memory.zip"


def test_read_gives_every_episode_and_column_back(file):
    got = restored(file)
    assert_equal(got, memory())
    assert got.ejector.state() == memory().ejector.state()
    assert got.ejector.state()["identities"] == [5, 7, -3]
    assert got.sampler.state() == memory().sampler.state()


def test_smaller_table_gets_the_newest_episodes_that_fit(file, caplog):
    with caplog.at_level(logging.WARNING):
        got = restored(file, maxlen=8)  # 5 + 3 fit, 4 + 5 + 3 do not
    assert got.identities() == [7, -3]
    assert got.episode(7)["actions"].tolist() == [4, 5, 6, 7, 8]
    assert got.episode(7)["obs"][0].tolist() == [15.0, 16.0, 17.0]
    assert "the 1 oldest of 3 episodes stay out" in caplog.text


def test_table_too_small_for_the_newest_episode_is_an_error(file):
    with pytest.raises(ConfigurationError, match=r"at most 2 transitions.*got 3; use a larger"):
        restored(file, maxlen=2)


def test_rows_in_another_order_are_followed(file):
    """Rows of the episodes as 3, 4, 5 actions instead of 4, 5, 3."""
    order = [2, 0, 1]
    starts, counts = [0, 4, 9], [4, 5, 3]

    def turn(name, content):
        buffer = io.BytesIO()
        if name == "actions.npy":
            rows = np.load(io.BytesIO(content))
            np.save(
                buffer, np.concatenate([rows[starts[i] : starts[i] + counts[i]] for i in order])
            )
        elif name == "actions.ranges.npy":
            np.save(buffer, np.array([[5, 3, 4], [7, 7, 5], [-3, 0, 3]]))
        else:
            return content
        return buffer.getvalue()

    rewrite(file, turn)
    assert_equal(restored(file), memory())
    assert restored(file, maxlen=3).episode(-3)["actions"].tolist() == [9, 10, 11]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            COLUMNS[1:],
            r"expected rows of the columns \['actions', 'flag', 'terminal'\], got .*'obs'",
        ),
        ((*COLUMNS, Column("more", (), np.float32)), r"expected rows of the columns .*'more'"),
        (
            (Column("obs", (3,), np.float64), *COLUMNS[1:]),
            r"expected column 'obs' of shape \(3,\) and type float64, got \(3,\) and float32",
        ),
        (
            (Column("obs", (2,), np.float32), *COLUMNS[1:]),
            r"expected column 'obs' of shape \(2,\) .*, got \(3,\)",
        ),
    ],
)
def test_columns_that_differ_are_errors(file, columns, message):
    with pytest.raises(ConfigurationError, match=message):
        restored(file, columns=columns)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("obs.npy", npy(np.zeros((15, 3))), "'obs' of .*float32, got .*float64"),
        (
            "obs.npy",
            npy(np.zeros((15, 4), np.float32)),
            r"memory\.zip: .*'obs' of shape \(3,\).*, got \(4,\)",
        ),
        ("obs.npy", npy(np.zeros((14, 3), np.float32)), "ranges of column 'obs' within 14 rows"),
        ("obs.npy", npy(np.float32(3)), r"'obs' as rows.* got arrays of shapes \(\)"),
        ("obs.npy", npy(np.array([object()] * 15)), "Object arrays cannot be loaded"),
        ("obs.npy", b"junk", "entry 'obs.npy': expected readable data, got an error"),
        ("obs.npy", b"\x93NUMPY\x09\x00" + bytes(100), "entry 'obs.npy': .* not \\(9, 0\\)"),
        ("obs.npy", npy(np.zeros(0))[:20], "entry 'obs.npy': expected readable data"),
        ("flag.npy", npy(np.full((12, 1), 7, np.uint8)).replace(b"'|u1'", b"'|b1'"), "bytes 0 and"),
        (
            "obs.ranges.npy",
            npy(np.zeros((3, 3), np.int64)),
            "one range of column 'obs' for each of the ids",
        ),
        ("obs.ranges.npy", npy(np.zeros((2, 3), np.int64)), r"shapes \(15, 3\) and \(2, 3\)"),
        ("obs.ranges.npy", npy(np.array([[5, 0, 15], [7, 15, 6], [-3, 21, -6]])), "within 15"),
        (
            "obs.ranges.npy",
            npy(np.array([[5, 0, 2**62], [7, 2**62, 2**62], [-3, 0, 2**62]])),
            "within 15 rows",
        ),
        ("obs.ranges.npy", npy(np.array([[5, 9, 5], [7, 11, 6], [-3, 0, 4]])), "within 15 rows"),
        ("obs.npy", None, r"missing ones \['obs.npy'\]"),
        ("version", b"9", "expected version 1 or 2, got b'9'"),
        (CONFIGURATION, b"", "expected strict JSON"),
        (CONFIGURATION, b"[]", "expected a JSON object, got list"),
        (CONFIGURATION, b'{"ids": NaN}', "the number NaN is not JSON"),
        (CONFIGURATION, b'{"ids": [1], "ids": [2]}', "a key is repeated"),
        (CONFIGURATION, b"[" * 100_000, "expected strict JSON"),
        (CONFIGURATION, b"\xff\xfe", "expected strict JSON"),
        (CONFIGURATION, b'{"ids": [' + b"9" * 5000 + b"]}", "expected strict JSON"),
    ],
)
def test_spoiled_entries_are_one_error_each(file, name, content, message):
    rewrite(file, lambda entry, old: content if entry == name else old)
    with pytest.raises((IntegrityError, ConfigurationError), match=message):
        restored(file)


def test_rows_in_fortran_order_are_read(file):
    rows = np.asfortranarray(np.arange(45, dtype=np.float32).reshape(15, 3))
    rewrite(file, lambda entry, old: npy(rows) if entry == "obs.npy" else old)
    assert_equal(restored(file), memory())


def test_entry_that_is_there_twice_is_an_error(file):
    with zipfile.ZipFile(file, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("obs.npy", b"x")
    with pytest.raises(IntegrityError, match="got a name twice"):
        restored(file)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("ids", None, "expected 'ids' to be list, got NoneType"),
        ("ids", [1, True, 2], "integers only"),
        ("ids", [5, 7, 7], "different ids"),
        ("ids", [5, 7, "-3"], "integers only"),
        ("maxlen", "100", "expected 'maxlen' to be int, got str"),
        ("maxlen", True, "expected 'maxlen' to be int, got bool"),
        ("length_key", 3, "expected 'length_key' to be str"),
        ("sampler_type", [], "expected 'sampler_type' to be str"),
        ("ejector_state", [1], "expected 'ejector_state' to be dict, got list"),
        ("part_keys", {}, "expected 'part_keys' to be list"),
        ("part_keys", ["obs", "nowhere"], "expected part_keys among"),
        ("columns", 5, "expected 'columns' to be list"),
        ("columns", [["obs", "Column"]], r"expected columns as \[name, class, state\]"),
        ("columns", [["obs", "Column", 3]], r"expected columns as \[name, class, state\]"),
    ],
)
def test_wrong_fields_are_one_error_each(file, field, value, message):
    rewrite_json(file, CONFIGURATION, lambda configuration: configuration.update({field: value}))
    with pytest.raises(IntegrityError, match=message):
        restored(file)


@pytest.mark.parametrize(
    ("compression", "field", "value", "message"),
    [
        (zipfile.ZIP_STORED, "file_size", 10**12, r"at most \d+ bytes unpacked, got 100000"),
        (zipfile.ZIP_DEFLATED, "file_size", 2**30, r"1073741824 bytes unpacked, got 10737"),
        (zipfile.ZIP_STORED, "flag_bits", 1, r"entry 'obs\.npy'.*encrypted"),
    ],
    ids=["two sizes", "bomb", "encrypted"],
)
def test_directory_that_promises_something_else_is_refused(
    file, compression, field, value, message
):
    rewrite(file, lambda name, content: content, compression=compression)
    with zipfile.ZipFile(file, "a") as archive:
        setattr(archive.getinfo("obs.npy"), field, value)
        archive._didModify = True
    with pytest.raises(IntegrityError, match=message):
        restored(file)


def test_overlapping_entries_are_refused(file):
    """Every entry of the directory points at the same large data, as in a bomb of overlaps."""
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("large", bytes(100_000))
    with zipfile.ZipFile(file, "a") as archive:
        large = archive.getinfo("large")
        for info in archive.infolist():
            info.compress_size = info.file_size = large.file_size
        archive._didModify = True
    with pytest.raises(IntegrityError, match=r"at most .* bytes unpacked"):
        restored(file)


def test_header_alone_cannot_ask_for_memory(file):
    """The npy header and the configuration promise 10^12 rows; the entry has none."""

    def grow(name, content):
        if name == "terminal.ranges.npy":
            return npy(np.array([[5, 0, 10**12], [7, 10**12, 1], [-3, 10**12 + 1, 1]]))
        if name == "terminal.npy":
            return npy(np.zeros(3, np.float32)).replace(
                b"(3,), }            ", b"(1000000000002,), }"
            )
        return content

    rewrite(file, grow)
    with pytest.raises(IntegrityError, match=r"entry 'terminal\.npy': expected readable data"):
        restored(file)


def test_data_that_end_before_the_promised_size_are_an_error(file):
    rewrite(
        file,
        lambda name, content: content[:-8] if name == "obs.npy" else content,
        compression=zipfile.ZIP_DEFLATED,
    )
    with zipfile.ZipFile(file, "a") as archive:
        archive.getinfo("obs.npy").file_size += 8
        archive._didModify = True
    with pytest.raises(IntegrityError, match=r"'obs\.npy'.*the data end 8 bytes too early"):
        restored(file)


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_other_compression_is_an_error(file, method):
    rewrite(file, lambda name, content: content, compression=method)
    with pytest.raises(IntegrityError, match="stored or deflated, got compression"):
        restored(file)


def test_settings_that_differ_are_warnings(file, caplog):
    restored(file)
    assert caplog.text == ""
    assert_equal(restored(file, ejector=UniformEjectionStrategy(), maxlen=50), memory())
    assert "ejector type of the table is UniformEjection" in caplog.text
    assert "of the file FifoEjectionStrategy" in caplog.text
    assert "maxlen of the table is 50, of the file 100" in caplog.text
