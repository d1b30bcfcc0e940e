"""Room on the disk: how much is left, and which files of ended cycles are removed to make some.

What goes:    of cycles before the present one whole folders of stages (data, weights, evaluations
              with their videos, attempts of jobs); of stages that are needed, training states and
              checkpoints but the one in use. Rows of the store, events and logs stay.
What is kept: every path that the state or configuration of any run of the store names (blessed
              policy, reference, mix, harvests), and all files of the present cycle of a run.
Order:        oldest cycle first.
Safety:       folders are opened one below the other and never through a link; nothing outside the
              folder of a run is touched. ``incidents.jsonl`` names files before they are removed.
Limits:       paths that only another store names are not known.
"""

import json
import os
import re
import shutil
import time
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Final, cast

from pydantic import Field, ValidationError

from cadenza.core.errors import CadenzaError, ConfigurationError
from cadenza.loop.config import BackendName, RetentionConfig
from cadenza.loop.contracts.records import Record
from cadenza.loop.incidents import IncidentLog, incidents_of
from cadenza.loop.store.jobstore import JobStore
from cadenza.loop.store.rows import Row
from cadenza.loop.validation import problems

#: Less than this may not last for a job that is about to begin, GiB = 2^30 bytes. A native cycle
#: writes some ten MB, one checkpoint of a large LeRobot policy with its optimizer several GB.
SHORT_GIB: Final[dict[BackendName, float]] = {"native": 1.0, "lerobot": 10.0}


class DiskSpace(Record):
    """Room on the disk of a folder, GiB: what is free to this user, and less than what is short."""

    free_gib: float = Field(ge=0.0)
    short_gib: float

    @property
    def is_short(self) -> bool:
        """Whether the next job may not have room."""
        return self.free_gib < self.short_gib


def disk_space(folder: Path, backend: BackendName) -> DiskSpace | None:
    """Return the room that a run of ``backend`` has; None where its folder cannot be seen."""
    try:
        free = shutil.disk_usage(folder).free / 2**30
    except OSError:
        return None
    return DiskSpace(free_gib=free, short_gib=SHORT_GIB[backend])


def shortage(space: DiskSpace | None, folder: Path) -> str:
    """Return a warning about a disk that is nearly full; empty for any other, or an unknown one."""
    if space is None or not space.is_short:
        return ""
    return (
        f"disk nearly full: {space.free_gib:.1f} GiB left at {folder}, less than "
        f"{space.short_gib:g} GiB may not last for the next job; make room, a full disk fails the "
        "run (`cadenza loop prune` removes what ended cycles left)"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A folder of an ended cycle that no run needs: its path below the run's folder, and size.

    ``newer`` counts the ended cycles of the run after it.
    """

    run_id: str
    folder: Path
    path: PurePath
    newer: int
    ended_at: float
    bytes: int


#: Kind of the incident that tells what was removed.
PRUNED: Final = "pruned"
_SECONDS: Final = {"m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES: Final = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
#: Folders of a training that only its continuation needs.
_STATES: Final = ("work", "training_state")
_CHECKPOINTS: Final = "checkpoints"


def leftovers(store: JobStore, workdir: Path, run_ids: Sequence[str]) -> list[Leftover]:
    """Return the folders of ended cycles that no run of the store needs, oldest of each run first.

    Raises:
        IntegrityError: A stored state is damaged, so that nobody knows what is needed.
    """
    needed = {path for row in store.list_runs() for path in _needed(row, store, workdir)}
    return [one for run_id in run_ids for one in _of_run(store, workdir, run_id, needed)]


def _of_run(store: JobStore, workdir: Path, run_id: str, needed: set[Path]) -> Generator[Leftover]:
    state, _ = store.load_state(run_id)
    ended = {
        row["idx"]: row["finished_at"]
        for row in store.cycles_for(run_id)
        if row["finished_at"] is not None and row["idx"] < state.cycle
    }
    root = workdir.resolve() / run_id
    for place, (cycle, ended_at) in enumerate(sorted(ended.items())):
        for stage in _folders(root / f"cycle_{cycle}") if not root.is_symlink() else ():
            for path in _parts(stage, needed):
                yield Leftover(
                    run_id=run_id,
                    folder=root,
                    path=PurePath(path.relative_to(root)),
                    newer=len(ended) - 1 - place,
                    ended_at=ended_at,
                    bytes=size_of(path),
                )


def parse_rules(
    older_than: str | None, keep_cycles: int | None, max_size: str | None
) -> RetentionConfig:
    """Return the rules of a command line.

    Raises:
        ConfigurationError: There is none, or one is malformed.
    """
    if (older_than, keep_cycles, max_size) == (None, None, None):
        raise ConfigurationError(
            "prune: expected a rule, got none; name --older-than 14d, --keep-cycles 5 or "
            "--max-size 50GB."
        )
    words = {"older_than": older_than, "keep_cycles": keep_cycles, "max_size": max_size}
    try:
        return RetentionConfig.model_validate(words)
    except ValidationError as error:
        raise ConfigurationError(" ".join(problems(error, RetentionConfig))) from error


def select_leftovers(
    rules: RetentionConfig, found: Sequence[Leftover], *, total: int, now: float | None = None
) -> list[Leftover]:
    """Return the folders of ``found`` that the rules remove, of runs with ``total`` bytes.

    Without age and size these are all but those of the newest ``keep_cycles`` of each run.
    """
    moment = time.time() if now is None else now
    old = sorted(
        (one for one in found if one.newer >= (rules.keep_cycles or 0)),
        key=lambda one: (one.ended_at, one.run_id, one.path),
    )
    if rules.older_than is None and rules.max_size is None:
        return old if rules.keep_cycles is not None else []
    going: list[Leftover] = []
    age_s = None if rules.older_than is None else _number(rules.older_than, _SECONDS)
    most = None if rules.max_size is None else _number(rules.max_size, _BYTES)
    for one in old:
        too_old = age_s is not None and moment - one.ended_at > age_s
        too_much = most is not None and total > most
        if too_old or too_much:
            going.append(one)
            total -= one.bytes
    return going


def remove(going: Sequence[Leftover]) -> None:
    """Note folders of one run among its incidents, then remove them."""
    if going:
        size = sum(one.bytes for one in going)
        told = f"{size / 1e6:.1f} MB that ended cycles left are removed"
        paths = [str(one.path) for one in going]
        IncidentLog(going[0].folder).note(PRUNED, told, bytes=size, paths=paths)
    for one in going:
        with suppress(FileNotFoundError):  # somebody else removed it
            _remove_below(one.folder, one.path)


def prune(
    store: JobStore,
    workdir: Path,
    rules: RetentionConfig,
    *,
    run_id: str | None,
    dry_run: bool = False,
) -> dict[str, dict[str, Any]]:
    """Apply the rules to one run, or to all together; return what is removed, by run.

    Raises:
        UnknownRowError: There is no such run.
        OSError: The file system refused, or something is a link; what came before is gone.
    """
    run_ids = [row["id"] for row in store.list_runs()] if run_id is None else [run_id]
    total = sum(size_of(workdir / name) for name in run_ids)
    going = select_leftovers(rules, leftovers(store, workdir, run_ids), total=total)
    told: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(one.run_id for one in going):
        of_run = [one for one in going if one.run_id == name]
        size = sum(one.bytes for one in of_run)
        told[name] = {"bytes": size, "paths": [str(one.path) for one in of_run]}
        if not dry_run:
            remove(of_run)
    return told


def between_cycles(rules: RetentionConfig, store: JobStore, folder: Path) -> None:
    """Apply the rules of a run's configuration; a failure is an incident and stops nothing."""
    if rules == RetentionConfig():
        return
    try:
        prune(store, folder.parent, rules, run_id=folder.name)
    except (CadenzaError, OSError) as error:
        told = f"what ended cycles left was not removed: {error}"
        IncidentLog(folder).note("prune_failed", told)


def removed(folder: Path) -> set[str]:
    """Return the paths below a run's folder that were pruned and are still gone."""
    told = [one for one in incidents_of(folder) if one.get("kind") == PRUNED]
    paths = {str(path) for one in told for path in one.get("paths", ())}
    return {path for path in paths if not (folder / path).exists()}


def size_of(folder: Path) -> int:
    """Return the bytes of the files below a folder, links not followed."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(Path(place) / name).st_size
            except OSError:  # it was removed meanwhile
                continue
    return total


def _number(text: str, units: dict[str, Any]) -> float:
    digits, unit = cast("re.Match[str]", re.fullmatch(r"([0-9]+)([A-Za-z]+)", text)).groups()
    return int(digits) * units[unit]


def _needed(row: Row, store: JobStore, workdir: Path) -> Generator[Path]:
    """Yield the paths that a run needs, links resolved."""
    state: dict[str, Any] = json.loads(row["state_json"])
    state.pop("last_report", None)  # it was measured; nobody reads its policy again
    config: dict[str, Any] = json.loads(row["config_json"])
    named: list[Any] = [config.get(key) for key in ("seed_root", "reference", "policy_ladder")]
    blessed = store.blessed_checkpoint(row["id"])
    named += [state, config.get("data"), blessed and blessed["path"]]
    for text in _texts(named):
        if "/" in text and "\0" not in text:
            yield (workdir / row["id"] / text).resolve()


def _texts(value: Any) -> Generator[str]:
    """Yield the texts in a JSON document."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _texts(list(cast("dict[str, Any]", value).values()))
    elif isinstance(value, list):
        for one in cast("list[Any]", value):
            yield from _texts(one)


def _parts(folder: Path, needed: set[Path]) -> Generator[Path]:
    """Yield the folder of a stage if nobody needs it, else its parts that nobody needs."""
    if not _is_needed(folder, needed):
        yield folder
        return
    for inner in _folders(folder):
        if inner.name in _STATES and not _is_needed(inner, needed):
            yield inner
        for checkpoint in _folders(inner) if inner.name == _CHECKPOINTS else ():
            states = [one for one in _folders(checkpoint) if one.name in _STATES]
            whole = not _is_needed(checkpoint, needed)
            yield from [checkpoint] if whole else states


def _is_needed(folder: Path, needed: set[Path]) -> bool:
    return any(path.is_relative_to(folder) or folder.is_relative_to(path) for path in needed)


def _folders(folder: Path) -> list[Path]:
    """Return the folders in a folder, none of them a link, in order of their names."""
    if folder.is_symlink() or not folder.is_dir():
        return []
    with os.scandir(folder) as found:
        return sorted(Path(one) for one in found if one.is_dir(follow_symlinks=False))


def _remove_below(folder: Path, path: PurePath) -> None:
    """Remove a folder below another one, none of them a link; an `OSError` if one is."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    handle = os.open(folder, flags)
    try:
        for part in path.parts[:-1]:
            inner = os.open(part, flags, dir_fd=handle)
            os.close(handle)
            handle = inner
        shutil.rmtree(path.name, dir_fd=handle)
    finally:
        os.close(handle)
