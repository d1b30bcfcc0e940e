"""Level-based foraging and Overcooked as tasks, beside their packages."""

import gymnasium as gym
import numpy as np
import pytest

from cadenza.aht.config import EnvConfig, PartnerConfig
from cadenza.benchmark.builders import build_env, build_partner
from cadenza.core.errors import InputError
from cadenza.core.seeding import derive_substream
from tests.campaigns import size


def foraging(**options):
    pytest.importorskip("lbforaging", reason="needs the extra foraging")
    return build_env(EnvConfig(task="foraging", options=options), root_seed=0)


def overcooked(layout, **options):
    pytest.importorskip("overcooked.mdp", reason="needs the package overcooked")
    task = EnvConfig(task=f"overcooked_{layout}", episode_length=400, options=options)
    return build_env(task, root_seed=0)


def many_fields(copies, **options):
    pytest.importorskip("lbforaging", reason="needs the extra foraging")
    from cadenza.envs.foraging import VectorForaging

    return VectorForaging(copies, **options)


def states(obs, *row):
    """Return the bytes of both states."""
    return b"".join(obs["agent"][uid]["state"][row].tobytes() for uid in ("ego", "partner"))


def joint(ego, partner):
    return {"ego": np.array([ego]), "partner": np.array([partner])}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Foraging-8x8-2p-3f-coop-v3", {}),
        ("Foraging-5x5-2p-2f-v3", {"size": 5, "foods": 2, "coop": 0}),
    ],
)
def test_foraging_plays_as_its_package_and_truncates_where_that_terminates(name, options):
    env = foraging(**options)
    twin = gym.make(name, disable_env_checker=True).unwrapped
    rng, eaten = np.random.default_rng(0), 0.0
    for episode in range(12):
        stream = derive_substream(f"env.parallel.episode.{episode}", root_seed=0)
        seen, _ = env.reset(seed=episode)
        for player in twin.players:
            player.position = None
        expected, _ = twin.reset(seed=stream.integer_seed())
        over = False
        while not over:
            for uid, state in zip(("ego", "partner"), expected, strict=True):
                assert seen["agent"][uid]["state"].tobytes() == state.tobytes()
            first, second = rng.integers(6, size=2)
            seen, reward, terminated, truncated, info = env.step(joint(first, second))
            expected, rewards, over, _, _ = twin.step([first, second])
            assert reward == sum(rewards)
            eaten += reward
            assert (terminated, truncated) == (info["success"], over and not info["success"])
    assert (eaten > 0.0) == bool(options)  # nobody eats food for two by chance


def test_field_depends_on_its_seed_alone():
    used = foraging(size=5, foods=1)
    starts = {seed: used.reset(seed=seed)[0]["agent"]["ego"]["state"] for seed in range(60)}
    for seed in range(0, 60, 7):
        fresh, _ = foraging(size=5, foods=1).reset(seed=seed)
        assert fresh["agent"]["ego"]["state"].tobytes() == starts[seed].tobytes()


@pytest.mark.parametrize(
    "options",
    [{}, {"size": 5, "foods": 4, "coop": 0}, {"size": 7, "levels": 1, "foods": 2}],
    ids=["default", "alone", "no levels"],
)
def test_many_fields_have_the_bytes_of_the_package(options):
    copies = 4
    many = many_fields(copies, episode_length=20, **options)
    task = EnvConfig(task="foraging", episode_length=20, options=options)
    ones = [build_env(task, root_seed=0) for _ in range(copies)]
    batch, _ = many.reset(seed=3)
    seeds = [3 + i for i in range(copies)]
    single = [one.reset(seed=seed)[0] for one, seed in zip(ones, seeds, strict=True)]
    rng, eaten = np.random.default_rng(0), 0.0
    for _ in range(size(100, 2500)):  # 10 000 steps of the package at full size
        actions = {uid: rng.integers(6, size=(copies, 1)) for uid in ("ego", "partner")}
        batch, *results, info = many.step(actions)
        eaten += results[0].sum()
        for i, one in enumerate(ones):
            seen, reward, *ends, about = one.step({u: a[i] for u, a in actions.items()})
            assert [float(reward), *ends] == [column[i] for column in results]
            assert about["success"] == info["success"][i]
            if any(ends):
                assert states(info["final_observation"], i) == states(seen)
                seeds[i] += copies
                seen, _ = one.reset(seed=seeds[i])
            single[i] = seen
        assert [states(batch, i) for i in range(copies)] == [states(one) for one in single]
    assert eaten > 0.0 or options.get("coop", 1)


def test_many_fields_refuse_what_is_no_action():
    env = many_fields(2)
    env.reset(seed=0)
    with pytest.raises(InputError, match=r"2 whole numbers from 0 to 5 as the actions of 'ego'"):
        env.step({"ego": np.array([[1], [6]]), "partner": np.zeros((2, 1))})
    assert env.single_action_space == foraging().action_space
    assert env.single_observation_space == foraging().observation_space


@pytest.mark.parametrize("coop", [0, 1])
@pytest.mark.parametrize("rule", ["lexicographic", "reverse", "column", "reverse_column"])
def test_two_sequential_foragers_eat_everything_at_7x7_without_levels(rule, coop):
    env = foraging(size=7, levels=1, coop=coop)
    players = {
        uid: build_partner(PartnerConfig(class_name=f"forager_{rule}", extra={"uid": uid}))
        for uid in ("ego", "partner")
    }
    for episode in range(12):
        obs, _ = env.reset(seed=episode)
        for player in players.values():
            player.reset(seed=2 * episode + (player.spec.extra["uid"] == "ego"))
        share, ends = 0.0, [False]
        while not any(ends):
            actions = {uid: player.act(obs) for uid, player in players.items()}
            obs, reward, *ends, info = env.step(actions)
            share += reward
        assert info["success"]
        assert share == pytest.approx(1.0)


def test_one_cook_serves_a_soup_in_the_cramped_room():
    """Onions are at (0, 1), the pot at (2, 0), dishes at (1, 3), service at (3, 3)."""
    north, south, east, west, stay, interact = range(6)
    fetch_onion = [west, interact, east, north, interact]
    plan = [
        north,
        *fetch_onion * 3,
        interact,  # begins to cook, 20 steps
        *[west, south, south, interact],  # takes a dish
        *[north, east, north, *[stay] * 20, interact],  # takes the soup
        *[south, east, south, interact],
    ]
    env, shaped = overcooked("cramped_room"), overcooked("cramped_room", shaping=100)
    assert env.observation_space["agent"]["ego"]["state"].shape == (5 * 4 * 26,)
    env.reset(seed=0)
    shaped.reset(seed=0)
    outcomes = [env.step(joint(action, stay)) for action in plan]
    rewards = [outcome[1] for outcome in outcomes]
    assert rewards == [0.0] * (len(plan) - 1) + [20.0]
    assert outcomes[-1][4]["soups"] == 1
    # Three onions potted, 3 each, a useful dish 3, a soup taken 5.
    assert sum(shaped.step(joint(action, stay))[1] for action in plan) == 20.0 + 9.0 + 3.0 + 5.0


@pytest.mark.parametrize(
    ("layout", "cells"),
    [
        ("asymmetric_advantages", 9 * 5),
        ("coordination_ring", 5 * 5),
        ("forced_coordination", 5 * 5),
        ("counter_circuit", 8 * 5),
    ],
)
def test_layouts_have_their_size_and_last_400_steps(layout, cells):
    env = overcooked(layout)
    space = env.observation_space["agent"]["partner"]["state"]
    assert space.shape == (cells * 26,)
    obs, _ = env.reset(seed=0)
    rng = np.random.default_rng(0)
    for step in range(400):
        obs, _, terminated, truncated, _ = env.step(joint(*rng.integers(6, size=2)))
        assert space.contains(obs["agent"]["partner"]["state"])
        assert (terminated, truncated) == (False, step == 399)
