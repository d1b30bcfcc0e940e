import importlib
import sys

import pytest

from cadenza.core.provenance import digest_of_sources, outside_code, source_digest
from cadenza.partners.crossing import CrossingChaser
from cadenza.partners.registry import load_partner


@pytest.fixture
def sources(tmp_path):
    for name, text in {
        "a.py": "x = 1\n",
        "envs/b.py": "y = 2\n",
        "cli/main.py": "z = 3\n",
        "evaluation/report/page.py": "w = 4\n",
        "note.txt": "text",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("name", ["a.py", "envs/b.py"])
def test_digest_changes_with_code_that_can_change_results(sources, name):
    before = digest_of_sources(sources)
    (sources / name).write_text("x = 5\n")
    assert digest_of_sources(sources) != before


@pytest.mark.parametrize("name", ["cli/main.py", "evaluation/report/page.py", "note.txt"])
def test_digest_ignores_what_only_starts_or_shows_results(sources, name):
    before = digest_of_sources(sources)
    (sources / name).write_text("x = 5\n")
    assert digest_of_sources(sources) == before


def test_digest_sees_renames_and_moved_boundaries(sources):
    before = digest_of_sources(sources)
    (sources / "a.py").rename(sources / "c.py")
    renamed = digest_of_sources(sources)
    assert renamed != before
    (sources / "c.py").rename(sources / "a.py")
    assert digest_of_sources(sources) == before


def defined(text):
    """A class that no file holds, as in an interactive session."""
    names = {"__name__": "nowhere"}
    exec(text, names)  # noqa: S102 - our own text
    return names["Law"]


def test_code_of_this_package_is_no_outside_code():
    assert outside_code(CrossingChaser, load_partner) == {}
    assert source_digest(CrossingChaser) == source_digest()


@pytest.mark.parametrize(
    "text",
    [
        "class Law:\n    def act(self, x):\n        return 0.5 * x\n",
        "class Law:\n    @staticmethod\n    def act(x):\n        return 0.5 * x\n",
        "class Law:\n    gain = 0.5\n",
        "class Law:\n    def act(self, x):\n        return (lambda y: 0.5 * y)(x)\n",
    ],
)
def test_outside_code_of_a_class_without_file_changes_with_what_it_does(text):
    assert outside_code(defined(text)) == outside_code(defined(f"\n\n{text}"))  # elsewhere
    assert outside_code(defined(text)) != outside_code(defined(text.replace("0.5", "0.6")))
    assert source_digest(defined(text)) != source_digest()


def test_outside_code_of_a_lone_file_is_its_sha256(tmp_path, monkeypatch):
    (tmp_path / "lone_law.py").write_text("class Law: ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    law = importlib.import_module("lone_law").Law
    # sha256sum of the line above
    digest = "79c9d3daf40eff8704b08251d30a49f81faff8cffe1e2143e170ebcd8f26d3fb"
    assert outside_code(law) == {"lone_law": digest}
    del sys.modules["lone_law"]
