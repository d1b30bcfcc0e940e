"""Forecasts of partners: closed forms, an independent least squares, and what members may be."""

import math
from functools import partial

import numpy as np
import pytest

from cadenza.core.errors import ConfigurationError, InputError, UnknownNameError
from cadenza.safety.runtime.predictors import (
    ConstantAccelerationPredictor,
    ConstantVelocityPredictor,
    EnsemblePredictor,
    Observation,
    PartnerPredictor,
    Prediction,
    make_predictor,
    predictor_kinds,
    propagated,
    register_predictor,
)
from tests.unit.safety.scenes import agent


def packets(times, position, velocity):
    """Packets of a motion given as functions of time."""
    return [Observation(t, agent(position(t), velocity(t))) for t in times]


def accelerated(times):
    """A partner with constant acceleration (0.4, -0.2) m/s^2."""
    accel = np.array([0.4, -0.2])
    return packets(
        times,
        lambda t: np.array([1.0, 2.0]) + np.array([0.3, 0.1]) * t + 0.5 * accel * t * t,
        lambda t: np.array([0.3, 0.1]) + accel * t,
    )


def test_constant_velocity_looks_over_age_and_step_by_hand():
    forecast = ConstantVelocityPredictor().predict(
        [Observation(0.0, agent([9, 9])), Observation(1.0, agent([1, 2], [0.5, -1]))], 0.1, 0.3
    )
    assert forecast.snapshot.position == pytest.approx([1.2, 1.6])  # 0.4 s
    assert forecast.snapshot.velocity.tolist() == [0.5, -1.0]
    assert forecast.error_accel is None
    assert forecast.acceleration_since(agent([1, 2], [0.5, -1]), 0.4).tolist() == [0.0, 0.0]


def test_constant_acceleration_with_exact_packets_meets_the_closed_form():
    exact = ConstantAccelerationPredictor(position_std=1e-6, velocity_std=1e-6, accel_std=10.0)
    forecast = exact.predict(accelerated([0.0, 0.05, 0.2, 0.25]), 0.05, 0.1)
    t = 0.25 + 0.15
    expected = np.array([1.0, 2.0]) + np.array([0.3, 0.1]) * t + 0.5 * np.array([0.4, -0.2]) * t**2
    assert forecast.snapshot.position == pytest.approx(expected, abs=1e-6)
    assert forecast.acceleration == pytest.approx([0.4, -0.2], abs=1e-4)
    # A forecast at constant velocity is off by a t^2 / 2 = 4.5 mm along x.
    straight = ConstantVelocityPredictor().predict(accelerated([0.25]), 0.05, 0.1)
    assert straight.snapshot.position[0] - expected[0] == pytest.approx(-0.0045, abs=1e-6)


def matrix(covariance):
    """The symmetric (3, 3) matrix of which the filter keeps the upper triangle."""
    p00, p01, p02, p11, p12, p22 = covariance
    return np.array([[p00, p01, p02], [p01, p11, p12], [p02, p12, p22]])


def triangle(symmetric):
    return tuple(symmetric[np.triu_indices(3)].tolist())


def transition(t):
    return np.array([[1, t, t * t / 2], [0, 1, t], [0, 0, 1]])


def jerk_noise(t, density):
    return matrix(propagated((0.0,) * 6, t, density))


def batch_least_squares(history, *, r_p, r_v, q, accel_std):
    """The same estimate in one step: all states at once, whitened and solved by QR.

    Unknowns: (p, v, a) at every packet. Equations: prior of the first acceleration, every
    measurement, and every transition with its jerk noise.
    """
    n = len(history)
    rows, targets = [], []

    def add(blocks, target, covariance):
        whiten = np.linalg.inv(np.linalg.cholesky(covariance))
        row = np.zeros((len(covariance), 3 * n))
        for index, block in blocks:
            row[:, 3 * index : 3 * index + 3] = block
        rows.append(whiten @ row)
        targets.append(whiten @ target)

    dim = len(history[0].snapshot.position)
    add([(0, np.array([[0.0, 0.0, 1.0]]))], np.zeros((1, dim)), np.array([[accel_std**2]]))
    for k, packet in enumerate(history):
        z = np.stack([packet.snapshot.position, packet.snapshot.velocity])
        add([(k, np.eye(3)[:2])], z, np.diag([r_p**2, r_v**2]))
        if k:
            t = packet.time_s - history[k - 1].time_s
            add([(k, np.eye(3)), (k - 1, -transition(t))], np.zeros((3, dim)), jerk_noise(t, q))
    stacked = np.vstack(rows)
    solution, *_ = np.linalg.lstsq(stacked, np.vstack(targets), rcond=None)
    return solution[-3:], np.linalg.inv(stacked.T @ stacked)[-3:, -3:]


def test_kalman_estimate_equals_batch_least_squares_on_irregular_noisy_packets():
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.uniform(0.01, 0.3, size=9))
    history = packets(
        times,
        lambda t: np.array([math.sin(t), math.cos(2 * t), t]) + rng.normal(0, 0.02, 3),
        lambda t: np.array([math.cos(t), -2 * math.sin(2 * t), 1.0]) + rng.normal(0, 0.1, 3),
    )
    kalman = ConstantAccelerationPredictor(
        position_std=0.02, velocity_std=0.1, jerk_density=3.0, accel_std=2.0
    )
    mean, covariance = kalman.estimate(history)
    expected, expected_covariance = batch_least_squares(
        history, r_p=0.02, r_v=0.1, q=3.0, accel_std=2.0
    )
    assert mean == pytest.approx(expected, rel=1e-7, abs=1e-8)
    assert covariance == pytest.approx(expected_covariance, rel=1e-6, abs=1e-10)


def test_jerk_noise_is_the_integral_of_the_propagated_jerk():
    t, n = 0.3, 20_000
    s = (np.arange(n) + 0.5) * t / n
    spread = np.stack([(t - s) ** 2 / 2, t - s, np.ones(n)])
    assert jerk_noise(t, 2.0) == pytest.approx(2.0 * spread @ spread.T * t / n, rel=1e-7)
    root = np.random.default_rng(1).normal(size=(3, 3))
    before, motion = root @ root.T, transition(t)
    after = matrix(propagated(triangle(before), t, 2.0))
    assert after == pytest.approx(motion @ before @ motion.T + jerk_noise(t, 2.0), rel=1e-12)


def test_kalman_error_bound_covers_the_truth_as_often_as_it_says():
    # The mean acceleration over the next 0.05 s of 400 motions drawn from the filter's own model.
    rng = np.random.default_rng(0)
    q, dt, r_p, r_v = 1.0, 0.05, 1e-3, 1e-2
    kalman = ConstantAccelerationPredictor(sigmas=2.0)
    noise = np.linalg.cholesky(jerk_noise(dt, q) + 1e-18 * np.eye(3))
    inside = 0
    for _ in range(400):
        state = np.stack([np.zeros(2), np.zeros(2), rng.normal(0, 1, 2)])
        history = []
        for k in range(10):
            p = state[0] + rng.normal(0, r_p, 2)
            history.append(Observation(k * dt, agent(p, state[1] + rng.normal(0, r_v, 2))))
            before = state
            state = transition(dt) @ state + noise @ rng.normal(size=(3, 2))
        truth = (state[1] - before[1]) / dt
        forecast = kalman.predict(history, dt, 0.0)
        inside += np.linalg.norm(forecast.acceleration - truth) <= forecast.error_accel
    # P(|e|^2 <= 2 * 2^2 s^2) for two axes is 1 - exp(-4) = 0.982.
    assert inside / 400 == pytest.approx(0.982, abs=0.02)


def test_kalman_error_bound_grows_with_age_and_shrinks_with_packets():
    kalman = ConstantAccelerationPredictor()
    few, many = accelerated([0.0, 0.05]), accelerated([0.05 * k for k in range(10)])
    fresh = kalman.predict(many, 0.05, 0.0).error_accel
    assert kalman.predict(many, 0.05, 0.5).error_accel > fresh
    assert kalman.predict(few, 0.05, 0.0).error_accel > fresh
    # One packet: nothing is known of the acceleration but its prior; 3 sqrt(2 (1 + q t / 3)).
    alone = kalman.predict(accelerated([0.0]), 0.05, 0.0)
    assert alone.error_accel == pytest.approx(3.0 * math.sqrt(2.0 * (1.0 + 0.05 / 3.0)))
    assert alone.acceleration.tolist() == [0.0, 0.0]


class Push:
    """Forecasts a constant acceleration along x and claims an error."""

    def __init__(self, accel=0.6, error=None):
        self.accel, self.error = accel, error

    def predict(self, history, dt, age):
        last = history[-1].snapshot
        t = age + dt
        change = np.array([self.accel, 0.0])
        ahead = agent(
            last.position + last.velocity * t + 0.5 * change * t * t, last.velocity + change * t
        )
        return Prediction(ahead, self.error)


straight = ConstantVelocityPredictor()


def test_ensemble_mean_and_disagreement_by_hand():
    ensemble = EnsemblePredictor([straight, Push(0.6), Push(0.9, error=0.25)])
    forecast = ensemble.predict([Observation(0.0, agent([1, 0], [2, 0]))], 0.1, 0.1)
    # Mean of 0, 0.6 and 0.9 m/s^2 is 0.5; largest |a - mean| + claim = 0.4 + 0.25.
    assert forecast.acceleration == pytest.approx([0.5, 0.0])
    assert forecast.error_accel == pytest.approx(0.65)
    assert forecast.snapshot.velocity == pytest.approx([2.0 + 0.5 * 0.2, 0.0])
    assert forecast.snapshot.position == pytest.approx([1.0 + 0.4 + 0.5 * 0.5 * 0.04, 0.0])
    # No time ahead, no disagreement.
    still = EnsemblePredictor([straight, straight]).predict(
        [Observation(0.0, agent([1, 0], [2, 0]))], 0.0, 0.0
    )
    assert still.error_accel == 0.0


@pytest.mark.parametrize("predictor", [make_predictor(kind) for kind in predictor_kinds()])
def test_every_predictor_refuses_bad_times_and_an_empty_history(predictor):
    assert isinstance(predictor, PartnerPredictor)
    history = accelerated([0.0, 0.1])
    with pytest.raises(InputError, match="at least one packet"):
        predictor.predict([], 0.1, 0.0)
    with pytest.raises(InputError, match=r"dt: expected a finite time >= 0 s, got -0\.1"):
        predictor.predict(history, -0.1, 0.0)
    with pytest.raises(InputError, match="age: expected a finite time"):
        predictor.predict(history, 0.1, math.nan)


def test_registry_finds_registered_kinds_and_refuses_others():
    assert predictor_kinds()[:3] == ("constant_acceleration", "constant_velocity", "ensemble")
    with pytest.raises(UnknownNameError, match=r"expected one of .*, got 'oracle'"):
        make_predictor("oracle")
    with pytest.raises(ConfigurationError, match="expected a new name, got 'ensemble'"):
        register_predictor("ensemble", Push)


STILL = [Observation(0.0, agent([0, 0]))]
DEEP = [*STILL, Observation(1.0, agent([0, 0, 0]))]


class Deep:
    def predict(self, history, dt, age):
        return Prediction(agent([0, 0, 0]))


def mixed(member):
    return EnsemblePredictor([straight, member]).predict(STILL, 0.1, 0.0)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        *(
            (partial(ConstantAccelerationPredictor, **{name: value}), ConfigurationError, name)
            for name, value in (("position_std", 0.0), ("sigmas", math.inf), ("jerk_density", -1))
        ),
        (
            lambda: ConstantAccelerationPredictor().estimate(accelerated([0.1, 0.0])),
            InputError,
            r"in the order they were measured, got a packet -0\.1 s",
        ),
        (lambda: ConstantAccelerationPredictor().estimate(DEEP), InputError, "one dimension"),
        (lambda: EnsemblePredictor([straight]), ConfigurationError, "at least two members, got 1"),
        (lambda: mixed(Deep()), InputError, r"forecasts of shape \(2,\), got"),
    ],
)
def test_predictors_refuse_what_cannot_work(make, error, message):
    with pytest.raises(error, match=message):
        make()
