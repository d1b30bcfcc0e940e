"""Egos that model their partner in the tasks of this package: seats, populations, files, judges."""

import gymnasium
import numpy as np
import pytest

import cadenza
from cadenza.benchmark.policies import EgoSeat, load_policy
from cadenza.learn.nn.portable import SUFFIX, load_policy_file
from cadenza.partners.frozen import NetworkPartner
from cadenza.partners.pool import PartnerPool
from tests.unit.learn.test_api import assert_same

SMALL = {"seed": 0, "rollout_length": 8, "batch_size": 24, "hidden_sizes": (8,), "epochs": 2}
FORAGERS = ("forager_nearest", "forager_farthest")


def learned(agent, steps=144):
    return agent.learn(steps, progress=False)


@pytest.mark.parametrize(
    ("name", "task", "beside"),
    [
        ("LIAM", "foraging", {"partners": FORAGERS}),
        ("E3T", "foraging", {"partners": FORAGERS}),
        ("E3T", "cadenza/Crossing-v1", {}),
    ],
)
def test_an_ego_goes_on_bit_for_bit(name, task, beside, tmp_path):
    def agent():
        return getattr(cadenza, name)(task, num_envs=6, **beside, **SMALL)

    whole = learned(learned(agent()))
    learned(agent()).save(tmp_path / "half")
    assert_same(learned(cadenza.load(tmp_path / "half")), whole)


def test_the_copy_and_the_ego_change_seats_and_nobody_notices():
    envs = gymnasium.make_vec("cadenza/Foraging-v1", 12, partner="forager_nearest")
    asked = []

    def act(seen):
        asked.append(seen.copy())
        return np.arange(12) % 6

    envs.play_partner(act)
    seen, _ = envs.reset(seed=5)
    seats = {}
    for step in range(60):
        agents = envs.unwrapped._observation["agent"]
        own, other = (agents[uid]["state"].copy() for uid in envs.env.agent_uids)
        sits = np.array([np.array_equal(seen[row], own[row]) for row in range(12)])
        swapped = ~sits
        assert np.array_equal(seen[swapped], other[swapped])
        seats[step] = swapped
        seen, _, _, _, info = envs.step(np.full(12, 3))
        assert np.array_equal(asked[-1], np.where(swapped[:, None], own, other))
        assert np.array_equal(info["partner_observation"], asked[-1])
        assert np.array_equal(info["partner_action"], np.arange(12) % 6)
    drawn = np.stack(list(seats.values()))
    assert 0.2 < drawn.mean() < 0.8
    assert (drawn[0] != drawn[-1]).any()  # another draw for another episode


def test_the_copy_moves_the_robot_it_sits_in():
    envs = gymnasium.make_vec("cadenza/Foraging-v1", 8, partner="forager_nearest")
    sent = []
    step = envs.env.step
    envs.env.step = lambda commands: (sent.append(commands), step(commands))[1]
    envs.play_partner(lambda seen: np.full(8, 2))
    envs.reset(seed=1)
    envs.step(np.full(8, 4))
    own, other = (np.ravel(sent[0][uid]) for uid in envs.env.agent_uids)
    swapped = own == 2
    assert 0 < swapped.sum() < 8
    assert np.array_equal(own, np.where(swapped, 2, 4))
    assert np.array_equal(other, np.where(swapped, 4, 2))


@pytest.mark.parametrize("squash", [False, True])
def test_the_copy_keeps_to_the_bounds_of_a_weaker_robot(squash):
    chance = {"random_share": 1.0, "squash_actions": squash}
    envs, did = gymnasium.make_vec("cadenza/Crossing-v1", 4), []
    step = envs.step

    def noted(actions):
        answer = step(actions)
        did.append(answer[-1]["partner_action"])
        return answer

    envs.step = noted
    learned(cadenza.E3T(envs, **chance, **SMALL), 64)
    partner, did = envs.partner_action_space, np.concatenate(did)
    assert partner.high[0] < envs.single_action_space.high[0]
    assert np.abs(did).max() <= partner.high[0]
    assert np.quantile(np.abs(did), 0.5) < 0.7 * partner.high[0]  # uniform, not clipped to bounds


@pytest.mark.parametrize("name", ["LIAM", "E3T"])
def test_files_are_judged_and_frozen_as_they_act_alone(name, tmp_path):
    agent = getattr(cadenza, name)("foraging", num_envs=2, partners=FORAGERS, **SMALL)
    learned(agent, 32).export_policy(tmp_path / "ego")
    network = load_policy_file(tmp_path / f"ego{SUFFIX}")
    seat = EgoSeat(
        uid="ego", observation_dim=15, low=np.zeros(1), high=np.full(1, 5.0), chooses=True
    )
    policy = load_policy(f"local://ego{SUFFIX}", seat=seat, artifacts_root=tmp_path)
    pool = PartnerPool([NetworkPartner(network, "ego")], rows=3)
    rng = np.random.default_rng(0)
    seen, begins = rng.normal(size=(8, 3, 15)).astype(np.float32), np.zeros((8, 3), bool)
    begins[0], begins[3, 1], begins[5, 2] = True, True, True
    state = None
    policy.reset(seed=0)
    for rows, begin in zip(seen, begins, strict=True):
        for row in np.flatnonzero(begin).tolist():
            policy.reset_row(row, seed=0)
            pool.begin([row], [0], [row])
        expected, state = network.predict(rows, state=state, episode_start=begin)
        assert np.array_equal(policy.act_rows(rows)[:, 0], expected)
        observation = {"agent": {"ego": {"state": rows}}}
        assert np.array_equal(pool.act(observation)[:, 0], expected)
