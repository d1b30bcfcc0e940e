"""Figures of a training as JSON lines, in TensorBoard, in Weights & Biases: ``learn(log=...)``.

Names:   ``training/mean_return``, ``training/success_rate`` (last 100 episodes),
         ``training/updates``, ``training/steps_per_second`` (since the last line); the last figures
         of updates as ``loss/NAME_loss``, ``loss/NAME_gradient_norm`` and, all others,
         ``training/NAME``; ``evaluation/`` with ``mean_return``, ``low``, ``high`` (ends of its
         95 % interval), ``mean_length``, ``success_rate``, ``success_low``, ``success_high``.
Steps:   those of the environments, whatever the sink.
Resume:  an agent's file holds the name of its log. JSON lines and points of TensorBoard behind the
         steps of that file are taken back; the run of Weights & Biases keeps its points.
"""

import math
import re
import secrets
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from cadenza.core.checks import whole_number
from cadenza.core.errors import ConfigurationError, refuse
from cadenza.core.log_sinks import (
    SINK_ERRORS,
    JsonlSink,
    LogSink,
    TensorboardSink,
    WandbForwarder,
    length_until,
    start_wandb_run,
)
from cadenza.core.strict_json import strict_event
from cadenza.learn.agents.judging import Evaluation
from cadenza.learn.agents.loop import AgentCallback

#: Where figures go.
Log: TypeAlias = Literal["jsonl", "tensorboard", "wandb"]


class FigureLog(AgentCallback):
    """Writes figures to sinks, every ``every`` environment steps and at the end."""

    def __init__(
        self, agent: Any, log: Log | Sequence[Log], folder: str | Path | None, every: int
    ) -> None:
        """Choose the sinks, and the folder; None makes one of the log's name in ``logs``.

        Raises:
            ConfigurationError: A sink is unknown.
            InputError: ``every`` is no whole number >= 1.
        """
        self._kinds: list[Log] = [log] if isinstance(log, str) else list(log)
        if unknown := [kind for kind in self._kinds if kind not in get_args(Log)]:
            expected = f"log of {list(get_args(Log))}, one or several"
            do = "a logger of your own is a callback"
            refuse(ConfigurationError, "learn", expected=expected, got=unknown, do=do)
        self._every = whole_number("learn.log_every", every, least=1)
        self._is_new = agent.log_name is None
        if self._is_new:
            task = re.sub(r"[^\w.-]+", "-", agent.envs.id or "env")
            agent.log_name = f"{agent.name}-{task}-{agent.seed}-{secrets.token_hex(4)}"
        self.folder: Path = Path("logs", agent.log_name) if folder is None else Path(folder)
        self._sinks: list[LogSink] = []
        self._figures: dict[str, Any] = {}  # the last of each name
        self._told = agent.updates

    def on_start(self, agent: Any) -> None:
        """Open the sinks.

        Raises:
            MissingExtraError: A sink's package is not installed.
            StorageError: The file system refused, or another training writes the log.
            SinkError: Weights & Biases refused.
        """
        for kind in self._kinds:
            self._sinks.append(self._opened(kind, agent))
        self._written, self._since = agent.steps, time.monotonic()

    def _opened(self, kind: Log, agent: Any) -> LogSink:
        if kind == "jsonl":
            path = self.folder / "log.jsonl"
            kept = None if self._is_new else length_until(path, agent.steps)
            return JsonlSink(path, resume_offset=kept)
        if kind == "tensorboard":
            first = 0 if self._is_new else agent.steps + 1
            return TensorboardSink(self.folder / "tensorboard", resume_step=first)
        self.folder.mkdir(parents=True, exist_ok=True)
        facts = {
            "algorithm": agent.name,
            "env": agent.envs.id,
            "seed": agent.seed,
            "device": str(agent.device),
        }
        run = start_wandb_run(
            agent.log_name,
            project=None,
            config={**facts, **agent.config.model_dump(mode="json")},
            resume=not self._is_new,
            folder=self.folder,
        )
        return WandbForwarder(run)

    def on_update(self, agent: Any, batch: Any, figures: Mapping[str, Any]) -> None:
        """Write where the turn has come."""
        del batch
        self._figures |= figures
        if agent.steps // self._every > self._written // self._every:
            self._write_update(agent)

    def on_evaluate(self, agent: Any, result: Evaluation) -> None:
        """Write an evaluation."""
        figures = {
            "mean_return": result.mean,
            "low": result.low,
            "high": result.high,
            "mean_length": float(np.mean(result.lengths)),
            "success_rate": result.success_rate,
            "success_low": result.success_low,
            "success_high": result.success_high,
        }
        told = {f"evaluation/{name}": n for name, n in figures.items() if n is not None}
        self._write(agent.steps, told)

    def on_end(self, agent: Any, error: BaseException | None) -> None:
        """Write what is left, and close the sinks."""
        del error
        if agent.updates > self._told:
            self._write_update(agent)
        for sink in self._sinks:
            sink.close()

    def _write_update(self, agent: Any) -> None:
        now = time.monotonic()
        told = {
            "training/updates": agent.updates,
            "training/steps_per_second": (agent.steps - self._written) / (now - self._since),
        }
        if not math.isnan(agent.mean_return):
            told["training/mean_return"] = agent.mean_return
        if agent.success_rate is not None:
            told["training/success_rate"] = agent.success_rate
        for name, value in self._figures.items():
            is_loss = name.endswith(("_loss", "_gradient_norm"))
            told[f"{'loss' if is_loss else 'training'}/{name}"] = float(value)
        self._write(agent.steps, told)
        self._written, self._since, self._told = agent.steps, now, agent.updates

    def _write(self, step: int, figures: Mapping[str, float]) -> None:
        """Write one event; a sink that fails is warned of and left out from here on."""
        event = strict_event({"step": step, **figures})
        for sink in list(self._sinks):
            try:
                sink.write(event)
            except SINK_ERRORS as error:
                self._sinks.remove(sink)
                warnings.warn(
                    f"The training goes on without its log {sink.name!r}: {error}",
                    UserWarning,
                    stacklevel=2,
                )
