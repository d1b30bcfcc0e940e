"""Demonstrations in off-policy batches: which steps, how many, saved and resumed."""

from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import cadenza
from cadenza.core.episodes import Episode, Episodes
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.core.payloads import serialise
from cadenza.learn.agents.demonstrations import remember
from cadenza.learn.memory.builder import TransitionMemory
from tests.demonstrations import write_npz

SMALL = {"hidden_sizes": (8,), "batch_size": 8, "warmup_steps": 20, "num_envs": 2}
#: Rewards of demonstrations, by which they are told from the agent's own.
MARK = 1000.0


class Line(gymnasium.Env):
    """A point on a line; 10 steps are an episode."""

    observation_space = spaces.Box(-10.0, 10.0, (3,), np.float32)
    action_space = spaces.Box(-2.0, 2.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.standard_normal(3).astype(np.float32), {}

    def step(self, action):
        self.steps += 1
        seen = self.np_random.standard_normal(3).astype(np.float32)
        return seen, -float(np.square(action).sum()), False, self.steps == 10, {}


class Choosing(Line):
    action_space = spaces.Discrete(3, start=5)


def shown(*, terminated: bool = True, last: bool = True, rewards: bool = True) -> list[Episode]:
    """Return two episodes whose state t is t, from 100 on in the second."""
    episodes = []
    for first, length in ((0, 4), (100, 3)):
        states = np.repeat(np.arange(first, first + length + last)[:, None], 3, axis=1)
        episodes.append(
            Episode(
                observations={"state": states.astype(np.float32)},
                actions=np.full((length, 2), 1.0, np.float32),
                rewards=np.full(length, MARK, np.float32) if rewards else None,
                terminated=terminated,
                success=False,
            )
        )
    return episodes


@pytest.mark.parametrize(
    ("terminated", "last", "wanted"),
    [  # state, state after it, whether values go on from there
        (True, True, {(2, 3, 1), (3, 4, 0), (101, 102, 1), (102, 103, 0)}),
        (True, False, {(2, 3, 1), (3, 3, 0), (101, 102, 1), (102, 102, 0)}),
        (False, True, {(2, 3, 1), (3, 4, 1), (101, 102, 1), (102, 103, 1)}),
        (False, False, {(2, 3, 1), (101, 102, 1)}),  # nobody knows what came after the last
    ],
)
def test_only_steps_with_a_known_end_are_remembered(terminated, last, wanted) -> None:
    memory = TransitionMemory(
        observation_dim=3, action_dim=2, num_envs=2, max_transitions=100, seed=0
    )
    episodes = Episodes.of(shown(terminated=terminated, last=last))
    remember(memory, episodes, Line.observation_space, lambda episode: episode.actions, "test")
    batch = memory.sample(500)
    columns = batch["observation"]["obs"][:, 0], batch["next_observation"]["obs"][:, 0]
    found = set(zip(*(c.int().tolist() for c in (*columns, batch["masks"][:, 0])), strict=True))
    assert {row for row in found if row[0] not in (0, 1, 100)} == wanted
    assert memory.size() == (7 if terminated or last else 5)


@pytest.mark.parametrize(("share", "rows"), [(0.5, 4), (0.3, 3), (0.99, 7)])
def test_batch_has_its_share_of_demonstrations(share: float, rows: int) -> None:
    demonstrations = Episodes.of(shown())
    agent = cadenza.SAC(
        Line, demonstrations=demonstrations, demonstration_share=share, **SMALL
    ).learn(40, progress=False)
    batch = agent.batch()
    marked = batch["rewards"][:, 0] == MARK
    assert len(marked) == 8
    assert int(marked.sum()) == rows
    assert (batch["actions"][marked] == 0.5).all()  # 1 of [-2, 2], in [-1, 1]
    assert agent.memory.size() <= 40


def test_share_of_nothing_puts_demonstrations_first_into_the_memory() -> None:
    agent = cadenza.TD3(Line, demonstrations=Episodes.of(shown()), demonstration_share=0, **SMALL)
    agent.begin(1)
    assert agent.memory.size() == 7
    agent.learn(40, progress=False)
    assert agent.memory.size() > 20
    rewards = agent.memory.sample(300)["rewards"]
    assert 0 < int((rewards == MARK).sum()) < 300


def test_demonstrated_choices_are_stored_as_choices() -> None:
    episodes = [
        Episode(observations=e.observations, actions=np.full(len(e), 6), rewards=e.rewards)
        for e in shown()
    ]
    agent = cadenza.DQN(Choosing, demonstrations=Episodes.of(episodes), **SMALL)
    batch = agent.learn(40, progress=False).batch()
    assert set(batch["actions"][batch["rewards"] == MARK].flatten().tolist()) == {1}


@pytest.mark.parametrize("share", [0.5, 0.0])
def test_interrupted_training_with_demonstrations_goes_on(tmp_path: Path, share: float) -> None:
    root = write_npz(tmp_path / "shown", shown())
    settings = {**SMALL, "demonstrations": root, "demonstration_share": share, "seed": 3}
    whole = cadenza.SAC(Line, **settings).learn(100, progress=False)
    cadenza.SAC(Line, **settings).learn(60, progress=False).save(tmp_path / "half")
    resumed = cadenza.SAC.load(tmp_path / "half", Line).learn(40, progress=False)
    states = [serialise(agent.state_dict()["learned"]) for agent in (whole, resumed)]
    assert states[0] == states[1]


def test_changed_demonstrations_are_refused(tmp_path: Path) -> None:
    root = write_npz(tmp_path / "shown", shown())
    cadenza.SAC(Line, demonstrations=root, **SMALL).learn(30, progress=False).save(tmp_path / "a")
    (root / "episode_1.npz").unlink()
    loaded = cadenza.SAC.load(tmp_path / "a", Line)
    assert loaded.predict(np.zeros(3)).shape == (2,)
    with pytest.raises(InputError, match="expected the demonstrations that it learned from"):
        loaded.learn(10, progress=False)


def test_demonstrations_that_teach_no_values_are_refused() -> None:
    silent = Episodes.of(shown(rewards=False))
    with pytest.raises(InputError, match="expected demonstrations with rewards"):
        cadenza.SAC(Line, demonstrations=silent, **SMALL).learn(30, progress=False)
    with pytest.raises(InputError, match="expected demonstrations of choices"):
        cadenza.DQN(Line, demonstrations=Episodes.of(shown()), **SMALL).learn(30, progress=False)
    with pytest.raises(ConfigurationError, match=r"expected a share in \[0, 1\), got 1"):
        cadenza.TD3(Line, demonstration_share=1.0)


def test_agent_without_demonstrations_saves_none() -> None:
    assert "demonstrations" not in cadenza.SAC(Line, **SMALL).state_dict()["learned"]
