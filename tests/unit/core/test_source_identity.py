import re

import pytest

from cadenza.core.source_identity import digest_of_sources, source_digest


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


def test_digest_of_the_package_is_a_sha256():
    assert re.fullmatch("[0-9a-f]{64}", source_digest())
