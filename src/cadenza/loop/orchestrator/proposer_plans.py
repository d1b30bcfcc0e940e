"""From the text of a language model to a proposal within the bounds.

Whatever a reply says: the dataset is the seed dataset, the count one that
`DeterministicProposer.allowed_episodes` allows, the focus names tasks of the last report, and the
notes are one short printable line.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, Final, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cadenza.core.errors import InputError
from cadenza.loop.contracts.records import MAX_NOTES, EvalReport, Proposal
from cadenza.loop.llm.untrusted import clean_line
from cadenza.loop.schedule import (
    MAX_FOCUS,
    MAX_NAME,
    DeterministicProposer,
)

#: Longest reply that is parsed, characters.
MAX_REPLY_CHARS: Final = 1 << 18
#: What a plan may move beside the data.
_MOVES: Final = ("learning_rate", "steps", "batch_size", "rung")
#: Problems that a repair turn is told.
_MAX_PROBLEMS: Final = 5
#: Characters of one problem.
_MAX_PROBLEM_CHARS: Final = 200


class Plan(BaseModel):
    """What a model must reply; its JSON schema stands in the prompt."""

    model_config = ConfigDict(strict=True, extra="ignore")

    action: Literal["reuse_seed", "recollect_failing"]
    dataset: str = ""
    num_episodes: int | None = Field(default=None, ge=1)
    notes: str = ""
    focus: list[str] = []
    learning_rate: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    steps: int | None = Field(default=None, ge=1)
    batch_size: int | None = Field(default=None, ge=1)
    rung: str | None = None


def parsed_json(reply: str, brackets: Literal["{}", "[]"]) -> Any:
    """Return the JSON between the first opening and the last closing bracket.

    Raises:
        InputError: There is none.
    """
    start, end = reply.find(brackets[0]), reply.rfind(brackets[1])
    if not 0 <= start < end or len(reply) > MAX_REPLY_CHARS:
        raise InputError(f"expected JSON between {brackets[0]} and {brackets[1]}, got none")
    try:
        return json.loads(reply[start : end + 1])
    except (ValueError, RecursionError) as error:
        raise InputError(f"expected JSON, got an error: {error}") from error


def strict_plan(reply: str) -> Plan:
    """Return the plan that a reply holds.

    Raises:
        InputError: The reply does not fit the schema; the message lists the problems.
    """
    document = parsed_json(reply, "{}")
    try:
        return Plan.model_validate(document)
    except ValidationError as error:
        listed = error.errors(include_url=False, include_input=False)[:_MAX_PROBLEMS]
        problems = [
            clean_line(f"{'.'.join(map(str, p['loc']))}: {p['msg']}", _MAX_PROBLEM_CHARS)
            for p in listed
        ]
        raise InputError("; ".join(problems)) from error


def bounded_proposal(
    plan: Plan, bounds: DeterministicProposer, cycle: int, report: EvalReport | None
) -> Proposal:
    """Return a plan as a proposal within ``bounds``; without a count it takes all it may."""
    proposal = Proposal(
        action=plan.action,
        dataset=bounds.seed_dataset,
        num_episodes=bounds.allowed_episodes(cycle, plan.num_episodes),
        notes=clean_line(plan.notes, MAX_NOTES),
        focus=_focus(plan.action, plan.focus, bounds, report),
    )
    return _moved(proposal, plan, bounds)


def _moved(proposal: Proposal, plan: Plan, bounds: DeterministicProposer) -> Proposal:
    """Return ``proposal`` with what ``plan`` moves beside the data, within ``bounds``."""
    moved = {name: getattr(plan, name) for name in _MOVES}
    return bounds.within(proposal.model_copy(update=moved))


def lenient_proposal(
    document: object,
    bounds: DeterministicProposer,
    cycle: int,
    report: EvalReport | None,
) -> Proposal | None:
    """Return a candidate as a proposal within ``bounds``; None if its action is unknown.

    Args:
        document: What the model listed, of any type; without a count it gets the schedule's.
        bounds: Seed dataset, schedule and cap.
        cycle: The cycle.
        report: Evaluation of the last cycle.
    """
    if not isinstance(document, Mapping):
        return None
    plan = cast("Mapping[str, Any]", document)
    action = plan.get("action")
    if action not in ("reuse_seed", "recollect_failing"):
        return None
    count = _whole(plan.get("num_episodes"))
    if count is None:
        count = bounds.scheduled_episodes(cycle)
    notes, focus = plan.get("notes"), plan.get("focus")
    proposal = Proposal(
        action=action,
        dataset=bounds.seed_dataset,
        num_episodes=bounds.allowed_episodes(cycle, count),
        notes=clean_line(notes, MAX_NOTES) if isinstance(notes, str) else "",
        focus=_focus(
            action, cast("list[Any]", focus) if isinstance(focus, list) else [], bounds, report
        ),
    )
    named = {key: plan[key] for key in _MOVES if key in plan}
    try:
        return _moved(proposal, Plan.model_validate({"action": action, **named}), bounds)
    except ValidationError:
        return proposal


def _whole(value: object) -> int | None:
    """Return a finite number cut to a whole one; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if isinstance(value, int) or math.isfinite(value) else None


def _focus(
    action: str, named: list[Any], bounds: DeterministicProposer, report: EvalReport | None
) -> tuple[str, ...]:
    """Return the known ones among the named tasks, or those that fail if none is known."""
    if action != "recollect_failing" or report is None:
        return ()
    known = (task for task in named if isinstance(task, str) and task in report.per_task)
    unique = tuple(dict.fromkeys(task for task in known if 1 <= len(task) <= MAX_NAME))
    return unique[:MAX_FOCUS] or bounds.focus(report)
