import subprocess
import sys

import numpy as np
import pytest

from cadenza.core.types import EnvLike, EpisodeState, PartnerLike, VectorEnvLike


class Env:
    def reset(self, *, seed=None, options=None):
        return {}, {}

    def step(self, action):
        return {}, 0.0, False, False, {}


class VectorEnv(Env):
    num_envs = 2


class Partner:
    spec = "identity"

    def reset(self, *, seed=None):
        return None

    def act(self, obs, *, deterministic=True):
        return np.zeros(2)


class PartnerWithoutIdentity:
    reset, act = Partner.reset, Partner.act


@pytest.mark.parametrize(
    ("protocol", "good", "bad"),
    [
        (EnvLike, Env(), Partner()),
        (VectorEnvLike, VectorEnv(), Env()),
        (PartnerLike, Partner(), PartnerWithoutIdentity()),
    ],
)
def test_protocol_tells_who_fits(protocol, good, bad):
    assert isinstance(good, protocol)
    assert not isinstance(bad, protocol)


def test_episode_states_have_the_published_numbers():
    assert {state.name: state.value for state in EpisodeState} == {
        "RUNNING": 0,
        "INTERRUPTED": 1,
        "TERMINAL": 2,
        "INITIAL": 3,
    }


def test_light_modules_do_not_load_torch():
    code = """
import sys
import cadenza.core
from cadenza.core import arrays, errors, files, json_values, log_sinks, provenance, runlog
from cadenza.core import schedules, seeding, spaces, threads, timing, types, wandb_run
heavy = sorted({"torch", "wandb", "scipy", "matplotlib", "pydantic"} & set(sys.modules))
sys.exit(f"loaded {heavy}" if heavy else 0)
"""
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False, text=True
    )
    assert (child.returncode, child.stderr) == (0, "")
