"""DQN among legal actions: targets by hand, exploration, training, files and what is refused."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

import cadenza
from cadenza.aht.config import EgoAHTConfig
from cadenza.core.episodes import Episodes
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.learn.agents.dqn import DQNConfig, DQNLearner, any_legal, epsilon_greedy, next_values
from cadenza.learn.nn.portable import load_policy_file
from tests.demonstrations import demonstrations
from tests.unit.learn.test_api import assert_same
from tests.unit.learn.test_choices import PLACES, REPLAYED, Doors, Stuck, greedy

#: Values of a target and an online network, and which of three choices are legal.
TARGET = torch.tensor([[9.0, 2.0, 3.0], [1.0, 8.0, 2.0], [5.0, 6.0, 7.0]])
ONLINE = torch.tensor([[7.0, 5.0, 4.0], [3.0, 9.0, 1.0], [1.0, 2.0, 3.0]])
LEGAL = torch.tensor([[0, 1, 1], [1, 0, 1], [0, 0, 0]]).bool()


def test_values_of_what_follows_are_those_of_legal_actions():
    # Double: the online network prefers, of the legal ones, 1 (5 > 4) and 0 (3 > 1).
    assert next_values(TARGET, ONLINE, LEGAL).tolist() == [[2.0], [1.0], [0.0]]
    # Plain: the target network's largest legal values; where nothing is legal, nothing follows.
    assert next_values(TARGET, None, LEGAL).tolist() == [[3.0], [2.0], [0.0]]
    assert next_values(TARGET, ONLINE).tolist() == [[9.0], [8.0], [7.0]]


@pytest.mark.parametrize("double", [True, False])
def test_update_regresses_on_the_target_of_legal_actions(double):
    config = DQNConfig(
        gamma=0.5, double=double, huber_delta=None, hidden_sizes=(4,), action_masks=True
    )
    learner = DQNLearner(
        observation_dim=1,
        choices=np.arange(3, dtype=np.float32)[:, None],
        masks=True,
        config=config,
    )
    with torch.no_grad():  # Q(o) = b, whatever o is
        for network, bias in ((learner.q, ONLINE[0]), (learner.q_target, TARGET[0])):
            for name, weight in network.named_parameters():
                weight.copy_(bias if name == "advantages.bias" else torch.zeros_like(weight))
    rows = {"obs": torch.tensor([[0.3, 1.0, 1.0, 1.0], [0.3, 1.0, 1.0, 1.0]])}
    after = {"obs": torch.tensor([[0.1, 0.0, 1.0, 1.0], [0.1, 0.0, 0.0, 0.0]])}
    figures = learner.update(
        {
            "observation": rows,
            "next_observation": after,
            "actions": torch.tensor([[0], [2]]),
            "rewards": torch.tensor([[1.0], [1.0]]),
            "masks": torch.ones(2, 1),
        }
    )
    value = 2.0 if double else 3.0  # of 9, 2 and 3 without the illegal 9
    wanted = (1.0 + 0.5 * value, 1.0)  # the second state has no legal action
    assert float(figures["q_target"]) == pytest.approx(sum(wanted) / 2)
    # The online network says 7 and 4.
    loss = ((7.0 - wanted[0]) ** 2 + (4.0 - wanted[1]) ** 2) / 2
    assert float(figures["q_loss"]) == pytest.approx(loss)


def test_random_actions_are_legal_and_equally_likely():
    legal = torch.tensor([[0, 1, 0, 1, 1]]).bool().expand(3_000, -1)
    generator = torch.Generator().manual_seed(0)
    for drawn in (
        any_legal(legal, generator),
        epsilon_greedy(torch.zeros(3_000, 5), 1.0, generator, legal),
    ):
        counts = torch.bincount(drawn[:, 0], minlength=5)
        assert counts[[0, 2]].tolist() == [0, 0]
        # Five standard deviations of a third of 3000: 5 sqrt(3000 2 / 9) = 129.
        assert all(abs(int(count) - 1_000) < 130 for count in counts[[1, 3, 4]])
    values = torch.tensor([[9.0, 1.0, 8.0, 2.0, 0.0]])
    assert epsilon_greedy(values, 0.0, generator, legal[:1]).tolist() == [[3]]


@pytest.mark.parametrize("where", PLACES)
def test_only_legal_actions_are_taken_learned_from_and_predicted(where):
    agent = cadenza.DQN(lambda: Doors(where), seed=1, **REPLAYED)  # Doors refuses others
    agent.learn(2_000, progress=False)
    assert agent.evaluate(5).mean > 5.0  # of 6; 3 by chance among what is legal
    together = agent.evaluate(4, num_envs=2)
    assert together.returns == agent.evaluate(4).returns
    env = Doors(where)
    seen, _ = env.reset(seed=3)
    for _ in range(20):
        mask = np.zeros(5)
        mask[env.other] = 1
        seen = {**seen, "action_mask": mask} if where == "observation" else seen
        assert greedy(agent, seen, mask) == env.other
        seen, _ = env.told()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"n_step": 3, "gamma": 0.9, "double": False},
        {"priority_exponent": 0.6, "normalize_observations": True, "normalize_rewards": True},
    ],
    ids=["plain", "n-step", "priorities and scales"],
)
@pytest.mark.parametrize("where", PLACES)
def test_a_masked_agent_continues_bit_for_bit_and_plays_from_its_files(where, settings, tmp_path):
    agent = cadenza.DQN(lambda: Doors(where), seed=3, **{**REPLAYED, **settings})
    agent.learn(200, progress=False)
    saved = agent.save(tmp_path / "half")
    agent.learn(150, progress=False)
    resumed = cadenza.DQN.load(saved, lambda: Doors(where)).learn(150, progress=False)
    assert_same(resumed, agent)
    (path,) = agent.export_policy(tmp_path / "doors")
    policy = load_policy_file(path)
    seen, _ = Doors(where).reset(seed=0)
    rows = {k: v[None] for k, v in seen.items()} if where == "observation" else seen[None]
    for legal in np.eye(5):
        assert policy.act(rows, action_mask=legal[None]) == np.flatnonzero(legal) + 2
    kinds = [layer.kind for layer in policy.layers]
    assert ("standardise" in kinds) == ("normalize_observations" in settings)


def test_an_onnx_file_takes_the_mask_as_an_input(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    settings = {**REPLAYED, "normalize_observations": True}
    agent = cadenza.DQN(lambda: Doors("info"), **settings).learn(120, progress=False)
    session = onnxruntime.InferenceSession(agent.export_onnx(tmp_path / "doors.onnx"))
    numbers, mask = np.full((5, 1), 0.3, np.float32), np.eye(5, dtype=np.int8)
    (actions,) = session.run(None, {"obs.action_mask": mask, "obs.observation": numbers})
    assert actions.tolist() == [2, 3, 4, 5, 6]


class Pictures(Doors):
    """Doors whose number is the brightness of an image."""

    def __init__(self):
        super().__init__("info")
        self.observation_space = spaces.Box(0, 255, (12, 12, 3), np.uint8)

    def told(self):
        seen, info = super().told()
        return np.full((12, 12, 3), int(255 * seen[0]), np.uint8), info


def test_images_beside_masks_are_kept_as_bytes():
    settings = {**REPLAYED, "batch_size": 8, "num_envs": 2, "warmup_steps": 20}
    agent = cadenza.DQN(Pictures, **settings).learn(60, progress=False)
    kept = agent.memory.sample(4)["observation"]["obs"]
    assert (kept.dtype, kept.shape) == (torch.uint8, (4, 12 * 12 * 3 + 5))
    assert set(kept[:, -5:].sum(dim=1).tolist()) == {2}


def test_compiled_updates_obey_masks_and_take_steps_and_priorities():
    settings = {**REPLAYED, "warmup_steps": 40, "num_envs": 2, "batch_size": 16}
    settings |= {"n_step": 2, "gamma": 0.9, "priority_exponent": 0.5}
    eager, compiled = (
        cadenza.DQN(lambda: Doors("info"), compile=c, **settings).learn(60, progress=False)
        for c in (False, True)
    )
    pairs = zip(eager.learner.q.parameters(), compiled.learner.q.parameters(), strict=True)
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


SHOWN = Episodes.of(demonstrations((5,)))
REFUSED = [
    (lambda: cadenza.DQN("Pendulum-v1", action_masks=True), "expected choices, got actions of Box"),
    (
        lambda: cadenza.DQN(lambda: Doors("info", spaces.MultiDiscrete([2, 2])), action_masks=True),
        r"DQN: action_masks: expected one choice \(Discrete\), got MultiDiscrete.*; use PPO",
    ),
    (
        lambda: cadenza.DQN(lambda: Doors("info"), action_masks=True, demonstrations=SHOWN),
        "DQN: demonstrations: expected none beside action_masks",
    ),
    (
        lambda: cadenza.DQN(lambda: Doors("info"), action_masks=True, hindsight=4),
        "hindsight: expected 0 beside action_masks, got 4",
    ),
    (lambda: cadenza.DQN(lambda: Stuck("info"), **REPLAYED).learn(8), "at least one legal action"),
    (
        lambda: cadenza.DQN(lambda: Doors("info"), **REPLAYED).predict(np.zeros(1)),
        "expected action_mask, because",
    ),
    (
        lambda: EgoAHTConfig.model_validate(
            {"algo": "dqn", "env": {"task": "any"}, "dqn": {"action_masks": True}}
        ),
        "dqn.action_masks: expected its default, as egos have no masks",
    ),
]


@pytest.mark.parametrize(("call", "told"), REFUSED)
def test_masks_that_cannot_be_are_refused(call, told):
    with pytest.raises((ConfigurationError, InputError, ValueError), match=told):
        call()


def test_masks_are_built_into_a_saved_agent(tmp_path):
    saved = cadenza.DQN(lambda: Doors("observation"), **REPLAYED).save(tmp_path / "agent")
    with pytest.raises(ConfigurationError, match="action_masks: expected True"):
        cadenza.DQN.load(saved, lambda: Doors("observation"), action_masks=False)
