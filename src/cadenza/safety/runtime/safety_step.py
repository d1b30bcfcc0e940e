"""What the safety runtime decided for one control step."""

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from cadenza.core.arrays import FloatArray
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
