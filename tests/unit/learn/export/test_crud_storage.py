"""Stored files: names, handles, retention, re-indexing, concurrency, and every refusal."""

import re
import threading
from pathlib import Path

import pytest

from cadenza.core.errors import PreconditionError, StorageError
from cadenza.learn.export.crud_storage import CRUDStorage, StorageItem, StorageItemHandle


def content(item: StorageItem) -> bytes:
    return Path(item.filepath).read_bytes()


def test_created_file_has_the_documented_name_and_content(tmp_path):
    item = CRUDStorage(tmp_path, "model_", "onnx").create_with_data(b"abc")
    assert re.fullmatch(r"model_\d{4}-\d\d-\d\d_\d\d-\d\d_0\.onnx", Path(item.filepath).name)
    assert Path(item.filepath).parent == tmp_path
    assert content(item) == b"abc"
    assert [path.name for path in tmp_path.iterdir()] == [Path(item.filepath).name]


def test_handles_count_from_zero_and_items_keep_the_order_of_creation(tmp_path):
    storage = CRUDStorage(tmp_path)
    created = [storage.create_with_data(bytes([number])) for number in range(3)]
    assert [item.handle.handle for item in created] == [0, 1, 2]
    assert list(storage.items()) == created
    assert storage.get(StorageItemHandle(1)) == created[1]
    assert storage.latest() == created[2]


def test_delete_removes_the_file_and_latest_falls_back(tmp_path):
    storage = CRUDStorage(tmp_path)
    first, second = storage.create_with_data(b"1"), storage.create_with_data(b"2")
    assert storage.delete(second.handle) is True
    assert not Path(second.filepath).exists()
    assert storage.latest() == first
    assert storage.delete(second.handle) is False
    assert storage.create_with_data(b"3").handle.handle == 2


def test_update_replaces_content_and_nothing_else(tmp_path):
    storage = CRUDStorage(tmp_path)
    item = storage.create_with_data(b"old and long")
    storage.update(item.handle, bytearray(b"new"))
    assert content(item) == b"new"
    assert list(storage.items()) == [item]
    assert len(list(tmp_path.iterdir())) == 1


def test_update_of_an_unknown_handle_is_an_error(tmp_path):
    storage = CRUDStorage(tmp_path)
    storage.create_with_data(b"")
    with pytest.raises(PreconditionError, match=r"expected a handle of \[0\], got 7"):
        storage.update(StorageItemHandle(7), b"")


def test_saver_gets_a_path_with_the_right_ending_and_may_fail_without_a_trace(tmp_path):
    storage = CRUDStorage(tmp_path, extension="npz")
    paths = []

    def failing(path: str) -> None:
        paths.append(path)
        Path(path).write_bytes(b"half")
        raise RuntimeError("no more ideas")

    with pytest.raises(RuntimeError, match="no more ideas"):
        storage.create_with_saver(failing)
    assert paths[0].endswith("_0.npz")
    assert list(tmp_path.iterdir()) == []
    assert storage.items() == []
    assert storage.create_with_data(b"").handle.handle == 0


def test_two_storages_in_one_folder_never_overwrite_each_other(tmp_path):
    first, second = CRUDStorage(tmp_path), CRUDStorage(tmp_path)
    items = [s.create_with_data(bytes([i])) for i in range(3) for s in (first, second)]
    assert len({item.filepath for item in items}) == 6
    assert sorted(content(item) for item in items) == sorted(bytes([i]) for i in (0, 0, 1, 1, 2, 2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"extension": ""}, "expected a non-empty text without dots, got ''"),
        ({"extension": ".bin"}, r"without dots, got '\.bin'"),
        ({"extension": "a/b"}, "extension: expected a text without path separators"),
        ({"prefix": "../x"}, "prefix: expected a text without path separators"),
        ({"keep_last": 0}, "expected >= 1 or None"),
    ],
)
def test_bad_configuration_is_an_error(tmp_path, arguments, message):
    with pytest.raises(PreconditionError, match=message):
        CRUDStorage(tmp_path, **arguments)


def test_existing_file_is_taken_over_under_any_name(tmp_path):
    storage = CRUDStorage(tmp_path)
    (tmp_path / "notes.txt").write_bytes(b"n")
    item = storage.create_from_filepath(str(tmp_path / "notes.txt"))
    assert item.handle.handle == 0
    assert item.filepath == str(tmp_path / "notes.txt")
    assert storage.create_from_filepath(tmp_path / "notes.txt") == item
    assert list(storage.items()) == [item]
    assert storage.create_with_data(b"").handle.handle == 1


def test_file_outside_the_folder_is_not_taken_over(tmp_path):
    storage = CRUDStorage(tmp_path / "own")
    (tmp_path / "other.bin").write_bytes(b"")
    with pytest.raises(StorageError, match=r"expected a file in .*own, got .*other.bin"):
        storage.create_from_filepath(tmp_path / "own" / ".." / "other.bin")


def test_retention_deletes_the_oldest_files(tmp_path):
    storage = CRUDStorage(tmp_path, keep_last=2)
    for number in range(4):
        storage.create_with_data(bytes([number]))
    assert [item.handle.handle for item in storage.items()] == [2, 3]
    assert sorted(path.read_bytes() for path in tmp_path.iterdir()) == [b"\x02", b"\x03"]


def test_many_threads_create_distinct_files(tmp_path):
    storage = CRUDStorage(tmp_path)
    barrier = threading.Barrier(8)

    def work(number: int) -> None:
        barrier.wait()
        for turn in range(5):
            storage.create_with_data(bytes([number, turn]))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(item.handle.handle for item in storage.items()) == list(range(40))
    assert {content(item) for item in storage.items()} == {
        bytes([n, t]) for n in range(8) for t in range(5)
    }
