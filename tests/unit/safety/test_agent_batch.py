import numpy as np
import pytest

from cadenza.core.errors import InputError
from cadenza.safety.runtime.agent_batch import AgentBatch

BATCH = {
    "uids": ("ego", "partner"),
    "positions": np.arange(12.0).reshape(3, 2, 2),
    "velocities": -np.arange(12.0).reshape(3, 2, 2),
    "radii": np.array([0.2, 0.3]),
}


def test_snapshots_are_those_of_one_row():
    snapshots = AgentBatch(**BATCH).snapshots(1)
    assert list(snapshots) == ["ego", "partner"]
    assert snapshots["ego"].position.tolist() == [4.0, 5.0]
    assert snapshots["partner"].velocity.tolist() == [-6.0, -7.0]
    assert snapshots["partner"].radius == 0.3


def test_snapshots_have_the_ages_of_their_row():
    ages = np.array([[0.0, 0.1], [0.0, 0.2], [0.0, 0.3]])
    snapshots = AgentBatch(**BATCH, ages_s=ages).snapshots(1)
    assert (snapshots["ego"].age_s, snapshots["partner"].age_s) == (0.0, 0.2)
    assert AgentBatch(**BATCH).snapshots(1)["partner"].age_s == 0.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"uids": ("ego", "ego")}, "expected distinct ids"),
        ({"uids": ("ego",)}, r"positions: expected shape \(B, 1, 2 or 3\), got \(3, 2, 2\)"),
        ({"positions": np.zeros((3, 2))}, "positions: expected shape"),
        ({"positions": np.zeros((3, 2, 4))}, "positions: expected shape"),
        ({"velocities": np.zeros((2, 2, 2))}, r"velocities: expected shape \(3, 2, 2\)"),
        ({"radii": np.ones(3)}, r"radii: expected shape \(2,\)"),
        ({"radii": np.array([0.2, 0.0])}, "radii: expected lengths > 0 m"),
        ({"radii": np.array([0.2, np.nan])}, "radii: expected lengths > 0 m"),
        ({"ages_s": np.zeros((2, 2))}, r"ages_s: expected shape \(3, 2\)"),
        ({"ages_s": np.full((3, 2), -0.1)}, "ages_s: expected finite times >= 0 s"),
        ({"ages_s": np.full((3, 2), np.nan)}, "ages_s: expected finite times >= 0 s"),
        ({"positions": np.full((3, 2, 2), np.nan)}, "positions: expected finite numbers"),
        ({"velocities": np.full((3, 2, 2), -1e10)}, "velocities: expected finite numbers"),
    ],
)
def test_malformed_batch_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        AgentBatch(**{**BATCH, **changes})
