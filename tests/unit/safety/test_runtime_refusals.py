"""Whatever is wrong with a call, a controller, an option or a saved state, the runtime says so."""

import copy
import json
import math

import numpy as np
import pytest

from cadenza.core.errors import CadenzaError, ConfigurationError, InputError
from cadenza.safety.braking import maybe_brake
from cadenza.safety.contracts import Bounds
from cadenza.safety.control_models import DoubleIntegratorControlModel, JacobianControlModel
from cadenza.safety.errors import EmergencyOutputError
from cadenza.safety.runtime.options import SafetyOptions
from cadenza.safety.runtime.runtime import SafetyRuntime
from tests.campaigns import size
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
    (np.zeros(5), r"expected real numbers of shape \(2,\), got float64 of \(5,\)"),
    (None, "expected an array, got NoneType"),
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
            {"ego": np.zeros(2)}, CRASH, bounds=BOUNDS, emergency_controllers={"ego": Answer(value)}
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
        *[("control_timestep", v) for v in (0, math.nan, math.inf, "x", True, 10**400)],
        ("bounds", None),
        ("options", {}),
        ("ego_uid", [1]),
        *[("control_models", v) for v in ("x", {"ego": 1})],
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
        ("brake_hysteresis", 0, "True or False"),
        ("budget_split", [1], "text or None"),
        ("horizon_steps", 2.5, "a whole number"),
        ("cbf_gamma", None, "a number"),
        ("miss_rate", True, "a number"),
        ("prediction_error", "x", "a number or None"),
        ("solver", 3, "text"),
        ("dtaci_steps", ("x",), "a tuple of numbers"),
    ],
)
def test_refusal_of_an_option_of_another_kind_names_it(name, value, message):
    with pytest.raises(ConfigurationError, match=rf"SafetyOptions\.{name}: expected {message}"):
        SafetyOptions(**{name: value})


# saved state

VALUES = ["x", "xy", None, [1], -5, {"a": 1}, math.nan, math.inf, 10**400, 1e300, [], {}, [["x"]]]
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
        {"eta_decay": 0.5, "rate_limit": "soft"},
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
        for value in [*VALUES[:: size(2, 1)], DELETED]:
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


# An ego that declares more than its box can do.


NARROW = Bounds(0.1, 10.0, 10.0, 0.0, 50.0)
APART = {"ego": agent([0, 0]), "p": agent([5, 0])}


def guarding(ego, bounds=NARROW, **options):
    partner = DoubleIntegratorControlModel("p", 2, capacity=0.01)
    return SafetyRuntime(
        ego_uid="ego",
        control_models={"ego": ego, "p": partner},
        bounds=bounds,
        control_timestep=0.02,
        options=SafetyOptions(**options),
    )


def arm(capacity, **options):
    # Rows of norm 1.5: a box of 0.1 gives 0.15 m/s^2 along an axis.
    matrix = np.diag([1.5, 1.5])
    return JacobianControlModel(
        "ego", 2, 2, lambda _: matrix, max_cartesian_accel_value=capacity, **options
    )


def test_runtime_refuses_more_authority_than_the_box_gives_unless_the_action_explains_it():
    with pytest.raises(ConfigurationError, match=r"0.1414 m/s\^2 .* against 10 m/s\^2 declared"):
        guarding(DoubleIntegratorControlModel("ego", 2))
    guarded = guarding(arm(10.0))  # its map is known from the first step on
    with pytest.raises(ConfigurationError, match=r"0.15 m/s.* in the weakest .* against 10 m/s"):
        guarded.step(np.zeros(2), APART)
    # Position steps of 0.1 rad in 0.02 s are 2500 times what accelerations of 0.1 rad/s^2 are.
    model = arm(10.0, action_kind="joint_position_delta", control_timestep_s=0.02)
    assert not guarding(model).step(np.zeros(2), APART).uncertified
