"""The centralized and the shared-control filter, by hand."""

import math

import numpy as np
import pytest

from cadenza.core.errors import ConfigurationError, InputError, UnknownNameError
from cadenza.safety.cbf_qp import ExpCBFQP, SafetyMode
from cadenza.safety.contracts import SafetyState, make_lambda_dict
from cadenza.safety.control_models import DoubleIntegratorControlModel
from cadenza.safety.errors import ConcertoSafetyInfeasible
from cadenza.safety.filters.ego_only import EgoOnlyCBFQP
from cadenza.safety.filters.joint import CentralizedCBFQP, SharedControlCBFQP
from tests.unit.safety.scenes import agent, box

DT = 0.05
#: Closing at 2 m/s along x, centres 1 m apart, radii 0.2 m: e = 0.6 m, n = (-1, 0).
HEAD_ON = {"a": agent([0.0, 0.0], [1.0, 0.0]), "b": agent([1.0, 0.0], [-1.0, 0.0])}
REST = {"a": np.zeros(2), "b": np.zeros(2)}
#: (c_max - w) / dt of that pair with alpha = 2 + 2 and dt = 0.05, semi-implicit:
#: c_max = (-3 alpha dt + sqrt(9 alpha^2 dt^2 + 8 alpha e)) / 2 = (-0.6 + sqrt(19.56)) / 2.
LEVEL = ((-0.6 + math.sqrt(19.56)) / 2.0 - 2.0) / 0.05


def models(uids="ab", dim=2, **capacity):
    return {uid: DoubleIntegratorControlModel(uid, dim, capacity.get(uid)) for uid in uids}


def centralized(uids="ab", dim=2, **options):
    options = {"dt": DT, "plant": "semi_implicit"} | options
    return ExpCBFQP.centralized(control_models=models(uids, dim), **options)


def shared(uids="ab", **options):
    options = {"dt": DT, "plant": "semi_implicit"} | options
    return ExpCBFQP.shared_control(control_models=models(uids), **options)


def call(guard, proposed, agents, *, lambda_=0.0, bounds=None, **arguments):
    return guard.filter(
        proposed,
        {"agent_states": agents},
        SafetyState(make_lambda_dict(proposed, fill=lambda_)),
        box() if bounds is None else bounds,
        **arguments,
    )


def vectors(actions):
    return {uid: action.tolist() for uid, action in actions.items()}


# --- what the rows demand ----------------------------------------------------------------------


def test_shared_control_leaves_the_rest_to_the_ego():
    actions, info = call(shared(), REST, HEAD_ON, ego_uid="a", partner_action_bound=0.3)
    assert actions["a"] == pytest.approx([LEVEL + 0.3, 0.0], abs=1e-12)
    assert actions["b"] == pytest.approx([0.3, 0.0], abs=1e-12)
    assert info["status"] == "optimal"
    assert info["uncertified"]  # the partner may not brake with all it has


def test_classical_row_by_hand():
    # alpha = 4, e = 0.6: psi = sqrt(4.8), h = psi - 2, b = -(4 / psi) 2 + gamma h.
    psi = math.sqrt(4.8)
    level = -8.0 / psi + 3.0 * (psi - 2.0)
    guard = ExpCBFQP.centralized(control_models=models(), barrier="wae", cbf_gamma=3.0)
    actions, info = call(guard, REST, HEAD_ON)
    assert actions["a"] == pytest.approx([level / 2.0, 0.0], abs=1e-12)
    assert info["uncertified"]
    cubic = ExpCBFQP.centralized(control_models=models(), barrier="wae", cbf_gamma=3.0, cbf_power=3)
    level = -8.0 / psi + 3.0 * (psi - 2.0) ** 3
    assert call(cubic, REST, HEAD_ON)[0]["a"] == pytest.approx([level / 2.0, 0.0], abs=1e-12)


def test_lambda_moves_the_right_hand_side():
    relaxed, info = call(centralized(), REST, HEAD_ON, lambda_=0.4)
    assert relaxed["a"][0] == pytest.approx((LEVEL + 0.4) / 2.0, abs=1e-12)
    assert info["uncertified"]
    tight, info = call(centralized(), REST, HEAD_ON, lambda_=-0.4)
    assert tight["a"][0] == pytest.approx((LEVEL - 0.4) / 2.0, abs=1e-12)
    assert info["lambda"] == {("a", "b"): -0.4}
    assert not info["uncertified"]


def test_lambda_tightens_only_as_far_as_the_boxes_follow():
    # The boxes reach u_a - u_b = -4, so lambda enters as -4 - LEVEL.
    actions, info = call(centralized(), REST, HEAD_ON, lambda_=-50.0)
    assert info["lambda"][("a", "b")] == pytest.approx(-4.0 - LEVEL, abs=1e-8)
    assert info["status"] == "optimal"
    assert actions["a"] == pytest.approx([-2.0, 0.0], abs=1e-8)


def test_lambda_that_sets_rows_against_each_other_is_dropped():
    # Three agents in a line; a and c may hardly move, and b cannot leave both at once.
    line = {uid: agent([x, 0.0]) for uid, x in zip("abc", (-0.45, 0.0, 0.45), strict=True)}
    proposed = {uid: np.zeros(2) for uid in "abc"}
    rules = {"ego_uid": "b", "partner_action_bound": 1e-3}
    one_row, info = call(
        shared(), {uid: proposed[uid] for uid in "ab"}, line, lambda_=-50.0, **rules
    )
    assert info["lambda"][("a", "b")] < 0.0  # one row alone follows as far as it can
    assert one_row["b"][0] == pytest.approx(2.0, abs=1e-8)
    actions, info = call(shared("abc"), proposed, line, lambda_=-50.0, **rules)
    assert info["lambda"] == make_lambda_dict("abc")
    assert info["status"] == "inactive"
    assert vectors(actions) == vectors(proposed)


def test_own_bounds_set_box_and_authority_of_one_agent():
    # alpha = 2 + 0.5: c_max = (-0.375 + sqrt(0.140625 + 8 * 2.5 * 0.6)) / 2, so the pair may close
    # by (c_max - 1.5) / dt = 1.09 m/s^2. Proposed are 1.2 + 0.5; both give half of the excess.
    agents = {"a": agent([0.0, 0.0], [1.5, 0.0]), "b": agent([1.0, 0.0])}
    proposed = {"a": np.array([1.2, 0.0]), "b": np.array([-0.5, 0.0])}
    allowed = ((-0.375 + math.sqrt(0.140625 + 12.0)) / 2.0 - 1.5) / DT
    excess = 1.7 - allowed
    guard = centralized(bounds_by_uid={"b": box(0.5)})
    actions, info = call(guard, proposed, agents)
    assert actions["a"] == pytest.approx([1.2 - excess / 2.0, 0.0], abs=1e-12)
    assert actions["b"] == pytest.approx([-0.5 + excess / 2.0, 0.0], abs=1e-12)
    assert not info["uncertified"]
    wilder, _ = call(guard, proposed | {"b": np.array([-0.5, 2.0])}, agents)
    assert wilder["b"][1] == 0.5  # b's box
    everyone, info = call(centralized(), proposed, agents)  # alpha = 4 asks for nothing yet
    assert info["status"] == "inactive"
    assert vectors(everyone) == vectors(proposed)


def test_declared_capacity_counts_only_in_upstream_mode():
    # The box reaches 2 in the weakest direction; both declare 3.
    wide = box(2.0, 3.0)
    psi = {alpha: math.sqrt(2.0 * alpha * 0.6) for alpha in (4.0, 6.0)}
    level = {alpha: -2.0 * alpha / psi[alpha] + 5.0 * (psi[alpha] - 2.0) for alpha in psi}
    own = ExpCBFQP.centralized(control_models=models(), barrier="wae")
    assert call(own, REST, HEAD_ON, bounds=wide)[0]["a"][0] == pytest.approx(level[4.0] / 2.0)
    same = ExpCBFQP.centralized(control_models=models(), barrier="wae", compat="upstream")
    assert call(same, REST, HEAD_ON, bounds=wide)[0]["a"][0] == pytest.approx(
        min(0.0, level[6.0] / 2.0)
    )


def test_upstream_mode_takes_lambda_as_it_is_and_raises():
    guard = ExpCBFQP.centralized(control_models=models(), barrier="wae", compat="upstream")
    with pytest.raises(ConcertoSafetyInfeasible, match="braking fallback"):
        call(guard, REST, HEAD_ON, lambda_=-50.0)
    own = ExpCBFQP.centralized(control_models=models(), barrier="wae")
    assert call(own, REST, HEAD_ON, lambda_=-50.0)[1]["status"] == "optimal"


def test_margin_is_added_to_the_radii():
    plain, info = call(centralized(), REST, HEAD_ON)
    kept, with_margin = call(centralized(margin_m=0.05), REST, HEAD_ON)
    assert with_margin["margin"] == pytest.approx([0.55])
    assert kept["a"][0] < plain["a"][0]
    assert info["margin"] == pytest.approx([0.6])


# --- frame --------------------------------------------------------------------------------------


def test_an_agent_that_no_active_row_touches_keeps_its_bits():
    agents = HEAD_ON | {"z": agent([90.0, 90.0])}
    proposed = {uid: np.array([0.1, -0.0]) for uid in "abz"}
    actions, info = call(centralized("abz"), proposed, agents)
    assert info["status"] == "optimal"
    assert actions["z"].tobytes() == proposed["z"].tobytes()
    assert actions["a"].tobytes() != proposed["a"].tobytes()


def test_shared_control_box_is_never_empty():
    # |u| = 9 > c + rho: the centre is clipped to 2 first, so the partner keeps [1.7, 2].
    far = {"a": agent([0.0, 0.0]), "b": agent([50.0, 0.0])}
    proposed = {"a": np.zeros(2), "b": np.array([9.0, -9.0])}
    actions, info = call(shared(), proposed, far, ego_uid="a", partner_action_bound=0.3)
    assert vectors(actions) == {"a": [0.0, 0.0], "b": [2.0, -2.0]}
    assert info["status"] == "optimal"


def test_snapshots_of_agents_without_proposals_are_ignored():
    crowd = HEAD_ON | {"wall": agent([0.5, 0.0])}
    alone, _ = call(centralized("ab"), REST, HEAD_ON)
    among, info = call(centralized("ab"), REST, crowd)
    assert vectors(among) == vectors(alone)
    assert list(info["lambda"]) == [("a", "b")]


def test_infeasible_step_returns_the_least_violation_or_raises():
    # e = 0.1 m at w = 2 m/s: full braking is not enough; both still brake as hard as they can.
    late = {"a": agent([0.0, 0.0], [1.0, 0.0]), "b": agent([0.5, 0.0], [-1.0, 0.0])}
    actions, info = call(centralized(), REST, late)
    assert actions["a"] == pytest.approx([-2.0, 0.0])
    assert actions["b"] == pytest.approx([2.0, 0.0])
    assert info["status"] == "infeasible"
    assert info["slack"][0] > 0.0
    assert info["constraint_violation"][0] > 0.0
    assert info["uncertified"]
    with pytest.raises(ConcertoSafetyInfeasible, match=r"infeasible.*braking fallback"):
        call(centralized(on_infeasible="raise"), REST, late)


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"control_models": {}}, "at least one control model"),
        ({"control_models": {"x": DoubleIntegratorControlModel("a", 2)}}, "control model of 'x'"),
        ({"dt": None, "barrier": "sampled"}, "expected dt, the control step.*leave barrier out"),
        ({"dt": 0.0}, r"filter: dt: expected seconds in \[1e-06, 1000\], got 0.0"),
        ({"barrier": "wae"}, 'dt belongs to barrier="sampled"'),
        ({"cbf_power": 3}, 'cbf_power belongs to barrier="wae"'),
        ({"compat": "upstream"}, 'needs barrier="wae"'),
        ({"bounds_by_uid": {"z": box()}}, r"bounds_by_uid: .*got \['z'\]"),
        ({"bounds_by_uid": "x"}, "bounds_by_uid: expected Bounds by agent id, got str"),
        ({"bounds_by_uid": {"a": 1.0}}, r"bounds_by_uid\['a'\]: expected Bounds, got float"),
        ({"dt": "x"}, "dt: expected seconds in .* got 'x'"),
        ({"solver": 3}, "solver: expected a QPSolver or None, got int"),
    ],
)
@pytest.mark.parametrize("build", [ExpCBFQP.centralized, ExpCBFQP.shared_control])
def test_constructor_refuses(build, options, message):
    with pytest.raises(ConfigurationError, match=message):
        build(**({"control_models": models(), "dt": DT} | options))


@pytest.mark.parametrize("build", [ExpCBFQP.centralized, ExpCBFQP.shared_control])
def test_filter_without_dt_takes_the_row_of_continuous_time_and_says_so(build):
    state, proposed = SafetyState({("a", "b"): 0.0}), {"a": np.array([2.0, 0.0])}
    proposed["b"] = -proposed["a"]
    rows = {}
    for name, options in (
        ("none", {}),
        ("wae", {"barrier": "wae"}),
        ("dt", {"dt": DT}),
        ("sampled", {"dt": DT, "barrier": "sampled"}),
    ):
        guard = build(control_models=models(), **options)
        rows[name] = guard.filter(
            proposed, {"agent_states": HEAD_ON}, state, box(), ego_uid="a", partner_action_bound=4.0
        )
    assert rows["none"][0]["a"].tolist() == rows["wae"][0]["a"].tolist()
    assert rows["dt"][0]["a"].tolist() == rows["sampled"][0]["a"].tolist()
    assert rows["none"][0]["a"].tolist() != rows["dt"][0]["a"].tolist()
    assert [rows[name][1]["uncertified"] for name in ("none", "dt")] == [True, False]


STATE = SafetyState({("a", "b"): 0.0})


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"obs": {}}, InputError, r'obs\["agent_states"\] must be a dict.*NoneType'),
        ({"proposed": np.zeros(4)}, TypeError, "proposed_action must be a dict.*ndarray"),
        ({"proposed": {}}, InputError, "at least one agent"),
        ({"proposed": REST | {"z": np.zeros(2)}}, UnknownNameError, "'z' in control_models"),
        ({"obs": {"agent_states": {"a": HEAD_ON["a"]}}}, InputError, "expected a snapshot of 'b'"),
        (
            {"obs": {"agent_states": HEAD_ON | {"b": agent([1.0, 0.0, 0.0])}}},
            InputError,
            "expected 2 dimensions",
        ),
        ({"proposed": REST | {"b": np.zeros(3)}}, InputError, r"proposed_action\['b'\]: expected"),
    ],
)
def test_filter_refuses(changes, error, message):
    given = {"proposed": REST, "obs": {"agent_states": HEAD_ON}, "state": STATE} | changes
    for guard, extra in (
        (centralized(), {}),
        (shared(), {"ego_uid": "a", "partner_action_bound": 1.0}),
    ):
        with pytest.raises(error, match=message):
            guard.filter(given["proposed"], given["obs"], given["state"], box(), **extra)


@pytest.mark.parametrize("bound", [0.0, math.nan, "1"])
def test_shared_control_refuses_a_bound_that_is_none(bound):
    with pytest.raises(InputError, match="partner_action_bound: expected a finite number > 0"):
        call(shared(), REST, HEAD_ON, ego_uid="a", partner_action_bound=bound)


@pytest.mark.parametrize("ego", [None, "z"])
def test_shared_control_refuses_an_ego_that_proposes_nothing(ego):
    with pytest.raises(InputError, match=r"ego_uid: expected an agent of proposed_action"):
        call(shared(), REST, HEAD_ON, ego_uid=ego, partner_action_bound=1.0)


def test_two_agents_without_authority_are_refused():
    guard = ExpCBFQP.centralized(control_models=models(a=0.0, b=0.0), dt=DT)
    with pytest.raises(ConfigurationError, match="'a' or 'b' to have authority"):
        call(guard, REST, HEAD_ON)


@pytest.mark.parametrize(
    ("mode", "kind", "options"),
    [
        (SafetyMode.EGO_ONLY, EgoOnlyCBFQP, {}),
        (SafetyMode.CENTRALIZED, CentralizedCBFQP, {"dt": DT}),
        (SafetyMode.SHARED_CONTROL, SharedControlCBFQP, {"dt": DT}),
    ],
)
def test_calling_the_class_builds_the_filter_of_a_mode(mode, kind, options):
    guard = ExpCBFQP(control_models=models(), mode=mode, **options)
    assert type(guard) is kind
    assert guard.mode is mode
    with pytest.raises(ConfigurationError, match="cbf_gamma"):
        ExpCBFQP(control_models=models(), mode=mode, cbf_gamma=0.0, **options)


def test_calling_the_class_without_a_mode_protects_the_ego_alone():
    assert ExpCBFQP(control_models=models()).mode is SafetyMode.EGO_ONLY
    with pytest.raises(ConfigurationError, match="expected no dt for SafetyMode"):
        ExpCBFQP(control_models=models(), dt=DT)
    with pytest.raises(ConfigurationError, match="expected a SafetyMode, got 'centralized'"):
        ExpCBFQP(control_models=models(), mode="centralized", dt=DT)


def test_centralized_shares_the_braking_equally():
    # The row reads u_a,x - u_b,x <= LEVEL < 0; from rest both change by half of it.
    actions, info = call(centralized(), REST, HEAD_ON)
    assert actions["a"] == pytest.approx([LEVEL / 2.0, 0.0], abs=1e-12)
    assert actions["b"] == pytest.approx([-LEVEL / 2.0, 0.0], abs=1e-12)
    assert info["status"] == "optimal"
    assert info["slack"].tolist() == [0.0]
    assert info["margin"] == pytest.approx([0.6])
    assert info["intervention"] == pytest.approx(-LEVEL / math.sqrt(2.0))
    assert not info["uncertified"]
    # h = (-alpha dt + sqrt(alpha^2 dt^2 + 8 alpha e)) / 2 - w with w = 2: just safe.
    assert (-0.2 + math.sqrt(0.04 + 19.2)) / 2.0 - 2.0 > 0.0
    assert info["constraint_violation"].tolist() == [0.0]
