"""The examples of property tests are the same every time, whatever ran before."""

import importlib

from hypothesis import given, settings
from hypothesis import strategies as st


def drawn():
    seen = []

    @settings(derandomize=True, max_examples=300)
    @given(number=st.integers(), text=st.text(), share=st.floats(allow_nan=False))
    def draw(number, text, share):
        seen.append((number, text, share))

    draw()
    return seen


def test_examples_do_not_depend_on_what_was_imported_before(tmp_path, monkeypatch):
    before = drawn()
    values = [number * 1_000_003 for number in range(1, 500)]
    words = [f"word {number}" for number in range(500)]
    (tmp_path / "later_import.py").write_text(f"NUMBERS = {values}\nWORDS = {words}\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("later_import")
    assert drawn() == before
