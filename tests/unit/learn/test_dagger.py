"""DAgger: what is stored, who drives, what is learned, and that it goes on bit for bit."""

from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

import cadenza
from cadenza.core.errors import CheckpointError, InputError
from cadenza.learn.agents.dagger import rate_share
from cadenza.learn.agents.imitation import CLIP, InputScale
from cadenza.learn.configs import DAggerConfig
from cadenza.learn.env.stepping import ActionCodec
from tests.unit.learn.test_api import IMAGE, MIXED, Camera, Watch, assert_same

SMALL = {"num_envs": 3, "round_length": 10, "updates": 20, "batch_size": 32, "hidden_sizes": (16,)}


class Drift(gym.Env):
    """A point on a line that its action pushes; it knows an expert that remembers.

    The expert pushes back by half of the point's place, or of its last one in odd steps: nobody
    could tell what it does from the observation alone.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(-1.0, 3.0, (1,), np.float32)
    made: ClassVar = []

    def __init__(self):
        self.executed, self.seen = [], []
        self.made.append(self)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.before = float(self.np_random.uniform(-1.0, 1.0))
        self.count = 0
        return self._look(), {}

    def step(self, action):
        self.executed.append(float(action[0]))
        self.count += 1
        self.before, self.place = self.place, self.place + float(action[0])
        return self._look(), -abs(self.place), False, self.count == 7, {}

    def expert_action(self):
        told = self.place if self.count % 2 == 0 else self.before
        return np.array([np.clip(-0.5 * told, -1.0, 3.0)], np.float32)

    def _look(self):
        self.seen.append(self.place)
        return np.array([self.place, self.count % 2], np.float32)


def push_back(observations):
    return -0.5 * observations[:, :1]


def test_every_visited_state_is_stored_with_what_the_expert_would_do_there():
    asked = []

    def expert(observations):
        asked.append(observations.copy())
        return push_back(observations)

    agent = cadenza.DAgger(Drift, expert=expert, **SMALL).learn(90, progress=False)
    stored = agent.demonstrations
    assert len(stored) == agent.steps == 90
    np.testing.assert_array_equal(stored.observations, np.concatenate(asked))
    wanted = np.clip(push_back(stored.observations.numpy()), -1.0, 3.0)
    np.testing.assert_allclose(stored.actions, (wanted + 1.0) / 2.0 - 1.0, atol=1e-6)
    assert agent.updates == 3 * 20  # three rounds


@pytest.mark.parametrize("decay", [0.0, 1.0])
def test_expert_drives_the_first_round_and_then_by_its_share(decay):
    Drift.made.clear()
    agent = cadenza.DAgger(
        Drift, expert=push_back, expert_decay=decay, action_noise=0.0, **{**SMALL, "num_envs": 1}
    )
    agent.learn(10, progress=False)
    first = agent.predict(agent.demonstrations.observations.numpy())
    agent.learn(10, progress=False)
    env = next(env for env in Drift.made if env.executed)
    visited = agent.demonstrations.observations.numpy()
    taught = np.clip(push_back(visited), -1.0, 3.0)[:, 0]
    np.testing.assert_allclose(env.executed[:10], taught[:10], atol=1e-6)
    follows_expert = np.allclose(env.executed[10:20], taught[10:20], atol=1e-4)
    assert follows_expert == (decay == 1.0)
    assert not np.allclose(first[:, 0], taught[:10], atol=1e-4)  # so the two can be told apart


def test_share_of_the_expert_falls_by_its_power():
    config = DAggerConfig(expert_decay=0.5)
    assert [config.expert_share(k) for k in range(3)] == [1.0, 0.5, 0.25]
    assert DAggerConfig(expert_decay=0.0).expert_share(0) == 1.0


def test_noise_disturbs_its_share_of_the_executed_actions_and_no_label():
    Drift.made.clear()
    agent = cadenza.DAgger(
        Drift,
        expert=push_back,
        action_noise=0.5,
        noise_share=0.25,
        **{**SMALL, "round_length": 200},
    )
    agent.learn(600, progress=False)
    states = agent.demonstrations.observations.numpy()
    executed = np.array([env.executed for env in Drift.made if env.executed]).T.reshape(-1)
    taught = np.clip(push_back(states), -1.0, 3.0)[:, 0]
    assert np.mean(np.abs(executed - taught) > 1e-5) == pytest.approx(0.25, abs=0.06)


@pytest.mark.parametrize("discrete", [False, True])
def test_policy_learns_what_the_expert_does(discrete):
    class Line(Drift):
        action_space = spaces.Discrete(3, start=-1) if discrete else Drift.action_space

        def step(self, action):
            return super().step(np.reshape(action, -1))

    def expert(observations):
        if discrete:
            return -np.sign(np.round(observations[:, 0])).astype(np.int64)
        return push_back(observations)

    agent = cadenza.DAgger(Line, expert=expert, seed=1, **{**SMALL, "updates": 100})
    agent.learn(240, progress=False)
    places = np.stack((np.linspace(-0.8, 0.8, 25), np.zeros(25)), axis=1).astype(np.float32)
    told, wanted = agent.predict(places), expert(places)
    if discrete:
        assert np.mean(told == wanted) > 0.9
    else:
        np.testing.assert_allclose(told, np.clip(wanted, -1.0, 3.0), atol=0.08)


@pytest.mark.parametrize("space", [IMAGE, MIXED], ids=["cnn", "dict"])
def test_images_are_seen(space):
    def expert(observations):  # a dict comes as rows, its first part first
        return observations.reshape(len(observations), -1)[:, 11] // 255

    agent = cadenza.DAgger(lambda: Camera(space), expert=expert, seed=0, **SMALL)
    agent.learn(120, progress=False)
    assert agent.evaluate(3).mean == 8.0


@pytest.mark.parametrize("own", [True, False], ids=["remembering", "function"])
def test_file_written_between_two_updates_goes_on_bit_for_bit(tmp_path, own):
    parts = {} if own else {"expert": push_back}
    whole = cadenza.DAgger(Drift, seed=2, **parts, **SMALL)
    write = Watch(27, lambda: whole.save(tmp_path / "half"))
    whole.learn(120, callbacks=[write], progress=False)
    half = cadenza.DAgger.load(tmp_path / "half", Drift, **parts)
    assert (half.steps, half.updates) == (60, 27)
    assert_same(half.learn(60, progress=False), whole)


def test_training_goes_on_after_an_environment_was_left_within_a_step():
    class Fragile(Drift):
        left = 40

        def step(self, action):
            Fragile.left -= 1
            if not Fragile.left:
                raise KeyboardInterrupt
            return super().step(action)

    agent = cadenza.DAgger(Fragile, **SMALL)
    with pytest.raises(KeyboardInterrupt):
        agent.learn(60, progress=False)
    assert agent.learn(60, progress=False).steps == 120  # 39 before, and the round is finished
    assert len(agent.demonstrations) == 120


def test_file_without_memory_is_judged_but_holds_no_demonstration(tmp_path):
    agent = cadenza.DAgger(Drift, **SMALL).learn(60, progress=False)
    loaded = cadenza.DAgger.load(agent.save(tmp_path / "small", memory=False), Drift)
    assert len(loaded.demonstrations) == 0
    assert loaded.evaluate(3).returns == agent.evaluate(3).returns
    assert loaded.learn(30, progress=False).updates == agent.updates + 20


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_steps_that_only_reset_are_no_demonstrations(mode):
    envs = gym.make_vec("Pendulum-v1", num_envs=3, vector_kwargs={"autoreset_mode": mode})
    agent = cadenza.DAgger(envs, expert=lambda o: o[:, :1], round_length=410, updates=1)
    agent.learn(1_230, progress=False)
    resets = 2 * 3 if mode is AutoresetMode.NEXT_STEP else 0  # 410 steps of 200
    assert len(agent.demonstrations) == 1_230 - resets


def test_exported_file_decides_as_the_agent_does(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    agent = cadenza.DAgger(Drift, **SMALL).learn(60, progress=False)
    session = onnxruntime.InferenceSession(agent.export_onnx(tmp_path / "policy.onnx"))
    places = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    (actions,) = session.run(None, {"obs": places})
    np.testing.assert_allclose(actions, agent.predict(places), atol=1e-5)


@pytest.mark.parametrize("discrete", [False, True])
def test_loss_is_the_mean_squared_error_or_the_cross_entropy(discrete):
    class Choosing(Drift):
        action_space = spaces.Discrete(2) if discrete else Drift.action_space

    learner = cadenza.DAgger(Choosing, expert=push_back, **SMALL).learner
    seen, done = torch.tensor([[0.3, 1.0], [-0.2, 0.0]]), torch.tensor([[0.9], [-0.4]])
    with torch.no_grad():
        output = learner.networks["head"](learner.networks["trunk"](seen))
        if discrete:
            choices = torch.tensor([0, 1])
            wanted = -output.log_softmax(1)[[0, 1], choices].mean()
            assert learner.loss({"obs": seen, "actions": choices}) == pytest.approx(wanted.item())
        else:
            wanted = ((output - done) ** 2).mean()
            assert learner.loss({"obs": seen, "actions": done}) == pytest.approx(wanted.item())


def test_step_size_falls_within_every_fit():
    assert [rate_share(k / 10) for k in range(10)] == [1.0] * 7 + [0.3, 0.3, 0.1]


def test_inputs_are_scaled_by_round_zero_and_clipped():
    scale = InputScale(2)
    scale.fit(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    np.testing.assert_allclose(scale(torch.tensor([[4.0, 5.0], [99.0, 6.0]])), [[2, 0], [CLIP] * 2])


@pytest.mark.parametrize(
    "space",
    [spaces.Discrete(4, start=2), spaces.MultiDiscrete([2, 3]), spaces.Box(-1, 5, (2, 1))],
    ids=str,
)
def test_codec_takes_back_every_action_it_gives(space):
    space.seed(0)
    codec = ActionCodec(space, unit=True)
    actions = np.stack([space.sample() for _ in range(20)])
    np.testing.assert_allclose(codec.to_env(codec.from_env(actions)), actions, rtol=1e-5)


def test_codec_refuses_what_is_no_choice():
    with pytest.raises(InputError, match=r"Discrete\(3\), got 7"):
        ActionCodec(spaces.Discrete(3)).from_env(np.array([1, 7]))


@pytest.mark.parametrize(
    ("expert", "told"),
    [
        (lambda o: o, r"actions: expected shape \(3, 1\), got \(3, 2\)"),
        (lambda o: o[:, :1] * np.nan, "expected finite numbers"),
        (None, r"expected an expert, got none; pass expert=.*method expert_action\(\)\.$"),
    ],
)
def test_experts_that_cannot_be_followed_are_refused(expert, told):
    class Silent(Drift):
        expert_action = property()

    with pytest.raises(InputError, match=told):
        cadenza.DAgger(Silent, expert=expert, **SMALL).learn(30, progress=False)


@pytest.mark.parametrize("error", [TypeError("no torque"), AttributeError("no arm")])
def test_what_goes_wrong_within_an_expert_is_told_as_it_is(error):
    class Broken(Drift):
        def expert_action(self):
            raise error

    with pytest.raises(type(error), match=str(error)):
        cadenza.DAgger(Broken, **SMALL).learn(30, progress=False)


def test_demonstrations_of_other_widths_are_refused(tmp_path):
    agent = cadenza.DAgger(Drift, **SMALL).learn(30, progress=False)
    state = agent.state_dict()
    state["learned"]["demonstrations"]["obs"] = torch.zeros(3, 5)
    with pytest.raises(CheckpointError, match=r"rows of \(2,\)"):
        cadenza.DAgger(Drift, **SMALL).load_state_dict(state)
