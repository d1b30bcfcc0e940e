"""Teams in parallel environments of PettingZoo."""

from functools import partial

import numpy as np
import pytest
from gymnasium import spaces

import cadenza
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.learn.agents.loop import AgentCallback
from cadenza.learn.env.parallel_team import ParallelTeam
from cadenza.learn.env.teams import TeamSteps
from tests.parallel_envs import InTurns, Matching

SMALL = {"hidden_sizes": (16,), "num_envs": 4}
ROLLOUTS = {**SMALL, "rollout_length": 16, "batch_size": 64}
MAPPO = {**ROLLOUTS, "learning_rate": 1e-2, "gamma": 0.5, "epochs": 4}
HATD3 = {**SMALL, "warmup_steps": 16, "batch_size": 16, "train_every": 8}


class Numbered(Matching):
    """Its choices begin at 3, and it takes no others."""

    def action_space(self, agent):
        return spaces.Discrete(3, start=3)

    def step(self, actions):
        assert all(type(choice) is int and choice >= 3 for choice in actions.values())
        return super().step({agent: choice - 3 for agent, choice in actions.items()})


def bits(team, bit):
    """Return the joint state of a team whose agents see ``bit``."""
    return np.tile([[bit, 1 - bit]], (1, len(team.team.uids))).astype(np.float32)


@pytest.mark.parametrize("make", [Matching, partial(Numbered, agents=3)])
def test_mappo_learns_choices_and_keeps_them_in_its_files(make, tmp_path):
    team = cadenza.MAPPO(lambda: make(), **MAPPO).learn(2_000, progress=False)
    first = make().action_space("a_0").start
    robots = team.team.uids
    assert [int(a[0]) for a in team.predict(bits(team, 1))] == [first + 1] * len(robots)
    judged = team.evaluate(6)
    assert judged.returns == (8.0 * sum(10**k for k in range(len(robots))),) * 6
    assert judged.success_rate == 1.0
    loaded = cadenza.load(team.save(tmp_path / "team"))
    joint = np.random.default_rng(0).uniform(size=(64, team.team.joint_dim)).astype(np.float32)
    wanted = team.predict(joint)
    np.testing.assert_array_equal(loaded.predict(joint), wanted)
    assert loaded.evaluate(2, env=make).returns == judged.returns[:2]
    for path, state, actions in zip(
        team.export_policy(tmp_path / "x"), team.team.split_state(joint), wanted, strict=True
    ):
        np.testing.assert_array_equal(cadenza.load(path).predict(state), actions)
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(team.export_onnx(tmp_path / "team.onnx"))
    np.testing.assert_array_equal(session.run(None, {"joint": joint}), wanted)


@pytest.mark.parametrize(
    ("name", "settings"), [("MAPPO", MAPPO), ("HAPPO", ROLLOUTS), ("HATD3", HATD3)]
)
def test_every_team_takes_boxes_and_goes_on_where_it_was(name, settings, tmp_path):
    def begun():
        return getattr(cadenza, name)(partial(Matching, actions="box"), seed=1, **settings)

    whole = begun().learn(96, progress=False)
    resumed = type(whole).load(whole.save(tmp_path / "half"), partial(Matching, actions="box"))
    for team in (whole, resumed):
        team.learn(96, progress=False)
    joint = np.random.default_rng(0).uniform(size=(8, 4)).astype(np.float32)
    np.testing.assert_array_equal(whole.predict(joint), resumed.predict(joint))
    assert whole.mean_return == resumed.mean_return
    assert whole.predict(joint)[0].shape == (8, 2)


class Described(Matching):
    """Shows its bit as a part of a dict."""

    def observation_space(self, agent):
        return spaces.Dict(bit=super().observation_space(agent), kind=spaces.Discrete(2))

    def _observe(self):
        return {agent: {"bit": seen, "kind": 1} for agent, seen in super()._observe().items()}


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("MAPPO", Described),
        ("MAPPO", partial(Numbered, agents=3, leaves=2)),
        ("MAPPO", partial(Described, actions="box")),
        ("HAPPO", partial(Matching, actions="box", leaves=2)),
        ("HATD3", partial(Described, actions="box")),
    ],
)
def test_teams_play_what_pettingzoo_shows_them_and_loaded_ones_do(name, make, tmp_path):
    settings = HATD3 if name == "HATD3" else ROLLOUTS
    team = getattr(cadenza, name)(lambda: make(), **settings)
    loaded, env = cadenza.load(team.save(tmp_path / "team")), make()
    observations, _ = env.reset(seed=0)
    while env.agents:
        seen = {uid: observations[uid] for uid in env.agents}
        actions = team.predict(seen)
        flat = [
            spaces.flatten(env.observation_space(uid), seen[uid])
            if uid in seen
            else np.zeros(spaces.flatdim(env.observation_space(uid)))
            for uid in env.possible_agents
        ]
        rows = dict(zip(env.possible_agents, team.predict(np.concatenate(flat)), strict=True))
        assert list(actions) == env.agents
        for uid, action in actions.items():
            assert env.action_space(uid).contains(action)
            np.testing.assert_array_equal(np.reshape(action, -1), np.reshape(rows[uid], -1))
        np.testing.assert_equal(loaded.predict(seen), actions)
        observations, *_ = env.step(actions)


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        ({"a_0": np.zeros((1, 2)), "z": np.zeros((1, 2))}, r"of a_0, b_1, got \['a_0', 'z'\]"),
        ({"a_0": np.zeros((1, 3))}, r"observation\['a_0'\] in Box.*shape \(1, 3\)"),
        ({"a_0": np.full((1, 2), np.nan)}, "finite"),
        (({"a_0": np.zeros((1, 2))}, {}), r"by robot, or joint states \(N, 4\).*reset"),
        (np.zeros(2), r"shape \(1, 4\), got \(1, 2\); or pass a dict"),
        ("a_0", "dict of observations by robot"),
    ],
)
def test_what_no_team_sees_is_refused(seen, told):
    with pytest.raises(InputError, match=told):
        cadenza.MAPPO(Matching, **ROLLOUTS).predict(seen)


def test_team_loaded_without_environments_says_how_to_evaluate(tmp_path):
    team = cadenza.MAPPO(Matching, **ROLLOUTS)
    assert repr(team).startswith("MAPPO(<matching>, ")
    with pytest.raises(InputError, match=r"loaded without.*evaluate\(env=\.\.\.\) or load\("):
        cadenza.load(team.save(tmp_path / "team")).evaluate(1)


@pytest.mark.parametrize("name", ["HAPPO", "HATD3"])
def test_policies_of_numbers_refuse_choices(name):
    with pytest.raises(ConfigurationError, match=r"continuous actions .* Discrete\(3\) of 'a_0'"):
        getattr(cadenza, name)(Matching)


def steps(*envs):
    batch = ParallelTeam(envs)
    return TeamSteps(batch, batch.agent_uids), batch


def test_episodes_begin_anew_in_the_same_step_with_seeds_of_their_own():
    team, batch = steps(Matching(steps=2), Matching(steps=3))
    first = team.reset(5)
    team.step([np.zeros(2), np.zeros(2)])
    step = team.step([np.zeros(2), np.zeros(2)])
    assert step.boundaries.tolist() == step.terminated.tolist() == [True, False]
    np.testing.assert_array_equal(step.following[1], step.observations[1])
    assert [env.time for env in batch.envs] == [0, 2]
    np.testing.assert_array_equal(step.observations[0], np.tile(_seen(batch.envs[0]), 2))
    drawn = {float(env.rng.bit_generator.state["state"]["inc"]) for env in batch.envs}
    assert len(drawn) == 2
    np.testing.assert_array_equal(team.reset(5), first)


def _seen(env):
    return [env.bit, 1 - env.bit]


def test_agents_that_leave_see_zeros_do_nothing_and_the_rest_plays_on():
    team, batch = steps(Matching(leaves=1, steps=3, agents=3))
    team.reset(0)
    (env,) = batch.envs
    right = [np.array([env.bit])] * 3
    step = team.step(right)  # Matching refuses actions of agents that left
    assert step.rewards.tolist() == [111.0]  # the sum of 1, 10 and 100
    assert not step.boundaries.any()
    np.testing.assert_array_equal(step.observations[0, 2:4], [0.0, 0.0])
    assert batch.acting.tolist() == [[True, False, True]]
    team.step([np.array([env.bit])] * 3)
    last = team.step([np.array([env.bit])] * 3)
    assert last.rewards.tolist() == [101.0]
    assert last.terminated.tolist() == [True]
    assert last.info["is_success"].tolist() == [1.0]
    assert batch.acting.all()


def test_mappo_learns_nothing_from_agents_that_left():
    seen = []

    class Watch(AgentCallback):
        def on_batch(self, agent, batch):
            seen.append(batch.valid[: batch.length].copy())

    team = cadenza.MAPPO(partial(Matching, leaves=2, steps=4), **{**ROLLOUTS, "rollout_length": 8})
    team.learn(32, callbacks=[Watch()], progress=False)
    there = np.array([[True, True], [True, True], [True, False], [True, False]] * 2)  # (T, n)
    np.testing.assert_array_equal(seen[0].reshape(8, 4, 2), np.repeat(there[:, None], 4, axis=1))


def test_an_end_of_time_for_anybody_is_a_cut():
    class Timed(Matching):
        def step(self, actions):
            seen, rewards, gone, cuts, infos = super().step(actions)
            cuts["a_0"], gone["a_0"] = gone["a_0"], False
            return seen, rewards, gone, cuts, infos

    team, _ = steps(Timed(steps=1))
    team.reset(0)
    step = team.step([np.zeros(1)] * 2)
    assert (step.boundaries.tolist(), step.terminated.tolist()) == ([True], [False])
    assert step.cut.tolist() == [0]


def same():
    env = Matching()
    return lambda: env


@pytest.mark.parametrize(
    ("env", "told"),
    [
        (InTurns(), "PettingZoo parallel environment, got InTurns, whose agents act in turns"),
        (InTurns, "whose agents act in turns"),
        (same(), "got one PettingZoo environment"),
        (partial(Matching, actions="several"), "Discrete or of a real Box"),
        (lambda: object(), "a function from a number of environments to a batch"),
        (lambda one, two: Matching(), "a function from a number of environments to a batch"),
    ],
)
def test_what_is_no_team_is_refused(env, told):
    with pytest.raises(ConfigurationError, match=told):
        cadenza.MAPPO(env, num_envs=2 if callable(env) else None)


def test_environments_that_differ_are_refused():
    with pytest.raises(ConfigurationError, match="the same agents and spaces"):
        ParallelTeam([Matching(), Matching(agents=3)])


def test_a_ready_environment_is_a_batch_of_one():
    team = cadenza.MAPPO(Matching(), rollout_length=8).learn(16, progress=False)
    assert (team.steps, team.envs.num_envs) == (16, 1)
    assert len(team.evaluate(2, env=Matching(), num_envs=1).returns) == 2
    with pytest.raises(InputError, match="expected env="):
        team.evaluate(2)


@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("counts", [False, True])
def test_environments_of_mpe_are_teams(continuous, counts):
    mpe = pytest.importorskip("mpe2.simple_spread_v3")

    def make(_count=None):
        return mpe.parallel_env(continuous_actions=continuous, max_cycles=10)

    taken = make if counts else lambda: make()
    team = cadenza.MAPPO(taken, num_envs=2, rollout_length=16).learn(64, progress=False)
    assert team.envs.uids == ("agent_0", "agent_1", "agent_2")
    judged = team.evaluate(3)
    assert judged.lengths == (10, 10, 10)
    assert judged.cut == 0
    assert judged.returns == team.evaluate(3).returns
