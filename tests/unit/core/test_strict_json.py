import pytest

from cadenza.core import strict_json
from cadenza.core.errors import IntegrityError
from cadenza.core.strict_json import parse_json_object


def test_object_is_returned():
    assert parse_json_object(b'{"a": [1, null, "\xc3\xa4"]}', source="x") == {"a": [1, None, "ä"]}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"a": 1} {}', "expected strict JSON"),
        (b'{"a": {"b": 1, "b": 2}}', "a key is repeated among"),
        (b'{"a": -Infinity}', "the number -Infinity is not JSON"),
        (b'{"a": "\xff"}', "expected strict JSON"),
        (b"null", "expected a JSON object, got NoneType"),
        (b"", "expected strict JSON"),
    ],
)
def test_anything_looser_is_refused(data, message):
    with pytest.raises(IntegrityError, match=f"^file: .*{message}"):
        parse_json_object(data, source="file")


def test_document_beyond_every_size_we_write_is_refused_unparsed(monkeypatch):
    monkeypatch.setattr(strict_json, "MAX_JSON_BYTES", 5)
    with pytest.raises(IntegrityError, match="expected at most 5 bytes of JSON, got 6"):
        parse_json_object(b'{"":1}', source="file")
