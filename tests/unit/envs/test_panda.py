"""The Panda in closed form against MuJoCo's own kinematics, and what stands on it."""

import numpy as np
import pytest

from cadenza.envs.mujoco import panda
from cadenza.envs.mujoco.cocarry import CoCarryOptions

mujoco = pytest.importorskip("mujoco")
RNG = np.random.default_rng(0)
ANYWHERE = RNG.uniform(panda.JOINT_LOW, panda.JOINT_HIGH, (20, 7))


def test_kinematics_and_jacobian_are_those_of_the_simulated_arm():
    model = mujoco.MjModel.from_xml_string(CoCarryOptions().xml())
    data, site = mujoco.MjData(model), model.site("ego_grip").id
    ours = panda.kinematics(ANYWHERE)
    jacobians = ours.jacobian()
    for row, q in enumerate(ANYWHERE):
        data.qpos[:7] = q
        mujoco.mj_forward(model, data)
        linear, angular = np.zeros((3, model.nv)), np.zeros((3, model.nv))
        mujoco.mj_jacSite(model, data, linear, angular, site)
        assert data.site_xpos[site] - [-0.5, 0, 0] == pytest.approx(ours.tcp[row], abs=1e-12)
        assert data.site_xmat[site].reshape(3, 3) == pytest.approx(ours.rotation[row], abs=1e-12)
        theirs = np.vstack((linear, angular))[:, :7]
        assert theirs == pytest.approx(jacobians[row], abs=1e-12)


def test_every_link_is_as_thick_and_as_near_to_its_joint_as_an_arm_of_a_metre_is():
    model = mujoco.MjModel.from_xml_string(CoCarryOptions().xml())
    names = [*(f"ego_link{joint + 1}" for joint in range(7)), "ego_hand"]
    links = [model.body(name).id for name in names]
    capsules = np.flatnonzero(np.isin(model.geom_bodyid, links))
    assert set(model.geom_bodyid[capsules]) == set(links)
    radius, half_length = model.geom_size[capsules, 0], model.geom_size[capsules, 1]
    reach = np.linalg.norm(model.geom_pos[capsules], axis=1) + half_length + radius
    assert (radius > 0.008).all()
    assert (radius < 0.065).all()
    assert (reach < 0.32).all()


def test_ready_pose_points_straight_down_at_the_documented_place():
    ready = panda.kinematics(panda.READY[None])
    assert ready.tcp[0] == pytest.approx([0.615, 0.0, 0.1698], abs=1e-4)
    assert ready.rotation[0, :, 2] == pytest.approx([0, 0, -1], abs=1e-12)


def test_a_row_has_the_same_bytes_in_a_batch_of_any_size():
    whole, one = panda.kinematics(ANYWHERE), panda.kinematics(ANYWHERE[7:8])
    step = RNG.uniform(-0.03, 0.03, (20, 3))
    assert whole.tcp[7].tobytes() == one.tcp[0].tobytes()
    moves = panda.grip_to_joints(ANYWHERE, whole, step)
    assert moves[7].tobytes() == panda.grip_to_joints(ANYWHERE[7:8], one, step[7:8])[0].tobytes()


def test_inverse_kinematics_reaches_the_point_to_rounding_with_the_hand_down():
    wanted = np.array([0.385, 0.0, 0.22]) + RNG.uniform(-0.02, 0.02, (10, 3))
    found = panda.kinematics(panda.inverse_kinematics(wanted))
    assert found.tcp == pytest.approx(wanted, abs=1e-14)
    assert found.rotation[:, :, 2] == pytest.approx(np.tile([0, 0, -1], (10, 1)), abs=1e-14)


def test_grip_steps_move_the_grip_and_bring_the_hand_back_down():
    q = panda.inverse_kinematics(np.array([[0.385, 0.0, 0.22]]))
    q = q + 0.02 * RNG.standard_normal((1, 7))
    tilted = panda.kinematics(q)
    step = np.array([[0.002, -0.001, 0.0015]])
    after = panda.kinematics(q + panda.grip_to_joints(q, tilted, step))
    assert after.tcp - tilted.tcp == pytest.approx(step, abs=1e-4)
    assert after.rotation[0, 2, 2] < tilted.rotation[0, 2, 2]


def test_manipulability_vanishes_where_the_arm_is_stretched():
    stretched = np.zeros((1, 7))
    assert panda.manipulability(stretched)[0] == pytest.approx(0.0, abs=1e-9)
    assert panda.manipulability(panda.READY[None])[0] > 0.05
