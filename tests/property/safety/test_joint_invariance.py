"""What the joint filters promise over whole rollouts, and that flipped signs break it."""

import math

import numpy as np
import pytest

from cadenza.safety.cbf_qp import ExpCBFQP
from cadenza.safety.control_models import DoubleIntegratorControlModel, JacobianControlModel
from cadenza.safety.filters import joint
from cadenza.safety.pairs import make_lambda_dict
from cadenza.safety.rows.barrier import safe_closing_speed
from cadenza.safety.state import SafetyState
from tests.unit.safety.scenes import CONTACT, Duel, agent, box

PAIR = ("ego", "p1")


def random_duel(rng, dim, dt, plant, alpha):
    """Two agents in the safe set of authority alpha, a third of them on its boundary."""
    excess = float(rng.choice([rng.uniform(0.0, 1.0), 10.0 ** rng.uniform(-4, -1)]))
    normal = rng.normal(size=dim)
    normal /= np.linalg.norm(normal)
    across = rng.normal(size=dim)
    across -= across @ normal * normal
    limit = safe_closing_speed(excess, alpha, dt)
    closing = limit if rng.random() < 0.33 else rng.uniform(-1.0, limit)
    drift = rng.normal(size=dim) * 0.3
    relative = -closing * normal + across * rng.choice([0.0, 0.2, 1.0])
    return Duel(
        [((CONTACT + excess) * normal).tolist(), [0.0] * dim],
        [(drift + 0.5 * relative).tolist(), (drift - 0.5 * relative).tolist()],
        dt,
        plant,
    )


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
            proposed,
            {"agent_states": duel.snapshots()},
            SafetyState({PAIR: 0.0}),
            box(c),
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
        nearest, statuses = rollout(guard, rng, random_duel(rng, dim, dt, plant, 2.0 * c), c, 40)
        seen |= statuses
        assert nearest >= -1e-9
    assert seen == {"inactive", "optimal"}


def test_agents_with_boxes_of_their_own_never_touch():
    rng = np.random.default_rng(4)
    models = {uid: DoubleIntegratorControlModel(uid, 2) for uid in PAIR}
    guard = ExpCBFQP.centralized(control_models=models, dt=0.05, bounds_by_uid={"p1": box(0.5)})
    for _ in range(40):
        nearest, seen = rollout(guard, rng, random_duel(rng, 2, 0.05, "zoh", 2.5), 2.0, 40)
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
        duel = random_duel(rng, 2, 0.05, "zoh", 3.2)
        free, _ = rollout(
            guard, rng, duel, 2.0, 40, lambda actions: [TURNED @ actions[0] + BIAS, actions[1]]
        )
        nearest = min(nearest, free)
    return nearest


def test_agents_with_a_jacobian_and_a_bias_never_touch():
    assert biased_rollouts() >= -1e-9


FLIPS = {
    "slot of the second agent": (
        "_slot",
        lambda slot: lambda normal, authority, sign: slot(normal, authority, abs(sign)),
    ),
    "both slots": (
        "_slot",
        lambda slot: lambda normal, authority, sign: slot(normal, authority, -sign),
    ),
    "bias": ("_along", lambda along: lambda normal, bias: -along(normal, bias)),
    "normal": (
        "pair_geometry",
        lambda geometry: lambda *pair: ([-n for n in geometry(*pair)[0]], *geometry(*pair)[1:]),
    ),
    "closing speed": (
        "pair_geometry",
        lambda geometry: (
            lambda *pair: (
                *geometry(*pair)[:2],
                -geometry(*pair)[2],
                geometry(*pair)[3],
            )
        ),
    ),
}


@pytest.mark.parametrize("flip", FLIPS.values(), ids=FLIPS)
def test_a_flipped_sign_in_the_rows_lets_agents_touch(monkeypatch, flip):
    name, wrap = flip
    monkeypatch.setattr(joint, name, wrap(getattr(joint, name)))
    try:
        nearest = biased_rollouts()
    except AssertionError:  # a step lost its certificate first
        return
    assert nearest < -1e-4


@pytest.mark.parametrize(
    ("options", "room"),
    [
        ({"dt": 0.05, "plant": "semi_implicit"}, -1e-12),  # ends in contact distance exactly
        ({"dt": 0.05, "plant": "zoh"}, -1e-12),
        ({"barrier": "wae"}, 0.0),
        ({"barrier": "wae", "compat": "upstream"}, 0.0),
        ({"barrier": "wae", "cbf_power": 3}, 0.0),
    ],
)
def test_two_agents_head_on_stop_in_time(options, room):
    # Head on at 2 m/s from 4 m apart, both without intention; 10 s of semi-implicit motion.
    models = {uid: DoubleIntegratorControlModel(uid, 2) for uid in PAIR}
    guard = ExpCBFQP.centralized(control_models=models, cbf_gamma=2.0, **options)
    p = {"ego": np.array([-2.0, 0.0]), "p1": np.array([2.0, 0.0])}
    v = {"ego": np.array([1.0, 0.0]), "p1": np.array([-1.0, 0.0])}
    nearest = math.inf
    for _ in range(200):
        actions, info = guard.filter(
            {uid: np.zeros(2) for uid in PAIR},
            {"agent_states": {uid: agent(p[uid], v[uid]) for uid in PAIR}},
            SafetyState({PAIR: 0.0}),
            box(5.0),
        )
        assert info["status"] in ("inactive", "optimal")
        for uid in PAIR:
            v[uid] = v[uid] + 0.05 * actions[uid]
            p[uid] = p[uid] + 0.05 * v[uid]
        nearest = min(nearest, float(np.linalg.norm(p["ego"] - p["p1"])) - CONTACT)
    assert nearest > room
    assert nearest < 0.01  # and no earlier than they must


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


def test_other_names_for_the_agents_do_not_change_their_actions():
    rng = np.random.default_rng(9)
    for _ in range(40):
        uids = list("abcd")
        agents, names = crowd(rng, uids), dict(zip(uids, rng.permutation(uids), strict=True))
        proposed = {uid: rng.uniform(-0.5, 0.5, size=2) for uid in uids}
        (guard, _), _ = guards(uids)
        state = SafetyState(make_lambda_dict(uids))
        actions, info = guard.filter(proposed, {"agent_states": agents}, state, WEAK)
        if info["status"] == "infeasible":
            continue  # the most urgent pair may be a tie
        renamed, _ = guard.filter(
            {names[uid]: proposed[uid] for uid in uids},
            {"agent_states": {names[uid]: agents[uid] for uid in uids}},
            state,
            WEAK,
        )
        for uid in uids:
            assert renamed[names[uid]] == pytest.approx(actions[uid], abs=1e-9)


@pytest.mark.parametrize("options", [{"dt": 0.05}, {"barrier": "wae"}])
def test_a_larger_lambda_never_moves_the_actions_farther(options):
    rng = np.random.default_rng(10)
    models = {uid: DoubleIntegratorControlModel(uid, 2) for uid in "abc"}
    guard = ExpCBFQP.centralized(control_models=models, **options)
    moved = 0
    for _ in range(150):
        uids = "ab" if rng.random() < 0.5 else "abc"
        agents = crowd(rng, uids)
        proposed = {uid: rng.uniform(-0.5, 0.5, size=2) for uid in uids}
        levels = np.sort(rng.uniform(-0.5 if len(uids) == 2 else 0.0, 1.0, size=4))
        distances = []
        for level in levels:
            state = SafetyState(make_lambda_dict(uids, fill=float(level)))
            _, info = guard.filter(proposed, {"agent_states": agents}, state, WEAK)
            if info["status"] != "infeasible":
                distances.append(info["intervention"])
        assert (np.diff(distances) <= 1e-9).all()
        moved += len(distances) > 1 and distances[0] > distances[-1] + 1e-3
    assert moved > 15
