"""Whatever comes in: a typed error, or a flagged action inside the box."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.safety.contracts import SafetyState
from tests.campaigns import size
from tests.unit.safety.scenes import agent, call, ego_filter, slack

coordinates = st.floats(-3.0, 3.0)
vectors = st.tuples(coordinates, coordinates)


@settings(max_examples=size(50, 100), deadline=None)
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
