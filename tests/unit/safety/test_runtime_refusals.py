"""Whatever is wrong with a call, a controller, an option or a saved state, the runtime says so."""

import copy
import json
import math

import numpy as np
import pytest

import cadenza.safety
from cadenza.core.errors import CadenzaError, ConfigurationError, InputError
from cadenza.safety import emergency
from cadenza.safety.bounds import Bounds
from cadenza.safety.braking import maybe_brake
from cadenza.safety.emergency_jacobian import JacobianEmergencyController
from cadenza.safety.errors import EmergencyOutputError
from cadenza.safety.protocols import EmergencyController
from cadenza.safety.runtime.options import SafetyOptions
from cadenza.safety.runtime.runtime import SafetyRuntime
from tests.unit.safety.scenes import agent, models

BOUNDS = Bounds(2.0, 2.0, 1.0, 0.0, 5.0)
FAR = {"ego": agent([0, 0], [0.4, 0.1]), "p1": agent([3, 0])}


def make_runtime(controllers=None, **options):
    return SafetyRuntime(
        ego_uid="ego",
        control_models=models(0.5, 2, ("p1",)),
        bounds=BOUNDS,
        control_timestep=0.05,
        options=SafetyOptions(**options),
        emergency_controllers=controllers,
    )


# malformed calls

BAD_ACTIONS = [
    None,
    [0.0, 0.0],
    "x",
    np.array(["a", "b"]),
    np.array([None, 1], dtype=object),
    np.zeros(2, complex),
    np.zeros(3),
    np.array([math.nan, 0.0]),
    np.array([True, False]),
]
BAD_SCENES = [None, [1], "x", {}, {1: FAR["ego"], "p1": FAR["p1"]}, FAR | {3: 1}, FAR | {"p1": 2}]
BAD_FORCES = [
    {("ego", "p1"): "x"},
    {("ego", "p1"): None},
    {("ego", "p1"): 10**400},
    {"ego": 1.0},
    {("ego", "p1", "x"): 1.0},
    {(1, "ego"): 1.0},
    {("ego", "ego"): 1.0},
    [1],
    "x",
]
BAD_PARTNERS = [3, [1], {}, 2.5]


def calls(count):
    """Yield calls of which at least one part is malformed, in any combination."""
    rng = np.random.default_rng(5)
    good = [np.array([0.2, 0.0]), FAR, None, "a"]
    bad = [BAD_ACTIONS, BAD_SCENES, BAD_FORCES, BAD_PARTNERS]
    for _ in range(count):
        wrong = rng.random(4) < 0.4
        wrong[rng.integers(4)] = True
        yield [
            values[rng.integers(len(values))] if w else fine
            for w, fine, values in zip(wrong, good, bad, strict=True)
        ]


def test_refusal_of_malformed_calls_is_typed_or_brakes_and_leaves_the_runtime_usable():
    raising, braking = make_runtime(), make_runtime(on_bad_input="brake")
    before = raising.state_dict()
    for k, (action, scene, forces, partner) in enumerate(calls(2000)):
        with pytest.raises(InputError):
            raising.step(action, scene, contact_forces=forces, partner_id=partner)
        step = braking.step(action, scene, contact_forces=forces, partner_id=partner)
        assert step.bad_input
        assert step.uncertified
        assert np.all(np.abs(step.action) <= 2.0)
        if k % 50 == 0:
            obs = {"agent_states": scene, "meta": {"partner_id": partner}}
            with pytest.raises(InputError):
                raising.step_from_obs(action, obs, contact_forces=forces)
            assert braking.step_from_obs(action, obs, contact_forces=forces).bad_input
            assert braking.step_from_obs(action, {}).bad_input
    assert raising.state_dict() == before
    json.dumps(braking.state_dict(), allow_nan=False)
    assert braking.step(np.array([0.1, 0.0]), FAR).bad_input is None


def test_refusal_of_agents_that_leave_the_range_while_forecast():
    runtime = make_runtime(on_bad_input="brake")
    scene = FAR | {"p1": agent([9.99e8, 0], [9e8, 0])}
    assert "to stay within" in runtime.step(np.zeros(2), scene).bad_input
    with pytest.raises(InputError, match="expected 'p1' to stay within 1e\\+09 m"):
        make_runtime().step(np.zeros(2), scene)


@pytest.mark.parametrize("action", [np.array([math.nan, 0.0]), [0, 0], None, np.zeros(3)])
def test_refusal_of_an_executed_action_keeps_the_last_one(action):
    runtime = make_runtime(rate_limit="soft")
    runtime.step(np.array([0.3, 0.0]), FAR)
    with pytest.raises(InputError, match="executed action"):
        runtime.note_executed(action)
    assert runtime.state_dict()["previous_action"] == [0.3, 0.0]
    runtime.step(np.zeros(2), FAR)


# emergency controllers


class Answer:
    def __init__(self, value):
        self.value = value

    def compute_override(self, agent_state, pairwise_repulsion_vectors, bounds):
        return self.value


CRASH = {"ego": agent([0, 0], [3.0, 0.0]), "p1": agent([0.6, 0.0])}
BAD_ANSWERS = [
    (np.array([math.nan, 0.0]), "expected components within 2, got .*nan"),
    (np.array([1e6, 0.0]), "expected components within 2, got .*1000000"),
    (np.array([2.0 + 1e-5, 0.0]), "expected components within 2"),
    (np.zeros(5), r"expected real numbers of shape \(2,\), got float64 of \(5,\)"),
    (np.array(["a", "b"]), "expected real numbers"),
    (None, "expected an array, got NoneType"),
    ([1, 2], "expected an array, got list"),
]


@pytest.mark.parametrize(("value", "message"), BAD_ANSWERS)
def test_refusal_of_an_emergency_action_keeps_the_filters(value, message):
    runtime = make_runtime({"ego": Answer(value)})
    step = runtime.step(np.array([2.0, 0.0]), CRASH)
    assert not step.braked
    assert step.infeasible
    assert step.action.tolist() == [-2.0, 0.0]  # the least violation
    assert "emergency action of 'ego'" in step.brake_error
    assert runtime.step(np.zeros(2), FAR).brake_error is None
    with pytest.raises(EmergencyOutputError, match=message):
        maybe_brake(
            {"ego": np.zeros(2)},
            CRASH,
            bounds=BOUNDS,
            emergency_controllers={"ego": Answer(value)},
        )


def test_emergency_action_beyond_the_box_by_rounding_is_clipped():
    runtime = make_runtime({"ego": Answer(np.array([-2.0000001, 0.5]))})
    step = runtime.step(np.array([2.0, 0.0]), CRASH)
    assert step.braked
    assert step.brake_error is None
    assert step.action.tolist() == [-2.0, 0.5]


# construction


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("control_timestep", v) for v in (0, math.nan, None, "x", -1, True, 10**400)],
        *[("bounds", v) for v in (None, "x")],
        *[("options", v) for v in ("x", {}, 1)],
        *[("ego_uid", v) for v in (None, [1], {})],
        *[("control_models", v) for v in (None, "x", {"ego": 1})],
        ("emergency_controllers", [1]),
    ],
)
def test_refusal_of_parts_of_the_runtime_names_them(name, value):
    parts = {
        "ego_uid": "ego",
        "control_models": models(0.5, 2, ("p1",)),
        "bounds": BOUNDS,
        "control_timestep": 0.05,
    }
    with pytest.raises(ConfigurationError, match=rf"SafetyRuntime\.{name}.*expected"):
        SafetyRuntime(**(parts | {name: value}))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        *[(n, "no", "True or False") for n in ("latency_floor", "brake_stopping")],
        ("brake_hysteresis", 0, "True or False"),
        ("budget_split", [1], "text or None"),
        ("budget_split", math.nan, "text or None"),
        ("compat", 3, "text or None"),
        ("horizon_steps", 2.5, "a whole number"),
        ("n_warmup_steps", math.inf, "a whole number"),
        ("partner_memory", math.inf, "a whole number"),
        ("cbf_gamma", None, "a number"),
        ("tau_brake", "x", "a number"),
        ("margin_m", [1], "a number"),
        ("eta", 1 + 2j, "a number"),
        ("miss_rate", True, "a number"),
        ("prediction_error", "x", "a number or None"),
        ("solver", 3, "text"),
        ("dtaci_steps", 3, "a tuple of numbers"),
        ("dtaci_steps", ("x",), "a tuple of numbers"),
    ],
)
def test_refusal_of_an_option_of_another_kind_names_it(name, value, message):
    with pytest.raises(ConfigurationError, match=rf"SafetyOptions\.{name}: expected {message}"):
        SafetyOptions(**{name: value})


def test_slack_starts_within_its_clamp():
    runtime = make_runtime(lambda_safe=-100.0)
    assert runtime.lambda_ == {("ego", "p1"): -runtime.lambda_bound}


# saved state

VALUES = ["x", None, -5, math.nan, math.inf, 1e300, 10**400, [], {}, [1], {"a": 1}, [["x"]], "xy"]
DELETED = object()


def paths(value, path=()):
    if path:
        yield path
    if isinstance(value, dict):
        for key in value:
            yield from paths(value[key], (*path, key))
    elif isinstance(value, list):
        for index in range(min(len(value), 2)):
            yield from paths(value[index], (*path, index))


def corrupted(state, path, value):
    broken = copy.deepcopy(state)
    place = broken
    for key in path[:-1]:
        place = place[key]
    if value is DELETED:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return broken


@pytest.mark.parametrize(
    "options",
    [
        {"conformal_rule": "dtaci", "predictor_kind": "constant_acceleration"},
        {"conformal_rule": "huriot_sibai"},
        {"integral_gain": 0.05, "eta_decay": 0.5, "rate_limit": "soft"},
    ],
)
def test_any_corruption_of_a_state_is_refused_without_a_trace_or_harmless(options):
    options |= {"on_bad_input": "brake"}
    source = make_runtime(**options)
    for k in range(8):
        scene = {"ego": agent([0.05 * k, 0], [1, 0]), "p1": agent([1.2 + 0.01 * k * k, 0])}
        source.step(np.array([2.0, 0.0]), scene, partner_id="ab"[k // 4])
    source.step(np.zeros(2), {"ego": agent([0.95, 0], [3, 0]), "p1": agent([1.4, 0])})
    state = source.state_dict()
    target = make_runtime(**options)
    target.step(np.array([1.0, 0.0]), FAR)
    start = target.state_dict()
    for path in paths(state):
        for value in [*VALUES, DELETED]:
            before = json.dumps(target.state_dict())
            try:
                target.load_state_dict(corrupted(state, path, value))
            except CadenzaError:
                assert json.dumps(target.state_dict()) == before, (path, value)
                continue
            assert target.step(np.array([0.5, 0.0]), FAR).bad_input is None, (path, value)
            json.dumps(target.state_dict(), allow_nan=False)
            target.load_state_dict(start)
    for payload in (None, [1], "x", 3):
        with pytest.raises(InputError, match="SafetyRuntime state: expected a mapping"):
            target.load_state_dict(payload)


# names


def test_names_of_the_package_come_with_a_star_and_are_listed():
    promised = {"Bounds", "SafetyState", "ExpCBFQP", "EmergencyController", "FloatArray"}
    assert promised <= set(cadenza.safety.__all__)
    assert all(getattr(cadenza.safety, name) is not None for name in cadenza.safety.__all__)
    assert "SafetyRuntime" in dir(cadenza.safety)
    assert emergency.EmergencyController is EmergencyController
    assert emergency.JacobianEmergencyController is JacobianEmergencyController
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = emergency.nothing
