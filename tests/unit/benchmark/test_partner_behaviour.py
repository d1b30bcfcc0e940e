"""The crossing partners do in the real environment what their names say."""

from dataclasses import dataclass

import numpy as np
import pytest

from cadenza.aht.config import EnvConfig, PartnerConfig
from cadenza.benchmark.builders import build_env, build_partner
from cadenza.benchmark.tasks import CROSSING

EPISODES = range(20)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One episode: how it ended, and the partner's track."""

    contact: bool
    goal_distance: np.ndarray
    speed: np.ndarray
    action: np.ndarray
    position: np.ndarray


def episode(name, seed, *, ego_moves):
    """The partner beside an ego that drives straight home, or that stands still."""
    config = EnvConfig(task="crossing", episode_length=CROSSING.episode_length)
    env = build_env(config, root_seed=0)
    partner = build_partner(PartnerConfig(class_name=name), env=env)
    obs, _ = env.reset(seed=seed)
    partner.reset(seed=seed)
    states, actions, ended = [], [], False
    info = {}
    while not ended:
        ego, state = (obs["agent"][uid]["state"] for uid in ("ego", "partner"))
        pull = (ego[4:6] - 2.0 * ego[2:4]) * ego_moves
        actions.append(partner.act(obs))
        states.append(state)
        obs, _, terminated, truncated, info = env.step({"ego": pull, "partner": actions[-1]})
        ended = terminated or truncated
    states = np.array(states)
    return Run(
        contact=info["contact"],
        goal_distance=np.linalg.norm(states[:, 4:6], axis=1),
        speed=np.linalg.norm(states[:, 2:4], axis=1),
        action=np.array(actions),
        position=states[:, :2],
    )


def contacts(name, *, ego_moves=True):
    return sum(episode(name, seed, ego_moves=ego_moves).contact for seed in EPISODES)


def test_chaser_hits_a_naive_ego_and_even_a_resting_one_in_every_episode():
    assert contacts("crossing_chaser") == len(EPISODES)
    assert contacts("crossing_chaser", ego_moves=False) == len(EPISODES)


def test_stationary_partner_stands_still_and_in_nobodys_way():
    runs = [episode("crossing_stationary", seed, ego_moves=True) for seed in EPISODES]
    assert not any(run.contact for run in runs)
    assert max(run.speed.max() for run in runs) == 0.0


def test_wanderer_does_not_hunt_but_moves_about_within_the_arena():
    runs = [episode("crossing_wanderer", seed, ego_moves=True) for seed in EPISODES]
    assert sum(run.contact for run in runs) < len(EPISODES) / 2
    assert np.mean([run.speed.max() for run in runs]) > 0.3
    assert max(np.abs(run.position).max() for run in runs) <= 2.5 + 1e-6


@pytest.mark.parametrize("name", ["crossing_goal_seeker", "crossing_late_braker"])
def test_goal_directed_partner_arrives_and_stops_when_the_ego_stays_away(name):
    runs = [episode(name, seed, ego_moves=False) for seed in EPISODES]
    assert not any(run.contact for run in runs)
    assert max(run.goal_distance[-1] for run in runs) < 0.05
    assert max(run.speed[-1] for run in runs) < 0.05


@pytest.mark.parametrize("name", ["crossing_goal_seeker", "crossing_late_braker"])
def test_goal_directed_partner_meets_a_naive_ego_in_the_middle(name):
    assert contacts(name) > len(EPISODES) / 2


def test_late_braker_is_fastest_half_way_and_outruns_the_goal_seeker():
    # Time-optimal motion from rest to rest over 4 m with one bound peaks half way, at 2 m.
    for seed in EPISODES:
        late = episode("crossing_late_braker", seed, ego_moves=False)
        peak = int(late.speed.argmax())
        assert late.goal_distance[peak] == pytest.approx(2.0, abs=0.1)
        steady = episode("crossing_goal_seeker", seed, ego_moves=False)
        assert steady.speed.max() < 1.01 < late.speed.max()
