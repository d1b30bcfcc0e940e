"""The scene of co-carry: two arms that hold the ends of one bar.

Frame:    x from the ego's base (at -BASE_X) to the partner's (+BASE_X, turned about), z up; the
          ego holds the bar's -x end.
Coupling: each end of the bar is tied to a grip by a `connect` constraint, which leaves rotation
          free; how stiff is set by its time constant.
Units:    m, kg, s, N.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.envs.mujoco.arm_model import actuator_gains, arm_actuators, arm_body, grip_sensor
from cadenza.envs.mujoco.panda import JOINTS
from cadenza.envs.mujoco.simulations import Simulations

#: Distance of the bases from the middle with the standard bar, m.
BASE_X: Final = 0.5
#: Length of the standard bar, m; longer ones push the bases apart.
BAR_LENGTH: Final = 0.23
#: Width and height of the bar, m.
BAR_WIDTH: Final = 0.025
#: Places in qpos: the ego's joints, the partner's, then the bar's pose (position, quaternion).
EGO, PARTNER = slice(0, JOINTS), slice(JOINTS, 2 * JOINTS)
BAR: Final = slice(2 * JOINTS, 2 * JOINTS + 7)
#: The names of the arms in the model, in the order of qpos and ctrl.
ARMS: Final = ("ego", "partner")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a model of the scene is built from.

    Attributes:
        bar_length: m.
        timestep_s: Physics step.
        partner_holds: Whether the partner's end is tied to its grip.
    """

    bar_length: float = BAR_LENGTH
    timestep_s: float = 0.002
    partner_holds: bool = True

    @property
    def base_x(self) -> float:
        """Distance of the bases from the middle, m."""
        return BASE_X + 0.5 * (self.bar_length - BAR_LENGTH)

    def xml(self) -> str:
        """Return the model in MJCF."""
        half = 0.5 * self.bar_length
        active = "true" if self.partner_holds else "false"
        connect = (
            f'<connect name="ego_hold" site1="ego_grip" site2="bar_ego" {_RIGID}/>'
            f'<connect name="partner_hold" site1="partner_grip" site2="bar_partner" '
            f'active="{active}" {_RIGID}/>'
        )
        return f"""<mujoco model="cocarry">
<compiler angle="radian"/>
<option timestep="{self.timestep_s}" integrator="implicitfast">
<flag contact="disable"/></option>
<visual><headlight ambient="0.35 0.35 0.35" diffuse="0.5 0.5 0.5"/>
<global offwidth="1280" offheight="960"/><quality shadowsize="0" offsamples="4"/></visual>
<asset><texture type="skybox" builtin="gradient" rgb1="0.98 0.98 0.97" rgb2="0.84 0.88 0.92"
width="64" height="384"/></asset>
<worldbody>
<geom type="plane" size="2 2 0.1" rgba="0.93 0.94 0.92 1"/>
<light directional="true" pos="0 0 3" dir="0.2 0.4 -1" diffuse="0.5 0.5 0.5"/>
{arm_body("ego", -self.base_x, faces_back=False, colour="0 0.447 0.698 1")}
{arm_body("partner", self.base_x, faces_back=True, colour="0.902 0.624 0 1")}
<body name="bar" pos="0 0 0.22"><freejoint name="bar"/>
<geom type="box" size="{half} {BAR_WIDTH / 2} {BAR_WIDTH / 2}" mass="0.4" rgba="0.55 0.13 0.1 1"/>
<site name="bar_ego" pos="{-half} 0 0" size="0.004" rgba="0 0 0 0"/>
<site name="bar_partner" pos="{half} 0 0" size="0.004" rgba="0 0 0 0"/></body>
</worldbody>
<equality>{connect}</equality>
<actuator>{arm_actuators("ego")}{arm_actuators("partner")}</actuator>
<sensor>{grip_sensor("ego")}{grip_sensor("partner")}</sensor>
</mujoco>"""


_RIGID: Final = 'solref="0.004 1" solimp="0.99 0.9999 0.0005"'


def set_parameters(
    simulations: Simulations,
    bar: int,
    *,
    bar_length: float,
    bar_mass: FloatArray,
    stiffness_scale: FloatArray,
    time_constant_s: FloatArray,
) -> None:
    """Give every simulation its own bar and arms.

    Args:
        simulations: N simulations of `Scene.xml`.
        bar: Index of the bar's body.
        bar_length: m.
        bar_mass: (N,), kg.
        stiffness_scale: Of the actuators, (N,), see `actuator_gains`.
        time_constant_s: Of the bar's ties, (N,); 0.004 is rigid.
    """
    long, wide = bar_length * bar_length, BAR_WIDTH * BAR_WIDTH
    simulations.parameters("body_mass")[:, bar] = bar_mass
    squares = np.array([wide + wide, long + wide, long + wide])
    simulations.parameters("body_inertia")[:, bar] = bar_mass[:, None] / 12.0 * squares
    gains = simulations.parameters("actuator_gainprm")
    bias = simulations.parameters("actuator_biasprm")
    for row, scale in enumerate(stiffness_scale.tolist()):
        stiffness, damping = (np.tile(values, 2) for values in actuator_gains(scale))
        gains[row, :, 0], bias[row, :, 1], bias[row, :, 2] = stiffness, -stiffness, -damping
    simulations.parameters("eq_solref")[:, :, 0] = time_constant_s[:, None]
    simulations.apply()
