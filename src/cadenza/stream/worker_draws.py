"""What an iterator in a loader's worker draws from; recorded while the loader's process records.

Every such iterator has a recording of its own, in the folder ``workers`` of that process's
recording, so workers never wait for one another and a replay finds the draws of each.
"""

from contextlib import ExitStack
from typing import TYPE_CHECKING

from cadenza.stream.chunk_source import ChunkSource, DrawRequest
from cadenza.stream.iterator_place import IteratorPlace
from cadenza.stream.layout import StoreLayout
from cadenza.stream.live_draws import LiveDraws
from cadenza.stream.recording_files import WORKERS_FOLDER
from cadenza.stream.recording_session import RecordingSession

if TYPE_CHECKING:
    from tensordict import TensorDict


class WorkerDraws(ChunkSource):
    """Draws from the engine for one iterator."""

    def __init__(
        self,
        engine: ChunkSource,
        draws: LiveDraws,
        session: RecordingSession,
        place: IteratorPlace,
    ) -> None:
        """Begin to draw.

        Args:
            engine: The engine.
            draws: Draws from its store; nobody else's.
            session: Tells whether the loader's process records.
            place: Which iterator this is.

        Raises:
            NotReadyError: A recording began after this worker.
            StorageError: The file system refused.
        """
        self._engine = engine
        self._draws = draws
        self._session = session
        self._recording = ExitStack()
        self._running = session.running
        if self._running:
            folder = session.folder(self._running) / WORKERS_FOLDER / place.folder
            self._recording.enter_context(draws.recording(folder, durable=False))

    @property
    def layout(self) -> StoreLayout:
        """Sizes and fields of the engine's store."""
        return self._engine.layout

    @property
    def draw_timeout(self) -> float:
        """Longest wait of a draw for fresh data, s."""
        return self._engine.draw_timeout

    def end_iterator(self) -> None:
        """End the iterator's recording, if it has one."""
        self._recording.close()

    def _draw(self, request: DrawRequest) -> "TensorDict":
        running = self._session.running
        if running != self._running:
            if running:  # raises: it began after the iterator
                self._session.folder(running)
            self._recording.close()
            self._running = running
        return self._draws.draw(request)
