"""Demonstrations: whole episodes from files, read one at a time.

    for episode in read_episodes("datasets/pusht"):
        print(episode.observations["state"].shape, episode.actions.shape, episode.success)

Sources:  folders of LeRobot (v3.0, v2.1) and Minari, NPZ and CSV files, and recordings of a stream;
          `read_episodes` says how each is laid out.
Names:    an observation that is one array is ``state``; of several, each has its own name, dots
          between the levels of a dict. LeRobot writes ``observation.`` before it.
Ends:     an episode that did not say that it terminated was cut off. LeRobot keeps no observation
          after the last action; nobody knows what a cut-off episode was worth from there on, so
          its last step is no target of a value.
Promise:  nothing outside the source is read, nothing is unpickled, and what is not as it says is an
          `IntegrityError` with the numbers of episode and column.
Axes:     L = steps of an episode.
"""

import csv
import hashlib
import json
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeAlias, cast, get_args, overload

import numpy as np
from numpy.typing import NDArray

from cadenza.core.checks import checked_names, checked_path
from cadenza.core.errors import InputError, IntegrityError, StorageError
from cadenza.core.extras import load_extra
from cadenza.core.files import confined_path
from cadenza.core.lerobot_dataset import IMAGE, INFO, LeRobotDataset
from cadenza.core.recordings import (
    JOURNAL_NAME,
    Field,
    FieldKind,
    damaged,
    read_episode,
    read_journal,
)
from cadenza.core.strict_json import parse_json_object

Array: TypeAlias = NDArray[Any]

#: Name of an observation that is one array.
STATE: Final = "state"
#: What a column is called, in LeRobot's datasets and in others.
_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "action": ("action", "actions"),
    "reward": ("next.reward", "reward", "rewards"),
    "terminated": ("next.terminated", "terminated", "terminations", "terminals"),
    "success": ("next.success", "success"),
}
_OBSERVATION: Final = re.compile(r"(?:observations?|obs)(?:\.(.+))?")
#: Column that says where each episode of one NPZ file ends: the number of its last step, plus one.
_ENDS: Final = "episode_ends"
#: Numbers that arrays may have: truth values, integers, floats.
_NUMBERS: Final = "biuf"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # eq=False: array == is ambiguous
class Episode:
    """One demonstration.

    Attributes:
        observations: Arrays by name, (L + 1, ...), or (L, ...) where the last one is unknown.
        actions: What was done, (L, ...).
        rewards: What each step earned, (L,); None if nobody noted it.
        terminated: Whether it ended by itself, so that nothing could have followed.
        success: Whether it solved the task; None if nobody judged.
    """

    observations: Mapping[str, Array]
    actions: Array
    rewards: Array | None = None
    terminated: bool = False
    success: bool | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "observations", MappingProxyType(dict(self.observations)))

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.actions)

    @property
    def truncated(self) -> bool:
        """Whether it was cut off."""
        return not self.terminated

    @property
    def targets(self) -> int:
        """How many steps, from the first on, a value can be learned from: the end is known."""
        known = all(len(values) > len(self) for values in self.observations.values())
        return len(self) if known or self.terminated else len(self) - 1

    @property
    def columns(self) -> Mapping[str, Array]:
        """Its arrays by the names that LeRobot gives them."""
        found = {f"observation.{name}": values for name, values in self.observations.items()}
        found["action"] = self.actions
        return found if self.rewards is None else found | {"next.reward": self.rewards}


@dataclass(frozen=True, slots=True)
class Column:
    """What an entry of a column is: its shape and the NumPy name of its type."""

    shape: tuple[int, ...]
    dtype: str


class Episodes(Sequence[Episode]):
    """Demonstrations that fit together; each is read, and checked, when it is asked for.

    A slice is a selection, ``episodes[:50]``.

    Attributes:
        source: Where they come from.
        rate_hz: Steps per second; None if unknown.
        columns: What each episode has.
    """

    def __init__(
        self,
        source: str,
        read: Callable[[int], Episode],
        numbers: Sequence[int],
        *,
        rate_hz: float | None = None,
    ) -> None:
        """Look at the first episode; ``read`` returns the one of a number among ``numbers``.

        Raises:
            InputError: There are none.
            IntegrityError: The first is damaged.
        """
        self.source: str = source
        self.rate_hz: float | None = rate_hz
        self._read, self._numbers = read, numbers
        if not numbers:
            raise InputError(f"{source}: expected at least one episode, got none.")
        first = read(numbers[0])
        self._check(first, numbers[0])
        self.columns: Mapping[str, Column] = _columns(first)

    @classmethod
    def of(cls, episodes: Sequence[Episode], *, rate_hz: float | None = None) -> "Episodes":
        """Return demonstrations that are in memory already; errors as of files."""
        listed = list(episodes)
        return cls("episodes", listed.__getitem__, range(len(listed)), rate_hz=rate_hz)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> Episode: ...
    @overload
    def __getitem__(self, index: slice) -> "Episodes": ...
    def __getitem__(self, index: int | slice) -> "Episode | Episodes":
        """Read an episode, or select some.

        Raises:
            IntegrityError: The episode is damaged, or unlike the first.
        """
        if isinstance(index, slice):
            return Episodes(self.source, self._read, self._numbers[index], rate_hz=self.rate_hz)
        number = self._numbers[index]
        episode = self._read(number)
        self._check(episode, number)
        found = _columns(episode)
        for name in sorted({*found, *self.columns}):
            if found.get(name) != self.columns.get(name):
                raise self._damaged(number, name, f"{self.columns.get(name)}", found.get(name))
        return episode

    def __iter__(self) -> Iterator[Episode]:
        """Read one after the other."""
        return (self[index] for index in range(len(self)))

    def summary(self) -> str:
        """Return a few lines about them; reads every episode."""
        steps = judged = won = ended = 0
        for episode in self:
            steps, ended = steps + len(episode), ended + episode.terminated
            judged, won = judged + (episode.success is not None), won + (episode.success is True)
        rate = "" if self.rate_hz is None else f" at {self.rate_hz:g} Hz"
        lines = [f"{self.source}: {len(self)} episodes, {steps} steps{rate}"]
        lines += [f"  {name}: {c.dtype} {c.shape}" for name, c in self.columns.items()]
        told = f"{won} of {judged} judged" if judged else "not judged"
        return "\n".join([*lines, f"  success: {told}; terminated: {ended}"])

    def sha256(self) -> str:
        """Return a digest of what they hold, wherever it lies; reads every episode."""
        digest = hashlib.sha256()
        for episode in self:
            facts = {name: [str(a.dtype), a.shape] for name, a in episode.columns.items()}
            ending = [episode.terminated, episode.success]
            digest.update(json.dumps([facts, ending], sort_keys=True).encode())
            for name in sorted(facts):
                digest.update(np.ascontiguousarray(episode.columns[name]).tobytes())
        return digest.hexdigest()

    def _check(self, episode: Episode, number: int) -> None:
        """Raise unless the arrays of an episode fit together and are finite numbers."""
        length = len(episode)
        if length < 1 or not episode.observations:
            raise self._damaged(number, "action", "observations and actions", f"{length} steps")
        ends = {len(values) for values in episode.observations.values()}
        for name, values in episode.columns.items():
            lengths = (length,)
            if name.startswith("observation."):
                lengths = (length, length + 1) if len(ends) == 1 else (max(ends),)
            if values.dtype.kind not in _NUMBERS:
                raise self._damaged(number, name, "numbers", values.dtype)
            if values.ndim < 1 or len(values) not in lengths:
                wanted = " or ".join(map(str, lengths))
                raise self._damaged(number, name, f"{wanted} entries", len(values))
            finite = np.isfinite(values)
            if not finite.all():
                place = tuple(map(int, np.argwhere(~finite)[0]))
                raise self._damaged(
                    number, name, "finite numbers", f"{values[place]} at step {place[0]}"
                )
        if episode.rewards is not None and episode.rewards.ndim != 1:
            raise self._damaged(number, "next.reward", "a number per step", episode.rewards.shape)

    def _damaged(self, number: int, column: str, expected: str, got: object) -> IntegrityError:
        return _broken(self.source, number, column, expected, got)


def _columns(episode: Episode) -> dict[str, Column]:
    return {n: Column(a.shape[1:], str(a.dtype)) for n, a in episode.columns.items()}


def _broken(source: object, number: int, column: str, expected: str, got: object) -> IntegrityError:
    return IntegrityError(
        f"{source}: episode {number}, column {column!r}: expected {expected}, got {got}."
    )


def read_episodes(path: str | Path, *, observations: Sequence[str] | None = None) -> Episodes:
    """Return the demonstrations in a file or folder; what it holds says what kind it is.

    - A LeRobot dataset, v3.0 or v2.1: columns ``observation.*``, ``action``, ``next.reward``,
      ``next.terminated``, ``next.success``. Images inside the tables are arrays; videos are not
      read.
    - A Minari dataset: its folder, or the folder ``data`` in it.
    - NPZ: a folder with one file per episode, or one file with all steps of all episodes one after
      another and ``episode_ends``. Arrays are called as above, or ``observations``, ``actions``,
      ``rewards``, ``terminated``, ``success``.
    - CSV: a folder with one file per episode, or one file with a column ``episode_index``. A vector
      is several columns, ``action.0``, ``action.1``; names are as above.
    - A recording of a stream, with the episodes that were drawn from.

    Args:
        path: The file or folder.
        observations: Names of the observations to read, such as ``["state"]``; None for all.

    Raises:
        InputError: There is nothing of these kinds, or no observation of these names.
        ConfigurationError: A LeRobot dataset has another layout.
        IntegrityError: The source is damaged.
        MissingExtraError: The package that reads it is not installed.
    """
    root = checked_path("read_episodes.path", path)
    wanted = None if observations is None else checked_names("read_episodes", observations)
    for sign, reader in _READERS.items():
        found = next(iter(sorted(root.glob(sign))), None) if root.is_dir() else None
        if found is not None or (sign.startswith("*") and root.is_file() and root.match(sign)):
            return reader(root, wanted)
    if root.name == "recordings.json" or (root / "recordings.json").is_file():
        raise InputError(
            f"{root}: expected demonstrations, got the positions that a report shows, without "
            "actions; collect episodes with `cadenza job collect`."
        )
    raise InputError(
        f"{root}: expected a LeRobot or Minari dataset, NPZ or CSV episodes or a recording of a "
        "stream, got none of them; check the path."
    )


def _read_lerobot(root: Path, wanted: Sequence[str] | None) -> Episodes:
    dataset = LeRobotDataset(root)
    roles = _roles(root, dataset.features, wanted)
    kinds = {name: str(dataset.features[name]["dtype"]) for name in roles.values()}
    refused = {n: k for n, k in kinds.items() if k != IMAGE and not _is_number(k)}
    if refused:
        rest = [n.partition(".")[2] for n in _seen(roles) if roles[n] not in refused]
        raise InputError(
            f"{root}: expected numbers and images inside the tables, got {refused}; read the rest "
            f"with read_episodes(path, observations={rest})."
        )

    def read(number: int) -> Episode:
        columns = dataset.read(number, roles.values())
        return _episode(root, number, {role: columns[name] for role, name in roles.items()})

    return Episodes(str(root), read, range(len(dataset.episodes)), rate_hz=dataset.rate_hz)


def _is_number(dtype: str) -> bool:
    """Return whether NumPy has such numbers."""
    try:
        return np.dtype(dtype).kind in _NUMBERS
    except TypeError:
        return False


def _roles(
    source: object, names: "Sequence[str] | Mapping[str, Any]", wanted: Sequence[str] | None
) -> dict[str, str]:
    """Return the columns of an episode by role: those of ``_NAMES``, ``observation.<name>``."""
    roles: dict[str, str] = {}
    for column in names:
        seen = _OBSERVATION.fullmatch(column)
        role = next((role for role, known in _NAMES.items() if column in known), None)
        if seen:
            role = f"observation.{seen[1] or STATE}"
            if wanted is not None and (seen[1] or STATE) not in wanted:
                continue
        if role in roles:
            raise InputError(
                f"{source}: expected one column for {role!r}, got {roles[role]!r} and {column!r}."
            )
        if role is not None:
            roles[role] = column
    missing = [] if wanted is None else [n for n in wanted if f"observation.{n}" not in roles]
    if missing or "action" not in roles or not _seen(roles):
        raise InputError(
            f"{source}: expected a column 'action' and observations{_told(wanted)}, got "
            f"{sorted(names)}."
        )
    return roles


def _told(wanted: Sequence[str] | None) -> str:
    return "" if wanted is None else f" {list(wanted)}"


def _seen(roles: Mapping[str, Any]) -> list[str]:
    return [role for role in roles if role.startswith("observation.")]


def _episode(source: object, number: int, found: Mapping[str, Array]) -> Episode:
    """Return an episode from its columns by role; flags are one per step or one for all."""
    rewards = found.get("reward")
    if rewards is not None and rewards.ndim == 2 and rewards.shape[1] == 1:
        rewards = rewards[:, 0]
    length = len(found["action"]) if found["action"].ndim else 0
    flags: dict[str, Array] = {}
    for name in ("terminated", "success"):
        if name in found:
            flag = np.atleast_1d(found[name])
            if flag.size not in (1, length) or not np.isin(flag, (0, 1)).all():
                got = flag.reshape(-1)[:8].tolist()
                raise _broken(source, number, name, f"{length} truth values", got)
            flags[name] = flag.reshape(-1).astype(bool)
    if "terminated" in flags and flags["terminated"][:-1].any():
        raise _broken(source, number, "terminated", "true in the last step alone", "more")
    return Episode(
        observations={role.partition(".")[2]: found[role] for role in _seen(found)},
        actions=found["action"],
        rewards=rewards,
        terminated=bool(flags["terminated"][-1]) if "terminated" in flags else False,
        success=bool(flags["success"].any()) if "success" in flags else None,
    )


def _read_minari(root: Path, wanted: Sequence[str] | None) -> Episodes:
    folder = root / "data" if (root / "data" / "metadata.json").is_file() else root
    path = folder / "metadata.json"
    metadata = parse_json_object(path.read_bytes(), source=str(path), finite=False)
    spaces = [metadata.get(f"{name}_space") for name in ("observation", "action")]
    if not all(isinstance(space, str) for space in spaces):  # Minari would make the environment
        raise IntegrityError(f"{path}: expected the spaces of the dataset, got {spaces}.")
    _refuse_links(folder)
    minari = load_extra("minari")
    try:
        dataset = minari.MinariDataset(folder)
        count = int(dataset.total_episodes)
    except (OSError, ValueError, KeyError, AssertionError, AttributeError) as error:
        raise IntegrityError(f"{folder}: expected a Minari dataset, got {error}.") from error

    def read(number: int) -> Episode:
        try:
            (data,) = dataset.iterate_episodes([number])
        except (OSError, ValueError, KeyError, AssertionError) as error:
            raise _broken(root, number, "observations", "a stored episode", error) from error
        infos = cast("Mapping[str, Any]", data.infos or {})
        columns: dict[str, Array] = {"action": data.actions, "reward": data.rewards}
        columns |= {f"observation.{n}": v for n, v in _flat(data.observations)}
        columns["terminated"] = data.terminations
        if "success" in infos:
            columns["success"] = np.asarray(infos["success"])[-len(data.rewards) :]
        for name, values in columns.items():
            if not isinstance(cast("object", values), np.ndarray):
                raise _broken(root, number, name, "one array", type(values).__name__)
        roles = _roles(root, columns, wanted)
        return _episode(root, number, {role: columns[name] for role, name in roles.items()})

    return Episodes(str(root), read, range(count))


def _flat(values: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the arrays inside dicts and tuples, each with its name."""
    if not isinstance(values, dict | tuple):
        yield name or STATE, values
        return
    nested = cast("Any", values)
    for key, inner in nested.items() if isinstance(values, dict) else enumerate(nested):
        yield from _flat(inner, f"{name}.{key}" if name else str(key))


def _refuse_links(folder: Path) -> None:
    """Raise if a file of Minari's leads out of the folder, by a link or inside HDF5."""
    for path in folder.rglob("*"):
        confined_path(folder, str(path.relative_to(folder)))
        if path.suffix == ".hdf5":
            hdf5 = load_extra("h5py")
            try:
                with hdf5.File(path, "r") as file:
                    _refuse_links_inside(hdf5, file, path)
            except OSError as error:
                raise IntegrityError(f"{path}: expected an HDF5 file, got {error}.") from error


def _refuse_links_inside(hdf5: Any, group: Any, path: Path) -> None:
    for name in group:
        if isinstance(group.get(name, getlink=True), hdf5.ExternalLink):
            raise IntegrityError(f"{path}: expected its own data alone, got a link at {name!r}.")
        entry = group[name]
        if isinstance(entry, hdf5.Group):
            _refuse_links_inside(hdf5, entry, path)
        elif entry.external or entry.is_virtual:
            raise IntegrityError(f"{path}: expected its own data alone, got files in {name!r}.")


def _files(root: Path, ending: str) -> list[Path]:
    """Return the files of a folder in the order of the numbers in their names, or ``root``."""
    if root.is_file():
        return [root]

    def order(path: Path) -> list[tuple[int, str]]:
        return [(int(t), "") if t.isdecimal() else (-1, t) for t in re.split(r"(\d+)", path.name)]

    try:
        names = sorted(root.glob(ending), key=order)
        return [confined_path(root, path.name) for path in names]
    except StorageError as error:
        raise IntegrityError(f"{root}: {error}") from error


#: What NumPy raises about files that are cut off, hold pickles or are no NPZ at all.
_UNREADABLE: Final = (
    OSError,
    ValueError,
    EOFError,
    KeyError,
    AttributeError,
    TypeError,
    NotImplementedError,
    zipfile.BadZipFile,
    zlib.error,
)


def _load_npz(path: Path, number: int = 0) -> dict[str, Array]:
    """Return the arrays of an NPZ file; pickled ones are refused."""
    name = "?"
    try:
        with np.load(path, allow_pickle=False) as file:
            found: dict[str, Array] = {}
            for name in file.files:
                found[name] = file[name]
            return found
    except _UNREADABLE as error:
        raise _broken(path, number, name, "an NPZ file of plain arrays", error) from error


def _read_npz(root: Path, wanted: Sequence[str] | None) -> Episodes:
    files = _files(root, "*.npz")
    if len(files) == 1:
        arrays = _load_npz(files[0])
        if _ENDS in arrays:
            return _read_steps(root, arrays, arrays.pop(_ENDS), wanted)

    def read(number: int) -> Episode:
        arrays = _load_npz(files[number], number)
        roles = _roles(files[number], arrays, wanted)
        found = {role: arrays[name] for role, name in roles.items()}
        return _episode(files[number], number, found)

    return Episodes(str(root), read, range(len(files)))


def _read_steps(
    root: Path, arrays: Mapping[str, Array], ends: Array, wanted: Sequence[str] | None
) -> Episodes:
    """Return episodes whose steps lie one after another in ``arrays``."""
    roles = _roles(root, arrays, wanted)
    steps = {role: arrays[name] for role, name in roles.items()}
    count = len(steps["action"]) if steps["action"].ndim else 0
    starts = np.concatenate(([0], ends.reshape(-1)))
    wrong = np.flatnonzero(np.diff(starts) < 1)
    if ends.dtype.kind not in "iu" or wrong.size or starts[-1] != count:
        number = int(wrong[0]) if wrong.size else len(ends) - 1
        raise _broken(root, number, _ENDS, f"numbers that increase to {count}", ends.tolist()[:9])
    for name, values in steps.items():
        if values.ndim < 1 or len(values) != count:
            raise _broken(root, 0, roles[name], f"{count} entries", values.shape)

    def read(number: int) -> Episode:
        part = slice(int(starts[number]), int(starts[number + 1]))
        return _episode(root, number, {role: values[part] for role, values in steps.items()})

    return Episodes(str(root), read, range(len(ends)))


def _read_csv(root: Path, wanted: Sequence[str] | None) -> Episodes:
    files = _files(root, "*.csv")
    if len(files) == 1:
        arrays, ends = _load_csv(files[0], 0, wanted)
        if ends is not None:
            return _read_steps(root, arrays, ends, wanted)

    def read(number: int) -> Episode:
        arrays, _ = _load_csv(files[number], number, wanted)
        roles = _roles(files[number], arrays, wanted)
        found = {role: arrays[name] for role, name in roles.items()}
        return _episode(files[number], number, found)

    return Episodes(str(root), read, range(len(files)))


def _load_csv(
    path: Path, number: int, wanted: Sequence[str] | None
) -> tuple[dict[str, Array], Array | None]:
    """Return the columns of a CSV file, float64; those named ``name.0``, ``name.1`` as one.

    And where its episodes end, if it has a column ``episode_index``.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header, *rows = [row for row in csv.reader(file) if row] or [[]]
    except (OSError, ValueError, csv.Error) as error:
        raise _broken(path, number, "?", "a CSV file", error) from error
    names = [name.strip() for name in header]
    if len(set(names)) != len(names):
        raise _broken(path, number, "?", "each column once", names)
    vectors: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        stem, _, last = name.rpartition(".")
        is_part = bool(stem) and last.isdecimal()
        parts = vectors.setdefault(stem if is_part else name, [])
        if is_part and int(last) != len(parts):
            raise _broken(path, number, name, f"{stem}.{len(parts)} next", name)
        parts.append(place)
    ends: Array | None = None
    numbers = np.full(len(rows), number)
    if "episode_index" in vectors:
        indices = _cells(path, names, rows, vectors["episode_index"], numbers)[:, 0]
        ends = _ends(path, indices)
        numbers = indices.astype(np.int64)
    for line, row in enumerate(rows):
        if len(row) != len(names):
            where = int(numbers[line])
            raise _broken(path, where, names[min(len(row), len(names) - 1)], "a cell a column", row)
    if "frame_index" in vectors:
        frames = _cells(path, names, rows, vectors["frame_index"], numbers)[:, 0]
        _require_frames(path, frames, numbers)
    found: dict[str, Array] = {}
    for name in _roles(path, vectors, wanted).values():
        values = _cells(path, names, rows, vectors[name], numbers)
        found[name] = values[:, 0] if names[vectors[name][0]] == name else values
    return found, ends


#: Truth values as text.
_TRUTHS: Final = {"true": "1", "false": "0"}


def _cells(
    path: Path,
    names: Sequence[str],
    rows: Sequence[Sequence[str]],
    places: Sequence[int],
    numbers: Array,
) -> Array:
    """Return the numbers in some columns of a table, float64; each row is of one episode."""
    found = np.empty((len(rows), len(places)))
    for line, row in enumerate(rows):
        for part, place in enumerate(places):
            text = "".join(row[place : place + 1]).strip()
            try:
                found[line, part] = float(_TRUTHS.get(text.lower(), text))
            except ValueError as error:
                number = int(numbers[line])
                raise _broken(path, number, names[place], "a number", repr(text)) from error
    return found


def _ends(path: Path, numbers: Array) -> Array:
    """Return where each episode ends whose steps have ``numbers``: 0, 0, ..., 1, 1, ..., 2."""
    ends = np.append(np.flatnonzero(np.diff(numbers)) + 1, len(numbers))
    found = numbers[ends - 1]
    wrong = np.flatnonzero(found != np.arange(len(found)))
    if wrong.size:
        number = int(wrong[0])
        raise _broken(path, number, "episode_index", f"{number} next", f"{found[number]:g}")
    return ends


def _require_frames(path: Path, frames: Array, numbers: Array) -> None:
    """Raise unless frames count up from 0 in every episode."""
    starts = np.flatnonzero(np.append(True, np.diff(numbers)))
    expected = np.arange(len(frames)) - np.repeat(starts, np.diff(np.append(starts, len(frames))))
    wrong = np.flatnonzero(frames != expected)
    if wrong.size:
        row = int(wrong[0])
        got = f"{frames[row]:g}"
        raise _broken(path, int(numbers[row]), "frame_index", f"{expected[row]} next", got)


def _read_recording(root: Path, wanted: Sequence[str] | None) -> Episodes:
    """Return the episodes of a stream's recording and of its workers, oldest first."""
    fields: list[Field] = []
    known: dict[tuple[Any, Any], tuple[Path, Mapping[str, Any]]] = {}
    for folder in (root, *(path.parent for path in sorted(root.glob(f"workers/*/{JOURNAL_NAME}")))):
        for body in read_journal(folder, allow_unfinished=True):
            if body["kind"] == "stream":
                fields = _fields(folder, body)
            elif body["kind"] == "episode":
                known.setdefault((body.get("slot"), body.get("version")), (folder, body))
    bodies = sorted(known.values(), key=lambda entry: int(entry[1].get("written_at_ns", 0)))
    roles = _roles(root, [field.name for field in fields], wanted)

    def read(number: int) -> Episode:
        folder, body = bodies[number]
        if type(body.get("length")) is not int or body["length"] < 1:
            raise damaged(folder, f"a length of episode {number}", repr(body.get("length")))
        arrays = read_episode(folder, body, fields)
        episode = _episode(root, number, {role: arrays[name] for role, name in roles.items()})
        success = {0: False, 1: True}.get(cast("int", body.get("success")))
        return replace(episode, success=success)

    return Episodes(str(root), read, range(len(bodies)))


def _fields(folder: Path, body: Mapping[str, Any]) -> list[Field]:
    """Return the fields that the first line of a recording describes."""
    try:
        fields = [
            Field(name=one["name"], shape=tuple(one["shape"]), dtype=one["dtype"], kind=one["kind"])
            for one in body["layout"]["fields"]
        ]
    except (KeyError, TypeError) as error:
        raise damaged(folder, "the fields of its episodes", f"{error!r}") from error
    for field in fields:
        sizes = [size for size in field.shape if type(size) is int and size > 0]
        is_known = _is_number(field.dtype) and field.kind in get_args(FieldKind)
        if not is_known or len(sizes) < len(field.shape):
            raise damaged(folder, "fields of numbers", f"{field}")
    return fields


#: Readers by the file that tells a source; of a folder, below it.
_READERS: Final[Mapping[str, Callable[[Path, Sequence[str] | None], Episodes]]] = {
    str(INFO): _read_lerobot,
    "dataset/meta/info.json": lambda root, wanted: _read_lerobot(root / "dataset", wanted),
    JOURNAL_NAME: _read_recording,
    "metadata.json": _read_minari,
    "data/metadata.json": _read_minari,
    "*.npz": _read_npz,
    "*.csv": _read_csv,
}
