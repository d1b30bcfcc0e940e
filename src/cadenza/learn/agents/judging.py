"""Judging policies: what greedy episodes bring, and how many of them succeed.

Which episodes are played is settled before the first step, so short ones count no more than long
ones, however many are played at once:

    `evaluate_policy`        one environment: episode k begins from the k-th seed
    `evaluate_side_by_side`  N environments: the same episodes, the k-th in environment k mod N
    `evaluate_batch`         a batch that resets itself, seeded once: row r plays the r-th, the
                             (r + N)-th, ... episode; others than above, of the same kind

Success is what ``is_success`` or ``success`` says in the info of an episode's last step.
Axes:  N = environments.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

import gymnasium
import numpy as np
from numpy.typing import NDArray

from cadenza.core.checks import whole_number
from cadenza.core.environments import CheckedEnv, success, successes
from cadenza.core.errors import InputError, refuse
from cadenza.core.extras import load_extra
from cadenza.core.proportions import student_quantile, wilson_interval
from cadenza.core.seeding import derive_substream
from cadenza.learn.env.stepping import VectorStep

#: Root of the episodes that choose the best policy, apart from those that judge it later: the best
#: of many on the same episodes would look better than it is.
SELECTION_SEED: Final = 2_000_000
#: Steps after which an episode without a time limit, given or the task's own, is not waited for.
PATIENCE: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Returns, lengths and successes of greedy episodes, with 95 % intervals.

    Attributes:
        returns: Of every episode.
        lengths: Of every episode, in steps.
        mean: Of the returns.
        low: End of Student's interval for the mean; None if all returns are the same.
        high: Its other end.
        cut: Episodes that ``max_episode_steps`` ended.
        success_rate: Share of episodes that succeeded; None where the task says nothing of it. One
            that says nothing among others that do has not.
        success_low: End of Wilson's interval for the share; None for one episode.
        success_high: Its other end.
    """

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    mean: float
    low: float | None
    high: float | None
    cut: int = 0
    success_rate: float | None = None
    success_low: float | None = None
    success_high: float | None = None

    @classmethod
    def of(
        cls,
        returns: Sequence[float],
        lengths: Sequence[int],
        *,
        cut: int = 0,
        successes: Sequence[float] = (),
    ) -> Self:
        """Return the evaluation of episodes, at least one; ``successes`` are 1, 0 or NaN: unknown.

        Raises:
            InputError: A return is not finite, so that no mean would mean anything.
        """
        values = np.asarray(returns, dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            spread = values.sum() + np.square(values).sum()
        if not np.isfinite(spread):
            do = "correct the rewards of the environment"
            refuse(InputError, "evaluate", expected="finite returns", got=values.tolist(), do=do)
        low = high = None
        if len(values) > 1 and np.ptp(values) > 0.0:
            error = float(values.std(ddof=1)) / math.sqrt(len(values))
            half = student_quantile(0.975, len(values) - 1) * error
            low, high = float(values.mean()) - half, float(values.mean()) + half
        rate, bounds = None, (None, None)
        if not np.isnan(successes).all():
            count = int(np.nansum(successes))
            rate = count / len(values)
            bounds = wilson_interval(count, len(values)) if len(values) > 1 else bounds
        return cls(
            returns=tuple(values.tolist()),
            lengths=tuple(lengths),
            mean=float(values.mean()),
            low=low,
            high=high,
            cut=cut,
            success_rate=rate,
            success_low=bounds[0],
            success_high=bounds[1],
        )

    def __str__(self) -> str:
        """Return mean and success with their intervals, and how many episodes were cut, if any."""
        count = len(self.returns)
        reason = "one episode" if count == 1 else f"{count} equal returns"
        told = f"{self.mean:.1f} (no interval: {reason})"
        if self.low is not None and self.high is not None:
            told = f"{self.mean:.1f} [{self.low:.1f}, {self.high:.1f}]"
        if self.success_rate is not None:
            told += f"; success {100.0 * self.success_rate:.0f} %"
        if self.success_low is not None and self.success_high is not None:
            told += f" [{100.0 * self.success_low:.0f}, {100.0 * self.success_high:.0f}]"
        return told + (f"; {self.cut} of {count} episodes cut" if self.cut else "")


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
    return evaluate_side_by_side(
        lambda seen, _: [policy(seen[0])],
        [env],
        episodes,
        seed=seed,
        max_episode_steps=max_episode_steps,
    )


def evaluate_side_by_side(
    act: Callable[[list[Any], list[int]], Iterable[Any]],
    envs: Sequence[gymnasium.Env[Any, Any]],
    episodes: int,
    *,
    seed: int = 0,
    max_episode_steps: int | None = None,
) -> Evaluation:
    """Play the episodes of `evaluate_policy`, some at once; ``act`` decides for a list of them.

    It is also told the number of the episode of each.

    Raises:
        InputError: As `evaluate_policy`.
        MissingExtraError: As `evaluate_policy`.
    """
    tally = _Tally(episodes, envs[0], max_episode_steps)

    def begin(episode: int, env: CheckedEnv) -> None:
        stream = derive_substream(f"learn.evaluation.episode.{episode}", root_seed=seed)
        running[episode] = env, env.reset(seed=stream.integer_seed())[0]

    running: dict[int, tuple[CheckedEnv, Any]] = {}
    for episode, env in enumerate(envs[:episodes]):
        begin(episode, CheckedEnv(env))
    while running:
        actions = act([observation for _, observation in running.values()], list(running))
        for (episode, (env, _)), action in zip(list(running.items()), actions, strict=True):
            observation, reward, terminated, truncated, info = env.step(action)
            running[episode] = env, observation
            if tally.add(episode, reward, over=terminated or truncated):
                tally.successes[episode] = success(info)
                del running[episode]
                if episode + len(envs) < episodes:
                    begin(episode + len(envs), env)
    return tally.evaluation()


class Batch(Protocol):
    """Environments that are stepped together and reset themselves."""

    envs: Any

    def reset(self, seed: int) -> NDArray[Any]:
        """Begin every episode; return observations, (N, ...)."""
        ...

    def step(self, actions: Any) -> VectorStep:
        """Advance every environment."""
        ...


def evaluate_batch(
    act: Callable[[NDArray[Any], list[int]], Any],
    batch: Batch,
    episodes: int,
    *,
    seed: int,
    max_episode_steps: int | None = None,
) -> Evaluation:
    """Play episodes in a batch; ``act`` decides for all of its observations, (N, ...).

    It is also told a number for each row, another one where an episode begins.

    Raises:
        InputError: As `evaluate_policy`, or an episode is to be cut in a row that plays others
            after it, because no row can be reset alone.
        MissingExtraError: As `evaluate_policy`.
    """
    tally = _Tally(episodes, batch.envs, max_episode_steps)
    observations = batch.reset(seed)
    number = np.arange(len(observations))  # of the episode that each row plays
    life = number.copy()
    while (number < episodes).any():
        step = batch.step(act(observations, life.tolist()))
        life[step.boundaries | ~step.valid] += len(life)
        observations = step.observations
        told = successes(step.info, np.ones(len(number), np.bool_))
        for row in np.flatnonzero((number < episodes) & step.valid):
            episode, over = int(number[row]), bool(step.boundaries[row])
            if tally.add(episode, float(step.rewards[row]), over=over):
                tally.successes[episode] = told[row]
                number[row] += len(number)
                if not over and number[row] < episodes:
                    raise InputError(
                        "evaluate: expected a batch whose episodes end by themselves, got one of "
                        f"{tally.lengths[episode]} steps in a row that plays another one after it; "
                        "give the environments a time limit, or play one episode in each."
                    )
    return tally.evaluation()


class _Tally:
    """What episodes brought so far, and when one that goes on and on is cut."""

    def __init__(self, episodes: int, env: Any, max_episode_steps: int | None) -> None:
        episodes = whole_number("evaluate.episodes", episodes, least=1)
        if episodes > 1:
            load_extra("scipy.special")  # for the intervals: missed now, not after the episodes
        self._asked, self._limit = max_episode_steps, math.inf
        specs = [getattr(each, "spec", None) for each in (env, *getattr(env, "envs", ())[:1])]
        if max_episode_steps is not None:
            self._limit = whole_number("evaluate.max_episode_steps", max_episode_steps, least=1)
        elif all(getattr(spec, "max_episode_steps", None) is None for spec in specs):
            self._limit = PATIENCE
        self._returns, self.lengths, self._cut = [0.0] * episodes, [0] * episodes, 0
        self.successes = [math.nan] * episodes

    def add(self, episode: int, reward: float, *, over: bool) -> bool:
        """Count a step of an episode; return whether it was the last, by itself or cut."""
        self._returns[episode] += float(reward)
        self.lengths[episode] += 1
        if over or self.lengths[episode] < self._limit:
            return over
        if self._asked is None:
            raise InputError(
                "evaluate: expected max_episode_steps=..., because the environment has no time "
                f"limit and an episode did not end within {PATIENCE} steps; write "
                "evaluate(max_episode_steps=1_000), or learn(..., max_episode_steps=1_000) with a "
                "folder."
            )
        self._cut += 1
        return True

    def evaluation(self) -> Evaluation:
        """Return what all episodes brought."""
        told = self.successes
        return Evaluation.of(self._returns, self.lengths, cut=self._cut, successes=told)
