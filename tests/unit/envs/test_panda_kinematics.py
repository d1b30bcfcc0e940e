"""The Panda's kinematics against matrices written out here, finite differences and known poses."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cadenza.core.errors import InputError
from cadenza.envs import PandaJacobianProvider
from cadenza.envs.panda_kinematics import PANDA_JOINT_LOWER, PANDA_JOINT_UPPER, quaternion_rotation

ARM = PandaJacobianProvider()
READY = np.array([0.0, np.pi / 8, 0.0, -5 * np.pi / 8, 0.0, 3 * np.pi / 4, -np.pi / 4])
#: a, d, alpha of the manufacturer's table, then the flange.
TABLE = [
    (0.0, 0.333, 0.0),
    (0.0, 0.0, -np.pi / 2),
    (0.0, 0.316, np.pi / 2),
    (0.0825, 0.0, np.pi / 2),
    (-0.0825, 0.384, -np.pi / 2),
    (0.0, 0.0, np.pi / 2),
    (0.088, 0.0, np.pi / 2),
]

shares = arrays(np.float64, 7, elements=st.floats(0.0, 1.0))
speeds = arrays(np.float64, 7, elements=st.floats(-2.0, 2.0))


def angles(share):
    return PANDA_JOINT_LOWER + share * (PANDA_JOINT_UPPER - PANDA_JOINT_LOWER)


def tool_matrix(q):
    """Product of homogeneous matrices, entry by entry from Craig's definition."""
    pose = np.eye(4)
    for (a, d, alpha), angle in zip(TABLE, q, strict=True):
        c, s, ca, sa = math.cos(angle), math.sin(angle), math.cos(alpha), math.sin(alpha)
        pose = pose @ [
            [c, -s, 0, a],
            [s * ca, c * ca, -sa, -sa * d],
            [s * sa, c * sa, ca, ca * d],
            [0, 0, 0, 1],
        ]
    c, s = math.cos(-math.pi / 4), math.sin(-math.pi / 4)
    return pose @ [[c, -s, 0, 0], [s, c, 0, 0], [0, 0, 1, 0.107 + 0.1034], [0, 0, 0, 1]]


@given(share=shares)
def test_pose_is_the_product_of_the_table(share):
    q = angles(share)
    expected = tool_matrix(q)
    np.testing.assert_allclose(ARM.fk_tcp_position(q), expected[:3, 3], atol=1e-12)
    np.testing.assert_allclose(ARM.fk_tcp_rotation(q), expected[:3, :3], atol=1e-12)


@given(share=shares, qvel=speeds)
def test_jacobian_and_its_rate_agree_with_differences_of_the_pose(share, qvel):
    q, h = angles(share), 1e-5
    before, after = ARM.fk_tcp_position(q - h * qvel), ARM.fk_tcp_position(q + h * qvel)
    np.testing.assert_allclose(ARM(None, q) @ qvel, (after - before) / (2 * h), atol=1e-8)
    rate = (ARM(None, q + h * qvel) - ARM(None, q - h * qvel)) / (2 * h)
    np.testing.assert_allclose(ARM.bias_accel(q, qvel), rate @ qvel, atol=1e-7)
    turned = ARM.fk_tcp_rotation(q + h * qvel) @ ARM.fk_tcp_rotation(q - h * qvel).T
    skew = (turned - turned.T) / (4 * h)
    spin = np.array([skew[2, 1], skew[0, 2], skew[1, 0]])
    np.testing.assert_allclose(ARM.jacobian_6x7(q)[3:] @ qvel, spin, atol=1e-6)


def test_batch_gives_the_bytes_of_single_calls():
    q = angles(np.random.default_rng(0).uniform(size=(2, 3, 7)))
    for method in (ARM.fk_tcp_position, ARM.fk_tcp_rotation, ARM.jacobian_6x7, ARM.manipulability):
        batched = method(q)
        assert batched.dtype == np.float64
        np.testing.assert_allclose(batched[1, 2], method(q[1, 2]), atol=1e-15)


def test_ready_posture_reaches_over_the_table():
    # A closed chain in the vertical plane: 0.615 m before the base, the hand straight down.
    np.testing.assert_allclose(ARM.fk_tcp_position(READY), [0.615, 0.0, 0.17], atol=5e-4)
    np.testing.assert_allclose(ARM.fk_tcp_rotation(READY)[:, 2], [0.0, 0.0, -1.0], atol=1e-12)


def test_end_of_the_chain_can_be_the_hand_or_the_flange():
    hand, flange = (PandaJacobianProvider(ee_link=f"panda_{end}") for end in ("hand", "link8"))
    lifted = hand.fk_tcp_position(READY) - ARM.fk_tcp_position(READY)
    np.testing.assert_allclose(lifted, [0.0, 0.0, 0.1034], atol=1e-12)
    assert (hand.ee_link, ARM.ee_link) == ("panda_hand", "panda_hand_tcp")
    # The hand is mounted an eighth of a turn about the axis of the flange.
    mounted = quaternion_rotation([math.cos(np.pi / 8), 0.0, 0.0, -math.sin(np.pi / 8)])
    turned = flange.fk_tcp_rotation(READY) @ mounted
    np.testing.assert_allclose(turned, hand.fk_tcp_rotation(READY), atol=1e-12)


def test_world_jacobian_turns_with_the_base():
    half_turn = quaternion_rotation([0.0, 0.0, 0.0, 1.0])
    np.testing.assert_allclose(half_turn, np.diag([-1.0, -1.0, 1.0]), atol=1e-15)
    mirrored = np.diag([-1.0, -1.0, 1.0]) @ ARM(None, READY)
    np.testing.assert_allclose(ARM.world_jacobian(READY, half_turn), mirrored, atol=1e-15)


def test_manipulability_is_the_volume_of_reachable_velocities():
    jacobian = ARM(None, READY)
    expected = np.sqrt(np.linalg.det(jacobian @ jacobian.T))
    assert ARM.manipulability(READY) == pytest.approx(expected)


@pytest.mark.parametrize("bad", [np.zeros(8), np.zeros((7, 1)), np.float64(0.0)])
def test_other_number_of_joints_is_named(bad):
    with pytest.raises(InputError, match=r"qpos_arm shape: expected \(\.\.\., 7\)"):
        ARM(None, bad)


def test_malformed_arguments_are_refused(tmp_path):
    with pytest.raises(InputError, match="expected finite numbers"):
        ARM(None, np.full(7, np.nan))
    with pytest.raises(InputError, match="expected ee_link to be one of"):
        PandaJacobianProvider(ee_link="panda_elbow")
    with pytest.raises(FileNotFoundError, match=r"nowhere\.urdf"):
        PandaJacobianProvider(str(tmp_path / "nowhere.urdf"))
    short = tmp_path / "short.urdf"
    link = '<joint type="revolute"><parent link="base"/><child link="panda_hand_tcp"/></joint>'
    short.write_text(f"<robot>{link}</robot>")
    with pytest.raises(InputError, match="expected a chain of 7 joints"):
        PandaJacobianProvider(str(short))
    short.write_text("<robot>")
    with pytest.raises(InputError, match="expected a URDF"):
        PandaJacobianProvider(str(short))
