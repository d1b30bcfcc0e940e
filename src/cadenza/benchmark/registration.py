"""Registered evaluations: what `cadenza prereg new` writes down, and whether a plan is that one.

Block:    ``parameters.evaluation`` of a registration: the plan without what a later commit or a
          later training decides (code, package, size of a cell, weights of policies that are not
          there yet), and ``summary``, which fixes the statistics.
Promise:  a plan conforms if every field equals the registered one. A registered policy without
          digest may have any weights; one with a digest has these.
"""

from collections.abc import Mapping
from typing import Any, Final, cast

from pydantic import ValidationError

from cadenza.benchmark.cells import EvaluationPlan
from cadenza.core.errors import PreregistrationError
from cadenza.core.files import sha256_bytes
from cadenza.evaluation.prereg import LockedRegistration, PreregDocument
from cadenza.evaluation.results import BundleSummary
from cadenza.evaluation.summary import SummarySettings

#: Key of the block in a registration.
EVALUATION_BLOCK: Final = "evaluation"
#: Fields of a plan that a registration fixes.
_REGISTERED: Final = (
    "task_version",
    "env",
    "policies",
    "partners",
    "conditions",
    "seeds",
    "episodes_per_seed",
)
_SUMMARY: Final = "summary"
_BLOCK: Final = (*_REGISTERED, _SUMMARY)
#: Fields that settings and stored summaries share, beside what is compared.
_STATISTICS: Final = ("n_resamples", "bootstrap_root_seed", "headline_condition")


def registered_block(plan: EvaluationPlan, settings: SummarySettings) -> dict[str, Any]:
    """Return the block that registers ``plan`` with these statistics."""
    content = plan.model_dump(mode="json") | {_SUMMARY: statistics_of(settings)}
    return {name: content[name] for name in _BLOCK}


def statistics_of(settings: SummarySettings) -> dict[str, Any]:
    """Return what a summary depends on besides the episodes, as JSON values."""
    compared = None if settings.comparison is None else list(settings.comparison)
    own = {name: getattr(settings, name) for name in _STATISTICS}
    return own | {"comparison": compared}


def statistics_in(summary: BundleSummary) -> dict[str, Any]:
    """Return the same of a stored summary."""
    treatments = list(dict.fromkeys(row.treatment for row in summary.comparisons))
    compared = [*treatments, summary.comparisons[0].baseline] if treatments else None
    return {name: getattr(summary, name) for name in _STATISTICS} | {"comparison": compared}


def plan_differences(
    registration: LockedRegistration, plan: EvaluationPlan, statistics: Mapping[str, Any]
) -> list[str]:
    """Return how plan and statistics depart from what is registered; empty if they do not.

    Raises:
        ConfigurationError: The registration is no YAML.
        pydantic.ValidationError: It has the wrong shape.
    """
    document = registration.protocol
    if not isinstance(document, PreregDocument):
        return ["registration: expected a protocol in blocks, got one of an axis"]
    unreadable = block_problems(document)
    if unreadable:
        return unreadable
    fields: dict[str, Any] = document.parameters[EVALUATION_BLOCK]
    found = _differences("git_tag", document.git_tag, registration.git_tag)
    found += _differences("task_id", document.task_id, plan.env.task)
    registered = _with_weights(_as_plan(fields, plan), plan)
    wanted = registered.model_dump(mode="json") | {_SUMMARY: fields[_SUMMARY]}
    got = plan.model_dump(mode="json") | {_SUMMARY: dict(statistics)}
    for name in _BLOCK:
        found += _differences(name, wanted[name], got[name])
    return found


def block_problems(document: PreregDocument) -> list[str]:
    """Return why nothing can be compared with the block of ``document``; empty if all can be."""
    block: object = document.parameters.get(EVALUATION_BLOCK)
    if not isinstance(block, dict):
        return [f"parameters.{EVALUATION_BLOCK}: expected a mapping, got none."]
    fields, known = cast("dict[str, Any]", block), set(_BLOCK)
    if fields.keys() != known:
        return [
            f"parameters.{EVALUATION_BLOCK}: expected the keys {', '.join(sorted(known))}, got "
            f"others or too few: {', '.join(sorted(fields.keys() ^ known))}."
        ]
    try:
        plan = _as_plan(fields, None)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in (EVALUATION_BLOCK, *first["loc"]))
        return [f"parameters.{place}: {first['msg']}."]
    if plan.env.task != document.task_id:
        return [f"task_id: expected {plan.env.task!r} as in env.task, got {document.task_id!r}."]
    return []


def require_registered(
    registration: LockedRegistration, plan: EvaluationPlan, settings: SummarySettings
) -> None:
    """Raise unless the plan is the registered one.

    Raises:
        PreregistrationError: It departs from it.
    """
    found = plan_differences(registration, plan, statistics_of(settings))
    if found:
        raise PreregistrationError(
            f"evaluation: expected what tag {registration.git_tag!r} registers, got "
            f"{len(found)} difference(s): {'; '.join(found[:3])}. Run the registered evaluation, "
            "or register this one under a new tag."
        )


def _as_plan(fields: Mapping[str, Any], plan: EvaluationPlan | None) -> EvaluationPlan:
    """Return the registered plan; what is not registered comes from ``plan``, or is anything."""
    if plan is None:
        content: dict[str, Any] = {
            "schema_version": 1,
            "block_size": 1,
            "code_sha256": sha256_bytes(b""),
            "package_version": "",
        }
    else:
        content = plan.model_dump(mode="json")
    return EvaluationPlan.model_validate(content | {name: fields[name] for name in _REGISTERED})


def _with_weights(registered: EvaluationPlan, plan: EvaluationPlan) -> EvaluationPlan:
    """Return ``registered`` with the digests of policies that were trained after it."""
    digests = {policy.name: policy.weights_sha256 for policy in plan.policies}
    policies = tuple(
        policy
        if policy.weights_sha256 is not None
        else policy.model_copy(update={"weights_sha256": digests.get(policy.name)})
        for policy in registered.policies
    )
    return registered.model_copy(update={"policies": policies})


def _differences(place: str, wanted: Any, got: Any) -> list[str]:
    """Return where two JSON values differ, deepest place first named."""
    if isinstance(wanted, dict) and isinstance(got, dict):
        left, right = cast("dict[str, Any]", wanted), cast("dict[str, Any]", got)
        return [
            line
            for key in sorted(left.keys() | right.keys())
            for line in _differences(f"{place}.{key}", left.get(key), right.get(key))
        ]
    if isinstance(wanted, list) and isinstance(got, list):
        first, second = cast("list[Any]", wanted), cast("list[Any]", got)
        if len(first) == len(second):
            return [
                line
                for number, pair in enumerate(zip(first, second, strict=True))
                for line in _differences(f"{place}[{number}]", *pair)
            ]
    same = wanted == got and isinstance(wanted, bool) == isinstance(got, bool)
    return [] if same else [f"{place}: {wanted!r} registered, {got!r} run"]
