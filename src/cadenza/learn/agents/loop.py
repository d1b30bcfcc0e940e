"""The loop that every agent learns in, and its named moments.

    on_start                                        before the first step
        on_step                                     after a step of all environments
            on_batch, then the update               as often as the step calls for
                on_evaluate, on_save                where their turn has come
            on_update                               after the update and what it called for
    on_end                                          however the training ends

Promise:  a callback whose `on_start` was called gets `on_end` exactly once.
Limits:   an evaluation belongs to an update, so there is none before the warm-up has ended.
"""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from cadenza.core.checks import whole_number
from cadenza.core.extras import load_extra
from cadenza.core.progress import ProgressReport
from cadenza.learn.agents.judging import SELECTION_SEED, Evaluation
from cadenza.learn.callback import Callback
from cadenza.learn.trainer import Trainer, TrainingShutdownException, end_all

_logger = logging.getLogger(__name__)

#: Time between two movements of the progress bar, s.
_REPORT_EVERY_S: Final = 0.2


class AgentCallback:
    """Does something at moments of a training; override the ones you need.

    Raise `TrainingShutdownException` to end the training as if its last step had come.
    """

    def on_start(self, agent: Any) -> None:
        """Before the first step; what restores an agent does it here."""

    def on_step(self, agent: Any, step: Any) -> None:
        """After a step of all environments: see `cadenza.learn.env.stepping.VectorStep`."""

    def on_batch(self, agent: Any, batch: Any) -> Any:
        """Before an update; return another batch to learn from, or None for this one.

        A batch is a dict of columns, or the rollout of algorithms that learn from one.
        """

    def on_update(self, agent: Any, batch: Any, figures: Mapping[str, Any]) -> None:
        """After an update, with its figures by name."""

    def on_evaluate(self, agent: Any, result: Evaluation) -> None:
        """After an evaluation of a training with a folder."""

    def on_save(self, agent: Any, path: Path) -> None:
        """After the agent was saved to ``path``: ``best`` or ``last`` in the folder."""

    def on_end(self, agent: Any, error: BaseException | None) -> None:
        """At the end, with what ended the training too early, or None."""


class Trainee(Protocol):
    """What the loop steps and updates."""

    @property
    def steps(self) -> int:
        """Environment steps so far."""
        ...

    @property
    def target_steps(self) -> int:
        """Steps that the training aims at."""
        ...

    @property
    def due(self) -> int:
        """Updates that the steps so far call for."""
        ...

    @property
    def progress(self) -> str:
        """What the bar of a training shows."""
        ...

    def begin(self, steps: int) -> None:
        """Aim at ``steps`` more steps."""

    def is_halfway(self) -> bool:
        """Return whether further steps are needed to finish what the last ones have begun."""
        ...

    def step(self) -> Any:
        """Take a step in every environment and remember it; return its outcome."""

    def forget(self) -> None:
        """Begin new episodes with the next step, and forget those that have not ended."""

    def batch(self) -> Any:
        """Return what the next update, which is due, learns from."""

    def update(self, batch: Any) -> Mapping[str, Any]:
        """Learn from a batch; return figures by name."""
        ...


class Keeping:
    """Saves an agent every ``every`` environment steps as ``last``, and as ``best`` what did best.

    Best is judged on ``episodes`` episodes of `SELECTION_SEED`, at most ``max_episode_steps`` long,
    and saved without its replay memory.
    """

    def __init__(
        self, agent: Any, folder: Path, every: int, episodes: int, max_episode_steps: int | None
    ) -> None:
        self._agent, self._folder = agent, folder
        self._every = whole_number("learn.evaluate_every", every, least=1)
        self._episodes = whole_number("learn.evaluation_episodes", episodes, least=1)
        if episodes > 1:
            load_extra("scipy.special")  # for the interval: missed now, not after the training
        if max_episode_steps is not None:
            whole_number("learn.max_episode_steps", max_episode_steps, least=1)
        self._max_episode_steps = max_episode_steps
        self.begin()

    def begin(self) -> None:
        """Count from the agent's steps so far."""
        self._judged_at: int = self._agent.steps

    @property
    def is_due(self) -> bool:
        """Whether the turn of an evaluation has come."""
        return self._agent.steps // self._every > self._judged_at // self._every

    @property
    def is_outdated(self) -> bool:
        """Whether the agent was not judged since its last step, or never."""
        return self._agent.best_return is None or self._agent.steps > self._judged_at

    def judge(self) -> tuple[Evaluation, list[Path]]:
        """Evaluate the agent and save it; return the result, and where it is."""
        agent = self._agent
        self._judged_at = agent.steps
        result = agent.evaluate(
            self._episodes, seed=SELECTION_SEED, max_episode_steps=self._max_episode_steps
        )
        agent.log_scalar("evaluation/mean_return", result.mean)
        if result.success_rate is not None:
            agent.log_scalar("evaluation/success_rate", result.success_rate)
        best = self._folder / "best"
        saved = [agent.save(best, memory=False)] if agent.take_best(result) else []
        return result, [*saved, self.save()]

    def save(self) -> Path:
        """Save the agent as ``last``."""
        return self._agent.save(self._folder / "last")


class Loop:
    """One training: steps, updates, and what callbacks are told of them."""

    def __init__(
        self,
        agent: Trainee,
        callbacks: Sequence[AgentCallback],
        keeping: Keeping | None,
        report: ProgressReport,
    ) -> None:
        self._agent, self._callbacks = agent, callbacks
        self._keeping, self._report = keeping, report
        self._started: list[AgentCallback] = []
        self._has_begun = False

    def run(self, steps: int) -> None:
        """Take ``steps`` more steps, and do the updates that they call for.

        Raises:
            BaseExceptionGroup: An `on_end` failed, and nothing else had.
        """
        ending: BaseException | None = None
        try:
            try:
                for callback in self._callbacks:
                    self._started.append(callback)
                    callback.on_start(self._agent)
                self._has_begun = True
                if self._keeping is not None:
                    self._keeping.begin()  # a callback may have restored the agent
                self._learn(steps)
                self._keep_last()
            except TrainingShutdownException as stop:
                _logger.info("Training stops: %s", stop)
                ending = stop
                self._keep_last()
        except BaseException as error:
            self._save_after(error)
            self._end(error)
            raise
        self._end(ending)

    def _learn(self, steps: int) -> None:
        """Step until it is enough, learning whenever an update is due."""
        agent, callbacks, keeping = self._agent, self._callbacks, self._keeping
        first, moved = agent.steps, -math.inf
        agent.begin(steps)
        while True:
            if agent.due:
                batch = agent.batch()
                for callback in callbacks:
                    changed = callback.on_batch(agent, batch)
                    batch = batch if changed is None else changed
                figures = agent.update(batch)
                if keeping and keeping.is_due:
                    self._judge(keeping)
                for callback in callbacks:
                    callback.on_update(agent, batch, figures)
            elif agent.steps < agent.target_steps or agent.is_halfway():
                try:
                    step = agent.step()
                except BaseException:  # e.g. Ctrl-C: nobody knows where the environments are
                    agent.forget()
                    raise
                for callback in callbacks:
                    callback.on_step(agent, step)
            else:
                break
            now = time.monotonic()
            if now - moved >= _REPORT_EVERY_S:
                moved = now
                self._report(min(agent.steps - first, steps), steps, agent.progress)
        self._report(steps, steps, "")

    def _judge(self, keeping: Keeping) -> None:
        """Evaluate the agent, and save it."""
        result, saved = keeping.judge()
        for callback in self._callbacks:  # after all that a callback which ends it would prevent
            callback.on_evaluate(self._agent, result)
        self._tell_saved(saved)

    def _tell_saved(self, paths: Sequence[Path]) -> None:
        for path in paths:
            for callback in self._callbacks:
                callback.on_save(self._agent, path)

    def _keep_last(self) -> None:
        """Judge and save what there is at the end; what was judged already is only saved."""
        if self._keeping is None:
            return
        if self._keeping.is_outdated:
            self._judge(self._keeping)
        else:
            self._tell_saved([self._keeping.save()])

    def _save_after(self, error: BaseException) -> None:
        """Save what there is after an error or Ctrl-C."""
        if self._keeping is None or not self._has_begun:
            return
        try:
            self._keeping.save()
        except Exception as failure:  # noqa: BLE001 -- whatever it is, the first error is raised
            error.add_note(f"the agent could not be saved: {failure!r}")

    def _end(self, ending: BaseException | None) -> None:
        ends = [(type(c).__name__, partial(c.on_end, self._agent, ending)) for c in self._started]
        end_all(ends, ending)


class EngineCallbacks(AgentCallback):
    """Callbacks of the engine beside an agent: a step of their `Trainer`, cut at the update.

    They see a batch of columns as ``default``, and what their `begin_batch` makes of it is learned
    from; ``batch_size`` and ``inf_step`` are its rows and the environment steps so far.
    """

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._trainer = Trainer(callbacks, ())

    def on_start(self, agent: Any) -> None:
        """Begin, counting on from the updates so far."""
        counts = {"bp_step": agent.updates + 1, "bp_samples": agent.samples}
        self._trainer.begin(**counts, inf_step=agent.steps)
        self._step: int = self._trainer.state["bp_step"]

    def on_batch(self, agent: Any, batch: Any) -> Any:
        """Run the hooks before the update; return the batch as they left it."""
        columns: dict[str, Any] = {"default": batch} if isinstance(batch, Mapping) else {}
        rows = {"batch_size": agent.batch_rows, "inf_step": agent.steps}
        self._trainer.take({**columns, **rows}, self._step)
        self._step += 1
        self._trainer.call("begin_cycle", "begin_batch")
        return self._trainer.state.get("default") if columns else None

    def on_update(self, agent: Any, batch: Any, figures: Mapping[str, Any]) -> None:
        """Run the hooks after the update."""
        del agent, batch, figures
        self._trainer.call("backward", "end_batch", "end_cycle")

    def on_end(self, agent: Any, error: BaseException | None) -> None:
        """End every callback that was begun."""
        del agent
        self._trainer.end(error)


#: What `learn` takes as a callback.
Listener: TypeAlias = AgentCallback | Callback


def listening(given: Sequence[Listener]) -> list[AgentCallback]:
    """Return callbacks for the loop, those of the engine together as the last one."""
    own = [each for each in given if isinstance(each, AgentCallback)]
    others = [each for each in given if not isinstance(each, AgentCallback)]
    return [*own, EngineCallbacks(others)] if others else own
