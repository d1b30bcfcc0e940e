"""The closed form against the robot's description in ManiSkill, by two other libraries."""

from pathlib import Path

import mani_skill
import numpy as np
import pytest
import torch

from cadenza.envs import PandaJacobianProvider
from cadenza.envs.maniskill import PandaPartner
from cadenza.envs.panda_kinematics import PANDA_JOINT_LOWER, PANDA_JOINT_UPPER

FOLDER = Path(mani_skill.PACKAGE_ASSET_DIR) / "robots" / "panda"


@pytest.mark.parametrize("name", ["panda_v3.urdf", "panda_v2.urdf"])
def test_pose_and_jacobian_are_those_of_the_urdf(name):
    import pytorch_kinematics

    path = FOLDER / name
    arm = PandaJacobianProvider(str(path))
    chain = pytorch_kinematics.build_serial_chain_from_urdf(path.read_bytes(), "panda_hand_tcp")
    chain = chain.to(dtype=torch.float64)
    shares = np.random.default_rng(0).uniform(size=(200, 7))
    q = PANDA_JOINT_LOWER + shares * (PANDA_JOINT_UPPER - PANDA_JOINT_LOWER)
    pose = chain.forward_kinematics(torch.tensor(q)).get_matrix().numpy()
    # The description has its angles with six to twelve digits.
    np.testing.assert_allclose(arm.fk_tcp_position(q), pose[:, :3, 3], atol=2e-7)
    np.testing.assert_allclose(arm.fk_tcp_rotation(q), pose[:, :3, :3], atol=2e-7)
    np.testing.assert_allclose(arm.jacobian_6x7(q), chain.jacobian(torch.tensor(q)), atol=2e-7)


def test_limits_are_those_of_the_urdf():
    from xml.etree import ElementTree as ET

    described = ET.parse(FOLDER / "panda_v3.urdf")  # noqa: S314 - of the installed package
    joints = {joint.get("name"): joint.find("limit") for joint in described.iter("joint")}
    limits = [joints[f"panda_joint{k}"] for k in range(1, 8)]
    assert [float(limit.get("lower")) for limit in limits] == PANDA_JOINT_LOWER.tolist()
    assert [float(limit.get("upper")) for limit in limits] == PANDA_JOINT_UPPER.tolist()


def test_second_panda_is_registered_under_its_own_name():
    from mani_skill.agents.registration import REGISTERED_AGENTS
    from mani_skill.agents.robots.panda.panda import Panda

    assert REGISTERED_AGENTS["panda_partner"].agent_cls is PandaPartner
    assert issubclass(PandaPartner, Panda)
    assert PandaPartner.urdf_path == str(FOLDER / "panda_v2.urdf")
    assert Panda.uid == "panda"
