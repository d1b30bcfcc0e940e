"""What the workers have in common that do their step by a back end's commands."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from cadenza.loop.agents.base import Runner, subprocess_runner
from cadenza.loop.agents.job_desk import JobDesk, runner_for
from cadenza.loop.backends.base import Backend
from cadenza.loop.constitution import Constitution
from cadenza.loop.events.bus import EventSink

_Settings = TypeVar("_Settings")


class CommandWorker(ABC, Generic[_Settings]):
    """Hands a back end's commands in at a desk of its own.

    Attributes:
        cfg: How it works.
        constitution: What commands must obey.
        bus: Where events go.
        backend: The training stack.
        runner: Runs commands where a call gets no job runner.
    """

    #: Stage of its events.
    EVENT_STAGE: ClassVar[str]

    def __init__(
        self,
        cfg: _Settings,
        constitution: Constitution,
        bus: EventSink,
        runner: Runner = subprocess_runner,
        *,
        backend: Backend | None = None,
        read_roots: tuple[Path, ...] = (),
    ) -> None:
        """Work for one run.

        Args:
            cfg: How to work.
            constitution: What commands must obey.
            bus: Where events go.
            runner: Runs commands where a call gets no job runner.
            backend: Training stack; None for LeRobot.
            read_roots: Folders outside the run's own that commands may read.
        """
        self.cfg = cfg
        self.constitution = constitution
        self.bus = bus
        self.backend = self._lerobot() if backend is None else backend
        self.runner = runner_for(self.backend, runner)
        self._desk = JobDesk(
            event_stage=self.EVENT_STAGE,
            constitution=constitution,
            bus=bus,
            runner=self.runner,
            read_roots=read_roots,
        )

    @abstractmethod
    def _lerobot(self) -> Backend:
        """Return LeRobot with the worker's settings."""
