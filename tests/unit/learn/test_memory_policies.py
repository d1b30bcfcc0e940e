"""PPO with a memory: what it remembers, forgets, learns, saves and exports."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import cadenza
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.learn.agents.loop import AgentCallback
from cadenza.learn.agents.on_policy_buffer import BufferShape, OnPolicyBuffer, Outcome
from cadenza.learn.agents.ppo import RecurrentPPOLearner, sequence_table
from cadenza.learn.configs import PPOConfig
from cadenza.learn.nn.portable import load_policy_file
from cadenza.learn.nn.recurrent import Memory

KINDS = ["gru", "lstm"]
SMALL = {"hidden_sizes": (16,), "rollout_length": 32, "batch_size": 64, "num_envs": 4}
MEMORY = {**SMALL, "memory": "gru", "memory_size": 8, "sequence_length": 8}


class Cue(gym.Env):
    """Shows −1 or 1 once; in the third step the action must be the one that was shown."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cue, self.count = int(self.np_random.integers(2)), 0
        return np.array([2.0 * self.cue - 1.0], np.float32), {}

    def step(self, action):
        self.count += 1
        reward = float(self.count == 3 and action == self.cue)
        return np.zeros(1, np.float32), reward, self.count == 3, False, {}


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_steps_one_by_one_are_the_sequence_of_torch(kind):
    generator = torch.Generator().manual_seed(0)
    memory = Memory(kind, 3, 5, generator)
    for weight in memory.parameters():
        weight.normal_(generator=generator)
    x, state = (torch.randn(7, 2, 3, generator=generator) for _ in range(2))
    state = torch.randn(2, memory.width, generator=generator)
    out, last = memory(x, state)
    for row, expected in zip(x, out, strict=True):
        state = memory.step(row, state)
        torch.testing.assert_close(state[:, :5], expected)
    torch.testing.assert_close(state, last)


def test_a_rollout_is_cut_where_episodes_begin_and_every_few_steps():
    begins, valid = np.zeros((2, 7), np.bool_), np.ones((2, 7), np.bool_)
    begins[0, [2, 3]] = True  # row 0: step 2 only ends an episode that is over, and is not valid
    valid[0, 2] = False
    first, row, length = sequence_table(begins.T, valid.T, 4)
    found = sorted(zip(row.tolist(), first.tolist(), length.tolist(), strict=True))
    assert found == [(0, 0, 2), (0, 3, 1), (0, 4, 3), (1, 0, 4), (1, 4, 3)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_cue_is_remembered_which_nothing_else_can(kind):
    settings = {**SMALL, "learning_rate": 1e-2, "seed": 1}
    blind = cadenza.PPO(Cue, **settings).learn(2_000, progress=False)
    agent = cadenza.PPO(Cue, **settings, memory=kind, memory_size=8).learn(2_000, progress=False)
    assert agent.evaluate(40).mean == 1.0
    assert blind.evaluate(40).mean < 0.8
    assert agent.evaluate(40, num_envs=7).returns == agent.evaluate(40).returns
    envs = SyncVectorEnv([Cue] * 3, autoreset_mode=AutoresetMode.NEXT_STEP)
    assert agent.evaluate(12, env=envs).mean == 1.0


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_cue_is_learned_in_every_autoreset_mode(mode):
    envs = SyncVectorEnv([Cue] * 4, autoreset_mode=mode)
    settings = {**MEMORY, "num_envs": None, "learning_rate": 1e-2, "seed": 1}
    agent = cadenza.PPO(envs, **settings).learn(2_000, progress=False)
    assert agent.evaluate(40, env=Cue()).mean == 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_predict_hands_the_memory_from_step_to_step(kind):
    agent = cadenza.PPO(Cue, **{**MEMORY, "memory": kind})
    seen = [np.array([value], np.float32) for value in (1.0, 0.0, -1.0)]
    state = None
    for one in seen:
        action, state = agent.predict(one, state=state)
    assert action.shape == ()
    assert state.shape == ({"gru": 8, "lstm": 16}[kind],)
    _, anew = agent.predict(seen[0], state=None)
    assert np.array_equal(agent.predict(seen[0], state=state, episode_start=True)[1], anew)
    assert not np.array_equal(agent.predict(seen[0], state=state)[1], anew)
    both, starts = np.stack([state, state]), np.array([True, False])
    _, two = agent.predict(np.stack([seen[0]] * 2), state=both, episode_start=starts)
    np.testing.assert_allclose(two[0], anew, atol=1e-6)
    np.testing.assert_allclose(two[1], agent.predict(seen[0], state=state)[1], atol=1e-6)
    plain = cadenza.PPO(Cue, **SMALL)
    action, nothing = plain.predict(seen[0], state=None)
    assert (action, nothing.shape) == (plain.predict(seen[0]), (0,))


def learner(**changes):
    config = PPOConfig(hidden_sizes=(8,), batch_size=10_000, epochs=1, gae_lambda=1.0, gamma=0.9)
    sizes = {"observation_dim": 1, "choices": 2, "memory": ("lstm", 4), "seed": 3}
    return RecurrentPPOLearner(config, **{"sequence_length": 3, **sizes, **changes})


def test_values_and_densities_are_those_of_the_whole_episode_so_far():
    mine, rng = learner(), np.random.default_rng(0)
    buffer = OnPolicyBuffer(BufferShape(capacity=7, rows=2, observation_dim=1, states=16))
    buffer.states[...] = rng.normal(size=(2, 16))
    seen = rng.normal(size=(8, 2, 1)).astype(np.float32)
    actions, final = rng.integers(2, size=(7, 2)), rng.normal(size=(1, 1)).astype(np.float32)
    ended = np.zeros((7, 2), np.bool_)
    ended[3, 0] = ended[4, 1] = True  # row 0 by a time limit, row 1 by the task
    for step in range(7):
        cut = np.array([0]) if step == 3 else None
        buffer.stage(seen[step], actions[step])
        outcome = Outcome(np.ones(2), ended[step] & (step == 4), ended[step])
        buffer.commit(outcome, seen[step + 1], cut, final if step == 3 else None)
    before = torch.tensor(buffer.states.copy())
    with torch.no_grad():
        rollout, _ = mine._prepared(buffer, buffer.valid.copy())
        network, expected, values = mine.network, np.zeros((7, 2)), np.zeros((8, 2))
        for row in range(2):
            own, other = before[row : row + 1, :8], before[row : row + 1, 8:]
            for step in range(8):
                one = torch.tensor(seen[step, row])[None]
                value, other = network.critic.step(one, other)
                values[step, row] = value
                if step == 7:
                    break
                output, own = network.actor.step(one, own)
                chosen = torch.tensor(actions[step, row])[None]
                expected[step, row] = network.head.log_prob(output, chosen)
                if ended[step, row]:
                    if row == 0:
                        bootstrap = float(network.critic.step(torch.tensor(final), other)[0])
                    own, other = torch.zeros_like(own), torch.zeros_like(other)
    np.testing.assert_allclose(rollout.steps.old_log_probs, expected.ravel(), atol=1e-6)
    np.testing.assert_allclose(rollout.steps.old_values, values[:7].ravel(), atol=1e-6)
    returns = np.zeros((7, 2))
    returns[3, 0], returns[4, 1] = 1.0 + 0.9 * bootstrap, 1.0
    for row in range(2):
        after = values[7, row]
        for step in reversed(range(7)):
            if not ended[step, row]:
                returns[step, row] = 1.0 + 0.9 * after
            after = returns[step, row]
    np.testing.assert_allclose(rollout.steps.returns, returns.ravel(), atol=1e-5)
    parts = rollout.rows(torch.arange(len(rollout)))
    output, _ = network.actor(parts.observations, parts.states[:, :8])
    again = network.head.log_prob(output.flatten(0, 1)[parts.inside], parts.steps.actions)
    torch.testing.assert_close(again, parts.steps.old_log_probs)
    assert len(parts.steps) == 14


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_agent_with_a_memory_continues_bit_for_bit(kind, tmp_path):
    def agent():
        return cadenza.PPO(
            "CartPole-v1", seed=2, normalize_observations=True, **{**MEMORY, "memory": kind}
        )

    whole = agent().learn(512, progress=False)
    agent().learn(200, progress=False).save(tmp_path / "half")
    resumed = cadenza.PPO.load(tmp_path / "half").learn(312, progress=False)
    assert resumed.networks()[""].content_id == whole.networks()[""].content_id
    cut = cadenza.PPO(Cue, **{**MEMORY, "memory": kind, "rollout_length": 50}).learn(20)
    assert cut.steps == 200


@pytest.mark.parametrize("kind", KINDS)
def test_files_hand_the_state_out_and_take_it_back(kind, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    settings = {**MEMORY, "memory": kind, "normalize_observations": True}
    agent = cadenza.PPO("Pendulum-v1", **settings).learn(128, progress=False)
    (path,) = agent.export_policy(tmp_path / "swing")
    policy = load_policy_file(path)
    session = onnxruntime.InferenceSession(agent.export_onnx(tmp_path / "swing.onnx"))
    rng, state = np.random.default_rng(0), None
    mine = theirs = np.zeros((3, agent.state_width), np.float32)
    for _ in range(4):
        seen = rng.normal(size=(3, 3)).astype(np.float32)
        action, state = agent.predict(seen, state=state)
        played, mine = policy.step(seen, mine)
        graph, theirs = session.run(["actions", "next_state"], {"obs": seen, "state": theirs})
        for other in (played, graph):
            np.testing.assert_allclose(other, action, rtol=1e-4, atol=1e-5)
    alone, _ = policy.step(seen[:1], mine[:1])
    assert np.array_equal(alone, policy.step(seen, mine)[0][:1])  # whatever is asked beside it
    with pytest.raises(InputError, match="because the policy has a memory"):
        policy.act(seen)
    with pytest.raises(InputError, match=r"state=\.\.\., because the policy has a memory"):
        policy.predict(seen[0])
    state = rng.normal(size=mine.shape).astype(np.float32)
    wanted = policy.step(seen, state * [[1.0], [0.0], [1.0]])
    for found, expected in zip(
        policy.predict(seen, state=state, episode_start=[False, True, False]), wanted, strict=True
    ):
        assert np.array_equal(found, expected)
    for found, expected in zip(policy.predict(seen[0], state=state[0]), wanted, strict=True):
        assert np.array_equal(found, expected[0])
    with pytest.raises(InputError, match=r"expected a state of shape \(1, "):
        policy.predict(seen[0], state=np.zeros(3))


class Doors(Cue):
    """A cue that names the only legal action of the last step."""

    def __init__(self):
        parts = {"action_mask": spaces.MultiBinary(2), "seen": Cue.observation_space}
        self.observation_space = spaces.Dict(parts)

    def told(self, seen):
        mask = np.eye(2, dtype=np.int8)[self.cue] if self.count == 2 else np.ones(2, np.int8)
        return {"action_mask": mask, "seen": seen}

    def reset(self, **options):
        return self.told(super().reset(**options)[0]), {}

    def step(self, action):
        seen, *rest = super().step(action)
        return self.told(seen), *rest


def test_masks_and_memory_go_together():
    agent = cadenza.PPO(Doors, **MEMORY, action_masks=True)
    assert agent.learn(256, progress=False).mean_return == agent.evaluate(10).mean == 1.0


REFUSED = [
    (lambda: cadenza.PPO(Cue, memory_size=8), ConfigurationError, "memory_size: expected 64"),
    (lambda: cadenza.PPO(Cue, memory="rnn"), ConfigurationError, "'gru' or 'lstm', got 'rnn'"),
    (lambda: cadenza.PPO(Cue, **MEMORY).predict(np.zeros(1)), InputError, "expected state=..., be"),
    (
        lambda: cadenza.PPO(Cue, **MEMORY).predict(np.zeros(1), state=np.zeros(3)),
        InputError,
        r"expected a state of shape \(1, 8\)",
    ),
]


@pytest.mark.parametrize(("call", "error", "told"), REFUSED)
def test_memories_that_cannot_be_are_refused(call, error, told):
    with pytest.raises(error, match=told):
        call()


class Shown(Cue):
    """Shows the number of the episode, so that a stack which spans two episodes is seen."""

    observation_space = spaces.Box(0.0, np.inf, (1,), np.float32)
    episodes = 0

    def reset(self, **options):
        _, info = super().reset(**options)
        Shown.episodes += 1
        self.number = np.array([Shown.episodes], np.float32)
        return self.number, info

    def step(self, action):
        return self.number, *super().step(action)[1:]


@pytest.mark.parametrize("mode", AutoresetMode)
def test_stacked_frames_begin_anew_with_every_episode(mode):
    def make():
        return gym.wrappers.FrameStackObservation(Shown(), 3)

    rows = []

    class Watch(AgentCallback):
        def on_step(self, agent, step):
            rows.extend([*step.observations, *step.following])

    envs = SyncVectorEnv([make] * 2, autoreset_mode=mode)
    agent = cadenza.PPO(envs, hidden_sizes=(8,), rollout_length=32)
    agent.learn(64, callbacks=[Watch()], progress=False)
    assert len(rows) == 128
    assert all(len(set(np.ravel(row))) == 1 for row in rows)
    assert agent.evaluate(2, env=make()).lengths == (3, 3)
