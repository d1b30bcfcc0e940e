"""Presets are settings of their class, and scores that the README of learning shows."""

import re
from pathlib import Path

import pytest

import cadenza
from cadenza.core.errors import ConfigurationError
from cadenza.learn.agents.presets import presets

README = Path(__file__).parents[3] / "src/cadenza/learn/agents/README.md"


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


def test_class_returns_its_preset_as_keywords():
    agent = cadenza.SAC("Pendulum-v1", seed=0, **cadenza.SAC.preset("Pendulum-v1"))
    assert (agent.envs.num_envs, agent.config.learning_rate) == (4, 0.001)
    # Its score needs scaled rewards, so settings alone are none.
    with pytest.raises(ConfigurationError, match=r"expected one of \[\], got 'Pendulum-v1'"):
        cadenza.HLGauss.preset("Pendulum-v1")


def test_unknown_task_is_answered_with_those_that_have_presets():
    with pytest.raises(ConfigurationError) as caught:
        cadenza.TD3.preset("Pendulm-v1")
    assert "['Pendulum-v1'], got 'Pendulm-v1' (did you mean 'Pendulum-v1'?)" in str(caught.value)
