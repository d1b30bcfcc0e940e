"""Every algorithm on one GPU: the CPU's figures, files that load anywhere, nothing waited for."""

import contextlib

import numpy as np
import pytest
import torch

import cadenza
from cadenza.core.episodes import Episode, Episodes
from cadenza.learn.agents.loop import AgentCallback
from cadenza.learn.agents.staging import Staging, sending_to
from tests.unit.learn.counting_envs import TargetTeam

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

DEVICE = "cuda"
SMALL = {"hidden_sizes": (32, 32), "batch_size": 32}
REPLAY = {**SMALL, "warmup_steps": 128, "memory_size": 2_000}
MODEL = {"model_hidden": 16, "model_updates": 2, "rollout_every": 2, "rollout_states": 16}
ROLLOUT = {**SMALL, "rollout_length": 64, "epochs": 2}
ROBOTS = {"HAPPO": (3, 4), "MAPPO": (1, 1), "HATD3": (1, 1)}
#: Algorithm, environment and settings by case; every training has at least five steps of Adam.
CASES = {
    "sac": ("SAC", "Pendulum-v1", REPLAY),
    "sac, prioritised, normalised": (
        "SAC",
        "Pendulum-v1",
        {**REPLAY, "n_step": 3, "priority_exponent": 0.6, "normalize_observations": True},
    ),
    "td3": (
        "TD3",
        "Pendulum-v1",
        {**REPLAY, "normalize_observations": True, "normalize_rewards": True},
    ),
    "hlgauss": ("HLGauss", "Pendulum-v1", {**REPLAY, "min_value": -500.0, "max_value": 50.0}),
    "mbpo": ("MBPO", "Pendulum-v1", {**REPLAY, **MODEL}),
    "dqn": ("DQN", "CartPole-v1", REPLAY),
    "dqn, grid": ("DQN", "Pendulum-v1", REPLAY),
    "ppo": ("PPO", "CartPole-v1", ROLLOUT),
    "ppo, squashed": ("PPO", "Pendulum-v1", {**ROLLOUT, "squash_actions": True}),
    "ppo, recurrent": (
        "PPO",
        "CartPole-v1",
        {**ROLLOUT, "memory": "gru", "memory_size": 8, "sequence_length": 8},
    ),
    "grpo": ("GRPO", "CartPole-v1", ROLLOUT),
    "mappo": ("MAPPO", None, ROLLOUT),
    "happo": ("HAPPO", None, ROLLOUT),
    "hatd3": ("HATD3", None, REPLAY),
    "dagger": (
        "DAgger",
        "Pendulum-v1",
        {
            **SMALL,
            "round_length": 32,
            "updates": 5,
            "num_envs": 4,
            "expert": lambda rows: -rows[:, :1],
        },
    ),
}


SHOWN = Episodes.of(
    [
        Episode(
            observations={"state": np.linspace(-1.0, 1.0, 60, dtype=np.float32).reshape(20, 3)},
            actions=np.linspace(-2.0, 2.0, 20, dtype=np.float32)[:, None],
        )
    ]
    * 4
)
CASES["bc"] = ("BC", "Pendulum-v1", {**SMALL, "loss": "gaussian", "demonstrations": SHOWN})


@pytest.fixture(autouse=True)
def _exact_recurrence(monkeypatch):
    """Keep cuDNN from rounding the products of recurrent layers to TF32."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


class Figures(AgentCallback):
    """Keeps the figures of every update."""

    def __init__(self):
        self.kept = []

    def on_update(self, agent, batch, figures):
        self.kept.append({name: float(value) for name, value in figures.items()})


def environment(case):
    name, env, _ = CASES[case]
    return env or (lambda count: TargetTeam(count, widths=ROBOTS[name]))


def made(case, device):
    name, _, settings = CASES[case]
    return getattr(cadenza, name)(environment(case), seed=1, device=device, **settings)


def trained(case, device):
    agent, told = made(case, device), Figures()
    steps = agent.config.warmup_steps + 5 if hasattr(agent.config, "warmup_steps") else 128
    return agent.learn(steps, callbacks=told, progress=False), told.kept


def observations(agent):
    """Return observations to act on, or joint states of a team."""
    rng = np.random.default_rng(0)
    if hasattr(agent, "team"):
        return rng.normal(size=(5, agent.team.joint_dim)).astype(np.float32)
    return rng.normal(size=(5, *agent.envs.space.shape)).astype(np.float32)


def actions(agent):
    found = agent.predict(observations(agent), **state_of(agent))
    found = found[0] if isinstance(found, tuple) else found
    return np.concatenate([np.reshape(each, -1) for each in found])


def state_of(agent):
    return {"state": None} if getattr(agent, "state_width", 0) else {}


@pytest.mark.parametrize("case", CASES)
def test_figures_are_those_of_the_cpu(case):
    (_, ours), (agent, theirs) = trained(case, "cpu"), trained(case, DEVICE)
    assert agent.device.type == DEVICE
    assert len(ours) == len(theirs) >= 1
    for mine, other in zip(ours[:5], theirs[:5], strict=True):
        assert mine.keys() == other.keys()
        assert [*other.values()] == pytest.approx([*mine.values()], rel=2e-3, abs=2e-3)


@pytest.mark.parametrize("case", CASES)
def test_agent_goes_on_on_either_device(case, tmp_path):
    agent, _ = trained(case, DEVICE)
    path = agent.save(tmp_path / "agent")
    parts = {
        name: part for name, part in CASES[case][2].items() if name in ("expert", "demonstrations")
    }
    for device in ("cpu", DEVICE):
        loaded = cadenza.load(path, environment(case), device=device, **parts)
        np.testing.assert_allclose(actions(loaded), actions(agent), atol=1e-3)
        moved = pytest.warns(UserWarning, match="not bit for bit: it was saved on cuda")
        with moved if device == "cpu" else contextlib.nullcontext():
            loaded.learn(1_200, progress=False)  # beyond the rollout that a training completes
        assert loaded.steps > agent.steps


@pytest.mark.parametrize("case", ["sac", "dqn, grid", "ppo, squashed", "ppo, recurrent", "mappo"])
def test_policy_files_are_those_of_the_agent(case, tmp_path):
    pytest.importorskip("onnxruntime")
    agent, _ = trained(case, DEVICE)
    assert agent.export_onnx(tmp_path / "policy.onnx").is_file()  # once its results agree
    for network in agent.networks().values():
        assert {tensor.device.type for tensor in network.layers[0].tensors.values()} == {"cpu"}
    result = agent.evaluate(2, max_episode_steps=20)
    assert np.isfinite(result.mean)


@pytest.mark.parametrize("case", ["sac", "td3", "hlgauss", "dqn", "hatd3"])
def test_update_waits_for_nothing(case):
    agent, _ = trained(case, DEVICE)
    agent.begin(1_000)
    while not agent.due:
        agent.step()
    batch = agent.batch()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        agent.update(batch)
    finally:
        torch.cuda.set_sync_debug_mode(before)


def test_batches_arrive_in_order_while_the_device_computes():
    send = sending_to(torch.device(DEVICE))
    assert isinstance(send, Staging)
    sums, host = [], torch.empty(4_096, 64)
    for number in range(12):
        torch.cuda._sleep(2_000_000)  # cycles in which the host runs ahead
        host.fill_(float(number))
        rows, first = send([host, host[:, 0]])
        sums.append((rows.mean(), first.mean()))
    for number, told in enumerate(sums):
        assert [float(each) for each in told] == [number, number]
    again = send([rows])
    assert again[0] is rows  # it is there


def test_ego_with_a_replay_memory_learns_on_the_gpu():
    from tests.unit.aht.test_ego_learners import trainer

    learner = trainer("sac", runtime={"device": DEVICE})
    weights = learner.training_state()["learner"]["networks"]["q1"]
    assert {weight.device.type for weight in weights.values()} == {DEVICE}


def test_auto_takes_the_gpu():
    agent = cadenza.PPO("CartPole-v1", device="auto", **ROLLOUT)
    assert agent.device.type == DEVICE
    assert f"device='{agent.device}'" in repr(agent)
