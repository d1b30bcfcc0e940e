"""Whatever comes in: a typed error, or a flagged action inside the box."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.safety.state import SafetyState
from tests.unit.safety.scenes import agent, call, ego_filter, slack

coordinates = st.floats(-3.0, 3.0)
vectors = st.tuples(coordinates, coordinates)


@settings(max_examples=200, deadline=None)
@given(
    nominal=st.tuples(st.floats(-2.0, 2.0), st.floats(-2.0, 2.0)),
    position=vectors,
    velocity=vectors,
    partners=st.lists(st.tuples(vectors, vectors), min_size=1, max_size=5),
)
def test_action_is_the_nominal_bit_for_bit_or_reported_as_changed(
    nominal, position, velocity, partners
):
    agents = {"ego": agent(position, velocity)}
    agents |= {f"p{k}": agent(p, v) for k, (p, v) in enumerate(partners)}
    guard = ego_filter(0.5, 2, tuple(agents)[1:])
    proposed = np.array(nominal)
    action, info = call(guard, proposed, agents)
    if info["status"] == "inactive":
        assert action.tobytes() == proposed.tobytes()
        assert info["intervention"] == 0.0
    else:
        assert info["intervention"] == pytest.approx(float(np.linalg.norm(action - proposed)))
    assert info["status"] == "infeasible" or not info["slack"].any()
    assert info["status"] != "optimal" or info["intervention"] > 0.0


@settings(max_examples=100, deadline=None)
@given(
    nominal=vectors,
    partners=st.lists(st.tuples(vectors, vectors), min_size=2, max_size=5),
    seed=st.integers(0, 9),
)
def test_action_does_not_depend_on_the_order_of_agents(nominal, partners, seed):
    agents = {"ego": agent([0, 0], [0.5, 0.1])}
    agents |= {f"p{k}": agent(p, v) for k, (p, v) in enumerate(partners)}
    names = list(agents)
    shuffled = [names[k] for k in np.random.default_rng(seed).permutation(len(names))]
    guard = ego_filter(0.5, 2, tuple(names[1:]))
    lambdas = slack(tuple(names[1:]), fill=-0.1)
    action, info = call(guard, nominal, agents, state=lambdas)
    other = SafetyState(dict(reversed(lambdas.lambda_.items())))
    again, other_info = call(guard, nominal, {uid: agents[uid] for uid in shuffled}, state=other)
    assert again.tobytes() == action.tobytes()
    assert other_info["lambda"] == info["lambda"]
    for key in ("constraint_violation", "slack", "margin"):
        assert other_info[key].tobytes() == info[key].tobytes()


@settings(max_examples=150, deadline=None)
@given(
    nominal=st.tuples(st.floats(-2.0, 2.0), st.floats(-2.0, 2.0)),
    gap=st.floats(0.41, 1.5),
    velocity=vectors,
    fills=st.lists(st.floats(-3.0, 3.0), min_size=2, max_size=4),
)
def test_larger_lambda_never_moves_the_action_farther(nominal, gap, velocity, fills):
    agents = {"ego": agent([0, 0], velocity), "p": agent([gap, 0.1])}
    distances = []
    for fill in sorted(fills):
        _, info = call(ego_filter(), nominal, agents, state=slack(fill=fill))
        if info["status"] != "infeasible":
            distances.append(info["intervention"])
    for tighter, looser in itertools.pairwise(distances):
        assert looser <= tighter + 1e-6


@settings(max_examples=150, deadline=None)
@given(
    nominal=st.tuples(st.floats(-4.0, 4.0), st.floats(-4.0, 4.0)),
    velocity=vectors,
    partners=st.lists(st.tuples(vectors, vectors), min_size=1, max_size=4),
)
def test_where_standing_still_is_allowed_the_change_is_no_larger_than_the_nominal(
    nominal, velocity, partners
):
    agents = {"ego": agent([0, 0], velocity)}
    agents |= {f"p{k}": agent(p, v) for k, (p, v) in enumerate(partners)}
    guard = ego_filter(0.5, 2, tuple(agents)[1:])
    if call(guard, [0.0, 0.0], agents)[1]["status"] == "inactive":
        _, info = call(guard, nominal, agents)
        assert info["intervention"] <= math.hypot(*nominal) + 1e-5
