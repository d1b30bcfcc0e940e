"""The code of the tour runs as it stands there, and does what the text says."""

import re
from pathlib import Path

import yaml

from cadenza.benchmark.evaluation_config import EvaluationConfig
from cadenza.partners.registry import isolated_registry

ROOT = Path(__file__).parents[3]
TOUR = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TOUR, flags=re.DOTALL)


def test_tour_keeps_the_ego_from_touching_the_chaser_and_adds_a_partner(
    capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    program = "\n".join(blocks("python"))
    names: dict[str, object] = {}
    with isolated_registry():
        exec(compile(program, "docs/tour.md", "exec"), names)  # noqa: S102 - it is our own page
    assert names["closest"] > 0.4
    assert names["changed"] > 0
    printed = capsys.readouterr().out
    assert printed.startswith("closest 0.4")
    assert "\npolite: [" in printed


def test_partner_of_the_tour_has_the_twenty_lines_that_the_front_page_promises():
    assert "your own partner in 20 lines" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert len([line for line in blocks("python")[1].splitlines() if line.strip()]) <= 20


def test_tour_shows_an_evaluation_that_is_accepted():
    (text,) = blocks("yaml")
    config = EvaluationConfig.model_validate(yaml.safe_load(text))
    assert [policy.name for policy in config.policies] == ["goal_pd", "ego"]
