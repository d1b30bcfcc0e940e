"""Whatever comes in: a typed error, or flagged actions inside the boxes."""

import math

import numpy as np
import pytest

from cadenza.core.errors import CadenzaError
from cadenza.safety.bounds import Bounds
from cadenza.safety.cbf_qp import ExpCBFQP
from cadenza.safety.control_models import DoubleIntegratorControlModel
from cadenza.safety.pairs import make_lambda_dict
from cadenza.safety.snapshot import AgentSnapshot
from cadenza.safety.state import SafetyState

WILD = [0.0, -0.0, 1e-300, 1e-9, 0.2, 1.0, -1.0, 7.5, 1e9, -1e9, 1e300, math.nan, math.inf]
TAMENESS = [0.1, 0.05, 0.05, 0.05] + [0.15] * 4 + [0.15 / 5] * 5


def wild(rng, size=None):
    values = rng.choice(WILD, size=size, p=TAMENESS)
    return values if size is not None else float(values)


def wild_call(rng, shared):
    """Run one call with some arguments broken; return the box, the uids and the answer."""
    dim, tame = int(rng.integers(2, 4)), rng.random() < 0.6
    uids = [f"r{k}" for k in range(int(rng.integers(1, 5)))]

    def vector():
        return rng.normal(size=dim) if tame else wild(rng, dim)

    agents = {uid: AgentSnapshot(vector(), vector(), 0.2 if tame else wild(rng)) for uid in uids}
    if rng.random() < 0.3:
        agents[uids[-1]] = AgentSnapshot(agents[uids[0]].position, vector(), 0.2)  # coincident
    models = {
        uid: DoubleIntegratorControlModel(uid, dim, None if tame else wild(rng)) for uid in uids
    }
    options = {"barrier": "wae", "cbf_power": int(rng.choice([1, 3]))}
    if rng.random() < 0.6:
        options = {"dt": 0.05 if tame else wild(rng), "margin_m": 0.0 if tame else wild(rng)}
    bounds = Bounds(2.0, 2.0, 1.0, 0.0, 0.0) if tame else Bounds(*(wild(rng) for _ in range(5)))
    build, extra = ExpCBFQP.centralized, {}
    if shared:
        build = ExpCBFQP.shared_control
        extra = {"ego_uid": uids[0], "partner_action_bound": 0.5 if tame else wild(rng)}
    actions, info = build(control_models=models, **options).filter(
        {uid: wild(rng, dim) for uid in uids},
        {"agent_states": agents},
        SafetyState({key: wild(rng) for key in make_lambda_dict(uids)}),
        bounds,
        **extra,
    )
    return bounds.action_linf_component, uids, actions, info


@pytest.mark.parametrize("shared", [False, True], ids=["centralized", "shared_control"])
def test_wild_calls_are_refused_or_answered_inside_the_boxes(shared):
    rng, answered, refused = np.random.default_rng(12 + shared), 0, 0
    seen = set()
    for _ in range(3000):
        try:
            c, uids, actions, info = wild_call(rng, shared)
        except CadenzaError:
            refused += 1
            continue
        answered += 1
        seen.add(info["status"])
        assert list(actions) == uids
        assert all((np.abs(actions[uid]) <= c).all() for uid in uids)  # NaN fails too
        assert np.isfinite(info["slack"]).all()
        assert (info["slack"] >= 0.0).all()
        assert np.isfinite(info["constraint_violation"]).all()
        if (
            info["status"] not in ("inactive", "optimal")
            or max(info["lambda"].values(), default=0.0) > 0.0
        ):
            assert info["uncertified"]
    assert min(answered, refused) > 300
    assert seen >= {"inactive", "optimal", "infeasible"}
