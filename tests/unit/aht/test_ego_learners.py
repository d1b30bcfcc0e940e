"""Every algorithm in the ego's seat: actions, state machine, exact resume, portable policies."""

import numpy as np
import pytest
import torch

from cadenza.aht.config import EgoAHTConfig
from cadenza.aht.train import load_algorithm
from cadenza.core.errors import (
    CheckpointError,
    ConfigurationError,
    DeviceUnavailableError,
    InputError,
    NotReadyError,
)
from cadenza.core.payloads import deserialise, serialise
from cadenza.learn.agents.on_policy_buffer import OnPolicyBuffer
from cadenza.learn.memory.builder import TransitionMemory
from tests.unit.aht.seats import HIGH, LOW, Frozen, Seats, drive, observation

REPLAY = ("sac", "hlgauss", "td3", "hatd3", "ego_aht_hatd3", "dqn", "mbpo")
ON_POLICY = ("ppo", "mappo")
ALGORITHMS = (*ON_POLICY, *REPLAY)


def config(algo, num_envs=1, **changes):
    values = {"algo": algo, "env": {"task": "any", "num_envs": num_envs}}
    if algo in REPLAY:
        values["happo"] = {"rollout_length": 8}
        section = algo.removeprefix("ego_aht_")
        values[section] = {
            "warmup_steps": 8,
            "batch_size": 16,
            "hidden_sizes": [8],
            "memory_size": 200,
            "normalize_observations": True,
            "normalize_rewards": True,
        }
        if algo == "mbpo":
            values[section] |= {
                "ensemble_size": 2,
                "num_elites": 1,
                "model_hidden": 8,
                "model_layers": 1,
                "model_updates": 5,
                "rollout_every": 3,
                "rollout_states": 8,
                "imagined_size": 50,
            }
    else:
        values["ppo"] = {
            "rollout_length": 8,
            "batch_size": 8,
            "hidden_sizes": [8, 8],
            "epochs": 2,
            "normalize_observations": True,
            "normalize_rewards": True,
        }
    return EgoAHTConfig.model_validate({**values, **changes})


def trainer(algo, num_envs=1, logger=None, **changes):
    return load_algorithm(algo)(
        config(algo, num_envs, **changes),
        env=Seats(num_envs),
        partner=Frozen(),
        ego_uid="ego",
        logger=logger,
    )


@pytest.mark.parametrize(
    ("algo", "num_envs"), [(algo, 3) for algo in ALGORITHMS] + [("ppo", 1), ("sac", 1)]
)
def test_actions_fit_the_seat_and_stay_within_its_bounds(algo, num_envs):
    learner = trainer(algo, num_envs)
    rng = np.random.default_rng(0)
    actions = drive(learner, rng, 24, num_envs)
    assert actions.dtype == np.float32
    assert actions.shape == ((24, 2) if num_envs == 1 else (24, 3, 2))
    assert (actions >= LOW).all()
    assert (actions <= HIGH).all()
    assert np.unique(actions.reshape(-1, 2), axis=0).shape[0] > 5
    greedy = learner.act(observation(rng, num_envs), deterministic=True)
    assert greedy.shape == actions.shape[1:]


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_resumed_ego_equals_an_unbroken_one_to_the_bit(algo, num_envs):
    whole, broken = trainer(algo, num_envs), trainer(algo, num_envs)
    rngs = np.random.default_rng(1), np.random.default_rng(1)
    drive(whole, rngs[0], 19, num_envs)
    drive(broken, rngs[1], 19, num_envs)
    stored = deserialise(serialise(broken.training_state()), max_bytes=10**8)
    resumed = trainer(algo, num_envs)
    resumed.load_training_state(stored)
    first = drive(whole, rngs[0], 13, num_envs, start=19)
    second = drive(resumed, rngs[1], 13, num_envs, start=19)
    assert first.tobytes() == second.tobytes()
    assert serialise(whole.training_state()) == serialise(resumed.training_state())


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_checkpoint_holds_the_greedy_policy_and_loads(algo):
    learner, other = trainer(algo), trainer(algo, seed=5)
    rng = np.random.default_rng(0)
    drive(learner, rng, 24)
    payload = deserialise(serialise(learner.state_dict()), max_bytes=10**8)
    portable = learner.network()
    other.load_state_dict(payload)
    for _ in range(5):
        obs = observation(rng)
        expected = learner.act(obs, deterministic=True)
        state = obs["agent"]["ego"]["state"][None]
        np.testing.assert_allclose(portable.act(state)[0], expected, atol=1e-5)
        assert np.array_equal(other.act(obs, deterministic=True), expected)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_greedy_actions_draw_nothing(algo):
    quiet, asked = trainer(algo), trainer(algo)
    rng = np.random.default_rng(3)
    obs = observation(rng)
    for _ in range(3):
        asked.act(obs, deterministic=True)
    assert np.array_equal(quiet.act(obs), asked.act(obs))


@pytest.mark.parametrize("algo", ["ppo", "sac", "hatd3"])
def test_states_are_scaled_by_the_moments_of_those_acted_in(algo):
    learner, rng = trainer(algo), np.random.default_rng(0)
    acted, act = [], learner.act
    learner.act = lambda obs: (acted.append(obs["agent"]["ego"]["state"]), act(obs))[1]
    drive(learner, rng, 24)
    scale = learner.network().layers[0].tensors
    np.testing.assert_allclose(scale["mean"], np.mean(acted, axis=0), atol=1e-3)
    np.testing.assert_allclose(scale["spread"], np.std(acted, axis=0), rtol=1e-3)


@pytest.mark.parametrize("algo", ["mappo", "hatd3"])
def test_only_the_critic_sees_the_partner(algo):
    learner = trainer(algo)
    rng = np.random.default_rng(0)
    drive(learner, rng, 16)
    obs = observation(rng)
    elsewhere = {"agent": {**obs["agent"], "partner": {"state": np.full(2, 9.0, np.float32)}}}
    one, other = (learner.act(o, deterministic=True) for o in (obs, elsewhere))
    assert np.array_equal(one, other)
    blind = {"agent": {"ego": obs["agent"]["ego"]}}
    with pytest.raises(InputError, match=r"expected obs\['agent'\]\['partner'\]\['state'\]"):
        learner.act(blind)


class Events:
    """A run log that keeps the scalars it is given."""

    def __init__(self):
        self.scalars = []

    def info(self, event, **fields):
        self.scalars.append(fields)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_updates_are_reported(algo):
    log = Events()
    drive(trainer(algo, logger=log), np.random.default_rng(0), 16)
    assert log.scalars[-1]["step"] == 16
    numbers = [v for v in log.scalars[-1].values() if isinstance(v, float)]
    assert np.isfinite(numbers).all()
    assert len(numbers) >= 1


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_order_of_calls_is_enforced(algo):
    learner = trainer(algo)
    obs = observation(np.random.default_rng(0))
    with pytest.raises(NotReadyError, match=r"observe: expected act\(obs\) before it"):
        learner.observe(obs, 0.0, False)
    learner.act(obs)
    with pytest.raises(NotReadyError, match=r"expected observe\(\) after act\(\)"):
        learner.training_state()
    learner.observe(obs, 0.0, False)
    assert learner.training_state()["frames"] == 1


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_malformed_steps_are_refused(algo):
    learner = trainer(algo, num_envs=2)
    rng = np.random.default_rng(0)
    obs = observation(rng, 2)
    learner.act(obs)
    flags = np.array([False, False])
    with pytest.raises(InputError, match=r"observation of 2 environment\(s\), as act had, got 1"):
        learner.observe(observation(rng), np.zeros(2), flags)
    with pytest.raises(InputError, match=r"rewards of shape \(2,\), got \(3,\)"):
        learner.observe(obs, np.zeros(3), flags)
    with pytest.raises(InputError, match="reward"):
        learner.observe(obs, np.array([np.nan, 0.0]), flags)
    with pytest.raises(InputError, match=r"expected final_obs .* environments \[1\] ended"):
        learner.observe(obs, np.zeros(2), ~flags & [False, True], truncated=[False, True])
    with pytest.raises(InputError, match=r"expected done of shape \(2,\), got \(3,\)"):
        learner.observe(obs, np.zeros(2), np.zeros(3, bool))
    with pytest.raises(InputError, match="a contradiction in environments"):
        learner.observe(obs, np.zeros(2), flags, truncated=[True, False])


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_malformed_states_are_refused(algo):
    learner = trainer(algo)
    with pytest.raises(InputError, match=r"expected obs\['agent'\]\['ego'\]\['state'\]"):
        learner.act({"agent": {}})
    with pytest.raises(InputError, match=r"of shape \(3,\) or \(N, 3\), got \(4,\)"):
        learner.act({"agent": {"ego": {"state": np.zeros(4, np.float32)}}})
    broken = observation(np.random.default_rng(0))
    broken["agent"]["ego"]["state"][0] = np.nan
    for deterministic in (False, True):
        with pytest.raises(InputError, match="state"):
            learner.act(broken, deterministic=deterministic)


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_foreign_states_are_refused(algo):
    learner = trainer(algo)
    with pytest.raises(CheckpointError, match="expected a checkpoint with a"):
        learner.load_state_dict({"actor": {}})
    with pytest.raises(CheckpointError, match="expected a state of version 1, got None"):
        learner.load_training_state({})
    with pytest.raises(CheckpointError, match="expected a complete state of this configuration"):
        learner.load_training_state({"version": 1})


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_unbounded_actions_are_refused(algo):
    with pytest.raises(InputError, match="expected bounded actions of 'ego'"):
        load_algorithm(algo)(
            config(algo), env=Seats(high=[np.inf, 1.0]), partner=Frozen(), ego_uid="ego"
        )


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_partner_must_be_frozen(algo):
    with pytest.raises(ConfigurationError, match="expected a frozen partner"):
        load_algorithm(algo)(
            config(algo), env=Seats(), partner=torch.nn.Linear(1, 1), ego_uid="ego"
        )


def test_replay_learners_stay_on_the_cpu_unless_a_device_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    learner = trainer("sac", runtime={"device": "auto"}).training_state()["learner"]
    assert {weight.device.type for weight in learner["networks"]["q1"].values()} == {"cpu"}
    with pytest.raises(
        DeviceUnavailableError, match=r"device 'cuda:1': .* machine has: cuda:0, cpu;"
    ):
        trainer("sac", runtime={"device": "cuda:1"})


def test_update_without_observations_does_nothing():
    learner = trainer("ppo")
    before = serialise(learner.training_state())
    learner.update()
    assert serialise(learner.training_state()) == before


def test_learning_begins_after_the_warm_up_and_keeps_its_pace():
    def updates(**changes):
        base = {"warmup_steps": 8, "batch_size": 4, "hidden_sizes": [8]}
        learner = trainer("td3", td3={**base, **changes})
        drive(learner, np.random.default_rng(0), 24)
        return learner.training_state()["updates"]

    assert updates() == 16
    assert updates(train_every=4) == 4
    assert updates(updates=2) == 32
    assert updates(warmup_steps=24) == 0


def test_memory_forgets_beyond_its_size():
    log, small = Events(), {"warmup_steps": 8, "batch_size": 4, "hidden_sizes": [8]}
    learner = trainer("td3", logger=log, td3={**small, "memory_size": 8})
    drive(learner, np.random.default_rng(0), 24)
    assert log.scalars[-1]["memory_size"] == 8


@pytest.mark.parametrize(
    ("algo", "store", "keep"), [("ppo", OnPolicyBuffer, "commit"), ("sac", TransitionMemory, "add")]
)
def test_step_that_cannot_be_kept_still_waits_and_is_not_counted(algo, store, keep, monkeypatch):
    learner = trainer(algo)
    rng = np.random.default_rng(0)
    drive(learner, rng, 3)
    learner.act(observation(rng))

    def refuse(*_args, **_options):
        raise InputError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(store, keep, refuse)
        with pytest.raises(InputError, match="no room"):
            learner.observe(observation(rng), 1.0, False)
    with pytest.raises(NotReadyError, match=r"observe\(\) after act\(\)"):
        learner.training_state()
    learner.observe(observation(rng), 1.0, False)
    assert learner.training_state()["frames"] == 4
