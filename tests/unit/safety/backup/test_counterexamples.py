"""What must not be built: each naive way touches something, the filter with a backup does not."""

import math

import numpy as np
import pytest

from cadenza.core.errors import ConfigurationError
from cadenza.safety import Bounds, DoubleIntegratorControlModel, ExpCBFQP, SafetyState
from cadenza.safety.backup import BackupFilter
from cadenza.safety.control_models import PartnerBound, VelocityModel
from cadenza.safety.geometry import HalfSpace
from cadenza.safety.snapshot import AgentSnapshot
from cadenza.safety.verifier.plants import PURSUITS, Pursuer, VelocityPlant
from tests.unit.safety.backup.attacks import RADIUS, attack

TOP, RATE = 1.0, 2.0


def base(limit="norm"):
    return VelocityModel("ego", 2, TOP, RATE if limit == "norm" else math.inf, limit=limit)


def plant(model, position):
    del model  # whatever a filter believes, the plant has a rate
    return VelocityPlant(base(), position, (0.0, 0.0))


def clipped_acceleration(accel):
    """Return a guard: the row of an acceleration robot on (v_cmd - v) / dt, clipped to V."""
    box = RATE / math.sqrt(2.0)
    models = {
        "ego": DoubleIntegratorControlModel("ego", 2, capacity=box),
        "p0": DoubleIntegratorControlModel("p0", 2, capacity=accel),
    }
    guard = ExpCBFQP.ego_only(control_models=models)

    def command(nominal, scene, dt, robot):
        velocity = np.array(robot.velocity)
        action, _ = guard.filter(
            np.clip((nominal - velocity) / dt, -box, box),
            {"agent_states": scene},
            SafetyState({("ego", "p0"): 0.0}),
            Bounds(box, box, 1.0, 0.0, 0.0),
            ego_uid="ego",
            partner_predicted_states=scene,
            dt=dt,
        )
        wanted = velocity + action * dt
        return wanted * min(1.0, TOP / max(float(np.linalg.norm(wanted)), 1e-12))

    return command


@pytest.mark.slow
def test_row_of_an_acceleration_robot_fails_behind_a_speed_limit():
    world = {"steps": 6_000, "seed": 12, "speeds": (1.0, 1.0), "accels": (1.0,), "dts": (0.05,)}
    naive = attack(plant, base(), guard=clipped_acceleration(1.0), **world)
    assert naive.contacts > 0
    built = attack(plant, base(), **world)
    assert (built.contacts, built.uncertified) == (0, 0), built


def test_base_with_a_rate_that_is_taken_for_an_ideal_one_hits_walls():
    world = {"steps": 2_000, "seed": 13, "partners": 0, "walls": True}
    naive = attack(plant, base("none"), **world)
    assert naive.wall_contacts > 0
    assert naive.worst_wall < -0.01
    built = attack(plant, base(), **world)
    assert (built.wall_contacts, built.static_uncertified) == (0, 0), built


def test_nobody_escapes_from_a_faster_partner():
    bound = PartnerBound("p0", 1.2 * TOP)
    with pytest.raises(ConfigurationError, match="it catches up, whatever the robot does"):
        BackupFilter(base(), [bound], dt=0.1, guarantee="escape")
    # The naive way: flee as fast as possible, safe for the next 2 s. It is caught and run over.
    robot = plant(base(), (0.0, 0.0))
    rng = np.random.default_rng(0)
    hunter = Pursuer(bound, PURSUITS["chase"], (-1.5, 0.0), (0.0, 0.0), rng)
    gaps = run(robot, hunter, lambda _: (TOP, 0.0))
    assert min(gaps[:20]) > 0.3
    assert min(gaps) < -0.01
    assert robot.velocity == (TOP, 0.0)
    # The built one does not promise to get away, but to stand still when it is caught.
    robot = plant(base(), (0.0, 0.0))
    hunter = Pursuer(bound, PURSUITS["chase"], (-1.5, 0.0), (0.0, 0.0), rng)
    guard = BackupFilter(base(), [bound], dt=0.1, margin_m=0.0)

    def passive(scene):
        step = guard.filter(np.array([TOP, 0.0]), scene)
        assert not step.uncertified
        return step.action

    gaps = run(robot, hunter, passive)
    assert min(gaps) < -0.01
    assert robot.velocity == (0.0, 0.0)


def run(robot, hunter, policy):
    """Return the gap after each of 200 steps; stop where the robot is touched."""
    gaps = []
    for _ in range(200):
        scene = {
            "ego": AgentSnapshot(robot.position, robot.velocity, RADIUS),
            "p0": AgentSnapshot(hunter.position, hunter.velocity, RADIUS),
        }
        before = robot.position
        path = robot.step(policy(scene), 0.1)
        gaps.append(math.dist(path[-1], hunter.step(before, path, 0.1)[-1]) - 2.0 * RADIUS)
        if gaps[-1] < -0.01:
            break
    return gaps


def test_partner_and_wall_have_no_common_backup_and_the_wall_comes_first():
    # A wall right behind the robot, a partner as fast as it in front: fleeing leads into the wall.
    guard = BackupFilter(
        base(), [PartnerBound("p0", TOP)], dt=0.1, margin_m=0.0, obstacles=[HalfSpace((1, 0), -0.3)]
    )
    robot = plant(base(), (0.0, 0.0))
    hunter = Pursuer(
        PartnerBound("p0", TOP), PURSUITS["chase"], (1.0, 0.0), (0.0, 0.0), np.random.default_rng(0)
    )
    uncertified = False

    def guarded(scene):
        nonlocal uncertified
        step = guard.filter(np.array([0.5, 0.0]), scene)
        uncertified = uncertified or step.uncertified
        assert not step.static_uncertified
        return step.action

    gaps = run(robot, hunter, guarded)
    assert min(gaps) < 0.0
    assert uncertified
    assert robot.position[0] >= -0.3 + RADIUS - 1e-6
