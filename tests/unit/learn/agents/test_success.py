"""Success of episodes: in evaluations, in trainings, and as what makes a policy the best."""

import json
import math
from contextlib import nullcontext

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import cadenza
from cadenza.core.errors import InputError
from cadenza.learn.agents.judging import Evaluation
from cadenza.learn.agents.loop import AgentCallback
from cadenza.learn.callbacks.logging import JsonlLogger
from tests.unit.learn.counting_envs import TargetTeam

SMALL = {"rollout_length": 32, "batch_size": 32, "epochs": 1, "hidden_sizes": (8,)}


class Draws(gym.Env):
    """Lasts 1 to 5 steps of reward 1, and succeeds if it lasts at most 2: what the seed draws."""

    observation_space = spaces.Box(-1.0, 5.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, key="is_success", kind=bool):
        self.key, self.kind = key, kind

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = self.length = int(self.np_random.integers(1, 6))
        return self._look(), {}

    def step(self, action):
        self.left -= 1
        told = {self.key: self.kind(self.length <= 2)} if self.key else {}
        return self._look(), 1.0, self.left == 0, False, told

    def _look(self):
        return np.array([self.left, self.length], np.float32)


def agent(make=Draws, **settings):
    return cadenza.PPO(make, seed=0, **{**SMALL, **settings})


@pytest.mark.parametrize("key", ["is_success", "success"])
@pytest.mark.parametrize("kind", [bool, np.float32, lambda value: np.array([value])])
def test_evaluation_tells_how_many_episodes_succeed(key, kind):
    judged = agent(lambda: Draws(key, kind)).evaluate(40)
    short = sum(length <= 2 for length in judged.lengths)
    assert judged.success_rate == short / 40
    assert 0 < short < 40
    # Wilson's interval, z = 1.959964: the p with (p - short / 40)² = z² p (1 − p) / 40
    for bound in (judged.success_low, judged.success_high):
        room = 1.959964 * math.sqrt(bound * (1.0 - bound) / 40)
        assert abs(bound - short / 40) == pytest.approx(room, abs=1e-6)
    assert f"; success {100 * short / 40:.0f} % [" in str(judged)


def test_task_that_tells_nothing_of_success_has_no_rate():
    judged = agent(lambda: Draws("")).evaluate(5)
    assert judged.success_rate is judged.success_low is None
    assert "success" not in str(judged)
    one = agent().evaluate(1)
    assert one.success_rate in (0.0, 1.0)
    assert one.success_low is None
    assert str(one).endswith(f"; success {100 * one.success_rate:.0f} %")


def test_episode_that_tells_nothing_among_others_that_do_has_not_succeeded():
    judged = Evaluation.of([1.0, 2.0, 3.0], [1, 1, 1], successes=[math.nan, 1.0, 0.0])
    assert judged.success_rate == 1 / 3


@pytest.mark.parametrize("count", [2, 7, 50])
def test_episodes_that_are_played_at_once_are_those_that_are_played_one_by_one(count):
    ours = agent()
    assert ours.evaluate(20, num_envs=count) == ours.evaluate(20)
    assert ours.evaluate(20, num_envs=count, seed=1) != ours.evaluate(20)
    told = ours.evaluate(5, num_envs=count, max_episode_steps=2)
    assert told.lengths == tuple(min(length, 2) for length in ours.evaluate(5).lengths)


def test_composed_observations_are_judged_at_once():
    class Composed(Draws):
        observation_space = spaces.Dict(left=spaces.Discrete(6), rest=Draws.observation_space)

        def _look(self):
            return {"left": self.left, "rest": super()._look()}

    ours = agent(Composed)
    assert ours.evaluate(9, num_envs=4) == ours.evaluate(9)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_short_episodes_of_a_vector_environment_count_no_more_than_long_ones(mode):
    ended = []

    class Watched(Draws):
        def step(self, action):
            answer = super().step(action)
            if answer[2]:
                ended.append((self, self.length))
            return answer

    def make():
        return SyncVectorEnv([Watched] * 3, autoreset_mode=mode)

    ours, envs = agent(), make()
    judged = ours.evaluate(20, env=envs)
    assert ours.evaluate(20, env=make()) == judged
    played = [[length for env, length in ended if env is one.unwrapped] for one in envs.envs]
    # The environments play 7, 7 and 6 episodes, whoever is first; the k-th is in row k mod 3.
    expected = [played[k % 3][k // 3] for k in range(20)]
    assert list(judged.lengths) == list(map(int, judged.returns)) == expected
    assert judged.success_rate == sum(length <= 2 for length in expected) / 20


def test_vector_environments_that_cannot_judge_are_refused():
    ours = cadenza.PPO(SyncVectorEnv([Draws] * 2), **SMALL)
    with pytest.raises(InputError, match="which the agent learns in"):
        ours.evaluate(2, env=ours.envs.vector)
    with pytest.raises(InputError, match=r"observations of Box.*got 2 of Box"):
        ours.evaluate(2, env=gym.make_vec("CartPole-v1", 2))
    with pytest.raises(InputError, match="expected 3 environments"):
        ours.evaluate(2, env=SyncVectorEnv([Draws] * 2), num_envs=3)
    with pytest.raises(InputError, match="makes another environment in every call"):
        ours.evaluate(2, env=Draws(), num_envs=2)
    with pytest.raises(InputError, match=r"evaluate\.num_envs"):
        ours.evaluate(2, env=Draws, num_envs=0)
    with pytest.raises(InputError, match="in a row that plays another one after it"):
        ours.evaluate(20, env=SyncVectorEnv([Draws] * 2), max_episode_steps=1)
    cut = ours.evaluate(2, env=SyncVectorEnv([Draws] * 2), max_episode_steps=1)
    assert cut.lengths == (1, 1)


def test_training_logs_the_success_of_its_last_episodes(tmp_path, monkeypatch):
    bar = []
    monkeypatch.setattr("cadenza.learn.agents.loop._REPORT_EVERY_S", 0.0)
    monkeypatch.setattr(
        "cadenza.learn.agents.agent.progress_bar",
        lambda label, quiet: nullcontext(lambda *shown: bar.append(shown)),
    )
    ended = []

    class Watched(Draws):
        def step(self, action):
            answer = super().step(action)
            ended.extend([self.length] * answer[2])
            return answer

    ours = agent(Watched, num_envs=2)
    log = JsonlLogger([ours], tmp_path / "log.jsonl", 1)
    ours.learn(640, callbacks=log)
    rate = sum(length <= 2 for length in ended[-100:]) / 100
    assert ours.success_rate == rate
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines[-1]["scalars"]["training/success_rate"] == rate
    assert bar[-2][2] == f"return {ours.mean_return:.1f}, success {100 * rate:.0f} %"
    loaded = cadenza.PPO.load(ours.save(tmp_path / "agent"), Watched)
    assert loaded.success_rate == rate
    assert agent(lambda: Draws("")).learn(64, progress=False).success_rate is None


def test_teams_tell_their_success():
    class Team(TargetTeam):
        def step(self, action):
            *answer, info = super().step(action)
            told = {"success": np.arange(self.num_envs) < 3}
            return *answer, {**told, **info, "final_info": told}

    team = cadenza.HAPPO(Team, num_envs=6, rollout_length=8, epochs=1)
    assert team.evaluate(12).success_rate == 3 / 12
    assert team.evaluate(12, num_envs=6).success_rate == 6 / 12  # each plays two
    assert team.evaluate(5, env=Team(3), num_envs=3).lengths == (4,) * 5
    assert team.learn(48, progress=False).success_rate == 0.5


class Fades(AgentCallback):
    """Makes a task succeed less and pay more with every update, and notes evaluations."""

    seen = []  # noqa: RUF012 -- by all

    def on_update(self, agent, batch, figures):
        Paid.updates = agent.updates

    def on_evaluate(self, agent, result):
        self.seen.append((agent.steps, result.success_rate, result.mean))


class Paid(Draws):
    updates = 0

    def step(self, action):
        answer, self.length = super().step(action), 1 if self.updates < 2 else 4
        return answer[0], float(self.updates), *answer[2:]


@pytest.mark.parametrize("by", ["return", "success_rate", None])
def test_best_is_chosen_by_return_or_by_success(by, tmp_path):
    Paid.updates, Fades.seen = 0, []
    ours = agent(Paid)
    options = {"folder": tmp_path, "evaluate_every": 32, "evaluation_episodes": 20}
    options |= {"callbacks": Fades(), "progress": False}
    ours.learn(96, best_by=by, **options)
    rank = (lambda row: row[1:]) if by == "success_rate" else (lambda row: row[2])
    best = cadenza.PPO.load(tmp_path / "best", Paid)
    kept = max(Fades.seen, key=rank)  # the first of equals
    assert (best.steps, best.best_success_rate, best.best_return) == kept
    assert kept[0] == (64 if by == "success_rate" else 96)
    resumed = cadenza.PPO.load(tmp_path / "last", Paid).learn(64, **options)
    assert resumed.best_by == (by or "return")
    best = cadenza.PPO.load(tmp_path / "best", Paid)
    assert (best.steps, best.best_success_rate, best.best_return) == max(Fades.seen, key=rank)


def test_best_by_success_needs_a_task_that_tells_it(tmp_path):
    with pytest.raises(InputError, match=r"is_success or success.*best_by='return'"):
        agent(lambda: Draws("")).learn(64, folder=tmp_path, best_by="success_rate", progress=False)
    with pytest.raises(InputError, match="best_by to be one of"):
        agent().learn(64, best_by="succes", progress=False)
