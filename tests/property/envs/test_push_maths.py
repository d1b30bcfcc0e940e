import math
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cadenza.envs.mpe import MPECooperativePushEnv, coverage_reward, sum_of_squares

coordinates = st.floats(-2, 2).filter(lambda x: x == 0 or abs(x) > 1e-120)
points = st.tuples(*[st.floats(-1, 1)] * 4).map(list)


@given(x=coordinates, y=coordinates)
def test_sum_of_squares_rounds_as_a_fused_multiply_add(x, y):
    exact = float(Fraction(y) ** 2 + Fraction(x * x))  # one rounding of y^2 + fl(x^2)
    assert sum_of_squares(x, y) == exact


@given(x=arrays(np.float64, 9, elements=coordinates), y=arrays(np.float64, 9, elements=coordinates))
def test_sum_of_squares_of_arrays_has_the_bytes_of_floats(x, y):
    single = [sum_of_squares(a, b) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    assert sum_of_squares(x, y).tobytes() == np.array(single).tobytes()


@given(position=points, landmarks=points)
def test_coverage_reward_agrees_with_its_definition(position, landmarks):
    robots = [position[:2], position[2:]]
    marks = [landmarks[:2], landmarks[2:]]
    expected = -sum(min(math.dist(robot, mark) for robot in robots) for mark in marks)
    assert abs(coverage_reward(position, landmarks) - expected) < 1e-14


@given(
    seed=st.integers(0, 2**40),
    commands=st.lists(st.tuples(*[st.floats(-5, 5)] * 4), min_size=1, max_size=30),
)
def test_robots_never_leave_the_arena_and_the_reward_its_range(seed, commands):
    env = MPECooperativePushEnv()
    env.reset(seed=seed)
    for ax, ay, bx, by in commands:
        obs, reward, terminated, *_ = env.step({"ego": [ax, ay], "partner": [bx, by]})
        assert all(abs(p).max() <= 1.0 for p in env.robot_positions().values())
        assert -4 * math.sqrt(2) <= reward <= 0.0
        assert not terminated
        assert env.observation_space.contains(obs)
