"""What the safety runtime decided for one control step, and how often what happened."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError
from cadenza.safety.braking import Pair, PairDanger
from cadenza.safety.contracts import FilterInfo, LambdaDict
from cadenza.safety.record import Decision
from cadenza.safety.runtime.observation import comparable


@dataclass(frozen=True, slots=True, eq=False)
class SafetyStep:
    """One decision.

    Attributes:
        action: Action to execute, shape (A,), float64; the nominal values, bit for bit, when
            nothing was active.
        info: Record of the filter, with the loss and the braking flag filled in.
        lambda_: Slack per pair after this step's update, m/s^2.
        dangers: Why braking fired, by pair; empty when it did not.
        bad_input: What was wrong with the observation; None if it was sound.
        brake_error: What was wrong with the emergency controller's answer, in whose place the
            filter's action is executed; None if it was sound or not asked for.
        breached: Agents whose motion since the last step disproved what was declared of it.
        reason: Which declared accelerations were disproved in this episode, and by what, so that
            no step of it is certified any more; empty if none was.
    """

    action: FloatArray
    info: FilterInfo
    lambda_: LambdaDict
    dangers: dict[Pair, PairDanger]
    bad_input: str | None = None
    brake_error: str | None = None
    breached: tuple[str, ...] = ()
    reason: str = ""

    @property
    def loss(self) -> LambdaDict | None:
        """Forecast error per scored pair, max(0, score), m/s.

        None when no forecast fell due, as on the first step of an episode.
        """
        return self.info["prediction_gap_loss"]

    @property
    def braked(self) -> bool:
        """Whether the emergency controller's action is executed."""
        return self.info["fallback_fired"]

    @property
    def infeasible(self) -> bool:
        """Whether no action met every row."""
        return is_infeasible(self.info)

    @property
    def uncertified(self) -> bool:
        """Whether the invariance certificate does not cover this step."""
        return self.info["uncertified"]

    @property
    def intervention(self) -> float:
        """Euclidean distance between executed and nominal action."""
        return self.info["intervention"]

    def decision(self, ego_uid: str) -> Decision:
        """Return what a `StepRecord` counts; ``ego_uid`` is whose action this is."""
        info, lambdas = self.info, self.lambda_.values()
        return Decision(
            braked=self.braked,
            infeasible=self.infeasible,
            uncertified=self.uncertified,
            violation=float(info["constraint_violation"].max(initial=0.0)),
            margin=float(info["margin"].min(initial=0.0)),
            slack=float(info["slack"].max(initial=0.0)),
            lambda_mean=sum(lambdas) / len(lambdas) if lambdas else 0.0,
            partner_breached=any(uid != ego_uid for uid in self.breached),
            ego_breached=ego_uid in self.breached,
            reasons={0: tuple(danger.reason for danger in self.dangers.values())},
            static_margin=min(info.get("static_margin", ()), default=math.inf),
            static_uncertified=info.get("static_uncertified", False),
        )


#: What the filter reports of a step in which an action met every row.
FEASIBLE: Final = ("inactive", "optimal")


def is_infeasible(info: FilterInfo) -> bool:
    """Return whether no action met every row."""
    return info["status"] not in FEASIBLE


def distance(action: FloatArray, nominal: FloatArray) -> float:
    """Return the Euclidean distance of two actions."""
    return math.dist(action.tolist(), nominal.tolist())


def blank_info(lambda_: LambdaDict) -> FilterInfo:
    """Return the record of a step in which the filter gave no action: infeasible, zeros else."""
    count = len(lambda_)
    return {
        "lambda": dict(lambda_),
        "constraint_violation": np.zeros(count),
        "prediction_gap_loss": None,
        "fallback_fired": False,
        "qp_solve_ms": 0.0,
        "slack": np.zeros(count),
        "margin": np.zeros(count),
        "status": "infeasible",
        "intervention": 0.0,
        "uncertified": True,
        "rate_active": False,
        "rate_exceeded": False,
    }


def as_blind_step(step: SafetyStep, nominal: object, problem: str) -> SafetyStep:
    """Return ``step`` marked as taken without a sound observation.

    Its intervention is the distance to the nominal action, or, where that is malformed, the length
    of the executed one.
    """
    step.info["intervention"] = distance(step.action, comparable(nominal, step.action))
    step.info["uncertified"] = True
    return replace(step, bad_input=problem)


#: What is counted, beside the reasons for braking.
COUNTED: Final = (
    "steps",
    "swaps",
    "warm_starts",
    "age_jumps",
    "infeasible",
    "uncertified",
    "braked",
    "bad_inputs",
    "saturated",
    "partner_breaches",
    "ego_breaches",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryRecord:
    """Counters of a run, or of an episode.

    Attributes:
        counts: How often each of `COUNTED` happened.
        brakes: Dangerous pairs of steps that braked, by reason.
    """

    counts: dict[str, int]
    brakes: dict[str, int]


class RuntimeTelemetry:
    """Counters of the run and of the episode."""

    def __init__(self, saturation: float) -> None:
        """Start at zero; a step whose |lambda| reaches ``saturation``, m/s^2, counts as such."""
        self._saturation = saturation
        self.begin_run()

    def begin_run(self) -> None:
        """Forget everything."""
        self._counters: dict[str, Counter[str]] = {"run": Counter(), "run_brakes": Counter()}
        self.begin_episode()

    def begin_episode(self) -> None:
        """Start the episode's counters; the run's go on."""
        self._counters |= {"episode": Counter(), "episode_brakes": Counter()}

    @property
    def run(self) -> TelemetryRecord:
        """Counters since `begin_run`; a copy."""
        return self._record("run")

    @property
    def episode(self) -> TelemetryRecord:
        """Counters since `begin_episode`; a copy."""
        return self._record("episode")

    def count(self, name: str) -> None:
        """Add one to a counter of `COUNTED`."""
        self._counters["run"][name] += 1
        self._counters["episode"][name] += 1

    def observe(self, step: SafetyStep) -> None:
        """Take in what was decided."""
        info = step.info
        self.count("steps")
        if info["status"] not in FEASIBLE:
            self.count("infeasible")
        if info["uncertified"]:
            self.count("uncertified")
        if info["fallback_fired"]:
            self.count("braked")
        if step.bad_input is not None:
            self.count("bad_inputs")
        for danger in step.dangers.values():
            self._counters["run_brakes"][danger.reason] += 1
            self._counters["episode_brakes"][danger.reason] += 1
        for value in step.lambda_.values():
            if abs(value) >= self._saturation:
                self.count("saturated")
                break

    def state_dict(self) -> dict[str, Any]:
        """Return all counters as JSON-able values."""
        return {name: dict(counter) for name, counter in self._counters.items()}

    def load_state_dict(self, payload: Mapping[str, Any]) -> None:
        """Continue from `state_dict`.

        Raises:
            InputError: Malformed; nothing is changed then.
        """
        self._counters = {name: _counter(payload[name]) for name in self._counters}

    def _record(self, part: str) -> TelemetryRecord:
        counts, brakes = self._counters[part], self._counters[f"{part}_brakes"]
        return TelemetryRecord(
            counts={name: counts[name] for name in COUNTED}, brakes=dict(sorted(brakes.items()))
        )


def _counter(entries: Mapping[str, Any]) -> Counter[str]:
    for name, number in entries.items():
        if type(number) is not int or number < 0:
            raise InputError(f"telemetry: expected a complete record, got {number!r} {name!r}.")
    return Counter(dict(entries))
