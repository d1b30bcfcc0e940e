import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.errors import ConfigurationError
from cadenza.core.yaml_files import read_yaml, read_yaml_document


def test_read_yaml_returns_the_plain_values(tmp_path):
    path = tmp_path / "plain.yaml"
    path.write_text("seed: 3\nnames: [a, b]\nbase: &b {x: 1}\nmore: {<<: *b, x: 2}\n", "utf-8")
    assert read_yaml(path) == {"seed": 3, "names": ["a", "b"], "base": {"x": 1}, "more": {"x": 2}}


#: Files that are no YAML, with where and why, and what to do.
BROKEN = [
    (b"env: [unclosed\nx: 1\n", "line 1, column 6: expected YAML, got a bracket without its ']'"),
    (b"env: {a: 1\n", "line 1, column 6: expected YAML, got a bracket without its '}'; close it"),
    (b"env: [", "line 1, column 7: expected YAML, got a bracket without an end; close it"),
    (b"a: 'x\nb: 2\n", "line 1, column 4: expected YAML, got quotes without an end; close them"),
    (b"a: 1\n b: 2\n", "line 2, column 3: .* a ': ' where none may be; quote the value, or al"),
    (b"a:\n\t- x\n", "line 2, column 1: expected YAML, got a tab; indent with spaces"),
    (b"a: %y\n", "line 1, column 4: .* a value that begins with '%'; put it in quotes"),
    (b"- a\nb: 1\n", "line 2, column 1: .* a line that fits none above; align it with those"),
    (b"a: 1\nb\nc: 2\n", "line 3, column 1: .* a line without ': '; write 'key: value'"),
    (b"a: *x\n", r"line 1, column 4: .* the alias '\*x' of nothing; quote the value"),
    (b"a: &x 1\nb: &x 2\n", "line 2, column 4: .* the name of an earlier anchor; take another"),
    (b"a: 1\n---\nb: 2\n", "line 2, column 1: .* a second document; keep one, without '---'"),
    (b"{a: 1}}", "line 1, column 7: .* text after the end; remove it"),
    (b"{{ x }}: 1", "line 1, column 1: .* a list or mapping as a key; put the key in quotes"),
    (b"%YAML 9\n---\n", "line 1, column 8: .* an error: expected a digit .*; correct that place"),
    (b"seed: 1\nseed: 2\n", "line 2, column 1: .* the key 'seed' again after line 1, column 1; r"),
    (b"env:\n  task: a\n  task: b\n", "line 3, column 3: .* 'task' again after line 2, column 3"),
    (b"# caf\xe9\n", r"line 1: expected YAML in UTF-8, got b'\\xe9' at byte 5; save the file as"),
    (b"\xff\xfes\x00", r"line 1: expected YAML in UTF-8, got b'\\xff' at byte 0"),
    (b"b: 1\na: \x00", r"line 2, column 4: .* the control character U\+0000; remove it"),
    (b"a: " + b"[" * 5000, r"expected YAML, got brackets nested without end; check the file"),
    (b"a: !!python/object/apply:os.getcwd []", "line 1, column 4: .* tag '.*'; remove the tag"),
    (b"a: 2001-99-99", "line 1, column 4: .* '2001-99-99', which is no timestamp; correct it"),
    (b"a: !!timestamp x", "line 1, column 4: .* 'x', which is no timestamp"),
    (b"a: !!bool maybe", "line 1, column 4: .* 'maybe', which is no bool; .* put it in quotes"),
    (b"a: !!int x", "line 1, column 4: .* 'x', which is no int"),
]


@pytest.mark.parametrize(("content", "message"), BROKEN)
def test_read_yaml_of_anything_else_is_one_sentence(content, message, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=rf"^.*/c\.yaml: {message}") as refused:
        read_yaml(path)
    assert "\n" not in str(refused.value)
    assert str(refused.value).endswith((".", "'."))
    assert "^" not in str(refused.value)


@given(text=st.text(alphabet="ab:-[]{}'\"&*!?|>%@`#, \n\t0.~<", max_size=40))
def test_read_yaml_of_any_text_is_a_value_or_one_sentence(text, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(text)
    try:
        read_yaml(path)
    except ConfigurationError as refused:
        assert "\n" not in str(refused)  # noqa: PT017 - a value is as good


def test_places_of_values_and_keys_count_from_one(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("a:\n  - {x: 1, y: 2}\n  - z\n7: 3\nc: &c {d: 4}\ne: {<<: *c}\n")
    document = read_yaml_document(path)
    assert document.place(("a", 0, "y")) == "line 2, column 15"
    assert document.place(("a", 0, "y"), of_key=True) == "line 2, column 12"
    assert document.place(("a", 1)) == "line 3, column 5"
    assert document.place((7,), of_key=True) == "line 4, column 1"
    assert document.place(("e", "d")) == "line 5, column 11"  # where it was written
    # of what is not there, the innermost part that is
    assert document.place(("a", 0, "z", "deeper")) == "line 2, column 5"
    assert document.place(("q",)) == "line 1, column 1"


def test_read_yaml_of_an_empty_file_is_none(tmp_path):
    (tmp_path / "empty.yaml").touch()
    assert read_yaml(tmp_path / "empty.yaml") is None
    assert read_yaml_document(tmp_path / "empty.yaml").place(("a",)) == "line 1, column 1"


def test_read_yaml_of_a_missing_file_or_a_folder_says_which(tmp_path):
    with pytest.raises(ConfigurationError, match=r"absent\.yaml: expected a YAML file, got none"):
        read_yaml(tmp_path / "absent.yaml")
    with pytest.raises(ConfigurationError, match="expected a YAML file, got a folder"):
        read_yaml(tmp_path)


def test_read_yaml_of_an_unreadable_file_says_so(tmp_path, monkeypatch):
    path = tmp_path / "c.yaml"
    path.touch()

    def refuse(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(path), "read_bytes", refuse)
    with pytest.raises(ConfigurationError, match="expected a readable YAML file, got 'Permission"):
        read_yaml(path)
