"""Soft actor-critic with memory, collector and trainer learns, not only runs."""

import json

import pytest

from tests.e2e.commands import REPOSITORY, warm


@pytest.mark.slow
def test_sac_hits_the_middle_after_2000_updates(tmp_path):
    program = REPOSITORY / "examples" / "hit_the_middle_sac.py"
    words = ("--seed", "0", "--json", "--out", tmp_path)
    done = warm(program, *words, cwd=tmp_path, timeout=800.0)
    assert done.code == 0, done.err
    result = json.loads(done.out)["seeds"]["0"]
    # A policy that has learned nothing gets about -30; -5 is the bar of the engine this follows.
    assert result["mean_return"] > -3.0
    assert result["curve"][0][1] < -15.0
