"""How close an ego comes to the best that can be done beside a partner.

Proximity: BRProx(e, w) = (J(e, w) - r) / (J(BR(w), w) - r), r the score of the random pair beside w
           where scores may be negative. Never above 1: where an ego beats the best response, that
           is none, so the partner's row says "bound not reached" and counts in no aggregate.
Intervals: the ego's, scaled; the best response is taken at its value, its own interval stands
           beside it. Worst case by Bonferroni, mean and interquartile mean by redrawn seeds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import Field, ValidationError, model_validator

from cadenza.core.errors import ConfigurationError
from cadenza.core.seeding import derive_substream
from cadenza.core.yaml_files import read_yaml
from cadenza.evaluation.results import Archive, EpisodeResult, Finite, Identifier, Sha256
from cadenza.evaluation.statistics.cluster_means import StudentT
from cadenza.evaluation.statistics.estimate import Estimate, mean_estimate, rate_estimate
from cadenza.evaluation.statistics.scores import (
    ScoreTensor,
    WorstCase,
    aggregate,
    tail_case,
    worst_case,
)

NOT_REACHED: Final = "bound not reached"


class BestResponse(Archive):
    """What the best response to one partner scores.

    Attributes:
        value: Its mean score beside the partner.
        low: Lower bound of ``value``, if known.
        high: Upper bound.
        random: Mean score of a random ego beside the partner, which is subtracted from all scores.
        trained: How it was trained, for the reader: algorithm, steps, seeds.
        sha256: Digest of its weights.
    """

    value: Finite
    low: Finite | None = None
    high: Finite | None = None
    random: Finite = 0.0
    trained: Identifier
    sha256: Sha256 | None = None

    def share(self, score: float) -> float:
        """Return where ``score`` lies between the random pair, 0, and the best response, 1."""
        return (score - self.random) / (self.value - self.random)

    @model_validator(mode="after")
    def _beats_chance(self) -> Self:
        if not self.value > self.random:
            raise ValueError(
                f"BestResponse.value: expected more than the random pair's {self.random}, got "
                f"{self.value}."
            )
        return self


class BestResponses(Archive):
    """A file of best responses, YAML or JSON: one task, ``partners`` by name."""

    schema_version: Literal[1] = 1
    task: Identifier
    metric: Literal["return", "success"] = "return"
    partners: dict[str, BestResponse] = Field(min_length=1)

    def proximity_of(self, episode: EpisodeResult) -> float | None:
        """Return the score of one episode on the scale from random pair to best response."""
        score = self.score_of(episode)
        return None if score is None else self.partners[episode.partner or ""].share(score)

    def score_of(self, episode: EpisodeResult) -> float | None:
        """Return the score of one episode."""
        return episode.episode_return if self.metric == "return" else float(episode.success)

    def on(self, task: str) -> Self:
        """Return these if they are about ``task``, e.g. ``"crossing@v1"``.

        Raises:
            ConfigurationError: They are about another.
        """
        if self.task != task:
            raise ConfigurationError(
                f"best responses: expected some on {task}, got some on {self.task}."
            )
        return self


def load_best_responses(path: Path) -> BestResponses:
    """Read a file of best responses.

    Raises:
        ConfigurationError: It cannot be read, or has another shape.
    """
    try:
        return BestResponses.model_validate(read_yaml(path))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigurationError(f"{path}: {where}: {first['msg']}.") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Proximity:
    """Proximity of one method; the aggregates are None where no bound was reached.

    Attributes:
        partners: By partner that was met and has a best response.
        worst: Worst partner.
        family: Worst family.
        mean: Mean over partners.
        iqm: Interquartile mean of the (seed, partner) cells.
    """

    partners: Mapping[str, Estimate]
    worst: WorstCase | None = None
    family: WorstCase | None = None
    mean: Estimate | None = None
    iqm: Estimate | None = None

    def named(self) -> dict[str, Estimate]:
        """Return every estimate by its name, aggregates last."""
        ends = {
            "worst partner": self.worst and self.worst.estimate,
            "worst family": self.family and self.family.estimate,
            "mean over partners": self.mean,
            "IQM of cells": self.iqm,
        }
        return dict(self.partners) | {k: e for k, e in ends.items() if e is not None}


def proximities(
    episodes: Mapping[str, Sequence[EpisodeResult]],
    best: BestResponses,
    families: Mapping[str, str],
) -> dict[str, Proximity]:
    """Return the proximity of each method, given the family of each partner.

    Raises:
        InputError: An episode does not record the score.
    """
    scores = ScoreTensor.from_episodes(episodes, metric=best.score_of, families=families)
    names = [name for name in best.partners if name in scores.partners]
    found = {m: {n: _scaled(scores, m, n, best, 0.95) for n in names} for m in episodes}
    beaten = {n for own in found.values() for n, e in own.items() if (e.value or 0.0) > 1.0 + 1e-9}
    reached = [name for name in names if name not in beaten]
    kept = {m: [e for e in own if e.partner in reached] for m, own in episodes.items()}
    cells = ScoreTensor.from_episodes(kept, metric=best.proximity_of, families=families)
    return {
        method: Proximity(
            partners={n: _not_reached(e) if n in beaten else _cut(e) for n, e in own.items()},
            **_aggregates(scores, cells, method, best, reached) if kept[method] else {},
        )
        for method, own in found.items()
    }


def _aggregates(
    scores: ScoreTensor, cells: ScoreTensor, method: str, best: BestResponses, names: list[str]
) -> dict[str, Any]:
    """Return worst cases and means over the partners ``names``."""
    level = 1.0 - 0.05 / len(names)
    partners = {n: _cut(_scaled(scores, method, n, best, level)) for n in names}
    family = worst_case(cells, method, by="family")
    rng = derive_substream(f"evaluation.proximity.{method}", root_seed=0).default_rng()
    return {
        "worst": tail_case(partners, by="partner"),
        "family": replace(family, estimate=_cut(family.estimate)),
        "mean": _cut(aggregate(cells, method, "mean", rng=rng)),
        "iqm": _cut(aggregate(cells, method, "iqm", rng=rng)),
    }


def _scaled(
    scores: ScoreTensor, method: str, name: str, best: BestResponses, level: float
) -> Estimate:
    """Return the score beside one partner as a proximity, which may exceed 1."""
    clusters = scores.clusters(method, [name])
    found = (
        rate_estimate(clusters, confidence=level)
        if scores.binary
        else mean_estimate(clusters, method=StudentT(), confidence=level)
    )
    ends = [
        None if end is None else best.partners[name].share(end)
        for end in (found.value, found.low, found.high)
    ]
    return replace(
        found, value=ends[0], low=ends[1], high=ends[2], estimator=f"brprox-{found.estimator}"
    )


def _cut(found: Estimate) -> Estimate:
    """Return the estimate with nothing above 1."""
    value, low, high = (e and min(1.0, e) for e in (found.value, found.low, found.high))
    return replace(found, value=value, low=low, high=high)


def _not_reached(found: Estimate) -> Estimate:
    return replace(found, value=None, low=None, high=None, undefined_reason=NOT_REACHED)
