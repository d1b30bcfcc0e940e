import numpy as np
import pytest

from cadenza.core.errors import InputError
from cadenza.safety.snapshot import AgentSnapshot


def test_snapshot_converts_to_float64_and_copies():
    position = np.array([1, 2], dtype=np.float32)
    snapshot = AgentSnapshot(position, np.array([0.5, 0.0]), 1)
    position[0] = 9.0
    assert snapshot.position.dtype == np.float64
    assert snapshot.position.tolist() == [1.0, 2.0]
    assert snapshot.position_numbers == (1.0, 2.0)
    assert snapshot.velocity_numbers == (0.5, 0.0)
    assert isinstance(snapshot.radius, float)


def test_snapshot_arrays_cannot_be_changed():
    snapshot = AgentSnapshot(np.zeros(3), np.zeros(3), 0.2)
    with pytest.raises(ValueError, match="read-only"):
        snapshot.position[0] = np.nan


@pytest.mark.parametrize(
    ("position", "velocity", "radius", "message"),
    [
        ([0.0, np.nan], [0.0, 0.0], 0.2, r"position: expected finite numbers"),
        ([0.0, 0.0], [np.inf, 0.0], 0.2, r"velocity: expected finite numbers"),
        ([2e9, 0.0], [0.0, 0.0], 0.2, r"position: expected finite numbers up to 1e\+09"),
        ([0.0], [0.0], 0.2, r"position: expected shape \(2,\) or \(3,\), got \(1,\)"),
        ([[0.0, 0.0]], [0.0, 0.0], 0.2, r"position: expected shape"),
        ([0.0, 0.0], [0.0, 0.0, 0.0], 0.2, r"velocity: expected 2 entries"),
        (["a", "b"], [0.0, 0.0], 0.2, r"position: expected real numbers"),
        ([0.0, 0.0], [0.0, 0.0], 0.0, r"radius: expected a finite length > 0 m, got 0.0"),
        ([0.0, 0.0], [0.0, 0.0], -0.1, r"radius: .* got -0.1"),
        ([0.0, 0.0], [0.0, 0.0], np.nan, r"radius: .* got nan"),
        ([0.0, 0.0], [0.0, 0.0], np.inf, r"radius: .* got inf"),
    ],
)
def test_snapshot_malformed_input_is_refused(position, velocity, radius, message):
    with pytest.raises(InputError, match=message):
        AgentSnapshot(position, velocity, radius)


def test_snapshot_is_of_this_instant_unless_told_otherwise():
    assert AgentSnapshot(np.zeros(2), np.zeros(2), 0.2).age_s == 0.0
    aged = AgentSnapshot(np.zeros(2), np.zeros(2), 0.2, age_s=np.float32(0.25))
    assert aged.age_s == 0.25
    assert isinstance(aged.age_s, float)


@pytest.mark.parametrize("age_s", [-1e-3, np.nan, np.inf, 1e10])
def test_snapshot_age_out_of_range_is_refused(age_s):
    with pytest.raises(InputError, match=r"age_s: expected a finite time >= 0 s"):
        AgentSnapshot(np.zeros(2), np.zeros(2), 0.2, age_s)


@pytest.mark.parametrize("value", ["wide", None, [1.0, 2.0]])
def test_snapshot_radius_or_age_that_is_no_number_is_refused(value):
    with pytest.raises(InputError, match="radius: expected a number, got"):
        AgentSnapshot(np.zeros(2), np.zeros(2), value)
    with pytest.raises(InputError, match="age_s: expected a number, got"):
        AgentSnapshot(np.zeros(2), np.zeros(2), 0.2, value)
