"""The page on algorithms: its first program runs, its table and its message are true."""

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from cadenza.aht.algorithms import list_algorithms
from cadenza.aht.config import load_config

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "how-to" / "train-with-another-algorithm.md").read_text(encoding="utf-8")


def test_program_trains_and_gives_the_policy_away(tmp_path, monkeypatch, capsys):
    program = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)[0]
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(program, "train-with-another-algorithm.md", "exec"), names)  # noqa: S102
    assert capsys.readouterr().out == "8 episodes\n"  # 400 frames, 50 steps each
    assert names["policy"].observation_dim == 10


def test_table_names_every_built_in_algorithm():
    named = set(re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE)) - {"algo"}
    alias = "ego_aht_hatd3"
    assert f"(`{alias}` means the same)" in PAGE
    assert named | {alias} == set(list_algorithms())


def test_message_on_the_page_is_the_real_one():
    message = re.search(r"```text\n(.*?)\n```", PAGE, flags=re.DOTALL).group(1)
    with pytest.raises(ValidationError, match=re.escape(message)):
        load_config(
            config_path=ROOT / "configs" / "train" / "mpe_cooperative_push_sac.yaml",
            overrides=["+happo.lr=0.1"],
        )
