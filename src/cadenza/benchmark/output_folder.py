"""The output folder of long work: checked before the first episode, locked while a process works.

An evaluation or a zoo takes a folder by its mode (`open_output_folder`) and seals in it what was
asked for (`claim`), a job by its flags (`open_job_folder`): started again it finds its own folder
and goes on. One with other flags is refused, so that a product never mixes two requests; code that
has changed since makes the job start over.
"""

import fcntl
import logging
import os
import shutil
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast

from cadenza.core.errors import (
    ConfigurationError,
    IntegrityError,
    NotReadyError,
    StorageError,
    refuse,
)
from cadenza.core.files import (
    atomic_write_bytes,
    canonical_json,
    fsync_folder,
    make_folder,
    remove_temporaries,
    require_room_for,
    sha256_bytes,
)
from cadenza.core.provenance import source_digest
from cadenza.core.strict_json import parse_json_object, read_sealed_json, write_sealed_json

_LOGGER = logging.getLogger(__name__)

#: Lock file of a job's output folder; the operating system frees it when the job dies.
_LOCK_NAME: Final = ".lock"
#: Marks a folder as ours, so that starting over never deletes anything else.
_MARKER_NAME: Final = ".cadenza-output"

#: What evaluations, zoos and trainings, suites and sweeps write down before they do anything.
_REQUESTS: Final = ("plan.json", "request.json", "suite.json", "sweep.json")
#: What to do about a folder that is for something else.
_ELSEWHERE: Final = "use another folder, or empty it (--overwrite) to start over"

#: Says which run a folder holds, for jobs that put another run's results aside.
_IDENTITY_NAME: Final = ".cadenza-identity"

#: ``"new"`` wants an empty folder, ``"resume"`` goes on, ``"overwrite"`` starts over.
OutputMode: TypeAlias = Literal["new", "resume", "overwrite"]


def output_mode(*, resume: bool, overwrite: bool) -> OutputMode:
    """Return the mode that two flags ask for.

    Raises:
        ConfigurationError: They ask for both.
    """
    if resume and overwrite:
        raise ConfigurationError(
            "output folder: expected resume or overwrite, got both; resume continues a run, "
            "overwrite deletes it."
        )
    if overwrite:
        return "overwrite"
    return "resume" if resume else "new"


def require_outside(folder: Path, inputs: Iterable[Path]) -> None:
    """Refuse to empty a folder that the work in it reads.

    Raises:
        ConfigurationError: An input lies in ``folder``, or is ``folder`` itself.
    """
    for path in inputs:
        if path.resolve().is_relative_to(folder.resolve()):
            raise ConfigurationError(
                f"{folder}: expected a folder without what the work reads, as it would be emptied, "
                f"got one with {path}; choose another one."
            )


@contextmanager
def open_output_folder(folder: Path, *, mode: OutputMode) -> Generator[None]:
    """Create or check ``folder``, prove it writable, and hold its lock for the body.

    Raises:
        ConfigurationError: The folder is a file, holds something although ``mode`` is ``"new"``, or
            holds something that is not the output of such a job.
        NotReadyError: Another process works in the folder.
        StorageError: The file system refused.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigurationError(f"{folder}: expected a folder, got a file; choose another name.")
    _check_content(folder, mode)
    with _locked_or_gone(folder, _LOCK_NAME, (_MARKER_NAME, *_REQUESTS)):
        atomic_write_bytes(folder / _MARKER_NAME, b"Output folder of cadenza.\n")
        if mode == "overwrite":
            empty(folder, keep=(_LOCK_NAME, _MARKER_NAME))
        yield


@contextmanager
def _locked_or_gone(folder: Path, lock: str, names: Collection[str]) -> Generator[None]:
    """Hold a folder's lock; where the body raises and made no files but ``names``, undo it all."""
    missing = [path for path in (folder, *folder.absolute().parents) if not path.exists()]
    before = {path.name for path in folder.iterdir()} if folder.is_dir() else set[str]()
    with locked(folder, lock):
        try:
            yield
        except BaseException:
            made = [path for path in folder.iterdir() if path.name not in before]
            files = {f.name for path in made for f in (path, *path.rglob("*")) if f.is_file()}
            if files <= {lock, *names}:
                with suppress(OSError):  # another process may have begun there
                    for path in made:
                        shutil.rmtree(path) if path.is_dir() else path.unlink()
                    for path in missing:  # the innermost first
                        path.rmdir()
            raise


def _check_content(folder: Path, mode: OutputMode) -> None:
    names = {path.name for path in folder.iterdir()} if folder.exists() else set[str]()
    if not names - {_LOCK_NAME, _MARKER_NAME}:
        return
    if _MARKER_NAME not in names:
        raise ConfigurationError(
            f"{folder}: expected a new or empty folder or the output of an earlier run, got a "
            f"folder with {sorted(names)[:5]}; choose another one."
        )
    if mode == "new":
        raise ConfigurationError(
            f"{folder}: expected a new or empty folder, got one with results; pass --resume to go "
            "on, --overwrite to start over, or choose another folder."
        )


def claim(
    path: Path,
    asked: Mapping[str, Any],
    *,
    kind: str,
    notes: Callable[[], Mapping[str, Any]] = dict,
    growing: str = "",
) -> dict[str, Any]:
    """Seal in ``path`` what its folder is for, or check that it is for the same; return it.

    Args:
        path: File of the request, in a folder that is open.
        asked: Settings, and digests of what else decides the bytes, as JSON values.
        kind: Kind of the sealed file.
        notes: Makes what is sealed with the first request, and not compared.
        growing: Key of a list that a later request may lengthen.

    Raises:
        ConfigurationError: As `require_same_kind` and `require_same_request`.
        IntegrityError: The file is damaged.
    """
    require_same_kind(path, kind)
    is_new = not path.exists()
    stored = {**notes(), **asked} if is_new else read_sealed_json(path, kind=kind)
    longer: dict[str, Any] = {}
    if growing and set(stored.get(growing, ())) < set(asked[growing]):
        longer = {growing: asked[growing]}
    require_same_request(path.parent, {key: stored.get(key) for key in asked} | longer, asked)
    if is_new or longer:
        write_sealed_json(path, {**stored, **longer}, kind=kind)
    return stored


def require_same_kind(path: Path, kind: str | None = None) -> None:
    """Refuse to go on in a folder that is for another kind of work than the request ``path``.

    Raises:
        ConfigurationError: Another request lies there, or ``path`` is sealed as another ``kind``.
        IntegrityError: The file is damaged.
    """
    others = [name for name in _REQUESTS if name != path.name and (path.parent / name).exists()]
    if kind is not None and path.is_file():
        found = parse_json_object(path.read_bytes(), source=str(path)).get("kind", kind)
        others += [str(found)] if found != kind else []
    if others:
        raise ConfigurationError(
            f"{path.parent}: expected a folder for this kind of work, got one with {others[0]!r}; "
            f"{_ELSEWHERE}."
        )


def require_same_request(folder: Path, stored: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Refuse to go on in a folder with something else than it is for.

    Raises:
        ConfigurationError: The requests, both as JSON values, differ; names the first difference.
    """
    before, now = dict(_leaves(stored)), dict(_leaves(asked))
    for name in (name for name in now | before if now.get(name) != before.get(name)):
        refuse(
            ConfigurationError,
            f"{folder}",
            expected=f"what this folder is for, with {name} = {before.get(name)!r:.200}",
            got=f"{now.get(name)!r:.200}",
            do=_ELSEWHERE,
        )


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested sections, and of lists of sections, by dotted name."""
    sections = value
    if isinstance(value, list) and all(isinstance(x, dict) for x in cast("list[Any]", value)):
        sections = dict(enumerate(cast("list[Any]", value)))
    if not (sections and isinstance(sections, dict)):
        yield place.removeprefix("."), value
        return
    for key, inner in cast("dict[Any, Any]", sections).items():
        yield from _leaves(inner, f"{place}.{key}")


def set_aside_other_run(folder: Path, identity: str) -> None:
    """Move the content of ``folder`` next to it unless it is of the run ``identity``.

    Call it inside `open_output_folder`. Nothing is deleted: the content goes to the first free of
    ``<folder>.1``, ``<folder>.2``, ..., which a warning names.
    """
    marker, wanted = folder / _IDENTITY_NAME, f"{identity}\n".encode()
    if marker.is_file() and marker.read_bytes() == wanted:
        return
    content = [path for path in folder.iterdir() if path.name not in {_LOCK_NAME, _MARKER_NAME}]
    if content:
        numbered = (folder.with_name(f"{folder.name}.{number}") for number in count(1))
        aside = next(path for path in numbered if not path.exists())
        atomic_write_bytes(aside / _MARKER_NAME, (folder / _MARKER_NAME).read_bytes())
        for path in sorted(content, key=lambda path: path.name == _IDENTITY_NAME):
            path.replace(aside / path.name)
        _LOGGER.warning("The results of other code or settings were moved to %s.", aside)
    atomic_write_bytes(marker, wanted)


@contextmanager
def locked(folder: Path, name: str) -> Generator[None]:
    """Hold a folder's lock; the system lets go of it when the process ends, however it ends.

    Raises:
        NotReadyError: Another process works in the folder.
        StorageError: The file system refused.
    """
    try:
        make_folder(folder)
        descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise StorageError(
            error.errno,
            f"{folder}: expected a folder to write to, got '{error.strerror}'; choose another one",
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise NotReadyError(
                f"{folder}: expected no other process in this folder, got a running one; wait "
                "for it or choose another folder."
            ) from error
        yield
    finally:
        os.close(descriptor)


def empty(folder: Path, *, keep: Collection[str]) -> None:
    """Remove everything in a folder but the files to keep."""
    for path in folder.iterdir():
        if path.name in keep:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


#: Version of every result file.
SCHEMA_VERSION: Final = 1
_CLAIM: Final = "job.json"
_CLAIM_KIND: Final = "cadenza-job"
_RESULT_KIND: Final = "cadenza-job-result"
_BLOCK_KIND: Final = "cadenza-job-block"
_LOCK: Final = "job.lock"
_WORK: Final = "work"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFolder:
    """A folder that belongs to one job.

    Attributes:
        root: The folder.
        kind: Name of the job.
        request: Its flags and the digests of what it reads; no paths.
        code_sha256: Digest of the code that does it.
    """

    root: Path
    kind: str
    request: Mapping[str, Any]
    code_sha256: str

    @property
    def work(self) -> Path:
        """Folder of what is unfinished; made on the first write."""
        return self.root / _WORK

    @property
    def request_sha256(self) -> str:
        """Digest of the request."""
        return sha256_bytes(canonical_json(dict(self.request)))

    def new_draft(self, name: str) -> Path:
        """Return where to write a folder that `publish` moves into place; nothing lies there."""
        draft = self.work / name
        if draft.exists():
            shutil.rmtree(draft)
        return draft

    def publish(self, draft: Path, name: str) -> Path:
        """Move ``draft``, a finished folder, to ``name`` in one step."""
        target = self.root / name
        try:
            draft.rename(target)
            fsync_folder(self.root)
        except OSError as error:
            raise StorageError(
                error.errno,
                f"{target}: expected to move the finished {name} here, got '{error.strerror}'; "
                "run the same command again",
            ) from error
        return target

    def drop_work(self) -> None:
        """Remove what is unfinished."""
        if self.work.exists():
            shutil.rmtree(self.work)

    def write_result(self, path: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Write the result file, the job's last act, and return its facts."""
        full = {
            **facts,
            "job": self.kind,
            "request": dict(self.request),
            "request_sha256": self.request_sha256,
            "code_sha256": self.code_sha256,
        }
        write_sealed_json(path, full, kind=_RESULT_KIND, schema_version=SCHEMA_VERSION)
        return full


@contextmanager
def open_job_folder(
    root: Path,
    kind: str,
    request: Mapping[str, Any],
    *,
    result: Path | None = None,
    code_sha256: str | None = None,
) -> Generator[JobFolder]:
    """Yield the folder of a job, claimed and locked; it is made if it does not exist.

    ``request`` are the flags and digests that determine the product, ``result`` is where its result
    file will be, if it has one; None as ``code_sha256`` says that only this package's code does the
    job. A job that fails before it kept anything leaves neither the folder nor anything in it.

    Raises:
        ConfigurationError: The folder belongs to another request, or holds foreign files; the
            result file is another job's, or none.
        NotReadyError: Another process works in it.
        StorageError: The file system refused.
    """
    code = code_sha256 or source_digest()
    folder = JobFolder(root=root, kind=kind, request=request, code_sha256=code)
    if result is not None:
        _require_own_result(folder, result)
        require_room_for(result.parent)
    with _locked_or_gone(root, _LOCK, (_CLAIM,)):
        _claim(folder)
        remove_temporaries(root)
        yield folder


def _require_own_result(folder: JobFolder, path: Path) -> None:
    """Raise if the result file exists and is not that of an earlier start of the job."""
    if not path.exists():
        return
    try:
        facts = read_sealed_json(path, kind=_RESULT_KIND, schema_version=SCHEMA_VERSION)
    except (IntegrityError, OSError):
        facts = {}
    found = (facts.get("job"), facts.get("request_sha256"))
    if found != (folder.kind, folder.request_sha256):
        raise ConfigurationError(
            f"--result-json {path}: expected a new file, or the result of this very job, "
            f"got {'that of another one' if facts else 'another file'}; choose another one."
        )


def _claim(folder: JobFolder) -> None:
    """Make the folder this request's, or find that it is."""
    path = folder.root / _CLAIM
    facts = {
        "job": folder.kind,
        "request": dict(folder.request),
        "code_sha256": folder.code_sha256,
    }
    if not path.exists():
        foreign = sorted(p.name for p in folder.root.iterdir() if not _is_ours(p.name))
        if foreign:
            raise ConfigurationError(
                f"--out {folder.root}: expected a new folder or one of this job, got "
                f"{foreign[0]!r} in it; choose another one."
            )
        write_sealed_json(path, facts, kind=_CLAIM_KIND)
        return
    try:
        before = read_sealed_json(path, kind=_CLAIM_KIND)
    except IntegrityError as error:
        raise ConfigurationError(
            f"--out {folder.root}: expected the folder of this job, got a damaged {_CLAIM} "
            f"({error}); choose another one."
        ) from error
    changed = _differences(before, facts)
    if changed:
        raise ConfigurationError(
            f"--out {folder.root}: expected the folder of this job, got that of another request "
            f"(different: {', '.join(changed)}); choose another one."
        )
    if before != facts:
        _LOGGER.warning("%s: the code has changed since, the job starts over", folder.root)
        empty(folder.root, keep=(_LOCK, _CLAIM))
        write_sealed_json(path, facts, kind=_CLAIM_KIND)


def _is_ours(name: str) -> bool:
    return name == _LOCK or name.startswith(f".{_CLAIM}.")


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the names of what two claims disagree on, the code left out."""
    if before.get("job") != now["job"]:
        return ["job"]
    old, new = cast("dict[str, Any]", before["request"]), now["request"]
    return sorted(name for name in {*old, *new} if old.get(name) != new.get(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Finished parts of a job, one sealed file each, so that a killed job loses one part.

    Attributes:
        folder: Where they are.
        request_sha256: Whose parts; those of other requests are not taken.
    """

    folder: Path
    request_sha256: str

    def __post_init__(self) -> None:
        remove_temporaries(self.folder)

    def read(self, number: int) -> dict[str, Any] | None:
        """Return part ``number``; None if it was never finished, or cannot be used."""
        path = self._path(number)
        if not path.exists():
            return None
        try:
            facts = read_sealed_json(path, kind=_BLOCK_KIND)
        except IntegrityError as error:
            _LOGGER.warning("doing part %d again: %s", number, error)
            return None
        if facts.pop("of", None) != [self.request_sha256, number]:
            _LOGGER.warning("doing part %d again: %s belongs to another job", number, path)
            return None
        return facts

    def write(self, number: int, facts: Mapping[str, Any]) -> None:
        """Store part ``number`` in one durable step."""
        owned = {**facts, "of": [self.request_sha256, number]}
        write_sealed_json(self._path(number), owned, kind=_BLOCK_KIND)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:05d}.json"
