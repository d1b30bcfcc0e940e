import subprocess
import sys

import numpy as np
import pytest

from cadenza.core.types import (
    DictObservation,
    DictResponse,
    EnvLike,
    EpisodeState,
    MetaData,
    PartnerLike,
    VectorEnvLike,
)


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


def test_observation_and_response_take_positional_fields_in_published_order():
    meta = MetaData({"speed": 1.0}, {"torques": [1.0, 2.0]})
    observation = DictObservation({"reward": None}, EpisodeState.INITIAL, {"obs": [1.0]}, meta)
    assert observation.rewards == {"reward": None}
    assert observation.episode_state is EpisodeState.INITIAL
    assert observation.array_data == {"obs": [1.0]}
    assert observation.metadata.info_lists == {"torques": [1.0, 2.0]}
    assert DictObservation({}, EpisodeState.RUNNING, {}).metadata is None
    response = DictResponse({"actions": [0.5]}, {"value": 2.0})
    assert (response.list_data["actions"], response.scalar_data["value"]) == ([0.5], 2.0)


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
