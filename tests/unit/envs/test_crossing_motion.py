import pytest

from cadenza.envs.crossing_motion import accelerated, closest_approach, moved


def test_moved_and_accelerated_follow_the_hold():
    # p = 1 + 2 * 0.05 + 4 * 0.0025 / 2; v = 2 + 4 * 0.05.
    assert moved(1.0, 2.0, 4.0) == pytest.approx(1.105, abs=1e-15)
    assert accelerated(2.0, 4.0) == pytest.approx(2.2, abs=1e-15)


@pytest.mark.parametrize(
    ("start", "velocity", "acceleration", "expected"),
    [
        # 12 m/s along x from -0.25: abreast at t = 0.02083, between two sub-instants.
        ((-0.25, 0.4), (12.0, 0.0), (0.0, 0.0), 0.4),
        ((0.3, 0.4), (3.0, 4.0), (0.0, 0.0), 0.5),  # separating
        ((0.74, 0.0), (0.91, 0.0), (-3.5, 0.0), 0.74),  # separating but braking
        # x(t) = 0.5 - 0.06 t + 1.5 t^2: minimum at t = 0.02, 0.5 - 0.0006.
        ((0.5, 0.0), (-0.06, 0.0), (3.0, 0.0), 0.4994),
    ],
)
def test_closest_approach_by_hand(start, velocity, acceleration, expected):
    end = tuple(moved(p, v, a) for p, v, a in zip(start, velocity, acceleration, strict=True))
    found = closest_approach(start, velocity, acceleration, end)
    assert found == pytest.approx(expected, abs=1e-12)


def test_end_position_given_decides_over_the_formula():
    assert closest_approach((1.0, 0.0), (0.0, 0.0), (0.0, 0.0), (0.25, 0.0)) == 0.25
