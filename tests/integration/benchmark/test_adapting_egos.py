"""Egos that model their partner in the tasks of this package: seats, populations, files, judges."""

import gymnasium
import numpy as np
import pytest

import cadenza
from cadenza.benchmark.policies import EgoSeat, load_policy
from cadenza.learn.nn.portable import SUFFIX, load_policy_file
from cadenza.partners.pool import PartnerPool
from tests.partner_makers import MemoryPartner
from tests.unit.learn.test_api import assert_same

SMALL = {"seed": 0, "rollout_length": 8, "batch_size": 24, "hidden_sizes": (8,), "epochs": 2}
FORAGERS = ("forager_nearest", "forager_farthest")


def learned(agent, steps=144):
    return agent.learn(steps, progress=False)


@pytest.mark.parametrize(
    ("name", "task", "beside"),
    [
        ("LIAM", "foraging", {"partners": FORAGERS}),
        ("E3T", "foraging", {}),
        ("E3T", "cadenza/Crossing-v1", {}),
    ],
)
def test_an_ego_goes_on_bit_for_bit(name, task, beside, tmp_path):
    def agent():
        return getattr(cadenza, name)(task, num_envs=6, **beside, **SMALL)

    whole = learned(learned(agent()))
    learned(agent()).save(tmp_path / "half")
    assert_same(learned(cadenza.load(tmp_path / "half")), whole)


class Constant:
    """Plays the partner's seat: one action in each row."""

    def __init__(self, moves):
        self.moves, self.seen = np.asarray(moves, np.float32)[:, None], []

    def begin(self, rows, episodes):
        pass

    def act(self, states):
        self.seen.append(states.copy())
        return self.moves

    def end(self, rows, scores):
        pass


def test_the_copy_and_the_ego_change_seats_and_nobody_notices():
    envs = gymnasium.make_vec("cadenza/Foraging-v1", 12, partner="open")
    partner, sent = Constant(np.arange(12) % 6), []
    envs.seat_partner(partner)
    step = envs._env.step
    envs._env.step = lambda commands: (sent.append(commands), step(commands))[1]
    seen, _ = envs.reset(seed=5)
    drawn = []
    for _ in range(60):
        agents = envs._seen["agent"]
        own, other = (agents[uid]["state"].copy() for uid in ("ego", "partner"))
        swapped = np.array([not np.array_equal(seen[row], own[row]) for row in range(12)])
        assert np.array_equal(seen[swapped], other[swapped])
        drawn.append(swapped)
        seen, _, ended, cut, info = envs.step(np.full(12, 3))
        assert np.array_equal(partner.seen[-1], np.where(swapped[:, None], own, other))
        assert np.array_equal(info["partner_observation"], partner.seen[-1])
        assert np.array_equal(info["partner_action"], np.arange(12) % 6)
        moved = np.where(swapped, np.arange(12) % 6, 3)
        assert np.array_equal(np.ravel(sent[-1]["ego"]), moved)
        if (ended | cut).any():
            assert not np.array_equal(info["final_obs"], seen)
    assert 0.2 < np.mean(drawn) < 0.8
    assert (drawn[0] != drawn[-1]).any()  # another draw for another episode


@pytest.mark.parametrize("squash", [False, True])
def test_the_copy_keeps_to_the_bounds_of_a_weaker_robot(squash):
    chance = {"random_share": 1.0, "squash_actions": squash}
    envs, did = gymnasium.make_vec("cadenza/Crossing-v1", 4, partner="open"), []
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


@pytest.mark.parametrize(("name", "beside"), [("LIAM", {"partners": FORAGERS}), ("E3T", {})])
def test_files_are_judged_and_frozen_as_they_act_alone(name, beside, tmp_path):
    agent = getattr(cadenza, name)("foraging", num_envs=2, **beside, **SMALL)
    learned(agent, 32).export_policy(tmp_path / "ego")
    network = load_policy_file(tmp_path / f"ego{SUFFIX}")
    seat = EgoSeat(
        uid="ego", observation_dim=15, low=np.zeros(1), high=np.full(1, 5.0), chooses=True
    )
    policy = load_policy(f"local://ego{SUFFIX}", seat=seat, artifacts_root=tmp_path)
    pool = PartnerPool([MemoryPartner(network, "ego")], rows=3)
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
