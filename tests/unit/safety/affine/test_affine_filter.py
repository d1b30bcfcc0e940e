"""The filter of control-affine robots: actions, records, fallbacks, batches, errors."""

import math

import numpy as np
import pytest
import torch

from cadenza.core.errors import ConfigurationError, InputError, UnknownNameError
from cadenza.safety.affine import (
    FALLBACKS,
    AffineCBFFilter,
    Barrier,
    Disturbance,
    DoubleIntegrator,
    DubinsCar,
    PlanarQuadrotor,
    SampledData,
    estimate_rates,
    half_plane,
    keep_out_ball,
    lift,
    state_box,
)
from cadenza.safety.batched.projection import STATUS_NAMES
from cadenza.safety.solvers import QPSolution, SolveStatus
from tests.unit.safety.affine.affine_checks import tensor

POINT = DoubleIntegrator(2)
BALL = keep_out_ball([0.0, 0.0], 0.5, gains=(1.0, 2.0))
LINE = DoubleIntegrator(1)


def array(*numbers):
    return np.array(numbers, dtype=np.float64)


def wall(place, gains=(1.0, 1.0), **options):
    """Return the barrier place - x >= 0 for a point on a line."""
    return half_plane([-1.0], -place, position=(0,), gains=gains, **options)


def test_action_is_the_nominal_bit_for_bit_while_nothing_is_active():
    guard = AffineCBFFilter(POINT, [BALL], box=(-2.0, 2.0))
    nominal = array(-0.0, 0.1 + 0.2)
    action, info = guard.filter(array(3, 0, 0, 0), nominal)
    assert action.tobytes() == nominal.tobytes()
    assert action is not nominal
    assert (info.status, info.intervened, info.intervention) == ("inactive", False, 0.0)
    assert (info.fallback, info.certified, info.lost) == (None, True, ())
    assert info.h.tolist() == [8.75]


def test_action_meets_an_active_row_exactly():
    # x = 0, v = 1, wall at 1, gains 1: psi_1 = -v + (1 - x) = 0, row -u - v + psi_1 >= 0: u <= -1
    guard = AffineCBFFilter(LINE, [wall(1.0)])
    action, info = guard.filter(array(0.0, 1.0), array(3.0))
    assert action.tolist() == pytest.approx([-1.0], abs=1e-12)
    assert (info.status, info.intervened, info.certified) == ("optimal", True, True)
    assert info.intervention == pytest.approx(4.0)
    assert info.slack.tolist() == pytest.approx([0.0], abs=1e-12)
    assert info.lowest.tolist() == pytest.approx([0.0])


def test_disturbance_and_sampled_data_tighten_the_row():
    # the row u <= -1 of the test above, less bound * |L_g psi| = 0.5, less dt * rate = 0.3
    push = Disturbance.matched(LINE, 0.5)
    held = SampledData(0.1, {"half plane": 3.0})
    for options, expected in (
        ({"disturbances": [push]}, -1.5),
        ({"sampled_data": held}, -1.3),
        ({"disturbances": [push], "sampled_data": held}, -1.8),
    ):
        guard = AffineCBFFilter(LINE, [wall(1.0)], **options)
        assert guard.filter(array(0.0, 1.0), array(3.0))[0].tolist() == pytest.approx([expected])


def test_least_violation_brakes_as_hard_as_the_box_allows():
    guard = AffineCBFFilter(LINE, [wall(1.0)], box=(-0.5, 0.5))
    action, info = guard.filter(array(0.0, 1.0), array(0.4))
    assert action.tolist() == [-0.5]
    assert (info.status, info.fallback) == ("infeasible", "least_violation")
    assert (info.certified, info.slack.tolist()) == (False, pytest.approx([0.5]))


def test_weight_decides_which_of_two_contradicting_rows_is_missed():
    # x in [1, -1] is impossible: at rest at 0 the rows are u <= -1 and u >= 1
    def contradicting(left, right):
        return [
            wall(-1.0, name="left", weight=left),
            half_plane([1.0], 1.0, position=(0,), gains=1.0, name="right", weight=right),
        ]

    for left, right, expected in ((2.0, 1.0, -1.0), (1.0, 2.0, 1.0)):
        guard = AffineCBFFilter(LINE, contradicting(left, right))
        action, info = guard.filter(array(0.0, 0.0), array(0.0))
        assert action.tolist() == pytest.approx([expected], abs=1e-6)
        assert info.status == "infeasible"


def test_fallback_brakes_or_holds_zero_within_the_box():
    state, nominal = array(0.0, 1.0), array(0.4)
    for name, box, expected in (
        ("brake", (-0.5, 0.5), -0.5),
        ("brake", (-0.9, 0.5), -0.9),
        ("hold_zero", (-0.5, 0.5), 0.0),
        ("hold_zero", (-0.5, -0.2), -0.2),
    ):
        guard = AffineCBFFilter(LINE, [wall(1.0)], box=box, fallback=name)
        action, info = guard.filter(state, nominal)
        assert (action.tolist(), info.fallback) == ([expected], name)


def test_registered_fallback_is_used_and_checked():
    seen, answers = [], [array(-0.25), array(9.0), array(1.0, 2.0), array(math.nan)]

    def mine(request):
        seen.append(request)
        return answers[len(seen) - 1]

    FALLBACKS.register("test_affine_mine", mine)
    guard = AffineCBFFilter(LINE, [wall(1.0)], box=(-0.5, 0.5), fallback="test_affine_mine")
    state, nominal = array(0.0, 1.0), array(0.4)
    assert guard.filter(state, nominal)[0].tolist() == [-0.25]
    assert seen[0].least_violation.tolist() == [-0.5]
    assert (seen[0].status, seen[0].nominal.tolist()) == ("infeasible", [0.4])
    assert guard.filter(state, nominal)[0].tolist() == [0.5]  # moved into the box
    for _ in range(2):
        with pytest.raises(InputError, match=r"'test_affine_mine': expected finite numbers of sh"):
            guard.filter(state, nominal)


def test_row_the_action_does_not_act_on_leads_to_rest_and_not_to_the_nominal():
    # A Dubins car that heads straight at the centre: turning changes nothing at first order.
    gap = keep_out_ball([1.0, 0.0], 0.5, gains=1.0, name="ahead")
    guard = AffineCBFFilter(DubinsCar(), [gap], box=(-1.0, 1.0))
    action, info = guard.filter(array(0.2, 0.0, 0.0), array(0.7))
    assert (info.status, info.lost, info.certified) == ("infeasible", ("ahead",), False)
    assert action.tolist() == [0.0]
    assert info.slack[0] > 0.0
    states = torch.tensor([[0.2, 0.0, 0.0], [-9.0, 0.0, 0.0]]).double()
    actions, batch = guard.filter_batch(states, torch.full((2, 1), 0.7, dtype=torch.float64))
    assert actions.tolist() == [[0.0], [0.7]]
    assert batch.lost.tolist() == [[True], [False]]


def test_row_that_is_not_finite_is_lost_and_reported():
    root = Barrier("root", lambda x: torch.sqrt(x[0]) - 0.1, 1.0)
    samples = torch.rand(8, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    guard = AffineCBFFilter(LINE, [root], samples=samples, fallback="hold_zero")
    action, info = guard.filter(array(-1.0, 0.0), array(0.3))
    assert (info.status, info.lost, info.slack.tolist()) == ("infeasible", ("root",), [math.inf])
    assert action.tolist() == [0.0]
    U, batch = guard.filter_batch(torch.tensor([[-1.0, 0.0]]).double(), torch.ones(1, 1).double())
    assert (U.tolist(), batch.lost.tolist(), batch.slack.tolist()) == (
        [[0.0]],
        [[True]],
        [[math.inf]],
    )


class GivesUp:
    """A solver that never finds anything."""

    name = "gives_up"

    def run(self, P, q, A, b, lower, upper, *, warm_start=False):
        return QPSolution(np.full(q.shape, np.nan), SolveStatus.MAX_ITER, 7)

    def solve(self, P, q, A, b, *, warm_start=True):
        raise NotImplementedError


def test_failing_solver_leads_to_the_fallback_and_its_status_is_told():
    corner = [
        half_plane([1.0, 0.2], 0.0, name="a", gains=1.0),
        half_plane([0.2, 1.0], 0.0, name="b", gains=1.0),
    ]
    state, nominal = array(0.1, 0.1, -0.2, -0.2), array(-1.0, -1.0)
    sound = AffineCBFFilter(POINT, corner).filter(state, nominal)[1]
    assert sound.status == "optimal"
    guard = AffineCBFFilter(POINT, corner, solver=GivesUp(), fallback="brake")
    action, info = guard.filter(state, nominal)
    assert (info.status, info.fallback, info.certified) == ("max_iter", "brake", False)
    assert action.tolist() == pytest.approx([0.4, 0.4])


def random_guard(fallback):
    return AffineCBFFilter(
        PlanarQuadrotor(),
        [
            half_plane([0.0, 1.0], 0.2, gains=(2.0, 3.0), name="floor"),
            keep_out_ball([1.0, 1.0], 0.4, gains=2.0),
            *state_box([-math.inf] * 6, [9, 9, 0.5, 3, 3, 9], gains=4.0),
        ],
        box=(0.0, 6.0),
        fallback=fallback,
    )


@pytest.mark.parametrize("fallback", ["least_violation", "brake", "hold_zero"])
def test_batch_equals_one_by_one(fallback):
    guard = random_guard(fallback)
    rng = np.random.default_rng(8)
    X = rng.uniform(-1, 1, size=(40, 6)) * [2, 1, 0.5, 2, 2, 1] + [0, 1.4, 0, 0, 0, 0]
    U = rng.uniform(-1, 7, size=(40, 2))
    X[:12, 0] = 5.0
    X[:12, 3:] = 0.0
    U[:12] = rng.uniform(2.4, 3.5, size=(12, 1))
    actions, batch = guard.filter_batch(torch.from_numpy(X), torch.from_numpy(U))
    seen = set()
    for i, (x, u) in enumerate(zip(X, U, strict=True)):
        action, info = guard.filter(x, u)
        np.testing.assert_allclose(actions[i].numpy(), action, rtol=0, atol=1e-7)
        assert STATUS_NAMES[int(batch.status[i])] == info.status
        assert bool(batch.intervened[i]) == info.intervened
        assert bool(batch.fallback[i]) == (info.fallback is not None)
        assert bool(batch.certified[i]) == info.certified
        np.testing.assert_allclose(batch.h[i].numpy(), info.h, atol=1e-12)
        np.testing.assert_allclose(batch.lowest[i].numpy(), info.lowest, atol=1e-9)
        np.testing.assert_allclose(batch.slack[i].numpy(), info.slack, atol=1e-5)
        assert batch.intervention[i].item() == pytest.approx(info.intervention, abs=1e-7)
        seen.add(info.status)
    assert seen == {"inactive", "optimal", "infeasible"}
    assert batch.names == info.names
    unchanged = batch.status == 0
    assert torch.equal(actions[unchanged], torch.from_numpy(U)[unchanged])


def test_rate_estimate_is_the_fall_of_the_row_by_hand():
    # c = -u - v a + b(-v + a (1 - x)) with a = b = 1: c' = -(a + b) u - a b v for held u
    lifted = [lift(wall(1.0), LINE)]
    states = torch.tensor([[0.0, 0.0], [0.3, 1.5], [0.0, -1.0]], dtype=torch.float64)
    rates = estimate_rates(lifted, LINE, states, array(-2.0), array(2.0), factor=1.0)
    assert rates == {"half plane": pytest.approx(2 * 2.0 + 1.5)}
    weaker = estimate_rates(lifted, LINE, states, array(-2.0), array(1.0), factor=1.0)
    assert weaker == {"half plane": pytest.approx(2 * 1.0 + 1.5)}
    # a push |w| <= 0.5 on v changes c by (a + b) w more
    push = [Disturbance.matched(LINE, 0.5)]
    pushed = estimate_rates(
        lifted, LINE, states, array(-2.0), array(2.0), disturbances=push, factor=2.0
    )
    assert pushed == {"half plane": pytest.approx(2 * (5.5 + 2 * 0.5), rel=1e-6)}


def guard(barriers=(BALL,), **options):
    return AffineCBFFilter(POINT, list(barriers), **options)


def rates(states=((0.0, 0.0),), lower=-1.0, upper=(1.0,), factor=2.0):
    bounds = array(lower), array(*upper)
    return estimate_rates([lift(wall(1.0), LINE)], LINE, tensor(*states), *bounds, factor=factor)


ONES, TWOS = torch.ones(3, 4).double(), torch.zeros(3, 2).double()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: guard([]), ConfigurationError, "at least one barrier"),
        (lambda: guard([BALL, BALL]), ConfigurationError, "different names"),
        (lambda: guard(box=(1.0, -1.0)), ConfigurationError, "expected lower <= upper"),
        (lambda: guard(box=([1.0] * 3, 2.0)), ConfigurationError, "box: lower: expected a number"),
        (lambda: guard(fallback="none"), UnknownNameError, "expected one of least_violation, brak"),
        (lambda: guard(action_weights=(1.0, 0.0)), ConfigurationError, "2 finite numbers > 0, the"),
        (lambda: guard(action_weights=(1.0, math.nan)), ConfigurationError, "action_weights: exp"),
        (lambda: guard(action_weights=(1.0,)), ConfigurationError, "action_weights: expected 2 fi"),
        (lambda: guard(action_weights="ab"), ConfigurationError, "action_weights: expected"),
        (lambda: guard(max_degree=1), ConfigurationError, "one of its first 1 derivatives"),
        (
            lambda: guard(sampled_data=SampledData(0.1, {"other": 1.0})),
            ConfigurationError,
            "one rate for each of",
        ),
        (
            lambda: AffineCBFFilter(DubinsCar(), [half_plane([1.0, 0.0], -9.0)], fallback="brake"),
            ConfigurationError,
            "expected dynamics with a brake method",
        ),
        (lambda: SampledData(0.0), ConfigurationError, "dt: expected a finite control step > 0"),
        (lambda: SampledData(0.1, {"a": -1.0}), ConfigurationError, r"\['a'\]: expected a finite"),
        (lambda: guard().filter(array(0), array(0, 0)), InputError, r"x: expected shape \(4,\)"),
        (lambda: guard().filter(array(0, 0, 0, 0), array(0)), InputError, "u_nominal: expected sh"),
        (
            lambda: guard().filter(array(0, math.nan, 0, 0), array(0, 0)),
            InputError,
            "x: expected f",
        ),
        (lambda: guard().filter_batch(ONES.float(), TWOS.float()), InputError, "X: expected float"),
        (lambda: guard().filter_batch(ONES, TWOS[:2]), InputError, r"U_nominal: .*shape \(B, 2\)"),
        (lambda: guard().filter_batch(math.nan * ONES, TWOS), InputError, "in row 0"),
        (lambda: rates(states=[(0.0, 0.0, 0.0)]), InputError, "expected finite states"),
        (lambda: rates(lower=-math.inf), InputError, "expected finite bounds"),
        (lambda: rates(upper=(1.0, 1.0)), InputError, r"bounds of shape \(1,\)"),
        (lambda: rates(factor=0.5), ConfigurationError, "factor: expected a finite number >= 1"),
    ],
)
def test_malformed_parts_and_calls_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()
