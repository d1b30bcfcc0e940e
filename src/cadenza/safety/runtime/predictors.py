"""Forecasts of partners' motion from the packets they sent.

Contract:   a predictor is a pure function of a short history of packets, so a saved history is all
            that a resumed run needs. Packets carry the time they were measured; the newest one is
            ``age`` seconds old when the forecast is made, which looks ``dt`` beyond that moment.
Error:      a `Prediction` may bound the error of the acceleration it implies, m/s^2. The filter's
            certificate may rest on it only if the caller declares so
            (`SafetyOptions.prediction_error`).
Units:      m, m/s, m/s^2, s.

The constant-acceleration forecast is a Kalman filter on x = (p, v, a) per axis:
Motion:     a changes by white jerk of spectral density q:
                F = [[1, t, t^2/2], [0, 1, t], [0, 0, 1]]
                Q = q [[t^5/20, t^4/8, t^3/6], [t^4/8, t^3/3, t^2/2], [t^3/6, t^2/2, t]]
Packet:     z = (p, v) + noise, covariance R = diag(r_p^2, r_v^2); t is the time between packets as
            measured, so gaps, late packets and uneven rates need no special case.
Update:     K = P H^T (H P H^T + R)^-1, and the Joseph form P <- (I - K H) P (I - K H)^T + K R K^T,
            which stays symmetric and positive definite under rounding; in plain numbers, since
            matrices of three rows cost more to pass around than to multiply. Gains follow from the
            times of the packets alone, so partners that send regularly share them.
Forecast:   F x over age + dt. Error bound: `sigmas` standard deviations of the mean acceleration
            since the newest packet, per axis, times sqrt(d); it holds as far as the noise model.
Source:     Bar-Shalom, Li and Kirubarajan, "Estimation with Applications to Tracking and
            Navigation", section 6.2.3 (white-noise jerk) and 5.2.6 (Joseph form).
Axes:       d = Cartesian dimension; means are (3, d), covariances (3, 3), of which `Covariance`
            holds the upper triangle by rows.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import ConfigurationError, InputError, UnknownNameError
from cadenza.safety.snapshot import AgentSnapshot

#: Packets per partner that a history keeps: 0.8 s at 20 Hz, beyond which the motion of a partner
#: that accelerates says little about its next step.
HISTORY_LENGTH: Final = 16
#: Two packets measured closer than this are the same one, s; far below any control step.
SAME_TIME_S: Final = 1e-9


class Observation(NamedTuple):
    """One packet.

    Attributes:
        time_s: When it was measured, on the clock of the run, s.
        snapshot: What it says.
    """

    time_s: float
    snapshot: AgentSnapshot


class Prediction(NamedTuple):
    """One forecast.

    Attributes:
        snapshot: The partner at the forecast time.
        error_accel: Bound on the error of the mean acceleration since the newest packet,
            Euclidean, m/s^2; None makes no claim.
        acceleration: That mean acceleration, shape (d,), m/s^2; None means the change of velocity
            from the newest packet to ``snapshot`` over the time between them.
    """

    snapshot: AgentSnapshot
    error_accel: float | None = None
    acceleration: FloatArray | None = None

    def acceleration_since(self, packet: AgentSnapshot, horizon: float) -> FloatArray:
        """Return the mean acceleration since ``packet``, which is ``horizon`` s older, shape (d,).

        A horizon of 0 leaves no time to accelerate.
        """
        if self.acceleration is not None:
            return self.acceleration
        change = self.snapshot.velocity - packet.velocity
        return change / horizon if horizon > 0.0 else np.zeros_like(change)


@runtime_checkable
class PartnerPredictor(Protocol):
    """Forecasts one partner; deterministic, without memory between calls."""

    def predict(self, history: Sequence[Observation], dt: float, age: float) -> Prediction:
        """Return the partner ``dt`` seconds from now.

        Args:
            history: Packets in the order they were measured, the newest last; at least one.
            dt: Look-ahead from now, s, >= 0.
            age: Time since the newest packet was measured, s, >= 0.

        Raises:
            InputError: The history is empty or a time is out of range.
        """
        ...


def newest(history: Sequence[Observation], dt: float, age: float) -> Observation:
    """Return the newest packet after checking the arguments of a forecast.

    Raises:
        InputError: The history is empty, or a time is negative or not finite.
    """
    if not history:
        raise InputError("predictor: expected a history of at least one packet, got none.")
    if not 0.0 <= dt < math.inf:
        raise InputError(f"predictor: dt: expected a finite time >= 0 s, got {dt}.")
    if not 0.0 <= age < math.inf:
        raise InputError(f"predictor: age: expected a finite time >= 0 s, got {age}.")
    return history[-1]


class ConstantVelocityPredictor:
    """The partner keeps the velocity of its newest packet; no claim about the error."""

    def predict(self, history: Sequence[Observation], dt: float, age: float) -> Prediction:
        """See `PartnerPredictor.predict`."""
        snapshot = newest(history, dt, age).snapshot
        return Prediction(snapshot.moved_on(age + dt))


class EnsemblePredictor:
    """Mean of several forecasts; their disagreement bounds the error.

    The bound is the largest distance of a member's implied acceleration from the mean one, plus
    that member's own bound. It covers the truth whenever the truth lies among the members, which
    nobody can check beforehand; that is why it enters rows only on the caller's word.

    Args:
        members: At least two predictors.

    Raises:
        ConfigurationError: Fewer than two members.
    """

    def __init__(self, members: Sequence[PartnerPredictor]) -> None:
        if len(members) < 2:
            raise ConfigurationError(
                f"EnsemblePredictor: expected at least two members, got {len(members)}; one "
                "forecast alone cannot disagree."
            )
        self._members = list(members)

    def predict(self, history: Sequence[Observation], dt: float, age: float) -> Prediction:
        """See `PartnerPredictor.predict`.

        Raises:
            InputError: As there; or a member returns a snapshot of another dimension.
        """
        last = newest(history, dt, age).snapshot
        forecasts = [member.predict(history, dt, age) for member in self._members]
        for forecast in forecasts:
            if forecast.snapshot.position.shape != last.position.shape:
                raise InputError(
                    f"EnsemblePredictor: expected forecasts of shape {last.position.shape}, got "
                    f"{forecast.snapshot.position.shape}."
                )
        position = np.mean([f.snapshot.position for f in forecasts], axis=0)
        velocity = np.mean([f.snapshot.velocity for f in forecasts], axis=0)
        accelerations = [forecast.acceleration_since(last, age + dt) for forecast in forecasts]
        mean = np.mean(accelerations, axis=0)
        bound = max(
            float(np.linalg.norm(accel - mean)) + (forecast.error_accel or 0.0)
            for accel, forecast in zip(accelerations, forecasts, strict=True)
        )
        return Prediction(AgentSnapshot(position, velocity, last.radius), bound, mean)


#: Standard deviation of measured positions, m, and velocities, m/s: an indoor motion capture.
DEFAULT_POSITION_STD: Final = 1e-3
DEFAULT_VELOCITY_STD: Final = 1e-2
#: Spectral density of the jerk, m^2/s^5: within 0.1 s the acceleration wanders by 0.3 m/s^2.
DEFAULT_JERK_DENSITY: Final = 1.0
#: Standard deviation of the acceleration before any packet, m/s^2.
DEFAULT_ACCEL_STD: Final = 1.0
#: Standard deviations in the error bound; 99.7 % of a normal error per axis.
DEFAULT_SIGMAS: Final = 3.0


#: Resolution of the time between packets on which gains depend, s: sums of control steps round
#: differently (1e-14 s after a minute) and would each ask for gains of their own. A gap that is
#: off by this much changes a forecast by less than 1e-12 m.
GAP_RESOLUTION_S: Final = 2.0**-44
#: Sequences of gaps whose gains are kept: a few partners, each with a growing history.
_KEPT_SEQUENCES: Final = 256

#: P_00, P_01, P_02, P_11, P_12, P_22.
Covariance: TypeAlias = tuple[float, float, float, float, float, float]
#: K by rows: K_00, K_01, K_10, K_11, K_20, K_21.
Gain: TypeAlias = tuple[float, float, float, float, float, float]


class NoiseModel(NamedTuple):
    """What the gains depend on beside the times of the packets.

    Attributes:
        position: Variance of measured positions, r_p^2, m^2.
        velocity: Variance of measured velocities, r_v^2, m^2/s^2.
        jerk_density: q, m^2/s^5.
        accel: Variance of the acceleration before any packet, m^2/s^4.
    """

    position: float
    velocity: float
    jerk_density: float
    accel: float


def propagated(before: Covariance, t: float, density: float) -> Covariance:
    """Return F P F^T + Q for a time step of ``t`` s and a jerk density in m^2/s^5."""
    p00, p01, p02, p11, p12, p22 = before
    t2 = t * t
    t3 = t2 * t
    half = 0.5 * t2
    m01, m02 = p01 + t * p11 + half * p12, p02 + t * p12 + half * p22  # first row of F P
    m12 = p12 + t * p22
    return (
        p00 + t * p01 + half * p02 + t * m01 + half * m02 + density * (t3 * t2 / 20.0),
        m01 + t * m02 + density * (t2 * t2 / 8.0),
        m02 + density * (t3 / 6.0),
        p11 + t * p12 + t * m12 + density * (t3 / 3.0),
        m12 + density * half,
        p22 + density * t,
    )


def joseph_update(before: Covariance, noise: NoiseModel) -> tuple[Gain, Covariance]:
    """Return the gain of a packet and the covariance after it."""
    p00, p01, p02, p11, p12, p22 = before
    r_p, r_v = noise.position, noise.velocity
    s00 = p00 + r_p
    tie = p01 / s00
    rest = p11 + r_v - tie * p01  # of the innovation's velocity once its position is known
    k01, k11, k21 = (p01 - tie * p00) / rest, (p11 - tie * p01) / rest, (p12 - tie * p02) / rest
    k00, k10, k20 = p00 / s00 - tie * k01, p01 / s00 - tie * k11, p02 / s00 - tie * k21
    m00, m11 = 1.0 - k00, 1.0 - k11
    b00, b01 = m00 * p00 - k01 * p01, m00 * p01 - k01 * p11  # (I - K H) P
    b10, b11 = m11 * p01 - k10 * p00, m11 * p11 - k10 * p01
    b20, b21 = p02 - k20 * p00 - k21 * p01, p12 - k20 * p01 - k21 * p11
    b02, b12 = m00 * p02 - k01 * p12, m11 * p12 - k10 * p02
    b22 = p22 - k20 * p02 - k21 * p12
    after = (
        m00 * b00 - k01 * b01 + r_p * k00 * k00 + r_v * k01 * k01,
        m11 * b01 - k10 * b00 + r_p * k00 * k10 + r_v * k01 * k11,
        b02 - k20 * b00 - k21 * b01 + r_p * k00 * k20 + r_v * k01 * k21,
        m11 * b11 - k10 * b10 + r_p * k10 * k10 + r_v * k11 * k11,
        b12 - k20 * b10 - k21 * b11 + r_p * k10 * k20 + r_v * k11 * k21,
        b22 - k20 * b20 - k21 * b21 + r_p * k20 * k20 + r_v * k21 * k21,
    )
    return (k00, k01, k10, k11, k20, k21), after


@lru_cache(maxsize=_KEPT_SEQUENCES)
def gains_of(gaps: tuple[int, ...], noise: NoiseModel) -> tuple[tuple[Gain, ...], Covariance]:
    """Return the gain of every packet after the first, and the covariance at the last.

    Args:
        gaps: Time from each packet to the next, in units of `GAP_RESOLUTION_S`.
        noise: The noise model.
    """
    covariance = (noise.position, 0.0, 0.0, noise.velocity, 0.0, noise.accel)
    gains: list[Gain] = []
    for gap in gaps:
        ahead = propagated(covariance, gap * GAP_RESOLUTION_S, noise.jerk_density)
        gain, covariance = joseph_update(ahead, noise)
        gains.append(gain)
    return tuple(gains), covariance


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
        self._noise = NoiseModel(position_std**2, velocity_std**2, jerk_density, accel_std**2)
        self._sigmas = sigmas

    def estimate(self, history: Sequence[Observation]) -> tuple[FloatArray, FloatArray]:
        """Return mean (3, d) and covariance (3, 3) of (p, v, a) at the newest packet.

        Raises:
            InputError: Two packets in the wrong order, or of different dimension.
        """
        axes, (p00, p01, p02, p11, p12, p22) = self._estimate(history)
        covariance = np.array([[p00, p01, p02], [p01, p11, p12], [p02, p12, p22]])
        return np.array(axes).T, covariance

    def _estimate(
        self, history: Sequence[Observation]
    ) -> tuple[list[tuple[float, float, float]], Covariance]:
        """Return (p, v, a) per axis, and their covariance, at the newest packet."""
        gaps = gaps_of(history)
        gains, covariance = gains_of(
            tuple([round(t / GAP_RESOLUTION_S) for t in gaps]), self._noise
        )
        steps = [(t, 0.5 * t * t, *gain) for t, gain in zip(gaps, gains, strict=True)]
        positions = [packet.snapshot.position_numbers for packet in history]
        velocities = [packet.snapshot.velocity_numbers for packet in history]
        axes: list[tuple[float, float, float]] = []
        for axis in range(len(positions[0])):
            p, v, a = positions[0][axis], velocities[0][axis], 0.0
            for index, (t, half, k00, k01, k10, k11, k20, k21) in enumerate(steps, 1):
                p += t * v + half * a
                v += t * a
                off_p, off_v = positions[index][axis] - p, velocities[index][axis] - v
                p += k00 * off_p + k01 * off_v
                v += k10 * off_p + k11 * off_v
                a += k20 * off_p + k21 * off_v
            axes.append((p, v, a))
        return axes, covariance

    def predict(self, history: Sequence[Observation], dt: float, age: float) -> Prediction:
        """See `cadenza.safety.runtime.predictors.PartnerPredictor.predict`."""
        radius = newest(history, dt, age).snapshot.radius
        axes, covariance = self._estimate(history)
        horizon = age + dt
        half = 0.5 * horizon * horizon
        ahead = AgentSnapshot(
            np.array([p + horizon * v + half * a for p, v, a in axes]),
            np.array([v + horizon * a for _, v, a in axes]),
            radius,
        )
        bound = self._error_bound(covariance, horizon, len(axes))
        return Prediction(ahead, bound, np.array([a for _, _, a in axes]))

    def _error_bound(self, covariance: Covariance, horizon: float, dim: int) -> float:
        """Return the bound on the error of the mean acceleration over the horizon, m/s^2.

        The mean acceleration is a plus the mean over the horizon of what jerk adds, whose variance
        is q t / 3: the integral of ((t - s) / t)^2 ds for a jerk at time s.
        """
        variance = covariance[-1] + self._noise.jerk_density * horizon / 3.0
        return self._sigmas * math.sqrt(dim * variance)


def gaps_of(history: Sequence[Observation]) -> list[float]:
    """Return the time from each packet to the next, s.

    Raises:
        InputError: Two packets in the wrong order, or of different dimension.
    """
    time_s, dim = history[0].time_s, len(history[0].snapshot.position_numbers)
    gaps: list[float] = []
    for packet in history[1:]:
        gap = packet.time_s - time_s
        if not gap > 0.0 or len(packet.snapshot.position_numbers) != dim:
            raise InputError(
                "predictor: expected packets of one dimension in the order they were "
                f"measured, got a packet {gap} s after the one before it."
            )
        time_s = packet.time_s
        gaps.append(gap)
    return gaps


#: How each registered kind is built.
_KINDS: Final[dict[str, Callable[[], PartnerPredictor]]] = {
    "constant_velocity": ConstantVelocityPredictor,
    "constant_acceleration": ConstantAccelerationPredictor,
    "ensemble": lambda: EnsemblePredictor(
        [ConstantVelocityPredictor(), ConstantAccelerationPredictor()]
    ),
}


def predictor_kinds() -> tuple[str, ...]:
    """Return the registered names, sorted."""
    return tuple(sorted(_KINDS))


def register_predictor(kind: str, build: Callable[[], PartnerPredictor]) -> None:
    """Make ``kind`` available as `SafetyOptions.predictor_kind`.

    Raises:
        ConfigurationError: The name is empty or taken.
    """
    if not kind or kind in _KINDS:
        raise ConfigurationError(
            f"register_predictor: expected a new name, got {kind!r}; known: {predictor_kinds()}."
        )
    _KINDS[kind] = build


def make_predictor(kind: str) -> PartnerPredictor:
    """Return a predictor of a registered kind.

    Raises:
        UnknownNameError: No predictor has this name.
    """
    if kind not in _KINDS:
        raise UnknownNameError(f"predictor: expected one of {predictor_kinds()}, got {kind!r}.")
    return _KINDS[kind]()


def snapshot_to_dict(snapshot: AgentSnapshot) -> dict[str, Any]:
    """Return a JSON-able copy; floats survive exactly."""
    return {
        "position": snapshot.position.tolist(),
        "velocity": snapshot.velocity.tolist(),
        "radius": snapshot.radius,
        "age_s": snapshot.age_s,
    }


def snapshot_from_dict(fields: Mapping[str, Any]) -> AgentSnapshot:
    """Return the snapshot that `snapshot_to_dict` described.

    Raises:
        KeyError: A field is missing.
        InputError: A field is malformed.
    """
    return AgentSnapshot(fields["position"], fields["velocity"], fields["radius"], fields["age_s"])
