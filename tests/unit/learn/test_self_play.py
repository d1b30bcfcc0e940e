"""Egos beside copies of themselves: UPD's candidates, CEC's environments, and the open seat."""

import itertools

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import cadenza
from cadenza.core.errors import ConfigurationError
from cadenza.core.payloads import serialise
from cadenza.learn.agents.cec import CEC
from cadenza.learn.agents.upd import UPD, BiasedCopies, UPDConfig
from tests.unit.learn.open_games import LABELS, Labels, cross_play

SMALL = {"rollout_length": 8, "batch_size": 16, "epochs": 2, "memory_size": 8, "hidden_sizes": (8,)}
PLAIN = {"memory": None, "hidden_sizes": (32,), "rollout_length": 16, "batch_size": 64}
#: Learns `Labels` in 30 updates.
QUICK = {**PLAIN, "epochs": 4, "learning_rate": 5e-3, "entropy_coefficient": 0.03}


def candidates(space=None, *, rows=8, network=True, **settings):
    space = space or spaces.Discrete(LABELS)
    draws = np.random.default_rng(5)
    player = BiasedCopies(UPDConfig(**settings), rows, space, seed=0, draws=draws)
    if network:
        player.add(UPD(Labels(rows, family=True), **SMALL).networks()[""])
    return player


def test_candidates_of_success_half_are_drawn_most():
    player, rng = candidates(network=False, candidates=3), np.random.default_rng(0)
    drawn = []
    for _ in range(200):
        player.begin(range(8), range(8))
        drawn += player.chosen.tolist()
        success = np.where(player.chosen == 1, rng.random(8) < 0.5, player.chosen == 2)
        player.end(range(8), success.astype(float).tolist())
    np.testing.assert_allclose(player.sampler.probabilities[[0, 2]], 0.2 / 3)
    shares = np.bincount(drawn[800:], minlength=3) / 800
    assert shares[1] > 0.8
    assert min(shares[0], shares[2]) > 0.03  # no score goes stale


def test_a_share_of_choices_follows_the_bias_of_the_candidate_alone():
    player = candidates(candidates=2, concentration=0.3, rows=400)
    player.begin(range(400), range(400))
    seen = np.tile(np.eye(LABELS, dtype=np.float32), (100, 1))
    for epsilon in (0.0, 1.0):
        player.epsilon[:] = epsilon
        acts = np.stack([player.act(seen)[:, 0] for _ in range(60)]).astype(int)
        for candidate in range(2):
            told = acts[:, player.chosen == candidate]
            shares = np.bincount(told.ravel(), minlength=LABELS) / told.size
            distance = np.abs(shares - player.bias[candidate]).max()
            assert distance < 0.02 if epsilon else distance > 0.05


def test_random_numbers_keep_their_bias_and_change_slowly_within_the_box():
    box = spaces.Box(np.array([-0.5, 0.0], np.float32), np.array([0.5, 4.0], np.float32))
    player = candidates(box, network=False, candidates=4, rows=64, noise=0.1, noise_memory=0.9)
    player.begin(range(64), range(64))
    acts = np.stack([player._random() for _ in range(400)])  # no copy plays here
    assert (acts >= box.low).all()
    assert (acts <= box.high).all()
    middle, half = (box.high + box.low) / 2, (box.high - box.low) / 2
    unit = (acts - middle) / half
    wanted = np.clip(player.bias[player.chosen], -0.7, 0.7)  # where clipping hardly counts
    inside = np.abs(player.bias[player.chosen]) < 0.7
    np.testing.assert_allclose(unit.mean(axis=0)[inside], wanted[inside], atol=0.12)
    own = (unit - unit.mean(axis=0))[:, inside]
    correlation = (own[1:] * own[:-1]).mean() / (own * own).mean()
    assert 0.8 < correlation < 0.95


def test_a_copy_is_frozen_until_the_episode_ends_and_the_oldest_go():
    agent = UPD(Labels(4, family=True), seed=1, copies=2, copy_every=1, candidates=4, **SMALL)
    player = agent.partner
    player.ages[:] = 0
    agent.learn(4 * 8, progress=False)  # one update, after two whole episodes
    first = player.state_dict()
    playing = set(first["playing"])
    for _ in range(3):
        player.add(agent.networks()[""])
    kept = {number for number, _ in player.state_dict()["copies"]}
    assert playing <= kept
    assert kept - playing == {player._made - 1, player._made - 2}
    player.begin(range(4), range(4))
    assert set(player.state_dict()["playing"]) == {player._made - 1}


@pytest.mark.parametrize("kind", [UPD, CEC])
def test_the_first_pass_has_the_probabilities_of_the_rollout(kind):
    one = {**SMALL, "epochs": 1, "batch_size": 4 * 64, "rollout_length": 64}
    agent = kind(Labels(4, family=True), seed=2, **one).learn(4 * 64, progress=False)
    logs = agent.scalar_logs
    assert logs["training/approx_kl"] < 1e-10
    assert logs["training/clip_fraction"] == 0.0


def test_only_the_egos_rows_are_learned_from():
    world = Labels(4, family=True)
    agent = CEC(world, seed=2, **SMALL)
    agent.begin(4 * 8)
    mine = []
    while not agent.due:
        agent.step()
        mine.append(agent.batch().actions[agent.batch().length - 1].copy())
    others = np.stack(world.partner_actions)[..., 0]
    assert agent.batch_rows == agent.steps == 32
    np.testing.assert_array_equal(agent.batch().actions, mine)
    assert (others != mine).any()


def test_options_that_no_environment_reads_are_refused():
    with pytest.raises(ConfigurationError, match=r"CEC: ranges: expected \{\} for envir"):
        CEC(Labels(4, family=True), ranges={"levels": (1, 2)}, **SMALL)
    with pytest.raises(ConfigurationError, match=r"CEC: layouts: expected \{\} without"):
        CEC("mpe_cooperative_push", layouts={"hard": {"levels": (2, 2)}}, **SMALL)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (UPD, {"candidates": 6, "copy_every": 2, "copies": 2}),
        (CEC, {"ranges": {"levels": (1, 2), "coop": (0, 1)}}),
    ],
)
def test_a_saved_agent_goes_on_bit_for_bit_within_episodes(kind, settings, tmp_path):
    pytest.importorskip("lbforaging")
    keywords = {"num_envs": 3, "seed": 4, **SMALL, **settings}
    whole = kind("cadenza/Foraging-v1", **keywords).learn(480, progress=False)
    half = kind("cadenza/Foraging-v1", **keywords).learn(240, progress=False)
    half.save(tmp_path / "half")
    again = cadenza.load(tmp_path / "half").learn(240, progress=False)
    assert serialise(again.state_dict()) == serialise(whole.state_dict())


def test_seeds_that_trained_in_many_games_play_with_each_other_others_by_chance():
    def agents(family, seeds):
        world = Labels
        return [
            CEC(world(16, family=family), seed=seed, **QUICK).learn(256 * 30, progress=False)
            for seed in seeds
        ]

    many, one = agents(True, range(2)), agents(False, range(3))
    assert min(cross_play(a, b, family=True) for a in many for b in many) > 0.95
    assert min(cross_play(each, each, family=False) for each in one) > 0.95
    met = [cross_play(a, b, family=False) for a, b in itertools.combinations(one, 2)]
    assert np.mean(met) < 0.5  # by chance 0.25


def test_upd_learns_the_game_of_worths():
    settings = {**QUICK, "candidates": 8, "copy_every": 2}
    agent = UPD(Labels(16, family=True), seed=0, **settings).learn(256 * 40, progress=False)
    assert cross_play(agent, agent, family=True) > 0.95


@pytest.mark.parametrize("env", ["CartPole-v1", lambda: gymnasium.make("CartPole-v1")])
def test_environments_without_an_open_seat_are_refused(env):
    with pytest.raises(ConfigurationError, match=r"that (can )?leaves? .*seat open"):
        UPD(env, **SMALL).learn(8, progress=False)


def test_e3t_takes_the_open_seat_of_a_task_and_goes_on_bit_for_bit(tmp_path):
    pytest.importorskip("lbforaging")

    def worlds():
        return gymnasium.make_vec("cadenza/Foraging-v1", num_envs=3, partner="open")

    small = {"rollout_length": 8, "epochs": 1, "batch_size": 12, "hidden_sizes": (8,)}
    whole, half = (
        cadenza.E3T(worlds(), seed=4, **small).learn(steps, progress=False) for steps in (480, 240)
    )
    again = cadenza.load(half.save(tmp_path / "half"), worlds()).learn(240, progress=False)
    assert serialise(again.state_dict()["learned"]) == serialise(whole.state_dict()["learned"])


def test_settings_for_other_actions_are_refused():
    with pytest.raises(ConfigurationError, match=r"noise: expected 0\.3 for choices, got 0\.5"):
        UPD(Labels(4, family=True), noise=0.5, **SMALL)
    with pytest.raises(ConfigurationError, match=r"concentration: expected 0\.5 for numbers"):
        UPD("cadenza/Crossing-v1", num_envs=2, concentration=0.1, **SMALL)


def test_scores_that_could_not_count_are_refused():
    with pytest.raises(ConfigurationError, match="remembered_scores"):
        UPDConfig(remembered_scores=4)
