"""What the safety filter did during a run, in fixed memory, and the gate that judges it.

lambda is the per-pair slack of the barrier rows; the loss is how far the predicted barrier lay
above the one that came true (0 when the prediction was on the safe side). Per step the scalar is
the mean over pairs; extrema are taken per pair; the steady state is the newest tenth of the run.

Units:   lambda m/s^2, loss m/s, interventions and capacity m/s^2.
Source:  B. P. Welford, Technometrics 4(3), 1962; merged as in Chan, Golub and LeVeque, "Updating
         formulae and a pairwise algorithm", 1979: a variance of 1e-12 beside a mean of 1 is still
         resolved.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError

#: The tail is the newest ``1 / TAIL_DIVISOR`` of the stream.
TAIL_DIVISOR: Final = 10
#: Block sums kept; a doubling leaves half, so one block is <= 1/4096 of the history.
_MAX_BLOCKS: Final = 8192


class RunningMoments:
    """Count, mean, population variance and extrema of a stream of numbers."""

    __slots__ = ("count", "maximum", "mean", "minimum", "squares")

    def __init__(self) -> None:
        self.count: int = 0
        self.mean: float = 0.0
        self.squares: float = 0.0
        self.maximum: float = float("-inf")
        self.minimum: float = float("inf")

    def add(self, value: float) -> None:
        """Take in one number."""
        self.count += 1
        delta = value - self.mean
        self.mean += delta / self.count
        self.squares += delta * (value - self.mean)
        if value > self.maximum:
            self.maximum = value
        if value < self.minimum:
            self.minimum = value

    def add_many(self, values: FloatArray) -> None:
        """Take in every number of an array of any shape."""
        if values.size == 0:
            return
        batch = RunningMoments()
        batch.count = values.size
        batch.mean = float(values.mean())
        batch.squares = float(((values - batch.mean) ** 2).sum())
        batch.maximum = float(values.max())
        batch.minimum = float(values.min())
        self.merge(batch)

    def merge(self, other: "RunningMoments") -> None:
        """Take in everything ``other`` took in."""
        if other.count == 0:
            return
        count = self.count + other.count
        delta = other.mean - self.mean
        self.mean += delta * other.count / count
        self.squares += other.squares + delta * delta * self.count * other.count / count
        self.count = count
        self.maximum = max(self.maximum, other.maximum)
        self.minimum = min(self.minimum, other.minimum)

    @property
    def variance(self) -> float:
        """Population variance; 0 without numbers."""
        return self.squares / self.count if self.count else 0.0

    @property
    def high(self) -> float:
        """Largest number; 0 without numbers."""
        return self.maximum if self.count else 0.0

    @property
    def low(self) -> float:
        """Smallest number; 0 without numbers."""
        return self.minimum if self.count else 0.0

    def state_dict(self) -> dict[str, float]:
        """Return the state as JSON numbers."""
        return {
            "count": self.count,
            "mean": self.mean,
            "squares": self.squares,
            "maximum": self.high,
            "minimum": self.low,
        }

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Continue from `state_dict`."""
        self.count = int(state["count"])
        self.mean = float(state["mean"])
        self.squares = float(state["squares"])
        self.maximum = float(state["maximum"]) if self.count else float("-inf")
        self.minimum = float(state["minimum"]) if self.count else float("inf")


class TailMean:
    """Mean of the newest tenth of a stream of numbers.

    The history is kept as block sums whose block length doubles when the table is full: exact up to
    `_MAX_BLOCKS` numbers; beyond, the oldest of the tail's blocks is taken in part, which weighs
    less than 0.3 % of it.
    """

    def __init__(self) -> None:
        self._block_length: int = 1
        self._block_sums: list[float] = []
        self._open_sum = 0.0
        self._open_count = 0
        self._count = 0

    def add(self, value: float) -> None:
        """Take in one number."""
        self._count += 1
        self._open_sum += value
        self._open_count += 1
        if self._open_count < self._block_length:
            return
        self._block_sums.append(self._open_sum)
        self._open_sum = 0.0
        self._open_count = 0
        if len(self._block_sums) == _MAX_BLOCKS:
            pairs = zip(self._block_sums[0::2], self._block_sums[1::2], strict=True)
            self._block_sums = [older + newer for older, newer in pairs]
            self._block_length = self._block_length * 2

    def value(self) -> float:
        """Return the mean of the newest ``max(1, floor(count / 10))`` numbers; 0 without any."""
        if self._count == 0:
            return 0.0
        wanted = max(1, self._count // TAIL_DIVISOR)
        # The open block is shorter than the tail: it holds < 1/4096 of the history, or nothing.
        total, missing = self._open_sum, wanted - self._open_count
        for block_sum in reversed(self._block_sums):
            taken = min(missing, self._block_length)
            total += block_sum * (taken / self._block_length)
            missing -= taken
            if missing == 0:
                break
        return total / wanted

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {
            "block_length": self._block_length,
            "block_sums": list(self._block_sums),
            "open_sum": self._open_sum,
            "open_count": self._open_count,
            "count": self._count,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""
        self._block_length = int(state["block_length"])
        self._block_sums = [float(value) for value in state["block_sums"]]
        self._open_sum = float(state["open_sum"])
        self._open_count = int(state["open_count"])
        self._count = int(state["count"])


#: |mean lambda| above this says that lambda adapted at all, m/s^2.
ADAPTATION_EPSILON: Final = 1e-6
#: Variance of lambda at or below this says that it stopped adapting, (m/s^2)^2.
STUCK_EPSILON: Final = 1e-12
#: Name of the event that carries a run's closing record.
FINAL_EVENT: Final = "safety_telemetry_final"

EXIT_PASSED: Final = 0
EXIT_NO_LOG: Final = 2
EXIT_NO_RECORD: Final = 3
EXIT_SATURATED: Final = 8
EXIT_STUCK: Final = 9


class _Tally:
    """Figures of a stretch of steps: one rollout, or the whole run."""

    def __init__(self) -> None:
        self.scalar = RunningMoments()
        self.extrema = RunningMoments()
        self.loss = RunningMoments()
        self.intervention = RunningMoments()
        self.counts = {"fallback": 0, "infeasible": 0, "braking": 0, "uncertified": 0}
        self.n_loss_positive = 0
        self.n_intervened = 0

    def moments(self) -> dict[str, RunningMoments]:
        """Return the running moments by name."""
        names = ("scalar", "extrema", "loss", "intervention")
        return {name: getattr(self, name) for name in names}

    def merge(self, later: "_Tally") -> None:
        """Take in the figures of the steps that followed."""
        for name, moments in later.moments().items():
            self.moments()[name].merge(moments)
        self.counts = {name: self.counts[name] + later.counts[name] for name in self.counts}
        self.n_loss_positive += later.n_loss_positive
        self.n_intervened += later.n_intervened

    def state_dict(self) -> dict[str, Any]:
        return {
            **{name: moments.state_dict() for name, moments in self.moments().items()},
            "counts": dict(self.counts),
            "n_loss_positive": self.n_loss_positive,
            "n_intervened": self.n_intervened,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, moments in self.moments().items():
            moments.load_state_dict(state[name])
        self.counts = {name: int(state["counts"][name]) for name in self.counts}
        self.n_loss_positive = int(state["n_loss_positive"])
        self.n_intervened = int(state["n_intervened"])

    def extension_figures(self) -> dict[str, float]:
        """Return what upstream does not record."""
        steps = self.scalar.count
        return {
            "loss_mean": self.loss.mean,
            "loss_positive_fraction": _share(self.n_loss_positive, self.loss.count),
            "n_loss": self.loss.count,
            "n_uncertified": self.counts["uncertified"],
            "intervention_mean": self.intervention.mean,
            "intervention_max": self.intervention.high,
            "intervention_fraction": _share(self.n_intervened, steps),
        }


class SafetyAggregator:
    """Collects what the filter did, step by step, about ``n_pairs`` robot pairs.

    Accelerations are in m/s^2; lambda counts as saturated at a share of the capacity, and is
    clamped to plus or minus ``lambda_clamp_bound``, if any.
    """

    def __init__(
        self,
        n_pairs: int,
        cartesian_accel_capacity: float,
        saturation_threshold: float = 0.9,
        lambda_clamp_bound: float | None = None,
    ) -> None:
        self._n_pairs = n_pairs
        self._capacity = cartesian_accel_capacity
        self._threshold = saturation_threshold
        self._clamp_bound = lambda_clamp_bound
        self._past = _Tally()  # everything before the open window
        self._window = _Tally()
        self._tail = TailMean()

    def observe(
        self,
        lambda_: Mapping[Any, float] | Sequence[float],
        *,
        fallback_fired: bool = False,
        qp_infeasible: bool = False,
        braking_fired: bool = False,
        uncertified: bool = False,
        loss: Mapping[Any, float] | None = None,
        intervention: float = 0.0,
    ) -> None:
        """Take in one step.

        ``lambda_`` is that of each pair after the step's update, m/s^2, ``loss`` in m/s, None when
        there was no prediction to check, ``intervention`` the norm of executed minus nominal
        action, m/s^2.

        Raises:
            InputError: ``lambda_`` does not have one entry per pair.
        """
        if len(lambda_) != self._n_pairs:
            raise InputError(
                f"SafetyAggregator.observe: expected n_pairs = {self._n_pairs} lambdas, got "
                f"{len(lambda_)}; build the aggregator from the filter's own pairs."
            )
        values = list(lambda_.values() if isinstance(lambda_, Mapping) else lambda_)
        scalar = _mean(values)
        mean_loss = _mean(loss.values()) if loss is not None else None
        self._tail.add(scalar)
        window = self._window
        window.scalar.add(scalar)
        for value in values:
            window.extrema.add(value)
        window.intervention.add(intervention)
        window.n_intervened += intervention > 0.0
        if mean_loss is not None:
            window.loss.add(mean_loss)
            window.n_loss_positive += mean_loss > 0.0
        counts = window.counts
        counts["fallback"] += fallback_fired
        counts["infeasible"] += qp_infeasible
        counts["braking"] += braking_fired
        counts["uncertified"] += uncertified

    def observe_batch(
        self,
        lambda_: FloatArray,
        *,
        braking_fired: NDArray[np.bool_],
        qp_infeasible: NDArray[np.bool_],
        uncertified: NDArray[np.bool_],
        loss: FloatArray,
        scored: NDArray[np.bool_],
        intervention: FloatArray,
    ) -> None:
        """Take in one step of each of B environments, as B steps; see `observe`.

        Lambda and loss have the shape (B, P), everything else (B,); ``scored`` tells which steps
        had a prediction to check, and the braking law is the fallback. The steady state is then the
        newest tenth of the control steps, averaged over B.

        Raises:
            InputError: ``lambda_`` does not have one column per pair.
        """
        if lambda_.ndim != 2 or lambda_.shape[1] != self._n_pairs:
            raise InputError(
                f"SafetyAggregator.observe_batch: expected lambda_ of shape (B, {self._n_pairs}), "
                f"got {lambda_.shape}; build the aggregator from the filter's own pairs."
            )
        scalars = lambda_.mean(axis=1) if self._n_pairs else np.zeros(len(lambda_))
        losses = (loss.mean(axis=1) if self._n_pairs else np.zeros(len(lambda_)))[scored]
        self._tail.add(float(scalars.mean()))
        window = self._window
        window.scalar.add_many(scalars)
        window.extrema.add_many(lambda_)
        window.intervention.add_many(intervention)
        window.n_intervened += int((intervention > 0.0).sum())
        window.loss.add_many(losses)
        window.n_loss_positive += int((losses > 0.0).sum())
        counts = window.counts
        counts["fallback"] += int(braking_fired.sum())
        counts["infeasible"] += int(qp_infeasible.sum())
        counts["braking"] += int(braking_fired.sum())
        counts["uncertified"] += int(uncertified.sum())

    def flush_window_stats(self) -> dict[str, float]:
        """Return the figures since the last flush, zeros if there was no step, and start anew."""
        window, self._window = self._window, _Tally()
        self._past.merge(window)
        return {
            "n_obs": window.scalar.count,
            "lambda_mean": window.scalar.mean,
            "lambda_var": window.scalar.variance,
            "lambda_max": window.extrema.high,
            "lambda_min": window.extrema.low,
            "n_fallback_fires": window.counts["fallback"],
            "n_qp_infeasible": window.counts["infeasible"],
            "n_braking_fires": window.counts["braking"],
            **window.extension_figures(),
        }

    def finalise(
        self, *, safety_enabled: bool, predictor_kind: str = "constant_velocity"
    ) -> dict[str, Any]:
        """Return the closing record of the run; its ``event`` is the event's name."""
        run = _Tally()
        run.merge(self._past)
        run.merge(self._window)
        steady_state = self._tail.value()
        steps = run.scalar.count
        return {
            "event": FINAL_EVENT,
            "safety_enabled": safety_enabled,
            "predictor_kind": predictor_kind,
            "n_filter_calls": steps,
            "n_fallback_fires": run.counts["fallback"],
            "n_qp_infeasible": run.counts["infeasible"],
            "cartesian_accel_capacity": self._capacity,
            "saturation_threshold": self._threshold,
            "n_braking_fires": run.counts["braking"],
            "braking_fire_rate": _share(run.counts["braking"], steps),
            "lambda_clamp_bound": self._clamp_bound,
            "lambda_mean": run.scalar.mean,
            "lambda_var": run.scalar.variance,
            "lambda_max_observed": run.extrema.high,
            "lambda_min_observed": run.extrema.low,
            "lambda_steady_state": steady_state,
            "saturated": steps > 0 and abs(steady_state) >= self._threshold * self._capacity,
            **run.extension_figures(),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state as JSON values."""
        return {
            "past": self._past.state_dict(),
            "window": self._window.state_dict(),
            "tail": self._tail.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""
        self._past.load_state_dict(state["past"])
        self._window.load_state_dict(state["window"])
        self._tail.load_state_dict(state["tail"])


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditVerdict:
    """Judgement of one run's safety record.

    Attributes:
        exit_code: 0 passed or skipped, 2 no log, 3 no record, 8 saturated, 9 not adapting.
        message: The reason, one sentence.
    """

    exit_code: int
    message: str

    @property
    def passed(self) -> bool:
        """True when nothing speaks against the run."""
        return self.exit_code == EXIT_PASSED


def evaluate_audit_gate(record: Mapping[str, Any] | None) -> AuditVerdict:
    """Judge the closing record of a run, the fields of the last `FINAL_EVENT`; None if it has none.

    A run fails gate A if lambda settled, on either side, beyond the threshold; it fails gate B if
    the filter cannot have seen the real scene (the loss was 0 at every step) or lambda moved away
    from zero and then stood still anywhere but at its clamp.
    """
    if record is None:
        return AuditVerdict(
            exit_code=EXIT_NO_RECORD,
            message=f"no {FINAL_EVENT} event: the run had no filter or did not finish.",
        )
    if not record["safety_enabled"]:
        return AuditVerdict(
            exit_code=EXIT_PASSED, message="safety disabled by operator override; gate skipped."
        )
    limit = float(record["saturation_threshold"]) * float(record["cartesian_accel_capacity"])
    steady_state = float(record["lambda_steady_state"])
    if not abs(steady_state) < limit:  # written this way round so that NaN fails too
        return AuditVerdict(
            exit_code=EXIT_SATURATED,
            message=f"gate A: expected |lambda| < {limit:g} m/s^2 in steady state, got "
            f"{steady_state:g}.",
        )
    return _judge_adaptation(record)


def _judge_adaptation(record: Mapping[str, Any]) -> AuditVerdict:
    """Return the verdict of gate B."""
    n_loss = record.get("n_loss")  # absent in upstream logs, which cannot be judged by it
    if n_loss is not None and not float(record["loss_positive_fraction"]) > 0.0:
        return AuditVerdict(
            exit_code=EXIT_STUCK,
            message=f"gate B: the prediction loss was 0 in all {int(n_loss)} measured steps: "
            "either the partner never left its forecast, as one that stands still, or the filter "
            "does not read the environment that is stepped; check which.",
        )
    mean, variance = float(record["lambda_mean"]), float(record["lambda_var"])
    if not (abs(mean) > ADAPTATION_EPSILON and variance <= STUCK_EPSILON):
        return AuditVerdict(exit_code=EXIT_PASSED, message="passed.")
    bound = record.get("lambda_clamp_bound")
    if bound is not None and abs(abs(mean) - float(bound)) < ADAPTATION_EPSILON:
        return AuditVerdict(
            exit_code=EXIT_PASSED,
            message=f"passed; clamp-saturated: lambda stood at its bound {mean:g} m/s^2.",
        )
    return AuditVerdict(
        exit_code=EXIT_STUCK,
        message=f"gate B: lambda adapted but stuck at {mean:g} m/s^2 (variance {variance:.1e}).",
    )


def audit_run_log(path: Path) -> AuditVerdict:
    """Judge the run whose log is ``path``, by its last `FINAL_EVENT`.

    Raises:
        InputError: A line before the last is not a JSON object; the last may be cut off by a kill.
    """
    if not path.is_file():
        return AuditVerdict(exit_code=EXIT_NO_LOG, message=f"run log not found: {path}.")
    record: Mapping[str, Any] | None = None
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, start=1):
        if FINAL_EVENT not in line:
            continue
        try:
            event = cast("object", json.loads(line))
        except json.JSONDecodeError as error:
            if number == len(lines):
                break
            raise InputError(
                f"{path}:{number}: expected one JSON object per line, got {error}."
            ) from error
        if isinstance(event, dict):
            fields = cast("dict[str, Any]", event)
            record = fields if fields.get("event") == FINAL_EVENT else record
    return evaluate_audit_gate(record)


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else 0.0


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
