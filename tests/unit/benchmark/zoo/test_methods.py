"""The ideas of the methods, against closed forms."""

import math

import numpy as np
import pytest
import torch

from cadenza.benchmark.zoo.behavior import draw_preferences
from cadenza.benchmark.zoo.brdiv import draw_pairs, pair_weights, reward_factors
from cadenza.benchmark.zoo.build import BODIES, RANGES, scripted_members
from cadenza.benchmark.zoo.config import ZooConfig
from cadenza.benchmark.zoo.events import crossing_events, events_of, push_events
from cadenza.benchmark.zoo.fcp import halfway
from cadenza.benchmark.zoo.mep import mixture_log_density
from cadenza.core.errors import ConfigurationError
from cadenza.learn.agents.ppo import MAPPOConfig
from cadenza.partners import PartnerSpec, load_partner
from tests.zoo_samples import tiny


def test_halfway_is_the_first_evaluation_that_did_half_of_the_way_also_below_zero():
    # R_0 = -100, R_inf = -20 (last 5 % of five evaluations: the last one), half of the way: -60.
    assert halfway([-100.0, -80.0, -60.0, -30.0, -20.0]) == 2
    assert halfway([3.0, 2.0, 1.0]) == 0  # it fell: the start


def test_halfway_of_a_smoothed_curve_ignores_a_lucky_evaluation():
    # Window 2: 0, 5, 5.5, 1, 6, 11, 12, 12; R_inf = 12, half 6. Without it the spike would do.
    curve = [0.0, 10.0, 1.0, 1.0, 11.0, 11.0, 13.0, 11.0]
    assert halfway(curve, window=2) == 4
    assert halfway(curve) == 1


def test_mixture_is_the_mean_of_densities_not_of_log_densities():
    # Standard normals around 0 and 4 at action 0: densities φ(0) and φ(4).
    phi = [math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi) for z in (0.0, 4.0)]
    logs = torch.tensor([[math.log(phi[0])], [math.log(phi[1])]], dtype=torch.float64)
    assert mixture_log_density(logs).item() == pytest.approx(math.log(sum(phi) / 2), abs=1e-12)


@pytest.mark.parametrize("count", [2, 3, 7])
def test_brdiv_weights_give_half_of_a_uniform_draw_to_equal_pairs(count):
    same, other = pair_weights(count)
    assert same * count / count**2 == pytest.approx(0.5)
    assert other * count * (count - 1) / count**2 == pytest.approx(0.5)


def test_brdiv_draws_equal_pairs_half_of_the_time_and_all_pairs():
    labels = draw_pairs(3, 6_000, np.random.default_rng(0))
    # 6 000 draws with p = 1/2: four deviations are 4 * sqrt(6000) / 2 = 155.
    assert abs(int((labels[0] == labels[1]).sum()) - 3_000) < 155
    assert len(set(map(tuple, labels.T.tolist()))) == 9


def test_brdiv_factors_sum_up_to_the_objective():
    # SP = 3 and XP = 2 with beta 1, both kinds equally often: ((1 + 2) 3 - 2 * 2) / 2, which is
    # half of SP (1 + 2 beta) - beta (XP_ij + XP_ji).
    labels = np.array([[0, 0], [0, 1]])
    returns = np.array([3.0, 2.0])
    assert (reward_factors(labels, 1.0) * returns).mean() == pytest.approx(
        0.5 * (3.0 * 3.0 - (2.0 + 2.0))
    )


def test_preferences_differ_are_not_all_zero_and_are_limited():
    weights = draw_preferences((0.0, 1.0), 2, 3, seed=1)
    assert sorted(map(tuple, weights.tolist())) == [(0.0, 1.0), (1.0, 0.0), (1.0, 1.0)]
    with pytest.raises(ConfigurationError, match="at most 3 behavior-preferring"):
        draw_preferences((0.0, 1.0), 2, 4, seed=1)


def crossing_states(ego, partner):
    """States of position, velocity and goal, each (2,), of both robots, in one environment."""
    rows = []
    for own, other in ((ego, partner), (partner, ego)):
        (p, v, g), (q, w, _) = (np.array(robot, dtype=float) for robot in (own, other))
        rows.append([np.concatenate((p, v, g - p, q - p, w - v))])
    return np.array(rows, dtype=np.float32)


@pytest.mark.parametrize(("side", "passes"), [(1.0, [1.0, 0.0]), (-1.0, [0.0, 1.0])])
def test_partner_passes_on_the_side_away_from_the_ego(side, passes):
    # The partner drives along +x, the ego along -x at y = 0; at y = 1 it has the ego on its right.
    def at(x):
        return crossing_states(
            ([-x, 0.0], [-1.0, 0.0], [-2.0, 0.0]), ([x, side], [1.0, 0.0], [2.0, side])
        )

    waits, yields, *passed, arrives = crossing_events(at(-0.05), (), at(0.05))[0]
    assert (waits, yields, passed, arrives) == (0.0, 0.0, passes, 0.0)
    assert crossing_events(at(0.05), (), at(0.15))[0].sum() == 0.0  # once only


def test_partner_that_brakes_before_the_ego_yields_and_then_waits():
    def states(speed):
        return crossing_states(
            ([-1.0, 0.0], [1.0, 0.0], [2.0, 0.0]), ([0.5, 0.0], [-speed, 0.0], [-2.0, 0.0])
        )

    assert crossing_events(states(0.5), (), states(0.3))[0, :2] == pytest.approx([0.0, 0.05])
    assert crossing_events(states(0.1), (), states(0.05))[0, :2] == pytest.approx([0.05, 0.05])


def test_push_partner_covers_the_landmark_it_is_near():
    after = np.zeros((2, 1, 10), dtype=np.float32)
    after[1, 0, 2:] = [1.0, 0.0, 0.1, 0.1, 0.5, 0.5, 0.2, 0.2]
    assert push_events(after, (), after)[0] == pytest.approx([0.1, 0.0, 0.0, 0.1])


def test_task_without_events_of_its_own_has_effort_and_rests():
    events = events_of("some_other_task")
    counted = events.count(np.zeros(0), (np.zeros((2, 2)), np.array([[0.5, -1.0], [0, 0]])), [])
    assert counted.tolist() == [[1.5, 0.0], [0.0, 1.0]]


def test_scripted_family_repeats_and_keeps_to_its_ranges():
    config = tiny("scripted", population=8, task="crossing")
    members = scripted_members(config)
    assert members == scripted_members(config)
    assert [m.class_name for m in members].count("crossing_stationary") == 1
    speeds = [float(m.options["max_speed"]) for m in members if "position_gain" in m.options]
    assert len(speeds) == len(set(speeds)) >= 2
    assert all(0.4 <= speed <= 1.6 for speed in speeds)


@pytest.mark.parametrize("task", sorted(set(RANGES) - {"foraging"}))  # foragers choose
def test_physical_family_puts_the_same_partners_on_bodies_that_differ(task):
    members = scripted_members(tiny("physical", population=8, task=task))
    assert [m.options["partner"] for m in members[: len(RANGES[task])]] == list(RANGES[task])
    bodies = {tuple(m.options[key] for key in BODIES) for m in members}
    assert len(bodies) == 8
    for member in members:
        options = {"uid": "partner", **member.options}
        load_partner(PartnerSpec(member.class_name, 0, extra=options))
        assert 0 <= int(member.options["delay_steps"]) <= 5
        assert 0.5 <= float(member.options["reach"]) <= 1.0


def test_foraging_has_a_budget_of_its_own_unless_another_is_given():
    assert [ZooConfig(method="fcp", task=t).steps for t in ("foraging", "crossing")] == [
        1_000_000,
        300_000,
    ]
    assert ZooConfig(method="fcp", task="foraging").ppo.gamma == 0.99
    given = ZooConfig(method="fcp", task="foraging", steps=5_000)
    assert ZooConfig.model_validate(given.model_dump()).steps == 5_000


def test_squashed_actions_are_refused():
    ppo = MAPPOConfig(squash_actions=True)
    with pytest.raises(ConfigurationError, match=r"squash_actions: expected False, got True"):
        ZooConfig(method="fcp", task="crossing", ppo=ppo)
