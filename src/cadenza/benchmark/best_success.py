"""Keeps the agent of a training that succeeded most often on validation episodes.

    envs = imitation_batch("cocarry_mj", 4, expert=None, training=1, reward="proximity")
    agent = cadenza.SAC(envs, seed=0)
    best = BestSuccess(agent, "runs/best", "cocarry_mj", ["cocarry_leader"], every=2_000)
    agent.learn(10_000, callbacks=best)
    agent = cadenza.SAC.load(best.file, envs)

A reward that shapes the training says little about success, and what was learned may be lost again:
the last agent of a training need not be its best one. The episodes are those of the judged task,
without its training options, and none of them is played in training or in a final evaluation.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from numpy.typing import NDArray

from cadenza.benchmark.imitation import Partner, Policy, Successes, success_by_partner
from cadenza.benchmark.tasks import OptionValue
from cadenza.core.checks import is_whole
from cadenza.core.errors import InputError
from cadenza.learn.callback import ORDER_CHECKPOINT, Callback

#: Experiment seed of the validation episodes: neither a training's nor that of a final evaluation.
VALIDATION_SEED: Final = 2_000_000


class Student(Protocol):
    """What `BestSuccess` needs of an agent."""

    steps: int

    def predict(self, observation: Any) -> NDArray[Any]:
        """Return the greedy actions for several observations."""
        ...

    def save(self, path: str | Path, *, memory: bool = True) -> Path:
        """Write everything the future depends on, or all but the memory."""
        ...


class BestSuccess(Callback):
    """Judges an agent now and then, and saves it when it succeeds more often than ever before.

    Args:
        agent: Whose turn it is.
        file: Gets the best agent, without its replay memory.
        task: Name of the task, one with a success predicate.
        partners: Each plays all episodes.
        every: Environment steps between judgements, >= 1.
        episodes: Episodes beside each partner, >= 1.
        policy: What plays, observations (N, O) to actions (N, A), e.g. a law that the agent
            corrects; None takes the agent's ``predict``.
        report: Called after each judgement with the agent's steps and the successes of all
            partners together; None tells nobody.
        **options: Options of the task that the episodes have.

    Attributes:
        file: Where the best agent is.
        best: Its successes; None before the first judgement.
        best_steps: Its environment steps; None before the first judgement.
    """

    def __init__(
        self,
        agent: Student,
        file: str | Path,
        task: str,
        partners: Sequence[Partner],
        *,
        every: int,
        episodes: int = 50,
        policy: Policy | None = None,
        report: Callable[[int, Successes], None] | None = None,
        **options: OptionValue,
    ) -> None:
        """Judge nothing yet.

        Raises:
            InputError: ``every`` or ``episodes`` is no whole number >= 1.
        """
        super().__init__()
        for key, value in (("every", every), ("episodes", episodes)):
            if not is_whole(value) or value < 1:
                raise InputError(f"BestSuccess: expected {key}, an int >= 1, got {value!r}.")
        self._order = ORDER_CHECKPOINT
        self._agent, self.file = agent, Path(file)
        self._policy: Policy = agent.predict if policy is None else policy
        self._task, self._partners = task, list(partners)
        self._options: dict[str, Any] = dict(options)
        self._every, self._episodes, self._report = every, episodes, report
        self._judged_at = agent.steps
        self.best: Successes | None = None
        self.best_steps: int | None = None

    def end_batch(self) -> None:
        """Judge the agent if its turn has come."""
        if self._agent.steps // self._every > self._judged_at // self._every:
            self._judge()

    def end_training(self, exception: BaseException | None = None) -> None:
        """Judge what there is at the end, unless that was done or something went wrong."""
        if exception is None and (self.best is None or self._agent.steps > self._judged_at):
            self._judge()

    def _judge(self) -> None:
        agent = self._agent
        self._judged_at = agent.steps
        judged = success_by_partner(
            self._policy,
            self._task,
            self._partners,
            episodes=self._episodes,
            root_seed=VALIDATION_SEED,
            **self._options,
        )
        total = sum(judged.values(), Successes(()))
        if self.best is None or total.count > self.best.count:
            self.best, self.best_steps = total, agent.steps
            agent.save(self.file, memory=False)
        if self._report is not None:
            self._report(agent.steps, total)
