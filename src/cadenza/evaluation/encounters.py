"""Whether an ego adapts: its scores at every encounter with the same partner.

Series:   an ego meets one partner E times in a row, in episodes that begin anew; once it keeps what
          it remembers from one to the next, once it is reset before each. Both play the same
          starts, so the first encounters are equal and the difference at a later one is what the
          memory of earlier ones is worth. Egos without a memory are played once.
Progress: mean score, or return, so far at fixed times of the first episode of each series.
Intervals: seeds are the clusters, as everywhere.
Axes:     N = series, E = encounters, T = times.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from cadenza.evaluation.results import Archive, Finite, Identifier
from cadenza.evaluation.statistics.cluster_means import StudentT
from cadenza.evaluation.statistics.estimate import (
    Estimate,
    group_by_seed,
    mean_estimate,
    rate_estimate,
)

Memory = Literal["kept", "reset"]


class EncounterSeries(Archive):
    """Encounters of one ego with one partner.

    Attributes:
        ego: The ego.
        partner: The partner.
        seeds: Evaluation seed of each series, (N,).
        reset: Scores with the memory reset before each encounter, (N, E).
        kept: With the memory kept; None for an ego without one.
        progress: Score so far at the times of `Encounters`, first encounters, (N, T).
    """

    ego: Identifier
    partner: Identifier
    seeds: tuple[int, ...] = Field(min_length=1)
    reset: tuple[tuple[Finite, ...], ...]
    kept: tuple[tuple[Finite, ...], ...] | None = None
    progress: tuple[tuple[Finite, ...], ...]

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        tables = [self.reset, self.progress, *([] if self.kept is None else [self.kept])]
        if any(len(rows) != len(self.seeds) or len(set(map(len, rows))) > 1 for rows in tables):
            raise ValueError("EncounterSeries: expected as many rows as seeds, equally long.")
        return self


class Encounters(Archive):
    """A file of encounters, JSON.

    Attributes:
        task: E.g. ``"crossing@v1"``.
        metric: What a score is.
        times: Control steps at which progress was noted, (T,).
        series: By ego and partner.
    """

    schema_version: Literal[1] = 1
    task: Identifier
    metric: Literal["success", "return"]
    times: tuple[int, ...]
    series: tuple[EncounterSeries, ...]

    def of(self, ego: str) -> list[EncounterSeries]:
        """Return the series of one ego."""
        return [one for one in self.series if one.ego == ego]

    @property
    def egos(self) -> list[str]:
        """Names, in the order of the file."""
        return list(dict.fromkeys(one.ego for one in self.series))

    def estimate(self, values: Iterable[tuple[int, float]]) -> Estimate:
        """Return the mean of (seed, score), as a rate where scores are successes."""
        clusters = group_by_seed(values)
        if self.metric == "success":
            return rate_estimate(clusters)
        return mean_estimate(clusters, method=StudentT())

    def by_encounter(self, ego: str, memory: Memory) -> list[Estimate]:
        """Return the mean score at each encounter over partners and series, E estimates.

        Nothing for an ego without a memory to keep.
        """
        tables = [(one.seeds, getattr(one, memory)) for one in self.of(ego)]
        if any(table is None for _, table in tables):
            return []
        count = len(tables[0][1][0])
        return [
            self.estimate(
                (seed, row[e]) for seeds, t in tables for seed, row in zip(seeds, t, strict=True)
            )
            for e in range(count)
        ]

    def by_time(self, ego: str) -> list[Estimate]:
        """Return the mean score so far at each of the times, T estimates."""
        tables = [(one.seeds, one.progress) for one in self.of(ego)]
        return [
            self.estimate(
                (seed, row[t]) for seeds, x in tables for seed, row in zip(seeds, x, strict=True)
            )
            for t in range(len(self.times))
        ]

    def gain(self, ego: str, partners: Sequence[str] | None = None) -> Estimate | None:
        """Return kept minus reset over all encounters but the first, paired by start.

        None without a memory, or with one encounter.
        """
        pairs: list[tuple[int, float]] = []
        for one in self.of(ego):
            if one.kept is None or (partners is not None and one.partner not in partners):
                continue
            later = np.array(one.kept)[:, 1:] - np.array(one.reset)[:, 1:]
            pairs += [
                (seed, float(x)) for seed, row in zip(one.seeds, later, strict=True) for x in row
            ]
        if not pairs:
            return None
        bounds = (-1.0, 1.0) if self.metric == "success" else None
        clusters = group_by_seed(pairs)
        return mean_estimate(clusters, method=StudentT(), bounds=bounds, design="paired-cluster")
