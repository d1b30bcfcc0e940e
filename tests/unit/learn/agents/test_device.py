"""Where agents learn: what is refused, told and remembered; on a GPU see `tests/cuda`."""

import warnings

import pytest
import torch

import cadenza
from cadenza.core.errors import DeviceUnavailableError, InputError

SMALL = {"hidden_sizes": (8,), "batch_size": 8, "warmup_steps": 20, "memory_size": 200}


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_agent_on_an_absent_device_is_refused_with_what_is_there(no_gpu):
    with pytest.raises(DeviceUnavailableError, match=r"device 'cuda:1': .* got cpu; .*'auto'"):
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
