import math

import numpy as np
import pytest

from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety.emergency import CartesianAccelEmergencyController
from cadenza.safety.protocols import EmergencyController
from tests.unit.safety.scenes import agent, box

X, Y = np.array([1.0, 0.0]), np.array([0.0, 1.0])


def override(vectors, velocity=(0.0, 0.0), bounds=None, **options):
    controller = CartesianAccelEmergencyController(**options)
    assert isinstance(controller, EmergencyController)
    return controller.compute_override(agent([0, 0], velocity), vectors, bounds or box(5.0))


def test_emergency_single_vector_pushes_with_the_capacity():
    assert override([-X]).tolist() == [-5.0, 0.0]


def test_emergency_orthogonal_vectors_push_along_the_normalised_sum():
    assert override([X, Y]) == pytest.approx(np.array([5.0, 5.0]) / math.sqrt(2.0), abs=1e-10)


def test_emergency_cancelled_vectors_brake_along_the_velocity():
    # 0.3 m/s over the stop time of 0.1 s; fast motion is cut at the capacity.
    assert override([X, -X], velocity=(0.3, 0.0)) == pytest.approx([-3.0, 0.0])
    assert override([X, -X], velocity=(0.0, -4.0)) == pytest.approx([0.0, 5.0])
    assert override([X, -X], velocity=(0.3, 0.0), stop_time_s=0.3) == pytest.approx([-1.0, 0.0])


def test_emergency_braking_is_cut_at_the_capacity_also_in_a_wide_box():
    assert override([X, -X], velocity=(3.0, -4.0), bounds=box(100.0, capacity=5.0)) == (
        pytest.approx([-3.0, 4.0])
    )


def test_emergency_push_is_scaled_into_the_box_with_its_direction():
    # Capacity sqrt(2) * 2 along x leaves the box of 2; along the diagonal it fits.
    wide = box(2.0, capacity=2.0 * math.sqrt(2.0))
    assert override([X], bounds=wide) == pytest.approx([2.0, 0.0], abs=1e-15)
    assert override([X, Y], bounds=wide) == pytest.approx([2.0, 2.0], abs=1e-12)
    tilted = np.array([0.8, 0.6])
    assert override([tilted], bounds=wide) == pytest.approx([2.0, 1.5], abs=1e-12)


@pytest.mark.parametrize("stop_time", [0.0, math.nan])
def test_emergency_bad_stop_time_is_refused(stop_time):
    with pytest.raises(ConfigurationError, match="expected stop_time_s > 0"):
        CartesianAccelEmergencyController(stop_time_s=stop_time)


def test_emergency_vector_of_another_dimension_is_refused():
    with pytest.raises(InputError, match=r"repulsion vector: expected shape \(2,\), got \(3,\)"):
        override([np.zeros(3)])
