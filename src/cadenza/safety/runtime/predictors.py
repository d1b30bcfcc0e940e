"""Forecasts of a partner's motion from the packets it sent.

Contract:   a predictor is a pure function of a short history of packets: whatever it needs is in
            the history, so a saved history is all that a resumed run needs.
Time:       packets carry the time they were measured; the newest one is ``age`` seconds old when
            the forecast is made, and the forecast looks ``dt`` beyond that moment.
Error:      a `Prediction` may carry a bound on the error of the acceleration it implies, m/s^2.
            The filter's certificate may rest on it only if the caller declares so
            (`SafetyOptions.prediction_error`).
Kinds:      `constant_velocity`, `constant_acceleration` (`kalman`), `ensemble`, and
            whatever `register_predictor` adds.
Units:      m, m/s, m/s^2, s.
"""

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import ConfigurationError, InputError, UnknownNameError
from cadenza.safety.snapshot import AgentSnapshot

#: Packets per partner that a history keeps: 0.8 s at 20 Hz, beyond which the motion of a partner
#: that accelerates says little about its next step.
HISTORY_LENGTH: Final = 16


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


#: A member given as a plain function of the same arguments, returning the snapshot only.
PredictFunction: TypeAlias = Callable[[Sequence[Observation], float, float], AgentSnapshot]


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
        members: Predictors; or functions ``(history, dt, age) -> AgentSnapshot``; or import paths
            ``"package.module:name"`` of either, or of a class that is built without arguments.

    Raises:
        ConfigurationError: Fewer than two members, or one that cannot be imported or called.
    """

    def __init__(self, members: Sequence[PartnerPredictor | PredictFunction | str]) -> None:
        if len(members) < 2:
            raise ConfigurationError(
                f"EnsemblePredictor: expected at least two members, got {len(members)}; one "
                "forecast alone cannot disagree."
            )
        self._members = [as_predictor(member) for member in members]

    def predict(self, history: Sequence[Observation], dt: float, age: float) -> Prediction:
        """See `PartnerPredictor.predict`.

        Raises:
            InputError: As there; or a member returns no snapshot, or one of other dimension.
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


class _FunctionPredictor:
    """A plain function as a predictor; it makes no claim about its error."""

    def __init__(self, function: PredictFunction) -> None:
        self._function = function

    def predict(self, history: Sequence[Observation], dt: float, age: float) -> Prediction:
        """Call the function and check what it returns."""
        newest(history, dt, age)
        snapshot = cast("object", self._function(history, dt, age))
        if not isinstance(snapshot, AgentSnapshot):
            raise InputError(
                "predictor: expected the function to return an AgentSnapshot, got "
                f"{type(snapshot).__name__}."
            )
        return Prediction(snapshot)


def as_predictor(member: PartnerPredictor | PredictFunction | str) -> PartnerPredictor:
    """Return ``member`` as a predictor; see `EnsemblePredictor` for what it may be.

    Raises:
        ConfigurationError: It cannot be imported, or is neither predictor nor function.
    """
    found: Any = _load(member) if isinstance(member, str) else member
    if isinstance(found, type):
        found = cast("type[Any]", found)()
    if isinstance(found, PartnerPredictor):
        return found
    if callable(found):
        return _FunctionPredictor(cast("PredictFunction", found))
    raise ConfigurationError(
        f"predictor: expected a PartnerPredictor or a function, got {type(found).__name__}."
    )


def _load(path: str) -> Any:
    """Return the object at ``"package.module:name"``."""
    module_name, separator, name = path.partition(":")
    if not separator:
        raise ConfigurationError(
            f"predictor: expected an import path 'package.module:name', got {path!r}."
        )
    try:
        return getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"predictor: cannot import {path!r}: {error}.") from error


def _constant_acceleration() -> PartnerPredictor:
    from cadenza.safety.runtime.kalman import ConstantAccelerationPredictor

    return ConstantAccelerationPredictor()


def _ensemble() -> PartnerPredictor:
    return EnsemblePredictor([ConstantVelocityPredictor(), _constant_acceleration()])


#: How each registered kind is built.
_KINDS: Final[dict[str, Callable[[], PartnerPredictor]]] = {
    "constant_velocity": ConstantVelocityPredictor,
    "constant_acceleration": _constant_acceleration,
    "ensemble": _ensemble,
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
