"""Policy files act as their agents, whatever rows are asked together, or are refused."""

import json
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
import safetensors.torch
import torch
from gymnasium import spaces
from torch import nn

import cadenza
from cadenza.core.errors import CheckpointError, ConfigurationError, InputError
from cadenza.core.files import canonical_json, sha256_bytes
from cadenza.envs.mpe import VectorMPECooperativePushEnv
from cadenza.learn.nn.gaussian_actor import ACTIVATIONS, GaussianActor
from cadenza.learn.nn.layer_kinds import KINDS, layers_of
from cadenza.learn.nn.layers import Layer
from cadenza.learn.nn.portable import (
    Output,
    PortableNetwork,
    load_policy_file,
    perceptron,
    save_policy_file,
)
from tests.unit.learn.partner_envs import HiddenTypes, Matching

SIZES = {"hidden_sizes": (32, 16)}
PARTS = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (12, 12, 3), np.uint8),
        "joints": spaces.Box(-1.0, 1.0, (3,), np.float32),
        "mode": spaces.Discrete(4),
        "switches": spaces.MultiDiscrete([2, 3]),
    }
)
BOX = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([1.0, 3.0], np.float32))


def world(observation, action):
    """Return a function that makes an environment of these spaces, without a task."""

    class World(gym.Env):
        observation_space, action_space = observation, action

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return observation.sample(), {}

        def step(self, action):
            return observation.sample(), 0.0, False, False, {}

    return World


def bytes_of(*shape):
    return spaces.Box(0, 255, shape, np.uint8)


def numbers(dtype=np.float32):
    return spaces.Box(-3.0, 3.0, (5,), dtype)


CHOICES = spaces.Discrete(4, start=1)
SEVERAL = spaces.MultiDiscrete([[3, 2], [4, 2]], start=[[1, 0], [-2, 5]])


def own_layers():
    """Return a module of one's own, with equal weights each time."""
    layers = nn.Sequential(nn.Conv2d(3, 2, 8, 4), nn.ReLU(), nn.Flatten())
    for parameter in layers.parameters():
        nn.init.uniform_(parameter, -0.05, 0.05, generator=torch.Generator().manual_seed(0))
    return layers


AGENTS = {
    "SAC": lambda: cadenza.SAC(world(numbers(), BOX), **SIZES),
    "TD3": lambda: cadenza.TD3(world(numbers(), BOX), **SIZES),
    "HLGauss": lambda: cadenza.HLGauss(world(numbers(), BOX), min_value=0, max_value=9, **SIZES),
    "MBPO": lambda: cadenza.MBPO(world(numbers(), BOX), **SIZES),
    "DQN": lambda: cadenza.DQN(world(numbers(), CHOICES), **SIZES),
    "DQN of a grid": lambda: cadenza.DQN(world(numbers(), BOX), **SIZES),
    "PPO, choices": lambda: cadenza.PPO(world(numbers(), CHOICES), **SIZES),
    "PPO, numbers": lambda: cadenza.PPO(world(numbers(), BOX), **SIZES),
    "PPO, scaled": lambda: cadenza.PPO(
        world(numbers(np.float64), BOX), normalize_observations=True, squash_actions=True, **SIZES
    ),
    "GRPO": lambda: cadenza.GRPO(world(numbers(), CHOICES), **SIZES),
    "DAgger": lambda: cadenza.DAgger(world(numbers(), BOX), expert=lambda o: o, **SIZES),
    "images": lambda: cadenza.PPO(world(bytes_of(3, 40, 40), CHOICES), **SIZES),
    "gray images": lambda: cadenza.PPO(
        world(bytes_of(12, 12), spaces.MultiDiscrete([3, 2])), **SIZES
    ),
    "factors": lambda: cadenza.PPO(world(numbers(), SEVERAL), factored_choices=True, **SIZES),
    "switches": lambda: cadenza.GRPO(world(numbers(), spaces.MultiBinary((7, 2))), **SIZES),
    "stacked images": lambda: cadenza.PPO(world(bytes_of(2, 12, 12, 1), CHOICES), **SIZES),
    "few bytes": lambda: cadenza.PPO(world(bytes_of(3, 3), CHOICES), **SIZES),
    "parts": lambda: cadenza.SAC(world(PARTS, BOX), **SIZES),
    "own layers": lambda: cadenza.TD3(
        world(bytes_of(3, 40, 40), BOX), network=own_layers(), **SIZES
    ),
}


def trained(name):
    """Return an agent whose weights are far from the first, small ones."""
    agent = AGENTS[name]()
    with torch.no_grad():
        for parameter in agent.learner.greedy.parameters():
            parameter.mul_(1.5)
    if name == "PPO, scaled":
        agent.learner.scale(np.random.default_rng(1).normal(2.0, 3.0, (50, 5)), learn=True)
    return agent


def drawn(space, count):
    """Return ``count`` observations side by side, and what takes some of them."""
    space.seed(0)
    samples = [space.sample() for _ in range(count)]
    if isinstance(space, spaces.Dict):
        rows = {name: np.stack([sample[name] for sample in samples]) for name in space}
        return samples, lambda index: {name: part[index] for name, part in rows.items()}
    return samples, np.stack(samples).__getitem__


@pytest.mark.parametrize("name", AGENTS)
def test_file_acts_as_its_agent_whatever_else_is_asked(name, tmp_path):
    agent = trained(name)
    (path,) = agent.export_policy(tmp_path / "agent")
    assert path.name == "agent.policy.safetensors"
    network = load_policy_file(path)
    assert network.content_id == agent.networks()[""].content_id
    samples, rows = drawn(agent.envs.space, 300)
    actions = network.act(rows(slice(None)))
    together = agent.predict(rows(slice(0, 64)))
    assert (actions.dtype, actions.shape[1:]) == (together.dtype, together.shape[1:])
    np.testing.assert_allclose(actions[:64], together, rtol=1e-5, atol=1e-6)
    if not any("conv2d" in str(layer) for layer in network.layers):
        assert actions[:64].tobytes() == together.tobytes()  # whole blocks both
    alone = np.stack([agent.predict(sample) for sample in samples[:20]])
    np.testing.assert_allclose(actions[:20], alone, rtol=1e-5, atol=1e-6)
    order = np.random.default_rng(0).permutation(300)
    for count in (1, 7, 16, 128, 300):
        assert network.act(rows(order[:count])).tobytes() == actions[order[:count]].tobytes()


@pytest.mark.parametrize("width", [64, 256])
def test_wide_networks_do_not_depend_on_the_rows_asked_together(width):
    generator = torch.Generator().manual_seed(0)
    actor = GaussianActor(10, 2, hidden_sizes=[width, width], generator=generator)
    rows = np.random.default_rng(0).normal(size=(300, 10)).astype(np.float32)
    network = actor.network()
    together = network.act(rows)
    order = np.random.default_rng(1).permutation(300)
    for count in (1, 7, 16, 64, 128, 300):
        chosen = order[:count]
        assert network.act(rows[chosen]).tobytes() == together[chosen].tobytes()
    with torch.no_grad():
        np.testing.assert_allclose(together, actor(torch.tensor(rows)), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["MAPPO", "HAPPO", "HATD3"])
def test_team_has_a_file_for_every_robot(kind, tmp_path):
    team = getattr(cadenza, kind)(
        lambda n: VectorMPECooperativePushEnv(n, root_seed=0), num_envs=2, **SIZES
    )
    joint = np.random.default_rng(0).normal(size=(64, team.team.joint_dim)).astype(np.float32)
    states = np.split(joint, np.cumsum(team.team.observation_dims)[:-1], axis=1)
    paths = team.export_policy(tmp_path / "team.policy.safetensors")
    assert [p.name for p in paths] == [f"team.{uid}.policy.safetensors" for uid in team.team.uids]
    for path, state, wanted in zip(paths, states, team.predict(joint), strict=True):
        network = load_policy_file(path)
        assert network.seat in team.team.uids
        np.testing.assert_allclose(network.act(state), wanted, rtol=1e-5, atol=1e-6)
    assert (network.output.log_std is None) == (kind == "HATD3")


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_of_harl_are_layers(activation):
    generator = torch.Generator().manual_seed(0)
    actor = GaussianActor(
        4, 3, hidden_sizes=[8], generator=generator, activation=activation, chooses=True
    )
    rows = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    with torch.no_grad():
        wanted = actor(torch.tensor(rows)).numpy()
    network = actor.network()
    np.testing.assert_allclose(network.outputs(rows), wanted, atol=1e-6)
    assert network.act(rows)[:, 0].tolist() == wanted.argmax(axis=1).tolist()


def test_perceptron_by_hand():
    """a = clip(2 tanh((s - 1) / 2) + 0.5, -1, 3), states scaled to at most 10."""
    weights = [torch.tensor([[1.0]]), torch.zeros(1), torch.tensor([[2.0]]), torch.tensor([0.5])]
    scale = torch.tensor([1.0]), torch.tensor([2.0])
    ends = {"low": np.float32([-1.0]), "high": np.float32([3.0])}
    network = perceptron(weights, "tanh", Output(kind="mean", **ends), standardized=scale)
    again = PortableNetwork.from_state_dict(network.state_dict())
    assert again.content_id == network.content_id
    states = np.float32([[3.0], [-1e9], [1.0]])
    wanted = [2.0 * np.tanh(1.0) + 0.5, -1.0, 0.5]
    assert again.act(states)[:, 0].tolist() == pytest.approx(wanted)
    unclipped = perceptron(weights, "tanh", Output(kind="unit", **ends))  # y = 2 tanh 3 + 0.5
    assert unclipped.act(np.float32([[0.0], [3.0]]))[:, 0].tolist() == pytest.approx([2.0, 3.0])
    changed = network.state_dict()
    changed["tensors"]["layers.1.weight"] += 1.0
    with pytest.raises(CheckpointError, match="the file was changed"):
        PortableNetwork.from_state_dict(changed)


def small(**changes):
    """a = clip(2 s + 1, -1, 1), drawn with σ = 1 / 2."""
    pair = {"weight": torch.tensor([[2.0]]), "bias": torch.tensor([1.0])}
    bound = np.ones(1, np.float32)
    spread = torch.tensor([0.5]).log()
    values = {
        "layers": (Layer("linear", tensors=pair),),
        "output": Output(kind="mean", low=-bound, high=bound, log_std=spread),
        "observation": {"kind": "box", "shape": [1], "dtype": "float32"},
        "action": {"kind": "box", "shape": [1], "dtype": "float32"},
    }
    return PortableNetwork(**{**values, **changes})


def test_draws_add_the_noise_before_the_bounds():
    rows = np.array([[-0.5], [-0.75], [0.0]], np.float32)  # y = 0, -0.5, 1
    assert small().act(rows)[:, 0].tolist() == [0.0, -0.5, 1.0]
    noise = np.array([[1.0], [-2.0], [1.0]], np.float32)
    assert small().act(rows, noise)[:, 0].tolist() == [0.5, -1.0, 1.0]


def test_where_a_policy_comes_from_is_no_part_of_what_it_is(tmp_path):
    ids = {
        small(facts={"seed": 1}).content_id,
        small(facts={"seed": 2, "run_id": "x"}).content_id,
        load_policy_file(save_policy_file(small(facts={"seed": 3}), tmp_path / "x")).content_id,
    }
    assert len(ids) == 1
    assert small(task={"id": "crossing"}).content_id not in ids
    other = small(output=Output(kind="mean", low=-np.ones(1, "f4"), high=np.full(1, 2.0, "f4")))
    assert other.content_id not in ids


def test_every_changed_bit_is_refused(tmp_path):
    generator = torch.Generator().manual_seed(0)
    actor = GaussianActor(3, 2, hidden_sizes=[4], generator=generator)
    path = save_policy_file(actor.network(facts={"seed": 7}), tmp_path / "a.policy.safetensors")
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    for bit in rng.choice(8 * len(data), size=400, replace=False).tolist():
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        with pytest.raises(CheckpointError):
            load_policy_file(path)
    for size in rng.integers(len(data), size=40).tolist():
        path.write_bytes(data[:size])
        with pytest.raises(CheckpointError):
            load_policy_file(path)


def written(path, tensors, change):
    """Write a file whose header, sealed anew, is as ``change`` leaves it."""
    data = save_policy_file(small(), path).read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["cadenza"])
    change(header)
    del header["sha256"]
    sealed = canonical_json({**header, "sha256": sha256_bytes(canonical_json(header))}).decode()
    path.write_bytes(safetensors.torch.save(tensors, metadata={"cadenza": sealed}))
    return path


def nested(header):
    layer = {"kind": "parts", "widths": [1], "parts": [[]]}
    for _ in range(40):
        layer = {"kind": "parts", "widths": [1], "parts": [[layer]]}
    header["layers"] = [layer]


ONE = {"layers.0.weight": torch.tensor([[2.0]]), "layers.0.bias": torch.tensor([1.0])}
ENDS = {f"output.{name}": torch.ones(1) for name in ("low", "high", "log_std")}


@pytest.mark.parametrize(
    ("change", "tensors", "told"),
    [
        (lambda h: h.update(format="cadenza-policy/2"), ONE, "expected the format"),
        (lambda h: h["layers"][0].update(kind="exec"), ONE, "expected layers of .*'exec'"),
        (nested, ONE, "at most 8 deep"),
        (lambda h: None, {**ONE, "more": torch.ones(1)}, "no tensors beside it, got .*more"),
        (lambda h: None, {"layers.0.weight": torch.ones(1, 1)}, "damaged or another one"),
        (
            lambda h: None,
            {**ONE, "layers.0.bias": torch.tensor([np.nan])},
            "expected finite numbers in layers.0.bias",
        ),
        (
            lambda h: h["layers"].append({"kind": "shape", "sizes": [2**40]}),
            ONE,
            "expected layers that fit together",
        ),
        (lambda h: h["observation"].update(shape=[2**62, 2**62]), ONE, "expected layers that fit"),
        (lambda h: h["observation"].update(shape=[2]), ONE, "expected layers that fit together"),
        (lambda h: h.update(output="argmax"), ONE, "expected an output of choice, mean"),
        (lambda h: h["action"].update(shape=[2]), ONE, "expected an output"),
        (lambda h: h.update(content_id="0" * 64), ONE, "expected the policy 0000"),
        (lambda h: h.update(layers="linear"), ONE, "damaged or another one"),
    ],
)
def test_hostile_headers_are_refused_in_one_sentence(tmp_path, change, tensors, told):
    path = written(tmp_path / "x.policy.safetensors", {**tensors, **ENDS}, change)
    with pytest.raises(CheckpointError, match=told) as refused:
        load_policy_file(path)
    assert str(path) in str(refused.value)


def test_images_that_grow_without_end_are_refused():
    weight = {"weight": torch.ones(64, 1, 1, 1), "bias": torch.zeros(64)}
    again = {"weight": torch.ones(64, 64, 1, 1), "bias": torch.zeros(64)}
    sizes = {"stride": [1, 1], "padding": [300, 300]}
    layers = (
        Layer("shape", {"sizes": [1, 1, 1]}),
        Layer("conv2d", sizes, weight),
        *[Layer("conv2d", sizes, again)] * 30,
    )
    with pytest.raises(CheckpointError, match=r"a row of .* numbers, at most"):
        small(layers=layers)


def test_files_that_are_none_are_refused(tmp_path):
    path = tmp_path / "x.policy.safetensors"
    with pytest.raises(CheckpointError, match="No such file"):
        load_policy_file(path)
    for data in (b"", b"{", b"\xff" * 40, safetensors.torch.save({"a": torch.ones(1)})):
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match="policy"):
            load_policy_file(path)


class Mine(nn.Module):
    def forward(self, x):
        return x.flatten(1)[:, :4].float()


def test_module_of_ones_own_is_refused_and_saves_without_a_file(tmp_path):
    agent = cadenza.PPO(world(bytes_of(3, 40, 40), CHOICES), network=Mine(), **SIZES)
    with pytest.raises(ConfigurationError, match=r"got Mine.*export the policy to ONNX"):
        agent.export_policy(tmp_path / "x")
    agent.save(tmp_path / "agent")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["agent", "agent.json"]


def test_observations_of_another_size_are_refused():
    with pytest.raises(InputError, match="expected observations of 1 numbers, got 2"):
        small().act(np.zeros((3, 2)))
    network = AGENTS["parts"]().networks()[""]
    with pytest.raises(InputError, match="expected observations of"):
        network.act({"camera": np.zeros((1, 12, 12, 3))})
    single = network.observation["parts"]
    seen = {name: np.zeros(part.get("shape", ()), int) for name, part in single}
    with pytest.raises(InputError, match=r"^policy: expected a row for each .* alone; .*one\.$"):
        network.step(seen, None)
    network = AGENTS["PPO, choices"]().networks()[""]
    with pytest.raises(InputError, match=r"a row for each observation, \(N, 5\), got one"):
        network.act(np.zeros(5))
    with pytest.raises(InputError, match="expected observations of 5 numbers, got 6"):
        network.predict(np.zeros(6))


def test_every_kind_of_layer_is_written_by_some_policy():
    found = set()

    def collect(layers):
        for layer in layers:
            found.add(layer.kind)
            for part in layer.parts:
                collect(part)

    for name in AGENTS:
        collect(AGENTS[name]().networks()[""].layers)
    for kind in ("gru", "lstm"):
        collect(cadenza.PPO(world(numbers(), BOX), memory=kind, **SIZES).networks()[""].layers)
    collect(cadenza.LIAM(HiddenTypes, **SIZES).networks()[""].layers)
    collect(cadenza.E3T(Matching, **SIZES).networks()[""].layers)
    dueling = cadenza.learn.nn.action_value_mlp.DiscreteQMlp(3, 2, [4], dueling=True)
    collect(layers_of(dueling))
    rows = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    choices = Output(kind="choice", choices=np.arange(2))
    network = small(
        layers=layers_of(dueling),
        output=choices,
        observation={"kind": "box", "shape": [3]},
        action={"kind": "discrete", "n": 2, "start": 0},
    )
    with torch.no_grad():
        np.testing.assert_allclose(network.outputs(rows), dueling(torch.tensor(rows)), atol=1e-6)
    # `append` stands in MAPPO's files; activations of HARL's actors have a test of their own.
    assert set(KINDS) - found <= {"append", *ACTIVATIONS}


def test_file_plays_in_a_fresh_process_without_environment_or_learner(tmp_path):
    agent = trained("SAC")
    (path,) = agent.export_policy(tmp_path / "agent")
    rows = np.random.default_rng(0).normal(size=(5, 5)).astype(np.float32)
    np.save(tmp_path / "rows.npy", rows)
    program = (
        "import sys, numpy as np\n"
        "from pathlib import Path\n"
        "from cadenza.learn.nn.portable import load_policy_file\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "network = load_policy_file(folder / 'agent.policy.safetensors')\n"
        "np.save(folder / 'actions.npy', network.act(np.load(folder / 'rows.npy')))\n"
        "heavy = ('cadenza.learn.agents', 'cadenza.learn.algorithms', 'cadenza.learn.env.')\n"
        "assert not [name for name in sys.modules if name.startswith(heavy)]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    assert np.load(tmp_path / "actions.npy").tobytes() == load_policy_file(path).act(rows).tobytes()


def test_masked_choices_are_not_made():
    network = AGENTS["PPO, choices"]().networks()[""]
    rows = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    masks = np.eye(4)[[2, 0, 3, 1]]
    assert network.predict(rows, action_mask=masks).tolist() == [3, 1, 4, 2]  # they begin at 1
    assert network.predict(rows[0], action_mask=masks[0]) == 3
