"""L-BRDiv and CoMeDi: their weights in closed form, and small games that only they solve."""

import logging

import numpy as np
import pytest
import torch

from cadenza.benchmark.zoo.brdiv import reward_factors
from cadenza.benchmark.zoo.comedi import DiverseMembers
from cadenza.benchmark.zoo.config import ZooConfig
from cadenza.benchmark.zoo.lbrdiv import (
    MULTIPLIER_CAP,
    LagrangianConfederates,
    Multipliers,
    is_same_convention,
)
from cadenza.benchmark.zoo.pairs import PairEnv
from cadenza.core.device import single_torch_thread
from cadenza.core.errors import ConfigurationError
from cadenza.learn.agents.ppo import MAPPOConfig
from cadenza.learn.stacked.ppo import surrogate_terms
from tests.campaigns import size
from tests.pair_games import PairGame, matching


@pytest.fixture(autouse=True)
def _one_thread():
    with single_torch_thread():
        yield


def ppo(**changes):
    settings = {
        "rollout_length": 1,
        "batch_size": 42,
        "epochs": 2,
        "learning_rate": 0.02,
        "hidden_sizes": (16,),
        "clip_epsilon": 0.1,
        "entropy_coefficient": 0.01,
        "max_gradient_norm": 1.0,
    }
    return MAPPOConfig(**{**settings, **changes})


def test_without_constraints_pairs_weigh_as_plain_self_play():
    multipliers = Multipliers.first(3)
    assert multipliers.pair_weights() == pytest.approx(1.5 * np.eye(3))
    assert multipliers.bonuses() == pytest.approx([0.5, 0.5, 0.5])


def test_equal_multipliers_weigh_two_members_as_brdiv_does():
    beta = 0.7
    both = np.where(np.eye(2) > 0, 0.5, beta)
    labels = np.indices((2, 2)).reshape(2, -1)
    expected = reward_factors(labels, beta).reshape(2, 2)
    assert Multipliers(both, both).pair_weights() == pytest.approx(expected)


def test_weights_are_those_of_the_lagrangian():
    rng = np.random.default_rng(0)
    v, h = (np.where(np.eye(3) > 0, 0.5, rng.random((3, 3))) for _ in range(2))
    returns = rng.random((3, 3))
    # sum_i R_ii + sum_{i != j} v_ij (R_ii - R_ji) + h_ij (R_ii - R_ij), by its definition.
    apart = [(i, j) for i in range(3) for j in range(3) if i != j]
    wanted = returns.trace() + sum(
        v[i, j] * (returns[i, i] - returns[j, i]) + h[i, j] * (returns[i, i] - returns[i, j])
        for i, j in apart
    )
    weights = Multipliers(v, h).pair_weights()
    same = (np.diag(weights) * np.diag(returns)).sum() / 1.5
    other = sum(weights[i, j] * returns[i, j] for i, j in apart) / 0.75
    assert same + other == pytest.approx(wanted)


def test_multipliers_rise_with_what_is_violated_and_stop_at_zero_and_at_the_cap():
    tolerance, rate = 0.1, 0.5
    slack = Multipliers(np.full((2, 2), -2.0 * tolerance), np.full((2, 2), 3.0))
    moved = Multipliers.first(2).moved(slack, rate)
    assert moved.v == pytest.approx(np.array([[0.5, 0.1], [0.1, 0.5]]))
    assert moved.h == pytest.approx(0.5 * np.eye(2))
    for _ in range(200):
        moved = moved.moved(slack, rate)
    assert moved.v[0, 1] == MULTIPLIER_CAP


def test_members_share_a_convention_where_others_do_as_well_with_theirs():
    returns = np.array([[1.0, 0.0, 0.95], [0.0, 0.8, 0.0], [0.2, 0.0, 1.0]])
    assert is_same_convention(returns, 0, 2, 0.1)
    assert not is_same_convention(returns, 0, 1, 0.1)


def test_every_pair_needs_equally_many_copies():
    with pytest.raises(ConfigurationError, match="multiple of 9 = population²"):
        ZooConfig(method="lbrdiv", task="crossing", population=3, num_envs=32)


def confederates(seed, updates, **changes):
    """Three pairs that have played a game of three equal conventions."""
    settings = {
        "population": 3,
        "num_envs": 126,
        "steps": 42 * updates,
        "multiplier_rate": 0.1,
        "ppo": ppo(),
    }
    config = ZooConfig(method="lbrdiv", task="foraging", seed=seed, **{**settings, **changes})
    population = LagrangianConfederates(config, PairEnv(PairGame(126, matching(1, 1, 1))), ["l"])
    for iteration in range(updates):
        population.iterate(iteration)
    return population


def test_restarts_part_members_that_multipliers_alone_do_not():
    alone = confederates(0, 75)
    clash = [(0, 1), (0, 2), (1, 2)]
    shared = [pair for pair in clash if is_same_convention(alone.returns, *pair, 0.1)]
    pushed = alone.multipliers.v + alone.multipliers.h
    for i, j in clash:  # what is violated weighs, what holds does not
        assert (pushed[i, j] > 0.5) == ((i, j) in shared)
    assert shared
    restarted = confederates(0, 75, restart=15)
    assert np.diag(restarted.returns).min() > 0.5
    assert (restarted.returns - np.diag(np.diag(restarted.returns))).max() < 0.15
    assert restarted.report()["violated"] == 0.0
    assert alone.report()["violated"] == pytest.approx(len(shared) * 4 / 12)


def test_tolerance_out_of_reach_is_warned_of_once(caplog):
    with caplog.at_level(logging.WARNING):
        confederates(1, 12, tolerance=50.0, multiplier_rate=0.5)
    assert [record.message.count("cap of 10") for record in caplog.records] == [1]


@pytest.mark.parametrize(("weight", "follows"), [(1.0, (False, True)), (-1.0, (True, False))])
def test_sign_of_a_weight_stands_inside_the_clipped_surrogate(weight, follows):
    # Advantage 1 before the weight, ratios 1 + 2 eps and 1 - 2 eps: what the sign asks for and
    # what clipping lets through. Outside the sign, both signs would follow the same ratio.
    old = torch.zeros(1, 2)
    ratios = torch.tensor([[1.4, 0.6]]).log()
    slope = surrogate_terms(ratios, old, weight * torch.ones(1, 2), 0.2).slope[0]
    assert [bool(each) for each in slope] == list(follows)


def work(first, second):
    """Pay where both work: whoever loses beside another spoils what it could have done."""
    return 1.0 * ((first == 0) & (second == 0))


def diverse(seed, pay, **changes):
    """Two members of a game with a free signal before the paid choice."""
    settings = {"batch_size": 160, "epochs": 4, "learning_rate": 0.01, "clip_epsilon": 0.2}
    config = ZooConfig(
        method="comedi",
        task="foraging",
        episode_length=2,
        population=2,
        num_envs=64,
        steps=4 * 64 * 2 * 40,
        seed=seed,
        ppo=ppo(rollout_length=2, gamma=1.0, **settings),
        **changes,
    )
    population = DiverseMembers(config, PairEnv(PairGame(64, pay, actions=2, steps=2)), ["c"])
    for iteration in range(population.iterations):
        population.iterate(iteration)
    return population


def paid(population, pay, second, signaller=None):
    """Return what member 1 gets beside ``second``, whose signal may be given by ``signaller``."""
    env = PairEnv(PairGame(400, pay, actions=2, steps=2))
    states, total = env.reset(0), 0.0
    for t in range(2):
        drivers = (1, second if t or signaller is None else signaller)
        acted = []
        for robot, member in enumerate(drivers):
            learner, marks = population.learners[member], np.tile(np.eye(2)[robot], (400, 1))
            rows = np.concatenate((states[robot], marks), axis=1)[None].astype(np.float32)
            noise = learner.draw_noise(1, 400, seed=10 * t + robot)[0]
            acted.append(env.scaled(robot, learner.act(rows, noise=noise)[0]))
        step = env.step(acted)
        total, states = total + step.rewards.mean(), step.states
    return total


def test_second_member_finds_the_other_convention():
    pay, apart = matching(1, 1), 0
    for seed in size((1, 2), (1, 2, 3)):
        population = diverse(seed, pay)
        assert paid(population, pay, 1) > 0.95
        apart += paid(population, pay, 0) < 0.05
        assert population.report()["chosen"] == [[], [40]]
    assert apart >= 2  # a member that fell on the first one's convention early may stay there


def test_mixed_play_keeps_the_second_member_from_sabotage():
    faithful = diverse(0, work)
    assert paid(faithful, work, 1) > 0.95
    assert paid(faithful, work, 1, signaller=0) > 0.95
    spoiled = diverse(0, work, cross_weight=1.0, mixed_weight=0.0)
    assert paid(spoiled, work, 1) > 0.95
    assert paid(spoiled, work, 1, signaller=0) < 0.6
