"""Loading steps nothing, needs no environment to act, and says what does not go on bit for bit."""

import json
import random
import signal
import warnings
import zipfile

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import cadenza
from cadenza.core.checkpoints import load_checkpoint, save_checkpoint
from cadenza.core.errors import CheckpointError, ConfigurationError, InputError
from cadenza.core.payloads import serialise
from cadenza.envs import VectorMPECooperativePushEnv
from cadenza.learn import Callback
from tests.unit.learn.test_api import assert_same

SMALL = {"hidden_sizes": (8,), "batch_size": 8}
SETTINGS = {
    "SAC": {**SMALL, "warmup_steps": 20},
    "TD3": {**SMALL, "warmup_steps": 20},
    "HLGauss": {**SMALL, "warmup_steps": 20, "bins": 11},
    "MBPO": {**SMALL, "warmup_steps": 20, "model_hidden": 8, "model_updates": 5},
    "DQN": {**SMALL, "warmup_steps": 20},
    "PPO": {**SMALL, "rollout_length": 16, "epochs": 1},
    "GRPO": {**SMALL, "rollout_length": 25, "epochs": 1, "num_envs": 4, "group_size": 2},
    "DAgger": {**SMALL, "num_envs": 2, "round_length": 16, "updates": 3},
}
TEAMS = {
    "MAPPO": SETTINGS["PPO"],
    "HAPPO": {"hidden_sizes": (8,), "rollout_length": 16, "epochs": 1},
    "HATD3": SETTINGS["TD3"],
}


class Robot(gym.Env):
    """A cart; ``moves`` counts what any of them was told, resets included."""

    observation_space = spaces.Box(-10, 10, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)
    moves = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        Robot.moves += 1
        self.x, self.t = 1.0, 0
        return self.seen(), {}

    def seen(self):
        return np.array([self.x, self.t / 100], np.float32)

    def reward(self):
        return -abs(self.x)

    def step(self, action):
        Robot.moves += 1
        self.t += 1
        self.x += 0.1 * float(np.ravel(action)[0])
        return self.seen(), self.reward(), False, self.t >= 20, {}

    def expert_action(self):
        return np.array([-0.5], np.float32)


class Harder(Robot):
    """Every episode is worth less than the one before, which no observation shows."""

    def __init__(self):
        self.level = 0

    def reset(self, **options):
        self.level += 1
        return super().reset(**options)

    def reward(self):
        return -float(self.level)


class Chancy(Robot):
    """Rewards are drawn from generators that no reset seeds."""

    def __init__(self):
        self.own, self.torch = random.Random(1), torch.Generator().manual_seed(2)  # noqa: S311
        self.legacy, self.modern = np.random.RandomState(3), np.random.default_rng(4)

    def reward(self):
        drawn = torch.rand(1, generator=self.torch).item()
        return -1.0 - drawn - self.own.random() - self.legacy.rand() - self.modern.random()


class Noisy(Robot):
    def seen(self):
        return super().seen() + np.float32(0.01 * random.random())  # noqa: S311 -- no secret


class Moody(Robot):
    """Its mood outlives episodes where nobody can put it back, unless it is offered as a state."""

    mood = {}  # noqa: RUF012 -- shared on purpose

    def __init__(self, name):
        self.name = name
        Moody.mood.setdefault(name, 0)

    def reset(self, **options):
        Moody.mood[self.name] += 1
        return super().reset(**options)

    def reward(self):
        return -float(Moody.mood[self.name])


class Offering(Moody):
    def state_dict(self):
        return {"mood": np.array([Moody.mood[self.name]])}

    def load_state_dict(self, state):
        Moody.mood[self.name] = int(state["mood"][0])


def pushes(count):
    return VectorMPECooperativePushEnv(count, root_seed=0, episode_length=10)


def digest(agent):
    state = agent.state_dict()
    return serialise(state)


@pytest.fixture
def told():
    """Warnings of trainings that do not go on bit for bit."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield lambda: [str(w.message) for w in caught if "not bit for bit" in str(w.message)]


def made(name, env=Robot):
    if name == "DQN":
        env = lambda: gym.wrappers.TransformAction(  # noqa: E731
            Robot(), lambda choice: np.array([choice - 0.5]), spaces.Discrete(2)
        )
    return getattr(cadenza, name)(env, seed=3, **SETTINGS[name]), env


def trained(name, env=Robot, steps=70):
    agent, env = made(name, env)
    return agent.learn(steps, progress=False), env


@pytest.mark.parametrize("name", SETTINGS)
def test_agent_acts_from_its_file_alone_and_steps_nothing_before_it_learns(name, tmp_path, told):
    agent, env = trained(name)
    saved = agent.save(tmp_path / "agent")
    again = agent.save(tmp_path / "again")
    before, rows = Robot.moves, np.ones((3, 2), np.float32)
    alone, loaded = type(agent).load(saved), type(agent).load(saved, env)
    np.testing.assert_array_equal(alone.predict(rows), agent.predict(rows))
    assert Robot.moves == before
    assert alone.evaluate(2, env=Robot() if name != "DQN" else env()).returns == (
        agent.evaluate(2).returns
    )
    assert alone.save(tmp_path / "alone").read_bytes() == again.read_bytes()  # nothing is lost
    with pytest.raises(InputError, match=r"load\(path, env\)"):
        alone.learn(10, folder=tmp_path / "none", progress=False)
    assert not (tmp_path / "none").exists()
    assert digest(loaded.learn(70, progress=False)) == digest(agent.learn(70, progress=False))
    assert not told()


@pytest.mark.parametrize("name", TEAMS)
def test_team_acts_from_its_file_alone(name, tmp_path, told):
    team = getattr(cadenza, name)(pushes, num_envs=4, **TEAMS[name]).learn(80, progress=False)
    saved = team.save(tmp_path / "team")
    alone = type(team).load(saved)
    joint = np.ones((2, 20))
    for mine, theirs in zip(alone.predict(joint), team.predict(joint), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert alone.evaluate(3, env=pushes(3)).returns == team.evaluate(3).returns
    with pytest.raises(InputError, match=r"load\(path, env\)"):
        alone.learn(10, progress=False)
    wider = type(team).load(alone.save(tmp_path / "alone"), pushes, num_envs=6)
    assert wider.learn(60, progress=False).steps >= 140
    assert not told()


SPACES = [
    spaces.Box(np.array([-1, 0.5]), np.array([1, np.inf]), dtype=np.float64),
    spaces.Box(0, 255, (12, 12, 1), np.uint8),
    spaces.Dict({"b": spaces.Discrete(3, start=2), "a": spaces.MultiBinary([2, 2])}),
    spaces.Tuple((spaces.MultiDiscrete([3, 4], start=[1, 0]), spaces.MultiBinary(3))),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_spaces_come_from_the_file(space, tmp_path):
    class Sampled(Robot):
        observation_space, action_space = space, spaces.MultiDiscrete([2, 3], start=[0, 1])

        def seen(self):
            return self.observation_space.sample()

        def step(self, action):
            assert self.action_space.contains(action)
            return self.seen(), 0.0, True, False, {}

    agent = cadenza.PPO(Sampled, **SETTINGS["PPO"])
    loaded = cadenza.PPO.load(agent.save(tmp_path / "agent"))
    assert (loaded.envs.space, loaded.envs.action_space) == (space, Sampled.action_space)
    seen = space.sample()
    np.testing.assert_array_equal(loaded.predict(seen), agent.predict(seen))


@pytest.mark.parametrize(
    ("name", "kind", "steps"),  # where episodes end, 80, and in the middle of one, 110
    [
        *(("SAC", kind, steps) for kind in (Harder, Chancy) for steps in (80, 110)),
        *((name, Chancy, 110) for name in ("PPO", "GRPO", "DAgger")),
    ],
)
def test_what_outlives_an_episode_goes_on(name, kind, steps, tmp_path, told):
    agent, _ = trained(name, kind, steps)
    loaded = type(agent).load(agent.save(tmp_path / "agent"), kind)
    agent.learn(100, progress=False)
    assert loaded.learn(100, progress=False).mean_return == agent.mean_return < -20.0
    assert digest(loaded) == digest(agent)
    assert not told()


def test_running_moments_of_wrappers_go_on(tmp_path, told):
    def make():
        return gym.wrappers.NormalizeReward(gym.wrappers.NormalizeObservation(Robot()))

    agent = cadenza.SAC(make, **SETTINGS["SAC"]).learn(70, progress=False)
    loaded = cadenza.SAC.load(agent.save(tmp_path / "agent"), make)
    assert digest(loaded.learn(70, progress=False)) == digest(agent.learn(70, progress=False))
    assert not told()


@pytest.mark.parametrize(("kind", "is_told"), [(Offering, False), (Moody, True)])
def test_state_that_is_offered_goes_on_and_other_is_told_of(kind, is_told, tmp_path, told):
    agent = cadenza.SAC(lambda: kind(str(tmp_path)), **SETTINGS["SAC"]).learn(70, progress=False)
    other = f"{tmp_path} in another process"
    loaded = cadenza.SAC.load(agent.save(tmp_path / "agent"), lambda: kind(other))
    loaded.learn(70, progress=False)
    agent.learn(70, progress=False)
    assert (loaded.mean_return == agent.mean_return) is not is_told
    assert [("new episodes begin" in words) for words in told()] == [True] * is_told


@pytest.mark.parametrize("name", ["SAC", "PPO", "DAgger"])
def test_episodes_that_do_not_repeat_begin_anew_with_one_warning(name, tmp_path, told):
    agent, _ = trained(name, Noisy)
    loaded = type(agent).load(agent.save(tmp_path / "agent"), Noisy)
    assert not told()
    loaded.learn(30, progress=False)
    assert len(told()) == 1
    assert "new episodes begin" in told()[0]
    assert loaded.steps >= 100
    loaded.learn(30, progress=False)
    assert len(told()) == 1


def test_vector_environments_that_came_ready_made_are_told_of_at_once(tmp_path, told):
    def make(count):
        return gym.make_vec("Pendulum-v1", num_envs=count)

    agent = cadenza.SAC(make(2), **SETTINGS["SAC"]).learn(70, progress=False)
    loaded = cadenza.SAC.load(agent.save(tmp_path / "agent"), make(3))
    assert ["2 environments, now there are 3" in words for words in told()] == [True]
    assert loaded.learn(30, progress=False).steps == 100
    cadenza.SAC.load(tmp_path / "agent", make(2))
    assert "ready-made" in told()[1]


def test_interrupted_replay_loses_nothing(tmp_path):
    agent, _ = trained("SAC")
    saved = agent.save(tmp_path / "agent")

    class Stuck(Robot):
        left = 5

        def step(self, action):
            Stuck.left -= 1
            if not Stuck.left:
                raise KeyboardInterrupt
            return super().step(action)

    loaded = cadenza.SAC.load(saved, Stuck)
    with pytest.raises(KeyboardInterrupt):
        loaded.learn(70, folder=tmp_path / "run", progress=False)
    resumed = cadenza.SAC.load(tmp_path / "run" / "last", Robot).learn(70, progress=False)
    assert digest(resumed) == digest(agent.learn(70, progress=False))


CHANGES = {
    "SAC": {"gamma": 0.5, "tau": 0.1, "batch_size": 16, "warmup_steps": 5, "num_envs": 3},
    "DQN": {"epsilon_end": 0.5, "num_envs": 2},
    "MBPO": {"model_learning_rate": 0.5},
    "PPO": {"rollout_length": 8, "epochs": 2, "normalize_rewards": True, "num_envs": 2},
    "GRPO": {"clip_epsilon": 0.3, "num_envs": 6},
    "DAgger": {"round_length": 8, "num_envs": 3},
}


def rates(agent):
    """Return the step sizes of all optimizers in the agent's state."""

    def found(part):
        if isinstance(part, dict):
            own = {float(part["lr"])} if "lr" in part else set()
            return own.union(*map(found, part.values()))
        return set().union(*map(found, part)) if isinstance(part, list | tuple) else set()

    return found(agent.state_dict())


@pytest.mark.parametrize("name", [n for n in SETTINGS if n not in ("HLGauss", "MBPO")])  # as SAC
def test_settings_may_change_when_an_agent_is_loaded(name, tmp_path):
    agent, env = trained(name)
    changes = {"learning_rate": 0.125, **CHANGES.get(name, {})}
    loaded = type(agent).load(agent.save(tmp_path / "agent"), env, **changes)
    for key, value in changes.items():
        assert getattr(loaded.envs if key == "num_envs" else loaded.config, key) == value
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded.learn(150, progress=False)
    assert loaded.updates > agent.updates
    assert rates(loaded) <= {0.125, changes.get("model_learning_rate", 0.125)} or name == "DAgger"
    with pytest.raises(ConfigurationError, match="hidden_sizes: expected"):
        type(agent).load(tmp_path / "agent", env, hidden_sizes=(4, 4))
    with pytest.raises(ConfigurationError, match="seed: expected 3"):
        type(agent).load(tmp_path / "agent", env, seed=4)
    with pytest.raises(ConfigurationError, match="unknown setting"):
        type(agent).load(tmp_path / "agent", env, learning_rat=0.1)


def test_environment_of_an_id_with_other_spaces_is_refused_when_it_is_made(tmp_path, monkeypatch):
    saved = cadenza.PPO("CartPole-v1", **SETTINGS["PPO"]).save(tmp_path / "agent")
    loaded = cadenza.PPO.load(saved)
    monkeypatch.setitem(gym.registry, "CartPole-v1", gym.spec("Acrobot-v1"))
    assert loaded.predict(np.zeros(4)) in (0, 1)
    with pytest.raises(CheckpointError, match="CartPole-v1: expected an environment with"):
        loaded.learn(10, progress=False)


FOREIGN = {
    "weights": (lambda path: torch.save({"w": torch.zeros(2)}, path), "a file of torch.save"),
    "notes": (lambda path: path.write_text("hello"), "another kind of file"),
    "folder": (lambda path: path.mkdir(), "got a folder"),
    "nothing": (lambda path: None, "no such file"),
    "part": (lambda path: [path.with_name(n).write_text("{}") for n in ("part", "part.json")], ""),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_files_that_no_agent_wrote_are_told_apart(kind, tmp_path):
    make, words = FOREIGN[kind]
    make(tmp_path / kind)
    with pytest.raises(CheckpointError, match=f"Agent.save wrote.*{words}") as refused:
        cadenza.PPO.load(tmp_path / kind, "CartPole-v1")
    assert "sidecar" not in str(refused.value)


def test_agent_of_stable_baselines3_is_named(tmp_path):
    with zipfile.ZipFile(tmp_path / "sb3.zip", "w") as archive:
        archive.writestr("_stable_baselines3_version", "2.0")
    with pytest.raises(CheckpointError, match="a model of Stable-Baselines3"):
        cadenza.PPO.load(tmp_path / "sb3.zip")


@pytest.mark.parametrize("name", [*SETTINGS, *TEAMS])
def test_load_finds_the_class_of_an_agent_and_plays_its_policy_without_it(name, tmp_path):
    if name in TEAMS:
        agent = getattr(cadenza, name)(pushes, num_envs=2, **TEAMS[name])
        rows = np.random.default_rng(0).normal(size=(64, 20)).astype(np.float32)
        parts, suffixes = np.split(rows, 2, axis=1), [f".{uid}" for uid in agent.envs.uids]
        wanted = agent.predict(rows)
    else:
        agent = made(name)[0]
        rows = np.random.default_rng(0).normal(size=(64, 2)).astype(np.float32)
        parts, suffixes, wanted = [rows], [""], [agent.predict(rows)]
    agent.save(tmp_path / "agent")
    loaded = cadenza.load(tmp_path / "agent")
    assert type(loaded) is type(agent)
    np.testing.assert_array_equal(loaded.predict(rows), agent.predict(rows))
    for part, suffix, actions in zip(parts, suffixes, wanted, strict=True):
        policy = cadenza.load(str(tmp_path / f"agent{suffix}.policy.safetensors"))
        assert f"algorithm='{name}'" in repr(policy)
        np.testing.assert_allclose(policy.predict(part), actions, atol=1e-6)
        np.testing.assert_allclose(policy.predict(part[5]), actions[5], atol=1e-6)


@pytest.mark.parametrize("space", SPACES)
def test_policy_file_takes_one_observation_or_several(space, tmp_path):
    class World(gym.Env):
        observation_space, action_space = space, spaces.Discrete(3, start=1)

    (path,) = cadenza.PPO(World).export_policy(tmp_path / "agent")
    policy = cadenza.load(path)
    space.seed(0)
    samples = [space.sample() for _ in range(9)]
    side_by_side = gym.vector.utils.concatenate(
        space, samples, gym.vector.utils.create_empty_array(space, 9)
    )
    together = policy.predict(side_by_side)
    assert together.tolist() == [policy.predict(each) for each in samples]
    with pytest.raises(InputError, match="policy: expected observations"):
        policy.predict({"other": np.zeros(3)})
    if isinstance(space, spaces.Box) and space.dtype == np.float64:
        with pytest.raises(InputError, match="finite"):
            policy.predict(np.array([0.0, np.nan]))


def test_load_says_what_else_a_file_is(tmp_path):
    class Mine(cadenza.PPO):
        """A class of the user's own."""

    Mine("CartPole-v1").save(tmp_path / "mine")
    torch.save({"w": torch.zeros(2)}, tmp_path / "weights")
    for name, words in {
        "mine": r"got one of Mine; write Mine\.load",
        "weights": "a file of torch.save",
        "nothing.policy.safetensors": "no such file",
        ".": "name a file in it: mine",
    }.items():
        with pytest.raises(CheckpointError, match=f"a policy file or an agent of SAC, .*{words}"):
            cadenza.load(tmp_path / name)


FOLDER = {"evaluate_every": 50, "evaluation_episodes": 1, "progress": False}


def test_folder_of_another_training_is_refused_and_ones_own_gone_on_with(tmp_path):
    options = {"folder": tmp_path, **FOLDER}
    first = cadenza.PPO(Robot, seed=0, **SETTINGS["PPO"]).learn(80, **options)
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    others = [cadenza.PPO(Robot, seed=seed, **SETTINGS["PPO"]) for seed in (0, 5)]
    others.append(cadenza.SAC(Robot, seed=0, **SETTINGS["SAC"]))
    longer = cadenza.PPO(Robot, seed=0, **{**SETTINGS["PPO"], "epochs": 3})
    others.append(longer.learn(160, **FOLDER | {"folder": tmp_path / "longer"}))
    others[-1].best_return = 0.0
    for other in others:
        with pytest.raises(InputError, match=r"without another training, got .*last"):
            other.learn(80, **options)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()} == kept
    assert first.learn(80, **options).steps == 160
    again = cadenza.PPO.load(tmp_path / "last", Robot).learn(80, **options)
    assert again.steps == 240
    again.learn(80, **FOLDER | {"folder": tmp_path / "elsewhere"})
    best = cadenza.PPO.load(tmp_path / "elsewhere" / "best")
    assert best.best_return == again.best_return
    assert best.steps > 240


def test_training_that_was_killed_between_best_and_last_goes_on(tmp_path):
    options = {"folder": tmp_path, **FOLDER}
    cadenza.PPO(Robot, **SETTINGS["PPO"]).learn(80, **options)
    better = cadenza.PPO.load(tmp_path / "last", Robot)
    better.best_return = 0.0  # no return is higher
    better.save(tmp_path / "best", memory=False)
    resumed = cadenza.PPO.load(tmp_path / "last", Robot).learn(80, **options)
    assert resumed.best_return == 0.0
    assert cadenza.PPO.load(tmp_path / "best", Robot).steps == 80


def with_settings(path, **changes):
    """Let the file of an agent hold further settings, as those of earlier versions may."""
    content, metadata = load_checkpoint(uri=f"local://{path.name}", artifacts_root=path.parent)
    config = {**json.loads(content["header"]["config"]), **changes}
    content["header"]["config"] = json.dumps(config)
    save_checkpoint(
        state_dict=content,
        uri=f"local://{path.name}",
        metadata=metadata,
        artifacts_root=path.parent,
    )


def test_settings_that_an_algorithm_no_longer_has_are_left_out(tmp_path):
    agent = cadenza.MBPO(Robot, **SETTINGS["MBPO"]).learn(40, progress=False)
    path = agent.save(tmp_path / "agent")
    with_settings(path, n_step=1, priority_exponent=0.0, importance_exponent=0.7)
    loaded = cadenza.MBPO.load(path, Robot)
    assert loaded.config == agent.config
    assert_same(loaded.learn(20, progress=False), agent.learn(20, progress=False))
    with pytest.raises(ConfigurationError, match="n_step: "):
        cadenza.MBPO.load(path, Robot, n_step=3)


@pytest.mark.parametrize(
    ("name", "env", "idle"),
    [
        ("SAC", "Pendulum-v1", {"importance_exponent": 0.9}),
        ("PPO", "CartPole-v1", {"initial_log_std": -3.0}),
        ("DQN", "CartPole-v1", {"action_bins": 9}),
    ],
)
def test_file_with_a_setting_that_changes_nothing_loads_with_a_warning(tmp_path, name, env, idle):
    agent = getattr(cadenza, name)(env, **SETTINGS[name]).learn(40, progress=False)
    path = agent.save(tmp_path / "agent")
    with_settings(path, **idle)
    with pytest.warns(UserWarning, match=f"{next(iter(idle))}: expected .*; it changes nothing"):
        loaded = cadenza.load(path)
    assert_same(loaded.learn(40, progress=False), agent.learn(40, progress=False))


class Stops(Callback):
    def __init__(self, number):
        super().__init__()
        self._number = number

    def end_batch(self, inf_step):
        if inf_step >= 40:
            signal.raise_signal(self._number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_training_that_is_told_to_end_is_saved(number, tmp_path):
    agent = cadenza.PPO(Robot, **SETTINGS["PPO"])
    with pytest.raises(SystemExit) as ended:
        agent.learn(500, callbacks=Stops(number), folder=tmp_path, progress=False)
    assert ended.value.code == 128 + number
    assert signal.getsignal(number) is signal.SIG_DFL
    assert cadenza.PPO.load(tmp_path / "last").steps == agent.steps == 48


def test_signals_that_a_program_handles_stay_its_own(tmp_path):
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append(True))
    try:
        agent = cadenza.PPO(Robot, **SETTINGS["PPO"])
        agent.learn(48, callbacks=Stops(signal.SIGTERM), progress=False)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [True]
