"""The digest of a folder changes with names and bytes, and with nothing else."""

import pytest

from cadenza.core.errors import IntegrityError
from cadenza.core.files import tree_digest


def make_tree(root, files):
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


@pytest.mark.parametrize(
    "files",
    [
        {"x": "1", "sub/y": "3"},
        {"x": "1", "sub/z": "2"},
        {"x": "1", "y": "2"},
        {"x": "1"},
        {"x": "12", "sub/y": ""},
    ],
)
def test_any_change_changes_the_digest(tmp_path, files):
    before = make_tree(tmp_path / "a", {"x": "1", "sub/y": "2"})
    assert tree_digest(make_tree(tmp_path / "b", files)) != tree_digest(before)


def test_folders_without_a_digest_are_refused(tmp_path):
    for place, told in ((tmp_path / "none", "a folder, got none"), (tmp_path, "at least one file")):
        with pytest.raises(IntegrityError, match=f"expected {told}"):
            tree_digest(place)
    (tmp_path / "x").symlink_to("/etc/hostname")
    with pytest.raises(IntegrityError, match="got a link or special file"):
        tree_digest(tmp_path)
