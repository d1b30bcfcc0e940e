"""What the joint filters promise over whole rollouts, and that flipped signs break it."""

import math

import numpy as np
import pytest

from cadenza.safety.cbf_qp import ExpCBFQP
from cadenza.safety.contracts import SafetyState, make_lambda_dict
from cadenza.safety.control_models import DoubleIntegratorControlModel, JacobianControlModel
from tests.unit.safety.scenes import CONTACT, agent, box, safe_duel

PAIR = ("ego", "p1")


def hostile(rng, duel, c):
    """Actions that drive the agents at each other most of the time."""
    normal = np.array(duel.toward_ego())
    noise = rng.uniform(-c, c, size=(2, len(normal)))
    if rng.random() < 0.3:
        return dict(zip(PAIR, noise, strict=True))
    return {"ego": -3.0 * c * normal + noise[0], "p1": 3.0 * c * normal + noise[1]}


def rollout(guard, rng, duel, c, steps, accelerations=None):
    """Return the smallest distance less the contact distance, and the statuses met."""
    nearest, seen = math.inf, set()
    for _ in range(steps):
        proposed = hostile(rng, duel, c)
        actions, info = guard.filter(
            proposed, {"agent_states": duel.snapshots()}, SafetyState({PAIR: 0.0}), box(c)
        )
        seen.add(info["status"])
        assert not info["uncertified"]
        applied = [actions[uid] for uid in PAIR]
        if accelerations is not None:
            applied = accelerations(applied)
        nearest = min(nearest, duel.step([list(a) for a in applied]) - CONTACT)
    return nearest, seen


@pytest.mark.parametrize("plant", ["zoh", "semi_implicit"])
@pytest.mark.parametrize(("dim", "dt"), [(2, 0.05), (3, 0.02), (2, 0.1)])
def test_centralized_never_lets_two_agents_touch(plant, dim, dt):
    rng = np.random.default_rng(dim * 100 + round(dt * 100))
    c, seen = 2.0, set()
    for _ in range(40):
        models = {uid: DoubleIntegratorControlModel(uid, dim) for uid in PAIR}
        guard = ExpCBFQP.centralized(control_models=models, dt=dt, plant=plant)
        nearest, statuses = rollout(guard, rng, safe_duel(rng, dim, dt, plant, 2.0 * c), c, 40)
        seen |= statuses
        assert nearest >= -1e-9
    assert seen == {"inactive", "optimal"}


def test_agents_with_boxes_of_their_own_never_touch():
    rng = np.random.default_rng(4)
    models = {uid: DoubleIntegratorControlModel(uid, 2) for uid in PAIR}
    guard = ExpCBFQP.centralized(control_models=models, dt=0.05, bounds_by_uid={"p1": box(0.5)})
    for _ in range(40):
        nearest, seen = rollout(guard, rng, safe_duel(rng, 2, 0.05, "zoh", 2.5), 2.0, 40)
        assert nearest >= -1e-9
        assert seen <= {"inactive", "optimal"}


#: The ego's action map: u -> J u + bias. The box of 2 reaches at least 2 * 0.8 - 0.3 of it.
TURNED = np.array([[0.0, 1.0], [-0.8, 0.0]])
BIAS = np.array([0.3, -0.1])


def biased_guard():
    turned = JacobianControlModel(
        uid="ego",
        action_dim=2,
        position_dim=2,
        jacobian_fn=lambda state: TURNED,
        bias_fn=lambda state: BIAS,
        max_cartesian_accel_value=1.2,
    )
    models = {"ego": turned, "p1": DoubleIntegratorControlModel("p1", 2)}
    return ExpCBFQP.centralized(control_models=models, dt=0.05)


def biased_rollouts(seed=6, episodes=15):
    """Return the smallest free distance of agents of which one has a turned and biased map."""
    rng, guard, nearest = np.random.default_rng(seed), biased_guard(), math.inf
    for _ in range(episodes):
        duel = safe_duel(rng, 2, 0.05, "zoh", 3.2)
        free, _ = rollout(
            guard, rng, duel, 2.0, 40, lambda actions: [TURNED @ actions[0] + BIAS, actions[1]]
        )
        nearest = min(nearest, free)
    return nearest


def test_agents_with_a_jacobian_and_a_bias_never_touch():
    assert biased_rollouts() >= -1e-9


#: Agents that must look ahead: their rows are active early.
WEAK = box(0.5)


def crowd(rng, uids):
    """Agents on a loose grid that drift towards its centre: active rows, seldom an overlap."""
    spots = rng.permutation(9)[: len(uids)]
    places = [np.array([s % 3 - 1, s // 3 - 1]) * 0.6 + rng.uniform(-0.05, 0.05, 2) for s in spots]
    return {
        uid: agent(place, -0.8 * place + rng.normal(size=2) * 0.2)
        for uid, place in zip(uids, places, strict=True)
    }


def guards(uids):
    models = {uid: DoubleIntegratorControlModel(uid, 2) for uid in uids}
    return (
        (ExpCBFQP.centralized(control_models=models, dt=0.05), {}),
        (
            ExpCBFQP.shared_control(control_models=models, dt=0.05),
            {"ego_uid": uids[0], "partner_action_bound": 0.3},
        ),
    )


def test_the_order_of_dictionaries_does_not_matter():
    rng = np.random.default_rng(8)
    changed = 0
    for _ in range(60):
        uids = list("abcde")[: int(rng.integers(2, 6))]
        agents = crowd(rng, uids)
        proposed = {uid: rng.uniform(-0.5, 0.5, size=2) for uid in uids}
        lambda_ = {key: float(rng.uniform(-0.3, 0.3)) for key in make_lambda_dict(uids)}
        order = list(rng.permutation(uids))
        for guard, extra in guards(uids):
            actions, info = guard.filter(
                proposed, {"agent_states": agents}, SafetyState(lambda_), WEAK, **extra
            )
            again, same = guard.filter(
                {uid: proposed[uid] for uid in order},
                {"agent_states": {uid: agents[uid] for uid in reversed(order)}},
                SafetyState(dict(reversed(lambda_.items()))),
                WEAK,
                **extra,
            )
            changed += info["status"] != "inactive"
            assert list(again) == order
            for uid in uids:
                assert again[uid].tobytes() == actions[uid].tobytes()
            assert same["lambda"] == info["lambda"]
            assert same["slack"].tobytes() == info["slack"].tobytes()
    assert changed > 60
