"""100 000 calls with something broken: a typed error, or a finite action inside the box.

Scenarios are drawn at once as arrays of codes; every call combines a filter of a small pool with
numbers that are wild, tame or missing.
"""

import math
from collections import Counter

import numpy as np
import pytest

from cadenza.core.errors import CadenzaError, ConfigurationError
from cadenza.safety.bounds import Bounds
from cadenza.safety.cbf_qp import ExpCBFQP
from cadenza.safety.control_models import DoubleIntegratorControlModel
from cadenza.safety.snapshot import AgentSnapshot
from cadenza.safety.state import SafetyState

CALLS = 100_000
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
#: What is done to a call besides its numbers; most calls are left alone.
BREAKS = [
    "ego missing", "partner missing", "no model", "no forecast", "lambda missing",
    "lambda swapped", "lambda doubled", "flat state", "wrong size", "wrong dim", "strings",
    "complex", "integers", "object", "list", "no obs", "no agents", "dt none", "dt text",
    "no ego uid", "not a snapshot", "previous list",
    "no state", "no bounds", "forecast list", "lambda text", "uid number", "ego uid list",
]  # fmt: skip


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
        self.breaks = rng.integers(0, 4 * len(BREAKS), size=calls)
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


def damage(name, call, dim):
    """Break one argument of ``call`` in place."""
    agents, lambdas = call["obs"]["agent_states"], call["state"].lambda_
    last = [*agents][-1]
    if name == "ego missing":
        del agents["ego"]
    elif name == "partner missing":
        del agents[last]
    elif name == "no model":
        agents["stranger"] = agents[last]
        lambdas["ego", "stranger"] = 0.0
    elif name == "no forecast":
        call["partner_predicted_states"] = {}
    elif name == "lambda missing":
        lambdas.clear()
    elif name == "lambda swapped":
        call["state"] = SafetyState({(b, a): value for (a, b), value in lambdas.items()})
    elif name == "lambda doubled":
        lambdas["ego", "ego"] = 0.0
    elif name == "flat state":
        call["state"] = SafetyState({("ego", last): 1e9})
    elif name == "wrong size":
        call["proposed_action"] = np.zeros((1, dim))
    elif name == "wrong dim":
        agents[last] = AgentSnapshot(np.zeros(5 - dim), np.zeros(5 - dim), 0.2)
    elif name in ("strings", "complex", "integers", "object"):
        kind = {"strings": "U4", "complex": complex, "integers": np.int64, "object": object}[name]
        with np.errstate(invalid="ignore"):
            call["proposed_action"] = np.ones(dim).astype(kind)
    elif name == "list":
        call["proposed_action"] = [0.0] * dim
    elif name == "previous list":
        call["previous_action"] = [0.0] * dim
    elif name == "no obs":
        call["obs"] = None
    elif name == "no agents":
        call["obs"] = {"agent_states": {}}
    elif name == "dt none":
        call["dt"] = None
    elif name == "dt text":
        call["dt"] = "0.05"
    elif name == "no ego uid":
        call["ego_uid"] = None
    elif name == "no state":
        call["state"] = None
    elif name == "no bounds":
        call["bounds"] = None
    elif name == "forecast list":
        call["partner_predicted_states"] = [*call["partner_predicted_states"]]
    elif name == "lambda text":
        call["state"].lambda_ = dict.fromkeys(lambdas, "0.1")
    elif name == "uid number":
        agents[7] = agents[last]
    elif name == "ego uid list":
        call["ego_uid"] = ["ego"]
    elif name == "not a snapshot":
        agents[last] = (0.0, 0.0)


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


@pytest.mark.slow
def test_100_000_broken_calls_end_in_a_typed_error_or_an_action_in_the_box():
    rng = np.random.default_rng(2024)
    filters, scenarios = pool(rng), Scenarios(rng, CALLS)
    seen, refused = Counter(), Counter()
    for k in range(CALLS):
        guard, dim = filters[scenarios.filters[k]]
        broken = scenarios.breaks[k]
        try:
            call = arguments(scenarios, k, dim)
            if broken < len(BREAKS):
                damage(BREAKS[broken], call, dim)
            judge(guard, call, seen)
        except (CadenzaError, TypeError) as error:
            refused[type(error).__name__] += 1
    assert sum(seen.values()) + sum(refused.values()) == CALLS
    assert seen["inactive"] > 5_000
    assert seen["optimal"] > 5_000
    assert seen["infeasible"] > 1_000
    assert set(refused) == {
        "InputError", "ConfigurationError", "UnknownNameError", "TypeError",
        "ConcertoSafetyInfeasible",
    }  # fmt: skip
    assert min(refused.values()) > 200


def test_pool_of_filters_covers_every_option():
    assert {key for options in OPTIONS for key in options} == {
        "plant", "margin_m", "prediction_error", "cbf_gamma", "max_age_s", "barrier",
        "cbf_power", "compat", "budget_split", "rate_limit", "on_infeasible",
    }  # fmt: skip
    with pytest.raises(ConfigurationError):
        ExpCBFQP.ego_only(control_models={}, **OPTIONS[0])
