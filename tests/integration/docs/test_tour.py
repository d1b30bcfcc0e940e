"""The code of the tour runs as it stands there, and does what the text says."""

import re
from pathlib import Path

import yaml

from cadenza.benchmark.evaluation_config import EvaluationConfig

TOUR = (Path(__file__).parents[3] / "docs" / "tour.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TOUR, flags=re.DOTALL)


def test_tour_keeps_the_ego_from_touching_the_chaser(capsys):
    (program,) = blocks("python")
    names: dict[str, object] = {}
    exec(compile(program, "docs/tour.md", "exec"), names)  # noqa: S102 - it is our own page
    assert names["closest"] > 0.4
    assert names["changed"] > 0
    assert capsys.readouterr().out.startswith("closest 0.4")


def test_tour_shows_an_evaluation_that_is_accepted():
    (text,) = blocks("yaml")
    config = EvaluationConfig.model_validate(yaml.safe_load(text))
    assert [policy.name for policy in config.policies] == ["goal_pd", "ego"]
