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


WIDE = box(2.0, capacity=2.0 * math.sqrt(2.0))


@pytest.mark.parametrize(
    ("vectors", "options", "expected"),
    [
        ([-X], {}, [-5.0, 0.0]),  # the capacity
        ([X, Y], {}, [5.0 / math.sqrt(2.0)] * 2),  # along the normalised sum
        # Cancelled: brakes 0.3 m/s over the stop time of 0.1 s; fast motion is cut at the capacity,
        # also in a wide box.
        ([X, -X], {"velocity": (0.3, 0.0)}, [-3.0, 0.0]),
        ([X, -X], {"velocity": (0.0, -4.0)}, [0.0, 5.0]),
        ([X, -X], {"velocity": (0.3, 0.0), "stop_time_s": 0.3}, [-1.0, 0.0]),
        ([X, -X], {"velocity": (3.0, -4.0), "bounds": box(100.0, capacity=5.0)}, [-3.0, 4.0]),
        # Capacity sqrt(2) * 2 along x leaves the box of 2; along the diagonal it fits.
        ([X], {"bounds": WIDE}, [2.0, 0.0]),
        ([X, Y], {"bounds": WIDE}, [2.0, 2.0]),
        ([np.array([0.8, 0.6])], {"bounds": WIDE}, [2.0, 1.5]),
    ],
)
def test_emergency_push_by_hand(vectors, options, expected):
    assert override(vectors, **options) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("stop_time", [0.0, math.nan])
def test_emergency_bad_stop_time_is_refused(stop_time):
    with pytest.raises(ConfigurationError, match="expected stop_time_s > 0"):
        CartesianAccelEmergencyController(stop_time_s=stop_time)


def test_emergency_vector_of_another_dimension_is_refused():
    with pytest.raises(InputError, match=r"repulsion vector: expected shape \(2,\), got \(3,\)"):
        override([np.zeros(3)])
