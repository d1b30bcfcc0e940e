"""The drawing of the architecture shows the floors and imports of today."""

from tests.e2e.commands import REPOSITORY
from tools.draw_architecture import drawing


def test_drawing_is_that_of_the_sources(monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    drawn = (REPOSITORY / "docs/images/architecture.svg").read_text("utf-8")
    assert drawn == drawing(), "run `python -m tools.draw_architecture`"
