"""Episodes of the native back end: which to train on, and what an evaluation says of each."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cadenza.core.errors import ConfigurationError, IntegrityError
from cadenza.loop.backends.native_files import SeedPage
from cadenza.loop.config_backends import closest
from cadenza.loop.contracts.records import EpisodeOutcome, SeedRange

#: Episodes of a partner in focus for each episode of another one.
FOCUS_WEIGHT: Final = 3
#: Names of several partners at once, which the jobs know: all, and those that leave the ego a way.
_EVERYBODY: Final = "default"
_LEAVING_WAY: Final = "leaving_way"


def require_partners(key: str, text: str | None) -> None:
    """Raise unless ``text`` says whom to play with, or whose data to take.

    Args:
        key: Key of the configuration that holds it.
        text: Partners with commas between them, ``default`` or ``leaving_way``; None for everybody.

    Raises:
        ConfigurationError: A name is no partner, or repeated.
    """
    if text in (None, _EVERYBODY, _LEAVING_WAY):
        return
    from cadenza.partners.registry import list_registered

    names, known = text.split(","), list_registered()
    for name in names:
        if name not in known:
            raise ConfigurationError(
                f"{key}: expected {_EVERYBODY}, {_LEAVING_WAY} or partners with commas between "
                f"them (`cadenza partners list` names them), got {name!r}; "
                f"{closest(name, (_EVERYBODY, _LEAVING_WAY, *known))}"
            )
    if len(set(names)) < len(names):
        raise ConfigurationError(f"{key}: expected each partner once, got {text!r}.")


@dataclass(frozen=True, slots=True)
class PartnerFilter:
    """Whose data is taken, as ``data.task_filter`` says.

    Attributes:
        text: Partners with commas between them, ``default`` or ``leaving_way``; None for everybody.
    """

    text: str | None

    def among(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return those of ``names`` whose data is taken, in order.

        Raises:
            UnknownNameError: One is no partner, and the filter asks what it does.
        """
        if self.text in (None, _EVERYBODY):
            return tuple(names)
        if self.text == _LEAVING_WAY:
            from cadenza.partners.registry import partner_card

            return tuple(name for name in names if partner_card(name).leaves_way)
        return tuple(name for name in names if name in self._named)

    def within(self, page: SeedPage) -> tuple[str, ...]:
        """Return the partners whose episodes of a dataset are taken; empty for everybody.

        Raises:
            ConfigurationError: The dataset has none of them, or lacks a named one.
            UnknownNameError: It met somebody who is no partner, and the filter asks what it does.
        """
        if self.text in (None, _EVERYBODY):
            return ()
        met = tuple(dict.fromkeys(page.partners))
        taken = self.among(met) if self.text == _LEAVING_WAY else self._named
        missing = [name for name in taken if name not in met]
        if missing or not taken:
            raise ConfigurationError(
                "data.task_filter: expected partners of the seed dataset "
                f"({', '.join(met) or 'it names none'}), got {(*missing, self.text)[0]!r}."
            )
        return taken

    @property
    def _named(self) -> tuple[str, ...]:
        return tuple((self.text or "").split(","))


def selected_episodes(
    page: SeedPage, count: int | None, focus: Sequence[str], partners: PartnerFilter
) -> tuple[int, ...] | None:
    """Return which episodes of a dataset a cycle takes; None for all.

    Without focus these are the first ones. With focus, rounds over the partners, three episodes of
    each in focus and one of each other one, in the order of the dataset, until there are enough.

    Args:
        page: What the dataset says.
        count: How many; None for all.
        focus: Partners with a larger share; those that the dataset never met do not matter.
        partners: Whose episodes are taken.

    Raises:
        ConfigurationError: The dataset has no episode of a partner that the filter names.
        UnknownNameError: It met somebody who is no partner, and the filter asks what it does.
    """
    met = np.asarray(page.partners or ("",) * page.total, dtype=np.str_)
    names, first, of_episode = np.unique(met, return_index=True, return_inverse=True)
    only = partners.within(page)
    taken = np.flatnonzero(_named(names, only)[of_episode]) if only else np.arange(page.total)
    wanted = len(taken) if count is None else min(count, len(taken))
    if wanted == page.total:
        return None
    in_focus, partner = _named(names, focus), of_episode[taken]
    if in_focus[partner].any():
        # Episode k of a partner comes in round k // share, so sorting by round takes them in turn.
        rounds = _places(partner) // np.where(in_focus, FOCUS_WEIGHT, 1)[partner]
        taken = taken[np.lexsort((taken, first[partner], rounds))]
    return tuple(np.sort(taken[:wanted]).tolist())


def _named(names: NDArray[np.str_], chosen: Sequence[str]) -> NDArray[np.bool_]:
    """Return which of ``names`` are in ``chosen``."""
    return np.isin(names, np.asarray(list(chosen), dtype=np.str_))


def _places(groups: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return how many earlier entries of its own group each entry has."""
    by_group = np.argsort(groups, kind="stable")
    _, sizes = np.unique(groups, return_counts=True)
    places = np.empty(len(groups), dtype=np.intp)
    places[by_group] = np.arange(len(groups)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return places


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
