"""The metric of the control-affine filter: which admissible action counts as the nearest."""

import math

import numpy as np
import pytest
import torch

from cadenza.safety.affine import (
    AffineCBFFilter,
    DoubleIntegrator,
    KinematicUnicycle,
    half_plane,
    keep_out_ball,
)
from cadenza.safety.batched.projection import STATUS_NAMES
from cadenza.safety.solvers import SolveStatus, make_solver

POINT = DoubleIntegrator(2)


def array(*numbers):
    return np.array(numbers, dtype=np.float64)


def test_weighted_answer_is_the_hand_formula_on_one_row():
    # h = p_x + p_y - c with gains 1 at rest on the plane: u_x + u_y >= 0. Nominal (-1, -2),
    # W = diag(1, 4): u = u_nom + W^-1 (1, 1) mu with mu (1 + 1/4) = 3, so (-1 + 2.4, -2 + 0.6).
    wall = half_plane([1.0, 1.0], math.sqrt(2.0), gains=1.0)
    guard = AffineCBFFilter(POINT, [wall], action_weights=(1.0, 4.0))
    action, info = guard.filter(array(1, 1, 0, 0), array(-1.0, -2.0))
    assert action.tolist() == pytest.approx([1.4, -1.4], abs=1e-12)
    assert (info.status, info.intervention) == ("optimal", pytest.approx(math.hypot(2.4, 0.6)))


def test_nominal_passes_bit_for_bit_under_weights_whose_roots_are_not_exact():
    guard = AffineCBFFilter(
        POINT, [keep_out_ball([0, 0], 0.5, gains=1.0)], box=(-2, 2), action_weights=(0.3, 7.0)
    )
    nominal = np.random.default_rng(0).uniform(-2, 2, size=(200, 2))
    states = torch.tensor([[9.0, 0.0, 0.0, 0.0]]).double().repeat(200, 1)
    actions, info = guard.filter_batch(states, torch.from_numpy(nominal))
    assert actions.numpy().tobytes() == nominal.tobytes()
    assert not info.intervened.any()
    for u in nominal[:20]:
        assert guard.filter(states[0].numpy(), u)[0].tobytes() == u.tobytes()


def test_answers_are_those_of_an_independent_solver_in_the_same_metric():
    weights, three = array(0.2, 5.0), np.full(2, 3.0)
    walls = [half_plane([1.0, 0.3], 0.0, gains=2.0), half_plane([-0.4, 1.0], -0.1, name="b")]
    guard = AffineCBFFilter(POINT, walls, box=(-3.0, 3.0), action_weights=weights.tolist())
    rng = np.random.default_rng(1)
    X, U = rng.uniform(-1, 1, size=(60, 4)), rng.uniform(-4, 4, size=(60, 2))
    batched, record = guard.filter_batch(torch.from_numpy(X), torch.from_numpy(U))
    seen = set()
    for i, (x, u) in enumerate(zip(X, U, strict=True)):
        action, info = guard.filter(x, u)
        seen.add(info.status)
        assert STATUS_NAMES[int(record.status[i])] == info.status
        np.testing.assert_allclose(batched[i].numpy(), action, atol=1e-7)
        assert (np.abs(action) <= three).all()
        rows = [one.row(torch.from_numpy(x)) for one in guard.lifted]
        A, b = -np.stack([r.gain.numpy() for r in rows]), array(*(float(r.level) for r in rows))
        answer = make_solver("quadprog").run(weights, -weights * u, A, b, -three, three)
        assert (answer.status is SolveStatus.OPTIMAL) == (info.fallback is None)
        if info.fallback is None:
            np.testing.assert_allclose(action, answer.x, atol=1e-6)
    assert seen == {"inactive", "optimal", "infeasible"}


AHEAD, GOAL, DISC, DT = 0.2, torch.tensor([3.0, 0.0]).double(), [1.5, 0.0], 0.1
ROBOT = KinematicUnicycle(look_ahead_m=AHEAD)


def slow_in_turns(x, distance, error):
    return torch.clamp(distance, max=1.0) * torch.cos(error).clamp(min=0.0), 2.0 * error


def turn_while_driving(x, distance, error):
    return torch.clamp(distance, max=1.0), 2.0 * error


def pull_at_the_point_ahead(x, distance, error):
    e = torch.stack([torch.cos(x[:, 2]), torch.sin(x[:, 2])], dim=1)
    pull = GOAL - (x[:, :2] + AHEAD * e)
    pull = pull / torch.clamp(pull.norm(dim=1, keepdim=True), min=1.0)
    return (pull * e).sum(1), (e[:, 0] * pull[:, 1] - e[:, 1] * pull[:, 0]) / AHEAD


def goals_reached(policy, weights, episodes=20, steps=100):
    """Return how many of the robots that start on the disc's other side arrive."""
    ball = keep_out_ball(DISC, 0.5 + AHEAD, position=ROBOT.point_ahead, gains=2.0)
    box = ([-1.0, -2.0], [1.0, 2.0])
    guard = AffineCBFFilter(ROBOT, [ball], box=box, action_weights=weights)
    rng = np.random.default_rng(0)
    x = torch.zeros(episodes, 3, dtype=torch.float64)
    x[:, 1:] = torch.from_numpy(rng.uniform(-1, 1, size=(episodes, 2)) * [0.15, 0.3])
    arrived = torch.zeros(episodes, dtype=torch.bool)
    for _ in range(steps):
        away = GOAL - x[:, :2]
        error = torch.atan2(away[:, 1], away[:, 0]) - x[:, 2]
        error = torch.atan2(torch.sin(error), torch.cos(error))
        v, w = policy(x, away.norm(dim=1), error)
        actions, _ = guard.filter_batch(x, torch.stack([v.clamp(-1, 1), w.clamp(-2, 2)], dim=1))
        half = 0.5 * DT * actions[:, 1]
        chord, middle = DT * actions[:, 0] * torch.sinc(half / math.pi), x[:, 2] + half
        moved = [chord * torch.cos(middle), chord * torch.sin(middle), 2.0 * half]
        x = x + torch.stack(moved, dim=1)  # an arc, exactly
        arrived |= (x[:, :2] - GOAL).norm(dim=1) < 0.25
        assert (x[:, :2] - torch.tensor(DISC)).norm(dim=1).min() > 0.5  # the axle stays outside
    return int(arrived.sum())


@pytest.mark.parametrize(
    "policy", [slow_in_turns, turn_while_driving, pull_at_the_point_ahead], ids=lambda p: p.__name__
)
def test_unicycle_drives_around_a_disc_only_where_turning_is_weighed_by_the_look_ahead(policy):
    assert goals_reached(policy, None) == 0
    assert goals_reached(policy, (1.0, AHEAD**2)) == 20
