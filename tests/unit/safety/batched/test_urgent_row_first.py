"""The most urgent row is met as far as the box allows, whatever the other rows would like."""

import numpy as np
import pytest
import torch

from cadenza.safety.batched import BatchedEgoFilter
from cadenza.safety.bounds import Bounds
from cadenza.safety.control_models import DoubleIntegratorControlModel

EGO = ([-11.365591509556209, 5.9875043869515165], [-3.198839538517107, 1.8216419775987334])
#: The first partner is above the ego, nearly along y, and overlap with it is no longer avoidable.
POSITIONS = [
    [-11.370749040987121, 6.494762611167545],
    [-11.105740317529742, 5.888332261453153],
    [-2.2608027853369363, -12.124255159758153],
    [-9.448386984478045, 6.23791987408665],
    [-7.149819658553547, 4.887015198280938],
]
VELOCITIES = [
    [-2.4839333622021282, 0.2678713298401269],
    [-3.448056392466461, 2.0561966517647767],
    [0.7924308708759402, -1.9941630224500189],
    [-3.0052258931757123, 1.8453739937489158],
    [-2.4819870233679198, 1.6769671226297866],
]


@pytest.mark.parametrize("copies", [1, 8])
def test_urgent_row_is_not_traded_for_the_others_by_rounding(copies):
    uids = [f"p{j}" for j in range(5)]
    guard = BatchedEgoFilter(
        ego_model=DoubleIntegratorControlModel("ego", 2),
        partner_models=[DoubleIntegratorControlModel(uid, 2, capacity=0.5) for uid in uids],
        bounds=Bounds(2.0, 2.0, 1.0, 0.0, 0.0),
        dt=0.05,
    )

    def batch(values):
        tensor = torch.tensor(values, dtype=torch.float64)
        return tensor.expand(copies, *tensor.shape).clone()

    step = guard.filter(
        batch([1.998, -0.2202906319037561]),
        batch(EGO[0]),
        batch(EGO[1]),
        batch(POSITIONS),
        batch(VELOCITIES),
        0.2,
        torch.full((5,), 0.2, dtype=torch.float64),
    )
    urgent = int(step.h[0].argmin())
    away = np.array(EGO[0]) - np.array(POSITIONS[urgent])
    normal = away / np.linalg.norm(away)
    farthest = 2.0 * np.abs(normal).sum()  # what the box reaches along the normal
    for action in step.action.numpy():
        assert normal @ action == pytest.approx(farthest, abs=1e-8)
