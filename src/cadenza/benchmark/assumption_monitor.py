"""Watches, step by step, whether what the safety filter assumes holds, and what lambda does.

A1  The barrier's gradient is bounded: it is while no two balls, radii and safety margin, overlap.
    Counted: steps that begin with an overlap.
A2  The forecast's error is bounded: it is while every partner keeps its declared acceleration.
    Counted: steps after which a partner's velocity has changed by more than that allows. The last
    step of an episode is not checked, for the filter never sees what follows it.
A3  Some action meets every row. The episode counts these steps itself.
Units:  m, m/s, m/s^2, s.
"""

from collections import Counter
from typing import Final

from cadenza.aht.running_statistics import RunningMoments
from cadenza.core.arrays import FloatArray
from cadenza.evaluation.results import SafetyRecord
from cadenza.safety.runtime.env_hooks import EnvHooks
from cadenza.safety.runtime.safety_step import SafetyStep

#: Overlap that is rounding, m: actions rounded to float32 move a robot by less in one step.
OVERLAP_TOLERANCE_M: Final = 1e-6
#: Relative excess over a declared acceleration that is rounding.
ACCEL_TOLERANCE: Final = 1e-6


class AssumptionMonitor:
    """Counts for one episode at a time.

    Args:
        hooks: What the env that is stepped offers.
        ego_uid: The guarded agent.
    """

    def __init__(self, hooks: EnvHooks, *, ego_uid: str) -> None:
        self._hooks = hooks
        self._bounds = {
            uid: model.max_cartesian_accel(hooks.bounds)
            for uid, model in hooks.control_models.items()
            if uid != ego_uid
        }
        self.begin_episode()

    def begin_episode(self) -> None:
        """Forget the last episode."""
        self._velocities: dict[str, FloatArray] | None = None
        self._overlapping = 0
        self._checks = 0
        self._breaches = 0
        self._lambda = RunningMoments()
        self._slack_peak = 0.0
        self._reasons: Counter[str] = Counter()

    def observe(self, step: SafetyStep) -> None:
        """Take in one decision; call it before the env is stepped, at the state it was made in."""
        agents = self._hooks.snapshots()
        velocities = {uid: agents[uid].velocity for uid in self._bounds}
        if self._velocities is not None:
            self._checks += 1
            self._breaches += self._is_breach(self._velocities, velocities)
        self._velocities = velocities
        self._overlapping += float(step.info["margin"].min(initial=0.0)) < -OVERLAP_TOLERANCE_M
        if step.lambda_:
            self._lambda.add(sum(step.lambda_.values()) / len(step.lambda_))
        self._slack_peak = max(self._slack_peak, float(step.info["slack"].max(initial=0.0)))
        self._reasons.update(danger.reason for danger in step.dangers.values())

    def record(self) -> SafetyRecord:
        """Return the counts of the episode."""
        return SafetyRecord(
            control_timestep_s=self._hooks.control_timestep,
            overlapping_steps=self._overlapping,
            accel_checks=self._checks,
            accel_breaches=self._breaches,
            lambda_mean=self._lambda.mean,
            lambda_var=self._lambda.variance,
            slack_peak=self._slack_peak,
            brake_reasons=dict(sorted(self._reasons.items())),
        )

    def _is_breach(self, before: dict[str, FloatArray], after: dict[str, FloatArray]) -> bool:
        """Return whether any partner accelerated beyond its bound."""
        for uid, bound in self._bounds.items():
            change = after[uid] - before[uid]
            allowed = bound * (1.0 + ACCEL_TOLERANCE) * self._hooks.control_timestep
            if float(change @ change) > allowed * allowed:
                return True
        return False
