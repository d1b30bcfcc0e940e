"""A policy of the real LeRobot plays as a partner, with its own actions."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from cadenza.partners import PartnerSpec, load_partner
from cadenza.partners.remote import close_processes

pytestmark = pytest.mark.lerobot


def test_real_policy_acts_as_in_lerobot(tmp_path, monkeypatch, offline):
    program = Path(__file__).with_name("make_policy.py")
    python = os.environ["CADENZA_LEROBOT_PYTHON"]
    done = subprocess.run(
        [python, str(program), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    wanted = np.load(tmp_path / "actions.npy")
    monkeypatch.setenv("CADENZA_ARTIFACTS_ROOT", str(tmp_path))
    inputs = "observation.state=state,observation.images.front=rgb"
    partner = load_partner(
        PartnerSpec(
            "lerobot_policy",
            0,
            weights_uri="local://artifacts/policy",
            extra={"uid": "arm", "inputs": inputs},
        )
    )
    image = np.arange(32 * 32 * 3, dtype=np.uint8).reshape(32, 32, 3)
    obs = {"agent": {"arm": {"state": np.array([0.5, -1.0, 2.0]), "rgb": image}}}
    partner.reset(seed=0)
    played = np.stack([partner.act(obs) for _ in range(len(wanted))])
    close_processes()
    np.testing.assert_allclose(played, wanted, rtol=1e-5, atol=1e-6)
    assert partner.counts.plans == 1
    assert np.ptp(wanted, axis=0).min() > 0.01  # a chunk of different actions
