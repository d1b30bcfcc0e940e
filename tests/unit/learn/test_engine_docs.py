"""The pages about the engine: their code runs, and every name they promise exists."""

import importlib
import re
from pathlib import Path

import pytest

from cadenza.learn import Trainer

ROOT = Path(__file__).parents[3]
ENGINE_PAGE = ROOT / "docs" / "learning-engine.md"
EMOTE_PAGE = ROOT / "docs" / "how-to" / "coming-from-emote.md"
ROW = re.compile(r"\| `([\w.]+)` \| (.+) \| `([\w.]+)` \|")

ROWS = [
    (old, name, new)
    for old, names, new in ROW.findall(EMOTE_PAGE.read_text())
    for name in re.findall(r"`(\w+)`", names)
]


def test_table_covers_the_modules_of_emote():
    assert len({old for old, _, _ in ROWS}) > 60
    assert len(ROWS) > 180


@pytest.mark.parametrize(("old", "name", "new"), ROWS, ids=[f"{row[0]}.{row[1]}" for row in ROWS])
def test_name_from_emote_exists_where_the_page_says(old, name, new):
    if new.endswith("wb_logger"):
        pytest.importorskip("wandb")
    assert getattr(importlib.import_module(new), name) is not None


def test_page_says_which_documented_field_does_not_exist():
    assert "`Trainer` has no `cycle_length`" in EMOTE_PAGE.read_text()
    assert not hasattr(Trainer([], []), "cycle_length")


def test_code_of_the_engine_page_runs():
    blocks = re.findall(r"```python\n(.*?)```", ENGINE_PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) == 2
    exec(compile("\n".join(blocks), str(ENGINE_PAGE), "exec"), {})  # noqa: S102 -- our own page
