import math

import numpy as np
import pytest

from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety.authority import check_authority, measure_authority
from cadenza.safety.control_models import BodyDrive, DifferentialDriveControlModel, WheelDrive
from tests.unit.safety.scenes import agent, box

L = 0.25
WHEELS = WheelDrive(wheel_radius_m=0.1, track_m=0.4, max_wheel_speed=8.0)
BODY = BodyDrive(max_speed=0.8, max_yaw_rate=1.0)


class Unicycle:
    """Integrates axle pose and speeds in fine steps; independent of the model's formulas."""

    def __init__(self, heading=0.3, speed=0.5, yaw_rate=-0.7):
        self.c, self.heading = np.zeros(2), heading
        self.speed, self.yaw_rate = speed, yaw_rate

    def point(self):
        return self.c + L * np.array([math.cos(self.heading), math.sin(self.heading)])

    def velocity(self):
        cosine, sine = math.cos(self.heading), math.sin(self.heading)
        return self.speed * np.array([cosine, sine]) + L * self.yaw_rate * np.array([-sine, cosine])

    def state(self):
        return agent(self.point(), self.velocity())

    def advance(self, linear, angular, duration, steps):
        h = duration / steps
        for _ in range(steps):
            turn = self.heading + 0.5 * h * self.yaw_rate
            self.c = self.c + h * (self.speed + 0.5 * h * linear) * np.array(
                [math.cos(turn), math.sin(turn)]
            )
            self.heading += h * self.yaw_rate + 0.5 * h * h * angular
            self.speed += h * linear
            self.yaw_rate += h * angular


def model_of(robot, drive=BODY, **options):
    return DifferentialDriveControlModel("ego", lambda _: robot.heading, L, drive, **options)


@pytest.mark.parametrize(
    ("drive", "action", "body"),
    [
        (BODY, [0.7, -1.2], (0.7, -1.2)),
        (BodyDrive(1.0, 1.0, yaw_accel_per_unit=4.0), [0.7, -0.3], (0.7, -1.2)),
        # r (5 + 1) / 2 = 0.3 and r (5 - 1) / track = 1.
        (WHEELS, [5.0, 1.0], (0.3, 1.0)),
    ],
)
def test_drive_acceleration_matches_an_integrated_unicycle(drive, action, body):
    robot, h = Unicycle(), 1e-4
    model, state = model_of(robot, drive), robot.state()
    predicted = model.action_to_cartesian_accel(state, np.array(action)) + model.bias_accel(state)
    before = robot.velocity()
    robot.advance(*body, duration=h, steps=100)
    assert predicted == pytest.approx((robot.velocity() - before) / h, abs=1e-3)


def test_drive_bias_by_hand():
    # Heading +x, s = 2, w = 3: beta = s w f - L w^2 e = (-0.25 * 9, 6).
    robot = Unicycle(heading=0.0, speed=2.0, yaw_rate=3.0)
    assert model_of(robot).bias_accel(robot.state()) == pytest.approx([-2.25, 6.0])
    assert model_of(robot).jacobian(robot.state()) == pytest.approx(np.diag([1.0, L]))


@pytest.mark.parametrize("drive", [BODY, WHEELS])
@pytest.mark.parametrize("look_ahead", [0.02, 0.1, 0.5])
def test_drive_largest_bias_is_the_maximum_over_admissible_speeds(drive, look_ahead):
    if isinstance(drive, BodyDrive):
        s, w = np.meshgrid(
            np.linspace(0, drive.max_speed, 401), np.linspace(0, drive.max_yaw_rate, 401)
        )
    else:
        limit = drive.wheel_radius_m * drive.max_wheel_speed
        w = np.linspace(0, 2 * limit / drive.track_m, 200001)
        s = limit - 0.5 * drive.track_m * w
    grid = (w * np.hypot(s, look_ahead * w)).max()
    assert drive.largest_bias(look_ahead) == pytest.approx(grid, rel=1e-8)


@pytest.mark.parametrize(("drive", "c"), [(BODY, 8.0), (WHEELS, 60.0)])
def test_drive_capacities_bracket_every_admissible_acceleration(drive, c):
    robot = Unicycle()
    largest = model_of(robot, drive).max_cartesian_accel(box(c))
    guaranteed = model_of(robot, drive, credit="guaranteed").max_cartesian_accel(box(c))
    assert 0.0 < guaranteed < largest
    rng = np.random.default_rng(0)
    for _ in range(300):
        robot.heading = rng.uniform(-4, 4)
        if isinstance(drive, WheelDrive):
            right, left = 0.1 * rng.uniform(-8, 8, 2)
            robot.speed, robot.yaw_rate = 0.5 * (right + left), (right - left) / 0.4
        else:
            robot.speed, robot.yaw_rate = rng.uniform(-0.8, 0.8), rng.uniform(-1, 1)
        model, state = model_of(robot, drive, credit="guaranteed"), robot.state()
        authority = measure_authority(model, state, box(c))
        assert authority.certified
        assert authority.every_direction == pytest.approx(guaranteed)
        corner = c * rng.choice([-1.0, 1.0], 2)
        accel = model.action_to_cartesian_accel(state, corner) + model.bias_accel(state)
        assert np.linalg.norm(accel) <= largest * (1.0 + 1e-12)


def test_drive_guaranteed_capacity_by_hand():
    # Body: columns (1, 0) and (0, L) in the base's frame reach min(c, c L) = 1; the bias takes
    # |w| hypot(s, L w) = hypot(0.8, 0.25).
    model = model_of(Unicycle(), credit="guaranteed")
    bias = math.hypot(0.8, 0.25)
    assert model.max_cartesian_accel(box(4.0)) == pytest.approx(1.0 - bias)
    # The largest is a corner, hypot(c, c L), plus the bias.
    assert model_of(Unicycle()).max_cartesian_accel(box(4.0)) == pytest.approx(
        math.hypot(4.0, 1.0) + bias
    )


def test_drive_too_weak_for_its_speeds_is_refused():
    with pytest.raises(ConfigurationError, match=r"got 0.25 m/s\^2 .* against 0.8382 m/s\^2"):
        model_of(Unicycle(), credit="guaranteed").max_cartesian_accel(box(1.0))


def test_drive_ego_must_not_be_credited_with_its_largest_acceleration():
    robot = Unicycle(speed=0.0, yaw_rate=0.0)
    with pytest.raises(ConfigurationError, match="expected a declared capacity that the action bo"):
        check_authority(model_of(robot), box(8.0), snapshot=robot.state())
    check_authority(model_of(robot, credit="guaranteed"), box(8.0), snapshot=robot.state())


REST, AT = model_of(Unicycle()), agent([0, 0])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: BodyDrive(0.0, 1.0), "BodyDrive.max_speed: expected a finite number > 0, got 0.0"),
        (lambda: BodyDrive(1.0, 1.0, -1.0), "BodyDrive.yaw_accel_per_unit"),
        (lambda: WheelDrive(0.0, 1.0, 1.0), "WheelDrive.wheel_radius_m"),
        (lambda: WheelDrive(1.0, 1.0, -2.0), "WheelDrive.max_wheel_speed"),
        (lambda: DifferentialDriveControlModel("b", lambda _: 0.0, 0.0, BODY), r"\('b'\).look_ahe"),
        (
            lambda: DifferentialDriveControlModel("b", lambda _: 0.0, 1.0, BODY, "some"),
            "credit: expected one of .* got 'some'",
        ),
        (lambda: REST.action_to_cartesian_accel(AT, np.zeros(3)), "action shape of 'ego'"),
        (lambda: REST.cartesian_accel_to_action(AT, np.zeros(3)), "cartesian_accel shape of 'ego'"),
        (lambda: REST.jacobian(agent([0, 0, 0])), "state of 'ego': velocity: expected shape"),
        (
            lambda: DifferentialDriveControlModel("ego", lambda _: math.nan, L, BODY).bias_accel(
                AT
            ),
            "heading_fn of 'ego': expected a finite angle, got nan",
        ),
    ],
)
def test_drive_malformed_part_or_call_is_refused(build, message):
    with pytest.raises(InputError, match=message):
        build()
