"""Forecasts of all partners, and the scores they earn once they fall due.

Time:   counted in control steps since the start of the episode; a packet of age A that comes in
        step k was measured at k dt - A.
Score:  a forecast made in step k for step k + horizon is compared with the packet measured then,
        whenever that arrives; one measured between two steps with the forecast for the nearer
        step, moved along its velocity. A packet that is not newer than the last one says nothing
        new.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

from cadenza.core.errors import InputError
from cadenza.safety.filters.arguments import require_snapshot
from cadenza.safety.runtime.predictors import (
    HISTORY_LENGTH,
    Observation,
    PartnerPredictor,
    Prediction,
)
from cadenza.safety.snapshot import MAX_MAGNITUDE, AgentSnapshot

#: Two packets measured closer than this are the same one, s; far below any control step.
_SAME_TIME_S: Final = 1e-9
#: Steps that a forecast waits for the packet it is about; later packets are not scored.
_LATEST_STEPS: Final = 100


#: A forecast that fell due, and what came instead, both as of the same time and without age.
DueForecast: TypeAlias = tuple[AgentSnapshot, AgentSnapshot]


class PartnerForecaster:
    """Keeps the packets of every partner and the forecasts that are still open.

    Args:
        predictor: Forecasts one partner.
        dt: Control step, s.
        horizon_steps: Steps from a forecast to its score, >= 1.
        ego_uid: The agent that is not forecast.
        partners: Cartesian dimension by partner; a state that is loaded may name no others. None
            accepts any.
    """

    def __init__(
        self,
        predictor: PartnerPredictor,
        *,
        dt: float,
        horizon_steps: int,
        ego_uid: str | None = None,
        partners: Mapping[str, int] | None = None,
    ) -> None:
        self._predictor = predictor
        self._ego_uid = ego_uid
        self._partners = partners
        self._dt = dt
        self._horizon = horizon_steps
        self.forget()

    def forget(self) -> None:
        """Drop packets and forecasts; the next step is the first."""
        self._step = 0
        self._history: dict[str, list[Observation]] = {}
        self._open: dict[str, dict[int, AgentSnapshot]] = {}

    def pass_step(self) -> None:
        """Let a step go by without packets."""
        self._step += 1

    def observe(self, agents: Mapping[str, AgentSnapshot]) -> dict[str, DueForecast]:
        """Take in the packets of this step and return the forecasts they decide, by partner.

        Raises:
            InputError: A forecast that fell due is no snapshot, or of another dimension.
        """
        now = self._step * self._dt
        due: dict[str, DueForecast] = {}
        for uid, packet in agents.items():
            if uid == self._ego_uid:
                continue
            history = self._history.get(uid)
            if history is None:
                history = self._history[uid] = []
                self._open[uid] = {}
            age = packet.age_s
            measured = now - age
            if history and measured <= history[-1].time_s + _SAME_TIME_S:
                continue
            current = packet if age == 0.0 else packet.aged(0.0)
            history.append(Observation(measured, current))
            if len(history) > HISTORY_LENGTH:
                del history[0]
            step = self._step if age == 0.0 else round(measured / self._dt)
            forecasts = self._open[uid]
            expected = forecasts.pop(step, None)
            if expected is not None:
                shift = measured - step * self._dt
                if abs(shift) > _SAME_TIME_S:
                    expected = expected.moved_on(shift)
                dim = len(packet.position_numbers)
                due[uid] = (require_snapshot("agent_states", expected, dim), current)
            if forecasts:
                for old in [k for k in forecasts if k <= step or k < self._step - _LATEST_STEPS]:
                    del forecasts[old]
        return due

    def forecast(self) -> dict[str, Prediction]:
        """Return every observed partner one step ahead, note what is to be scored, and move on.

        Raises:
            InputError: The predictor returns something that is no snapshot of the partner.
        """
        now, dt, predict = self._step * self._dt, self._dt, self._predictor.predict
        due = self._step + self._horizon
        ahead: dict[str, Prediction] = {}
        for uid, history in self._history.items():
            age = now - history[-1].time_s
            prediction = predict(history, dt, age)
            scored = prediction if self._horizon == 1 else predict(history, self._horizon * dt, age)
            self._open[uid][due] = scored.snapshot
            if prediction.acceleration is not None:
                prediction = self._for_rows(prediction, history[-1].snapshot, age)
            ahead[uid] = prediction
        self._step += 1
        return ahead

    def _for_rows(self, prediction: Prediction, packet: AgentSnapshot, age: float) -> Prediction:
        """Return the forecast with the velocity from which a row reads its acceleration.

        A row takes the change of velocity from the packet to the forecast over the time between.
        """
        velocity = packet.velocity + prediction.acceleration_since(packet, 0.0) * (age + self._dt)
        ahead = prediction.snapshot
        return Prediction(
            AgentSnapshot(ahead.position, velocity, ahead.radius), prediction.error_accel
        )

    def state_dict(self) -> dict[str, Any]:
        """Return packets and open forecasts as JSON-able values."""
        return {
            "step": self._step,
            "history": {
                uid: [{"time_s": o.time_s, **snapshot_to_dict(o.snapshot)} for o in history]
                for uid, history in self._history.items()
            },
            "open": {
                uid: [{"step": step, **snapshot_to_dict(s)} for step, s in forecasts.items()]
                for uid, forecasts in self._open.items()
            },
        }

    def _require_usable(
        self,
        uid: str,
        packets: Sequence[Observation],
        forecasts: Iterable[AgentSnapshot],
        now: float,
    ) -> None:
        """Raise InputError unless the packets are of a partner, in order and of the past."""
        times = [packet.time_s for packet in packets]
        shapes = {s.position.shape for s in [*(p.snapshot for p in packets), *forecasts]}
        ordered = all(earlier < later for earlier, later in itertools.pairwise(times))
        past = bool(times) and times[0] >= -MAX_MAGNITUDE and times[-1] <= now + _SAME_TIME_S
        known = self._partners is None or self._partners.get(uid) in {s[0] for s in shapes}
        if not (ordered and past and known and len(shapes) == 1 and len(times) <= HISTORY_LENGTH):
            raise InputError(f"forecasts: expected packets of {uid!r} in order, got {times}.")

    def load_state_dict(self, payload: Mapping[str, Any]) -> None:
        """Continue from `state_dict`.

        Raises:
            InputError: The record contradicts itself or the partners; nothing is changed then.
        """
        step = int(payload["step"])
        history = {
            uid: [_observation(entry) for entry in entries]
            for uid, entries in cast("dict[str, Any]", payload["history"]).items()
        }
        waiting = {
            uid: {int(entry["step"]): snapshot_from_dict(entry) for entry in entries}
            for uid, entries in cast("dict[str, Any]", payload["open"]).items()
        }
        now = step * self._dt
        if not 0.0 <= now <= MAX_MAGNITUDE or history.keys() != waiting.keys():
            raise InputError("forecasts: expected a complete record, got one that contradicts.")
        for uid, packets in history.items():
            self._require_usable(uid, packets, waiting[uid].values(), now)
        self._step, self._history, self._open = step, history, waiting


def _observation(entry: Mapping[str, Any]) -> Observation:
    return Observation(float(entry["time_s"]), snapshot_from_dict(entry))


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
