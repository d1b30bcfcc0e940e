"""The examples on the pages of the learning algorithms run as printed."""

import re

import numpy as np
import pytest

from tests.campaigns import size
from tests.integration.docs.pages import blocks, execute
from tools.learning_pages import ALGORITHMS

#: Steps of a training outside of `make nightly`, where the usual ones would take long or are few.
STEPS = {"MBPO": 520, "HATD3": 2_100, "DAgger": 1_600, "BC": 500}
#: What an evaluation prints: mean and interval, and perhaps a success rate.
EVALUATION = r"-?[\d.]+ (\[-?[\d.]+, -?[\d.]+\]|\(no interval: .*\))(; success .*)?"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_example_trains_and_judges(name, tmp_path, monkeypatch, capsys):
    if name == "MBPO":
        pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)
    page = f"reference/learning/{name.lower()}.md"
    steps = STEPS.get(name, 1_020)
    program = re.sub(
        r"learn\(([\d_]+)\)",
        lambda printed: f"learn({size(steps, printed[1])}, progress=False)",
        "\n".join(blocks(page)),
    )
    program = re.sub(r"episodes=\d+", lambda printed: size("episodes=2", printed[0]), program)
    names = execute(page, program)
    printed = capsys.readouterr().out.strip().splitlines()
    if name == "BC":
        done, told = (
            np.array(part.split(), float) for part in re.findall(r"\[(.*?)\]", printed[0])
        )
        np.testing.assert_allclose(done, told, atol=0.1)
        return
    (judged,) = printed
    assert re.fullmatch(EVALUATION, judged), judged
    assert names["team" if "team" in names else "agent"].steps >= size(steps, 2_000)
    if name == "DAgger":
        assert float(judged.split()[0]) > 200.0  # the expert gets 500
