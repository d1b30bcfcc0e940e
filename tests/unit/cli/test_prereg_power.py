"""`cadenza prereg power`: what a registered design can show."""

import json

import pytest
from typer.testing import CliRunner

from cadenza.cli.main import app

AXIS = """
axis: CM
condition_pair: {homogeneous_id: a, heterogeneous_id: b}
seeds: [0, 1, 2, 3, 4]
episodes_per_seed: 20
estimator: iqm_success_rate
git_tag: prereg-x
"""


@pytest.fixture
def power(tmp_path):
    def told(*words, axis=AXIS):
        (tmp_path / "axis.yaml").write_text(axis)
        return CliRunner().invoke(app, ["prereg", "power", str(tmp_path / "axis.yaml"), *words])

    return told


def test_power_grows_with_the_gap_and_is_small_at_the_gate(power):
    told = json.loads(power("--json").stdout)
    assert (told["seeds"], told["episodes"], told["gate"]) == (5, 20, 0.2)
    curve = dict(told["power"])
    assert list(curve.values()) == sorted(curve.values())
    assert curve[0.2] <= 0.05 < 0.6 < curve[0.5]  # one-sided level 2.5 % at the gate
    assert 0.4 <= told["smallest_gap"] <= 0.6


def test_power_says_its_design_before_the_table(power):
    small = AXIS.replace("[0, 1, 2, 3, 4]", "[0, 1]").replace("20", "3")
    assert "2 seeds of 3 pairs; shown: a gap above 20 points" in power(axis=small).stdout
