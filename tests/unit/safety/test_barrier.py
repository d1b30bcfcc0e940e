import math

import pytest

from cadenza.safety.cbf import (
    PairParameters,
    braking_meets_row,
    pair_geometry,
    pair_h_value,
    tangential_allowance,
)
from tests.unit.safety.scenes import agent

DT, GAMMA = 0.1, 5.0


def test_geometry_in_the_plane_by_hand():
    # dp = (3, 4), r = 5, n = (0.6, 0.8); dv = (1, -2): n.dv = 0.6 - 1.6 = -1, so w = 1;
    # |dv|^2 = 5, tangential^2 = 5 - 1 = 4.
    normal, r, w, t = pair_geometry([3.0, 4.0], [1.0, 0.0], [0.0, 0.0], [0.0, 2.0])
    assert normal == pytest.approx([0.6, 0.8], abs=1e-15)
    assert (r, w, t) == pytest.approx((5.0, 1.0, 2.0), abs=1e-14)


@pytest.mark.parametrize("dim", [2, 3])
def test_geometry_of_coincident_centres_points_along_x(dim):
    normal, r, w, t = pair_geometry(
        [1.0] * dim, [3.0] + [4.0] * (dim - 1), [1.0] * dim, [0.0] * dim
    )
    assert normal == [1.0] + [0.0] * (dim - 1)
    assert (r, w) == (0.0, -3.0)
    assert t == pytest.approx(4.0 * math.sqrt(dim - 1))


@pytest.mark.parametrize(
    ("t", "relative_accel", "expected"),
    [
        # A dt = 10 > 1.5 t: half the reversal, dt t^2 / (8 R) = 0.1 / 4.
        (1.0, 100.0, 0.025),
        # A dt = 1.2: (1.2 - 1)(2 - 1.2) = 0.16; 0.05 * 0.16 / 0.5.
        (1.0, 12.0, 0.016),
        # A dt = 0.8 < t: the tangential velocity cannot turn, so it only moves the agents apart.
        (1.0, 8.0, 0.0),
        (0.0, 100.0, 0.0),
    ],
)
def test_tangential_allowance_by_hand(t, relative_accel, expected):
    assert tangential_allowance(t, relative_accel, 0.5, DT) == pytest.approx(expected, abs=1e-15)


def test_tangential_allowance_against_a_partner_that_turns_its_push_by_hand():
    # kappa = 0.5: t / (2 kappa) = 1 < A dt - t = 9, so z = 1, gain 1 (1 - 0.5) = 0.5.
    assert tangential_allowance(1.0, 100.0, 0.5, DT, 0.5) == pytest.approx(0.05, abs=1e-15)
    # A dt = 1.9: z = 0.9, 0.9 (1 - 0.45) = 0.495, more than what any turn gives, 1.9^2 / 8.
    expected = 0.1 * 1.9**2 / 8.0
    assert tangential_allowance(1.0, 19.0, 0.5, DT, 0.5) == pytest.approx(expected, abs=1e-15)


def test_braking_meets_the_row_up_to_the_longest_step_by_hand():
    # D = 0.4, A = 2 sqrt(2) + 0.7, alpha = 1.3: at 0.49 s T = A^2 dt^3 / (16 D) = 0.2289 and
    # A^2 dt^3 / (8 (sqrt(0.8 / 1.3) - 0.245)) + T^2 = 0.3394 + 0.0524 <= 0.637^2 = 0.4058;
    # at 0.51 s 0.3896 + 0.0666 > 0.663^2 = 0.4396.
    for dt, meets in ((0.05, True), (0.49, True), (0.51, False)):
        crossing = PairParameters(
            alpha=1.3,
            partner_accel=0.7,
            relative_accel=2.0 * math.sqrt(2.0) + 0.7,
            dt=dt,
            gamma=GAMMA,
            plant="zoh",
        )
        assert braking_meets_row(crossing, 0.4) == meets


def test_continuous_barrier_by_hand():
    # +-2 m, +-1 m/s head on, R = 0.2, alpha = 10: e = 3.6, w = 2, h = sqrt(72) - 2.
    left, right = agent([-2, 0], [1, 0]), agent([2, 0], [-1, 0])
    assert pair_h_value(left, right, alpha_pair=10.0) == pytest.approx(math.sqrt(72.0) - 2.0)
    assert pair_h_value(left, right, alpha_pair=10.0) == pair_h_value(right, left, alpha_pair=10.0)


def test_continuous_barrier_near_contact_keeps_its_floor_and_rises():
    values = [
        pair_h_value(agent([0.4 + e, 0], [-0.1, 0]), agent([0, 0]), alpha_pair=10.0)
        for e in (-1e-6, 0.0, 1e-9, 1e-6)
    ]
    # Touching: h = -w = -0.1; just outside: 1e-3 - 0.1; at 1e-6: sqrt(2e-5) - 0.1.
    assert values[1:3] == pytest.approx([-0.1, 1e-3 - 0.1], abs=1e-9)
    assert values[3] == pytest.approx(math.sqrt(2e-5) - 0.1, abs=1e-7)
    assert values == sorted(values)


def test_continuous_barrier_of_coincident_centres_is_minus_the_radii():
    assert pair_h_value(agent([1, 1], [3, 0]), agent([1, 1]), alpha_pair=0.0) == -0.4
