"""Soft actor-critic with memory, collector and trainer learns, not only runs."""

import json

import pytest

from tests.campaigns import size
from tests.e2e.commands import REPOSITORY, warm

#: Updates, and what the last batches must be better than: -5 after 2000 is the bar of the engine
#: that this follows; a policy that has learned nothing gets about -30.
UPDATES, BAR = size((1000, -15.0), (2000, -3.0))


@pytest.mark.slow
def test_sac_hits_the_middle(tmp_path):
    program = REPOSITORY / "examples" / "hit_the_middle_sac.py"
    words = ("--seed", "0", "--steps", str(UPDATES), "--json", "--out", tmp_path)
    done = warm(program, *words, cwd=tmp_path, timeout=800.0)
    assert done.code == 0, done.err
    result = json.loads(done.out)["seeds"]["0"]
    assert result["mean_return"] > BAR
    assert result["curve"][0][1] < -15.0
