"""The code of `docs/how-to/guard-any-env.md` runs as printed, and does what the text says."""

import numpy as np
import pytest

from tests.integration.docs.pages import blocks, execute


@pytest.fixture(scope="module")
def names():
    assert len(blocks("how-to/guard-any-env.md")) == 11
    return execute("how-to/guard-any-env.md")


def test_disc_is_not_touched_although_the_policy_drives_at_it(names):
    assert min(names["gaps"]) > 0.0
    assert 0 < names["interventions"] < 100
    assert min(names["batch_gaps"]) == pytest.approx(min(names["gaps"]), abs=1e-6)


def test_gradient_is_the_one_the_text_states(names):
    assert names["step"].status.tolist() == [1]
    np.testing.assert_allclose(names["nominal"].grad.numpy(), [[0.0, 1.0]], rtol=0.0, atol=1e-12)


def test_policy_side_speaks_the_unit_of_the_policy(names):
    policy_side = names["policy_side"]
    policy_side.reset(seed=0)
    *_, info = policy_side.step(np.array([0.1, -0.1], dtype=np.float32))
    np.testing.assert_allclose(info["safety"]["applied_action"], [0.2, -0.2], rtol=1e-6)


def test_velocity_base_touches_neither_wall_nor_person(names):
    assert min(names["wall_gaps"]) == pytest.approx(0.0, abs=2e-3)
    assert min(names["wall_gaps"]) >= -1e-6
    assert min(names["person_gaps"]) >= 1e-3 - 1e-6
    assert min(names["person_gaps"]) < 0.1
    assert names["certified"]


@pytest.mark.parametrize("gaps", ["room_gaps", "cart_gaps"])
def test_batches_of_velocity_robots_stop_at_the_wall_without_touching_it(names, gaps):
    assert -1e-6 <= min(names[gaps]) < 0.1
