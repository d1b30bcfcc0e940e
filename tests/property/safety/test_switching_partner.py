"""Partners that change their push inside a control step, against the row and the radial brake.

Exact zero-order hold in 16 pieces per step; S: e >= 0 and w^2 / (2 alpha) + w dt / 2 <= e.
"""

import numpy as np
import pytest
import torch

from cadenza.core.errors import ConfigurationError
from cadenza.safety.batched import BatchedEgoFilter
from cadenza.safety.batched.projection import INFEASIBLE
from cadenza.safety.contracts import Bounds
from cadenza.safety.control_models import DoubleIntegratorControlModel
from tests.unit.safety.scenes import agent, box, call, ego_filter
from tests.unit.safety.test_safety_options import make_runtime

PIECES = 16
CONTACT = 0.4
#: Ego and partner nearly equally strong, a long step: S is thin, and turning a push counts.
DT, EGO, PARTNER = 0.3, 5.0, 4.99
#: A state of S and an action that meets the row of a partner that holds its push, with equality.
EXCESS, CLOSING, SLIDING = 0.171705, 0.0542643, 0.210792
STATE = np.array([[CONTACT + EXCESS, 0.0]]), np.array([[-CLOSING, SLIDING]])
NOMINAL = np.array([[-EGO, -1.08437]])
TURNS = {
    "once": np.where(np.arange(PIECES) < PIECES // 2, -0.0145, 0.0145),
    "steadily": 0.058 * ((np.arange(PIECES) + 0.5) / PIECES - 0.5),
    "never": np.zeros(PIECES),
}


def batched_filter(dim=2, *, dt=DT, ego=EGO, partner=PARTNER, **options):
    return BatchedEgoFilter(
        ego_model=DoubleIntegratorControlModel("ego", dim),
        partner_models=[DoubleIntegratorControlModel("p", dim, capacity=partner)],
        bounds=Bounds(ego, ego, 1e9, 0.0, 0.0),
        dt=dt,
        **options,
    )


def filtered(guard, nominal, offset, velocity):
    """Filter actions of egos at ``offset`` from a partner at rest in the origin."""
    still = torch.zeros((len(nominal), 1, nominal.shape[1]), dtype=torch.float64)
    motion = [torch.as_tensor(values) for values in (nominal, offset, velocity)]
    return guard.filter(*motion, still, still, CONTACT / 2, [CONTACT / 2])


def outside(distance, closing, alpha, dt):
    """Return how far a pair is outside of S, m; at most 0 inside."""
    w = np.maximum(closing, 0.0)
    return w * w / (2.0 * alpha) + 0.5 * w * dt - (distance - CONTACT)


def play(offset, velocity, action, pushes, dt):
    """Return distance and closing speed after the step, and the least distance at the pieces."""
    nearest, h = np.full(len(offset), np.inf), dt / PIECES
    for push in pushes:
        accel = action - push
        offset = offset + velocity * h + 0.5 * accel * h * h
        velocity = velocity + accel * h
        nearest = np.minimum(nearest, np.linalg.norm(offset, axis=1))
    distance = np.linalg.norm(offset, axis=1)
    return distance, -(offset * velocity).sum(axis=1) / distance, nearest


@pytest.mark.parametrize("turn", TURNS)
def test_partner_that_turns_its_push_within_a_step_does_not_get_the_ego_out_of_the_safe_set(turn):
    assert outside(CONTACT + EXCESS, CLOSING, EGO - PARTNER, DT) < 0.0
    step = filtered(batched_filter(), NOMINAL, *STATE)
    pushes = [PARTNER * np.array([[np.cos(th), np.sin(th)]]) for th in TURNS[turn]]
    distance, closing, nearest = play(*STATE, step.action.numpy(), pushes, DT)
    assert outside(distance, closing, EGO - PARTNER, DT) <= 0.0
    assert nearest >= CONTACT
    assert not step.uncertified.any()


def test_push_straight_away_answers_a_lone_row_that_cannot_be_met_and_is_certified():
    agents = {"ego": agent(STATE[0][0], STATE[1][0]), "p": agent([0, 0])}
    action, info = call(ego_filter(PARTNER), NOMINAL[0], agents, bounds=box(EGO), dt=DT)
    step = filtered(batched_filter(), NOMINAL, *STATE)
    assert action.tolist() == step.action[0].tolist() == [EGO, 0.0]
    assert (info["status"], info["uncertified"]) == ("infeasible", False)
    assert int(step.status) == INFEASIBLE
    assert not step.uncertified.any()
    assert info["slack"] == pytest.approx(step.slack[0].numpy(), abs=1e-12)


def test_runtime_executes_the_certified_push_and_does_not_brake_over_it():
    # Closing by 0.0543 m/s with 0.17 m to spare is far from a collision within tau_brake = 30 s.
    runtime = make_runtime(
        {"margin_m": 0.0, "tau_brake": 30.0},
        bounds=Bounds(EGO, EGO, 1e9, 0.0, 0.0),
        partner_accel=PARTNER,
        dt=DT,
    )
    step = runtime.step(NOMINAL[0], {"ego": agent(STATE[0][0], STATE[1][0]), "p1": agent([0, 0])})
    assert step.infeasible
    assert (step.action.tolist(), step.braked, step.uncertified) == ([EGO, 0.0], False, False)


def test_control_step_in_which_a_partner_outturns_the_ego_is_refused():
    # 4.99 dt^2 > 6 * 0.4 from dt = 0.694 s on.
    agents = {"ego": agent([3, 0]), "p": agent([0, 0])}
    offset, velocity = np.array([[3.0, 0.0]]), np.zeros((1, 2))
    for dt, plant, refused in ((0.69, "zoh", False), (0.7, "zoh", True), (2.0, "semi_implicit", 0)):
        single = ego_filter(PARTNER, plant=plant)
        batched = batched_filter(dt=dt, plant=plant)
        unchecked = batched_filter(dt=dt, plant=plant, capturable=True)
        if refused:
            with pytest.raises(ConfigurationError, match="a_p dt\\^2 <= 6 D"):
                call(single, [0, 0], agents, bounds=box(EGO), dt=dt)
            with pytest.raises(ConfigurationError, match="a_p dt\\^2 <= 6 D"):
                filtered(batched, np.zeros((1, 2)), offset, velocity)
        else:
            _, info = call(single, [0, 0], agents, bounds=box(EGO), dt=dt)
            assert not info["uncertified"]
            assert not filtered(batched, np.zeros((1, 2)), offset, velocity).uncertified.any()
        step = filtered(unchecked, np.zeros((1, 2)), offset, velocity)
        assert bool(step.uncertified) == bool(refused)


def test_raised_level_of_an_old_packet_is_claimed_only_where_braking_meets_every_row():
    # Braking meets every row against 0.5 m/s^2, not against 4.8 at 0.3 s.
    for accel, dt, age, uncertified in ((0.5, 0.05, 0.1, False), (4.8, 0.3, 1e-3, True)):
        slide = 0.75 * (np.sqrt(2.0) * EGO + accel) * dt  # asks for the largest allowance
        guard = ego_filter(accel, max_age_s=age)
        alpha = EGO - accel
        w = 0.5 * (np.sqrt((alpha * dt) ** 2 + 8.0 * alpha * 0.3) - alpha * dt)
        agents = {"ego": agent([0.7, 0], [-0.9 * w, slide]), "p": agent([0, 0], age_s=age)}
        _, info = call(guard, [-EGO, 0.0], agents, bounds=box(EGO), dt=dt)
        assert info["uncertified"] == uncertified
