"""What must not be built: each naive way touches something, the filter with a backup does not."""

import dataclasses
import math

import numpy as np
import pytest

from cadenza.core.errors import ConfigurationError
from cadenza.core.seeding import derive_substream
from cadenza.safety import Bounds, DoubleIntegratorControlModel, ExpCBFQP, SafetyState
from cadenza.safety.backup import BackupFilter
from cadenza.safety.control_models import PartnerBound, VelocityModel
from cadenza.safety.geometry import HalfSpace
from cadenza.safety.snapshot import AgentSnapshot
from cadenza.safety.verifier import AttackConfig, attack
from cadenza.safety.verifier.adversaries import PURSUITS
from cadenza.safety.verifier.attacks import Pursuer
from cadenza.safety.verifier.robots import VelocityPlant

TOP, RATE, RADIUS = 1.0, 2.0, 0.2


def base():
    return VelocityModel("ego", 2, TOP, RATE)


def plant():
    return VelocityPlant((0.0, 0.0), (0.0, 0.0), max_accel=RATE)


def hunter(strategy, position, rng, *, speed=TOP, accel=math.inf):
    return Pursuer(PartnerBound("p0", speed, accel), PURSUITS[strategy], position, rng)


def run(robot, partner, policy, dt=0.1, steps=200):
    """Return the smallest gap in each step; stop where the robot is touched."""
    gaps = []
    for _ in range(steps):
        scene = {
            "ego": AgentSnapshot(robot.position, robot.velocity, RADIUS),
            "p0": AgentSnapshot(partner.position, partner.velocity, RADIUS),
        }
        start, path = robot.position, robot.step(policy(scene), dt)
        theirs = partner.step(start, path, dt)
        gaps.append(float(np.linalg.norm(path - theirs, axis=-1).min()) - 2.0 * RADIUS)
        if gaps[-1] < -0.01:
            break
    return gaps


def clipped_acceleration(accel):
    """Return a guard: the row of an acceleration robot on (v_cmd - v) / dt, clipped to V."""
    box = RATE / math.sqrt(2.0)
    models = {
        "ego": DoubleIntegratorControlModel("ego", 2, capacity=box),
        "p0": DoubleIntegratorControlModel("p0", 2, capacity=accel),
    }
    guard = ExpCBFQP.ego_only(control_models=models)

    def command(nominal, scene, dt):
        velocity = np.array(scene["ego"].velocity)
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


def test_row_of_an_acceleration_robot_fails_behind_a_speed_limit():
    dt, naive, built = 0.05, [], []
    for episode in (3, 7, 18, 23, 29):
        rng = derive_substream("tests.speed_limit", root_seed=episode).default_rng()
        away, strategy = rng.normal(size=2), str(rng.choice(list(PURSUITS)))
        away *= rng.uniform(4.5 * RADIUS, 2.0) / np.linalg.norm(away)
        goals = rng.uniform(-2.0, 2.0, size=(4, 2))

        def wish(scene, goals=goals, kind=episode % 3, rng=rng):
            ego, way = scene["ego"].position, rng.normal(size=2)
            if kind == 1:
                way = scene["p0"].position - ego
            elif kind == 2:  # there and back
                way = goals[int(np.linalg.norm(goals - ego, axis=1).argmax())] - ego
            return TOP * way / max(float(np.linalg.norm(way)), 1e-9)

        naively = clipped_acceleration(1.0)
        flter = BackupFilter(base(), [PartnerBound("p0", TOP, 1.0)], dt=dt, margin_m=0.0)

        def guarded(scene, flter=flter, wish=wish):
            step = flter.filter(wish(scene), scene)
            assert not step.uncertified
            return step.action

        for gaps, policy in (
            (naive, lambda scene, wish=wish, do=naively: do(wish(scene), scene, dt)),
            (built, guarded),
        ):
            partner = hunter(strategy, away, np.random.default_rng(episode), accel=1.0)
            gaps += run(plant(), partner, policy, dt, 150)
    assert min(naive) < -1e-6
    assert min(built) >= -1e-6
    assert len(built) == 750


def test_base_with_a_rate_that_is_taken_for_an_ideal_one_hits_walls():
    def naive(robot, partners, **options):
        ideal = dataclasses.replace(robot, limit="none", max_accel=math.inf)
        return BackupFilter(ideal, partners, **options)

    config = AttackConfig(schemes=("norm-walls",), steps=2_000, seed=13, dims=(2,))
    hit = attack(config, make_guard=naive)
    assert any("an obstacle was touched" in failure for failure in hit.failures)
    assert hit.everything().min_wall_m < -0.01
    assert attack(config).failures == []


def test_nobody_escapes_from_a_faster_partner():
    bound = PartnerBound("p0", 1.2 * TOP)
    with pytest.raises(ConfigurationError, match="it catches up, whatever the robot does"):
        BackupFilter(base(), [bound], dt=0.1, guarantee="escape")
    # The naive way: flee as fast as possible, safe for the next 2 s. It is caught and run over.
    robot, rng = plant(), np.random.default_rng(0)
    gaps = run(robot, hunter("chase", (-1.5, 0.0), rng, speed=1.2 * TOP), lambda _: (TOP, 0.0))
    assert min(gaps[:20]) > 0.3
    assert min(gaps) < -0.01
    assert robot.velocity.tolist() == [TOP, 0.0]
    # The built one does not promise to get away, but to stand still when it is caught.
    robot = plant()
    guard = BackupFilter(base(), [bound], dt=0.1, margin_m=0.0)

    def passive(scene):
        step = guard.filter(np.array([TOP, 0.0]), scene)
        assert not step.uncertified
        return step.action

    gaps = run(robot, hunter("chase", (-1.5, 0.0), rng, speed=1.2 * TOP), passive)
    assert min(gaps) < -0.01
    assert robot.velocity.tolist() == [0.0, 0.0]


def test_partner_and_wall_have_no_common_backup_and_the_wall_comes_first():
    # A wall right behind the robot, a partner as fast as it in front: fleeing leads into the wall.
    guard = BackupFilter(
        base(), [PartnerBound("p0", TOP)], dt=0.1, margin_m=0.0, obstacles=[HalfSpace((1, 0), -0.3)]
    )
    robot, partner = plant(), hunter("chase", (1.0, 0.0), np.random.default_rng(0))
    uncertified = False

    def guarded(scene):
        nonlocal uncertified
        step = guard.filter(np.array([0.5, 0.0]), scene)
        uncertified = uncertified or step.uncertified
        assert not step.static_uncertified
        return step.action

    gaps = run(robot, partner, guarded)
    assert min(gaps) < 0.0
    assert uncertified
    assert robot.position[0] >= -0.3 + RADIUS - 1e-6
