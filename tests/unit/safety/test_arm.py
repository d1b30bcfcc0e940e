"""Kinematics and dynamics of the arm against hand calculation, finite differences and MuJoCo."""

import dataclasses
import sys

import mujoco
import numpy as np
import pytest

from cadenza.core.errors import ConfigurationError, InputError, MissingExtraError, NotReadyError
from cadenza.safety.arms import SEVEN_DOF_ARM, EndEffectorBall, JointLimits, MujocoArm
from cadenza.safety.arms.arm import cover_capsule
from cadenza.safety.geometry import Capsule
from tests.unit.safety.arm_scenes import arm

# A tree with slides, two joints on one body, and a branch beside the end effector's chain.
TREE = """
<mujoco><compiler angle="radian"/><worldbody>
  <body name="cart"><joint type="slide" axis="1 0 0"/><joint type="hinge" axis="0 0 1"/>
    <geom type="sphere" size="0.1" mass="1"/>
    <body name="arm" pos="0.3 0 0.2"><joint type="hinge" axis="0 1 0"/>
      <geom type="capsule" fromto="0 0 0 0 0 0.4" size="0.05" mass="1"/>
      <body name="lift" pos="0 0 0.4"><joint type="slide" axis="0 0 1"/>
        <joint type="hinge" axis="1 0 0" pos="0 0.05 0"/>
        <geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.04" mass="1"/>
        <site name="ee" pos="0.3 0.1 0"/></body></body>
    <body name="mast" pos="-0.2 0 0"><joint type="hinge" axis="0 1 1"/>
      <geom type="capsule" fromto="0 0 0 0 0 0.5" size="0.04" mass="1"/></body>
  </body>
</worldbody></mujoco>
"""


def random_state(robot, seed):
    rng = np.random.default_rng(seed)
    return robot.home() + rng.uniform(-1, 1, robot.n_joints), rng.normal(size=robot.n_joints)


def forwarded(model, q, q_dot):
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:] = q, q_dot
    mujoco.mj_forward(model, data)
    return data


def test_end_effector_stands_where_the_links_put_it():
    # Upright: offsets 0.08 - 0.08 + 0.09 in x; 0.33 + 0.32 + 0.38 - 0.21 in z.
    upright = arm().state(np.zeros(7), np.zeros(7))
    assert upright.ee_position == pytest.approx([0.09, 0.0, 0.82])
    # Home: upper arm leans back by 0.6, forearm forward by 1.6, the hand hangs down.
    home = arm().state(arm().home(), np.zeros(7))
    x = 0.32 * np.sin(-0.6) + 0.08 * np.cos(0.6) - 0.08 * np.cos(1.6) + 0.38 * np.sin(1.6) + 0.09
    z = (
        0.33
        + 0.32 * np.cos(0.6)
        + 0.08 * np.sin(0.6)
        + 0.08 * np.sin(1.6)
        + 0.38 * np.cos(1.6)
        - 0.21
    )
    assert home.ee_position == pytest.approx([x, 0.0, z])
    assert home.ee_rotation[:, 2] == pytest.approx([0.0, 0.0, 1.0])


@pytest.mark.parametrize("robot", [MujocoArm(), MujocoArm(TREE)], ids=["arm", "tree"])
@pytest.mark.parametrize("seed", range(2))
def test_jacobians_are_derivatives_of_positions_and_biases_of_velocities(robot, seed):
    q, q_dot = random_state(robot, seed)
    state, step = robot.state(q, q_dot), 1e-6
    ahead = robot.state(q + step * q_dot, q_dot)
    behind = robot.state(q - step * q_dot, q_dot)
    moved = (ahead.sphere_centers - behind.sphere_centers) / (2 * step)
    assert state.sphere_velocities == pytest.approx(moved, abs=1e-8)
    assert state.sphere_jacobians @ q_dot == pytest.approx(moved, abs=1e-8)
    ee = (ahead.ee_position - behind.ee_position) / (2 * step)
    assert state.ee_jacobian[:3] @ q_dot == pytest.approx(ee, abs=1e-8)
    turn = (ahead.ee_rotation - behind.ee_rotation) / (2 * step) @ state.ee_rotation.T
    spin = [turn[2, 1], turn[0, 2], turn[1, 0]]
    assert state.ee_jacobian[3:] @ q_dot == pytest.approx(spin, abs=1e-8)
    # The bias is the acceleration at constant joint velocity.
    spheres = (ahead.sphere_velocities - behind.sphere_velocities) / (2 * step)
    assert state.sphere_bias == pytest.approx(spheres, abs=1e-7)
    twist = (ahead.ee_jacobian - behind.ee_jacobian) @ q_dot / (2 * step)
    assert state.ee_bias == pytest.approx(twist, abs=1e-7)


@pytest.mark.parametrize("seed", range(2))
def test_inertia_and_bias_forces_agree_with_energies(seed):
    robot = arm()
    model = mujoco.MjModel.from_xml_path(str(SEVEN_DOF_ARM))
    model.opt.enableflags |= mujoco.mjtEnableBit.mjENBL_ENERGY
    q, q_dot = random_state(robot, seed)
    kinetic = forwarded(model, q, q_dot).energy[1]
    assert 0.5 * q_dot @ robot.state(q, q_dot).mass_matrix @ q_dot == pytest.approx(kinetic)
    # At rest the bias forces are the gradient of the potential energy.
    step, rest = 1e-6, np.zeros(7)
    gradient = [
        (
            forwarded(model, q + step * unit, rest).energy[0]
            - forwarded(model, q - step * unit, rest).energy[0]
        )
        / (2 * step)
        for unit in np.eye(7)
    ]
    assert robot.state(q, rest).bias_forces == pytest.approx(gradient, abs=1e-6)


def test_manipulability_is_the_product_of_singular_values_with_its_derivatives():
    robot = arm()
    q, q_dot = random_state(robot, 3)
    state = robot.state(q, q_dot, with_manipulability=True)
    J = state.ee_jacobian
    assert state.manipulability == pytest.approx(np.sqrt(np.linalg.det(J @ J.T)))
    step = 1e-5

    def value(t):
        return robot.state(q + t * q_dot, q_dot, with_manipulability=True).manipulability

    slope = (value(step) - value(-step)) / (2 * step)
    assert state.manipulability_gradient @ q_dot == pytest.approx(slope, abs=1e-8)
    curvature = (value(1e-3) - 2 * value(0.0) + value(-1e-3)) / 1e-6
    assert state.manipulability_curvature == pytest.approx(curvature, rel=1e-4)


def test_what_is_read_late_belongs_to_the_instant_of_the_state():
    robot, (q, q_dot) = MujocoArm(), random_state(arm(), 4)
    late = robot.state(q, q_dot, with_manipulability=True)
    robot.state(robot.home(), np.zeros(7), with_manipulability=True)  # the arm has moved on
    fresh = robot.state(q, q_dot, with_manipulability=True)
    for field in dataclasses.fields(fresh):
        value = getattr(fresh, field.name)
        assert np.array_equal(getattr(late, field.name), value), field.name
    with pytest.raises(AttributeError, match="no attribute 'torques'"):
        _ = late.torques


def test_manipulability_gradient_is_that_of_the_singular_values_near_a_singularity():
    # The elbow nearly stretched: the short way over the Cholesky factor is left there.
    for bend in (0.4, 0.05, 1e-3):
        q = np.array([0.3, 0.5, -0.4, bend, 0.2, bend, 0.7])
        state, step = arm().state(q, np.zeros(7), with_manipulability=True), 1e-5
        values = [
            np.linalg.svd(arm().state(q + t, np.zeros(7)).ee_jacobian)[1].prod()
            for t in (*(step * np.eye(7)), *(-step * np.eye(7)))
        ]
        slopes = (np.array(values[:7]) - values[7:]) / (2 * step)
        assert state.manipulability_gradient == pytest.approx(slopes, abs=1e-8)


def test_manipulability_gradient_is_finite_in_a_singular_configuration():
    state = arm().state(np.zeros(7), np.ones(7), with_manipulability=True)
    assert state.manipulability == pytest.approx(0.0, abs=1e-12)
    assert np.isfinite(state.manipulability_gradient).all()
    rest = arm().state(np.zeros(7), np.zeros(7), with_manipulability=True)
    assert rest.manipulability_curvature == 0.0


def test_spheres_cover_every_geom():
    robot = arm()
    model = mujoco.MjModel.from_xml_path(str(SEVEN_DOF_ARM))
    rng = np.random.default_rng(0)
    q, rest = robot.home(), np.zeros(7)
    state, data = robot.state(q, rest), forwarded(model, q, rest)
    for geom in range(model.ngeom):
        radius, half = model.geom_size[geom, 0], model.geom_size[geom, 1]
        axis = data.geom_xmat[geom].reshape(3, 3)[:, 2]
        along = rng.uniform(-half, half, size=(400, 1))
        out = rng.normal(size=(400, 3))
        out /= np.linalg.norm(out, axis=1, keepdims=True)
        points = data.geom_xpos[geom] + along * axis + radius * out
        distance = np.linalg.norm(points[:, None] - state.sphere_centers, axis=2)
        assert (distance - robot.sphere_radii).min(axis=1).max() <= 1e-9


#: A cylinder, an ellipsoid, a turned box, a plate, a wire and a mesh (a skew pyramid), and geoms
#: that touch nothing, of which a pair of the model makes one count.
SHAPES = """
<mujoco><compiler angle="radian"/>
<asset><mesh name="pyramid" vertex="0 0 0  0.3 0.02 0  0.01 0.1 0  0.3 0.12 0.04
  0.1 0.05 0.25"/></asset>
<worldbody><body name="a"><joint axis="0 0 1"/><site name="ee"/>
  <geom type="cylinder" size="0.05 0.2" quat="1 0.3 0.2 0.1"/>
  <geom type="cylinder" size="0.2 0.01" pos="1 0 0"/>
  <geom type="ellipsoid" size="0.05 0.3 0.08" pos="0 1 0"/>
  <geom type="box" size="0.04 0.3 0.06" euler="0.3 0.5 0.7" pos="0 0 1"/>
  <geom type="box" size="0.3 0.3 0.01" pos="1 1 0"/>
  <geom type="box" size="0.0005 0.0005 0.5" pos="1 1 1"/>
  <geom type="mesh" mesh="pyramid" pos="0 -1 0" euler="1 0.2 0"/>
  <geom type="box" size="9 9 9" contype="0" conaffinity="0"/>
  <geom name="paired" type="sphere" size="0.1" pos="-1 0 0" contype="0" conaffinity="0"/>
  <body name="b"><joint axis="1 0 0"/>
    <geom name="other" type="sphere" size="0.1" pos="-2 0 0"/></body>
</body></worldbody>
<contact><pair geom1="paired" geom2="other"/></contact></mujoco>
"""


def surface_points(model, geom, rng):
    """Points of a geom in the world, at the reference pose, corners included."""
    size, directions = model.geom_size[geom], rng.normal(size=(3000, 3))
    unit = directions / np.linalg.norm(directions, axis=1, keepdims=True)
    kind = mujoco.mjtGeom(model.geom_type[geom])
    if kind == mujoco.mjtGeom.mjGEOM_MESH:
        first = model.mesh_vertadr[model.geom_dataid[geom]]
        vertices = model.mesh_vert[first : first + model.mesh_vertnum[model.geom_dataid[geom]]]
        local = rng.dirichlet(np.full(len(vertices), 0.3), size=3000) @ vertices
        local = np.concatenate([local, vertices])
    elif kind == mujoco.mjtGeom.mjGEOM_BOX:
        local = size * np.concatenate([rng.uniform(-1, 1, (3000, 3)), np.sign(unit)])
    elif kind == mujoco.mjtGeom.mjGEOM_CYLINDER:
        around = directions[:, :2] / np.linalg.norm(directions[:, :2], axis=1, keepdims=True)
        local = np.column_stack([size[0] * around, size[1] * rng.uniform(-1, 1, 3000)])
        local[::2, 2] = size[1] * np.sign(local[::2, 2])
    else:  # spheres and ellipsoids
        local = unit * (size if kind == mujoco.mjtGeom.mjGEOM_ELLIPSOID else size[0])
    data = forwarded(model, model.qpos0, np.zeros(model.nv))
    return data.geom_xpos[geom] + local @ data.geom_xmat[geom].reshape(3, 3).T


def test_spheres_cover_every_shape_that_collides_and_no_other():
    robot, model = MujocoArm(SHAPES), mujoco.MjModel.from_xml_string(SHAPES)
    state, rng = robot.state(np.zeros(2), np.zeros(2)), np.random.default_rng(0)
    seen = [geom for geom in range(model.ngeom) if geom != 7]
    for geom in seen:
        points = surface_points(model, geom, rng)
        distance = np.linalg.norm(points[:, None] - state.sphere_centers, axis=2)
        assert (distance - robot.sphere_radii).min(axis=1).max() <= 1e-9, geom
    # Nothing is left of the 9 m box. Widest is the plate's cylinder of radius hypot(0.3, 0.01).
    assert robot.sphere_radii.max() == pytest.approx(np.hypot(np.hypot(0.3, 0.01), 0.1))
    # The wire: radius 0.5 / 20, slices of 2 * 0.025 * sqrt(0.21), so 44 balls; the disc takes one.
    wire = np.abs(state.sphere_centers[:, :2] - 1.0).max(axis=1) < 1e-9
    assert int(wire.sum()) == 44 + 1
    disc = (np.abs(state.sphere_centers - [1.0, 0.0, 0.0]) < 1e-9).all(axis=1)
    assert robot.sphere_radii[disc] == pytest.approx([np.hypot(0.2, 0.01)])


def test_capsule_is_covered_by_the_fewest_balls_of_the_allowed_size():
    # Radius 0.1, balls up to 0.125: spacing 2 sqrt(0.125^2 - 0.1^2) = 0.15, so 1 m takes 7 steps.
    cloud = cover_capsule(Capsule(np.zeros(3), np.array([1.0, 0.0, 0.0]), 0.1), 1.25)
    assert len(cloud) == 8
    assert cloud.radii == pytest.approx(np.full(8, np.hypot(0.1, 0.5 / 7)))
    assert cloud.centers[:, 0] == pytest.approx(np.linspace(0.0, 1.0, 8))
    # Exactly six spacings need no seventh.
    exact = cover_capsule(Capsule(np.zeros(3), np.array([0.0, 0.9, 0.0]), 0.1), 1.25)
    assert len(exact) == 7


def test_pairs_leave_out_neighbours_exclusions_and_one_rigid_part():
    links = arm().sphere_links
    named = {frozenset((links[i], links[j])) for i, j in arm().self_collision_pairs}
    assert frozenset(("base", "link7")) in named
    assert frozenset(("link6", "link7")) not in named  # parent and child
    assert frozenset(("link5", "link7")) not in named  # excluded by the model
    assert all(len(pair) == 2 for pair in named)
    fewer = MujocoArm(exclude=(("base", "link7"),))
    names = fewer.sphere_links
    assert all({names[i], names[j]} != {"base", "link7"} for i, j in fewer.self_collision_pairs)


def test_limits_come_from_the_model():
    limits = arm().limits
    assert limits.lower[3] == -2.9
    assert limits.upper[5] == 3.6
    assert limits.velocity.tolist() == [2, 2, 2, 2, 2.5, 2.5, 2.5]
    assert limits.acceleration.tolist() == [15, 10, 12, 12, 15, 20, 20]
    assert limits.torque.tolist() == [90, 90, 90, 90, 15, 15, 15]
    bare = MujocoArm(TREE).limits
    assert np.isinf(bare.upper).all()
    assert np.isinf(bare.velocity).all()
    assert np.isinf(bare.torque).all()


# Refusals, and the ball around the hand.


def model(joint='<joint axis="0 0 1"/>', geom='<geom size="0.1"/>', rest=""):
    return (
        f'<mujoco><worldbody><body name="a">{joint}{geom}<site name="ee"/></body></worldbody>'
        f"{rest}</mujoco>"
    )


def test_missing_mujoco_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(MissingExtraError, match=r"cadenza\[mujoco\]"):
        MujocoArm()


@pytest.mark.parametrize(
    ("xml", "message"),
    [
        (model(joint="<freejoint/>"), "hinges or slides"),
        (model(joint=""), "at least one joint"),
        (
            model(rest='<worldbody><geom type="plane" size="1 1 1"/></worldbody>'),
            "got geom .* type 0",
        ),
        (model(geom='<geom size="0.1" contype="0" conaffinity="0"/>'), "can touch something"),
        (model(geom='<inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/>'), "got none"),
        ("<mujoco><worldbody></mujoco>", "MuJoCo refused the model"),
        ("nowhere.xml", "found no file"),
        (
            model(rest='<custom><numeric name="velocity_limit" data="1 2"/></custom>'),
            "expected 1 numbers",
        ),
        (
            model(rest='<custom><numeric name="acceleration_limit" data="0"/></custom>'),
            "limits > 0",
        ),
    ],
)
def test_models_without_meaning_are_refused(xml, message):
    with pytest.raises((ConfigurationError, InputError), match=message):
        MujocoArm(xml)


@pytest.mark.parametrize("bad", [np.zeros(6), np.full(7, np.nan)])
def test_state_refuses_malformed_numbers(bad):
    with pytest.raises(InputError, match="state: q:"):
        arm().state(bad, np.zeros(7))
    with pytest.raises(InputError, match="state: q_dot:"):
        arm().state(np.zeros(7), bad)


def joint_limits(**changes):
    values = {
        "lower": [-1.0, -1.0],
        "upper": [1.0, 1.0],
        "velocity": [1.0, 1.0],
        "acceleration": [1.0, 1.0],
        "torque": [1.0, 1.0],
    }
    return JointLimits(**(values | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lower": [[-1.0]]}, r"shape \(n,\)"),
        ({"torque": [1.0]}, r"torque: expected shape \(2,\)"),
        ({"upper": [1.0, np.nan]}, "upper: expected numbers"),
        ({"velocity": [1.0, np.nan]}, "velocity: expected limits > 0"),
        ({"acceleration": [1.0, 0.0]}, "acceleration: expected limits > 0"),
        ({"upper": [1.0, -1.0]}, "upper: expected > lower"),
    ],
)
def test_limits_without_meaning_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        joint_limits(**changes)


def test_ball_answers_for_its_last_snapshot_only():
    ball = EndEffectorBall(0.1)
    state = arm().state(arm().home(), np.full(7, 0.1))
    snapshot = ball.snapshot(state)
    assert snapshot.position == pytest.approx(state.ee_position)
    assert snapshot.velocity == pytest.approx(state.ee_jacobian[:3] @ state.q_dot)
    assert ball.jacobian(snapshot).tolist() == state.ee_jacobian[:3].tolist()
    assert ball.bias(snapshot).tolist() == state.ee_bias[:3].tolist()
    ball.snapshot(arm().state(arm().home() + 0.1, np.zeros(7)))
    with pytest.raises(NotReadyError, match="the snapshot made last"):
        ball.jacobian(snapshot)
    with pytest.raises(NotReadyError, match="the snapshot made last"):
        EndEffectorBall(0.1).bias(snapshot)


def test_control_model_maps_joint_accelerations_of_the_arm():
    ball = EndEffectorBall(0.1)
    state = arm().state(arm().home(), np.full(7, 0.1))
    snapshot = ball.snapshot(state)
    control = ball.control_model("arm", 7, max_cartesian_accel=2.0)
    wanted = np.linspace(-1.0, 1.0, 7)
    total = control.action_to_cartesian_accel(snapshot, wanted) + control.bias_accel(snapshot)
    step = 1e-6
    ahead = arm().state(state.q + step * state.q_dot, state.q_dot + step * wanted)
    behind = arm().state(state.q - step * state.q_dot, state.q_dot - step * wanted)
    velocities = [s.ee_jacobian[:3] @ s.q_dot for s in (ahead, behind)]
    assert total == pytest.approx((velocities[0] - velocities[1]) / (2 * step), abs=1e-7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ee_site": "hand"}, r"'hand'.*\['ee'\]"),
        ({"exclude": (("base", "elbow"),)}, "a body named 'elbow', the model has"),
    ],
)
def test_options_without_meaning_are_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        MujocoArm(**options)
