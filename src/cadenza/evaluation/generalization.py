"""What an ego loses beside partners that it never met.

Gap:      of every start the mean score beside the seen partners minus that beside the unseen ones
          of a family, so that the luck of the start cancels out; averaged over starts, seeds as
          clusters, Student t on their means. Positive: it does better where it has been.
Limits:   seen and unseen partners differ in more than having been met: an unseen family may be
          easier or harder for everyone. A best response's scores tell (`best_responses`).
"""

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from cadenza.evaluation.results import EpisodeResult
from cadenza.evaluation.statistics.cluster_means import StudentT
from cadenza.evaluation.statistics.estimate import Estimate, group_by_seed, mean_estimate
from cadenza.evaluation.statistics.paired import Metric

#: Label of all unseen partners together.
ALL_UNSEEN: Final = "all unseen"


def generalization_gap(
    episodes: Iterable[EpisodeResult],
    *,
    metric: Metric,
    seen: Mapping[str, bool],
    families: Mapping[str, str],
    bounds: tuple[float, float] | None = None,
) -> dict[str, Estimate]:
    """Return seen minus unseen by family of the unseen partners, and for `ALL_UNSEEN`.

    Starts that were not played on both sides are left out, families without any, too.

    Args:
        episodes: Of one method.
        metric: The score; episodes that do not record it are left out.
        seen: Whether the ego trained with each partner; others are left out.
        families: Family of each partner.
        bounds: Range of a difference.
    """
    sides: dict[str, dict[tuple[int, int], list[float]]] = {}
    for episode in episodes:
        partner, score = episode.partner or "", metric(episode)
        if partner not in seen or score is None:
            continue
        labels = ["seen"] if seen[partner] else [f"of {families[partner]}", ALL_UNSEEN]
        for label in labels:
            start = episode.seed, episode.initial_state_seed
            sides.setdefault(label, {}).setdefault(start, []).append(score)
    known = sides.pop("seen", {})
    found: dict[str, Estimate] = {}
    for label, starts in sides.items():
        pairs = [
            (start[0], float(np.mean(known[start]) - np.mean(scores)))
            for start, scores in starts.items()
            if start in known
        ]
        if pairs:
            found[label.removeprefix("of ")] = mean_estimate(
                group_by_seed(pairs), method=StudentT(), bounds=bounds, design="paired-cluster"
            )
    return {name: found[name] for name in sorted(found, key=lambda n: (n == ALL_UNSEEN, n))}
