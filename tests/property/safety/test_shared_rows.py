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

from cadenza.safety.bounds import Bounds
from cadenza.safety.budget_split import (
    ProportionalBudgetSplit,
    RelativeDegreeAwareBudgetSplit,
    delivered_fractions,
    shared_authority,
)
from cadenza.safety.cbf_qp import ExpCBFQP
from cadenza.safety.filters import ego_constants
from cadenza.safety.rows.barrier import PairParameters, row_level
from cadenza.safety.state import SafetyState
from tests.unit.safety.scenes import CONTACT, Duel

LINF = 2.0
BOUNDS = Bounds(LINF, LINF, 1.0, 0.0, 0.0)
PAIR = ("ego", "p1")


@dataclass(frozen=True)
class Scaled:
    """Control model of an agent whose box of +-2 gives it ``capacity`` along every axis."""

    uid: str
    action_dim: int
    capacity: float

    @property
    def position_dim(self):
        return self.action_dim

    def action_to_cartesian_accel(self, state, action):
        return 0.5 * self.capacity * action

    def cartesian_accel_to_action(self, state, cartesian_accel):
        return cartesian_accel / (0.5 * self.capacity)

    def max_cartesian_accel(self, bounds):
        return self.capacity


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
            uid: Scaled(uid, dim, capacity)
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


def start(rng, dim, dt, plant, alpha):
    """A pair in the safe set of ``alpha``, every second one on its boundary."""
    direction = rng.normal(size=dim)
    direction /= np.linalg.norm(direction)
    excess = rng.uniform(0.0, 1.0)
    velocity = rng.normal(size=dim)
    limit = 0.5 * (-alpha * dt + math.sqrt((alpha * dt) ** 2 + 8.0 * alpha * excess))
    closing = -velocity @ direction
    if closing > limit or rng.random() < 0.5:
        velocity += (closing - limit) * direction
    return Duel(
        [((CONTACT + excess) * direction).tolist(), [0.0] * dim],
        [velocity.tolist(), [0.0] * dim],
        dt,
        plant,
    )


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
        duel = start(rng, dim, dt, plant, team.alpha)
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


def test_a_partner_that_does_not_play_along_gets_in(monkeypatch):
    # The same filters, but one agent's actions come from its nominal.
    team = proportional(2.0, 2.0)
    whole = team.filters

    def one_sided(dim):
        class Rogue:
            def filter(self, action, *_, **__):
                return action, {"status": "inactive", "uncertified": False}

        return [whole(dim)[0], Rogue()]

    monkeypatch.setattr(Team, "filters", lambda self, dim: one_sided(dim))
    assert meet(team, dim=2, dt=0.05, plant="zoh", episodes=6)[0] < CONTACT - 0.01


def test_half_each_of_the_whole_authority_is_more_than_the_weak_agent_has():
    # On the boundary of the safe set of alpha = 2.2 the row asks for nearly -2.2; half of that
    # is more than 0.2 m/s^2, its proportional share is not.
    pair = PairParameters(
        alpha=2.2, partner_accel=0.0, relative_accel=4.0, dt=0.05, gamma=5.0, plant="zoh"
    )
    e = 0.5
    w = 0.5 * (-2.2 * 0.05 + math.sqrt((2.2 * 0.05) ** 2 + 8.0 * 2.2 * e))
    level, h = row_level(CONTACT + e, CONTACT, w, 0.0, pair)
    assert h == pytest.approx(0.0, abs=1e-12)
    assert level >= -2.2
    assert 0.5 * level < -0.2 - 0.5
    _, share = shared_authority(ProportionalBudgetSplit(), 0.2, 2.0)
    assert share * level >= -0.2


def test_half_each_of_the_whole_authority_leaves_the_weak_agent_stuck(monkeypatch):
    def half_each(strategy, alpha_i, alpha_j):
        return alpha_i + alpha_j, 0.5

    monkeypatch.setattr(ego_constants, "shared_authority", half_each)
    _, infeasible, _, _ = meet(TEAMS[1], dim=2, dt=0.05, plant="zoh", episodes=12)
    assert infeasible > 20


@settings(max_examples=300, deadline=None)
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
