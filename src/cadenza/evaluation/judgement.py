"""Did it get better? Candidates against a reference, from rows of any source (`imports`).

Pairs:     only where all arms prove the same initial state: equal starts of a task in results of
           one format. Starts that some arm lacks are dropped and counted. Without a common start
           the arms are compared unpaired.
Clusters:  training seeds, if rows have them; of bundles evaluation seeds, as in a report. Else
           starts, where several tasks (partners of one environment) share them: their episodes are
           not independent. Outcomes of one task of a bundle are one run's, start by start.
Tasks:     those that every arm has: the overall verdict first, of bundles under their headline
           condition, then Holm over tasks.
Several:   with two or more candidates verdicts go by Holm's p over all pairs, `comparison.rank`.
Abandoned: an episode without outcome is not judged; a second verdict counts it as a failure.
Rules:     arms that state different environments, limits, filters or versions are not judged
           without a reason.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias

import numpy as np

from cadenza.core.errors import ConfigurationError, InputError
from cadenza.evaluation.imports import (
    COMPLETED,
    EVALUATION_SEED,
    TRAINING_SEED,
    Results,
    Row,
    refusal,
)
from cadenza.evaluation.statistics.comparison import (
    Comparison,
    Ranking,
    Scores,
    Verdict,
    compare,
    rank,
)
from cadenza.evaluation.statistics.estimate import TRAINING_LUCK
from cadenza.evaluation.statistics.multiplicity import holm

_CONFIDENCE: Final = 0.95
#: Verdicts, the least favourable first.
_ORDER: Final[list[Verdict]] = ["worse", "undecided", "not worse", "better"]
#: Name and what was read: one `Results`, or one per training seed; the reference first.
Arms: TypeAlias = Mapping[str, Sequence[Results]]
#: Training seed, start and, for want of one, number among the episodes of its task and seed.
_Key: TypeAlias = tuple[str, str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of the rows.

    Attributes:
        margin: Loss that was declared harmless, > 0.
        score_range: Range of the scores, which are then judged in place of outcomes.
        position_seed: The user's word that the n-th episodes of a task began alike, as all
            evaluations were started with this seed; None pairs by proof alone.
        environments: The user's word on how many environments ran at once.
        despite: Why arms are judged that were not played under the same rules.
    """

    margin: float | None = None
    score_range: tuple[float, float] | None = None
    position_seed: int | None = None
    environments: int | None = None
    despite: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One candidate against the reference, overall (no task) or in one task.

    Verdict and ``holm_p`` of the comparison allow for the other candidates, or the other tasks;
    ``as_failures`` is the verdict with every abandoned episode as a failure, None without any.
    """

    arm: str
    task: str | None
    comparison: Comparison
    as_failures: Verdict | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """All that was found.

    Attributes:
        counts: Episodes behind the overall verdict by arm: attempted, abandoned, judged,
            and unpaired.
        basis: What was judged, how rows were paired and what the clusters are, for people.
        differences: Rules that differ between arms.
        one_sided: Tasks not judged, with the arms that have them.
        overall: One finding per candidate; none where nothing was judged.
        by_task: Findings of every candidate in every task, if there are several.
        ranking: With two or more candidates, who cannot be told from the best.
    """

    counts: Mapping[str, Mapping[str, int]]
    basis: str
    differences: Sequence[str]
    one_sided: Mapping[str, Sequence[str]]
    overall: Sequence[Finding] = ()
    by_task: Sequence[Finding] = ()
    ranking: Ranking | None = None

    @property
    def verdict(self) -> Verdict:
        """The least favourable verdict of a candidate."""
        found = {finding.comparison.verdict for finding in self.overall}
        least: list[Verdict] = [verdict for verdict in _ORDER if verdict in found]
        return least[0] if least else "not comparable"


def judge(arms: Arms, question: Question) -> Judgement:
    """Return what the arms show; the first is the reference.

    Raises:
        ConfigurationError: Arms have nothing in common, a start occurs twice, scores lie outside
            their range, or the numbers allow no test.
    """
    sample = _Sample(arms, question)
    found = Judgement(
        counts=sample.counts,
        basis=sample.basis,
        differences=_differences(arms),
        one_sided=sample.one_sided,
    )
    if found.differences and not question.despite:
        return found
    try:
        overall, ranking = sample.overall()
        if any(counts["abandoned"] for counts in found.counts.values()):
            harsh, _ = _Sample(arms, question, failures=True).overall()
            overall = [
                replace(finding, as_failures=other.comparison.verdict)
                for finding, other in zip(overall, harsh, strict=True)
            ]
        return replace(found, overall=overall, by_task=sample.by_task(), ranking=ranking)
    except InputError as error:
        raise ConfigurationError(str(error)) from error


def _differences(arms: Arms) -> list[str]:
    """Return the facts that two arms state differently."""
    first: dict[str, tuple[str, object]] = {}
    found: dict[str, None] = {}
    for arm, parts in arms.items():
        for key, value in (item for part in parts for item in part.facts.items()):
            name, other = (arm, value) if value is None else first.setdefault(key, (arm, value))
            if value != other:
                found[f"{key}: {other} in {name}, {value} in {arm}"] = None
    return list(found)


def _cluster_kind(arms: Arms) -> str:
    """Return what the clusters are: training seeds, what every arm has several of, or nothing."""
    labels = {
        name: {row.training_seed for part in parts for row in part.rows}
        for name, parts in arms.items()
    }
    few = [name for name, found in labels.items() if len(found) < 2 or None in found]
    parts = [part for parts in arms.values() for part in parts]
    kinds = {part.clusters for part in parts if any(row.training_seed for row in part.rows)}
    if few and TRAINING_SEED not in kinds:
        return ""
    if few or len(kinds) > 1:
        name = [*few, *arms][0]
        got = ", ".join(sorted(filter(None, labels[name]))) or "none"
        raise refusal(name, "two or more training seeds, as of other arms", got)
    return kinds.pop()


class _Sample:
    """Values of all arms in the tasks and, with pairs, at the starts that they share."""

    def __init__(self, arms: Arms, question: Question, *, failures: bool = False) -> None:
        every = [part for parts in arms.values() for part in parts]
        self._question, self._failures = question, failures
        self._clusters = _cluster_kind(arms)
        self._drawn = all(part.drawn_starts for part in every)
        self._same_states = all(part.shared_starts for part in every)
        self._proved = len({part.kind for part in every}) == 1
        self._abandoned: dict[str, Counter[str]] = {}
        values = {name: self._read(name, parts) for name, parts in arms.items()}
        self._values, sides = values, list(values.values())
        self._shared: dict[str, list[_Key]] = {}
        for task in sides[0]:
            if all(task in side for side in sides):
                keys = set(sides[0][task]).intersection(*(side[task] for side in sides))
                self._shared[task] = sorted(keys)
        self._paired = self._proved and any(self._shared.values())
        self._tasks = [task for task, keys in self._shared.items() if keys or not self._paired]
        self._compare = partial(
            compare, paired=self._paired, margin=question.margin, drawn_starts=self._drawn
        )
        scores = " and ".join(sorted({part.score for part in every}))
        condition, prefix = (
            every[0].headline,
            f"{every[0].headline} / " if every[0].headline else "",
        )
        self._about = f"condition {condition} (headline); " if condition else ""
        self._about += f"judged by {scores}; " if question.score_range else ""
        self._headline = [task for task in self._tasks if task.startswith(prefix)]
        unjudged = {task for side in sides for task in side} - set(self._tasks)
        self.one_sided = {
            task: [name for name, side in values.items() if task in side]
            for task in sorted(unjudged)
        }
        if not self._headline:
            held = (
                f"{name} with {', '.join([*side][:3])}{', ..' * (len(side) > 3)}"
                for name, side in values.items()
            )
            raise ConfigurationError(
                f"expected a task in common{prefix and f', named {prefix}..'}, got "
                f"{'; '.join(held)}. In CSV files, equal names in a column task make them meet."
            )

    def _read(self, name: str, parts: Sequence[Results]) -> dict[str, dict[_Key, float]]:
        """Return the values of an arm by task; counts what it abandoned."""
        values: dict[str, dict[_Key, float]] = {}
        abandoned: dict[tuple[str, _Key], float] = {}
        positions: Counter[tuple[str, str]] = Counter()
        low = (self._question.score_range or (0.0,))[0]
        for row in (row for part in parts for row in part.rows):
            seed, position = row.training_seed or "" if self._clusters else "", -1
            if row.start is None:
                self._proved &= self._believed(row)
                position = positions[row.task, seed]
                positions[row.task, seed] += 1
            key = seed, row.start or "", position
            held = values.setdefault(row.task, {})
            if row.status != COMPLETED:
                abandoned[row.task, key] = low
            elif key in held:
                wanted = f"every start of {row.task} once in {name}"
                raise refusal(f"{row.source} {row.line}", wanted, f"{row.start} again")
            else:
                held[key] = self._value(row)
        # what was repeated until it was completed was not abandoned
        left = {place: low for place in abandoned if place[1] not in values[place[0]]}
        self._abandoned[name] = Counter(task for task, _ in left)
        for task, key in left if self._failures else ():
            values[task][key] = low
        return {task: held for task, held in values.items() if held}

    def _believed(self, row: Row) -> bool:
        """Return whether the user vouches for positions, which LIBERO keeps in one environment."""
        environments = self._question.environments
        if self._question.position_seed is None or environments == 1:
            return self._question.position_seed is not None
        if "libero" in row.task.lower():
            wanted = "LIBERO in one environment (--environments 1), as with several the n-th start "
            wanted += "depends on when earlier episodes ended"
            raise refusal(f"{row.source} {row.line}", wanted, f"{environments or 'no word on it'}")
        return True

    def _value(self, row: Row) -> float:
        bounds = self._question.score_range
        value = row.success if bounds is None else row.score
        if value is None:
            wanted = "an outcome, or --score-range to judge scores" if bounds is None else "a score"
            raise refusal(f"{row.source} {row.line}", wanted, "none")
        if bounds is not None and not bounds[0] <= value <= bounds[1]:
            raise refusal(f"{row.source} {row.line}", f"a score in {[*bounds]}", f"{value}")
        return float(value)

    @property
    def basis(self) -> str:
        """What was judged, how rows were paired and what counts as independent."""
        keys = [key for task in self._headline for key in self._shared[task]]
        seed, pairing = self._question.position_seed, f"{len(keys)} pairs by"
        if not self._paired:
            pairing = "not paired: nothing proves that episodes began alike"
        elif all(position < 0 for _, _, position in keys):
            pairing += " start, as the files state them"
        else:
            pairing += f" position, on your word that all evaluations had seed {seed}"
        sizes = sorted({len(self._scores(name)) for name in self._values})
        clusters = f"{' and '.join(map(str, sizes))} {self._clusters or 'start'}s"
        if sizes == [1]:
            clusters = "none, every episode counts by itself"
        return f"{self._about}{pairing}; clusters: {clusters}"

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Episodes of every arm behind the overall verdict."""
        found: dict[str, dict[str, int]] = {}
        for name, values in self._values.items():
            total = sum(len(values[task]) for task in self._headline)
            kept = sum(len(self._shared[t]) for t in self._headline) if self._paired else total
            lost = sum(self._abandoned[name][task] for task in self._headline)
            counts = {"attempted": total + lost, "abandoned": lost, "judged": kept}
            found[name] = counts | {"unpaired": total - kept}
        return found

    def overall(self) -> tuple[list[Finding], Ranking | None]:
        """Return every candidate against the reference and, if there are several, the ranking."""
        self._require_equal_mixes()
        methods = {name: self._scores(name) for name in self._values}
        ranking = None
        if len(methods) > 2:
            ranking = rank(methods, paired=self._paired, drawn_starts=self._drawn)
        pairs = {} if ranking is None else {frozenset(pair): p for pair, p in ranking.p.items()}
        reference, *candidates = methods
        findings: list[Finding] = []
        for name in candidates:
            p = pairs.get(frozenset((name, reference)))
            found = self._adjusted(methods[name], methods[reference], p, len(pairs))
            if self._clusters != TRAINING_SEED:
                warnings = dict.fromkeys((TRAINING_LUCK, *found.difference.warnings))
                difference = replace(found.difference, warnings=(*warnings,))
                test = found.test.replace("seed", self._clusters or "start")
                found = replace(found, test=test, difference=difference)
            findings.append(Finding(arm=name, task=None, comparison=found))
        return findings, ranking

    def by_task(self) -> list[Finding]:
        """Return every candidate in every task, p by Holm; but for one that is the whole."""
        reference, *candidates = self._values
        tasks = [task for task in self._tasks if [task] != self._headline]
        asked = [(name, task) for name in candidates for task in tasks]
        sides = [(self._scores(n, task), self._scores(reference, task)) for n, task in asked]
        raw = [self._compare(*both).p for both in sides]
        adjusted = holm(np.array([1.0 if p is None else p for p in raw])).tolist()
        return [
            Finding(arm=name, task=task, comparison=self._adjusted(*both, p, len(asked)))
            for (name, task), both, p in zip(asked, sides, adjusted, strict=True)
        ]

    def _adjusted(self, ours: Scores, theirs: Scores, p: float | None, family: int) -> Comparison:
        """Return the comparison judged in a family by Holm; "not worse" by Bonferroni's bound."""
        found = self._compare(ours, theirs)
        if family < 2 or p is None or found.p is None:
            return found
        level, value = 1.0 - _CONFIDENCE, found.difference.value or 0.0
        verdict: Verdict = "better" if value > 0.0 else "worse"
        if p > level + 1e-12:  # Holm's level is exact at equality
            low = self._compare(ours, theirs, confidence=1.0 - level / family).difference.low
            margin = self._question.margin
            shown = margin is not None and low is not None and low > -margin
            verdict = "not worse" if shown else "undecided"
        return replace(found, holm_p=p, verdict=verdict)

    def _scores(self, name: str, task: str | None = None) -> Scores:
        """Return the values by cluster, overall or of a task; pairs are in order for every arm."""
        tasks = self._headline if task is None else [task]
        by_start = self._same_states and not self._clusters and len(tasks) > 1
        by_seed = task is None or self._clusters != EVALUATION_SEED or self._question.score_range
        groups: dict[str, list[float]] = {}
        for each in tasks:
            values = self._values[name][each]
            for key in self._shared[each] if self._paired else values:
                label = key[1] if by_start else key[0] if by_seed else ""
                groups.setdefault(label, []).append(values[key])
        return dict(enumerate(groups[label] for label in sorted(groups)))

    def _require_equal_mixes(self) -> None:
        """Refuse unpaired arms whose tasks weigh differently: their rates would not compare."""
        sizes = {n: [len(side[t]) for t in self._headline] for n, side in self._values.items()}
        shares = {tuple(n / sum(counts) for n in counts) for counts in sizes.values()}
        if len(shares) > 1 and not self._paired:
            raise ConfigurationError(
                "expected the same share of episodes in every task, as they are not paired, got "
                f"{sizes}; compare one task at a time."
            )
