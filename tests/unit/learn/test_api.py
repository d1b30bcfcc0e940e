"""The front door: every algorithm trains, acts, is judged, saved, loaded and exported."""

import subprocess
import sys
from contextlib import nullcontext

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from torch import nn

import cadenza
from cadenza.core.errors import (
    CheckpointError,
    ConfigurationError,
    InputError,
    MissingExtraError,
    UnknownNameError,
)
from cadenza.envs import VectorMPECooperativePushEnv
from cadenza.learn import Callback
from cadenza.learn.agents.judging import SELECTION_SEED, Evaluation
from cadenza.learn.agents.loop import AgentCallback
from cadenza.learn.callbacks.checkpointing import Checkpointer, CheckpointLoader
from tests.campaigns import size
from tests.unit.learn.counting_envs import CountingEnv

SMALL = {"hidden_sizes": (16, 16), "batch_size": 16}
REPLAY = {**SMALL, "warmup_steps": 40, "memory_size": 1_000}
ROLLOUT = {"hidden_sizes": (16, 16), "rollout_length": 32, "batch_size": 32, "epochs": 2}
#: Algorithm, environment, settings.
SOLO = [
    ("SAC", "Pendulum-v1", REPLAY),
    ("HLGauss", "Pendulum-v1", {**REPLAY, "bins": 11}),
    (
        "MBPO",
        "Pendulum-v1",
        {**REPLAY, "model_hidden": 16, "model_updates": 10, "rollout_every": 15},
    ),
    ("TD3", "Pendulum-v1", REPLAY),
    ("DQN", "CartPole-v1", REPLAY),
    ("PPO", "CartPole-v1", {**ROLLOUT, "num_envs": 2}),
    ("PPO", "Pendulum-v1", {**ROLLOUT, "num_envs": 2, "squash_actions": True}),
    ("GRPO", "CartPole-v1", {**ROLLOUT, "num_envs": 4, "group_size": 2}),
]
TEAMS = [("MAPPO", ROLLOUT), ("HAPPO", {"rollout_length": 32, "epochs": 2}), ("HATD3", REPLAY)]


def pushes(count):
    return VectorMPECooperativePushEnv(count, root_seed=0, episode_length=10)


def tensors(state):
    """Return all tensors in a nested state, in order."""
    if isinstance(state, torch.Tensor):
        return [state]
    if isinstance(state, dict):
        state = list(state.values())
    return [t for part in state for t in tensors(part)] if isinstance(state, list | tuple) else []


def assert_same(one, other):
    mine, theirs = tensors(one.state_dict()), tensors(other.state_dict())
    assert len(mine) == len(theirs) > 0
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    assert (one.steps, one.updates) == (other.steps, other.updates)


@pytest.mark.parametrize(("name", "env", "config"), SOLO)
def test_agent_that_was_saved_and_loaded_goes_on_as_if_it_had_not_been(tmp_path, name, env, config):
    kind = getattr(cadenza, name)
    steps = 150 if name == "GRPO" else 70  # it updates once in 128
    whole = kind(env, seed=3, **config).learn(steps, progress=False)
    middle = whole.save(tmp_path / "middle")
    whole.learn(steps, progress=False)
    loaded = kind.load(middle).learn(steps, progress=False)
    assert whole.updates > 0
    assert_same(loaded, whole)
    observation, _ = gym.make(env).reset(seed=1)
    np.testing.assert_array_equal(loaded.predict(observation), whole.predict(observation))
    assert loaded.evaluate(2).returns == whole.evaluate(2).returns


class Watch(Callback):
    """Calls a function after one of the updates."""

    def __init__(self, update, call):
        super().__init__()
        self.update, self.call, self.count = update, call, 0

    def end_batch(self):
        self.count += 1
        if self.count == self.update:
            self.call()


@pytest.mark.parametrize(
    ("name", "more", "update"),
    [
        ("SAC", {"num_envs": 4}, 30),
        ("SAC", {"updates": 2}, 31),
        ("PPO", {"decay_learning_rate": True}, 2),
        ("GRPO", {}, 2),
    ],
)
def test_file_written_between_two_updates_goes_on_bit_for_bit(tmp_path, name, more, update):
    steps = 100 if "updates" in more else 260
    kind = getattr(cadenza, name)
    _, env, config = next(row for row in SOLO if row[0] == name)
    whole = kind(env, seed=1, **{**config, **more})
    write = Watch(update, lambda: whole.save(tmp_path / "half"))
    whole.learn(steps, callbacks=[write], progress=False)
    half = kind.load(tmp_path / "half")
    assert 0 < half.steps < steps
    assert_same(half.learn(steps - half.steps, progress=False), whole)


@pytest.mark.parametrize(("decay", "is_same"), [(256, True), (True, False)])
def test_decay_over_a_number_of_steps_does_not_see_which_calls_take_them(decay, is_same):
    def agent():
        return cadenza.PPO("CartPole-v1", num_envs=2, **ROLLOUT, decay_learning_rate=decay)

    whole = agent().learn(256, progress=False)
    halves = agent().learn(128, progress=False).learn(128, progress=False)
    assert halves.steps == whole.steps
    pairs = zip(tensors(halves.state_dict()), tensors(whole.state_dict()), strict=True)
    assert all(torch.equal(*pair) for pair in pairs) is is_same


def interrupt():
    raise KeyboardInterrupt


def test_training_after_ctrl_c_takes_as_many_steps_as_it_is_told(tmp_path):
    agent = cadenza.TD3("Pendulum-v1", **REPLAY)
    options = {"folder": tmp_path, "callbacks": [Watch(20, interrupt)], "progress": False}
    with pytest.raises(KeyboardInterrupt):
        agent.learn(5_000, **options)
    reached = agent.steps
    assert cadenza.TD3.load(tmp_path / "last").learn(7, progress=False).steps == reached + 7
    assert agent.learn(7, progress=False).steps == reached + 7


@pytest.mark.parametrize(("name", "config"), [("TD3", REPLAY), ("PPO", ROLLOUT)])
def test_training_goes_on_after_an_environment_was_left_within_a_step(tmp_path, name, config):
    class Fragile(gym.Wrapper):
        left = 50

        def step(self, action):
            outcome = super().step(action)
            Fragile.left -= 1
            return outcome if Fragile.left else interrupt()

    def make():
        return Fragile(gym.make("Pendulum-v1"))

    agent = getattr(cadenza, name)(make, **config)
    with pytest.raises(KeyboardInterrupt):
        agent.learn(100, progress=False)
    loaded = type(agent).load(agent.save(tmp_path / "agent"), make)
    agent.learn(100, progress=False)
    assert_same(loaded.learn(100, progress=False), agent)


@pytest.mark.parametrize(("name", "config"), TEAMS)
def test_team_learns_is_judged_and_goes_on_from_a_file(tmp_path, name, config):
    kind = getattr(cadenza, name)
    team = kind(pushes, num_envs=4, seed=2, **config).learn(160, progress=False)
    loaded = kind.load(team.save(tmp_path / "team"), pushes)
    judged = team.evaluate(5)
    assert judged.lengths == (10,) * 5
    assert judged.low <= judged.mean <= judged.high
    team.learn(160, progress=False)
    loaded.learn(160, progress=False)
    assert team.updates > 0
    assert_same(loaded, team)
    actions = team.predict(np.zeros((3, 20)))
    assert [action.shape for action in actions] == [(3, 2), (3, 2)]


@pytest.mark.parametrize(("name", "env", "config"), SOLO)
def test_predictions_are_actions_of_the_environment(name, env, config):
    agent = getattr(cadenza, name)(env, **config)
    space = gym.make(env).action_space
    observations = np.stack([gym.make(env).reset(seed=k)[0] for k in range(3)])
    for deterministic in (True, False):
        actions = agent.predict(observations, deterministic=deterministic)
        single = agent.predict(observations[0], deterministic=deterministic)
        assert all(space.contains(action) for action in [*actions, single])
    np.testing.assert_allclose(agent.predict(observations)[1], agent.predict(observations[1]))


@pytest.mark.parametrize(
    ("name", "env", "config"),
    # HLGauss and MBPO have SAC's policy, TD3 has its mean, GRPO has PPO's
    [row for row in SOLO if row[0] in size({"SAC", "DQN", "PPO"}, {row[0] for row in SOLO})],
)
def test_exported_file_decides_as_the_agent_does(tmp_path, name, env, config):
    onnxruntime = pytest.importorskip("onnxruntime")
    config = {**config, **({"normalize_observations": True} if name == "PPO" else {})}
    agent = getattr(cadenza, name)(env, **config).learn(60, progress=False)
    session = onnxruntime.InferenceSession(agent.export_onnx(tmp_path / "policy.onnx"))
    observations = np.stack([gym.make(env).reset(seed=k)[0] for k in range(5)])
    (actions,) = session.run(None, {"obs": observations})
    np.testing.assert_allclose(actions, agent.predict(observations), atol=1e-5)


OBSERVATIONS = {
    "parts": spaces.Dict(
        camera=spaces.Box(0, 255, (12, 12, 3), np.uint8),
        arm=spaces.Dict(joints=spaces.Box(-1, 1, (3,), np.float32), force=spaces.Box(-9, 9, ())),
        linear=spaces.Discrete(4, start=-1),  # torch calls values so
        actions=spaces.MultiBinary((2, 2)),
    ),
    "tuple": spaces.Tuple((spaces.MultiDiscrete([[2], [5]]), spaces.Box(-1, 1, (2, 2)))),
    "number": spaces.Discrete(5, start=3),
    "counts": spaces.MultiDiscrete([3, 4], start=[1, 0]),
}
INPUTS = {
    "parts": ["obs.actions", "obs.arm.force", "obs.arm.joints", "obs.camera", "obs.linear"],
    "tuple": ["obs.0", "obs.1"],
    "number": ["obs"],
    "counts": ["obs"],
}


def by_input(space, samples, name="obs"):
    """Return samples side by side, by the names of the inputs that take them."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        keys = space.keys() if isinstance(space, spaces.Dict) else range(len(space))
        parts = [by_input(space[k], [s[k] for s in samples], f"{name}.{k}") for k in keys]
        return {each: rows for part in parts for each, rows in part.items()}
    return {name: np.stack(samples)}


@pytest.mark.parametrize("name", size(["parts", "tuple"], INPUTS))
def test_exported_file_has_an_input_for_every_part_of_an_observation(tmp_path, name):
    onnxruntime = pytest.importorskip("onnxruntime")
    space = OBSERVATIONS[name]

    class World(gym.Env):
        observation_space, action_space = space, spaces.Box(-2, 2, (2,))

    agent = cadenza.PPO(World, rollout_length=16, seed=3)
    session = onnxruntime.InferenceSession(agent.export_onnx(tmp_path / "policy.onnx"))
    assert sorted(part.name for part in session.get_inputs()) == INPUTS[name]
    space.seed(0)
    samples = [space.sample() for _ in range(5)]
    rows = by_input(space, samples)
    assert all(part.shape[1:] == list(rows[part.name].shape[1:]) for part in session.get_inputs())
    (actions,) = session.run(None, rows)
    np.testing.assert_allclose(actions, [agent.predict(each) for each in samples], atol=1e-5)
    assert np.ptp(actions, axis=0).min() > 1e-3
    assert session.get_modelmeta().custom_metadata_map["algorithm"] == "PPO"


@pytest.mark.parametrize(("name", "config"), size(TEAMS[:1], TEAMS))
def test_exported_team_decides_as_the_team_does(tmp_path, name, config):
    onnxruntime = pytest.importorskip("onnxruntime")
    team = getattr(cadenza, name)(pushes, num_envs=4, **config)
    session = onnxruntime.InferenceSession(team.export_onnx(tmp_path / "team.onnx"))
    joint = np.random.default_rng(0).normal(size=(4, 20)).astype(np.float32)
    exported = session.run(["actions.ego", "actions.partner"], {"joint": joint})
    for mine, theirs in zip(team.predict(joint), exported, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


class Camera(gym.Env):
    """Shows a bright left or right half; the action must name it."""

    def __init__(self, observation_space):
        self.observation_space, self.action_space = observation_space, spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self._look(), {}

    def step(self, action):
        reward = float(action == self.side)
        self.count += 1
        return self._look(), reward, False, self.count == 8, {}

    def _look(self):
        self.side = int(self.np_random.integers(2))
        image = np.zeros((12, 12, 1), np.uint8)
        image[:, 6 * self.side : 6 * self.side + 6] = 255
        if isinstance(self.observation_space, spaces.Dict):
            return {"image": image, "speed": np.zeros(2, np.float32)}
        return image


IMAGE = spaces.Box(0, 255, (12, 12, 1), np.uint8)
MIXED = spaces.Dict({"image": IMAGE, "speed": spaces.Box(-1, 1, (2,), np.float32)})


SEEN = [("DQN", MIXED), ("PPO", IMAGE), ("DQN", IMAGE), ("PPO", MIXED)]


@pytest.mark.parametrize(("name", "space"), size(SEEN[:2], SEEN))
def test_images_are_seen(tmp_path, name, space):
    config = {
        "DQN": {**REPLAY, "epsilon_frames": 300, "gamma": 0.0, "learning_rate": 1e-3},
        "PPO": {**ROLLOUT, "num_envs": 4, "gamma": 0.0, "epochs": 8, "learning_rate": 1e-3},
    }[name]
    agent = getattr(cadenza, name)(lambda: Camera(space), seed=0, **config)
    agent.learn(400, progress=False)
    assert agent.evaluate(3).mean == 8.0
    loaded = type(agent).load(agent.save(tmp_path / "agent"), lambda: Camera(space))
    assert loaded.evaluate(3).returns == agent.evaluate(3).returns


NUMBERS = spaces.Dict(arm=spaces.Box(-1.0, 1.0, (2,), np.float32), mode=spaces.Discrete(3))


class Parts(gym.Env):
    """Shows draws of a space and notes how many threads torch has meanwhile."""

    action_space = spaces.Discrete(2)

    def __init__(self, space=NUMBERS):
        self.observation_space, self.threads = space, set()

    def reset(self, *, seed=None, options=None):
        self.observation_space.seed(seed)
        self.count = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.count += 1
        self.threads.add(torch.get_num_threads())
        return self.observation_space.sample(), float(action), False, self.count == 4, {}


@pytest.mark.parametrize(
    ("space", "network", "threads"), [(NUMBERS, None, 1), (NUMBERS, "dict", 1), (MIXED, None, 2)]
)
def test_only_images_are_seen_with_all_threads(space, network, threads):
    env, before = Parts(space), torch.get_num_threads()
    torch.set_num_threads(2)
    cadenza.PPO(env, network=network, **ROLLOUT).learn(4, progress=False)
    torch.set_num_threads(before)
    assert env.threads == {threads}


@pytest.mark.parametrize("name", ["DQN", "PPO"])
def test_dicts_of_numbers_are_flat_and_files_of_earlier_versions_keep_their_encoder(tmp_path, name):
    settings = REPLAY if name == "DQN" else ROLLOUT
    flat, encoded = (
        getattr(cadenza, name)(Parts, network=network, **settings).learn(40, progress=False)
        for network in (None, "dict")
    )
    encoded.network = ""  # what earlier versions wrote of a choice of their own
    loaded = cadenza.load(encoded.save(tmp_path / "earlier"), Parts)
    assert loaded.network == "dict"
    assert cadenza.load(flat.save(tmp_path / "now"), Parts).network is None
    for agent in (flat, loaded):
        agent.learn(40, progress=False)
    for ours, theirs in zip(*(a.learner.greedy.parameters() for a in (flat, loaded)), strict=True):
        assert torch.equal(ours, theirs)


VECTOR = spaces.Box(-1.0, 1.0, (2,), np.float32)
COMPOSED = [
    spaces.Discrete(4, start=3),
    spaces.MultiDiscrete([3, 2]),
    spaces.Tuple((spaces.Discrete(3), VECTOR)),
    spaces.Dict({"type": spaces.Discrete(3), "a.b": VECTOR}),
    spaces.Dict(
        inner=spaces.Dict(image=IMAGE, flag=spaces.Discrete(2)), pair=spaces.Tuple((VECTOR,))
    ),
]


@pytest.mark.parametrize("space", COMPOSED, ids=str)
def test_composed_observations_are_learned_from(space):
    class Sampled(gym.Env):
        observation_space, action_space = space, spaces.Discrete(2, start=-1)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.observation_space.seed(seed)
            self.count = 0
            return self.observation_space.sample(), {}

        def step(self, action):
            assert self.action_space.contains(action)
            self.count += 1
            return self.observation_space.sample(), 1, False, self.count == 5, {}

    agent = cadenza.PPO(Sampled, **ROLLOUT).learn(64, progress=False)
    assert agent.evaluate(2).returns == (5.0, 5.0)


def test_module_of_ones_own_sees_observations_in_their_shape(tmp_path):
    seen = []

    class Features(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 5)

        def forward(self, observations):
            seen.append(tuple(observations.shape))
            return torch.relu(self.layer(observations))

    module = Features()
    before = module.layer.weight.clone()
    agent = cadenza.SAC("Pendulum-v1", network=module, **REPLAY).learn(60, progress=False)
    assert {shape[1:] for shape in seen} == {(3,)}
    assert torch.equal(module.layer.weight, before)  # copied, not trained
    saved = agent.save(tmp_path / "agent")
    with pytest.raises(InputError, match="expected network="):
        cadenza.SAC.load(saved)
    assert_same(cadenza.SAC.load(saved, network=Features()), agent)


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("name", ["SAC", "PPO"])
def test_vector_environments_of_every_kind_of_reset(name, mode):
    envs = gym.make_vec(
        "Pendulum-v1", num_envs=3, vector_kwargs={"autoreset_mode": mode}, max_episode_steps=50
    )
    config = REPLAY if name == "SAC" else ROLLOUT
    agent = getattr(cadenza, name)(envs, **config).learn(200, progress=False)
    assert agent.updates > 0
    assert -500.0 < agent.mean_return < 0.0


def test_time_limits_are_no_ends():
    class Endless(gym.Env):
        """Pays 1 in every step, and is cut off after four."""

        observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.count = 0
            return np.ones(1, np.float32), {}

        def step(self, action):
            self.count += 1
            return np.ones(1, np.float32), 1.0, False, self.count == 4, {}

    agent = cadenza.TD3(Endless, gamma=0.5, tau=0.1, learning_rate=3e-3, **REPLAY)
    agent.learn(600, progress=False)
    value = agent.scalar_logs["training/q1_prediction"]
    assert value == pytest.approx(2.0, abs=0.1)  # 1 / (1 - 0.5), not 1.875 or less


class Doubled(gym.RewardWrapper):
    """Cannot be made anew from its spec."""

    def reward(self, reward):
        return 2.0 * reward


def test_evaluation_leaves_the_environment_of_the_training_alone():
    env = gym.make("Pendulum-v1")
    agent = cadenza.TD3(env, **REPLAY).learn(50, progress=False)
    other = cadenza.TD3(gym.make("Pendulum-v1"), **REPLAY).learn(50, progress=False)
    judged = agent.evaluate(1, env=env)
    assert judged.returns == agent.evaluate(1, env="Pendulum-v1").returns
    agent.learn(50, progress=False)
    other.learn(50, progress=False)
    assert_same(agent, other)


def test_without_scipy_a_judged_training_is_refused_before_it_begins(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    agent = cadenza.PPO("CartPole-v1", seed=0, **ROLLOUT)
    with pytest.raises(MissingExtraError, match=r"cadenza\[train\]"):
        agent.learn(64, folder=tmp_path, progress=False)
    assert agent.steps == 0
    with pytest.raises(MissingExtraError, match=r"cadenza\[train\]"):
        agent.evaluate(episodes=2)
    assert agent.evaluate(episodes=1).low is None  # one episode has no interval
    assert agent.learn(64, progress=False).steps == 64


def test_best_and_last_policy_are_kept(tmp_path):
    agent = cadenza.DQN("CartPole-v1", **REPLAY)
    agent.learn(300, folder=tmp_path, evaluate_every=100, evaluation_episodes=2, progress=False)
    best, last = (cadenza.DQN.load(tmp_path / name) for name in ("best", "last"))
    assert_same(last, agent)
    assert best.evaluate(2, seed=SELECTION_SEED).mean == agent.best_return
    assert agent.scalar_logs["evaluation/mean_return"] <= agent.best_return
    assert last.memory.size() > best.memory.size() == 0
    assert best.learn(100, progress=False).updates > 0


def test_the_best_policy_is_chosen_once_a_turn_on_episodes_of_their_own(tmp_path):
    class Record(AgentCallback):
        judged, saved = [], []

        def on_evaluate(self, agent, result):
            self.judged.append((agent.steps, result.mean))
            assert result.returns == agent.evaluate(3, seed=SELECTION_SEED).returns

        def on_save(self, agent, path):
            self.saved.append((path.name, agent.steps))
            assert cadenza.DQN.load(path).steps == agent.steps

    agent = cadenza.DQN("CartPole-v1", **REPLAY)
    options = {"evaluate_every": 100, "evaluation_episodes": 3, "progress": False}
    agent.learn(250, folder=tmp_path, callbacks=Record(), **options)
    assert [steps for steps, _ in Record.judged] == [100, 200, 250]
    best, kept = -np.inf, []
    for steps, mean in Record.judged:
        kept += [("best", steps)] * (mean > best) + [("last", steps)]
        best = max(best, mean)
    assert kept == Record.saved
    assert agent.best_return == best


def test_every_step_after_the_warm_up_is_an_update():
    agent = cadenza.SAC("Pendulum-v1", num_envs=4, **{**REPLAY, "warmup_steps": 20})
    assert agent.learn(200, progress=False).updates == 180


def test_callbacks_of_the_engine_work_beside_it(tmp_path):
    def agent():
        return cadenza.SAC("Pendulum-v1", seed=5, **REPLAY)

    whole = agent().learn(120, progress=False)
    first = agent()
    options = {"restorees": [first], "run_root": tmp_path, "checkpoint_interval": 20}
    (tmp_path / "checkpoints").mkdir()
    first.learn(100, callbacks=[Checkpointer(**options)], progress=False)
    resumed = agent()
    loader = CheckpointLoader(restorees=[resumed], run_root=tmp_path, checkpoint_index="latest")
    resumed.learn(20, callbacks=[loader], progress=False)
    assert_same(resumed, whole)


class Lock(gym.Env):
    """Opens by one combination."""

    observation_space = VECTOR
    action_space = spaces.MultiDiscrete([2, 3], start=[0, 1])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.ones(2, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.count += 1
        reward = float(action.tolist() == [1, 3])
        return np.ones(2, np.float32), reward, False, self.count == 8, {}


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("DQN", {**REPLAY, "epsilon_frames": 300}),
        ("PPO", {**ROLLOUT, "num_envs": 4, "epochs": 8}),
        ("PPO", {**ROLLOUT, "num_envs": 4, "epochs": 8, "factored_choices": True}),
    ],
)
def test_several_choices_at_once_are_learned(name, config):
    agent = getattr(cadenza, name)(Lock, gamma=0.0, learning_rate=3e-3, **config)
    assert agent.learn(800, progress=False).evaluate(2).mean == 8.0
    rows = np.ones((3, 2), np.float32)
    deployed = agent.deployed()(torch.from_numpy(rows))
    assert deployed.tolist() == agent.predict(rows).tolist() == [[1, 3]] * 3
    kind = "factors" if "factored_choices" in config else "choice"
    assert agent.networks()[""].output.kind == kind


def shown(observation_space, action_space=None):
    """Return what makes an environment of these spaces."""

    def make():
        env = Camera(observation_space)
        env.action_space = action_space or env.action_space
        return env

    return make


REFUSED = [
    (lambda: cadenza.SAC("MlpPolicy", "Pendulum-v1"), ConfigurationError, r"SAC\('Pendulum-v1'"),
    (lambda: cadenza.SAC(lambda: None), ConfigurationError, "makes None"),
    (lambda: cadenza.PPO(shown(spaces.Text(3))), ConfigurationError, "got Text"),
    (lambda: cadenza.PPO(shown(spaces.Dict(a=spaces.Text(3)))), ConfigurationError, "got Text"),
    (
        lambda: cadenza.DQN(shown(VECTOR, spaces.MultiBinary(20))),
        ConfigurationError,
        "at most 4096",
    ),
    (
        lambda: cadenza.HAPPO("Pendulum-v1"),
        ConfigurationError,
        "a batch of a task with several.*no ids: .*parallel_env",
    ),
    (lambda: cadenza.MAPPO(lambda: None), ConfigurationError, "from a number of environments"),
    (lambda: cadenza.HATD3(pushes(3), num_envs=7), ConfigurationError, "beside a ready batch"),
    (lambda: cadenza.HAPPO(pushes).evaluate(0), InputError, "episodes: expected an integer >= 1"),
    (lambda: cadenza.HAPPO(pushes).evaluate(5, env=pushes(3)), InputError, "got 3; each plays one"),
    (lambda: cadenza.MAPPO(pushes).predict(np.zeros(3)), InputError, r"shape \(1, 20\)"),
    (lambda: cadenza.MAPPO(pushes).predict(np.full(20, np.nan)), InputError, "finite"),
    (lambda: cadenza.PPO("CartPole-v1").save("."), InputError, "expected a file, got the folder"),
    (lambda: cadenza.guard("Pendulum-v1"), ConfigurationError, "got PendulumEnv .* snapshots="),
    (
        lambda: cadenza.guard(cadenza.guard("cadenza/Crossing-v1")),
        ConfigurationError,
        "guarded already",
    ),
    (lambda: gym.make("cadenza/Ego-v1"), UnknownNameError, "expected one of cocarry_mj"),
    (lambda: cadenza.guard(3), ConfigurationError, "guard: expected the id"),
    (
        lambda: cadenza.guard("cadenza/Crossing-v1", option=1),
        ConfigurationError,
        "did you mean 'options'",
    ),
    (lambda: cadenza.SAC("CartPole-v1"), ConfigurationError, "continuous actions"),
    (lambda: cadenza.SAC("Pendulum-v1", tau=2.0), ConfigurationError, "tau"),
    (lambda: cadenza.SAC("Pendulum-v1", gama=0.9), ConfigurationError, "gama"),
    (lambda: cadenza.SAC("Pendulum-v1", network="cnn"), ConfigurationError, "network"),
    (lambda: cadenza.SAC(7), ConfigurationError, "expected the id"),
    (lambda: cadenza.PPO(gym.make("CartPole-v1"), num_envs=2), ConfigurationError, "num_envs"),
    (lambda: cadenza.DQN("CartPole-v1").learn(0), InputError, "int >= 1"),
    (lambda: cadenza.DQN("CartPole-v1").evaluate(0), InputError, "episodes"),
    (lambda: cadenza.DQN("CartPole-v1").predict(np.zeros(3)), InputError, "observation of Box"),
    (lambda: cadenza.DQN("CartPole-v1").predict([0, 0, 0, np.nan]), InputError, "finite"),
    (lambda: cadenza.DQN("CartPole-v1").predict(((0, 0, 0, 0), {})), InputError, "observation of"),
    (lambda: cadenza.PPO("CartPole-v1", num_envs=0), ConfigurationError, "num_envs"),
    (lambda: cadenza.PPO("CartPole-v1", seed=None), ConfigurationError, "seed"),
    (lambda: cadenza.PPO(Doubled(gym.make("CartPole-v1"))).evaluate(1), InputError, "env="),
    (lambda: cadenza.PPO(gym.make_vec("CartPole-v1", 2)).evaluate(1), InputError, "env="),
    (lambda: cadenza.PPO(Doubled(gym.make("CartPole-v1"))).learn(1, folder="x"), InputError, "id"),
    (
        lambda: cadenza.PPO("CartPole-v1").learn(1, folder="x", evaluate_every=0),
        InputError,
        "every",
    ),
    (lambda: cadenza.DQN.load("/nowhere/agent"), CheckpointError, "nowhere"),
]


@pytest.mark.parametrize(("call", "kind", "words"), REFUSED)
def test_what_cannot_be_done_is_refused_by_name(call, kind, words):
    with pytest.raises(kind, match=words):
        call()


def test_agent_shows_how_it_was_made_and_how_far_it_is(tmp_path):
    agent = cadenza.DQN("CartPole-v1", seed=3, huber_delta=None).learn(60, progress=False)
    assert repr(agent) == "DQN('CartPole-v1', seed=3, huber_delta=None)  # 60 steps"
    agent.save(tmp_path / "agent")
    assert repr(cadenza.DQN.load(tmp_path / "agent")) == repr(agent)
    made = cadenza.PPO(lambda: gym.make("CartPole-v1"), num_envs=2, network="mlp", epochs=3)
    told = "seed=0, num_envs=2, network='mlp', epochs=3"
    assert repr(made) == f"PPO(<CartPoleEnv<CartPole-v1>>, {told})  # 0 steps"
    team = cadenza.HAPPO(pushes, num_envs=4)
    assert repr(team) == "HAPPO(<VectorMPECooperativePushEnv>, seed=0, num_envs=4)  # 0 steps"


def test_agents_of_another_algorithm_are_refused(tmp_path):
    saved = cadenza.SAC("Pendulum-v1", **REPLAY).save(tmp_path / "agent")
    with pytest.raises(CheckpointError, match=r"cadenza\.SAC\.load"):
        cadenza.TD3.load(saved)


def test_environment_with_other_spaces_is_refused(tmp_path):
    saved = cadenza.DQN("CartPole-v1", **REPLAY).save(tmp_path / "agent")
    with pytest.raises(CheckpointError, match=r"expected an environment with .*Discrete\(2\).*3"):
        cadenza.DQN.load(saved, "Acrobot-v1")


def test_progress_moves_during_the_warm_up(monkeypatch):
    seen = []
    bar = nullcontext(lambda done, total, detail: seen.append((done, total)))
    monkeypatch.setattr("cadenza.learn.agents.agent.progress_bar", lambda label, quiet: bar)
    cadenza.DQN("CartPole-v1", **{**REPLAY, "warmup_steps": 500}).learn(50)
    assert seen[0] == (1, 50)


def test_one_callback_needs_no_list():
    watch = Watch(1, lambda: None)
    agent = cadenza.DQN("CartPole-v1", **REPLAY).learn(60, callbacks=watch, progress=False)
    assert watch.count == agent.updates > 0


def test_team_after_ctrl_c_does_the_updates_that_were_due():
    team = cadenza.HATD3(pushes, num_envs=4, **REPLAY)
    with pytest.raises(KeyboardInterrupt):
        team.learn(160, callbacks=Watch(2, interrupt), progress=False)
    assert team.steps == 44  # four updates were due
    assert team.learn(116, progress=False).updates == 120


def test_team_is_saved_without_its_memory(tmp_path):
    team = cadenza.HATD3(pushes, num_envs=4, **REPLAY).learn(160, progress=False)
    whole, light = (team.save(tmp_path / str(m), memory=m) for m in (True, False))
    assert light.stat().st_size < whole.stat().st_size
    loaded = cadenza.HATD3.load(light, pushes)
    np.testing.assert_array_equal(loaded.predict(np.ones(20)), team.predict(np.ones(20)))
    before = loaded.updates
    assert loaded.learn(36, progress=False).updates == before  # no episode has ended
    assert loaded.learn(40, progress=False).updates > before


def test_progress_is_a_line_where_there_is_no_terminal(monkeypatch, capsys):
    monkeypatch.setattr("cadenza.core.progress.LINE_EVERY_S", 0.01)
    cadenza.DQN("CartPole-v1", **REPLAY).learn(150)
    assert "DQN: " in capsys.readouterr().err


IMPORTED = """
import os, torch  # torch takes long, and knows nothing of the tasks
for program in [
    "import cadenza, gymnasium; name = 'cadenza/Crossing-v1'",
    "import gymnasium, cadenza; name = 'cadenza/Crossing-v1'",
    "import gymnasium; name = 'cadenza:cadenza/Crossing-v1'",
]:
    if os.fork() == 0:
        exec(program)
        gymnasium.make(name).reset(seed=0)
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 7, program
"""


def test_gymnasium_knows_the_tasks_whichever_package_is_imported_first():
    subprocess.run([sys.executable, "-c", IMPORTED], check=True)


@pytest.mark.parametrize("name", ["PPO", "GRPO"])
def test_no_action_is_decided_on_what_is_not_finite(name):
    class Breaks(CountingEnv):
        def _observation(self):
            return super()._observation() if self.count < 2 else np.full(2, np.nan, np.float32)

    made = []

    def make():
        made.append(Breaks(horizon=9))
        return made[-1]

    agent = getattr(cadenza, name)(
        make, num_envs=2, **({"group_size": 2} if name == "GRPO" else {})
    )
    with pytest.raises(InputError, match=f"{name}: observations: expected finite"):
        agent.learn(32, progress=False)
    assert max(len(env.actions) for env in made) == 2


def test_registered_environments_are_the_tasks():
    env = cadenza.guard("cadenza/Crossing-v1", options=None)
    observation, _ = env.reset(seed=0)
    assert observation.shape == (10,)
    *_, info = env.step(np.zeros(2, np.float32))
    assert info["safety"]["status"] in ("inactive", "optimal")
    batch = cadenza.guard(gym.vector.SyncVectorEnv([lambda: gym.make("cadenza/Crossing-v1")] * 2))
    batch.reset(seed=0)
    *_, info = batch.step(np.zeros((2, 2), np.float32))
    assert info["safety"]["intervened"].shape == (2,)


def test_evaluation_gives_students_interval():
    judged = Evaluation.of([1.0, 2.0, 3.0, 6.0], [1, 1, 1, 1])
    assert judged.mean == 3.0
    half = 3.182446305284263 * np.std([1, 2, 3, 6], ddof=1) / 2.0  # t table, 3 degrees, 97.5 %
    assert (judged.low, judged.high) == pytest.approx((3.0 - half, 3.0 + half))
    assert str(judged) == "3.0 [-0.4, 6.4]"
    assert "no interval" in str(Evaluation.of([5.0, 5.0], [1, 1]))
