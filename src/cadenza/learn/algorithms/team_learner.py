"""What the learners of a team share: whose turn it is, how far they are, and the on-policy loop.

A team steps one batched environment that keeps no state of its own, so that a resumed run begins
new episodes, with the stream ``<stream>.env.<steps>``.

Axes:  N = environments, S = joint state.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from numpy.typing import NDArray

from cadenza.core.arrays import Float32Array
from cadenza.core.checks import require_step_count
from cadenza.core.seeding import derive_substream
from cadenza.learn.algorithms.on_policy_buffer import BufferShape, OnPolicyBuffer
from cadenza.learn.algorithms.team_steps import TeamStep, TeamSteps
from cadenza.learn.loaded_state import complete_state, require_version
from cadenza.learn.running_normalizer import RewardScaler

Report = TypeVar("Report")


class TeamLearner:
    """A team in its environment, and the steps it took.

    Args:
        team: The environment.
        stream: Name before ``.env.<steps>`` in the streams of the episodes.
        seed: Root of these streams.

    Attributes:
        team: The environment.
        steps: Environment steps so far, counted once per environment, not per robot.
    """

    def __init__(self, team: TeamSteps, *, stream: str, seed: int) -> None:
        self.team = team
        self.steps = 0
        self._stream = stream
        self._seed = seed
        self._joint: Float32Array | None = None

    def _states(self) -> Float32Array:
        """Return the joint states to act on, (N, S); without any, begin new episodes."""
        if self._joint is None:
            stream = derive_substream(f"{self._stream}.env.{self.steps}", root_seed=self._seed)
            self._joint = self.team.reset(stream.integer_seed())
        return self._joint

    def _advance(self, step: TeamStep) -> None:
        """Act on the states of ``step`` next, and count it."""
        self._joint = step.states
        self.steps += self.team.num_envs

    def forget_episodes(self) -> None:
        """Begin new episodes with the next step."""
        self._joint = None


class OnPolicyTeamLearner(TeamLearner, ABC, Generic[Report]):
    """A team that collects a rollout, learns from it and forgets it, again and again.

    Args:
        team: The environment.
        rollout: Sizes of a rollout.
        reward_discount: Discount of the returns by whose spread rewards are divided; None leaves
            the rewards.
        stream: See `TeamLearner`.
        seed: See `TeamLearner`.

    Attributes:
        updates: Updates so far.
    """

    #: Layout version of the state.
    STATE_VERSION: ClassVar[int]

    def __init__(
        self,
        team: TeamSteps,
        rollout: BufferShape,
        *,
        reward_discount: float | None,
        stream: str,
        seed: int,
    ) -> None:
        super().__init__(team, stream=stream, seed=seed)
        self._buffer = OnPolicyBuffer(rollout)
        self._scaler = (
            None if reward_discount is None else RewardScaler(team.num_envs, reward_discount)
        )
        self.updates = 0

    def learn(
        self, total_steps: int, on_update: Callable[[Report], bool | None] | None = None
    ) -> None:
        """Collect and learn until ``total_steps`` steps of the environments are done in all.

        Args:
            total_steps: Steps of the whole run, counted once per environment, not per robot.
            on_update: Called after every update; returning False stops the run there.

        Raises:
            InputError: ``total_steps`` is no number, or something is not finite.
        """
        require_step_count(type(self).__name__, total_steps)
        while self.steps < total_steps:
            self.collect_rollout()
            report = self.update(total_steps)
            if on_update is not None and on_update(report) is False:
                return

    def collect_rollout(self) -> int:
        """Fill the buffer; return how many decisions it holds."""
        while not self._buffer.full:
            self._collect_step()
        return self._buffer.length * self._buffer.shape.rows

    def update(self, total_steps: int) -> Report:
        """Learn from the rollout and forget it; ``total_steps`` are those of the whole run."""
        done = self.steps - self._buffer.length * self.team.num_envs
        return self._update(done / total_steps)

    def state_dict(self) -> dict[str, Any]:
        """Return networks, optimisers, statistics, random streams and counters.

        The environment keeps no state of its own, so a resumed run begins new episodes: take it
        after an update.
        """
        return {
            "version": self.STATE_VERSION,
            **self._learned_state(),
            "scaler": None if self._scaler is None else self._scaler.state_dict(),
            "steps": self.steps,
            "updates": self.updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with new episodes where `state_dict` was taken.

        Raises:
            CheckpointError: The state is of another version, incomplete or of other sizes.
        """
        owner = type(self).__name__
        require_version(owner, state, self.STATE_VERSION)
        with complete_state(owner, "a team of these sizes"):
            self._load_learned_state(state)
            if self._scaler is not None:
                self._scaler.load_state_dict(state["scaler"])
            self.steps, self.updates = int(state["steps"]), int(state["updates"])
        self.forget_episodes()
        self._buffer.clear()

    def _rewards(self, step: TeamStep) -> NDArray[Any]:
        """Return the rewards of ``step``, scaled if they are to be, (N,)."""
        if self._scaler is None:
            return step.rewards
        return self._scaler.scale(step.rewards, step.boundaries)

    @abstractmethod
    def _collect_step(self) -> None:
        """Take one step in every environment and put it into the buffer."""

    @abstractmethod
    def _update(self, progress: float) -> Report:
        """Learn from the buffer and clear it; ``progress`` is the share of the run before it."""

    @abstractmethod
    def _learned_state(self) -> dict[str, Any]:
        """Return networks, optimisers and random streams."""

    @abstractmethod
    def _load_learned_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `_learned_state` returned."""
