"""Presets are settings of their class, and scores that the README of learning shows."""

import re
from pathlib import Path

import pytest

import cadenza
from cadenza.learn.agents.presets import presets

README = Path(__file__).parents[3] / "src/cadenza/learn/README.md"


@pytest.mark.parametrize("preset", presets().values(), ids=list(presets()))
def test_preset_is_settings_of_its_class(preset):
    given = {name: value for name, value in preset.settings.items() if name != "num_envs"}
    config = getattr(cadenza, preset.algorithm).Config(**given).model_dump(mode="json")
    assert {name: config[name] for name in given} == given
    mean, *ends = preset.score
    assert not ends or ends[0] < mean < ends[1]


def test_readme_shows_every_score_with_its_interval_and_seeds():
    shown = {}
    for line in README.read_text("utf-8").replace("−", "-").splitlines():
        if name := re.search(r"`scores.py (\w+)` \|$", line):
            _, _, _, _, seeds, score, *_ = line.split("|")
            numbers = [float(number) for number in re.findall(r"-?\d+\.\d", score)]
            shown[name[1]] = (int(seeds), numbers)
    assert shown == {name: (each.seeds, list(each.score)) for name, each in presets().items()}
