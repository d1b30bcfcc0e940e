"""What the examples of cooperative push share: environments, learning curve and evaluation.

Two robots cover two landmarks; the reward is minus the sum of the landmarks' distances to the
nearest robot. Both robots learn; nobody is frozen. A robot that stands still gets about -66 per
episode; robots that each drive to a landmark of their own get about -15.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from harness import Run
from numpy.typing import NDArray

from cadenza.envs.vector_mpe import VectorMPECooperativePushEnv
from cadenza.learn.algorithms.team_steps import TeamSteps

UIDS = ("ego", "partner")
EPISODE_LENGTH = 50
#: Root seed of the held-out episodes, apart from every training seed.
EVALUATION_ROOT = 1_000_000


def training_envs(count: int, seed: int) -> VectorMPECooperativePushEnv:
    """Return ``count`` copies for training."""
    return VectorMPECooperativePushEnv(count, root_seed=seed, episode_length=EPISODE_LENGTH)


class TeamReport(Protocol):
    """What a learner tells while it learns."""

    @property
    def steps(self) -> int:
        """Environment steps so far."""
        ...

    @property
    def updates(self) -> int:
        """Updates so far."""
        ...

    @property
    def episode_returns(self) -> Sequence[float]:
        """Returns of the episodes that ended since the last report."""
        ...


def progress_of(run: Run, *, every: int = 1) -> Callable[[TeamReport], None]:
    """Return what a learner is to call: the mean return of every ``every``-th update counts."""

    def report(progress: TeamReport) -> None:
        if progress.episode_returns and progress.updates % every == 0:
            run.report(progress.steps, float(np.mean(progress.episode_returns)))

    return report


def evaluate_team(
    policy: Callable[[NDArray[Any]], Sequence[NDArray[Any]]], episodes: int, seed: int
) -> list[float]:
    """Return the return of ``episodes`` held-out episodes of the greedy policy."""
    envs = VectorMPECooperativePushEnv(
        episodes, root_seed=EVALUATION_ROOT + seed, episode_length=EPISODE_LENGTH
    )
    team = TeamSteps(envs, UIDS)
    joint = team.reset(0)
    for _ in range(EPISODE_LENGTH):
        joint = team.step(policy(joint)).states
    return team.take_finished()
