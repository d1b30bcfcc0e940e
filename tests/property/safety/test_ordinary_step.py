"""The flat way through an ordinary step decides, records and remembers what the long way does."""

from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.safety.cbf import PairParameters, pair_geometry, planar_row_level, row_level
from cadenza.safety.cbf_qp import ExpCBFQP
from cadenza.safety.runtime.options import SafetyOptions
from cadenza.safety.runtime.runtime import SafetyRuntime
from cadenza.safety.snapshot import AgentSnapshot
from tests.unit.safety.scenes import box, models, slack

COORDINATE = st.one_of(st.sampled_from([0.0, -0.0, 1e-12]), st.floats(-3.0, 3.0))
POINT = st.tuples(COORDINATE, COORDINATE)


@given(p=POINT, v=POINT, contact=st.floats(0.05, 2.0), plant=st.sampled_from(["zoh", "semi"]))
def test_row_of_the_plane_is_that_of_any_space(p, v, contact, plant):
    pair = PairParameters(
        alpha=1.5, partner_accel=0.5, relative_accel=3.3, dt=0.05, gamma=5.0, plant=plant
    )
    normal, distance, closing, tangential = pair_geometry(p, v, (0.0, 0.0), (0.3, -0.1))
    expected = (*normal, distance - contact, closing)
    level = row_level(distance, contact, closing, tangential, pair)
    assert planar_row_level(p, v, (0.0, 0.0), (0.3, -0.1), contact, pair) == (*expected, *level)


def scene(rng, partners):
    """Return agents and a nominal action, sometimes float32 or on the bound."""
    agents = {
        uid: AgentSnapshot(rng.normal(size=2) * 1.5, rng.normal(size=2) * 0.5, 0.2)
        for uid in ("ego", *partners)
    }
    u = rng.uniform(-2.5, 2.5, 2)
    return agents, u.astype(np.float32) if rng.random() < 0.2 else u


def bits(value):
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: bits(entry) for key, entry in value.items() if key != "qp_solve_ms"}
    return repr(value)


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 4))
@settings(max_examples=40)
def test_filter_answers_the_same_on_both_ways(seed, count):
    rng = np.random.default_rng(seed)
    partners = tuple(f"p{k}" for k in range(count))
    guard, bounds = ExpCBFQP.ego_only(control_models=models(partners=partners)), box()
    for _ in range(8):
        agents, u = scene(rng, partners)
        state = slack(partners, fill=float(rng.choice([0.0, -0.1, -5.0, 0.2])))
        ahead = {uid: agents[uid].moved_on(0.05) for uid in partners}
        if rng.random() < 0.3:  # a partner that is expected to turn
            last = agents[partners[-1]]
            ahead[partners[-1]] = AgentSnapshot(last.position, rng.normal(size=2), 0.2)
        answers = [
            guard.filter(
                u, obs, state, bounds, ego_uid="ego", partner_predicted_states=ahead, dt=0.05
            )
            for obs in ({"agent_states": agents}, MappingProxyType({"agent_states": agents}))
        ]
        assert bits(answers[0][0]) == bits(answers[1][0])
        assert bits(answers[0][1]) == bits(answers[1][1])


@pytest.mark.parametrize("options", [{}, {"conformal_rule": "dtaci"}, {"eta": 0.2}])
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 3))
@settings(max_examples=15)
def test_runtime_decides_and_remembers_the_same_on_both_ways(options, seed, count):
    rng = np.random.default_rng(seed)
    partners = tuple(f"p{k}" for k in range(count))
    flat, long = (
        SafetyRuntime(
            ego_uid="ego",
            control_models=models(partners=partners),
            bounds=box(),
            control_timestep=0.05,
            options=SafetyOptions(**options),
        )
        for _ in range(2)
    )
    agents, _ = scene(rng, partners)
    for k in range(30):
        _, u = scene(rng, ())
        seat = "b" if k > 20 else "a"
        step = flat.step(u, agents, partner_id=seat)
        other = long.step(u, agents, partner_id=seat, contact_forces={})  # none; the long way
        assert bits(step.action) == bits(other.action)
        assert bits(step.info) == bits(other.info)
        assert (step.lambda_, step.dangers) == (other.lambda_, other.dangers)
        if k % 10 == 5:
            assert flat.state_dict() == long.state_dict()
            flat.load_state_dict(flat.state_dict())
        agents = {uid: agent.moved_on(0.05) for uid, agent in agents.items()}
        turned = rng.choice(["ego", *partners])
        agents[turned] = AgentSnapshot(agents[turned].position, rng.normal(size=2), 0.2)
    assert flat.state_dict() == long.state_dict()
    assert flat.telemetry.run == long.telemetry.run
