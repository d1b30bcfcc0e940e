import numpy as np
import pytest

from cadenza.core.errors import NotReadyError
from cadenza.envs.crossing import CrossingEnv
from cadenza.envs.vector_crossing import VectorCrossingEnv


@pytest.mark.parametrize("num_robots", [2, 5])
def test_hooks_show_what_the_scalar_environment_shows(num_robots):
    batch = VectorCrossingEnv(3, num_robots=num_robots)
    batch.reset(seed=5)
    rng = np.random.default_rng(num_robots)
    actions = {uid: rng.uniform(-1, 1, (3, 2)).astype("float32") for uid in batch.agent_uids}
    batch.step(actions)
    seen = batch.build_agent_batch()
    for row in range(3):
        scalar = CrossingEnv(num_robots=num_robots)
        scalar.reset(seed=5 + row)
        scalar.step({uid: action[row] for uid, action in actions.items()})
        expected = scalar.build_agent_snapshots()
        actual = seen.snapshots(row)
        assert list(actual) == list(expected)
        for uid, snapshot in expected.items():
            assert actual[uid].position.tobytes() == snapshot.position.tobytes()
            assert actual[uid].velocity.tobytes() == snapshot.velocity.tobytes()
            assert actual[uid].radius == snapshot.radius
    assert batch.build_control_models() == scalar.build_control_models()
    assert batch.build_bounds() == scalar.build_bounds()
    assert (batch.plant, batch.control_timestep) == (scalar.plant, scalar.control_timestep)


def test_hook_returns_a_copy_of_the_state():
    batch = VectorCrossingEnv(2)
    batch.reset(seed=0)
    seen = batch.build_agent_batch()
    before = seen.positions.copy()
    batch.step({uid: np.ones((2, 2), dtype="float32") for uid in batch.agent_uids})
    assert np.array_equal(seen.positions, before)


def test_hook_before_the_first_reset_is_refused():
    with pytest.raises(NotReadyError, match="expected a state, got none yet"):
        VectorCrossingEnv(2).build_agent_batch()
