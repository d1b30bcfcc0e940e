"""Which of many candidates make a population: by skill, by entropy, by best responses.

fcp      skills cover the range from the worst to the best evenly.
jsd, pe  greedy on D(Z) of the chosen set Z, averaged over probe states s, with π̄ the mean density:
             pe   H(π̄) = mean_i E_{a~π_i}[ −log π̄(a|s) ]              population entropy
             jsd  H(π̄) − mean_i H(π_i) = mean_i KL(π_i ‖ π̄)           how much its members differ
br_div   det of k(x, y) = exp(−|x − y|² / 2E) over behavior features x of best responses, (E,),
         standardized over the candidates; the best subset of all for up to 12 candidates, greedy
         beyond (for k chosen the greedy volume is at least 1/k! of the best one).
Source:  fcp arXiv:2110.08176; jsd, pe arXiv:2112.11701; det arXiv:2310.05208; greedy volume:
         Çivril and Magdon-Ismail, Theoretical Computer Science 410 (2009), 4801-4811.
Densities:  actions a_ik ~ π_i(·|s) are drawn once with common random numbers, and log π_j(a_ik|s)
         is kept, so that the score of a subset is a log-mean-exp; choices are summed over instead.
         Deterministic policies are convolved with a Normal of deviation σ_k of half the action
         range. Actions are in units of half the range.
Axes:    n = candidates, K = draws or choices, M = probe states, A = action, C = choices.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray, require_finite
from cadenza.core.errors import InputError
from cadenza.core.files import sha256_bytes
from cadenza.core.seeding import derive_substream
from cadenza.partners.zoo_manifest import Tier

Criterion: TypeAlias = Literal["fcp", "jsd", "pe", "br_div"]

#: Candidates up to which `br_div` looks at every subset.
EXACT_CANDIDATES: Final = 12
#: Draws per candidate and probe state.
DRAWS: Final = 8
#: Resamples of the probe states behind a bootstrap bound.
RESAMPLES: Final = 1_000
_HALF_LOG_2PI: Final = 0.5 * math.log(2.0 * math.pi)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ZooCandidate:
    """One partner that may be chosen.

    Attributes:
        name: Its name.
        tier: Where in its training it was taken.
        skill: Mean score beside its counterpart; None if it has none.
        skill_low: Lower bound of its skill's interval, held against the floor.
        group: What a quota counts: the run it comes from.
        actions: On the probe states, means (M, A) in units of half the action range, or logits
            (M, C) of choices; needed by ``jsd`` and ``pe``.
        deviation: Deviations (A,) of the actions, in the same units; None for choices and for
            deterministic policies.
        chooses: Whether ``actions`` are logits.
        features: Behavior of its best response, (E,); needed by ``br_div``.
    """

    name: str
    tier: Tier = "final"
    skill: float | None = None
    skill_low: float | None = None
    group: str = ""
    actions: NDArray[Any] | None = None
    deviation: NDArray[Any] | None = None
    chooses: bool = False
    features: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        """Raise `InputError` if a number is NaN or infinite: every choice is by size."""
        for name in ("skill", "skill_low", "actions", "deviation", "features"):
            value: float | NDArray[Any] | None = getattr(self, name)
            if value is not None:
                require_finite(f"ZooCandidate {self.name!r}, {name}", np.asarray(value, np.float64))


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooSelection:
    """What was chosen, and why.

    Attributes:
        names: In the order of choice.
        criterion: What was maximised.
        trace: D, or the determinant, after each choice; empty for ``fcp``.
        stopped: Why fewer than ``size`` were chosen; None otherwise.
        below_floor: Candidates whose skill is too low.
        exact: Whether every subset was looked at.
        probe_sha256: Digest of the candidates' actions on the probe states; None without.
        versus_fcp: D of the choice minus D of an ``fcp`` choice of the same size, with the ends of
            its 95 % interval over probe states; None where D is not defined.
    """

    names: tuple[str, ...]
    criterion: Criterion
    trace: tuple[float, ...] = ()
    stopped: str | None = None
    below_floor: tuple[str, ...] = ()
    exact: bool = False
    probe_sha256: str | None = None
    versus_fcp: tuple[float, float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Densities:
    """Log-densities of every candidate at every candidate's actions.

    Attributes:
        log: log π_j(a_ik|s_m), (n, n, K, M) over i, j, k, m.
        weights: What action k of candidate i counts in state m, (n, K, M); sums to 1 over k.
    """

    log: FloatArray
    weights: FloatArray

    def diversity(self, chosen: Sequence[int], criterion: Literal["jsd", "pe"]) -> FloatArray:
        """Return D of the candidates ``chosen`` in every probe state, (M,), nats."""
        members = list(chosen)
        of_members = self.log[np.ix_(members, members)]
        top = of_members.max(axis=1)
        mixture = top + np.log(np.exp(of_members - top[:, None]).mean(axis=1))  # (n, K, M)
        surprise = -mixture
        if criterion == "jsd":
            surprise = surprise + self.log[members, members]
        return (self.weights[members] * surprise).sum(axis=1).mean(axis=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limits:
    """How many may be chosen: in all, and of a tier or group."""

    size: int
    most: Mapping[str, int] = field(default_factory=dict[str, int])

    def allow(self, pool: Sequence[ZooCandidate], chosen: Sequence[int], index: int) -> bool:
        """Return whether ``index`` may join ``chosen``."""
        for label in {pool[index].tier, pool[index].group} & set(self.most):
            taken = sum(label in (pool[k].tier, pool[k].group) for k in chosen)
            if taken >= self.most[label]:
                return False
        return True


def select_zoo(
    candidates: Sequence[ZooCandidate],
    *,
    size: int,
    criterion: Criterion = "jsd",
    stratum_quota: Mapping[str, int] | None = None,
    floor: float | None = None,
    alpha_quality: float = 0.0,
    sigma_kernel: float = 0.1,
    root_seed: int = 0,
) -> ZooSelection:
    """Choose ``size`` candidates.

    Args:
        candidates: Partners with one kind of action, distinct names.
        size: How many, at most; ``jsd`` and ``pe`` stop where another one adds nothing for sure.
        criterion: What is maximised; see the head of this module.
        stratum_quota: Most candidates of a tier or group, by its name.
        floor: Least ``skill_low`` of candidates that are not of the tier ``init``.
        alpha_quality: Weight of a candidate's standardized skill beside its gain in D.
        sigma_kernel: Deviation given to deterministic policies.
        root_seed: Root of the draws.

    Returns:
        The choice; equal arguments give equal choices, ties go to the first name.

    Raises:
        InputError: Names repeat, ``size`` is not in [1, n], a number is NaN or infinite, or a
            candidate lacks what ``criterion`` reads.
    """
    require_finite(
        "select_zoo: floor and alpha_quality",
        np.array([0.0 if floor is None else floor, alpha_quality]),
    )
    pool = sorted(candidates, key=lambda candidate: candidate.name)
    names = [candidate.name for candidate in pool]
    if len(set(names)) != len(names) or not 1 <= size <= len(names):
        raise InputError(
            f"select_zoo: expected distinct candidates and 1 <= size <= {len(names)}, got size = "
            f"{size} of {names}."
        )
    low = [] if floor is None else [c.name for c in pool if _below(c, floor)]
    pool = [candidate for candidate in pool if candidate.name not in low]
    if not pool:
        raise InputError(f"select_zoo: expected a candidate with a skill of {floor}, got none.")
    limits = _Limits(size=min(size, len(pool)), most=stratum_quota or {})
    if criterion == "fcp":
        names = tuple(pool[k].name for k in _spread_of_skill(pool, limits))
        return ZooSelection(names=names, criterion="fcp", below_floor=tuple(low))
    if criterion == "br_div":
        if stratum_quota:
            raise InputError("select_zoo: expected no quota with 'br_div', got one; leave it out.")
        return _by_determinant(pool, size, tuple(low))
    densities = log_densities(pool, sigma_kernel=sigma_kernel, root_seed=root_seed)
    chosen, trace, stopped = _greedy_diversity(
        pool, densities, limits, criterion, alpha_quality, root_seed
    )
    versus = None
    if all(candidate.skill is not None for candidate in pool):
        rival = _spread_of_skill(pool, _Limits(size=len(chosen)))
        gain = densities.diversity(chosen, criterion) - densities.diversity(rival, criterion)
        versus = (float(gain.mean()), *bootstrap_interval(gain, root_seed))
    return ZooSelection(
        names=tuple(pool[k].name for k in chosen),
        criterion=criterion,
        trace=tuple(trace),
        stopped=stopped,
        below_floor=tuple(low),
        probe_sha256=sha256_bytes(b"".join(np.asarray(c.actions).tobytes() for c in pool)),
        versus_fcp=versus,
    )


def log_densities(
    candidates: Sequence[ZooCandidate], *, sigma_kernel: float = 0.1, root_seed: int = 0
) -> Densities:
    """Return every candidate's log-density at every candidate's actions."""
    actions = [np.asarray(c.actions, np.float64) for c in candidates if c.actions is not None]
    kinds = {f"{array.shape}" for array in actions} | {f"{c.chooses}" for c in candidates}
    if len(kinds) != 2 or len(actions) != len(candidates):
        raise InputError(
            "select_zoo: expected actions of one kind on the same probe states for every "
            f"candidate, got {sorted(kinds)}; choose within one action space."
        )
    table = np.stack(actions)  # (n, M, A) or (n, M, C)
    require_finite("select_zoo: actions on the probe states", table)
    count, _, width = table.shape
    if candidates[0].chooses:
        top = table.max(axis=-1, keepdims=True)
        logs = table - top - np.log(np.exp(table - top).sum(axis=-1, keepdims=True))
        each = logs.transpose(0, 2, 1)  # (n, C, M)
        return Densities(log=np.broadcast_to(each, (count, *each.shape)), weights=np.exp(each))
    deviation = np.stack(
        [
            np.full(width, sigma_kernel) if c.deviation is None else np.asarray(c.deviation)
            for c in candidates
        ]
    ).astype(np.float64)
    rng = derive_substream("zoo.selection.draws", root_seed=root_seed).default_rng()
    noise = rng.standard_normal((DRAWS, *table.shape[1:]))  # common to all candidates
    drawn = table[:, None] + deviation[:, None, None] * noise  # (n, K, M, A)
    log = np.empty((count, count, *drawn.shape[1:3]))
    for j in range(count):
        z = (drawn - table[j]) / deviation[j]
        log[:, j] = (-0.5 * z**2 - np.log(deviation[j]) - _HALF_LOG_2PI).sum(axis=-1)
    return Densities(log=log, weights=np.full((count, *drawn.shape[1:3]), 1.0 / DRAWS))


def _spread_of_skill(pool: Sequence[ZooCandidate], limits: _Limits) -> list[int]:
    """Return the candidates whose skills are nearest to even levels, from best to worst."""
    skills = np.array([_skill(candidate) for candidate in pool])
    best, worst = float(skills.max()), float(skills.min())
    chosen: list[int] = []
    for k in range(limits.size):
        level = best + (worst - best) * k / max(1, limits.size - 1)
        free = [k for k in range(len(pool)) if k not in chosen and limits.allow(pool, chosen, k)]
        if free:
            chosen.append(min(free, key=lambda k: (abs(skills[k] - level), k)))
    return chosen


def similarity(features: FloatArray) -> FloatArray:
    """Return k(x, y) between the rows of ``features``, (n, E), standardized here, (n, n)."""
    spread = features.std(axis=0)
    scaled = (features - features.mean(axis=0)) / np.where(spread > 0.0, spread, 1.0)
    squared = ((scaled[:, None] - scaled[None]) ** 2).sum(axis=-1)
    return np.exp(-squared / (2.0 * features.shape[1]))


def best_subset(kernel: FloatArray, size: int) -> tuple[int, ...]:
    """Return the ``size`` indices with the largest determinant, of all subsets; first of ties."""
    subsets = list(combinations(range(len(kernel)), size))
    blocks = np.stack([kernel[np.ix_(subset, subset)] for subset in subsets])
    return subsets[int(np.argmax(np.linalg.det(blocks)))]


def greedy_subset(kernel: FloatArray, size: int) -> tuple[int, ...]:
    """Return ``size`` indices, each the one that then makes the determinant largest.

    Conditional variances are kept up to date by one column of a Cholesky factor per choice.
    """
    left = np.diag(kernel).astype(np.float64).copy()
    factor = np.zeros((len(kernel), size))
    chosen: list[int] = []
    for column in range(size):
        left[chosen] = -np.inf
        pick = int(np.argmax(left))
        rest = kernel[pick] - factor[:, :column] @ factor[pick, :column]
        factor[:, column] = rest / math.sqrt(max(left[pick], 1e-300))
        left = left - factor[:, column] ** 2
        chosen.append(pick)
    return tuple(chosen)


def bootstrap_interval(values: FloatArray, root_seed: int) -> tuple[float, float]:
    """Return the 95 % percentile interval of the mean of ``values``, (M,), over resamples."""
    rng = derive_substream("zoo.selection.bootstrap", root_seed=root_seed).default_rng()
    means = values[rng.integers(len(values), size=(RESAMPLES, len(values)))].mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


def _below(candidate: ZooCandidate, floor: float) -> bool:
    return candidate.tier != "init" and (candidate.skill_low is None or candidate.skill_low < floor)


def _skill(candidate: ZooCandidate) -> float:
    if candidate.skill is None:
        raise InputError(
            f"select_zoo: expected a skill of {candidate.name!r}, got none; scripted partners can "
            "be chosen by 'jsd' and 'pe' only."
        )
    return candidate.skill


def _by_determinant(pool: Sequence[ZooCandidate], size: int, low: tuple[str, ...]) -> ZooSelection:
    """Choose by best-response diversity."""
    for candidate in pool:
        if candidate.features is None or not len(candidate.features):
            raise InputError(
                f"select_zoo: expected behavior features of {candidate.name!r}, got none; "
                "choose by another criterion."
            )
    size = min(size, len(pool))
    kernel = similarity(np.stack([np.asarray(c.features, np.float64) for c in pool]))
    exact = len(pool) <= EXACT_CANDIDATES
    chosen = best_subset(kernel, size) if exact else greedy_subset(kernel, size)
    firsts = [list(chosen[:k]) for k in range(1, size + 1)]
    return ZooSelection(
        names=tuple(pool[k].name for k in chosen),
        criterion="br_div",
        trace=tuple(float(np.linalg.det(kernel[np.ix_(part, part)])) for part in firsts),
        below_floor=low,
        exact=exact,
    )


def _greedy_diversity(
    pool: Sequence[ZooCandidate],
    densities: Densities,
    limits: _Limits,
    criterion: Literal["jsd", "pe"],
    alpha_quality: float,
    root_seed: int,
) -> tuple[list[int], list[float], str | None]:
    """Return the choice, D after each, and why it stopped early."""
    worth = _standardized([candidate.skill for candidate in pool])
    begin = max(range(len(pool)), key=lambda k: (pool[k].tier == "final", worth[k], -k))
    chosen, scores = [begin], densities.diversity([begin], criterion)
    trace = [float(scores.mean())]
    while len(chosen) < limits.size:
        gains = {
            k: densities.diversity([*chosen, k], criterion) - scores
            for k in range(len(pool))
            if k not in chosen and limits.allow(pool, chosen, k)
        }
        if not gains:
            return chosen, trace, "no candidate is left within the quotas"
        pick = max(gains, key=lambda k: (gains[k].mean() + alpha_quality * worth[k], -k))
        if bootstrap_interval(gains[pick], root_seed)[0] <= 0.0:
            return chosen, trace, f"{pool[pick].name} would add nothing for sure"
        chosen.append(pick)
        scores = scores + gains[pick]
        trace.append(float(scores.mean()))
    return chosen, trace, None


def _standardized(skills: Sequence[float | None]) -> FloatArray:
    """Return skills less their mean, over their deviation; 0 for those without, (n,)."""
    known = np.array([skill for skill in skills if skill is not None])
    spread = float(known.std()) if known.size else 0.0
    if spread == 0.0:
        return np.zeros(len(skills))
    mean = float(known.mean())
    return np.array([0.0 if skill is None else (skill - mean) / spread for skill in skills])
