import mpmath
import numpy as np
import pytest

from cadenza.envs.crossing_motion import (
    MIN_GAP,
    draw_layout,
    layout_draws,
    layout_from_uniforms,
    unit_circle,
)


def test_unit_circle_at_quarter_turns_is_exact():
    expected = [[1, 0], [0, 1], [-1, 0], [0, -1], [1, 0], [0, -1]]
    points = unit_circle(np.array([0.0, 0.25, 0.5, 0.75, 1.0, -0.25]))
    np.testing.assert_array_equal(points, expected)


def test_unit_circle_agrees_with_multiple_precision():
    turns = np.random.default_rng(0).uniform(-1.0, 2.0, 500)
    points = unit_circle(turns)
    with mpmath.workdps(40):
        angles = [2 * mpmath.pi * mpmath.mpf(turn) for turn in turns.tolist()]
        exact = [[float(mpmath.cos(a)), float(mpmath.sin(a))] for a in angles]
    # The reduced angle carries one rounding of 1e-16 relative, so one more than the result's own.
    np.testing.assert_allclose(points, exact, rtol=0, atol=4e-16)


def test_layout_for_two_with_hand_made_draws_lies_where_the_header_says():
    # Rotation 0, coin 0 (first half forward), jitter 0: each robot MIN_GAP / 2 from its slot.
    starts = layout_from_uniforms(np.zeros(4), 2)
    angles = np.array([MIN_GAP / 2, 0.5 - MIN_GAP / 2])
    expected = 2.0 * np.stack((np.cos(2 * np.pi * angles), np.sin(2 * np.pi * angles)), axis=-1)
    np.testing.assert_allclose(starts, expected, atol=1e-14)


def test_layout_coin_swaps_which_half_moves_forward():
    starts = layout_from_uniforms(np.array([0.0, 0.5, 0.0, 0.0]), 2)
    angles = np.array([-MIN_GAP / 2, 0.5 + MIN_GAP / 2])
    expected = 2.0 * np.stack((np.cos(2 * np.pi * angles), np.sin(2 * np.pi * angles)), axis=-1)
    np.testing.assert_allclose(starts, expected, atol=1e-14)


@pytest.mark.parametrize("num_robots", [2, 5, 8])
def test_draw_layout_takes_a_fixed_number_of_draws(num_robots):
    used, reference = np.random.default_rng(1), np.random.default_rng(1)
    draw_layout(used, num_robots)
    reference.random(layout_draws(num_robots))
    assert used.random() == reference.random()
