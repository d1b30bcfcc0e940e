"""Judging an agent: the returns of episodes, and keeping the best of a training."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, Self

import gymnasium
import numpy as np

from cadenza.core.checks import whole_number
from cadenza.core.proportions import student_quantile
from cadenza.core.seeding import derive_substream
from cadenza.learn.callback import ORDER_CHECKPOINT, Callback
from cadenza.learn.trainer import TrainingShutdownException

#: Root of the episodes that choose the best policy, apart from those that judge it later: the best
#: of many on the same episodes would look better than it is.
SELECTION_SEED: Final = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Returns and lengths of greedy episodes, and Student's 95 % interval for the mean return.

    Without an interval, if all returns are the same or there is one, its ends are None.
    """

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    mean: float
    low: float | None
    high: float | None

    @classmethod
    def of(cls, returns: Sequence[float], lengths: Sequence[int]) -> Self:
        """Return the evaluation of episodes, at least one."""
        values = np.asarray(returns, dtype=np.float64)
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
        )

    def __str__(self) -> str:
        """Return the mean with its interval."""
        if self.low is None or self.high is None:
            count = len(self.returns)
            reason = "one episode" if count == 1 else f"{count} equal returns"
            return f"{self.mean:.1f} (no interval: {reason})"
        return f"{self.mean:.1f} [{self.low:.1f}, {self.high:.1f}]"


def evaluate_policy(
    policy: Callable[[Any], Any], env: gymnasium.Env[Any, Any], episodes: int, *, seed: int = 0
) -> Evaluation:
    """Play episodes of ``env`` and return what they bring; equal ``seed`` gives equal episodes.

    Raises:
        InputError: ``episodes`` is below 1.
    """
    episodes = whole_number("evaluate.episodes", episodes, least=1)
    returns, lengths = [0.0] * episodes, [0] * episodes
    for episode in range(episodes):
        stream = derive_substream(f"learn.evaluation.episode.{episode}", root_seed=seed)
        observation, _ = env.reset(seed=stream.integer_seed())
        done = False
        while not done:
            observation, reward, terminated, truncated, _ = env.step(policy(observation))
            returns[episode] += float(reward)
            lengths[episode] += 1
            done = bool(terminated or truncated)
    return Evaluation.of(returns, lengths)


class Judged(Protocol):
    """What `BestPolicy` needs of an agent."""

    steps: int
    best_return: float | None

    def evaluate(self, episodes: int, *, seed: int) -> Evaluation:
        """Play greedy episodes."""
        ...

    def save(self, path: Path, *, memory: bool = True) -> Path:
        """Write everything the future depends on, or all but the memory."""
        ...

    def log_scalar(self, key: str, value: float) -> None:
        """Keep a number for loggers."""
        ...


class BestPolicy(Callback):
    """Saves an agent every ``every`` environment steps as ``last``, and as ``best`` what did best.

    Best is judged on ``episodes`` episodes of `SELECTION_SEED` and saved without its replay memory.
    """

    def __init__(self, agent: Judged, folder: str | Path, *, every: int, episodes: int) -> None:
        super().__init__()
        for key, value in (("evaluate_every", every), ("evaluation_episodes", episodes)):
            whole_number(f"learn.{key}", value, least=1)
        self._order = ORDER_CHECKPOINT
        self._agent, self._folder = agent, Path(folder)
        self._every, self._episodes = every, episodes
        self._judged_at = agent.steps

    def end_batch(self) -> None:
        """Judge and save the agent if its turn has come."""
        if self._agent.steps // self._every > self._judged_at // self._every:
            self._judge()

    def end_training(self, exception: BaseException | None = None) -> None:
        """Judge and save what there is at the end; after an error or Ctrl-C only save it."""
        is_orderly = exception is None or isinstance(exception, TrainingShutdownException)
        if is_orderly and (self._agent.best_return is None or self._agent.steps > self._judged_at):
            self._judge()
        else:
            self._agent.save(self._folder / "last")

    def _judge(self) -> None:
        agent = self._agent
        self._judged_at = agent.steps
        mean = agent.evaluate(self._episodes, seed=SELECTION_SEED).mean
        agent.log_scalar("evaluation/mean_return", mean)
        if agent.best_return is None or mean > agent.best_return:
            agent.best_return = mean
            agent.save(self._folder / "best", memory=False)
        agent.save(self._folder / "last")
