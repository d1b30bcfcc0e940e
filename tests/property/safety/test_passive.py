"""Passive safety against several partners: at any contact the ego has stopped, or nearly."""

import numpy as np
import pytest
import torch

from cadenza.core.errors import ConfigurationError
from cadenza.safety.batched import BatchedEgoFilter
from cadenza.safety.contracts import Bounds
from cadenza.safety.control_models import DoubleIntegratorControlModel, JacobianControlModel
from tests.unit.safety.scenes import agent, box, call, ego_filter

DT, BOX, RADIUS = 0.05, 2.0, 0.2
AMONG_THREE = {
    "ego": agent([0, 0], [1.2, 0]),
    "p": agent([0.45, 0.0], [-1.0, 0.0]),
    "q": agent([0.0, 0.45], [0.0, -1.0]),
    "r": agent([0.0, -0.45], [0.0, 1.0]),
}


def swarm_filter(agents, dim):
    """Everybody may accelerate with the corner of the box, more than anybody brakes with."""
    corner = np.sqrt(dim) * BOX
    uids = [f"p{j}" for j in range(agents - 1)]
    return BatchedEgoFilter(
        ego_model=DoubleIntegratorControlModel("ego", dim),
        partner_models=[DoubleIntegratorControlModel(uid, dim, capacity=corner) for uid in uids],
        bounds=Bounds(BOX, BOX, 1e9, 0.0, 0.0),
        dt=DT,
        multi_partner="passive",
    )


def others(values):
    """Return what every agent sees of the others, (n, n - 1, d), of values of shape (n, d)."""
    n = len(values)
    return np.stack([np.delete(values, i, axis=0) for i in range(n)])


@pytest.mark.parametrize(("agents", "dim"), [(3, 2), (4, 2), (4, 3)])
def test_agents_that_all_stop_in_time_never_touch_each_other(agents, dim):
    rng = np.random.default_rng(agents + dim)
    grid = np.stack(np.meshgrid(*[[0.0, 0.6]] * dim), axis=-1).reshape(-1, dim)
    position, velocity = grid[:agents].copy(), np.zeros((agents, dim))
    guard = swarm_filter(agents, dim)
    nearest, moved, goal = np.inf, 0.0, np.zeros((agents, dim))
    for step in range(120):
        if step % 20 == 0:
            goal = rng.uniform(-1.5, 1.5, (agents, dim))
        nominal = np.clip(3.0 * (goal - position) - velocity, -BOX, BOX)
        seen = [torch.tensor(values) for values in (nominal, position, velocity)]
        seen += [torch.tensor(others(values)) for values in (position, velocity)]
        answer = guard.filter(*seen, RADIUS, [RADIUS] * (agents - 1))
        assert not answer.uncertified.any()
        action = answer.action.numpy()
        for _ in range(8):
            h = DT / 8
            position = position + velocity * h + 0.5 * action * h * h
            velocity = velocity + action * h
            gaps = np.linalg.norm(position[:, None] - others(position), axis=2)
            nearest = min(nearest, gaps.min())
        moved += np.abs(velocity).sum() * DT
    assert nearest >= 2 * RADIUS - 1e-9
    assert moved > 2.0  # they go about their business


@pytest.mark.parametrize("contact_speed", [0.0, 0.25])
def test_ego_that_cannot_keep_everybody_away_brakes_straight_and_says_what_it_keeps(contact_speed):
    options = {"multi_partner": "passive", "contact_speed": contact_speed}
    guard = ego_filter(0.7, partners=("p", "q", "r"), **options)
    velocity, scene = np.array([1.2, 0.0]), dict(AMONG_THREE)
    for step in range(13):  # 1.2 m/s take 12 steps of 0.1 m/s
        scene["ego"] = agent([0, 0], velocity)
        action, info = call(guard, [2.0, 0.0], scene)
        if np.linalg.norm(velocity) <= contact_speed + 1e-9:
            break
        assert action == pytest.approx([-2.0, 0.0])
        assert info["uncertified"] or step > 0  # too late to stop before them
        velocity = velocity + action * DT
    assert not info["uncertified"]
    assert np.linalg.norm(velocity) <= contact_speed + 1e-9
    assert np.linalg.norm(velocity + action * DT) <= contact_speed + 1e-9


def test_one_partner_is_met_by_its_row_whatever_is_done_about_several():
    scene = {"ego": agent([0, 0], [0.9, 0.0]), "p": agent([0.9, 0.1])}
    plain, _ = call(ego_filter(), [2.0, 0.0], scene)
    passive, info = call(ego_filter(multi_partner="passive"), [2.0, 0.0], scene)
    assert passive.tolist() == plain.tolist()
    assert not info["uncertified"]


@pytest.mark.parametrize(
    "options",
    [
        {"plant": "semi_implicit"},
        {"max_age_s": 0.1},
        {"rate_limit": "soft"},
        {"budget_split": "proportional"},
        {"on_infeasible": "raise"},
    ],
)
def test_options_that_passive_safety_does_not_cover_are_refused(options):
    with pytest.raises(ConfigurationError, match="guarantee"):
        ego_filter(multi_partner="passive", **options)


def test_contact_speed_without_passive_safety_is_refused():
    with pytest.raises(ConfigurationError, match="contact_speed belongs to"):
        ego_filter(contact_speed=0.25)


def test_ego_whose_acceleration_is_not_its_action_is_refused():
    arm = JacobianControlModel(
        "ego", 2, 2, jacobian_fn=lambda state: np.eye(2), max_cartesian_accel_value=2.0
    )
    with pytest.raises(ConfigurationError, match="expected a DoubleIntegratorControlModel"):
        BatchedEgoFilter(
            ego_model=arm,
            partner_models=[DoubleIntegratorControlModel("p", 2, capacity=0.5)],
            bounds=box(),
            dt=DT,
            multi_partner="passive",
        )
