"""Episodes of the native back end: which to train on, and what an evaluation says of each."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from cadenza.core.errors import ConfigurationError, IntegrityError
from cadenza.loop.backends.base import SeedRange
from cadenza.loop.backends.native_files import SeedPage
from cadenza.loop.contracts.records import EpisodeOutcome

#: Episodes of a partner in focus for each episode of another one.
FOCUS_WEIGHT: Final = 3


def selected_episodes(
    page: SeedPage, count: int | None, focus: Sequence[str], only: Sequence[str] = ()
) -> tuple[int, ...] | None:
    """Return which episodes of a dataset a cycle takes; None for all.

    Without focus these are the first ones. With focus, rounds over the partners, three episodes of
    each in focus and one of each other one, in the order of the dataset, until there are enough.

    Args:
        page: What the dataset says.
        count: How many; None for all.
        focus: Partners with a larger share; those that the dataset never met do not matter.
        only: Partners whose episodes alone are taken; empty for all.

    Raises:
        ConfigurationError: The dataset has no episode of a partner in ``only``.
    """
    queues: dict[str, list[int]] = {}
    for number, partner in enumerate(page.partners or ("",) * page.total):
        queues.setdefault(partner, []).append(number)
    for name in only:
        if name not in queues:
            raise ConfigurationError(
                f"data.task_filter: expected partners of the seed dataset "
                f"({', '.join(filter(None, queues)) or 'it names none'}), got {name!r}."
            )
    if only:
        queues = {name: numbers for name, numbers in queues.items() if name in only}
    total = sum(len(numbers) for numbers in queues.values())
    wanted = total if count is None else min(count, total)
    if wanted == page.total:
        return None
    if not set(focus) & set(queues):
        return tuple(sorted(number for numbers in queues.values() for number in numbers)[:wanted])
    # Episode k of a partner comes in round k // share, so sorting by round takes them in turn.
    places = {name: place for place, name in enumerate(queues)}
    ranked = sorted(
        (k // (FOCUS_WEIGHT if name in focus else 1), places[name], number)
        for name, numbers in queues.items()
        for k, number in enumerate(numbers)
    )
    return tuple(sorted(number for _, _, number in ranked[:wanted]))


def outcomes_of(
    facts: Mapping[str, Any], seeds: SeedRange, *, source: Path
) -> tuple[EpisodeOutcome, ...]:
    """Return the episodes of an evaluation's result, its figures checked against them.

    Args:
        facts: The result.
        seeds: Seeds that were to be played, in order.
        source: How messages call the result.

    Raises:
        IntegrityError: Other seeds were played, or a figure does not follow from the episodes.
    """
    outcomes = tuple(
        EpisodeOutcome(
            task=one["partner"], seed=one["seed"], success=one["success"], score=one["return"]
        )
        for one in facts["episodes"]
    )
    played = [outcome.seed for outcome in outcomes]
    if played != list(range(seeds.start, seeds.start + seeds.count)):
        raise IntegrityError(
            f"{source}: expected the seeds {seeds.start} to {seeds.start + seeds.count - 1} in "
            f"order, got {played[:3]}...; remove the folder of the step and run it again."
        )
    groups = {"overall": (facts["overall"], outcomes)}
    for name, figures in facts["per_task"].items():
        groups[name] = (figures, tuple(o for o in outcomes if o.task == name))
    for name, (figures, group) in groups.items():
        rate = sum(o.success for o in group) / max(len(group), 1)
        if figures["n_episodes"] != len(group) or figures["success_rate"] != rate:
            raise IntegrityError(
                f"{source}: expected figures of {name!r} that follow from the episodes ({rate} of "
                f"{len(group)}), got {figures['success_rate']} of {figures['n_episodes']}."
            )
    return outcomes
