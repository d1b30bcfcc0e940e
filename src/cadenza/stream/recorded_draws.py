"""Draws that can be repeated bit for bit when the episodes they came from are long gone.

`RecordingReader` stands in for a `SlotReader` and writes down every draw, and every episode once;
`RecordedStream` gives the same batches in the same order, without producers. The n-th dataset made
over it stands for the n-th that was recorded, and its iterators for the recorded ones of the same
loader worker, one after the other.

Axes:  n = chunks, c = steps of a chunk.
"""

import os
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cadenza.core.checks import checked_flag, checked_path
from cadenza.core.device import checked_device
from cadenza.core.errors import DataPendingError, InputError, NotReadyError
from cadenza.core.recordings import WORKERS_FOLDER, Arrays, damaged, read_episode, read_journal
from cadenza.stream.batches import Batches, known_keys
from cadenza.stream.chunk_source import ChunkSource, DrawRequest
from cadenza.stream.draw_options import DEFAULT_OPTIONS, DrawOptions
from cadenza.stream.layout import MAX_SEGMENTS, StoreLayout
from cadenza.stream.processes import ALONE, Rank
from cadenza.stream.recording_files import IteratorPlace, JournalWriter, worker_folders
from cadenza.stream.shared_file import ThreadLock, full_fence
from cadenza.stream.slot_reader import MAX_ROUNDS, SlotReader, copy_chunks
from cadenza.stream.slots import IntArray, SlotStore
from cadenza.stream.windows import DrawnChunks

if TYPE_CHECKING:
    from tensordict import TensorDict

#: A published episode: its slot, and the slot's version.
EpisodeKey = tuple[int, int]
#: Tables of `SlotStore` that are written down with an episode.
EPISODE_FACTS: Final = (
    "length",
    "episode_id",
    "part",
    "policy_version",
    "written_at_ns",
    "success",
)
#: Arrays of `DrawnChunks` that say where chunks came from.
DRAW_ARRAYS: Final = ("slots", "versions", "offsets", "bounds")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RecordedDraw:
    """One line of a recording: what was drawn, and how; arrays as in `DrawnChunks`."""

    n: int
    c: int
    keys: tuple[str, ...]
    options: DrawOptions
    slots: IntArray
    versions: IntArray
    offsets: IntArray
    bounds: IntArray

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> "RecordedDraw":
        """Return the draw that a line describes.

        Raises:
            ValueError: It describes none; so are KeyError and TypeError.
        """
        n, c = int(body["n"]), int(body["c"])
        arrays: dict[str, NDArray[np.int64]] = {}
        for name in DRAW_ARRAYS:
            shape = (n, 2) if name == "bounds" else (n,)
            arrays[name] = np.array(body[name], np.int64)
            if arrays[name].shape != shape:
                raise ValueError(f"{name} of shape {arrays[name].shape}")
        options = DrawOptions(**body["options"])
        return cls(n=n, c=c, keys=tuple(body["keys"]), options=options, **arrays)

    @property
    def episodes(self) -> list[EpisodeKey]:
        """The episode of each chunk."""
        return list(zip(self.slots.tolist(), self.versions.tolist(), strict=True))


def check_episode(body: Mapping[str, Any], layout: StoreLayout) -> None:
    """Refuse a line that no episode of the layout can have.

    Raises:
        ValueError: It describes none; so are KeyError and TypeError.
    """
    segments = np.array(body["segments"], np.int64).reshape(-1, 2)
    numbers = [body[name] for name in ("slot", "version", *EPISODE_FACTS)]
    if not all(isinstance(number, int) for number in numbers):
        raise ValueError(f"an episode with the numbers {numbers}")
    length = body["length"]
    inside = (segments >= 0) & (segments <= length)
    if not 1 <= length <= layout.steps or len(segments) > MAX_SEGMENTS or not inside.all():
        raise ValueError(f"an episode of {length} steps with the segments {segments.tolist()}")


def recorded_place(
    asked: IteratorPlace, recorded: Collection[IteratorPlace]
) -> IteratorPlace | None:
    """Return the recorded iterator that ``asked``, one of the replay, repeats.

    None for one without loader workers that was not noted, as of draws without any dataset.

    Raises:
        InputError: It was recorded with another number of loader workers.
        NotReadyError: It was not recorded.
    """
    datasets = sorted({place.dataset for place in recorded})
    known = datasets[asked.dataset : asked.dataset + 1]
    mine = sorted(place for place in recorded if place.dataset in known)
    epochs = [place for place in mine if place.worker == asked.worker]
    found = next(iter(epochs[asked.epoch : asked.epoch + 1]), None)
    # A worker that the recording's loader did not have is told by its neighbours.
    counted = found or next(iter(mine), None)
    if counted is None and not recorded:
        counted = IteratorPlace(dataset=0, epoch=0)
    if counted is not None and counted.workers != asked.workers:
        raise InputError(
            f"RecordedStream: expected the DataLoader to have num_workers={counted.workers}, as "
            f"when dataset {asked.dataset} was recorded, got {asked.workers}; give it that many."
        )
    if found is None and asked.workers:
        raise NotReadyError(
            f"RecordedStream: expected one of {len(epochs)} recorded iterators of dataset "
            f"{asked.dataset} in loader worker {asked.worker}, got number {asked.epoch + 1}; make "
            "as many datasets and iterators as were recorded, in the same order."
        )
    return found


#: Episodes that a `RecordedStream` keeps in memory, or as many as one draw needs.
KEPT_EPISODES: Final = 64


class RecordingReader:
    """Draws as another reader does and writes the draws down; for the threads of one process.

    Close it at the end: a recording without its last line counts as unfinished. Draws after that
    go to the other reader and are not written down.
    """

    def __init__(
        self,
        reader: "SlotReader | RecordingReader",
        store: SlotStore,
        folder: str | Path,
        *,
        durable: bool = True,
        rank: Rank = ALONE,
    ) -> None:
        """Begin a recording in ``folder``, which must not hold one.

        Only a ``durable`` one waits for the disk when it is closed: a loader's worker, which has
        seconds to end, leaves that to the recording around its own.

        Raises:
            ConfigurationTypeError: ``folder`` is no path.
            StorageError: ``folder`` holds a recording, or the file system refused.
        """
        self._reader = reader
        self._store = store
        self._journal = JournalWriter(checked_path("recording: folder", folder), store.layout, rank)
        self._written: set[EpisodeKey] = set()
        self._durable = durable
        self._pid = os.getpid()
        self._turn = ThreadLock()  # around all that writes lines: each is sealed with those before

    def draw(
        self,
        n: int,
        c: int,
        out: Mapping[str, Tensor],
        generator: torch.Generator,
        options: DrawOptions = DEFAULT_OPTIONS,
    ) -> DrawnChunks:
        """Draw as `SlotReader.draw` does; arguments, result and errors are its.

        Where an episode is replaced before it could be written down, everything is drawn again.

        Raises:
            DataPendingError: That happened several times in a row.
            NotReadyError: Another process has begun the recording.
        """
        if os.getpid() != self._pid:
            raise NotReadyError(
                f"RecordingReader.draw: expected the process {self._pid} that began the recording, "
                f"got {os.getpid()}; give every process a folder of its own."
            )
        with self._turn.here():
            if self._journal.is_ended:
                return self._reader.draw(n, c, out, generator, options)
            return self._recorded(n, c, out, generator, options)

    def _recorded(
        self,
        n: int,
        c: int,
        out: Mapping[str, Tensor],
        generator: torch.Generator,
        options: DrawOptions,
    ) -> DrawnChunks:
        """Draw and write that down."""
        for _ in range(MAX_ROUNDS):
            drawn = self._reader.draw(n, c, out, generator, options)
            copies = self._new_episodes(drawn)
            if copies is not None:
                for key, (facts, arrays) in copies.items():
                    self._journal.add_episode(facts, arrays)
                    self._written.add(key)
                self._write_draw(n, c, list(out), options, drawn)
                return drawn
        raise DataPendingError(
            f"RecordingReader.draw: expected episodes that stay until they are written down, got "
            f"ones replaced {MAX_ROUNDS} times in a row; give the store more slots."
        )

    def note_iterator(self, place: IteratorPlace) -> None:
        """Write down that an iterator begins, whose draws follow; nothing after `close`."""
        if os.getpid() != self._pid:
            return
        with self._turn.here():
            if not self._journal.is_ended:
                self._journal.append("iterator", {"dataset": place.dataset, "epoch": place.epoch})

    def close(self) -> None:
        """End the recording; a second call does nothing."""
        if os.getpid() != self._pid:
            return
        with self._turn.here():
            self._journal.close(durable=self._durable)

    def _new_episodes(
        self, drawn: DrawnChunks
    ) -> dict[EpisodeKey, tuple[dict[str, Any], Arrays]] | None:
        """Copy what was not written before; return None if an episode was replaced by then.

        All are copied before the first is written: in the time that files take, producers replace
        the others.
        """
        keys = set(zip(drawn.slots.tolist(), drawn.versions.tolist(), strict=True))
        store, copies = self._store, dict[EpisodeKey, tuple[dict[str, Any], Arrays]]()
        for slot, version in sorted(keys - self._written):
            length = int(store.length[slot])
            arrays = {
                field.name: store.entries(field.name, slot)[
                    : length + (field.kind == "state")
                ].copy()
                for field in store.layout.fields
            }
            count = int(store.segments[slot])
            facts = {name: int(getattr(store, name)[slot]) for name in EPISODE_FACTS}
            segments = store.segment_bounds[slot, :count].tolist()
            full_fence()
            if int(store.version[slot]) != version:
                return None
            names = {"slot": slot, "version": version, "segments": segments}
            copies[slot, version] = ({**facts, **names}, arrays)
        return copies

    def _write_draw(
        self, n: int, c: int, keys: list[str], options: DrawOptions, drawn: DrawnChunks
    ) -> None:
        arrays = {name: getattr(drawn, name).tolist() for name in DRAW_ARRAYS}
        body = {"n": n, "c": c, "keys": keys, "options": asdict(options), **arrays}
        self._journal.append("draw", body)


class RecordedStream(ChunkSource):
    """Replays the batches of a recording, in order, in place of the engine."""

    #: Digest of the last line to take, for an iterator that the recording's end did not wait for.
    _until: str | None = None

    def __init__(
        self, folder: str | Path, *, allow_unfinished: bool = False, device: str = "cpu"
    ) -> None:
        """Open what `RecordingReader` wrote into ``folder``; batches lie on ``device``.

        With ``allow_unfinished`` what is there of a recording that was not closed is taken.

        Raises:
            ConfigurationError: There is no such device here.
            ConfigurationTypeError: ``folder`` is no path.
            IntegrityError: The recording is missing, damaged, or not finished.
        """
        self._folder = checked_path("RecordedStream.folder", folder)
        self._allow_unfinished = checked_flag("RecordedStream.allow_unfinished", allow_unfinished)
        self._device = checked_device("RecordedStream.device", device)
        self._open()

    def __getstate__(self) -> dict[str, Any]:
        """Return what a new process needs to open the recording; it begins at the first draw."""
        return {"folder": self._folder.absolute(), **self._settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open the recording in a new process."""
        self.__init__(**state)

    @property
    def _settings(self) -> dict[str, Any]:
        return {"allow_unfinished": self._allow_unfinished, "device": str(self._device)}

    def _open(self) -> None:
        self._episodes: dict[EpisodeKey, Mapping[str, Any]] = {}
        self._draws: list[RecordedDraw] = []
        self._iterators: set[IteratorPlace] = set()
        self._worker_ends: dict[str, str] = {}
        self._layout = self._read()
        most = max((len(set(draw.episodes)) for draw in self._draws), default=1)
        kept = min(max(most, KEPT_EPISODES), max(len(self._episodes), 1))
        self._store = SlotStore.create(replace(self._layout, slots=kept, producers=1))
        self._places: OrderedDict[EpisodeKey, int] = OrderedDict()
        self._next = 0

    def __len__(self) -> int:
        """Return how many draws there are, without those of loader workers."""
        return len(self._draws)

    @property
    def layout(self) -> StoreLayout:
        """Sizes and fields of the store that was recorded."""
        return self._layout

    @property
    def draw_timeout(self) -> float:
        """Longest wait of a draw, s: there is nothing to wait for."""
        return 0.0

    def bulk(self, most: int) -> int:
        """Return how many chunks were drawn at once."""
        return self._draws[self._next].n if self._next < len(self._draws) else most

    def rank(self) -> Rank:
        """Return the rank that recorded."""
        return self._rank

    def rewind(self) -> None:
        """Go back to the first draw; the next dataset repeats the first that was recorded."""
        self._next = 0
        self._datasets = 0

    def begin_iterator(self, place: IteratorPlace) -> tuple[ChunkSource, IteratorPlace]:
        """Begin an iterator, see `ChunkSource.begin_iterator`; a loader worker's has own draws."""
        found = recorded_place(place, self._iterators)
        if found is None or not found.workers:
            return self, found or place
        folder = self._folder / WORKERS_FOLDER / found.folder
        until = self._worker_ends.get(found.folder)
        if until is None or self._allow_unfinished:
            return RecordedStream(folder, **self._settings), found
        return _CutStream(folder, until, **self._settings), found

    def _draw(self, request: DrawRequest) -> "TensorDict":
        """Return the next recorded batch: nothing is random here, and nothing is waited for."""
        out: TensorDict | None = request.out
        draw = self._expected(*request.size, request.options)
        select = draw.keys if request.select is None and out is None else request.select
        size, batches = request.size, Batches(self._layout, self._device)
        targets = batches.targets(size, request.options, select, out)
        landed = batches.landing(size, targets)
        self._copy(draw, landed)
        self._next += 1
        return batches.batch(targets, landed, size, out)

    def _expected(self, n: int, c: int, options: DrawOptions) -> RecordedDraw:
        if self._next >= len(self._draws):
            raise NotReadyError(
                f"RecordedStream.sample_batch: expected one of {len(self._draws)} recorded draws, "
                "got a request after the last; call rewind() to begin again."
            )
        draw = self._draws[self._next]
        if (draw.n, draw.c, draw.options) != (n, c, options):
            raise InputError(
                f"RecordedStream.sample_batch: expected draw {self._next} as it was recorded, "
                f"{draw.n} chunks of {draw.c} steps with {draw.options}, got {n} of {c} with "
                f"{options}."
            )
        return draw

    def _read(self) -> StoreLayout:
        lines = read_journal(
            self._folder, allow_unfinished=self._allow_unfinished, until=self._until
        )
        first = next(lines, None)
        if first is None:
            raise damaged(self._folder, "a first line with the layout", "none")
        try:
            layout = StoreLayout.from_json(first["layout"])
            self._rank = Rank(*map(int, first.get("rank", ())))
            for body in lines:
                self._read_line(body, layout)
        except (KeyError, TypeError, ValueError) as error:
            raise damaged(self._folder, "lines of episodes and draws", repr(error)) from error
        places = [IteratorPlace.from_folder(name) for name in worker_folders(self._folder)]
        self._iterators.update(place for place in places if place is not None)
        return layout

    def _read_line(self, body: Mapping[str, Any], layout: StoreLayout) -> None:
        """Take in one line.

        Raises:
            ValueError: It is none of a recording; so are KeyError and TypeError.
        """
        match body["kind"]:
            case "episode":
                body = {"part": 0, **body}
                check_episode(body, layout)
                self._episodes[body["slot"], body["version"]] = body
            case "draw":
                draw = RecordedDraw.from_json(body)
                self._require_known(draw, layout)
                self._draws.append(draw)
            case "iterator":
                numbers = {name: int(body[name]) for name in ("dataset", "epoch")}
                self._iterators.add(IteratorPlace(**numbers))
            case "end":
                missing = set(body.get("workers", ())) - set(worker_folders(self._folder))
                if missing:
                    raise ValueError(f"no recording of the loader workers {sorted(missing)}")
                self._worker_ends = dict(body.get("until", {}))
            case other:
                raise ValueError(f"a line of the kind {other!r}")

    def _require_known(self, draw: RecordedDraw, layout: StoreLayout) -> None:
        missing = set(draw.episodes) - set(self._episodes)
        unknown = set(draw.keys) - set(known_keys(layout))
        if missing or unknown:
            raise ValueError(f"a draw of unknown episodes {missing} or keys {unknown}")
        lengths = np.array([self._episodes[key]["length"] for key in draw.episodes])
        first, end = draw.bounds[:, 0], draw.bounds[:, 1]
        inside = (first >= 0) & (end <= lengths)
        covers = (draw.offsets + draw.c > first) & (draw.offsets < end)
        if not (inside & covers).all() or not 1 <= draw.c <= layout.steps or draw.n < 1:
            raise ValueError(f"a draw of {draw.n} chunks of {draw.c} steps outside their episodes")

    def _copy(self, draw: RecordedDraw, targets: Mapping[str, Tensor]) -> None:
        """Bring the draw's episodes into the store and copy its chunks."""
        needed = dict.fromkeys(draw.episodes)
        for key in needed:
            if key in self._places:
                self._places.move_to_end(key)
        for key in needed:
            if key not in self._places:
                self._load(key)
        store, places = self._store, np.array([self._places[key] for key in draw.episodes])
        written, policies = store.written_at_ns[places], store.policy_version[places]
        versions = store.version[places]
        picked = DrawnChunks(places, draw.offsets, versions, draw.bounds, written, policies)
        copy_chunks(store, draw.c, picked, targets, None)

    def _load(self, key: EpisodeKey) -> None:
        """Put an episode where there is room, or where the one used longest ago was."""
        store, facts = self._store, self._episodes[key]
        arrays = read_episode(self._folder, facts, self._layout.fields)
        full = len(self._places) == store.layout.slots
        place = self._places.popitem(last=False)[1] if full else len(self._places)
        for name, array in arrays.items():
            store.entries(name, place)[: len(array)] = array
        segments: list[list[int]] = facts["segments"]
        store.segments[place] = len(segments)
        store.segment_bounds[place, : len(segments)] = np.reshape(segments, (-1, 2))
        for name in EPISODE_FACTS:
            getattr(store, name)[place] = facts[name]
        self._places[key] = place


class _CutStream(RecordedStream):
    """The draws of a loader's worker up to the recording's end, after which it may have gone on."""

    def __init__(self, folder: Path, until: str, **settings: Any) -> None:
        self._until = until
        super().__init__(folder, **settings)
