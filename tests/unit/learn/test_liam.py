"""Egos with a memory of their partner: what they learn, remember, keep private, save and export."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn

import cadenza
from cadenza.core.errors import CheckpointError, ConfigurationError, InputError
from cadenza.learn.agents import ppo
from cadenza.learn.agents.liam import observation_error
from cadenza.learn.agents.on_policy_buffer import OnPolicyBuffer
from cadenza.learn.nn.portable import load_policy_file
from tests.unit.learn.partner_envs import HiddenTypes, Matchings, Meeting

SMALL = {
    "hidden_sizes": (16,),
    "rollout_length": 24,
    "batch_size": 48,
    "epochs": 2,
    "num_envs": 4,
    "memory_size": 8,
    "sequence_length": 10,
}
#: The settings of the game, and how much is learned from it.
GAME = {
    "seed": 0,
    "num_envs": 32,
    "rollout_length": 20,
    "batch_size": 160,
    "epochs": 4,
    "learning_rate": 1e-3,
    "clip_epsilon": 0.2,
    "entropy_coefficient": 0.01,
}
BELIEF = {"model_learning_rate": 1e-3, "memory": "gru", "memory_size": 32, "belief_size": 8}
STEPS = 32 * 20 * 8
#: Without a memory.
SHORT = {k: SMALL[k] for k in ("hidden_sizes", "rollout_length", "batch_size", "num_envs")}


def beside_itself(lengths, *, num_envs, **settings):
    """Return an E3T in episodes of these lengths."""
    return cadenza.E3T(Matchings(lengths=lengths, num_envs=num_envs), **settings)


#: Every agent with a memory.
REMEMBERING = {
    "PPO, gru": lambda env, **more: cadenza.PPO(env, **{**SMALL, "memory": "gru", **more}),
    "PPO, lstm": lambda env, **more: cadenza.PPO(env, **{**SMALL, "memory": "lstm", **more}),
    "LIAM, gru": lambda env, **more: cadenza.LIAM(env, **{**SMALL, "memory": "gru", **more}),
    "LIAM, lstm": lambda env, **more: cadenza.LIAM(env, **{**SMALL, **more}),
    "E3T": lambda env, **more: beside_itself(
        env().lengths, **{**SHORT, "sequence_length": 10, **more}
    ),
}
BOUNDED = spaces.Box(
    np.array([-1.0, 0.0], np.float32), np.array([3.0, np.inf], np.float32), dtype=np.float32
)
#: Every kind of action that is remembered.
ACTIONS = {
    "choices": (HiddenTypes, {}),
    "numbers": (lambda: Meeting(BOUNDED), {}),
    "squashed": (lambda: Meeting(spaces.Box(-1.0, 3.0, (2,))), {"squash_actions": True}),
    "several": (lambda: Meeting(spaces.MultiDiscrete([3, 4])), {"factored_choices": True}),
    "scaled": (lambda: Meeting(BOUNDED), {"normalize_observations": True, "memory": "gru"}),
}


def uneven():
    """Return a game of episodes of several lengths, ended and cut."""
    return HiddenTypes(lengths=(3, 4, 7, 10, 40))


def loosened(agent):
    """Return an agent whose weights are so large that everything it remembers matters."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weights in agent.learner.greedy.parameters():
            weights.copy_(0.5 * torch.randn(weights.shape, generator=generator))
    return agent


def test_liam_finds_out_who_it_plays_with_which_nothing_else_can():
    scores = {}
    for name in ("LIAM", "frozen", "PPO"):
        kind = cadenza.PPO if name == "PPO" else cadenza.LIAM
        belief = {} if name == "PPO" else {**BELIEF, "freeze_encoder": name == "frozen"}
        agent = kind(HiddenTypes, **GAME, **belief).learn(STEPS, progress=False)
        scores[name] = agent.evaluate(200, num_envs=40).mean
    assert scores["LIAM"] >= 7.5  # of 8.12 with a perfect memory
    assert scores["PPO"] <= 6.0  # of 5.43 without one
    assert scores["frozen"] < scores["LIAM"] - 0.3


def ratios(agent, monkeypatch):
    """Return π / π_old of the first pass of the first epoch, sorted: by what was drawn acting."""
    head, acted, learned = agent.learner.network.head, [], []
    sample, terms = head.sample, ppo.policy_terms

    def drawn(output, generator):
        actions = sample(output, generator)
        acted.append(head.log_prob(output, actions))
        return actions

    def told(*arguments):
        found = terms(*arguments)
        learned.append(found.log_probs.detach())
        return found

    with monkeypatch.context() as patched:
        patched.setattr(head, "sample", drawn)
        patched.setattr(ppo, "policy_terms", told)
        agent.learn(3 * 24 * 4, progress=False)
    first = torch.cat(acted[48:]).sort().values
    return first, learned


@pytest.mark.parametrize("name", REMEMBERING)
def test_the_first_pass_remembers_what_acting_remembered(name, monkeypatch):
    make = REMEMBERING[name]
    settings = {"batch_size": 10_000, "epochs": 1, "learning_rate": 1e-9}
    if not name.startswith("PPO"):
        settings["model_learning_rate"] = 1e-9
    acted, learned = ratios(loosened(make(uneven, **settings)), monkeypatch)
    assert len(learned) == 3
    assert float((learned[2].sort().values - acted).exp().sub(1.0).abs().max()) < 1e-5

    def early(buffer):  # memory is cleared one step before an episode ends
        right = OnPolicyBuffer.right.fget(buffer)
        return np.concatenate((right[1:], right[-1:]))

    with monkeypatch.context() as patched:
        patched.setattr(OnPolicyBuffer, "right", OnPolicyBuffer.begins, raising=False)
        patched.setattr(OnPolicyBuffer, "begins", property(early))
        acted, learned = ratios(loosened(make(uneven, **settings)), monkeypatch)
    assert float((learned[2].sort().values - acted).exp().sub(1.0).abs().max()) > 1e-3


@pytest.mark.parametrize("name", REMEMBERING)
def test_epochs_end_early_where_the_policy_has_moved_too_far(name):
    def trained(**settings):
        agent = REMEMBERING[name](uneven, learning_rate=0.05, batch_size=16, **settings)
        return agent.learn(96, progress=False).networks()[""].content_id

    once, twice = trained(epochs=1), trained(epochs=2)
    assert trained(epochs=2, target_kl=1e-9) == once
    assert trained(epochs=2, target_kl=1e9) == twice != once


def test_acting_reads_nothing_of_the_partner():
    agent = cadenza.LIAM(HiddenTypes, **SMALL).learn(96, progress=False)
    truth, noise = (agent.evaluate(20, env=lambda n=n: HiddenTypes(noise=n)) for n in (False, True))
    assert truth == noise

    class Silent(HiddenTypes):
        def told(self):
            return {}

    assert agent.evaluate(20, env=Silent) == truth

    def decided(noise):  # in the first rollout, before anything is learned
        mine = loosened(cadenza.LIAM(lambda: HiddenTypes(noise=noise), **SMALL))
        mine.begin(96)
        for _ in range(24):
            mine.step()
        buffer = mine.batch()
        return buffer.actions.tobytes(), buffer.told.tobytes()

    (actions, told), (same, other) = decided(False), decided(True)
    assert (actions == same, told == other) == (True, False)


def test_rewards_never_reach_the_encoder_and_the_partner_never_the_critic():
    def learned(rewards=1.0, told=0.0):
        agent = cadenza.LIAM(HiddenTypes, **SMALL)
        agent.begin(96)
        for _ in range(24):
            agent.step()
        buffer = agent.batch()
        buffer.rewards[:] *= rewards
        buffer.told[:, :, 4] = (buffer.told[:, :, 4] + told) % 3
        agent.update(buffer)
        parts = agent.learner.belief, agent.learner.network.critic
        return [torch.cat([w.detach().flatten() for w in part.parameters()]) for part in parts]

    belief, critic = learned()
    richer, other = learned(rewards=5.0)
    assert torch.equal(richer, belief)
    assert not torch.equal(other, critic)
    misled, _ = learned(told=1.0)
    assert not torch.equal(misled, belief)


def test_the_frozen_encoder_stays_and_the_decoder_learns():
    agent = cadenza.LIAM(HiddenTypes, **SMALL, freeze_encoder=True, model_learning_rate=0.01)
    before = {name: w.clone() for name, w in agent.learner.state_dict()["belief"].items()}
    agent.learn(10 * 96, progress=False)
    after = agent.learner.state_dict()["belief"]
    assert all(torch.equal(after[name], w) for name, w in before.items())
    assert agent.scalar_logs["training/action_loss"] < np.log(3.0)


def test_figures_are_the_errors_of_the_predictions():
    predicted, seen = torch.tensor([[0.0, 1.0], [2.0, 0.0]]), torch.tensor([[1.0, 3.0], [2.0, 2.0]])
    assert float(observation_error(predicted, seen)) == (0.5 * (1 + 4) + 0.5 * 4) / 2
    agent = cadenza.LIAM(HiddenTypes, **SMALL)
    agent.learn(96, progress=False)
    figures = agent.scalar_logs
    # An untrained decoder knows one of three, and numbers of deviation 1 in four dimensions
    assert figures["training/action_loss"] == pytest.approx(np.log(3.0), abs=0.25)
    assert figures["training/observation_loss"] == pytest.approx(0.5 * 3, abs=0.75)
    assert 0.0 <= figures["training/action_accuracy"] <= 1.0
    assert figures["training/model_grad_norm"] > 0.0


def test_predicted_numbers_are_in_units_of_their_deviation():
    agent = cadenza.LIAM(
        lambda: Meeting(BOUNDED), **{**SMALL, "epochs": 8}, model_learning_rate=0.01
    )
    agent.learn(20 * 96, progress=False)
    # N(a'; mean, 1) of numbers whose deviation is 40 would cost more than 700 nats
    assert agent.scalar_logs["training/action_loss"] < 1.4
    assert agent.scalar_logs["training/action_accuracy"] > 0.5
    assert agent.learner.predictions["head"].log_std.item() < 0.0


def test_a_saved_liam_continues_bit_for_bit(tmp_path):
    def agent():
        return cadenza.LIAM(
            uneven, seed=2, normalize_observations=True, normalize_values=True, **SMALL
        )

    whole = agent().learn(480, progress=False)
    agent().learn(200, progress=False).save(tmp_path / "half")
    resumed = cadenza.load(tmp_path / "half", uneven).learn(280, progress=False)
    assert isinstance(resumed, cadenza.LIAM)
    assert resumed.networks()[""].content_id == whole.networks()[""].content_id
    for part in ("predictions", "partner_moments", "model_optimizer"):
        ours, theirs = (each.learner.state_dict()[part] for each in (resumed, whole))
        assert repr(ours) == repr(theirs)
    alone = cadenza.load(tmp_path / "half")  # without environments
    assert alone.predict(np.eye(4, dtype=np.float32)[0], state=None)[1].shape == (3 + 16,)


@pytest.mark.parametrize("name", ACTIONS)
def test_files_remember_the_last_action_as_the_agent_does(name, tmp_path):
    make, settings = ACTIONS[name]
    agent = loosened(cadenza.LIAM(make, **{**SMALL, **settings}))
    agent.learn(96, progress=False)
    (path,) = agent.export_policy(tmp_path / "ego")
    policy, rng, state = load_policy_file(path), np.random.default_rng(0), None
    mine = np.zeros((5, agent.state_width), np.float32)
    for _ in range(4):
        seen = rng.random((5, 4)).astype(np.float32)
        action, state = agent.predict(seen, state=state)
        played, mine = policy.predict(seen, state=mine)
        np.testing.assert_allclose(played, action, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(mine, state, rtol=1e-4, atol=1e-5)
    wide = {"choices": 3, "several": 7}.get(name, 2)
    low = agent.envs.action_space.low if wide == 2 else None
    done = mine[:, :wide]
    if name == "choices":
        assert np.array_equal(done, np.eye(3)[played])
    elif name == "several":
        assert np.array_equal(
            done, np.concatenate((np.eye(3)[played[:, 0]], np.eye(4)[played[:, 1]]), 1)
        )
    elif name == "squashed":
        np.testing.assert_allclose(done, (played - low) / 2.0 - 1.0, atol=1e-5)
    else:  # the second number has no upper bound, and stays as it is
        np.testing.assert_allclose(done, played * [0.5, 1.0] - [0.5, 0.0], atol=1e-5)
    alone, _ = policy.predict(seen[:1], state=mine[:1])
    assert np.array_equal(alone, policy.predict(seen, state=mine)[0][:1])


@pytest.mark.parametrize("name", ["choices", "squashed"])
def test_an_onnx_file_hands_out_what_it_did(name, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    make, settings = ACTIONS[name]
    agent = loosened(cadenza.LIAM(make, **{**SMALL, **settings}))
    session = onnxruntime.InferenceSession(agent.export_onnx(tmp_path / "ego.onnx"))
    rng, state = np.random.default_rng(0), None
    theirs = np.zeros((3, agent.state_width), np.float32)
    for _ in range(4):
        seen = rng.random((3, 4)).astype(np.float32)
        action, state = agent.predict(seen, state=state)
        graph, theirs = session.run(["actions", "next_state"], {"obs": seen, "state": theirs})
        np.testing.assert_allclose(graph, action, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(theirs, state, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_the_partner_is_told_of_in_every_autoreset_mode(mode):
    envs = SyncVectorEnv([HiddenTypes] * 4, autoreset_mode=mode)
    agent = cadenza.LIAM(envs, **{**SMALL, "num_envs": None})
    agent.begin(96)
    for _ in range(24):
        agent.step()
    buffer = agent.batch()
    valid = buffer.valid
    assert valid.sum() == (96 if mode is not AutoresetMode.NEXT_STEP else 88)
    assert np.array_equal(buffer.told[valid][:, :3].argmax(axis=1), buffer.told[valid][:, 4])
    assert not buffer.told[~valid].any()


class Untold(HiddenTypes):
    """Says what the partner is, and then nothing of it."""

    def told(self):
        return {"partner_observation": np.zeros(4)}


def test_what_cannot_be_learned_from_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="partner_observation_space, a Box"):
        cadenza.LIAM("CartPole-v1")
    with pytest.raises(InputError, match=r"info\['partner_action'\] of every step, 1 numbers"):
        cadenza.LIAM(Untold, **SMALL).learn(8, progress=False)
    cadenza.LIAM(HiddenTypes, **SMALL).save(tmp_path / "ego")
    with pytest.raises(CheckpointError, match="LIAM"):
        cadenza.PPO.load(tmp_path / "ego")


def test_a_critic_of_normalised_values_starts_at_the_returns_unit():
    """Returns near 1 000: a critic that has to learn the number itself is far off for long."""
    settings = {**SMALL, "memory": "gru", "normalize_values": True}

    class Rich(HiddenTypes):
        def step(self, action):
            seen, reward, *rest = super().step(action)
            return seen, 500.0 + reward, *rest

    makers = {
        "plain": lambda **more: cadenza.PPO(Rich, **{**SHORT, **more}),
        "gru": lambda **more: cadenza.PPO(Rich, **{**settings, **more}),
        "LIAM": lambda **more: cadenza.LIAM(Rich, **{**settings, **more}),
    }
    for make in makers.values():
        scaled = make(normalize_values=True).learn(5 * 96, progress=False).scalar_logs
        plain = make(normalize_values=False).learn(5 * 96, progress=False).scalar_logs
        assert scaled["training/value_mean"] > 1_500.0
        assert plain["training/value_mean"] < 50.0
        assert scaled["training/value_loss"] < 2.0 < plain["training/value_loss"]


class Narrow(HiddenTypes):
    """Says that the third thing must not be done."""

    def told(self):
        return {**super().told(), "action_mask": np.array([1, 1, 0], np.int8)}

    def reset(self, **options):
        return super().reset(**options)[0], {"action_mask": np.array([1, 1, 0], np.int8)}


def test_masks_and_encoders_stand_before_the_belief(tmp_path):
    network = nn.Sequential(nn.Linear(4, 6), nn.Tanh())
    agent = loosened(cadenza.LIAM(Narrow, **SMALL, network=network, action_masks=True))
    agent.learn(96, progress=False)
    assert set(np.unique(agent.batch().actions)) == {0, 1}
    (path,) = agent.export_policy(tmp_path / "ego")
    policy, rng, state = load_policy_file(path), np.random.default_rng(0), None
    mine = np.zeros((5, agent.state_width), np.float32)
    mask = rng.integers(0, 2, (5, 3)).astype(np.int8)
    mask[:, 1] = 1
    for _ in range(4):
        seen = rng.random((5, 4)).astype(np.float32)
        action, state = agent.predict(seen, state=state, action_mask=mask)
        played, mine = policy.predict(seen, state=mine, action_mask=mask)
        assert np.array_equal(played, action)
        assert mask[range(5), played].all()
        np.testing.assert_allclose(mine, state, rtol=1e-4, atol=1e-5)
