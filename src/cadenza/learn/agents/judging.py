"""Judging an agent: the returns of episodes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import gymnasium
import numpy as np

from cadenza.core.checks import whole_number
from cadenza.core.environments import CheckedEnv
from cadenza.core.errors import InputError
from cadenza.core.extras import load_extra
from cadenza.core.proportions import student_quantile
from cadenza.core.seeding import derive_substream

#: Root of the episodes that choose the best policy, apart from those that judge it later: the best
#: of many on the same episodes would look better than it is.
SELECTION_SEED: Final = 2_000_000
#: Steps after which an episode without a time limit, given or the task's own, is not waited for.
PATIENCE: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Returns and lengths of greedy episodes, and Student's 95 % interval for the mean return.

    Without an interval, if all returns are the same or there is one, its ends are None. ``cut`` is
    how many episodes ``max_episode_steps`` of `evaluate_policy` ended.
    """

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    mean: float
    low: float | None
    high: float | None
    cut: int = 0

    @classmethod
    def of(cls, returns: Sequence[float], lengths: Sequence[int], *, cut: int = 0) -> Self:
        """Return the evaluation of episodes, at least one.

        Raises:
            InputError: A return is not finite, so that no mean would mean anything.
        """
        values = np.asarray(returns, dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            spread = values.sum() + np.square(values).sum()
        if not np.isfinite(spread):
            raise InputError(
                f"evaluate: expected finite returns, got {values.tolist()}; correct the rewards of "
                "the environment."
            )
        low = high = None
        if len(values) > 1 and np.ptp(values) > 0.0:
            error = float(values.std(ddof=1)) / math.sqrt(len(values))
            half = student_quantile(0.975, len(values) - 1) * error
            low, high = float(values.mean()) - half, float(values.mean()) + half
        return cls(
            returns=tuple(values.tolist()),
            lengths=tuple(lengths),
            mean=float(values.mean()),
            low=low,
            high=high,
            cut=cut,
        )

    def __str__(self) -> str:
        """Return the mean with its interval, and how many episodes were cut, if any."""
        cut = f"; {self.cut} of {len(self.returns)} episodes cut" if self.cut else ""
        if self.low is None or self.high is None:
            count = len(self.returns)
            reason = "one episode" if count == 1 else f"{count} equal returns"
            return f"{self.mean:.1f} (no interval: {reason}){cut}"
        return f"{self.mean:.1f} [{self.low:.1f}, {self.high:.1f}]{cut}"


def evaluate_policy(
    policy: Callable[[Any], Any],
    env: gymnasium.Env[Any, Any],
    episodes: int,
    *,
    seed: int = 0,
    max_episode_steps: int | None = None,
) -> Evaluation:
    """Play episodes of ``env`` and return what they bring; equal ``seed`` gives equal episodes.

    Episodes longer than ``max_episode_steps`` are cut there.

    Raises:
        InputError: ``episodes`` or ``max_episode_steps`` is below 1, a return is not finite, or an
            episode goes on and on without ``max_episode_steps``.
        MissingExtraError: Several episodes have an interval, and SciPy is not installed.
    """
    episodes = whole_number("evaluate.episodes", episodes, least=1)
    if episodes > 1:
        load_extra("scipy.special")  # for the interval: missed now, not after the episodes
    limit, env = episode_limit(env, max_episode_steps), CheckedEnv(env)
    returns, lengths, cut = [0.0] * episodes, [0] * episodes, 0
    for episode in range(episodes):
        stream = derive_substream(f"learn.evaluation.episode.{episode}", root_seed=seed)
        observation, _ = env.reset(seed=stream.integer_seed())
        done = False
        while not done:
            observation, reward, terminated, truncated, _ = env.step(policy(observation))
            returns[episode] += float(reward)
            lengths[episode] += 1
            done = bool(terminated or truncated)
            if not done and lengths[episode] >= limit:
                require_limit(max_episode_steps)
                done, cut = True, cut + 1
    return Evaluation.of(returns, lengths, cut=cut)


def episode_limit(env: Any, max_episode_steps: int | None) -> float:
    """Return the steps after which an episode is not played on; infinity where the task ends it.

    Raises:
        InputError: ``max_episode_steps`` is no whole number >= 1.
    """
    if max_episode_steps is not None:
        return whole_number("evaluate.max_episode_steps", max_episode_steps, least=1)
    limit = getattr(getattr(env, "spec", None), "max_episode_steps", None)
    return PATIENCE if limit is None else math.inf


def require_limit(max_episode_steps: int | None) -> None:
    """Refuse an episode that reached its `episode_limit` where nobody set one.

    Raises:
        InputError: ``max_episode_steps`` is None.
    """
    if max_episode_steps is None:
        raise InputError(
            "evaluate: expected max_episode_steps=..., because the environment has no time limit "
            f"and an episode did not end within {PATIENCE} steps; write "
            "evaluate(max_episode_steps=1_000), or learn(..., max_episode_steps=1_000) with a "
            "folder."
        )
