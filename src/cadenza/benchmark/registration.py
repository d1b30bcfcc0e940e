"""Registered evaluations: what `cadenza prereg new` writes down, and whether a plan is that one.

Block:    ``parameters.evaluation`` of a registration: the plan without what a later commit or a
          later training decides (code, package, size of a cell, weights of policies that are not
          there yet), and ``summary``, which fixes the statistics.
Axis:     the registration of a spike's axis fixes conditions, seeds and episodes; the rest of its
          plan is that of the axis, see `cadenza.benchmark.spike_axes`.
Promise:  a plan conforms if every field equals the registered one. A registered policy without
          digest may have any weights; one with a digest has these.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from cadenza.benchmark.cells import EvaluationPlan
from cadenza.benchmark.spike_axes import axis_differences
from cadenza.core.errors import PreregistrationError
from cadenza.evaluation.prereg import (
    LockedRegistration,
    PreregDocument,
    PreregistrationSpec,
)
from cadenza.evaluation.results import BundleSummary
from cadenza.evaluation.statistics.estimate import group_by_seed, rate_estimate
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
    content = plan.model_dump(mode="json") | {_SUMMARY: statistics_of(settings, plan.seeds)}
    return {name: content[name] for name in _BLOCK}


def statistics_of(settings: SummarySettings, seeds: Sequence[int]) -> dict[str, Any]:
    """Return what a summary of ``seeds`` depends on besides the episodes, as JSON values."""
    compared = None if settings.comparison is None else list(settings.comparison)
    own = {name: getattr(settings, name) for name in _STATISTICS}
    estimator = rate_estimate(group_by_seed((seed, 1.0) for seed in seeds)).estimator
    return own | {"comparison": compared, "estimator": estimator}


def statistics_in(summary: BundleSummary) -> dict[str, Any]:
    """Return the same of a stored summary."""
    treatments = list(dict.fromkeys(row.treatment for row in summary.comparisons))
    compared = [*treatments, summary.comparisons[0].baseline] if treatments else None
    own = {name: getattr(summary, name) for name in _STATISTICS}
    return own | {"comparison": compared, "estimator": summary.estimator}


def block_problems(document: PreregDocument) -> list[str]:
    """Return why nothing can be compared with the block of ``document``; empty if all can be."""
    block: object = document.parameters.get(EVALUATION_BLOCK)
    keys = set(cast("dict[str, Any]", block)) if isinstance(block, dict) else set[str]()
    if keys == set(_BLOCK):
        return []
    return [
        f"parameters.{EVALUATION_BLOCK}: expected the keys {', '.join(_BLOCK)}, got others or too "
        f"few: {', '.join(sorted(keys ^ set(_BLOCK)))}; `cadenza prereg new` writes them."
    ]


def plan_differences(
    registration: LockedRegistration, plan: EvaluationPlan, statistics: Mapping[str, Any]
) -> list[str]:
    """Return how plan and statistics depart from what is registered; empty if they do not.

    Raises:
        ConfigurationError: The registration is no YAML.
        pydantic.ValidationError: It has the wrong shape.
    """
    document = registration.protocol
    if isinstance(document, PreregistrationSpec):
        return axis_differences(document, plan, registration.git_tag)
    unreadable = block_problems(document)
    if unreadable:
        return unreadable
    block: dict[str, Any] = document.parameters[EVALUATION_BLOCK]
    content = plan.model_dump(mode="json") | {_SUMMARY: dict(statistics)}
    found = _differences("git_tag", document.git_tag, registration.git_tag)
    found += _differences("task_id", document.task_id, plan.env.task)
    for name in _BLOCK:
        found += _differences(name, block[name], content[name])
    return found


def require_registered(
    registration: LockedRegistration, plan: EvaluationPlan, settings: SummarySettings
) -> None:
    """Raise unless the plan is the registered one.

    Raises:
        PreregistrationError: It departs from it.
    """
    found = plan_differences(registration, plan, statistics_of(settings, plan.seeds))
    if found:
        raise PreregistrationError(
            f"evaluation: expected what tag {registration.git_tag!r} registers, got "
            f"{len(found)} difference(s): {'; '.join(found[:3])}. Run the registered evaluation, "
            "or register this one under a new tag."
        )


def _differences(place: str, wanted: Any, got: Any) -> list[str]:
    """Return where two JSON values differ; a policy registered without weights may have any."""
    if wanted is None and place.startswith("policies[") and place.endswith(".weights_sha256"):
        return []
    if isinstance(wanted, dict) and isinstance(got, dict):
        left, right = cast("dict[str, Any]", wanted), cast("dict[str, Any]", got)
        parts = [(f"{place}.{k}", left.get(k), right.get(k)) for k in sorted({*left, *right})]
    elif isinstance(wanted, list) and isinstance(got, list):
        first, second = cast("list[Any]", wanted), cast("list[Any]", got)
        if len(first) != len(second):
            return [f"{place}: {wanted!r} registered, {got!r} run"]
        pairs = enumerate(zip(first, second, strict=True))
        parts = [(f"{place}[{number}]", *pair) for number, pair in pairs]
    else:
        same = wanted == got and isinstance(wanted, bool) == isinstance(got, bool)
        return [] if same else [f"{place}: {wanted!r} registered, {got!r} run"]
    return [line for part in parts for line in _differences(*part)]
