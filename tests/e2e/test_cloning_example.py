"""The example that clones an expert from live producers succeeds behind the filter."""

import re

import numpy as np
import pytest

from cadenza.benchmark.policies import EgoSeat, load_policy
from tests.campaigns import nightly
from tests.e2e.commands import REPOSITORY, warm
from tests.stream_engines import nothing_left

pytestmark = [pytest.mark.slow, nightly]


def test_clone_succeeds_with_partners_it_never_met(tmp_path):
    # The full training, and 50 of 100 episodes per partner and condition.
    program = REPOSITORY / "examples" / "crossing_behaviour_cloning.py"
    with nothing_left():
        words = ("--seed", "1", "--episodes", "250", "--out", tmp_path)
        done = warm(program, *words, cwd=tmp_path, timeout=800)
    assert done.code == 0, done.err
    (judged,) = re.findall(r"seed 1: (\S+) % of (\d+) succeed", done.out)
    assert int(judged[1]) == 200  # four partners that leave a way
    assert float(judged[0]) >= 90.0
    curve = re.findall(r"(\d+) steps simulated: (\S+)", done.out)
    assert int(curve[-1][0]) > int(curve[0][0])  # simulated while it trained
    # The noise of 0.5 m/s^2 in two components leaves 0.5 m^2/s^4, the first error is above 1.
    assert float(curve[-1][1]) < 0.9 * float(curve[0][1])
    bounds = np.full(2, 2.0, np.float32)
    seat = EgoSeat(uid="ego", observation_dim=10, low=-bounds, high=bounds)
    policy = load_policy(
        "local://clone.policy.safetensors", seat=seat, artifacts_root=tmp_path / "seed_1"
    )
    state = np.array([-2.0, 0, 0, 0, 4.0, 0, 0, 3.0, 0, 0], np.float32)
    # Trained on what producers wrote meanwhile, which is never the same: 0.9 m/s^2 was seen.
    assert policy.act({"agent": {"ego": {"state": state}}})[0] > 0.5  # goal 4 m to the right
