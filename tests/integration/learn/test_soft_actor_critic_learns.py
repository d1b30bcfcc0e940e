"""Soft actor-critic with memory, collector and trainer learns, not only runs."""

import re

import pytest

from tests.campaigns import size
from tests.e2e.commands import REPOSITORY, warm

#: Updates, and what the last batches must be better than: -5 after 2000 is the bar of the engine
#: that this follows; a policy that has learned nothing gets about -30.
UPDATES, BAR = size((1000, -15.0), (2000, -3.0))


@pytest.mark.slow
def test_sac_hits_the_middle(tmp_path):
    program = REPOSITORY / "examples" / "hit_the_middle_sac.py"
    done = warm(program, "--updates", str(UPDATES), cwd=tmp_path, timeout=800.0)
    assert done.code == 0, done.err
    (printed,) = re.findall(r"seed 0: (\S+) at first, (\S+) at last", done.out)
    first, last = map(float, printed)
    assert last > BAR
    assert first < -15.0
