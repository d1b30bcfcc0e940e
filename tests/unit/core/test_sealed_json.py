"""Sealed documents come back whole or not at all."""

import pytest

from cadenza.core.errors import IntegrityError
from cadenza.core.sealed_json import read_sealed_json, write_sealed_json


def test_document_comes_back_and_equal_facts_give_equal_bytes(tmp_path):
    facts = {"b": [1, 2.5], "a": {"x": None}}
    write_sealed_json(tmp_path / "one.json", facts, kind="thing", schema_version=3)
    write_sealed_json(
        tmp_path / "two.json", dict(reversed(facts.items())), kind="thing", schema_version=3
    )
    assert read_sealed_json(tmp_path / "one.json", kind="thing", schema_version=3) == facts
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()


def test_changed_value_is_refused(tmp_path):
    path = tmp_path / "one.json"
    write_sealed_json(path, {"rate": 0.25}, kind="thing")
    path.write_text(path.read_text().replace("0.25", "0.75"))
    with pytest.raises(IntegrityError, match="expected the document that its seal covers"):
        read_sealed_json(path, kind="thing")


@pytest.mark.parametrize(("kind", "version"), [("other", 1), ("thing", 2)])
def test_other_kind_or_version_is_refused(tmp_path, kind, version):
    write_sealed_json(tmp_path / "one.json", {}, kind="thing")
    with pytest.raises(IntegrityError, match=f"expected a document of kind '{kind}'"):
        read_sealed_json(tmp_path / "one.json", kind=kind, schema_version=version)
