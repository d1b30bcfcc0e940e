"""An arm read from a MuJoCo model.

MuJoCo computes where the joints are, the inertia matrix and the bias forces; the Jacobians of all
collision spheres, and their rates, come from the joint axes in one vectorised pass (`kinematics`).
Every geom must be a capsule or a sphere; each is covered by spheres (`spheres`).

Units:   those of the model: m, kg, s, rad.
Limits:  hinges and slides only; tendons, equality constraints and contacts do not enter the state.
         The instance keeps MuJoCo's working memory: use one per thread.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray, require_finite, require_shape
from cadenza.core.errors import ConfigurationError
from cadenza.core.extras import load_extra
from cadenza.safety.arms.kinematics import (
    Chain,
    JointFrames,
    bias_accelerations,
    end_effector_hessian,
    manipulability,
    point_jacobians,
)
from cadenza.safety.arms.limits import JointLimits
from cadenza.safety.arms.spheres import LinkSpheres, allowed_pairs, link_spheres
from cadenza.safety.arms.state import ArmState

#: The seven-joint arm of capsules and spheres that ships with the package.
SEVEN_DOF_ARM: Final = Path(__file__).with_name("seven_dof_arm.xml")
#: Step along the velocity direction for the curvature of the manipulability, rad. Central
#: differences of the exact gradient: error about 1e-8 relative, rounding about 1e-12.
_CURVATURE_STEP: Final = 1e-4
#: Entries of a Jacobian below this are rounding, m/rad.
_AT_REST: Final = 1e-9


class MujocoArm:
    """Kinematics and dynamics of a MuJoCo model with one end effector.

    Joint limits come from ``range``; torque limits from the ``ctrlrange`` of each joint's motor;
    velocity and acceleration limits from ``<custom><numeric name="velocity_limit" .../>`` and
    ``acceleration_limit``. What the model does not state is unlimited.

    Args:
        model: Path of an MJCF file, or the XML text itself.
        ee_site: Site at the end effector.
        inflation: Radius of the covering spheres over the radius of the geom, > 1: larger means
            fewer spheres and a thicker arm.
        exclude: Pairs of bodies whose contact is ignored, beside the model's own exclusions,
            parents with children, and bodies no joint lies between.

    Raises:
        MissingExtraError: MuJoCo is not installed.
        ConfigurationError: The model has a joint, geom or name this class cannot use.
    """

    def __init__(
        self,
        model: str | Path = SEVEN_DOF_ARM,
        ee_site: str = "ee",
        *,
        inflation: float = 1.1,
        exclude: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self._mujoco = load_extra("mujoco")
        self._model = _compile(self._mujoco, model)
        self._data = self._mujoco.MjData(self._model)
        _require_simple_joints(self._mujoco, self._model)
        self._site = _site_index(self._mujoco, self._model, ee_site)
        self._chain, self._carried_by_body = _tree(self._mujoco, self._model)
        self._ee_carried = self._carried_by_body[self._model.site_bodyid[self._site]][None, :]
        self._on_path = np.flatnonzero(self._ee_carried[0])
        self._limits = _limits(self._mujoco, self._model)
        self._spheres: LinkSpheres = link_spheres(self._mujoco, self._model, inflation)
        self._pairs = allowed_pairs(self._mujoco, self._model, self._spheres.bodies, exclude)
        self._carried = np.vstack([self._ee_carried, self._carried_by_body[self._spheres.bodies]])
        self._movable = self._find_movable()

    @property
    def n_joints(self) -> int:
        """Number of joints."""
        return int(self._model.nv)

    @property
    def limits(self) -> JointLimits:
        """Limits of the joints, as the model states them."""
        return self._limits

    @property
    def sphere_radii(self) -> FloatArray:
        """Radii of the collision spheres, shape (S,), m."""
        return self._spheres.radii

    @property
    def sphere_links(self) -> tuple[str, ...]:
        """Name of the body that carries each sphere, S names."""
        return self._spheres.links

    @property
    def movable_spheres(self) -> NDArray[np.bool_]:
        """Whether any joint moves each sphere, shape (S,)."""
        return self._movable

    @property
    def self_collision_pairs(self) -> NDArray[np.intp]:
        """Pairs of spheres that may not touch, shape (P, 2)."""
        return self._pairs

    def home(self) -> FloatArray:
        """Return the first keyframe's joint positions, or the model's reference, shape (n,)."""
        source = self._model.key_qpos[0] if self._model.nkey else self._model.qpos0
        return np.array(source, dtype=np.float64)

    def state(
        self, q: FloatArray, q_dot: FloatArray, *, with_manipulability: bool = False
    ) -> ArmState:
        """Return the state at joint positions ``q`` and velocities ``q_dot``, each (n,).

        Args:
            q: Joint positions, shape (n,), rad.
            q_dot: Joint velocities, shape (n,), rad/s.
            with_manipulability: Also compute the manipulability with gradient and curvature, which
                about doubles the work; only a singularity rule needs it.

        Raises:
            InputError: Wrong shape, or an entry is not finite.
        """
        n = self.n_joints
        q, q_dot = np.array(q, dtype=np.float64), np.array(q_dot, dtype=np.float64)
        require_shape("MujocoArm.state: q", q, (n,))
        require_shape("MujocoArm.state: q_dot", q_dot, (n,))
        require_finite("MujocoArm.state: q", q)
        require_finite("MujocoArm.state: q_dot", q_dot)
        frames = self._move_to(q, q_dot)
        mass_matrix, bias_forces = self._dynamics()
        points = np.vstack([self._data.site_xpos[self._site], self._sphere_centers()])
        jacobians = point_jacobians(self._chain, frames, points, self._carried)
        velocities = jacobians @ q_dot
        linear, angular = bias_accelerations(
            self._chain, frames, q_dot, points, velocities, self._carried
        )
        ee_jacobian = np.empty((6, n))
        ee_jacobian[:3] = jacobians[0]
        ee_jacobian[3:] = self._turning_columns(frames)
        ee_rotation = self._data.site_xmat[self._site].reshape(3, 3).copy()
        gradient: FloatArray | None = None
        value: float | None = None
        curvature = 0.0
        if with_manipulability:
            value, gradient = self._manipulability(frames, ee_jacobian)
            curvature = self._manipulability_curvature(q, q_dot)
        return ArmState(
            q=q,
            q_dot=q_dot,
            ee_position=points[0],
            ee_rotation=ee_rotation,
            ee_jacobian=ee_jacobian,
            ee_bias=np.concatenate([linear[0], angular[0]]),
            mass_matrix=mass_matrix,
            bias_forces=bias_forces,
            sphere_centers=points[1:],
            sphere_jacobians=jacobians[1:],
            sphere_velocities=velocities[1:],
            sphere_bias=linear[1:],
            manipulability=value,
            manipulability_gradient=gradient,
            manipulability_curvature=curvature,
        )

    def _find_movable(self) -> NDArray[np.bool_]:
        """Return which spheres move: one on the axis of the only joint that carries it does not.

        Two configurations that share no joint position decide; a Jacobian that vanishes at both
        vanishes for good but for coincidences, as its entries are analytic in q.
        """
        rest = np.zeros(self.n_joints)
        movable = np.zeros(len(self._spheres.radii), dtype=bool)
        for step in (0.3, 0.7):
            shift = step * np.arange(1, self.n_joints + 1)
            jacobians = self.state(self.home() + shift, rest).sphere_jacobians
            movable |= np.abs(jacobians).max(axis=(1, 2)) > _AT_REST
        return movable

    def _move_to(self, q: FloatArray, q_dot: FloatArray) -> JointFrames:
        self._data.qpos[:] = q
        self._data.qvel[:] = q_dot
        self._mujoco.mj_kinematics(self._model, self._data)
        return JointFrames(self._data.xaxis.copy(), self._data.xanchor.copy())

    def _dynamics(self) -> tuple[FloatArray, FloatArray]:
        """Return M(q) and c + g less passive forces at the state that was moved to."""
        mujoco, model, data = self._mujoco, self._model, self._data
        mujoco.mj_comPos(model, data)
        mujoco.mj_makeM(model, data)
        mass_matrix = np.empty((self.n_joints, self.n_joints))
        mujoco.mj_fullM(model, data, mass_matrix)
        mujoco.mj_comVel(model, data)
        mujoco.mj_passive(model, data)
        bias = np.empty(self.n_joints)
        mujoco.mj_rne(model, data, 0, bias)
        return mass_matrix, bias - data.qfrc_passive

    def _sphere_centers(self) -> FloatArray:
        rotations = self._data.xmat[self._spheres.bodies].reshape(-1, 3, 3)
        offsets = (rotations @ self._spheres.offsets[:, :, None])[:, :, 0]
        return self._data.xpos[self._spheres.bodies] + offsets

    def _turning_columns(self, frames: JointFrames) -> FloatArray:
        """Return the angular rows of the end effector's Jacobian, shape (3, n)."""
        return (frames.axis * (self._chain.hinge * self._ee_carried[0])[:, None]).T

    def _manipulability(
        self, frames: JointFrames, ee_jacobian: FloatArray
    ) -> tuple[float, FloatArray]:
        hessian = end_effector_hessian(self._chain, frames, ee_jacobian, self._on_path)
        return manipulability(ee_jacobian, hessian)

    def _manipulability_curvature(self, q: FloatArray, q_dot: FloatArray) -> float:
        """Return q'^T (d^2 w / dq^2) q' from the gradients a little ahead and a little behind."""
        speed = float(np.linalg.norm(q_dot))
        if speed == 0.0:
            return 0.0
        step = _CURVATURE_STEP / speed
        slopes: list[float] = []
        for sign in (1.0, -1.0):
            frames = self._move_to(q + sign * step * q_dot, q_dot)
            jacobian = np.empty((6, self.n_joints))
            site = self._data.site_xpos[self._site][None, :]
            jacobian[:3] = point_jacobians(self._chain, frames, site, self._ee_carried)[0]
            jacobian[3:] = self._turning_columns(frames)
            slopes.append(float(self._manipulability(frames, jacobian)[1] @ q_dot))
        return (slopes[0] - slopes[1]) / (2.0 * step)


def _compile(mujoco: Any, model: str | Path) -> Any:
    try:
        if isinstance(model, str) and model.lstrip().startswith("<"):
            return mujoco.MjModel.from_xml_string(model)
        if not Path(model).is_file():
            raise ConfigurationError(
                f"MujocoArm: expected an MJCF file or XML text, found no file at {str(model)!r}."
            )
        return mujoco.MjModel.from_xml_path(str(model))
    except ValueError as error:
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(f"MujocoArm: MuJoCo refused the model: {error}") from error


def _require_simple_joints(mujoco: Any, model: Any) -> None:
    simple = (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE))
    if model.njnt < 1 or any(int(kind) not in simple for kind in model.jnt_type):
        raise ConfigurationError(
            "MujocoArm: expected at least one joint, all of them hinges or slides, got "
            f"{model.njnt} of types {model.jnt_type.tolist()}; give the arm a model of its own, "
            "without free bodies."
        )


def _site_index(mujoco: Any, model: Any, ee_site: str) -> int:
    index = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_SITE, ee_site)
    if index < 0:
        known = [model.site(k).name for k in range(model.nsite)]
        raise ConfigurationError(
            f"MujocoArm: expected a site named {ee_site!r}, the model has {known}."
        )
    return int(index)


def _tree(mujoco: Any, model: Any) -> tuple[Chain, FloatArray]:
    """Return the joints' kinds and order, and which joints carry each body, (bodies, n)."""
    n = int(model.nv)
    carried_by_body = np.zeros((model.nbody, n))
    carries_joint = np.zeros((n, n))
    for body in range(1, model.nbody):
        carried_by_body[body] = carried_by_body[model.body_parentid[body]]
        first, count = int(model.body_jntadr[body]), int(model.body_jntnum[body])
        for joint in range(first, first + count):
            carries_joint[joint] = carried_by_body[body]
            carried_by_body[body, joint] = 1.0
    hinge = (model.jnt_type == int(mujoco.mjtJoint.mjJNT_HINGE)).astype(np.float64)
    return Chain(hinge=hinge, carries_joint=carries_joint), carried_by_body


def _limits(mujoco: Any, model: Any) -> JointLimits:
    n = int(model.nv)
    limited = model.jnt_limited.astype(bool)
    torque = np.full(n, np.inf)
    for actuator in range(model.nu):
        if model.actuator_trntype[actuator] == int(mujoco.mjtTrn.mjTRN_JOINT) and bool(
            model.actuator_ctrllimited[actuator]
        ):
            gear = abs(float(model.actuator_gear[actuator, 0]))
            reach = gear * float(np.abs(model.actuator_ctrlrange[actuator]).min())
            torque[int(model.actuator_trnid[actuator, 0])] = reach
    return JointLimits(
        lower=np.where(limited, model.jnt_range[:, 0], -np.inf),
        upper=np.where(limited, model.jnt_range[:, 1], np.inf),
        velocity=_numeric(mujoco, model, "velocity_limit"),
        acceleration=_numeric(mujoco, model, "acceleration_limit"),
        torque=torque,
    )


def _numeric(mujoco: Any, model: Any, name: str) -> FloatArray:
    """Return the custom field ``name``, one number per joint; infinity when it is absent."""
    n = int(model.nv)
    index = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_NUMERIC, name)
    if index < 0:
        return np.full(n, np.inf)
    start, size = int(model.numeric_adr[index]), int(model.numeric_size[index])
    if size != n:
        raise ConfigurationError(
            f"MujocoArm: expected {n} numbers in <numeric name={name!r}>, got {size}."
        )
    return np.array(model.numeric_data[start : start + size], dtype=np.float64)
