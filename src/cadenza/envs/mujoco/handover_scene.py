"""The scene of the handover: a presenter, a receiver, a peg on a handle and a keyed fixture.

Frame:    x from the ego's base (at -BASE_X) to the presenter's (+BASE_X, turned about), z up.
Peg:      its origin is the point of the handle where the receiver grasps; the handle runs along
          x, the presenter holds its other end, and the peg hangs down below the origin. A rib on
          its +y side is the key.
Fixture:  its origin is the middle of the hole's bottom; a slot on its +y side takes the key.
Coupling: a hand that holds is a `weld` of its grip to the peg. The relative pose of a weld lives in
          the model, one per simulation.
Contact:  between peg and fixture only.
Units:    m, kg, s, N.
"""

from typing import Final

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.envs.mujoco.arm_model import arm_actuators, arm_body
from cadenza.envs.mujoco.panda import JOINTS

#: Distance of the bases from the middle, m.
BASE_X: Final = 0.5
#: Places in qpos: the ego's joints, the presenter's, then the peg's pose (position, quaternion).
PEG: Final = slice(2 * JOINTS, 2 * JOINTS + 7)
#: Welds of the model: the presenter's and the receiver's.
PRESENTER_WELD, RECEIVER_WELD = 0, 1
#: Length of the handle, and where the presenter holds it, m from the origin.
HANDLE: Final = 0.2
PRESENTER_AT: Final[FloatArray] = np.array([0.15, 0.0, 0.0])
#: Width of the peg and from the origin to its lower end, m.
PEG_WIDTH: Final = 0.02
TIP: Final[FloatArray] = np.array([0.0, 0.0, -0.07])
#: Clearance of the hole on each side, and its depth, m.
CLEARANCE: Final = 0.001
DEPTH: Final = 0.03
#: Mass of peg and handle, kg.
PEG_MASS: Final = 0.1

#: Half the width and half the length of the key, m, and the half-width of a wall of the fixture.
_KEY_WIDTH: Final = 0.003
_KEY_LENGTH: Final = 0.002
_WALL: Final = 0.01
_PEG_TOP: Final = -0.01
_WELD: Final = 'solref="0.004 1" solimp="0.99 0.9999 0.0005"'


def handover_xml(timestep_s: float) -> str:
    """Return the model in MJCF."""
    half, middle = PEG_WIDTH / 2, 0.5 * (_PEG_TOP + TIP[2])
    tall = 0.5 * (_PEG_TOP - TIP[2])
    peg = (
        _box((HANDLE / 2 - 0.02, 0, 0), (HANDLE / 2, 0.007, 0.007), "0.55 0.56 0.58 1")
        + _box((0, 0, middle), (half, half, tall), "0.2 0.2 0.22 1", bits=(1, 2))
        + _box(
            (0, half + _KEY_LENGTH, middle), (_KEY_WIDTH, _KEY_LENGTH, tall),
            "0.84 0.15 0.16 1", bits=(1, 2),
        )
    )  # fmt: skip
    return f"""<mujoco model="handover">
<compiler angle="radian"/>
<option timestep="{timestep_s}" integrator="implicitfast"/>
<default><geom contype="0" conaffinity="0" solref="0.01 1"/></default>
<visual><headlight ambient="0.35 0.35 0.35" diffuse="0.5 0.5 0.5"/>
<global offwidth="1280" offheight="960"/><quality shadowsize="0" offsamples="4"/></visual>
<worldbody>
<geom type="plane" size="2 2 0.1" rgba="0.93 0.94 0.92 1"/>
<light pos="0 -1 2.5" dir="0 0.4 -1" diffuse="0.5 0.5 0.5"/>
{arm_body("ego", -BASE_X, faces_back=False, colour="0 0.447 0.698 1")}
{arm_body("partner", BASE_X, faces_back=True, colour="0.902 0.624 0 1")}
<body name="peg"><freejoint name="peg"/>
<inertial pos="0.05 0 -0.01" mass="{PEG_MASS}" diaginertia="1e-4 4e-4 4e-4"/>{peg}</body>
<body name="fixture">{_fixture()}
<site name="hole" type="box" size="0.05 0.05 0.04" pos="0 0 {DEPTH / 2}" rgba="0 0 0 0"/></body>
</worldbody>
<equality>
<weld name="presenter" body1="partner_grip" body2="peg" {_WELD}/>
<weld name="receiver" body1="ego_grip" body2="peg" active="false" {_WELD}/>
</equality>
<actuator>{arm_actuators("ego")}{arm_actuators("partner")}</actuator>
<sensor><touch name="seating" site="hole"/></sensor>
</mujoco>"""


def _fixture() -> str:
    inner, height, colour = PEG_WIDTH / 2 + CLEARANCE, DEPTH / 2, "0.35 0.55 0.5 1"
    slot, outer = _KEY_WIDTH + CLEARANCE, PEG_WIDTH / 2 + CLEARANCE + 2 * _WALL
    end = PEG_WIDTH / 2 + 2 * _KEY_LENGTH + CLEARANCE
    side, beside, behind = inner + _WALL, 0.5 * (inner - slot), 0.5 * (outer - end)
    boxes = (
        ((-side, 0, height), (_WALL, outer, height)),
        ((side, 0, height), (_WALL, outer, height)),
        ((0, -side, height), (inner, _WALL, height)),
        ((-slot - beside, side, height), (beside, _WALL, height)),
        ((slot + beside, side, height), (beside, _WALL, height)),
        ((0, end + behind, height), (slot, behind, height)),
        ((0, 0, -0.005), (outer, outer, 0.005)),
    )
    walls = "".join(_box(*box, colour, bits=(2, 1)) for box in boxes)
    return walls + _box((0, 0, -0.045), (0.02, 0.02, 0.035), "0.4 0.42 0.45 1")


def _box(
    place: tuple[float, float, float],
    size: tuple[float, float, float],
    colour: str,
    *,
    bits: tuple[int, int] = (0, 0),
) -> str:
    at, half = (" ".join(map(str, numbers)) for numbers in (place, size))
    return (
        f'<geom type="box" pos="{at}" size="{half}" mass="0" rgba="{colour}" '
        f'contype="{bits[0]}" conaffinity="{bits[1]}"/>'
    )
