import pytest

from cadenza.core.errors import ConfigurationError
from cadenza.core.yaml_files import read_yaml


def test_read_yaml_returns_the_plain_values(tmp_path):
    path = tmp_path / "plain.yaml"
    path.write_text("seed: 3\nnames: [a, b]\nbase: &b {x: 1}\nmore: {<<: *b, x: 2}\n", "utf-8")
    assert read_yaml(path) == {
        "seed": 3,
        "names": ["a", "b"],
        "base": {"x": 1},
        "more": {"x": 2},
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"env: [unclosed", r"expected YAML, got an error: .*c\.yaml.*line 1"),
        (b"seed: 1\nseed: 2\n", r"key 'seed' stands twice.*line 2"),
        (b"env:\n  task: a\n  task: b\n", r"key 'task' stands twice.*line 3"),
        (b"# caf\xe9\n", r"expected YAML in UTF-8, got b'\\xe9' at byte 5"),
        (b"\xff\xfes\x00", r"expected YAML in UTF-8, got b'\\xff' at byte 0"),
        (b"a: \x00", r"expected YAML, got an error: .*special characters"),
        (b"a: " + b"[" * 5000, r"expected YAML, got brackets nested without end"),
        (b"a: !!python/object/apply:os.getcwd []", r"could not determine a constructor"),
        (b"a: 2001-99-99", r"expected YAML, got an error: month must be in 1\.\.12"),
    ],
)
def test_read_yaml_of_anything_else_is_one_sentence(content, message, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=message) as refused:
        read_yaml(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert "\n" not in str(refused.value)


def test_read_yaml_of_an_empty_file_is_none(tmp_path):
    (tmp_path / "empty.yaml").touch()
    assert read_yaml(tmp_path / "empty.yaml") is None


def test_read_yaml_of_a_missing_file_or_a_folder_says_which(tmp_path):
    with pytest.raises(ConfigurationError, match=r"absent\.yaml: expected a YAML file, got none"):
        read_yaml(tmp_path / "absent.yaml")
    with pytest.raises(ConfigurationError, match="expected a YAML file, got a folder"):
        read_yaml(tmp_path)


def test_read_yaml_of_an_unreadable_file_says_so(tmp_path, monkeypatch):
    path = tmp_path / "c.yaml"
    path.touch()

    def refuse(self, encoding):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(path), "read_text", refuse)
    with pytest.raises(ConfigurationError, match="expected a readable YAML file, got 'Permission"):
        read_yaml(path)
