"""Whatever the runtime is shown, it raises one typed error, or brakes within the box if told to."""

import math

import numpy as np
import pytest

from cadenza.core.errors import InputError
from cadenza.safety.contracts import Bounds
from cadenza.safety.runtime.options import SafetyOptions
from cadenza.safety.runtime.runtime import SafetyRuntime
from cadenza.safety.snapshot import AgentSnapshot
from tests.unit.safety.scenes import models

ODD = [math.nan, math.inf, -math.inf, 1e300, -1e12, 0.0, -0.0, 5e-324, 1e8]


def number(rng):
    return ODD[rng.integers(len(ODD))] if rng.random() < 0.08 else float(rng.normal(0, 2))


def packet(rng):
    """Return a snapshot, or what a broken link may deliver instead of one."""
    kind = rng.random()
    if kind < 0.03:
        return None
    if kind < 0.05:
        return {"position": [0, 0]}
    dim = 3 if kind < 0.07 else 2
    age = number(rng) if rng.random() < 0.1 else float(rng.integers(3)) * 0.05
    return AgentSnapshot(
        np.array([number(rng) for _ in range(dim)]),
        np.array([number(rng) for _ in range(dim)]),
        abs(number(rng)) if rng.random() < 0.1 else 0.2,
        age,
    )


def observation(rng):
    if rng.random() < 0.02:
        return [None, {}, {"agent_states": 3}, 7][rng.integers(4)]
    names = [uid for uid in ("ego", "p1", "p2") if rng.random() > 0.03]
    if rng.random() < 0.02:
        names.append("ghost")
    obs = {"agent_states": {uid: packet(rng) for uid in names}}
    if rng.random() < 0.3:
        obs["meta"] = {"partner_id": [None, "a", "b", 3][rng.integers(4)]}
    if rng.random() < 0.3:
        obs["comm"] = {"aoi": {"p1": [0, 1, 2.5, math.nan, -1, "x"][rng.integers(6)]}}
    return obs


def make_runtime(**options):
    return SafetyRuntime(
        ego_uid="ego",
        control_models=models(0.5, 2, ("p1", "p2")),
        bounds=Bounds(2.0, 2.0, 0.5, 30.0, 5.0),
        control_timestep=0.05,
        options=SafetyOptions(**options),
    )


VARIANTS = [
    {},
    {"conformal_rule": "dtaci", "predictor_kind": "ensemble", "lambda_start": "error_bound"},
    {"max_age_s": 0.1, "latency_floor": True, "rate_limit": "hard", "horizon_steps": 3},
]


@pytest.mark.parametrize("options", VARIANTS)
@pytest.mark.parametrize("answer", ["raise", "brake"])
def test_runtime_answers_anything_with_a_typed_error_or_an_action_in_the_box(answer, options):
    rng = np.random.default_rng(11)
    runtime = make_runtime(on_bad_input=answer, **options)
    raised = answered = 0
    for k in range(1500):
        if k % 100 == 0:
            runtime.begin_episode()
        nominal = np.array([number(rng), number(rng)])
        forces = {("ego", "p1"): number(rng)} if rng.random() < 0.1 else None
        before = runtime.state_dict() if k % 50 == 0 else None
        try:
            obs = observation(rng)
        except InputError:
            continue  # the packet itself refused its numbers
        try:
            step = runtime.step_from_obs(nominal, obs, contact_forces=forces)
        except InputError:
            assert answer == "raise"
            assert before is None or runtime.state_dict() == before
            raised += 1
            continue
        answered += 1
        assert np.all(np.abs(step.action) <= 2.0)  # False for NaN too
        assert all(math.isfinite(value) for value in step.lambda_.values())
        assert math.isfinite(step.intervention)
        if step.bad_input is not None:
            assert step.uncertified
    assert answered > 300
    assert (raised > 200) == (answer == "raise")
    assert (runtime.telemetry.run.counts["bad_inputs"] > 200) == (answer == "brake")
