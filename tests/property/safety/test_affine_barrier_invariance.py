"""Robots under an adversarial nominal and disturbance never leave the set of their barriers.

The nominal and the disturbance both push towards the barrier with the smallest value; the motion
is integrated to fourth order with steps far below the barriers' own time constants.
"""

import math

import numpy as np
import pytest
import torch

from cadenza.safety.affine import (
    AcceleratedUnicycle,
    AffineCBFFilter,
    Disturbance,
    DoubleIntegrator,
    DubinsCar,
    JointDynamics,
    KinematicUnicycle,
    PlanarQuadrotor,
    SampledData,
    estimate_rates,
    half_plane,
    keep_out_ball,
    lift,
    minimum_separation,
    speed_limit,
    state_box,
    turning_circle_clearance,
)
from tests.campaigns import size
from tests.unit.safety.affine.affine_checks import rk4_step

#: What the held action and the integration may take from a barrier between samples.
ROOM = 1e-3


class Drive:
    """Closed loop of a robot, its filter and the worst nominal and disturbance for its barriers."""

    def __init__(self, model, barriers, box, *, dt=0.01, pushes=(), samples=None):
        self.model, self.dt, self.pushes = model, dt, pushes
        self.barriers, self.box = barriers, box
        options = {"box": box, "samples": samples}
        self.guard = AffineCBFFilter(model, barriers, disturbances=pushes, **options)
        self.aim = [lift(barrier, model, samples=samples) for barrier in barriers]

    def run(self, x, seconds, aim=0):
        """Return the smallest value of each barrier and the statuses seen.

        Args:
            x: Start.
            seconds: Duration.
            aim: Index of the barrier that nominal and disturbance attack.
        """
        x = torch.tensor(x, dtype=torch.float64)
        low, high = (np.broadcast_to(bound, (self.model.action_dim,)) for bound in self.box)
        least, statuses = np.full(len(self.barriers), math.inf), set()
        last = self.aim[aim]
        for _ in range(round(seconds / self.dt)):
            gain = last.row(x).gain.numpy()
            nominal = np.where(gain > 0.0, low, high)
            action, info = self.guard.filter(x.numpy(), nominal)
            statuses.add(info.status)
            gradient = torch.func.grad(lambda s: last.stages(s)[-1])(x)
            push = torch.zeros_like(x)
            for disturbance in self.pushes:
                E = disturbance.matrix(x)
                direction = gradient @ E
                w = -disturbance.bound * direction / torch.clamp(direction.norm(), min=1e-12)
                push = push + E @ w
            x = rk4_step(self.model, x, torch.from_numpy(action), self.dt, push)
            values = [float(barrier.function(x)) for barrier in self.barriers]
            least = np.minimum(least, values)
        return least, statuses


POINT = DoubleIntegrator(2)
QUADROTOR = PlanarQuadrotor()
FAST = {
    "double integrator": lambda: (
        POINT,
        [
            keep_out_ball([1.0, 0.0], 0.5, gains=(3.0, 6.0)),
            *state_box([-math.inf] * 2 + [-1.0] * 2, [math.inf] * 2 + [1.0] * 2, gains=5.0),
        ],
        (-20.0, 20.0),
        [Disturbance.matched(POINT, 0.5)],
        [-1.0, 0.05, 0.0, 0.0],
        4.0,
    ),
    "accelerated unicycle": lambda: (
        AcceleratedUnicycle(),
        [keep_out_ball([1.0, 0.0], 0.5, gains=(2.0, 4.0)), speed_limit(1.0, velocity=[3], gains=4)],
        (-20.0, 20.0),
        [Disturbance.matched(AcceleratedUnicycle(), 0.3)],
        [-1.0, 0.1, 0.0, 0.3],
        4.0,
    ),
    "kinematic unicycle": lambda: (
        KinematicUnicycle(),
        [keep_out_ball([1.0, 0.0], 0.5, position=KinematicUnicycle().point_ahead, gains=3.0)],
        (-2.0, 2.0),
        [Disturbance.through([[1, 0], [0, 1], [0, 0]], 0.2)],
        [-0.5, 0.1, 0.0],
        3.0,
    ),
    "Dubins car": lambda: (
        DubinsCar(1.0),
        [turning_circle_clearance([2.0, 0.0], 0.5, turning_radius_m=1.0, gains=2.0)],
        (-1.0, 1.0),
        [],
        [-1.0, 0.2, 0.0],
        8.0,
    ),
    "quadrotor": lambda: (
        QUADROTOR,
        [
            half_plane([0.0, 1.0], 0.2, gains=(2.0, 4.0), name="floor"),
            *state_box(
                [-math.inf] * 2 + [-0.6] + [-math.inf] * 3,
                [math.inf] * 2 + [0.6] + [math.inf] * 3,
                gains=8.0,
            ),
        ],
        (0.0, 8.0),
        [Disturbance.through([[0.0]] * 3 + [[0.0], [1.0], [0.0]], 0.5)],
        [0.0, 1.5, 0.1, 0.2, 0.0, 0.0],
        3.0,
    ),
}


def loop(name, **options):
    model, barriers, box, pushes, start, seconds = FAST[name]()
    return Drive(model, barriers, box, pushes=pushes, **options), start, seconds


@pytest.mark.parametrize("name", FAST)
def test_barriers_hold_under_attack(name):
    drive, start, seconds = loop(name)
    for aim in range(size(1, len(drive.barriers))):
        least, statuses = drive.run(start, size(0.6, 1.0) * seconds, aim)
        assert (least >= -ROOM).all(), (drive.guard.lifted[aim].name, least)
        assert "optimal" in statuses
        assert statuses <= {"inactive", "optimal"}


def test_partner_of_bounded_acceleration_is_kept_away():
    partner_limit = 0.4
    joint = JointDynamics([POINT, POINT], [True, False])
    apart = minimum_separation(0.5, first=(0, 1), second=(4, 5), gains=(1.5, 3.0))
    pushes = [joint.others(partner_limit)]
    start = [-1.0, 0.1, 0.0, 0.0, 1.0, 0.0, -0.2, 0.0]
    drive = Drive(joint, [apart], (-20.0, 20.0), pushes=pushes)
    least, statuses = drive.run(start, 4.0)
    assert least[0] >= -ROOM
    assert statuses == {"inactive", "optimal"}


def test_margin_for_sampled_data_keeps_a_coarse_loop_safe_where_the_plain_row_fails():
    model, dt = DoubleIntegrator(1), 0.2
    wall = half_plane([-1.0], -1.0, position=(0,), gains=(5.0, 5.0))
    limits = (np.array([-4.0]), np.array([4.0]))
    lifted = [lift(wall, model)]
    grid = torch.cartesian_prod(torch.linspace(-1, 1, 9), torch.linspace(-1, 2, 9)).double()
    rates = estimate_rates(lifted, model, grid, *limits, factor=1.0)
    start, least = [-1.0, 0.0], {}
    for name, sampled in (("plain", None), ("held", SampledData(dt, rates))):
        guard = AffineCBFFilter(model, [wall], box=limits, sampled_data=sampled)
        x, values = torch.tensor(start).double(), []
        for _ in range(60):
            action, _ = guard.filter(x.numpy(), np.array([4.0]))
            for _ in range(10):  # between the samples too
                x = rk4_step(model, x, torch.from_numpy(action), dt / 10)
                values.append(float(lifted[0].stages(x).min()))
        least[name] = min(values)
    assert least["plain"] < -0.05
    assert least["held"] >= 0.0
