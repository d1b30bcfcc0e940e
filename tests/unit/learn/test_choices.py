"""Several choices at once, each with a distribution of its own; masks of legal actions."""

from dataclasses import replace
from itertools import product

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import cadenza
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.learn.nn.portable import load_policy_file
from cadenza.learn.nn.space_facts import space_facts
from tests.campaigns import size

SMALL = {"hidden_sizes": (16,), "rollout_length": 32, "batch_size": 32, "num_envs": 4}


class Buttons(gym.Env):
    """Pays the share of components that are the sum of the observation's place and their own."""

    observation_space = spaces.Box(0.0, 1.0, (3,), np.float32)

    def __init__(self, space):
        self.action_space = space
        self.low = np.asarray(getattr(space, "start", 0))
        self.counts = getattr(space, "nvec", np.full(space.shape, 2))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.seen(), {}

    def seen(self):
        self.place = int(self.np_random.integers(3))
        return np.eye(3, dtype=np.float32)[self.place]

    def step(self, action):
        assert self.action_space.contains(action)
        places = np.arange(self.counts.size).reshape(self.counts.shape)
        right = action - self.low == (self.place + places) % self.counts
        self.count += 1
        return self.seen(), float(right.mean()), False, self.count == 10, {}


MANY = spaces.MultiDiscrete([[5, 7, 6], [6, 5, 2]], start=[[0, 2, 0], [-1, 0, 0]])  # 12 600
SWITCHES = spaces.MultiBinary(13)


@pytest.mark.parametrize("space", [MANY, SWITCHES])
def test_more_choices_than_can_be_numbered_are_learned_component_by_component(space):
    agent = cadenza.PPO(lambda: Buttons(space), gamma=0.0, learning_rate=1e-2, **SMALL)
    untrained = agent.evaluate(5).mean
    agent.learn(3_000, progress=False)
    assert agent.evaluate(5).mean > 9.0 > untrained + 2.0
    seen = np.eye(3, dtype=np.float32)
    deployed = agent.deployed()(torch.from_numpy(seen))
    assert np.array_equal(deployed.numpy(), agent.predict(seen))
    assert agent.predict(seen[0]).shape == space.shape


def test_a_saved_agent_of_many_choices_continues_bit_for_bit(tmp_path):
    def agent():
        return cadenza.GRPO(lambda: Buttons(MANY), seed=3, group_size=2, **SMALL)

    whole = agent().learn(400, progress=False)
    agent().learn(200, progress=False).save(tmp_path / "half")
    resumed = cadenza.GRPO.load(tmp_path / "half", lambda: Buttons(MANY))
    resumed.learn(200, progress=False)
    ours, theirs = resumed.networks()[""], whole.networks()[""]
    assert ours.content_id == theirs.content_id


def test_a_policy_file_draws_every_choice_by_its_probability(tmp_path):
    agent = cadenza.PPO(lambda: Buttons(SWITCHES), **SMALL)
    (path,) = agent.export_policy(tmp_path / "switches")
    policy = load_policy_file(path)
    seen = np.zeros((4_000, 3), np.float32)
    noise = np.random.default_rng(0).gumbel(size=(4_000, policy.width)).astype(np.float32)
    logits = policy.outputs(seen[:1])[0].reshape(13, 2)
    wanted = 1.0 / (1.0 + np.exp(logits[:, 0] - logits[:, 1]))
    # Five standard deviations of a share: 5 sqrt(0.25 / 4000) = 0.04.
    np.testing.assert_allclose(policy.act(seen, noise).mean(axis=0), wanted, atol=0.04)


class Doors(gym.Env):
    """Shows one open door and pays for going through it; of the rest only one more is legal."""

    def __init__(self, where, action_space=None):
        self.where = where
        self.action_space = action_space or spaces.Discrete(5, start=2)
        numbers, mask = spaces.Box(0.0, 1.0, (1,), np.float32), spaces.Box(0, 1, (5,), np.int8)
        parts = {"action_mask": mask, "Z": numbers, "a": numbers}  # the mask stands between them
        self.observation_space = spaces.Dict(parts) if where == "observation" else numbers

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.told()

    def told(self):
        self.best, self.other = self.np_random.permutation(5)[:2]
        mask = np.zeros(5, np.int8)
        if self.count < 6:  # nothing is legal once it is over
            mask[[self.best, self.other]] = 1
        self.mask = mask
        number = np.array([self.best / 4], np.float32)
        if self.where == "observation":
            return {"action_mask": mask, "Z": number, "a": number * 0}, {}
        return number, {"action_mask": mask}

    def step(self, action):
        chosen = int(action) - 2
        assert self.mask[chosen], "an illegal action"
        self.count += 1
        reward = float(chosen == self.best)
        seen, info = self.told()
        return seen, reward, self.count == 6, False, info


MASKED = {**SMALL, "action_masks": True, "gamma": 0.0, "learning_rate": 1e-2}
REPLAYED = {
    "hidden_sizes": (32,),
    "action_masks": True,
    "gamma": 0.0,
    "learning_rate": 3e-3,
    "batch_size": 64,
    "warmup_steps": 100,
    "num_envs": 4,
    "epsilon_frames": 800,
    "train_every": 2,
    "memory_size": 10_000,
}
MASKING, PLACES = ["PPO", "GRPO"], ["observation", "info"]


def greedy(agent, seen, mask):
    """Return what an agent predicts, whose mask is a part of the observation or beside it."""
    inside = isinstance(seen, dict)
    return int(agent.predict(seen) if inside else agent.predict(seen, action_mask=mask)) - 2


@pytest.mark.parametrize(
    ("name", "where"), size([("PPO", "observation"), ("GRPO", "info")], [*product(MASKING, PLACES)])
)
def test_only_legal_actions_are_taken_learned_from_and_predicted(name, where):
    agent = getattr(cadenza, name)(lambda: Doors(where), seed=1, **MASKED)  # Doors refuses others
    agent.learn(2_000, progress=False)
    assert agent.evaluate(5).mean > 5.0  # of 6; 3 by chance among what is legal
    env = Doors(where)
    seen, _ = env.reset(seed=3)
    for _ in range(20):
        mask = np.zeros(5)
        mask[env.other] = 1
        seen = {**seen, "action_mask": mask} if where == "observation" else seen
        assert greedy(agent, seen, mask) == env.other
        seen, _ = env.told()
    if where == "observation":
        stacked = {name: np.stack([part, part]) for name, part in seen.items()}
        assert agent.predict(stacked).shape == (2,)
        drawn = {int(agent.predict(seen, deterministic=False)) - 2 for _ in range(50)}
        assert drawn <= set(np.flatnonzero(seen["action_mask"]))


@pytest.mark.parametrize("mode", ["NEXT_STEP", "DISABLED"])
def test_masks_of_a_ready_vector_environment_are_obeyed(mode):
    envs = gym.vector.SyncVectorEnv(
        [lambda: Doors("observation")] * 2, autoreset_mode=gym.vector.AutoresetMode[mode]
    )
    settings = {**MASKED, "num_envs": None, "normalize_observations": True}
    assert cadenza.PPO(envs, **settings).learn(400, progress=False).steps == 448
    settings = {**REPLAYED, "num_envs": None, "normalize_observations": True}
    agent = cadenza.DQN(envs, **settings).learn(120, progress=False)
    assert (agent.steps, agent.learner.normal.moments.mean.shape) == (120, (2,))


@pytest.mark.parametrize("where", PLACES)
def test_a_masked_agent_continues_bit_for_bit_and_plays_from_its_files(where, tmp_path):
    def agent():
        return cadenza.PPO(lambda: Doors(where), seed=3, **MASKED)

    whole = agent().learn(400, progress=False)
    agent().learn(200, progress=False).save(tmp_path / "half")
    resumed = cadenza.PPO.load(tmp_path / "half", lambda: Doors(where)).learn(200, progress=False)
    policy = whole.networks()[""]
    assert resumed.networks()[""].content_id == policy.content_id
    env = Doors(where)
    seen, _ = env.reset(seed=0)
    rows = {k: v[None] for k, v in seen.items()} if where == "observation" else seen[None]
    for legal in np.eye(5):
        assert policy.act(rows, action_mask=legal[None]) == np.flatnonzero(legal) + 2
    assert policy.act(rows).shape == (1,)  # without a mask everything is legal


@pytest.mark.parametrize("where", PLACES)
def test_an_onnx_file_takes_the_mask_as_an_input(where, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    agent = cadenza.PPO(lambda: Doors(where), **MASKED)
    session = onnxruntime.InferenceSession(agent.export_onnx(tmp_path / "doors.onnx"))
    rest = ["obs.Z", "obs.a"] if where == "observation" else ["obs.observation"]
    numbers = {name: np.full((5, 1), 0.3, np.float32) for name in rest}
    mask = np.eye(5, dtype=np.float32 if where == "observation" else np.int8)  # a Box: float32
    (actions,) = session.run(None, {"obs.action_mask": mask, **numbers})
    assert actions.tolist() == [2, 3, 4, 5, 6]


@pytest.mark.parametrize("where", PLACES)
def test_a_policy_file_plays_legal_actions_alone(where, tmp_path):
    agent = cadenza.DQN(lambda: Doors(where), action_masks=True, seed=1)
    (path,) = agent.export_policy(tmp_path / "doors")
    policy = cadenza.load(path)
    assert f"to 5 choices, legal by {where}['action_mask'], " in repr(policy)
    number, masks = np.full((5, 1), 0.3, np.float32), np.eye(5, dtype=np.int8)
    rows = number if where == "info" else {"action_mask": masks, "Z": number, "a": number}
    beside = {"action_mask": masks} if where == "info" else {}
    for plays in (policy.predict, policy.act, agent.predict):
        assert plays(rows, **beside).tolist() == [2, 3, 4, 5, 6]
    rest = number[0] if where == "info" else {"Z": number[0], "a": number[0]}
    for mask, told in [
        (None, f"expected action_mask=.*, because {where}"),
        (np.zeros(5), r"at least one legal action of every choice, got \[0, 0, 0, 0, 0\]"),
        ([1.0, 0.5, 0.0, 0.0, 0.0], "an action_mask of zeros and ones, got 0.5 in one"),
        (np.ones(2), r"an action_mask of 5 numbers, got one of shape \(2,\)"),
    ]:
        with pytest.raises(InputError, match=told):
            policy.predict(rest, action_mask=mask)
    old = replace(policy, action=space_facts(agent.envs.action_space))  # of earlier versions
    assert old.predict(rows, **beside).tolist() == [2, 3, 4, 5, 6]
    assert old.predict(rest) in range(2, 7)


class Dials(Buttons):
    """Buttons whose right positions alone are legal, and one more each."""

    def seen(self):
        row = super().seen()
        places = np.arange(self.counts.size)
        self.parts = []
        for place, count in zip(places, self.counts.ravel(), strict=True):
            part = np.zeros(count, np.int8)
            part[(self.place + place) % count] = part[0] = 1
            self.parts.append(part)
        return row

    def reset(self, **options):
        return super().reset(**options)[0], {"action_mask": np.concatenate(self.parts)}

    def step(self, action):
        chosen = (action - self.low).ravel()
        assert all(part[c] for part, c in zip(self.parts, chosen, strict=True))
        return *super().step(action)[:-1], {"action_mask": np.concatenate(self.parts)}


def test_several_choices_have_a_mask_side_by_side():
    agent = cadenza.PPO(lambda: Dials(MANY), **MASKED)
    assert agent.learn(4_000, progress=False).evaluate(5).mean > 9.0
    small = cadenza.PPO(lambda: Dials(spaces.MultiDiscrete([2, 3])), **MASKED)
    assert small.learn(128, progress=False).networks()[""].output.kind == "factors"


class Numbered(Doors):
    def __init__(self):
        super().__init__("observation")
        self.observation_space["action_mask"] = spaces.MultiDiscrete([2] * 5)


class Stuck(Doors):
    def told(self):
        seen, info = super().told()
        info["action_mask"][:] = 0
        return seen, info


class Halves(Doors):
    def __init__(self, where):
        super().__init__(where)
        if where == "observation":
            self.observation_space["action_mask"] = spaces.Box(0.0, 1.0, (5,), np.float32)

    def told(self):
        seen, info = super().told()
        told = seen if self.where == "observation" else info
        told["action_mask"] = (told["action_mask"] / 2).astype(np.float32)
        return seen, info


REFUSED = [
    (
        lambda: cadenza.PPO(lambda: Halves("info"), **MASKED).learn(8),
        r"env: info\['action_mask'\]: expected an action_mask of zeros and ones, got 0.5 in one",
    ),
    (
        lambda: cadenza.PPO(lambda: Halves("observation"), **MASKED).learn(8),
        "PPO: expected an action_mask of zeros and ones, got 0.5 in one",
    ),
    (
        lambda: cadenza.PPO(lambda: Doors("info"), **MASKED).predict(
            np.zeros(1), action_mask=[1, 0]
        ),
        r"expected an action_mask of 5 numbers, got one of shape \(2,\)",
    ),
    (lambda: cadenza.PPO("Pendulum-v1", action_masks=True), "expected choices, got actions of Box"),
    (lambda: cadenza.PPO(Numbered, action_masks=True), "an array of 5 numbers"),
    (lambda: cadenza.PPO("CartPole-v1", action_masks=True).learn(8), "from reset and step"),
    (lambda: cadenza.PPO(lambda: Stuck("info"), **MASKED).learn(8), "at least one legal action"),
    (
        lambda: cadenza.PPO(gym.make_vec("CartPole-v1", 2), action_masks=True),
        "expected a vector environment that shows",
    ),
    (
        lambda: cadenza.PPO(lambda: Doors("info"), **MASKED).predict(np.zeros(1)),
        "expected action_mask, because",
    ),
    (
        lambda: cadenza.PPO("CartPole-v1").predict(np.zeros(4), action_mask=[1, 1]),
        "expected no action_mask, because",
    ),
    (
        lambda: cadenza.PPO(lambda: Doors("info"), **MASKED).predict(
            np.zeros(1), action_mask=np.zeros(5)
        ),
        r"got \[0, 0, 0, 0, 0\]",
    ),
]


@pytest.mark.parametrize(("call", "told"), REFUSED)
def test_masks_that_cannot_be_are_refused(call, told):
    with pytest.raises((ConfigurationError, InputError), match=told):
        call()


def test_masks_are_obeyed_in_evaluations_of_every_kind():
    envs = gym.vector.SyncVectorEnv(
        [lambda: Doors("observation")] * 2, autoreset_mode=gym.vector.AutoresetMode.NEXT_STEP
    )
    for where in PLACES:
        agent = cadenza.PPO(lambda where=where: Doors(where), **MASKED)
        together = agent.evaluate(4, num_envs=2)
        assert together.returns == agent.evaluate(4).returns
    with pytest.raises(InputError, match="observations of Dict"):
        agent.evaluate(2, env=envs)
    inside = cadenza.PPO(lambda: Doors("observation"), **MASKED)
    assert inside.evaluate(2, env=envs).lengths == (6, 6)
