"""How close an ego comes to the best that can be done beside a partner.

Proximity: BRProx(e, w) = (J(e, w) - r) / (J(BR(w), w) - r), r the score of a random ego beside the
           same w, 0 where the file gives none. Never above 1: where an ego beats the best response,
           that is none, so the partner's row says "bound not reached" and counts in no aggregate.
           Where the intervals of BR(w) and of the random ego overlap, there is no scale: a dash.
Intervals: the ego's, scaled; the best response is taken at its value, its own interval stands
           beside it. Worst case by Bonferroni, mean and interquartile mean by redrawn seeds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal, Self

from pydantic import Field, ValidationError, model_validator

from cadenza.core.errors import ConfigurationError, refuse
from cadenza.core.seeding import derive_substream
from cadenza.core.strict_json import read_sealed_json, write_sealed_json
from cadenza.core.yaml_files import read_yaml
from cadenza.evaluation.results import (
    Archive,
    EpisodeResult,
    Finite,
    Identifier,
    Sha256,
    first_problem,
)
from cadenza.evaluation.statistics.estimate import Estimate
from cadenza.evaluation.statistics.scores import ScoreTensor, aggregate, tail_case, worst_case

NOT_REACHED: Final = "bound not reached"
NOT_APART: Final = "best response and random ego cannot be told apart"
#: What a sealed file of best responses is.
_KIND: Final = "best responses"
#: Names of the aggregates.
WORST: Final = "worst partner"
WORST_FAMILY: Final = "worst family"
MEAN: Final = "mean over partners"
IQM: Final = "IQM of cells"


class BestResponse(Archive):
    """What the best response to one partner scores.

    Attributes:
        value: Its mean score beside the partner.
        low: Lower bound of ``value``, if known.
        high: Upper bound.
        random: Mean score of a random ego beside the same partner, subtracted from all scores.
        random_high: Upper bound of ``random``, if known.
        trained: How it was trained, for the reader: algorithm, steps, seeds.
        sha256: Digest of its weights.
        steps: Environment steps at the evaluations of its training.
        curve: Mean score at each of them, in other episodes than those of ``value``.
    """

    value: Finite
    low: Finite | None = None
    high: Finite | None = None
    random: Finite = 0.0
    random_high: Finite | None = None
    trained: Identifier
    sha256: Sha256 | None = None
    steps: tuple[int, ...] = ()
    curve: tuple[Finite, ...] = ()

    @property
    def is_apart(self) -> bool:
        """Whether it is above a random ego, beyond both intervals."""
        low = self.value if self.low is None else self.low
        return low > (self.random if self.random_high is None else self.random_high)

    def share(self, score: float) -> float:
        """Return where ``score`` lies between a random ego, 0, and the best response, 1."""
        return (score - self.random) / (self.value - self.random)

    @model_validator(mode="after")
    def _beats_chance(self) -> Self:
        if not self.value > self.random:
            raise ValueError(
                f"BestResponse.value: expected more than a random ego's {self.random}, got "
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
        """Return the score of one episode on the scale from random ego to best response."""
        score = self.score_of(episode)
        return None if score is None else self.partners[episode.partner or ""].share(score)

    def score_of(self, episode: EpisodeResult) -> float | None:
        """Return the score of one episode."""
        return episode.episode_return if self.metric == "return" else float(episode.success)

    def on(self, task: str, partners: Sequence[str]) -> Self:
        """Return these if they are about ``task``, ``"crossing@v1"``, and some of ``partners``.

        Raises:
            ConfigurationError: They are about another task, or about none of the partners.
        """
        if self.task != task:
            raise ConfigurationError(
                f"best responses: expected some on {task}, got some on {self.task}."
            )
        if self.partners.keys().isdisjoint(partners):
            raise ConfigurationError(
                f"best responses: expected some to {', '.join(partners)}, got some to "
                f"{', '.join(self.partners)}; name partners as the evaluation does."
            )
        return self


def load_best_responses(path: Path) -> BestResponses:
    """Read a file of best responses: what `store_best_responses` sealed, or YAML written by hand.

    Raises:
        ConfigurationError: It is missing, cannot be read, or has another shape.
        IntegrityError: It was changed after it was sealed.
    """
    if not path.exists():
        raise ConfigurationError(f"{path}: expected a file of best responses, got none there.")
    content = read_yaml(path)
    if isinstance(content, dict) and "seal" in content:
        content = read_sealed_json(path, kind=_KIND)
    if not isinstance(content, dict):
        got = "another document" if content else "an empty file"
        do = "`cadenza zoo best-response` writes one"
        refuse(ConfigurationError, str(path), expected="best responses", got=got, do=do)
    try:
        return BestResponses.model_validate(content)
    except ValidationError as error:
        raise ConfigurationError(f"{path}: {first_problem(error)}.") from error


def store_best_responses(path: Path, best: BestResponses) -> None:
    """Seal best responses into a JSON file."""
    write_sealed_json(path, best.model_dump(mode="json"), kind=_KIND)


def proximities(
    episodes: Mapping[str, Sequence[EpisodeResult]],
    best: BestResponses,
    families: Mapping[str, str],
) -> dict[str, dict[str, Estimate]]:
    """Return the proximity of each method by partner, and its aggregates by their names.

    `WORST`, `WORST_FAMILY`, `MEAN` and `IQM` are over partners whose bound holds and is apart from
    a random ego, and missing where there is none.

    Args:
        episodes: Episodes by method.
        best: Best responses; partners that nobody met are left out.
        families: Family of each partner.

    Raises:
        InputError: An episode does not record the score.
    """
    scores = ScoreTensor.from_episodes(episodes, metric=best.score_of, families=families)
    names = [name for name in best.partners if name in scores.partners]
    found = {m: {n: _scaled(scores, m, n, best, 0.95) for n in names} for m in episodes}
    beaten = {n for own in found.values() for n, e in own.items() if (e.value or 0.0) > 1.0 + 1e-9}
    unusable = dict.fromkeys(beaten, NOT_REACHED)
    unusable |= {name: NOT_APART for name in names if not best.partners[name].is_apart}
    reached = [name for name in names if name not in unusable]
    kept = {m: [e for e in own if e.partner in reached] for m, own in episodes.items()}
    cells = ScoreTensor.from_episodes(kept, metric=best.proximity_of, families=families)
    for method, own in found.items():
        for name, reason in unusable.items():
            own[name] = replace(own[name], value=None, undefined_reason=reason)
        if kept[method]:
            level = 1.0 - 0.05 / len(reached)
            together = {n: _scaled(scores, method, n, best, level) for n in reached}
            rng = derive_substream(f"evaluation.proximity.{method}", root_seed=0).default_rng()
            own |= {
                WORST: tail_case(together, by="partner").estimate,
                WORST_FAMILY: worst_case(cells, method, by="family").estimate,
                MEAN: aggregate(cells, method, "mean", rng=rng),
                IQM: aggregate(cells, method, "iqm", rng=rng),
            }
    return {m: {name: _cut(e) for name, e in own.items()} for m, own in found.items()}


def coverage(found: Mapping[str, Estimate], partners: Sequence[str]) -> str:
    """Return what one method's aggregates are over: ``"over 2 of 5 partners"``."""
    counted = sum(name in found and found[name].value is not None for name in partners)
    return f"over {counted} of {len(partners)} partners"


def _scaled(
    scores: ScoreTensor, method: str, name: str, best: BestResponses, level: float
) -> Estimate:
    """Return the score beside one partner as a proximity, which may exceed 1."""
    found = scores.estimate(method, [name], confidence=level)
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
