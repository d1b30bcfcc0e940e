"""Where a run comes from: code, dependencies, seed, and the id that follows from them.

Run id, scheme 2:  SHA-256 of canonical JSON {scheme, seed, run_kind, config_fingerprint, git_sha,
                   git_dirty, diff_hash, pyproject_hash, lock_hash, packages}, first 16 hex digits.
Run id, scheme 1:  SHA-256 of ``repr((seed, git_sha, pyproject_hash, run_kind[, fingerprint]))``;
                   kept to recognise old ids (`legacy_run_id`).
Promise:           the git state is read once per process and root, so a checkout that moves during
                   a long run cannot change the ids of its later parts.
Source digest:     every Python file of the package except the folders that only start runs or
                   show results; of code beside the package, the package or file that defines what
                   is used. Part of every cell key and job, so results of other code never mix.
"""

import hashlib
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from importlib.metadata import entry_points
from pathlib import Path
from types import CodeType
from typing import Any, Final, cast

from cadenza.core.errors import InputError, IntegrityError
from cadenza.core.files import canonical_json, sha256_bytes, sha256_file
from cadenza.core.git import run_git
from cadenza.core.plug_ins import GROUPS
from cadenza.core.shipped_configs import source_checkout

#: Stands for every fact that git could not tell: no repository, no git, no commit, time-out.
GIT_SHA_UNKNOWN: Final = "unknown"
#: Version of the way `compute_run_metadata` makes ids.
RUN_ID_SCHEME: Final = 2
#: Folders whose untracked files count as changed code.
SOURCE_ROOTS: Final = ("src", "configs")
#: Files that pin dependencies.
LOCK_FILES: Final = ("constraints.txt", "pylock.toml", "requirements.txt", "uv.lock", "poetry.lock")
#: Packages that can change a run's numbers.
_RECORDED_PACKAGES: Final = ("cadenza", "daqp", "gymnasium", "numpy", "scipy", "torch")
#: Names on a log line that only the log itself may set.
RESERVED_LOG_FIELDS: Final = frozenset(
    {
        "event",
        "git_sha",
        "level",
        "non_finite",
        "pyproject_hash",
        "run_id",
        "run_kind",
        "schema_version",
        "seed",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """Origin of one run; bound to every line it logs.

    Attributes:
        run_id: 16 hex digits that follow from all facts below except ``extra``.
        git_sha: Commit checked out, or `GIT_SHA_UNKNOWN`.
        pyproject_hash: SHA-256 of ``pyproject.toml``; of nothing if there is no such file.
        extra: Further facts to log; not part of the id.
        git_dirty: Whether tracked files or untracked sources differ from the commit; None: unknown.
        diff_hash: SHA-256 over the names and bytes of those files, or `GIT_SHA_UNKNOWN`.
        lock_hash: SHA-256 over the names and bytes of the files that pin dependencies.
        packages: Versions of Python and of the packages that can change the numbers; digests of the
            code beside this package.
    """

    run_id: str
    seed: int
    git_sha: str
    pyproject_hash: str
    run_kind: str
    extra: Mapping[str, str] = field(default_factory=dict[str, str])
    id_scheme: int = RUN_ID_SCHEME
    git_dirty: bool | None = None
    diff_hash: str = GIT_SHA_UNKNOWN
    lock_hash: str = GIT_SHA_UNKNOWN
    packages: Mapping[str, str] = field(default_factory=dict[str, str])
    config_fingerprint: str | None = None

    def log_fields(self) -> dict[str, Any]:
        """Return the fields that belong on every log line."""
        return {
            "run_id": self.run_id,
            "seed": self.seed,
            "git_sha": self.git_sha,
            "pyproject_hash": self.pyproject_hash,
            "run_kind": self.run_kind,
            **self.extra,
        }

    def origin_fields(self) -> dict[str, Any]:
        """Return the fields that are worth logging once per run."""
        return {
            "id_scheme": self.id_scheme,
            "git_dirty": self.git_dirty,
            "diff_hash": self.diff_hash,
            "lock_hash": self.lock_hash,
            "packages": dict(self.packages),
            "config_fingerprint": self.config_fingerprint,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GitState:
    """What git says about a working tree; None and `GIT_SHA_UNKNOWN` where it could not tell."""

    sha: str
    dirty: bool | None
    diff_hash: str


def compute_run_metadata(
    *,
    seed: int,
    run_kind: str,
    repo_root: Path | None,
    extra: Mapping[str, str] | None = None,
    config_fingerprint: str | None = None,
    code: Sequence[Any] = (),
) -> RunContext:
    """Return the origin of a run that starts now; runs of different kinds get different ids.

    Args:
        seed: Root seed, >= 0.
        run_kind: What the run is for.
        repo_root: Folder with ``pyproject.toml``, usually a git working tree; None for this
            package's own checkout. An installation has none, whatever folder the run starts in.
        extra: Further facts to log with every line; they do not change the id.
        config_fingerprint: Hash of the configuration, part of the id.
        code: Classes and functions that take part; the `outside_code` among them is part of the id.

    Raises:
        InputError: Negative seed, empty kind, or an ``extra`` that is not text to text or would
            hide a context field.
    """
    if seed < 0 or not run_kind:
        raise InputError(
            "compute_run_metadata: expected seed >= 0 and a run_kind that is not empty, "
            f"got seed {seed} and run_kind {run_kind!r}."
        )
    facts: dict[str, Any] = {"seed": int(seed), "run_kind": run_kind}
    root = repo_root or source_checkout() or Path(os.devnull)  # of which nothing is known
    git = git_state(str(root))
    facts |= {"git_sha": git.sha, "git_dirty": git.dirty, "diff_hash": git.diff_hash}
    locks = [name for name in LOCK_FILES if (root / name).is_file()]
    facts |= {"pyproject_hash": pyproject_hash(root), "lock_hash": _hash_files(root, locks)}
    facts |= {"packages": {**_package_versions(), **outside_code(*code)}}
    facts |= {"config_fingerprint": config_fingerprint}
    run_id = sha256_bytes(canonical_json({"scheme": RUN_ID_SCHEME, **facts}))[:16]
    return RunContext(run_id=run_id, extra=_checked_extra(extra or {}), **facts)


def legacy_run_id(
    *,
    seed: int,
    git_sha: str,
    pyproject_hash: str,
    run_kind: str,
    config_fingerprint: str | None = None,
) -> str:
    """Return the id that scheme 1 gives, as archived runs carry it."""
    material: tuple[int | str, ...] = (int(seed), git_sha, pyproject_hash, run_kind)
    if config_fingerprint is not None:
        material = (*material, config_fingerprint)
    return sha256_bytes(repr(material).encode("utf-8"))[:16]


def pyproject_hash(repo_root: Path) -> str:
    """Return the SHA-256 of ``pyproject.toml`` under ``repo_root``; of nothing if it is missing."""
    path = repo_root / "pyproject.toml"
    return sha256_file(path) if path.is_file() else sha256_bytes(b"")


@cache
def git_state(repo_root: str) -> GitState:
    """Return the git state of ``repo_root``, read once per process.

    Git failures of any kind give `GIT_SHA_UNKNOWN` and None; nothing is raised.
    """
    head = _git(repo_root, "rev-parse", "--verify", "HEAD^{commit}")
    if head is None:
        return GitState(sha=GIT_SHA_UNKNOWN, dirty=None, diff_hash=GIT_SHA_UNKNOWN)
    sha = head.decode("ascii").strip()
    # Names only: unlike patch text they do not depend on the user's diff settings.
    tracked = _git(
        repo_root, "diff", "--name-only", "--no-renames", "--relative", "-z", "HEAD", "--", "."
    )
    roots = [root for root in SOURCE_ROOTS if (Path(repo_root) / root).is_dir()]
    untracked = b""
    if roots:
        listed = _git(repo_root, "ls-files", "--others", "--exclude-standard", "-z", "--", *roots)
        untracked = listed if listed is not None else b""
        tracked = tracked if listed is not None else None
    if tracked is None:
        return GitState(sha=sha, dirty=None, diff_hash=GIT_SHA_UNKNOWN)
    names = sorted({os.fsdecode(name) for name in (tracked + untracked).split(b"\0") if name})
    return GitState(sha=sha, dirty=bool(names), diff_hash=_hash_files(Path(repo_root), names))


def _git(repo_root: str, *arguments: str) -> bytes | None:
    """Return what git prints, or None if it fails in any way."""
    try:
        return run_git(Path(repo_root), *arguments)
    except IntegrityError:
        return None


def _hash_files(root: Path, names: list[str]) -> str:
    """Return one SHA-256 over the names and bytes of files; a missing file has its own mark."""
    digest = hashlib.sha256()
    for name in names:
        path = root / name
        if path.is_symlink():
            content = "link " + os.fspath(path.readlink())
        elif path.is_file():
            content = "file " + sha256_file(path)
        else:
            content = "folder" if path.is_dir() else "absent"
        digest.update(os.fsencode(name) + b"\0" + os.fsencode(content) + b"\0")
    return digest.hexdigest()


@cache
def _package_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that can change a run's numbers."""
    versions = {"python": platform.python_version()}
    for package in _RECORDED_PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "absent"
    return versions


def _checked_extra(extra: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of ``extra`` if every key and value may go on a log line."""
    for key, value in extra.items():
        if not (_is_text(key) and _is_text(value)):
            raise InputError(
                f"RunContext.extra: expected text to text, got {key!r}: {value!r}; convert it."
            )
        if key in RESERVED_LOG_FIELDS:
            raise InputError(
                f"RunContext.extra: expected keys other than {sorted(RESERVED_LOG_FIELDS)}, "
                f"got {key!r}; choose another name."
            )
    return dict(extra)


def _is_text(value: object) -> bool:
    """Return whether ``value`` is a string, whatever its annotation says."""
    return isinstance(value, str)


#: Folders without influence on any episode.
_NOT_COVERED: Final = frozenset({"cli", "web", "loop", "report"})


def source_digest(*used: Any) -> str:
    """Return the SHA-256 over the package's sources and over the `outside_code` of ``used``."""
    outside = outside_code(*used)
    own = _own_digest()
    return sha256_bytes(canonical_json({"cadenza": own, **outside})) if outside else own


def outside_code(*used: Any) -> dict[str, str]:
    """Return digests of the code beside this package that defines ``used`` classes and functions.

    They are by package or module, with the version of the distribution that offers it as a plug-in,
    over the sources as they are now.
    """
    found: dict[str, str] = {}
    for thing in used:
        names = str(thing.__module__).split(".")
        if names[0] == __name__.partition(".")[0]:
            continue
        paths = [".".join(names[:length]) for length in range(1, len(names) + 1)]
        places = [(path, getattr(sys.modules.get(path), "__file__", None)) for path in paths]
        path, file = next((place for place in places if place[1]), (paths[-1], None))
        if file is None:
            found[path] = _digest_without_file(thing)
        elif file.endswith("__init__.py"):
            found[_versioned(path)] = digest_of_sources(Path(file).parent, leave_out=frozenset())
        else:  # a script is called __main__ in one process and __mp_main__ in another
            label = Path(file).stem if path.endswith("main__") else _versioned(path)
            found[label] = sha256_file(Path(file))
    return found


@cache
def _own_digest() -> str:
    return digest_of_sources(Path(__file__).parents[1])


def digest_of_sources(root: Path, *, leave_out: frozenset[str] = _NOT_COVERED) -> str:
    """Return the SHA-256 over the Python files below ``root``, but for folders to ``leave_out``."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()):
        relative = path.relative_to(root)
        if leave_out.intersection(relative.parts[:-1]):
            continue
        content = path.read_bytes()
        digest.update(f"{relative.as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _versioned(module: str) -> str:
    """Return the name with the version of the plug-in distribution it belongs to, if it does."""
    top = module.partition(".")[0]
    for plug_in in (plug_in for group in GROUPS for plug_in in entry_points(group=group)):
        if plug_in.dist is not None and plug_in.module.partition(".")[0] == top:
            return f"{module} of {plug_in.dist.name} {plug_in.dist.version}"
    return module


def _digest_without_file(thing: Any) -> str:
    """Return the SHA-256 over what a class, or a function, of a notebook does and holds."""
    members: dict[str, Any] = {"": thing, **vars(thing)}
    members.pop("__firstlineno__", None)  # Python 3.13: the line it starts at
    return sha256_bytes(repr([(name, _content(held)) for name, held in members.items()]).encode())


def _content(member: Any) -> Any:
    """Return compiled code without the place it stands at, plain values, and types of the rest."""
    function = getattr(member, "__func__", getattr(member, "fget", member))
    code = getattr(function, "__code__", member)
    if isinstance(code, CodeType):
        return code.co_code, code.co_names, [_content(held) for held in code.co_consts]
    if isinstance(member, tuple):
        return [_content(held) for held in cast("tuple[Any, ...]", member)]
    return repr(member) if isinstance(member, str | bytes | int | float) else type(member).__name__
