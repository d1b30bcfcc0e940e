"""Foreign two-agent environments as tasks."""

from functools import partial

import numpy as np
import pytest
from gymnasium import spaces

from cadenza.aht.config import EnvConfig, PartnerConfig
from cadenza.benchmark.builders import build_env, build_partner
from cadenza.benchmark.tasks import get_task
from cadenza.core.errors import ConfigurationError, InputError, NotReadyError
from cadenza.core.seeding import derive_substream
from cadenza.envs.inputs import ChamberEnvCompatibilityError
from cadenza.envs.parallel_task import ParallelTask
from tests.parallel_envs import InTurns, Matching

NAME = "pettingzoo:tests.parallel_envs:Matching"


def bit_of(obs, uid="ego"):
    return float(obs["agent"][uid]["state"][0])


def joint(ego, partner):
    return {"ego": np.array([ego], np.float32), "partner": np.array([partner], np.float32)}


def test_states_are_flat_and_choices_are_played():
    env = ParallelTask(Matching())
    space = env.observation_space["agent"]["partner"]["state"]
    assert space == spaces.Box(0.0, 1.0, (2,), np.float32)
    assert env.action_space == spaces.Dict(ego=spaces.Discrete(3), partner=spaces.Discrete(3))
    obs, _ = env.reset(seed=1)
    for _ in range(7):
        assert space.contains(obs["agent"]["ego"]["state"])
        obs, reward, terminated, truncated, info = env.step(joint(bit_of(obs), 2))
        assert (reward, terminated, truncated, info) == (1.0, False, False, {"success": False})
    assert env.step(joint(bit_of(obs), 2))[1:] == (1.0, True, False, {"success": True})


def test_box_actions_are_flat_and_clipped():
    env = ParallelTask(Matching(actions="box"))
    assert env.action_space["ego"] == spaces.Box(-2.0, 2.0, (2,), np.float32)
    obs, _ = env.reset(seed=0)
    action = np.array([9.0 if bit_of(obs) else -9.0, 0.0])
    assert env.step({"ego": action, "partner": -action})[1] == 1.0
    with pytest.raises(InputError, match=r"action of 'partner' to be 2 finite number"):
        env.step({"ego": action, "partner": action[:1]})


def test_time_limit_truncates_and_team_reward_sums_both():
    env = ParallelTask(Matching(), episode_length=2, team_reward=True)
    obs, _ = env.reset(seed=0)
    obs, reward, terminated, truncated, _ = env.step(joint(bit_of(obs), bit_of(obs)))
    assert (reward, terminated, truncated) == (11.0, False, False)
    assert env.step(joint(2, bit_of(obs)))[1:4] == (10.0, False, True)


def test_seats_that_bear_the_agents_names_choose_the_ego():
    env = ParallelTask(Matching(), agent_uids=("b_1", "a_0"))
    obs, _ = env.reset(seed=0)
    bit = np.array([bit_of(obs, "b_1")])
    assert (env.ego_uid, env.step({"a_0": bit, "b_1": bit})[1]) == ("b_1", 10.0)


def test_episode_depends_on_root_seed_and_seed_alone():
    def bits(env, **seed):
        obs, _ = env.reset(**seed)
        return [bit_of(obs), *(bit_of(env.step(joint(0, 0))[0]) for _ in range(7))]

    used, fresh = (ParallelTask(Matching(steps=99), root_seed=3) for _ in range(2))
    automatic = [bits(used), bits(used)]
    assert automatic[0] != automatic[1]
    assert bits(used, seed=5) == bits(fresh, seed=5)
    assert bits(ParallelTask(Matching(), root_seed=4), seed=5) != bits(fresh, seed=5)


def test_partner_that_leaves_early_stays_where_it_was():
    env = ParallelTask(Matching(leaves=2))
    obs, _ = env.reset(seed=0)
    states = []
    for _ in range(5):
        obs, _, terminated, _, _ = env.step(joint(0, 0))
        states.append(obs["agent"]["partner"]["state"].tolist())
        assert not terminated
    assert states[1] == states[2] == states[3] == states[4]


@pytest.mark.parametrize("value", [1.4, 3.0, -1.0, np.nan, [0.0, 1.0]])
def test_action_that_is_no_choice_is_refused(value):
    env = ParallelTask(Matching())
    env.reset(seed=0)
    told = r"action of 'ego' to be (a whole number from 0 to 2,|1 finite)"
    with pytest.raises(InputError, match=told):
        env.step({"ego": np.array(value), "partner": np.zeros(1)})


def test_step_outside_an_episode_is_refused():
    env = ParallelTask(Matching(steps=1))
    with pytest.raises(NotReadyError, match=r"call reset\(\)"):
        env.step(joint(0, 0))
    env.reset(seed=0)
    env.step(joint(0, 0))
    with pytest.raises(NotReadyError, match=r"call reset\(\)"):
        env.step(joint(0, 0))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (partial(Matching, agents=3), r"two agents, got 3 \(a_0, b_1, c_2\); set the env"),
        (partial(Matching, actions="several"), r"Discrete or of a real Box, got MultiDiscrete"),
        (InTurns, r"parallel environment, got InTurns; name the module's parallel_env"),
        (object, r"parallel environment, got object"),
    ],
)
def test_environments_that_do_not_fit_are_refused(make, told):
    with pytest.raises(ChamberEnvCompatibilityError, match=told):
        ParallelTask(make())


def test_name_of_an_environment_is_a_task():
    task = get_task(NAME)
    assert (task.has_success, task.seen_partner) == (True, "random_actions")
    config = EnvConfig(task=NAME, episode_length=3, options={"steps": 5, "team_reward": True})
    env = build_env(config, root_seed=2)
    assert (env.unwrapped.steps, env.team_reward, env.root_seed) == (5, True, 2)
    env.close()
    assert env.unwrapped.is_closed


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("pettingzoo:Matching", {}, "expected pettingzoo:module:env"),
        (NAME + "s", {}, r"expected the function 'tests.parallel_envs:Matchings'"),
        (NAME, {"stepz": 3}, r"options that its environment takes, got \['stepz'\]"),
    ],
)
def test_names_and_options_that_lead_nowhere_are_refused(name, options, told):
    with pytest.raises(ConfigurationError, match=told):
        build_env(EnvConfig(task=name, options=options), root_seed=0)


def test_any_task_partners_act_within_the_bound_space():
    env = build_env(EnvConfig(task=NAME), root_seed=0)
    obs, _ = env.reset(seed=0)
    player = build_partner(
        PartnerConfig(class_name="random_actions", extra={"uid": "partner"}), env=env
    )
    player.reset(seed=4)
    drawn = [float(player.act(obs)[0]) for _ in range(300)]
    assert np.bincount(np.array(drawn, dtype=int)).min() > 70  # 100 expected of each, sd 8
    extra = {"uid": "partner", "value": "7"}
    still = build_partner(PartnerConfig(class_name="constant_action", extra=extra), env=env)
    assert still.act(obs).tolist() == [2.0]


@pytest.mark.parametrize(
    ("module", "options"),
    [("simple_spread_v3", {"N": 2}), ("simple_push_v3", {"continuous_actions": True})],
)
def test_particle_environments_play_as_in_their_package(module, options):
    mpe2 = pytest.importorskip(f"mpe2.{module}")
    name = f"pettingzoo:mpe2.{module}:parallel_env"
    env = build_env(EnvConfig(task=name, options=options), root_seed=1)
    twin = mpe2.parallel_env(**options)
    seen, _ = env.reset(seed=8)
    stream = derive_substream("env.parallel.episode.8", root_seed=1)
    expected, _ = twin.reset(seed=stream.integer_seed())
    agents, rng = twin.possible_agents, np.random.default_rng(0)
    ended = False
    while not ended:
        for uid, agent in zip(env.agent_uids, agents, strict=True):
            assert seen["agent"][uid]["state"].tolist() == expected[agent].tolist()
        if options.get("continuous_actions"):
            actions = rng.uniform(0, 1, (2, 5)).astype(np.float32)
        else:
            actions = rng.integers(5, size=2)
        seen, reward, *ends, _ = env.step(dict(zip(env.agent_uids, actions, strict=True)))
        expected, rewards, *_ = twin.step(dict(zip(agents, actions, strict=True)))
        assert reward == rewards[agents[0]]
        ended = any(ends)
    assert ends == [False, True]
