"""Level-based foraging and Overcooked as tasks, beside their packages."""

import gymnasium as gym
import numpy as np
import pytest

from cadenza.aht.config_models import EnvConfig, PartnerConfig
from cadenza.benchmark.builders import build_env, build_partner
from cadenza.core.seeding import derive_substream


def foraging(**options):
    pytest.importorskip("lbforaging", reason="needs the extra teamwork")
    return build_env(EnvConfig(task="foraging", options=options), root_seed=0)


def overcooked(layout, **options):
    pytest.importorskip("overcooked.mdp", reason="needs the package overcooked")
    task = EnvConfig(task=f"overcooked_{layout}", episode_length=400, options=options)
    return build_env(task, root_seed=0)


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
    """Onions at (0, 1), pot at (2, 0), dishes at (1, 3), service at (3, 3); the cook begins at (1, 2)."""
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
