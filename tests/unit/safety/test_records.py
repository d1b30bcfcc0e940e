"""Small records: snapshots, bounds, point masses, and slack per pair with its wire form."""

import json
import math
import warnings
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from cadenza.core.errors import InputError
from cadenza.safety import cbf_qp
from cadenza.safety.cbf_qp import pair_h_value, solve_qp_stub
from cadenza.safety.conformal import compute_per_pair_loss, compute_prediction_gap_for_pairs
from cadenza.safety.contracts import (
    AgentControlModel,
    Bounds,
    SafetyState,
    canonical_pair_key,
    canonical_pair_order,
    lambda_from_jsonable,
    lambda_to_jsonable,
    make_ego_pair_keys,
    make_lambda_dict,
)
from cadenza.safety.control_models import DoubleIntegratorControlModel
from cadenza.safety.snapshot import AgentBatch, AgentSnapshot
from tests.unit.safety.scenes import agent

ZERO = np.zeros(2)
FIELDS = [
    "action_linf_component",
    "cartesian_accel_capacity",
    "action_rate",
    "comm_latency_ms",
    "force_limit",
]


def test_snapshot_keeps_read_only_float64_copies():
    position = np.array([1, 2], dtype=np.float32)
    snapshot = AgentSnapshot(position, np.array([0.5, 0.0]), 1)
    position[0] = 9.0
    assert snapshot.position.dtype == np.float64
    assert snapshot.position.tolist() == [1.0, 2.0]
    assert snapshot.position_numbers == (1.0, 2.0)
    assert snapshot.velocity_numbers == (0.5, 0.0)
    assert isinstance(snapshot.radius, float)
    assert snapshot.age_s == 0.0
    with pytest.raises(ValueError, match="read-only"):
        snapshot.position[0] = np.nan
    aged = AgentSnapshot(ZERO, ZERO, 0.2, age_s=np.float32(0.25))
    assert (aged.age_s, type(aged.age_s)) == (0.25, float)


def test_bounds_take_five_positional_numbers_as_floats_and_freeze():
    bounds = Bounds(np.float32(5), np.int64(4), 0.5, 0, 0)
    assert [getattr(bounds, name) for name in FIELDS] == [5.0, 4.0, 0.5, 0.0, 0.0]
    assert all(type(getattr(bounds, name)) is float for name in FIELDS)
    with pytest.raises(FrozenInstanceError):
        bounds.action_rate = 1.0


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("value", [-1.0, np.nan, 1e300, True, "5", 0.0])
def test_bounds_refuse_other_numbers(name, value):
    if value == 0.0 and name in FIELDS[3:]:
        return  # no latency, no limit
    with pytest.raises(InputError, match=rf"Bounds.{name}: expected a number in .*, got "):
        Bounds(**(dict.fromkeys(FIELDS, 1.0) | {name: value}))


def test_double_integrator_maps_are_the_identity_and_its_capacity_its_own_or_shared():
    model = DoubleIntegratorControlModel("a", 3)
    u = np.array([1.0, -2.0, 3.0])
    assert isinstance(model, AgentControlModel)
    assert model.position_dim == 3
    assert model.action_to_cartesian_accel(agent([0, 0, 0]), u).tolist() == u.tolist()
    assert model.cartesian_accel_to_action(agent([0, 0, 0]), u).tolist() == u.tolist()
    bounds = Bounds(2.0, 1.5, 1.0, 0.0, 0.0)
    for capacity, expected in ((None, 1.5), (0.5, 0.5), (0.0, 0.0)):
        model = DoubleIntegratorControlModel("a", 2, capacity=capacity)
        assert model.max_cartesian_accel(bounds) == expected


BATCH = {
    "uids": ("ego", "partner"),
    "positions": np.arange(12.0).reshape(3, 2, 2),
    "velocities": -np.arange(12.0).reshape(3, 2, 2),
    "radii": np.array([0.2, 0.3]),
}


def batch(**changes):
    return AgentBatch(**{**BATCH, **changes})


def test_snapshots_of_a_batch_are_those_of_one_row():
    snapshots = batch().snapshots(1)
    assert list(snapshots) == ["ego", "partner"]
    assert snapshots["ego"].position.tolist() == [4.0, 5.0]
    assert snapshots["partner"].velocity.tolist() == [-6.0, -7.0]
    assert (snapshots["partner"].radius, snapshots["partner"].age_s) == (0.3, 0.0)
    aged = batch(ages_s=np.array([[0.0, 0.1], [0.0, 0.2], [0.0, 0.3]])).snapshots(1)
    assert (aged["ego"].age_s, aged["partner"].age_s) == (0.0, 0.2)


def test_state_has_the_promised_defaults_and_round_trips_exactly_through_json():
    state = SafetyState({})
    assert (state.epsilon, state.eta, state.warmup_steps_remaining) == (-0.05, 0.01, 0)
    state = SafetyState({("a", "b"): 0.1 + 0.2, ("a", "c"): -1e-300}, 1 / 3, 1e-17, 7)
    assert SafetyState.from_dict(json.loads(json.dumps(state.to_dict()))) == state


def incomplete_state():
    payload = SafetyState({}).to_dict()
    del payload["eta"]
    return SafetyState.from_dict(payload)


def test_wire_version_2_needs_uids_and_warns_once():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        values = lambda_from_jsonable([1, 2.0, 3.0], uids=["c", "b", "a"])
        assert lambda_from_jsonable([], uids=iter(["a"])) == {}  # no pairs: no warning either
    assert values == {("a", "b"): 1.0, ("a", "c"): 2.0, ("b", "c"): 3.0}
    assert [w.category for w in caught] == [DeprecationWarning]
    assert caught[0].filename == __file__  # points at the caller
    assert "0.6.0" in str(caught[0].message)


def entry(a="a", b="b", value=1.0):
    return {"a": a, "b": b, "value": value}


NEAR = agent([-0.8, 0.0], [0.8, 0.0]), agent([0.0, 0.0])
PAIR = dict(zip("ab", NEAR, strict=True))
PLANE = DoubleIntegratorControlModel("a", 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AgentSnapshot([0.0, np.nan], ZERO, 0.2), "position: expected finite numbers"),
        (lambda: AgentSnapshot(ZERO, [np.inf, 0.0], 0.2), "velocity: expected finite numbers"),
        (lambda: AgentSnapshot([2e9, 0.0], ZERO, 0.2), r"finite numbers up to 1e\+09"),
        (lambda: AgentSnapshot([0.0], [0.0], 0.2), r"position: expected shape \(2,\) or \(3,\)"),
        (lambda: AgentSnapshot(ZERO, np.zeros(3), 0.2), "velocity: expected 2 entries"),
        (lambda: AgentSnapshot(["a", "b"], ZERO, 0.2), "position: expected real numbers"),
        (lambda: AgentSnapshot(ZERO, ZERO, 0.0), "radius: expected a finite length > 0 m, got 0.0"),
        (lambda: AgentSnapshot(ZERO, ZERO, np.nan), "radius: .* got nan"),
        (lambda: AgentSnapshot(ZERO, ZERO, "wide"), "radius: expected a number, got"),
        (lambda: AgentSnapshot(ZERO, ZERO, 0.2, -1e-3), "age_s: expected a finite time >= 0 s"),
        (lambda: AgentSnapshot(ZERO, ZERO, 0.2, None), "age_s: expected a number, got"),
        (lambda: PLANE.action_to_cartesian_accel(NEAR[0], np.zeros(3)), "action shape of 'a'"),
        (lambda: PLANE.cartesian_accel_to_action(NEAR[0], np.zeros(3)), "cartesian_accel shape"),
        (lambda: DoubleIntegratorControlModel("a", 2, -0.1), r"capacity: expected a finite accel"),
        (lambda: DoubleIntegratorControlModel("a", 2, "x"), "capacity: expected a finite .*'x'"),
        (lambda: DoubleIntegratorControlModel("a", 4), "action_dim: expected 2 or 3, the Cartes"),
        (lambda: DoubleIntegratorControlModel("a", 2.0), "action_dim: expected 2 or 3"),
        (lambda: DoubleIntegratorControlModel(None, 2), "uid: expected an agent id as text, got"),
        (lambda: batch(uids=("ego", "ego")), "expected distinct ids"),
        (lambda: batch(uids=("ego",)), r"positions: expected shape \(B, 1, 2 or 3\)"),
        (lambda: batch(positions=np.full((3, 2, 2), np.nan)), "positions: expected finite numbers"),
        (lambda: batch(velocities=np.zeros((2, 2, 2))), r"velocities: expected shape \(3, 2, 2\)"),
        (lambda: batch(radii=np.ones(3)), r"radii: expected shape \(2,\)"),
        (lambda: batch(radii=np.array([0.2, 0.0])), "radii: expected lengths > 0 m"),
        (lambda: batch(ages_s=np.zeros((2, 2))), r"ages_s: expected shape \(3, 2\)"),
        (lambda: batch(ages_s=np.full((3, 2), -0.1)), "ages_s: expected finite times >= 0 s"),
        (lambda: SafetyState(None), "SafetyState.lambda_: expected a number by agent pair"),
        (lambda: SafetyState({}, epsilon=math.nan), "epsilon: expected a finite"),
        (lambda: SafetyState({}, eta=-0.1), "eta: expected a finite number >= 0, got -0.1"),
        (lambda: SafetyState({}, warmup_steps_remaining=-1), "whole number >= 0, got -1"),
        (lambda: SafetyState({}, warmup_steps_remaining=math.nan), "expected a whole number >= 0"),
        (lambda: SafetyState.from_dict({"schema_version": 2}), "schema version 1, got 2"),
        (incomplete_state, r"missing \['eta'\]"),
        (lambda: canonical_pair_order(["a", "b", "a"]), "duplicate 'a'"),
        (lambda: canonical_pair_key("a", "a"), "distinct UIDs"),
        (lambda: make_ego_pair_keys("ego", ["p", "ego", "p"]), "duplicate 'p'"),
        (lambda: make_lambda_dict(["a", "b"], fill="x"), "fill: expected a finite number, got 'x'"),
        (lambda: lambda_to_jsonable({("a", "b"): 1.0, ("b", "a"): 2.0}), "duplicate"),
        (lambda: lambda_to_jsonable({("a", "b"): math.inf}), "expected a finite number"),
        (lambda: lambda_from_jsonable([entry(), entry("b", "a")]), "duplicate"),
        (lambda: lambda_from_jsonable([entry(b="a")]), "distinct UIDs"),
        (lambda: lambda_from_jsonable([{"a": "a", "b": "b"}]), r"missing \['value'\]"),
        (lambda: lambda_from_jsonable([entry(value=math.nan)]), "expected a finite number"),
        (lambda: lambda_from_jsonable([entry(value=10**400)]), "beyond the range of floats"),
        (lambda: lambda_from_jsonable([entry(value="1")]), "expected a number, got '1'"),
        (lambda: lambda_from_jsonable([1.0, 2.0], uids="abc"), "canonical pair count 3"),
        (lambda: lambda_from_jsonable([], uids="ab"), "canonical pair count 1"),
        (lambda: pair_h_value(*NEAR, alpha_pair=math.nan), "alpha_pair: expected an acceleration"),
        (
            lambda: compute_prediction_gap_for_pairs(PAIR, PAIR, alpha_pair=math.inf, gamma=1.0),
            "alpha_pair: expected an acceleration >= 0",
        ),
        (lambda: compute_per_pair_loss(math.nan * ZERO, ZERO), "expected numbers, got NaN"),
    ],
)
def test_malformed_record_is_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    ("payload", "uids", "message"),
    [
        ([entry(a=1)], None, "expected agent ids as text"),
        ([entry(), 3.0], None, "expected an object"),
        ([1.0], None, "needs uids"),
        ([1.0, entry()], "abc", r"payload\[1\]: expected a number like"),
        ([1.0, True], "abc", r"payload\[1\]: expected a number like"),
        ({}, "ab", "expected list"),
        ((1.0,), "ab", "expected list"),
    ],
)
def test_wire_form_of_another_kind_is_refused(payload, uids, message):
    with pytest.raises(TypeError, match=message):
        lambda_from_jsonable(payload, uids=uids)


def test_solve_qp_stub_solves_whatever_it_is_given():
    # The minimiser of |x|^2 / 2 + q @ x is -q, inside the box: |q| = sqrt(0.05).
    norm, elapsed_s = solve_qp_stub("anything", at=all)
    assert math.isclose(norm, math.sqrt(0.05), rel_tol=1e-12)
    assert elapsed_s > 0.0


def test_names_of_the_original_module_are_here():
    assert cbf_qp.AgentSnapshot is AgentSnapshot
    assert cbf_qp.DEFAULT_CBF_GAMMA == 5.0
    assert {mode.name: mode.value for mode in cbf_qp.SafetyMode} == {
        "EGO_ONLY": "ego_only",
        "CENTRALIZED": "centralized",
        "SHARED_CONTROL": "shared_control",
    }
