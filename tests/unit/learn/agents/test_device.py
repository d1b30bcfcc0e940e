"""Where agents learn: what is refused, told and remembered; on a GPU see `tests/cuda`."""

import importlib
import warnings
from dataclasses import fields, replace
from functools import partial

import numpy as np
import pytest
import torch
from gymnasium import spaces

import cadenza
from cadenza.core.errors import DeviceUnavailableError, InputError
from cadenza.learn.agents.adapting import Partner
from cadenza.learn.agents.bc import BCConfig
from cadenza.learn.agents.e3t import E3TConfig, E3TLearner
from cadenza.learn.agents.grpo import GRPOConfig, GRPOLearner
from cadenza.learn.agents.happo import ActorBatch, HAPPOConfig, HAPPOLearner
from cadenza.learn.agents.hatd3 import HATD3Config, HATD3Learner
from cadenza.learn.agents.imitation import ImitationLearner, TorchAdam
from cadenza.learn.agents.liam import LIAMConfig, LIAMLearner
from cadenza.learn.agents.mbpo import MBPOConfig, MBPOLearner
from cadenza.learn.agents.off_policy import TD_ERRORS
from cadenza.learn.agents.on_policy_buffer import BufferShape, OnPolicyBuffer, Outcome
from cadenza.learn.agents.ppo import PPOConfig, PPOLearner, RecurrentPPOLearner
from cadenza.learn.agents.staging import Slots
from cadenza.learn.agents.td3 import TD3Config, TD3Learner
from cadenza.learn.agents.updates import Adam
from cadenza.learn.env.stepping import ActionCodec
from cadenza.learn.loaded_state import set_torch_state
from cadenza.learn.memory.builder import TransitionMemory
from tests.unit.learn.agents.watched import Watched

SMALL = {"hidden_sizes": (8,), "batch_size": 8, "warmup_steps": 20, "memory_size": 200}


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_agent_on_an_absent_device_is_refused_with_what_is_there(no_gpu):
    with pytest.raises(
        DeviceUnavailableError, match=r"device 'cuda:1': .* machine has: cpu; .*'auto'"
    ):
        cadenza.SAC("Pendulum-v1", device="cuda:1")
    with pytest.raises(InputError, match="device 'gpu': expected 'auto', 'cpu', 'cuda'"):
        cadenza.PPO("CartPole-v1", device="gpu")


def test_auto_without_a_gpu_learns_as_on_the_cpu(no_gpu):
    first, second = (
        cadenza.DQN("CartPole-v1", device=device, **SMALL).learn(60, progress=False)
        for device in ("auto", "cpu")
    )
    assert first.device == torch.device("cpu")
    assert repr(first) == repr(second)
    ours, theirs = (agent.learner.q.state_dict() for agent in (first, second))
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_agent_of_a_gpu_goes_on_on_the_cpu_and_says_that_bits_differ(tmp_path):
    agent = cadenza.DQN("CartPole-v1", **SMALL).learn(60, progress=False)
    agent.device = torch.device("cuda", 0)  # as a machine with one saves it
    assert "device='cuda:0'" in repr(agent)
    assert agent.progress.startswith("cuda:0")
    loaded = cadenza.load(agent.save(tmp_path / "agent"))
    assert loaded.device == torch.device("cpu")
    with pytest.warns(UserWarning, match="not bit for bit: it was saved on cuda:0, and cpu rounds"):
        loaded.learn(10, progress=False)
    with warnings.catch_warnings(action="error"):  # once is enough
        loaded.learn(10, progress=False)
    assert loaded.steps == 80


@pytest.fixture
def kernels(monkeypatch):
    """Let torch's fused and foreach kernels run on "meta", which it does not list for them."""
    for module, kind in (
        ("torch.optim.optimizer", "fused"),
        ("torch.utils._foreach_utils", "foreach"),
    ):
        listed = f"_get_{kind}_kernels_supported_devices"
        monkeypatch.setattr(importlib.import_module(module), listed, lambda: ["meta", "cpu"])


def transitions(rows, width, components):
    draws = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=draws)

    return {
        "observation": {"obs": normal(rows, width)},
        "next_observation": {"obs": normal(rows, width)},
        "actions": normal(rows, components),
        "rewards": normal(rows, 1),
        "masks": torch.ones(rows, 1),
    }


def test_weighted_update_of_several_steps_stays_on_the_device():
    learner = TD3Learner(
        observation_dim=3, action_dim=2, config=TD3Config(hidden_sizes=(8,)), device="meta"
    )
    batch = transitions(16, 3, 2)
    batch |= {"discounts": batch["masks"], "sample_weights": batch["masks"][:, 0]}
    with Watched() as watched:
        figures = learner.update(batch)
    assert (watched.read, watched.on_cpu) == ([], ["randn", "view", "view"])
    assert figures[TD_ERRORS].device.type == "meta"


def test_team_of_replaying_robots_learns_on_the_device():
    learner = HATD3Learner(
        columns=[(0, 2), (2, 4)],
        joint_dim=4,
        action_dims=[1, 2],
        config=HATD3Config(hidden_sizes=(8,), policy_delay=1),
        device="meta",
    )
    batch = transitions(16, 4, 3)
    with Watched() as watched:
        figures = learner.update(batch)
    assert (watched.read, watched.on_cpu) == ([], ["randn"])
    assert {figure.device.type for figure in figures.values()} == {"meta"}


def test_model_learns_on_the_device_from_rows_that_the_host_chooses():
    config = MBPOConfig(hidden_sizes=(8,), batch_size=16, model_hidden=8, model_layers=1)
    learner = MBPOLearner(observation_dim=3, action_dim=2, config=config, device="meta")
    memory = TransitionMemory(
        observation_dim=3, action_dim=2, num_envs=1, max_transitions=100, seed=0
    )
    # Reading a value or a mask off "meta" would raise.
    figures = learner.learn_from(transitions(16, 3, 2), memory)
    assert figures["dynamic_model_loss"].device.type == "meta"
    assert {weight.device.type for weight in learner.model.parameters()} == {"meta"}


@pytest.mark.parametrize(
    "optimizer", [partial(TorchAdam, 1e-3), lambda w: Adam(1e-3, 1.0, policy=w)]
)
def test_imitation_learns_on_the_device(optimizer):
    generator = torch.Generator().manual_seed(0)
    learner = ImitationLearner(
        BCConfig(hidden_sizes=(8,)),
        ActionCodec(spaces.Box(-1.0, 1.0, (2,)), unit=True),
        3,
        None,
        weights=generator,
        batches=generator,
        optimizer=optimizer,
        device="meta",
    )
    batch = transitions(16, 3, 2)
    batch = {"obs": batch["observation"]["obs"], "actions": batch["actions"]}
    figures = learner.update(batch)
    assert {figure.device.type for figure in figures.values()} == {"meta"}


def rollout(learner, **shape):
    """Return what a learner makes of 12 random steps in 4 environments."""
    rng = np.random.default_rng(0)
    buffer = OnPolicyBuffer(BufferShape(capacity=12, rows=4, observation_dim=3, **shape))
    for _ in range(12):
        seen = rng.normal(size=(4, 3)).astype(np.float32)
        buffer.stage(seen, rng.integers(2, size=4))
        ended = rng.random(4) < 0.2
        buffer.commit(Outcome(rng.normal(size=4), ended, ended), seen)
    with torch.no_grad():
        return learner._prepared(buffer, buffer.valid.copy())[0]


def on_meta(parts):
    """Return a rollout on "meta", but for the table of its sequences, which the host reads."""
    moved = {}
    for field in fields(parts):
        value = getattr(parts, field.name)
        if field.name == "steps":
            moved["steps"] = on_meta(value)
        elif isinstance(value, torch.Tensor) and field.name not in ("firsts", "lengths"):
            moved[field.name] = value.to("meta")
    return replace(parts, **moved)


ON_POLICY = {
    "ppo": (PPOLearner, PPOConfig(hidden_sizes=(8,)), {}, {}),
    "grpo": (GRPOLearner, GRPOConfig(hidden_sizes=(8,)), {}, {}),
    "recurrent": (
        partial(RecurrentPPOLearner, sequence_length=4),
        PPOConfig(hidden_sizes=(8,)),
        {"memory": ("gru", 8)},
        {"states": 16},
    ),
    "liam": (
        partial(LIAMLearner, partner=Partner(3, (2,), 1), bounds=None),
        LIAMConfig(hidden_sizes=(8,), memory="gru", memory_size=8, sequence_length=4),
        {},
        {"states": 10, "told": 4},
    ),
    "e3t": (
        partial(E3TLearner, partner=Partner(3, (2,), 1), bounds=None, seat=None, seed=0),
        E3TConfig(hidden_sizes=(8,), history=2, sequence_length=4),
        {},
        {"states": 12, "told": 4},
    ),
}


@pytest.mark.parametrize("name", ON_POLICY)
@pytest.mark.usefixtures("kernels")
def test_minibatch_on_a_device_reads_nothing_back(name):
    kind, config, sizes, shape = ON_POLICY[name]
    host, learner = (
        kind(config, observation_dim=3, choices=2, device=device, **sizes)
        for device in ("cpu", "meta")
    )
    parts = on_meta(rollout(host, **shape))
    with Watched() as watched:
        figures = learner._step(parts.rows(torch.arange(3, device=parts.device)))
    assert figures.device.type == "meta"
    remembers = name not in ("ppo", "grpo")
    assert watched.read == ["_local_scalar_dense"] * remembers  # the longest sequence
    if not remembers:  # which the host unrolls
        assert watched.on_cpu == []


@pytest.mark.usefixtures("kernels")
def test_robots_of_a_rollout_learn_on_the_device():
    learner = HAPPOLearner(
        HAPPOConfig(hidden_sizes=(8,)),
        observation_dims=[3],
        action_dims=[2],
        critic_dim=3,
        generator=torch.Generator().manual_seed(0),
        shuffle=np.random.default_rng(0),
        device="meta",
    )
    seen, column = torch.zeros((16, 3), device="meta"), torch.zeros((16, 1), device="meta")
    taken = torch.zeros((16, 2), device="meta")
    batch = ActorBatch(
        observations=seen, actions=taken, old_log_probs=taken, advantages=column, factor=column
    )
    # Reading a value off "meta" would raise.
    update, loss = learner.update_actor(0, batch), learner.update_critic(seen, column)
    assert {figure.device.type for figure in (*update, loss)} == {"meta"}


def test_stream_of_an_ego_that_drew_on_a_gpu_begins_anew_on_the_host():
    generator, expected = torch.Generator(), torch.Generator().manual_seed(7 + 12)
    of_cuda = torch.tensor([7, 12]).view(torch.uint8)  # seed and offset, as CUDA's generators keep
    set_torch_state(generator, of_cuda)
    assert torch.equal(generator.get_state(), expected.get_state())
    set_torch_state(generator, torch.Generator().manual_seed(3).get_state())
    assert generator.initial_seed() == 3


def test_slots_take_turns_and_keep_their_memory():
    slots, rows = Slots(pinned=False), torch.arange(6.0).reshape(3, 2)
    first, second = slots.fill([rows, rows[:, 0]]), slots.fill([rows + 1.0, rows[:, 1]])
    assert [part.tolist() for part in first] == [rows.tolist(), [0.0, 2.0, 4.0]]
    assert second[0].tolist() == (rows + 1.0).tolist()
    places = [part.data_ptr() for part in first]
    third = slots.fill([rows + 2.0, rows[:, 0]])
    assert [part.data_ptr() for part in third] == places  # the first one's, which was read by now
    assert second[0].tolist() == (rows + 1.0).tolist()
    smaller = slots.fill([rows[:2]])
    assert smaller[0].tolist() == rows[:2].tolist()
    assert slots.turn == 0
