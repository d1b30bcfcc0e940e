"""Slack of the inner filter, summed up for table 2."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from cadenza.safety.reporting.rows import ConditionRow


class SlackResult(Protocol):
    """The part of one OSCBF step that table 2 needs; `OSCBFResult` has it."""

    @property
    def max_slack(self) -> float:
        """Largest slack of the step, >= 0."""
        ...

    @property
    def slack_l2(self) -> float:
        """Euclidean norm of its slack, >= 0."""
        ...


@dataclass(frozen=True, slots=True)
class SlackAggregate:
    """Slack over the steps of one condition.

    Attributes:
        max_slack: Largest of any step; 0 without steps.
        slack_l2: Mean over steps of the norm; 0 without steps.
    """

    max_slack: float
    slack_l2: float


def aggregate_oscbf_slack(results: Iterable[SlackResult]) -> SlackAggregate:
    """Return the slack over ``results``, which are read once, in any order."""
    largest, norm_sum, count = 0.0, 0.0, 0
    for result in results:
        largest = max(largest, result.max_slack)
        norm_sum += result.slack_l2
        count += 1
    return SlackAggregate(max_slack=largest, slack_l2=norm_sum / count if count else 0.0)


def make_condition_row(
    *,
    predictor: str,
    conformal_mode: str,
    vendor_compliance: str | None,
    n_episodes: int,
    violations: int,
    fallback_fires: int,
    oscbf_results: Iterable[SlackResult] = (),
) -> ConditionRow:
    """Return a row of table 2 with the slack of its OSCBF steps.

    Args:
        predictor: ``"gt"`` or ``"pred"``.
        conformal_mode: ``"noLearn"`` or ``"Learn"``.
        vendor_compliance: Statement of the robot's vendor, or None.
        n_episodes: Episodes.
        violations: Steps that began outside the safe set.
        fallback_fires: Steps in which braking replaced the action.
        oscbf_results: One per step; empty where the inner filter does not run.

    Raises:
        InputError: A field is out of range.
    """
    slack = aggregate_oscbf_slack(oscbf_results)
    return ConditionRow(
        predictor=predictor,
        conformal_mode=conformal_mode,
        vendor_compliance=vendor_compliance,
        n_episodes=n_episodes,
        violations=violations,
        fallback_fires=fallback_fires,
        max_slack=slack.max_slack,
        slack_l2=slack.slack_l2,
    )
