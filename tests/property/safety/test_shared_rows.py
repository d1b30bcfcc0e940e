"""Two agents that run the filter against each other, each with its share of the row.

Both drive at the other with all they have. An agent of capacity k accelerates by k / 2 times its
action, whose components reach 2; capacities differ up to tenfold.
"""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.safety.budget_split import (
    ProportionalBudgetSplit,
    RelativeDegreeAwareBudgetSplit,
    delivered_fractions,
    shared_authority,
)
from cadenza.safety.cbf import PairParameters, row_level
from cadenza.safety.cbf_qp import ExpCBFQP
from cadenza.safety.contracts import Bounds, SafetyState
from cadenza.safety.control_models import JacobianControlModel
from tests.campaigns import size
from tests.unit.safety.scenes import CONTACT, safe_duel

LINF = 2.0
BOUNDS = Bounds(LINF, LINF, 1.0, 0.0, 0.0)
PAIR = ("ego", "p1")


@dataclass(frozen=True)
class Team:
    """Capacities of both agents, and the strategies their filters use."""

    capacities: tuple[float, float]
    strategies: tuple[object, object]

    @property
    def alpha(self):
        return shared_authority(self.strategies[0], *self.capacities)[0]

    def filters(self, dim):
        models = {
            uid: JacobianControlModel(
                uid,
                dim,
                dim,
                lambda _, k=capacity: 0.5 * k * np.eye(dim),
                max_cartesian_accel_value=capacity,
            )
            for uid, capacity in zip(PAIR, self.capacities, strict=True)
        }
        return [
            ExpCBFQP.ego_only(control_models=models, budget_split=split)
            for split in self.strategies
        ]


def proportional(*capacities):
    return Team(capacities, (ProportionalBudgetSplit(), ProportionalBudgetSplit()))


TEAMS = [
    proportional(2.0, 2.0),
    proportional(2.0, 0.2),
    proportional(0.3, 1.5),
    Team((2.0, 1.0), (RelativeDegreeAwareBudgetSplit(2, 3), RelativeDegreeAwareBudgetSplit(3, 2))),
]


def charge(rng, duel, sign):
    """Drive at the other with the whole box, or wander."""
    if rng.random() < 0.2:
        return rng.uniform(-LINF, LINF, size=len(duel.positions[0]))
    aim = sign * np.array(duel.toward_ego())
    return LINF * aim / np.abs(aim).max()


def meet(team, *, dim, dt, plant, episodes, steps=60):
    """Return the smallest distance, and the steps that were infeasible, uncertified or active."""
    rng = np.random.default_rng(4)
    filters = team.filters(dim)
    nearest, infeasible, uncertified, active = math.inf, 0, 0, 0
    for _ in range(episodes):
        duel = safe_duel(rng, dim, dt, plant, team.alpha)
        for _ in range(steps):
            agents = duel.snapshots()
            actions = []
            for uid, other, guard, sign in zip(PAIR, PAIR[::-1], filters, (-1, 1), strict=True):
                action, info = guard.filter(
                    charge(rng, duel, sign),
                    {"agent_states": agents},
                    SafetyState({PAIR: 0.0}),
                    BOUNDS,
                    ego_uid=uid,
                    partner_predicted_states={other: agents[other]},
                    dt=dt,
                )
                own, _ = delivered_fractions(team.strategies[PAIR.index(uid)])
                scale = 0.5 * own * team.capacities[PAIR.index(uid)]
                actions.append((scale * action).tolist())
                infeasible += info["status"] == "infeasible"
                uncertified += info["uncertified"]
                active += info["status"] == "optimal"
            nearest = min(nearest, duel.step(actions))
    return nearest, infeasible, uncertified, active


@pytest.mark.parametrize("plant", ["zoh", "semi_implicit"])
@pytest.mark.parametrize("team", TEAMS, ids=["equal", "tenfold", "weak-first", "ramping"])
def test_two_agents_that_share_their_row_stay_apart_and_are_never_stuck(team, plant):
    for dim, dt in ((2, 0.05), (3, 0.1)):
        nearest, infeasible, uncertified, active = meet(
            team, dim=dim, dt=dt, plant=plant, episodes=12
        )
        assert nearest >= CONTACT - 1e-9
        assert infeasible == 0
        # What a ramp delivers on average is right, not where it moves the ball meanwhile.
        ramps = isinstance(team.strategies[0], RelativeDegreeAwareBudgetSplit)
        assert (uncertified > 0) is ramps
        assert active > 100


@settings(max_examples=size(100, 300), deadline=None)
@given(
    alphas=st.tuples(st.floats(0.05, 10.0), st.floats(0.05, 10.0)),
    degrees=st.tuples(st.integers(2, 4), st.integers(2, 4)),
    e=st.floats(0.0, 3.0),
    speed_share=st.floats(-1.0, 1.0),
    dt=st.sampled_from([0.1, 0.05, 0.005]),
    plant=st.sampled_from(["zoh", "semi_implicit"]),
)
def test_every_share_is_within_the_agents_own_authority(alphas, degrees, e, speed_share, dt, plant):
    alpha_i, alpha_j = alphas
    strategy = RelativeDegreeAwareBudgetSplit(*degrees)
    alpha, beta_i = shared_authority(strategy, alpha_i, alpha_j)
    alpha_other, beta_j = shared_authority(
        RelativeDegreeAwareBudgetSplit(*degrees[::-1]), alpha_j, alpha_i
    )
    own, other = delivered_fractions(strategy)
    assert alpha_other == pytest.approx(alpha)
    assert own * beta_i + other * beta_j == pytest.approx(1.0)
    assert alpha <= alpha_i + alpha_j + 1e-12
    pair = PairParameters(
        alpha=alpha, partner_accel=0.0, relative_accel=0.0, dt=dt, gamma=5.0, plant=plant
    )
    boundary = 0.5 * (-alpha * dt + math.sqrt((alpha * dt) ** 2 + 8.0 * alpha * e))
    level, _ = row_level(CONTACT + e, CONTACT, speed_share * boundary, 0.0, pair)
    assert beta_i * level >= -alpha_i - 1e-9
    assert beta_j * level >= -alpha_j - 1e-9
