"""HATD3 over a batched environment, with a replay memory of its own.

Every environment is an agent of the memory; its episodes become transitions once they end. Learning
begins after ``warmup_steps`` environment steps with uniform actions.

Source:  arXiv:2304.09870, section 5.2; see `hatd3` for the update.
Axes:    N = environments, S = joint state, A = joint action.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cadenza.core.checks import require_step_count
from cadenza.learn.algorithms.hatd3 import HATD3Learner, TeamBatch
from cadenza.learn.algorithms.team_learner import TeamLearner
from cadenza.learn.algorithms.team_steps import TeamSteps
from cadenza.learn.configs import HATD3Config, config_of
from cadenza.learn.loaded_state import complete_state, require_version
from cadenza.learn.memory.transitions import TransitionMemory

#: Layout version of `HATD3.state_dict`.
STATE_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HATD3Report:
    """What happened since the last report.

    Attributes:
        steps: Environment steps so far.
        updates: Updates so far.
        figures: Losses of the last update; empty before the first.
        episode_returns: Returns of the episodes that ended since the last report.
    """

    steps: int
    updates: int
    figures: dict[str, float]
    episode_returns: list[float]


class HATD3(TeamLearner):
    """Off-policy learning for a team.

    Args:
        env: See `TeamSteps`; actions are scaled from [−1, 1] to its bounds.
        uids: Robots that learn.
        config: Settings; the defaults if None.
        seed: Root of every random stream.

    Raises:
        InputError: ``config`` is that of something else.
    """

    def __init__(
        self,
        env: Any,
        uids: Sequence[str],
        config: HATD3Config | None = None,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(TeamSteps(env, uids), stream="learn.hatd3", seed=seed)
        self.config = config_of("HATD3", config, HATD3Config)
        ends = np.cumsum(self.team.observation_dims).tolist()
        self.learner = HATD3Learner(
            columns=list(zip([0, *ends[:-1]], ends, strict=True)),
            joint_dim=self.team.joint_dim,
            action_dims=self.team.action_dims,
            config=self.config,
            seed=seed,
        )
        self.memory = TransitionMemory(
            observation_dim=self.team.joint_dim,
            action_dim=sum(self.team.action_dims),
            num_envs=self.team.num_envs,
            max_transitions=self.config.memory_size,
            seed=seed,
        )

    def learn(
        self,
        total_steps: int,
        on_report: Callable[[HATD3Report], bool | None] | None = None,
        *,
        report_every: int = 10_000,
    ) -> None:
        """Collect and learn until ``total_steps`` steps of the environments are done in all.

        Args:
            total_steps: Steps of the whole run, counted once per environment, not per robot.
            on_report: Called every ``report_every`` steps; returning False stops the run there.
            report_every: Environment steps between reports.

        Raises:
            InputError: ``total_steps`` is no number.
        """
        require_step_count("HATD3", total_steps)
        figures: dict[str, float] = {}
        while self.steps < total_steps:
            before = self.steps
            for batch in self.collect():
                figures |= self.learner.update(batch)
            if on_report and self.steps // report_every > before // report_every:
                report = HATD3Report(
                    steps=self.steps,
                    updates=self.learner.updates,
                    figures=dict(figures),
                    episode_returns=self.team.take_finished(),
                )
                if on_report(report) is False:
                    return

    def collect(self) -> Iterator[TeamBatch]:
        """Take one step in every environment; yield the batches that this makes due."""
        before = self.steps
        self._collect_step()
        due = self.steps // self.config.train_every - before // self.config.train_every
        if self.steps > self.config.warmup_steps and self.memory.size() > 0:
            for _ in range(due * self.config.updates):
                yield self._batch()

    def policy(self, joint: NDArray[Any]) -> list[NDArray[Any]]:
        """Return every robot's action, (N, A_i), for joint states (N, S)."""
        states = torch.tensor(np.asarray(joint, dtype=np.float32))
        return self._in_bounds(self.learner.act(states, deterministic=True))

    def state_dict(self) -> dict[str, Any]:
        """Return networks, memory, random streams and counters.

        The environment keeps no state of its own, so a resumed run begins new episodes.
        """
        return {
            "version": STATE_VERSION,
            "learner": self.learner.state_dict(),
            "memory": self.memory.state_dict(),
            "steps": self.steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with new episodes where `state_dict` was taken.

        Raises:
            CheckpointError: The state is of another version, incomplete or of other sizes.
        """
        require_version("HATD3", state, STATE_VERSION)
        with complete_state("HATD3", "a team of these sizes"):
            self.learner.load_state_dict(state["learner"])
            self.memory.load_state_dict(state["memory"])
            self.steps = int(state["steps"])
        self.memory.drop_open_episodes()
        self.forget_episodes()

    def _collect_step(self) -> None:
        joint = self._states()
        if self.steps < self.config.warmup_steps:
            actions = self.learner.random_actions(len(joint))
        else:
            actions = self.learner.act(torch.tensor(joint))
        step = self.team.step(self._in_bounds(actions))
        final = step.states.copy()
        final[step.cut] = step.final_states
        self.memory.add(
            joint,
            torch.cat(actions, dim=1).numpy(),
            step.rewards,
            terminated=step.terminated,
            boundaries=step.boundaries,
            next_observations=final,
        )
        self._advance(step)

    def _batch(self) -> TeamBatch:
        sample = self.memory.sample(self.config.batch_size)
        return TeamBatch(
            states=sample["observation"]["obs"],
            actions=sample["actions"],
            rewards=sample["rewards"],
            next_states=sample["next_observation"]["obs"],
            masks=sample["masks"],
        )

    def _in_bounds(self, actions: Sequence[Tensor]) -> list[NDArray[Any]]:
        return self.team.from_unit([action.numpy() for action in actions])
