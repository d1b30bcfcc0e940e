"""Replaying an episode from its seed and actions."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from cadenza.aht.replay import EpisodeReplay, observation_digest, require_same_observation
from cadenza.core.errors import CheckpointError
from tests.unit.aht.parts import NoisyPartner, NoisyPointEnv

UIDS = ("ego", "partner")


def played(seed: int, steps: int):
    """Play an episode by hand; return its last observation and the record."""
    env, partner, replay = NoisyPointEnv(horizon=99), NoisyPartner(), EpisodeReplay(seed)
    obs = env.reset(seed=seed)[0]
    partner.reset(seed=seed)
    for k in range(steps):
        action = np.array([0.1 * k], dtype=np.float32)
        partner_action = partner.act(obs)
        obs = env.step({"ego": action, "partner": partner_action})[0]
        replay.append(action)
    return obs, replay


def test_replay_ends_in_the_same_observation():
    obs, replay = played(seed=5, steps=4)
    again = replay.play(NoisyPointEnv(horizon=99), NoisyPartner(), UIDS)
    assert observation_digest(again) == observation_digest(obs)


def test_replay_keeps_its_own_copy_of_an_action():
    replay, action = EpisodeReplay(0), np.array([1.0], dtype=np.float32)
    replay.append(action)
    action[0] = 9.0
    assert replay.state_dict()["actions"].tolist() == [[1.0]]


def test_require_same_observation_of_another_course_says_what_to_do():
    obs, _ = played(seed=5, steps=4)
    other, _ = played(seed=6, steps=4)
    require_same_observation(obs, observation_digest(obs))
    with pytest.raises(CheckpointError, match=r"does not repeat an episode.*overwrite"):
        require_same_observation(other, observation_digest(obs))


@dataclass
class Packet:
    sender: str
    age: float


OBSERVATION = {
    "agent": {"ego": {"state": np.zeros(2, dtype=np.float32)}},
    "comm": [Packet("a", 0.5), None, {"n": 3, "on": True}],
    "torch": torch.zeros(2),
}


@pytest.mark.parametrize(
    "change",
    [
        lambda o: {**o, "agent": {"ego": {"state": np.zeros(2, dtype=np.float64)}}},
        lambda o: {**o, "agent": {"ego": {"state": np.zeros((1, 2), dtype=np.float32)}}},
        lambda o: {**o, "agent": {"you": o["agent"]["ego"]}},
        lambda o: {**o, "agent": {"ego": {"state": -np.zeros(2, dtype=np.float32)}}},
        lambda o: {**o, "comm": [Packet("b", 0.5), *o["comm"][1:]]},
        lambda o: {**o, "comm": [Packet("a", 0.6), *o["comm"][1:]]},
        lambda o: {**o, "comm": o["comm"][:2]},
        lambda o: {**o, "comm": [*o["comm"][:2], {"n": 3, "on": False}]},
        lambda o: {**o, "torch": torch.ones(2)},
        lambda o: {**o, "extra": 1},
    ],
)
def test_digest_sees_every_difference(change):
    assert observation_digest(change(OBSERVATION)) != observation_digest(OBSERVATION)


def test_digest_ignores_the_order_of_keys():
    assert observation_digest({"a": 1, "b": 2}) == observation_digest({"b": 2, "a": 1})


def test_digest_of_an_unknown_type_is_refused():
    with pytest.raises(CheckpointError, match="got set"):
        observation_digest({"a": {1, 2}})
