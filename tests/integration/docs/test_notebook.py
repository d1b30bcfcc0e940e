"""The notebook runs from top to bottom, without Jupyter, and draws its figures."""

import json
from typing import Any

import matplotlib.pyplot as plt
import pytest

from tests.integration.docs.pages import ROOT

NOTEBOOK = ROOT / "examples" / "getting_started.ipynb"


@pytest.fixture
def figures(tmp_path, monkeypatch):
    """Collect what `plt.show` shows, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    plt.switch_backend("agg")
    shown = []
    monkeypatch.setattr(plt, "show", lambda: shown.extend(map(plt.figure, plt.get_fignums())))
    yield shown
    plt.close("all")


def test_notebook_trains_guards_and_draws(figures, capsys):
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert all(not cell.get("outputs") for cell in cells)
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(code):
        exec(compile(cell, f"cell {number}", "exec"), names)  # noqa: S102
    assert names["agent"].evaluate(episodes=5).mean > 50.0  # a random policy gets about 22
    curve = figures[0].axes[0].lines[0]
    assert len(curve.get_xdata()) == len(names["curve"].points) > 10
    distances = figures[-1].axes[0].lines
    assert min(distances[0].get_ydata()) > 0.4 > min(distances[1].get_ydata())
    assert all(safe > 0.4 for safe, _ in names["closest"].values())
    assert "closest with the filter 0.4" in capsys.readouterr().out
