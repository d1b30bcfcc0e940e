"""Which partner an episode is played beside: samplers of training partners.

Score of an episode: its success, 0 or 1, where the task tells it, else its return. J_k is the mean
of the last `WINDOW` scores beside partner k. K = partners.

uniform       p_k = 1 / K
rank          p_k ∝ rank_k^β, where the partner of the lowest J has rank K, that of the highest 1;
              rank(1 / J) of MEP (arXiv:2112.11701, section 4.2), but defined for J <= 0, too
maximin       the partner of the lowest J alone
learnability  p_k ∝ variance of the last scores; of successes that is p (1 - p)
              (arXiv:2408.15099, section 5)

The last two are mixed with a share of uniform draws, so that no score grows stale. A partner
without a score, or with too few for a variance, is taken for one as hard, or as worth learning, as
any.

Random:  a draw takes one number of the generator that the caller opened for the episode. Scores are
         state: equal scores, reported in equal order, give equal draws.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any, Final, get_args

import numpy as np
from pydantic import ValidationError

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import CheckpointError, ConfigurationError, refuse
from cadenza.learn.settings import SamplerConfig, SamplerKind

#: Last scores beside each partner that count.
WINDOW: Final = 32
#: Share of the draws of maximin and learnability that are uniform.
UNIFORM_SHARE: Final = 0.1


def rank_probabilities(means: FloatArray, beta: float) -> FloatArray:
    """Return p_k ∝ rank_k^beta, (K,): the lowest of ``means``, (K,), has the rank K.

    Equal means share the mean of their ranks; NaN, of partners without a score, ranks highest.
    """
    hardness = -np.where(np.isnan(means), -np.inf, means)
    below = (hardness[None, :] < hardness[:, None]).sum(axis=1)
    equal = (hardness[None, :] == hardness[:, None]).sum(axis=1)
    weights = (below + (equal + 1) / 2.0) ** beta
    return weights / weights.sum()


def maximin_probabilities(means: FloatArray) -> FloatArray:
    """Return equal shares, (K,), of the partners without a score, or of those of the lowest."""
    told = np.where(np.isnan(means), -np.inf, means)
    chosen = told == told.min()
    return chosen / chosen.sum()


def learnability_probabilities(variances: FloatArray) -> FloatArray:
    """Return p_k ∝ variance, (K,); NaN, of partners with too few scores, counts as the largest.

    Where nothing varies, all are equally likely.
    """
    largest = np.nanmax(variances, initial=0.0)
    weights = np.where(np.isnan(variances), largest if largest > 0.0 else 1.0, variances)
    total = weights.sum()
    return weights / total if total > 0.0 else np.full(len(weights), 1.0 / len(weights))


class PartnerSampler:
    """Draws one of ``count`` partners per episode, and learns from the episodes' scores.

    The last ``window`` scores count, ``least`` of them are a variance, and ``uniform_share`` of the
    draws of maximin and learnability are uniform.
    """

    def __init__(
        self,
        count: int,
        config: SamplerConfig | None = None,
        *,
        window: int = WINDOW,
        least: int = 2,
        uniform_share: float = UNIFORM_SHARE,
    ) -> None:
        self.count: int = count
        self.config: SamplerConfig = SamplerConfig() if config is None else config
        self._least, self._share = least, uniform_share
        self._scores: list[deque[float]] = [deque(maxlen=window) for _ in range(count)]
        self._means: FloatArray = np.full(count, np.nan)
        self._variances: FloatArray = np.full(count, np.nan)

    @property
    def probabilities(self) -> FloatArray:
        """Chance of every partner in the next draw, (K,)."""
        kind, uniform = self.config.kind, np.full(self.count, 1.0 / self.count)
        if kind == "uniform":
            return uniform
        if kind == "rank":
            return rank_probabilities(self._means, self.config.beta)
        if kind == "learnability":
            chosen = learnability_probabilities(self._variances)
        else:
            chosen = maximin_probabilities(self._means)
        return (1.0 - self._share) * chosen + self._share * uniform

    def draw(self, rng: np.random.Generator) -> int:
        """Return the number of the partner that an episode is played beside."""
        if self.config.kind == "uniform":
            return int(rng.integers(self.count))
        ladder: FloatArray = np.cumsum(self.probabilities)
        return min(int((ladder <= rng.random() * ladder[-1]).sum()), self.count - 1)

    def report(self, partner: int, score: float) -> None:
        """Take in the score of an episode beside ``partner``."""
        self._scores[partner].append(score)
        self._count(partner)

    def state_dict(self) -> dict[str, Any]:
        """Return the last scores beside every partner, oldest first, as plain values."""
        return {"scores": [list(scores) for scores in self._scores]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned.

        Raises:
            CheckpointError: It is of another number of partners.
        """
        told = state["scores"]
        if len(told) != self.count:
            expected, got = f"scores of {self.count} partners", str(len(told))
            do = "load it beside the partners that it was saved with"
            refuse(CheckpointError, "PartnerSampler", expected=expected, got=got, do=do)
        for partner, scores in enumerate(told):
            self._scores[partner].clear()
            self._scores[partner].extend(map(float, scores))
            self._count(partner)

    def _count(self, partner: int) -> None:
        scores = np.array(self._scores[partner])
        self._means[partner] = scores.mean() if len(scores) else np.nan
        self._variances[partner] = scores.var() if len(scores) >= self._least else np.nan


def sampler_config(given: str | Mapping[str, Any] | SamplerConfig | None) -> SamplerConfig:
    """Return the settings that a name or a mapping stands for; None draws uniformly.

    Raises:
        ConfigurationError: The name is no kind, or a setting is unknown or out of range.
    """
    try:
        return SamplerConfig() if given is None else SamplerConfig.model_validate(given)
    except ValidationError as error:
        expected = f"one of {', '.join(get_args(SamplerKind))}, or settings of one"
        got = f"{given!r} ({error.errors()[0]['msg']})"
        refuse(ConfigurationError, "sampler", expected=expected, got=got)
