"""Constant-acceleration forecast with a Kalman filter.

State:      x = (p, v, a) per axis; all axes share one covariance, because they share every noise.
Motion:     a changes by white jerk of spectral density q:
                F = [[1, t, t^2/2], [0, 1, t], [0, 0, 1]]
                Q = q [[t^5/20, t^4/8, t^3/6], [t^4/8, t^3/3, t^2/2], [t^3/6, t^2/2, t]]
Packet:     z = (p, v) + noise, covariance R = diag(r_p^2, r_v^2); t is the time between packets as
            measured, so gaps, late packets and uneven rates need no special case.
Update:     K = P H^T (H P H^T + R)^-1, and the Joseph form P <- (I - K H) P (I - K H)^T + K R K^T,
            which stays symmetric and positive definite under rounding.
Forecast:   F x over age + dt. Error bound: `sigmas` standard deviations of the mean acceleration
            since the newest packet, per axis, times sqrt(d) for the Euclidean norm.
Source:     Bar-Shalom, Li and Kirubarajan, "Estimation with Applications to Tracking and
            Navigation", section 6.2.3 (white-noise jerk) and 5.2.6 (Joseph form).
Axes:       d = Cartesian dimension; means are (3, d), covariances (3, 3).
Limits:     the bound is statistical: it holds as far as the noise model does.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety.predictors import Observation, Prediction, newest
from cadenza.safety.snapshot import AgentSnapshot

#: Standard deviation of measured positions, m, and velocities, m/s: an indoor motion capture.
DEFAULT_POSITION_STD: Final = 1e-3
DEFAULT_VELOCITY_STD: Final = 1e-2
#: Spectral density of the jerk, m^2/s^5: within 0.1 s the acceleration wanders by 0.3 m/s^2.
DEFAULT_JERK_DENSITY: Final = 1.0
#: Standard deviation of the acceleration before any packet, m/s^2.
DEFAULT_ACCEL_STD: Final = 1.0
#: Standard deviations in the error bound; 99.7 % of a normal error per axis.
DEFAULT_SIGMAS: Final = 3.0


def transition(t: float) -> FloatArray:
    """Return F, shape (3, 3), for a time step of ``t`` s."""
    return np.array([[1.0, t, 0.5 * t * t], [0.0, 1.0, t], [0.0, 0.0, 1.0]])


def jerk_noise(t: float, density: float) -> FloatArray:
    """Return Q, shape (3, 3), for a time step of ``t`` s and a density in m^2/s^5."""
    t2, t3, t4, t5 = t * t, t**3, t**4, t**5
    return density * np.array(
        [[t5 / 20.0, t4 / 8.0, t3 / 6.0], [t4 / 8.0, t3 / 3.0, t2 / 2.0], [t3 / 6.0, t2 / 2.0, t]]
    )


def joseph_update(
    mean: FloatArray, covariance: FloatArray, measured: FloatArray, noise: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return mean and covariance after one packet.

    Args:
        mean: Before, shape (3, d).
        covariance: Before, shape (3, 3).
        measured: Position and velocity, shape (2, d).
        noise: R, shape (2, 2).
    """
    innovation_covariance = covariance[:2, :2] + noise
    gain = np.linalg.solve(innovation_covariance, covariance[:2, :]).T  # (3, 2)
    keep = np.eye(3)
    keep[:, :2] -= gain
    mean = mean + gain @ (measured - mean[:2])
    return mean, keep @ covariance @ keep.T + gain @ noise @ gain.T


class ConstantAccelerationPredictor:
    """The partner keeps the acceleration that its last packets show.

    Args:
        position_std: Noise of measured positions, m, > 0.
        velocity_std: Noise of measured velocities, m/s, > 0.
        jerk_density: q, m^2/s^5, >= 0; larger forgets faster.
        accel_std: Standard deviation of the acceleration before any packet, m/s^2, > 0.
        sigmas: Standard deviations in the error bound, > 0.

    Raises:
        ConfigurationError: A number is out of range.
    """

    def __init__(
        self,
        *,
        position_std: float = DEFAULT_POSITION_STD,
        velocity_std: float = DEFAULT_VELOCITY_STD,
        jerk_density: float = DEFAULT_JERK_DENSITY,
        accel_std: float = DEFAULT_ACCEL_STD,
        sigmas: float = DEFAULT_SIGMAS,
    ) -> None:
        for name, value in (
            ("position_std", position_std),
            ("velocity_std", velocity_std),
            ("accel_std", accel_std),
            ("sigmas", sigmas),
        ):
            if not 0.0 < value < math.inf:
                raise ConfigurationError(
                    f"ConstantAccelerationPredictor.{name}: expected a finite number > 0, "
                    f"got {value}."
                )
        if not 0.0 <= jerk_density < math.inf:
            raise ConfigurationError(
                "ConstantAccelerationPredictor.jerk_density: expected a finite number >= 0, "
                f"got {jerk_density}."
            )
        self._noise = np.diag([position_std**2, velocity_std**2])
        self._jerk_density = jerk_density
        self._accel_variance = accel_std**2
        self._sigmas = sigmas

    def estimate(self, history: Sequence[Observation]) -> tuple[FloatArray, FloatArray]:
        """Return mean (3, d) and covariance (3, 3) of (p, v, a) at the newest packet.

        Raises:
            InputError: Two packets in the wrong order, or of different dimension.
        """
        first = history[0].snapshot
        dim = first.position.shape[0]
        mean = np.stack([first.position, first.velocity, np.zeros(dim)])
        covariance = np.diag([*np.diag(self._noise), self._accel_variance])
        time_s = history[0].time_s
        for packet in history[1:]:
            gap = packet.time_s - time_s
            if not gap > 0.0 or packet.snapshot.position.shape[0] != dim:
                raise InputError(
                    "predictor: expected packets of one dimension in the order they were "
                    f"measured, got a packet {gap} s after the one before it."
                )
            time_s = packet.time_s
            motion = transition(gap)
            mean = motion @ mean
            covariance = motion @ covariance @ motion.T + jerk_noise(gap, self._jerk_density)
            measured = np.stack([packet.snapshot.position, packet.snapshot.velocity])
            mean, covariance = joseph_update(mean, covariance, measured, self._noise)
        return mean, covariance

    def predict(self, history: Sequence[Observation], dt: float, age: float) -> Prediction:
        """See `cadenza.safety.predictors.PartnerPredictor.predict`."""
        radius = newest(history, dt, age).snapshot.radius
        mean, covariance = self.estimate(history)
        horizon = age + dt
        ahead = transition(horizon) @ mean
        bound = self._error_bound(covariance, horizon, mean.shape[1])
        return Prediction(AgentSnapshot(ahead[0], ahead[1], radius), bound, mean[2])

    def _error_bound(self, covariance: FloatArray, horizon: float, dim: int) -> float:
        """Return the bound on the error of the mean acceleration over the horizon, m/s^2.

        The mean acceleration is a plus the mean over the horizon of what jerk adds, whose variance
        is q t / 3: the integral of ((t - s) / t)^2 ds for a jerk at time s.
        """
        variance = float(covariance[2, 2]) + self._jerk_density * horizon / 3.0
        return self._sigmas * math.sqrt(dim * variance)
