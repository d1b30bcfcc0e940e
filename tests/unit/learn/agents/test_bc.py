"""Behaviour cloning: losses by hand, chunks and how they are played, files, and what is refused."""

import math
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import cadenza
from cadenza.core.episodes import Episode, Episodes
from cadenza.core.errors import ConfigurationError, InputError, IntegrityError
from cadenza.learn.agents import bc, imitation
from tests.demonstrations import demonstrations, write_npz

STATES = spaces.Box(-np.inf, np.inf, (3,), np.float32)
ACTIONS = spaces.Box(-4.0, 4.0, (2,), np.float32)
BOTH = (STATES, ACTIONS)


def linear(count: int = 12, length: int = 30, *, choices: bool = False) -> Episodes:
    """Return episodes of an expert whose actions are a linear function of the state."""
    rng = np.random.default_rng(3)
    weights = rng.standard_normal((3, 2))
    episodes = []
    for _ in range(count):
        states = rng.standard_normal((length, 3)).astype(np.float32) * [1.0, 100.0, 0.01]
        actions = (states / [1.0, 100.0, 0.01]) @ weights
        done = (actions[:, 0] > 0).astype(np.int64) if choices else actions.astype(np.float32)
        episodes.append(Episode(observations={"state": states}, actions=done))
    return Episodes.of(episodes)


def test_losses_are_those_of_the_header() -> None:
    predicted = torch.tensor([[[1.0, 2.0], [0.0, 0.0]], [[3.0, 0.0], [9.0, 9.0]]])
    actions = torch.tensor([[[0.0, 0.0], [2.0, 0.0]], [[3.0, 1.0], [0.0, 0.0]]])
    valid = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    # per step: (1 + 4) / 2, 4 / 2, 1 / 2; the last does not count
    squared = imitation.masked_mean(imitation.squared_errors(predicted, actions), valid)
    assert squared.item() == pytest.approx((2.5 + 2.0 + 0.5) / 3)
    absolute = imitation.masked_mean(imitation.absolute_errors(predicted, actions), valid)
    assert absolute.item() == pytest.approx((1.5 + 1.0 + 0.5) / 3)
    log_std = torch.full_like(predicted, math.log(2.0))
    density = imitation.masked_mean(imitation.gaussian_errors(predicted, log_std, actions), valid)
    assert density.item() == pytest.approx(squared.item() / 8.0 + math.log(2.0))
    logits = torch.tensor([[[0.0, math.log(3.0)]]])  # probabilities 1/4, 3/4
    assert imitation.choice_errors(logits, torch.tensor([[1]])).item() == pytest.approx(
        -math.log(0.75)
    )


def test_chunk_ends_with_its_episode() -> None:
    states = [np.zeros((3, 1), np.float32), np.ones((2, 1), np.float32)]
    actions = [np.array([[1], [2], [3]], np.float32), np.array([[4], [5]], np.float32)]
    chunks = bc.Chunks(states, actions, 3)
    found = chunks.at(torch.arange(5))
    assert found["valid"].tolist() == [[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 0], [1, 0, 0]]
    kept = [
        row[mask.bool()].flatten().tolist()
        for row, mask in zip(found["actions"], found["valid"], strict=True)
    ]
    assert kept == [[1, 2, 3], [2, 3], [3], [4, 5], [5]]


def test_padding_teaches_nothing() -> None:
    """What follows an episode is never part of a target: one ending at 1 is not taught its next."""
    first = Episode(observations={"state": np.zeros((2, 3), np.float32)}, actions=np.ones((2, 2)))
    second = Episode(observations={"state": np.ones((9, 3), np.float32)}, actions=-np.ones((9, 2)))
    agent = cadenza.BC(
        (STATES, spaces.Box(-1.0, 1.0, (2,))),
        demonstrations=Episodes.of([first, second]),
        chunk_length=4,
        held_out=0.0,
        loss="l1",
        hidden_sizes=[32],
    ).learn(200, progress=False)
    np.testing.assert_allclose(agent.predict_chunk(np.zeros(3))[:2], 1.0, atol=0.1)
    np.testing.assert_allclose(agent.predict_chunk(np.ones(3)), -1.0, atol=0.1)


@pytest.mark.parametrize("loss", ["mse", "l1", "gaussian"])
def test_clone_does_what_the_expert_did_at_other_states(loss: str) -> None:
    agent = cadenza.BC(BOTH, demonstrations=linear(40), loss=loss, hidden_sizes=(64,), seed=1)
    agent.learn(300, progress=False)
    shown = linear(40)
    wrong = [
        agent.predict(e.observations["state"].astype(np.float32)) - e.actions.clip(-4, 4)
        for e in shown
    ]
    assert np.abs(np.concatenate(wrong)).mean() < 0.25  # of a spread of 1.5
    drawn = agent.predict(np.zeros((500, 3), np.float32), deterministic=False)
    assert (drawn.std(axis=0) > 0.01).all() == (loss == "gaussian")


def test_clone_of_choices_chooses_as_the_expert() -> None:
    both = (STATES, spaces.Discrete(2, start=0))
    agent = cadenza.BC(both, demonstrations=linear(40, choices=True), hidden_sizes=[64]).learn(
        200, progress=False
    )
    shown = linear(40, choices=True)
    right = [agent.predict(e.observations["state"].astype(np.float32)) == e.actions for e in shown]
    assert np.concatenate(right).mean() > 0.95
    assert agent.predict(np.zeros(3, np.float32), deterministic=False) in (0, 1)
    assert agent.held_out_loss is not None


def test_held_out_episodes_show_overfitting_and_are_not_learned_from() -> None:
    rng = np.random.default_rng(0)
    noise = [
        Episode(
            observations={"state": rng.standard_normal((20, 3)).astype(np.float32)},
            actions=rng.uniform(-4, 4, (20, 2)).astype(np.float32),
        )
        for _ in range(10)
    ]
    agent = cadenza.BC(BOTH, demonstrations=Episodes.of(noise), held_out=0.3)
    agent.learn(300, progress=False)
    final = agent.update(agent.batch())
    assert agent.held_out_loss > 1.5 * final["loss"]  # nothing there can be known


class Counted(gymnasium.Env):
    """Shows the number of the step; five steps are an episode."""

    observation_space = spaces.Box(0.0, 9.0, (1,), np.float32)
    action_space = spaces.Box(0.0, 100.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count, self.played = 0, []
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.count += 1
        self.played.append(float(action[0]))
        return np.full(1, self.count, np.float32), 1.0, self.count == 5, False, {}


def played(**settings) -> list[float]:
    """Return what is played where the chunk asked for at step t is 10 t, 10 t + 1, 10 t + 2."""
    config = bc.BCConfig(chunk_length=3, **settings)
    player = bc.ChunkPlayer(
        config, lambda t: np.array([[10 * t + i] for i in range(3)], np.float32)
    )
    return [player(step)[0] for step in range(5)]


def test_receding_horizon_plays_the_first_actions_of_each_chunk() -> None:
    assert played(executed_steps=1) == [0, 10, 20, 30, 40]
    assert played(executed_steps=2) == [0, 1, 20, 21, 40]
    assert played(executed_steps=3) == [0, 1, 2, 30, 31]


def test_ensemble_averages_what_overlapping_chunks_say() -> None:
    # step 2: chunks of steps 0, 1 and 2 say 2, 11 and 20; step 4: 22, 31, 40
    assert played(ensemble=0.0) == [0.0, 5.5, 11.0, 21.0, 31.0]
    weights = bc.ensemble_weights(3, 0.5)
    np.testing.assert_allclose(weights / weights[0], [1.0, math.exp(-0.5), math.exp(-1.0)])
    assert weights.sum() == pytest.approx(1.0)


def test_evaluation_plays_chunks_as_the_player_does() -> None:
    class Paid(Counted):
        """Pays the action."""

        def step(self, action):
            return (step := super().step(action))[0], self.played[-1], *step[2:]

    shown = Episode(observations={"state": np.arange(9.0)[:, None]}, actions=np.arange(9.0) ** 2)
    settings = {"demonstrations": Episodes.of([shown]), "chunk_length": 3, "executed_steps": 2}
    agent = cadenza.BC(Paid, **settings).learn(30, progress=False)
    player, returned = agent.player(), 0.0
    for step in range(5):
        returned += float(player(np.full(1, step, np.float32))[0])
    assert returned != pytest.approx(sum(agent.predict([[t] for t in range(5)])[:, 0]), abs=1e-3)
    batch = gymnasium.vector.SyncVectorEnv([Paid] * 2)
    for judged in (agent.evaluate(3), agent.evaluate(3, num_envs=2), agent.evaluate(3, env=batch)):
        np.testing.assert_allclose(judged.returns, [returned] * 3, rtol=1e-6)


def test_interrupted_cloning_ends_with_the_same_weights(tmp_path: Path) -> None:
    root = write_npz(tmp_path / "shown", demonstrations((9, 8, 7, 6)))
    settings = {"demonstrations": root, "chunk_length": 3, "loss": "gaussian"}
    settings |= {"hidden_sizes": (16, 16), "seed": 4}
    whole = cadenza.BC(BOTH, **settings).learn(120, progress=False)
    cadenza.BC(BOTH, **settings).learn(50, progress=False).save(tmp_path / "half")
    resumed = cadenza.BC.load(tmp_path / "half").learn(70, progress=False)
    assert resumed.steps == resumed.updates == 120
    states = np.random.default_rng(0).standard_normal((7, 3)).astype(np.float32)
    assert (resumed.predict_chunk(states) == whole.predict_chunk(states)).all()
    first = [agent.predict(states, deterministic=False) for agent in (whole, resumed)]
    assert (first[0] == first[1]).all()


def test_saved_agent_refuses_other_demonstrations(tmp_path: Path) -> None:
    root = write_npz(tmp_path / "shown", demonstrations())
    cadenza.BC(BOTH, demonstrations=root).learn(5, progress=False).save(tmp_path / "agent")
    moved = root.rename(tmp_path / "moved")
    cadenza.BC.load(tmp_path / "agent", demonstrations=moved).learn(5, progress=False)
    with pytest.raises(InputError, match="expected a LeRobot or Minari dataset"):
        cadenza.BC.load(tmp_path / "agent").learn(5, progress=False)
    write_npz(root, demonstrations((4, 1, 5)))
    for agent in (
        cadenza.BC.load(tmp_path / "agent"),
        cadenza.load(tmp_path / "agent", demonstrations=root),
    ):
        with pytest.raises(InputError, match="expected the demonstrations that it learned from"):
            agent.learn(5, progress=False)


def test_files_play_as_the_agent_does(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    agent = cadenza.BC(BOTH, demonstrations=linear(), chunk_length=4).learn(60, progress=False)
    states = np.random.default_rng(1).standard_normal((5, 3)).astype(np.float32)
    (path,) = agent.export_policy(tmp_path / "clone")
    np.testing.assert_allclose(cadenza.load(path).predict(states), agent.predict(states), atol=1e-5)
    np.testing.assert_array_equal(agent.predict(states), agent.predict_chunk(states)[:, 0])
    session = onnxruntime.InferenceSession(agent.export_onnx(tmp_path / "clone.onnx"))
    actions, chunk = session.run(["actions", "chunk"], {"obs": states})
    np.testing.assert_allclose(actions, agent.predict(states), atol=1e-5)
    np.testing.assert_allclose(chunk, agent.predict_chunk(states), atol=1e-5)


def test_observations_are_found_by_their_names() -> None:
    space = spaces.Dict({"arm": spaces.Dict({"q": STATES}), "mode": spaces.Discrete(2)})
    rng = np.random.default_rng(0)
    shown = Episode(
        observations={
            "arm.q": rng.standard_normal((6, 3)),
            "mode": rng.integers(2, size=6),
            "unused": rng.standard_normal((6, 9)),
        },
        actions=np.zeros((6, 2)),
    )
    agent = cadenza.BC((space, ACTIONS), demonstrations=Episodes.of([shown])).learn(3)
    assert agent.updates == 3
    lacking = Episode(observations={"mode": np.zeros(6)}, actions=np.zeros((6, 2)))
    with pytest.raises(InputError, match=r"observation 'arm\.q' of shape \(3,\), got"):
        cadenza.BC((space, ACTIONS), demonstrations=Episodes.of([lacking])).learn(3)


def test_what_cannot_be_cloned_is_refused() -> None:
    with pytest.raises(InputError, match=r"BC\.learn: expected demonstrations="):
        cadenza.BC(BOTH).learn(3)
    for settings, told in (
        ({"chunk_length": 2, "executed_steps": 3}, "executed_steps: expected at most chunk_length"),
        ({"ensemble": 0.1}, "ensemble: expected chunk_length > 1"),
    ):
        with pytest.raises(ConfigurationError, match=told):
            cadenza.BC(BOTH, **settings)
    with pytest.raises(ConfigurationError, match="choices have no average"):
        cadenza.BC((STATES, spaces.Discrete(2)), chunk_length=2, ensemble=0.1)
    wide = Episode(observations={"state": np.zeros((3, 3))}, actions=np.zeros((3, 4)))
    with pytest.raises(InputError, match=r"actions of shape \(2,\), got \(4,\)"):
        cadenza.BC(BOTH, demonstrations=Episodes.of([wide])).learn(3)
    half = Episode(observations={"state": np.zeros((3, 3))}, actions=np.full(3, 0.5))
    with pytest.raises(InputError, match="choices, whole numbers"):
        cadenza.BC((STATES, spaces.Discrete(2)), demonstrations=Episodes.of([half])).learn(3)
    broken = Episode(observations={"state": np.full((3, 3), np.nan)}, actions=np.zeros((3, 2)))
    with pytest.raises(IntegrityError, match=r"episode 0, column 'observation\.state'"):
        Episodes.of([broken])
