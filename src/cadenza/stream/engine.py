"""The online data engine: producers simulate, any process draws chunks of what they made.

`OnlineDataEngine` may be given to other processes (forked, spawned, loader workers): they draw;
only the process that made it starts and stops it.
"""

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

import torch
from torch import Tensor

from cadenza.core.checks import checked_path
from cadenza.core.errors import CadenzaError, InputError, NotReadyError, OnlineDataWorkerError
from cadenza.stream.back_pressure import request_fill
from cadenza.stream.batches import nested_batch, tensordict_class
from cadenza.stream.chunk_source import ChunkSource, DrawRequest
from cadenza.stream.config import FlowRules, OnlineDataEngineCfg, check_settings
from cadenza.stream.environment import store_layout
from cadenza.stream.layout import StoreLayout
from cadenza.stream.live_draws import LiveDraws, WorkerDraws
from cadenza.stream.policy_board import PolicyBoard
from cadenza.stream.processes import ALONE, Rank, require_imported_main, started_at
from cadenza.stream.recorded_draws import RecordingReader
from cadenza.stream.recording_files import IteratorPlace, RecordingSession
from cadenza.stream.serving import ServingCheck
from cadenza.stream.shared_file import Tally
from cadenza.stream.slots import (
    OnlineDataEngineState,
    SlotStore,
    StreamWords,
    engine_state,
    set_engine_state,
)
from cadenza.stream.stream_report import StreamReport, status_document
from cadenza.stream.supervisor import Supervisor

if TYPE_CHECKING:
    from tensordict import TensorDict

#: Pause between two looks at a starting engine, s.
_START_POLL_S = 0.01


class OnlineDataEngine(ChunkSource):
    """Streams episodes from producers to a training.

    Use it as a context manager, or call `start` and `stop`.
    """

    #: Rank of the process that gave this one the engine.
    _rank: Rank = ALONE

    def __init__(self, cfg: OnlineDataEngineCfg) -> None:
        """Reserve the buffer; no process is started.

        Args:
            cfg: Settings; copied.

        Raises:
            ConfigurationError: A setting is out of range, or the environment does not fit.
            ConfigurationTypeError: ``cfg`` is no configuration, or lacks a value.
            StorageError: Shared memory is too small.
            MissingExtraError: tensordict is not installed.
        """
        tensordict_class()
        check_settings(cfg)
        self._cfg = cfg.copy()
        self._store = SlotStore.create(store_layout(self._cfg))
        self._board, self._versions = PolicyBoard(), Tally()
        self._session = RecordingSession()
        self._store.words[StreamWords.OWNER_PID] = os.getpid()
        self._store.words[StreamWords.OWNER_STARTED_AT] = started_at(os.getpid())
        self._prepare()

    def __getstate__(self) -> dict[str, Any]:
        """Return what a drawing process needs; only multiprocessing may ask."""
        shared = ("_cfg", "_store", "_board", "_versions", "_session")
        # A loader's worker that is spawned knows nothing of its parent's rank.
        return {name: getattr(self, name) for name in shared} | {"_rank": self.rank()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Draw in a new process."""
        vars(self).update(state)
        self._prepare()

    def _prepare(self) -> None:
        """Make what every process has for itself."""
        self._draws = LiveDraws(self._store, self._cfg, self._rank)
        self._recorder: RecordingReader | None = None
        self._serving = ServingCheck(self._store)
        self._stopping = threading.RLock()
        self._is_stopping = self._stop_was_asked = self._was_stopped = False
        self._end: weakref.finalize[..., Self] | None = None
        self._report: StreamReport | None = None
        self._supervisor: Supervisor | None = None

    def start(self) -> None:
        """Start the producers and wait until the buffer is full for the first time.

        Raises:
            ConfigurationError: A new process imports the program's main module, which starts an
                engine without ``if __name__ == "__main__":``.
            NotReadyError: Not the owner, started before, or stopped meanwhile.
            OnlineDataWorkerError: The producers failed.
            TimeoutError: The first fill took longer than ``initialization_timeout``.
        """
        require_imported_main()
        self._require_owner("start")
        with self._stopping:  # a stop in another thread comes before all of this or after it
            supervisor = self._prepare_start()
        try:
            supervisor.start()
            self._wait_for_first_fill()
        except BaseException as error:
            self._give_up(error)
            raise

    def _prepare_start(self) -> Supervisor:
        """Make what a start needs, and what ends it again."""
        if self.state is not OnlineDataEngineState.CREATED:
            raise NotReadyError(
                f"OnlineDataEngine.start: expected an engine that was never started, got "
                f"{self.state.name}; make a new one."
            )
        cfg = self._cfg
        self._report = StreamReport(self._store, log_path=cfg.log_path, status_path=cfg.status_path)
        set_engine_state(self._store, OnlineDataEngineState.STARTING)
        rules = FlowRules.of(cfg)
        request_fill(self._store, rules)
        self._supervisor = Supervisor(
            cfg, self._store, self._board, rules, self._report, self.rank()
        )
        # At exit this must come before multiprocessing waits for its children.
        self._end = weakref.finalize(
            self, _end_abandoned, self._supervisor, self._report, os.getpid()
        )
        atexit.register(self._end)
        return self._supervisor

    def stop(self) -> None:
        """End the producers and give the buffer's memory back; nothing can be read afterwards.

        A second call does nothing. One after a call that an interrupt ended goes on with it.

        Raises:
            NotReadyError: Not the owner.
            OnlineDataWorkerError: The engine had failed, or a producer had to be killed, so that
                its last episode is lost.
        """
        self._require_owner("stop")
        self._stop_was_asked = True
        with self._stopping:
            if self._was_stopped or self._is_stopping:
                return
            self._is_stopping = True
            try:
                self._stop()
            finally:
                self._is_stopping = False

    def _stop(self) -> None:
        forced = [] if self._supervisor is None else self._supervisor.stop()
        failed_before = self.state is OnlineDataEngineState.FAILED
        if not failed_before:
            ended = OnlineDataEngineState.FAILED if forced else OnlineDataEngineState.STOPPED
            set_engine_state(self._store, ended)
        if self._end is not None and self._report is not None:
            self._end.detach()
            atexit.unregister(self._end)
            self._report.close()
        self._store.free()
        self._was_stopped = True
        if failed_before:
            raise self._serving.failure()
        if forced:
            raise OnlineDataWorkerError(
                f"OnlineDataEngine.stop: expected producers to end within "
                f"{self._cfg.stop_timeout:g} s, got producers {forced} killed; what they were "
                "writing elsewhere may be incomplete: raise stop_timeout."
            )

    def __enter__(self) -> Self:
        """Start and return itself."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop; an error of stopping becomes a note of the body's."""
        if error is None:
            self.stop()
        else:
            self._stop_after(error)

    def _wait_for_first_fill(self) -> None:
        deadline = time.monotonic() + self._cfg.initialization_timeout
        while not self.state.is_serving:
            if self._stop_was_asked:
                raise NotReadyError(
                    "OnlineDataEngine.start: expected to fill the buffer, got stop() meanwhile."
                )
            if self.state is OnlineDataEngineState.FAILED:
                raise self._serving.failure()
            if time.monotonic() > deadline:
                raise TimeoutError(
                    "OnlineDataEngine.start: expected a full buffer of "
                    f"{self._cfg.buffer_size} episodes within "
                    f"{self._cfg.initialization_timeout:g} s, got "
                    f"{self._store.published()}; raise "
                    "initialization_timeout or make the buffer smaller."
                )
            time.sleep(_START_POLL_S)

    def _give_up(self, error: BaseException) -> None:
        """End what was started after ``error``; a stop that was asked for is no failure."""
        if self._stop_was_asked:
            with self._stopping:
                if self._was_stopped:  # in a signal's handler, before there was all of this
                    self._noting_late_errors(self._stop, error)
            return
        self._stop_after(error)
        set_engine_state(self._store, OnlineDataEngineState.FAILED)

    def _stop_after(self, error: BaseException) -> None:
        """Stop because of ``error``, which goes on; what fails now becomes a note of it."""
        self._noting_late_errors(self.stop, error)

    @staticmethod
    def _noting_late_errors(stop: Callable[[], None], error: BaseException) -> None:
        try:
            stop()
        except (CadenzaError, OSError) as late:
            if str(late) != str(error):
                error.add_note(f"While the engine stopped: {late}")

    def _draw(self, request: DrawRequest) -> "TensorDict":
        return self._draws.draw(request)

    def begin_iterator(self, place: IteratorPlace) -> tuple[ChunkSource, IteratorPlace]:
        """Begin an iterator, see `ChunkSource.begin_iterator`."""
        if not place.workers:
            recorder = self._recorder  # another thread may end the recording meanwhile
            if recorder is not None:
                recorder.note_iterator(place)
        elif self._session.is_of_parent:
            draws = LiveDraws(self._store, self._cfg, self._rank)
            return WorkerDraws(self, draws, self._session, place), place
        return self, place

    @contextmanager
    def recording(self, folder: str | Path) -> Generator[None]:
        """Write down every draw in the block into a new ``folder``, for `RecordedStream`.

        Those are the draws of this process and of the loader workers that it starts meanwhile. Any
        other process needs a block and a folder of its own.

        Raises:
            ConfigurationTypeError: ``folder`` is no path.
            NotReadyError: This process records already.
            StorageError: ``folder`` holds a recording, or the file system refused.
        """
        if not self._session.is_mine:
            self._session = RecordingSession()
        place = checked_path("recording: folder", folder).absolute()
        with self._session.opened(place), self._draws.recording(place) as self._recorder:
            try:
                yield
            finally:
                self._recorder = None

    def publish_policy(self, state_dict: Mapping[str, Any]) -> int:
        """Give new weights, tensors and plain values, to all producers whose policy takes them.

        Returns:
            Version of the weights, from 1 on; episodes carry the version they began with.

        Raises:
            InputError: ``state_dict`` is no mapping.
            StorageError: Shared memory is too small.
        """
        if not isinstance(cast("object", state_dict), Mapping):
            raise InputError(
                f"OnlineDataEngine.publish_policy: expected a mapping of tensors and plain "
                f"values, got {type(cast('object', state_dict)).__name__}; give net.state_dict()."
            )
        version = self._versions.next() + 1
        self._draws.publish(self._board, version, state_dict)
        # A fork has the owner's report as well, with a lock that may be held for ever.
        if self._report is not None and self.is_owner:
            self._report.log("policy_published", version=version)
        return version

    def rank(self) -> Rank:
        """Return the rank whose random streams draws of this process belong to."""
        return Rank.here(self._rank)

    def bulk(self, most: int) -> int:
        """Return how many chunks to draw at once, see `ChunkSource.bulk`: what the ratio allows."""
        ratio, steps = self._cfg.max_replay_ratio, self.buffer_size * self.max_episode_steps
        return most if ratio is None else min(most, max(int(ratio * steps), 1))

    @property
    def state(self) -> OnlineDataEngineState:
        """Where the engine stands."""
        return engine_state(self._store)

    @property
    def is_init(self) -> bool:
        """Whether chunks can be drawn: the buffer was full once, and the engine runs."""
        return self.state.is_serving

    @property
    def is_owner(self) -> bool:
        """Whether this process made the engine."""
        return int(self._store.words[StreamWords.OWNER_PID]) == os.getpid()

    @property
    def buffer_size(self) -> int:
        """Episodes that can be drawn from, B."""
        return self._cfg.buffer_size

    @property
    def layout(self) -> StoreLayout:
        """Sizes of the shared memory and its fields."""
        return self._store.layout

    @property
    def draw_timeout(self) -> float:
        """Longest wait of a draw for fresh data, s."""
        return self._cfg.draw_timeout

    @property
    def device(self) -> torch.device:
        """Where drawn batches lie."""
        return torch.device(self._cfg.buffer_device)

    @property
    def store(self) -> SlotStore:
        """The shared memory, for readers of whole episodes."""
        return self._store

    @property
    def shared_buffer(self) -> "TensorDict":
        """The first B slots as they are in shared memory, shape [B, T]; for looking only.

        Rows change while producers write, and one more per environment takes part in turn: draw
        with `sample_batch`.
        """
        layout = self._store.layout
        size = (self.buffer_size, layout.steps)
        arrays: dict[str, Tensor] = {}
        for field in layout.fields:
            whole = self._store.fields[field.name]
            rows = whole.view(layout.slots, layout.entries_per_slot(field), *field.shape)
            arrays[field.name] = rows[: size[0], : size[1]]
        return nested_batch(arrays, size)

    def status(self) -> dict[str, Any]:
        """Return state and counters as JSON values."""
        return status_document(self._store)

    def _require_owner(self, method: str) -> None:
        owner = int(self._store.words[StreamWords.OWNER_PID])
        if not self.is_owner:
            raise NotReadyError(
                f"OnlineDataEngine.{method}: expected a call in process {owner}, which made the "
                f"engine, got one in {os.getpid()}; other processes may only draw."
            )


def _end_abandoned(supervisor: Supervisor, report: StreamReport, owner: int) -> None:
    """End what an engine that nobody stopped left running; a fork of its process leaves it."""
    if os.getpid() == owner:
        supervisor.stop()
        report.close()
