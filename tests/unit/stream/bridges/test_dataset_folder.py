"""Folders of unfinished datasets: who may take them, and what is never deleted."""

from pathlib import Path

import pytest

from cadenza.core.errors import StorageError
from cadenza.stream.bridges.lerobot_files import MARKER, DatasetFolder

DESCRIPTION = Path("meta/info.json")
OTHERS = [Path("data/chunk/file"), Path("meta/stats.json")]


def take(root: Path) -> DatasetFolder:
    return DatasetFolder(root, description=DESCRIPTION, others=OTHERS)


def names(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def put(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("x")


def left_by_a_killed_writer(root: Path, *paths: str) -> None:
    """Make what a killed writer leaves: a marker that nobody locks, and files."""
    put(root, MARKER, *paths)


def test_folder_is_marked_until_it_is_kept(tmp_path: Path) -> None:
    folder = take(tmp_path / "above" / "ds")
    assert names(tmp_path / "above") == ["ds", f"ds/{MARKER}"]
    put(folder.root, "meta/info.json")
    folder.keep()
    folder.keep()
    assert names(folder.root) == ["meta", "meta/info.json"]
    with pytest.raises(StorageError, match="expected a folder that does not exist yet"):
        take(folder.root)


def test_folder_that_is_given_back_stays_with_the_files_of_others(tmp_path: Path) -> None:
    folder = take(tmp_path / "ds")
    put(folder.root, "notes.txt")
    folder.give_back()
    assert names(folder.root) == ["notes.txt"]


def test_folder_of_a_writer_at_work_is_refused(tmp_path: Path) -> None:
    first = take(tmp_path / "ds")
    with pytest.raises(StorageError, match="expected no other writer in this folder"):
        take(tmp_path / "ds")
    first.give_back()
    take(tmp_path / "ds").give_back()


def test_leftovers_of_a_killed_writer_are_removed(tmp_path: Path) -> None:
    temporary = f"meta/.info.json.{'0' * 16}.cadenza-tmp"
    left_by_a_killed_writer(tmp_path / "ds", "data/chunk/file", "meta/stats.json", temporary)
    folder = take(tmp_path / "ds")
    assert names(folder.root) == [MARKER]
    folder.give_back()
    assert names(tmp_path) == []


def link_elsewhere(root: Path) -> None:
    left_by_a_killed_writer(root)
    put(root.parent / "elsewhere", "chunk/file")
    (root / "data").symlink_to(root.parent / "elsewhere")


def folder_of_others(root: Path) -> None:
    left_by_a_killed_writer(root)
    (root / "plots").mkdir()


EXISTS = "expected a folder that does not exist yet"


@pytest.mark.parametrize(
    ("make", "told"),
    [
        *(
            (lambda root, p=p: left_by_a_killed_writer(root, "data/chunk/file", p), p)
            for p in ("notes.txt", "meta/own.json", "data/chunk/.file.swp")
        ),
        (folder_of_others, "plots"),
        (link_elsewhere, "data"),
        (lambda root: left_by_a_killed_writer(root, "meta/info.json", "data/chunk/file"), EXISTS),
        (lambda root: root.mkdir(), EXISTS),
        (lambda root: root.symlink_to(root.parent), EXISTS),
        (lambda root: root.symlink_to(root.parent / "nowhere"), EXISTS),
    ],
)
def test_folder_that_a_killed_writer_did_not_leave_is_refused_and_left_alone(
    tmp_path: Path, make, told: str
) -> None:
    make(tmp_path / "ds")
    before = names(tmp_path)
    with pytest.raises(StorageError, match=told):
        take(tmp_path / "ds")
    assert names(tmp_path) == before


def test_refusal_lets_go_of_the_folder(tmp_path: Path) -> None:
    left_by_a_killed_writer(tmp_path / "ds", "notes.txt")
    with pytest.raises(StorageError, match=r"got notes\.txt as well"):
        take(tmp_path / "ds")
    (tmp_path / "ds/notes.txt").unlink()
    take(tmp_path / "ds").give_back()
