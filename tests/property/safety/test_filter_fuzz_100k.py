"""Many calls with wild numbers: a typed error, or a finite action inside the box.

Scenarios are drawn at once as arrays of codes; every call combines a filter of a small pool with
numbers that are wild, tame or missing.
"""

import math
from collections import Counter

import numpy as np

from cadenza.core.errors import CadenzaError
from cadenza.safety.cbf_qp import ExpCBFQP
from cadenza.safety.contracts import Bounds, SafetyState
from cadenza.safety.control_models import DoubleIntegratorControlModel
from cadenza.safety.snapshot import AgentSnapshot
from tests.campaigns import size

CALLS = size(10_000, 100_000)
TAME = np.array([0.0, -0.0, 0.05, 0.2, 0.4, -0.7, 1.0, -1.0, 1.9, 3.0])
TINY = [1e-300, -1e-300, 5e-324, 1e-12, 1e-9]
HUGE = [1e6, -1e6, 1e9, -1e9, 1.0001e9, 1e30, 1e300, -1e300]
WILD = np.array([*TINY, *HUGE, math.nan, math.nan, math.inf, -math.inf])
UIDS = np.array(["p", "q", "r", "", " ", "zz", "ego2"])
OPTIONS = [
    {},
    {"plant": "semi_implicit", "margin_m": 1e-3},
    {"prediction_error": 0.2, "cbf_gamma": 1e-9},
    {"max_age_s": 0.2},
    {"barrier": "wae"},
    {"barrier": "wae", "cbf_power": 3, "cbf_gamma": 1e9},
    {"barrier": "wae", "compat": "upstream"},
    {"budget_split": "proportional"},
    {"rate_limit": "soft"},
    {"rate_limit": "hard", "on_infeasible": "raise"},
]


def pool(rng):
    """Return filters with their dimension and models; options cycle, capacities vary."""
    filters = []
    for k in range(60):
        dim = int(rng.integers(2, 4))
        capacity = float(rng.choice([0.0, 0.3, 0.5, 1.5, 2.0]))
        models = {"ego": DoubleIntegratorControlModel("ego", dim)} | {
            uid: DoubleIntegratorControlModel(uid, dim, capacity=capacity) for uid in UIDS.tolist()
        }
        guard = ExpCBFQP.ego_only(control_models=models, **OPTIONS[k % len(OPTIONS)])
        filters.append((guard, dim))
    return filters


def numbers(rng, share_wild, shape):
    """Return tame numbers with a share of wild ones."""
    values = rng.choice(TAME, size=shape) + 0.3 * rng.normal(size=shape)
    wild = rng.random(size=shape) < share_wild
    return np.where(wild, rng.choice(WILD, size=shape), values)


class Scenarios:
    """All random numbers of all calls."""

    def __init__(self, rng, calls):
        self.filters = rng.integers(0, 60, size=calls)
        self.partners = rng.integers(0, 4, size=calls)
        self.uids = np.argsort(rng.random(size=(calls, len(UIDS))), axis=1)
        self.vectors = numbers(rng, 0.004, (calls, 12, 3))
        self.radii = np.abs(numbers(rng, 0.004, (calls, 4))) * rng.choice([1, 1, 1, -1], (calls, 4))
        self.radii = np.where(rng.random((calls, 4)) < 0.97, np.abs(self.radii) + 1e-3, self.radii)
        self.ages = rng.choice([0.0, 0.0, 0.05, 0.2, 0.3, 1e6, -0.1, math.nan], size=(calls, 4),
                               p=[0.4, 0.2, 0.15, 0.1, 0.1, 0.04, 0.005, 0.005])  # fmt: skip
        self.actions = numbers(rng, 0.02, (calls, 3))
        self.lambdas = numbers(rng, 0.02, (calls, 4))
        self.dts = rng.choice(
            [0.05, 0.02, 1e-6, 1e3, 0.0, -0.1, 1e-300, math.nan, math.inf],
            size=calls,
            p=[0.5, 0.3, 0.07, 0.07, 0.02, 0.01, 0.01, 0.01, 0.01],
        )
        self.boxes = rng.choice([2.0, 1e-9, 1e9, 0.0, math.nan], size=calls, p=[0.9] + [0.025] * 4)
        self.coincident = rng.random(size=calls) < 0.1


def arguments(s, k, dim):
    """Return the keyword arguments of call ``k``; building them may already fail."""
    uids = ["ego", *UIDS[s.uids[k, : s.partners[k]]].tolist()]
    vectors = s.vectors[k, :, :dim]
    agents = {
        uid: AgentSnapshot(vectors[3 * j], vectors[3 * j + 1], s.radii[k, j], s.ages[k, j])
        for j, uid in enumerate(uids)
    }
    if s.coincident[k] and len(uids) > 1:
        agents[uids[1]] = AgentSnapshot(vectors[0], vectors[4], 0.2)
    forecast = {
        uid: AgentSnapshot(vectors[3 * j], vectors[3 * j + 2], 0.2)
        for j, uid in enumerate(uids)
        if j > 0
    }
    box = s.boxes[k]
    lambdas = {
        (min("ego", uid), max("ego", uid)): float(s.lambdas[k, j])
        for j, uid in enumerate(uids)
        if j > 0
    }
    return {
        "proposed_action": s.actions[k, :dim],
        "obs": {"agent_states": agents},
        "state": SafetyState(lambdas),
        "bounds": Bounds(box, box, 0.5, 0.0, 0.0),
        "ego_uid": "ego",
        "partner_predicted_states": forecast,
        "dt": float(s.dts[k]),
        "previous_action": s.actions[k, ::-1][:dim],
    }


def judge(guard, call, seen):
    """Filter and check the answer."""
    action, info = guard.filter(**call)
    box = call["bounds"].action_linf_component
    seen[info["status"]] += 1
    assert action.dtype == np.float64
    assert all(abs(u) <= box for u in action.tolist())  # NaN and inf fail this as well
    assert all(map(math.isfinite, info["margin"].tolist()))
    assert all(s >= 0.0 for s in info["slack"].tolist())
    assert info["uncertified"] or info["status"] in ("inactive", "optimal")


def test_wild_calls_end_in_a_typed_error_or_an_action_in_the_box():
    rng = np.random.default_rng(2024)
    filters, scenarios = pool(rng), Scenarios(rng, CALLS)
    seen, refused = Counter(), Counter()
    for k in range(CALLS):
        guard, dim = filters[scenarios.filters[k]]
        try:
            call = arguments(scenarios, k, dim)
            judge(guard, call, seen)
        except CadenzaError as error:
            refused[type(error).__name__] += 1
    assert sum(seen.values()) + sum(refused.values()) == CALLS
    assert seen["inactive"] > CALLS / 20
    assert seen["optimal"] > CALLS / 20
    assert seen["infeasible"] > CALLS / 100
    assert set(refused) == {"InputError", "ConfigurationError", "ConcertoSafetyInfeasible"}
    assert min(refused.values()) > CALLS / 500
