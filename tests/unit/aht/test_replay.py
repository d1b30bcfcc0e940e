"""Replaying an episode from its seed and actions."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from cadenza.aht.seat import Seat, observation_digest
from cadenza.core.errors import CheckpointError
from tests.unit.aht.parts import NoisyBatchEnv, NoisyPartner, NoisyPointEnv, config_in


def seat_of(folder, seed, num_envs=1, partner=None):
    config = config_in(folder, seed=seed, env={"task": "noisy_point", "num_envs": num_envs})
    env = NoisyPointEnv(horizon=99) if num_envs == 1 else NoisyBatchEnv(num_envs)
    return Seat(config, env, partner or NoisyPartner(), None)


def played(folder, seed, steps=4, num_envs=1):
    """Play ``steps`` steps; return the seat."""
    seat = seat_of(folder, seed, num_envs)
    seat.begin()
    action = np.zeros((num_envs, 1) if num_envs > 1 else 1, dtype=np.float32)
    for _ in range(steps):
        seat.step(action)
        action += 0.1  # the record has its own copies
    return seat


@pytest.mark.parametrize(("num_envs", "steps"), [(1, 4), (3, 12)])
def test_replay_ends_in_the_same_observation_and_goes_on_alike(tmp_path, num_envs, steps):
    first, again = played(tmp_path, 5, steps, num_envs), seat_of(tmp_path, 5, num_envs)
    again.load_state_dict(first.state_dict())
    again.replay(first.digest())
    assert again.digest() == first.digest()
    action = np.ones((num_envs, 1) if num_envs > 1 else 1, dtype=np.float32)
    one, two = first.step(action), again.step(action)
    assert np.array_equal(one.reward, two.reward)
    assert first.state_dict()["episode_index"] == again.state_dict()["episode_index"]


def test_replay_of_another_course_says_what_to_do(tmp_path):
    seat, other = played(tmp_path, 5), played(tmp_path, 6)
    with pytest.raises(CheckpointError, match=r"does not repeat an episode.*overwrite"):
        seat.replay(other.digest())


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
