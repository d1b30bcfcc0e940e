"""`cadenza doctor`: is this machine ready, and if not, what to do."""

import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from cadenza import __version__
from cadenza.cli.output import AsJson, ExitCode, print_json, print_table, typed_exits
from cadenza.core.errors import CadenzaError, MissingExtraError

#: Optional dependency -> what works without it, and the extra that installs it.
_OPTIONAL: Final = {
    "scipy": ("training, evaluation and reports", "train"),
    "sqlalchemy": ("the improvement loop", "loop"),
    "pyarrow": ("LeRobot datasets", "lerobot"),
    "tensordict": ("streams into a training", "stream"),
    "wandb": ("Weights & Biases logging", "wandb"),
    "tensorboard": ("TensorBoard logging", "tensorboard"),
    "pettingzoo": ("PettingZoo view of the tasks", "pettingzoo"),
}
#: A quickstart writes about 30 MB; a long training some hundred.
_MIN_FREE_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at; if it is not ok, the detail says what to do."""

    name: str
    ok: bool
    detail: str
    required: bool = True


def doctor(
    folder: Annotated[
        Path, typer.Option("--folder", help="Where results would be written.")
    ] = Path(),
    as_json: AsJson = False,
) -> None:
    """Check that this machine can train and evaluate, and say how to mend what is missing."""
    with typed_exits(as_json=as_json):
        findings = examine(folder)
        healthy = all(finding.ok for finding in findings if finding.required)
        if as_json:
            print_json({"ok": healthy, "findings": [asdict(finding) for finding in findings]})
        else:
            marks = {True: "ok", False: "FAIL"}
            rows = [
                (marks[f.ok] if f.required or f.ok else "-", f.name, f.detail) for f in findings
            ]
            print_table(f"cadenza {__version__}", ("", "what", "found"), rows)
    if not healthy:
        raise typer.Exit(ExitCode.CHECK_FAILED)


def examine(folder: Path) -> list[Finding]:
    """Return every finding; results would be written to ``folder``."""
    free = shutil.disk_usage(_existing(folder)).free
    findings = [
        Finding(
            name="python",
            ok=sys.version_info[:2] >= (3, 11),
            detail=f"{platform.python_version()} on {platform.platform()}; 3.11 or newer is needed",
        ),
        Finding(
            name="packages",
            ok=True,
            detail=", ".join(
                f"{name} {_version(name)}" for name in ("torch", "numpy", "gymnasium")
            ),
        ),
        _compute(),
        Finding(
            name="disk",
            ok=free >= _MIN_FREE_BYTES,
            detail=f"{free / 2**30:.1f} GiB free at {folder.resolve()}; 1 GiB is needed",
        ),
        _writable(folder),
        _git(folder),
    ]
    findings += [_try("safety filter", _filter_detail), _try("determinism", _determinism_detail)]
    return findings + [_optional(name) for name in _OPTIONAL]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _compute() -> Finding:
    import torch

    from cadenza.core.device import device_report, resolve_device

    return Finding(
        name="compute",
        ok=True,
        detail=f"{os.cpu_count()} cores, {device_report(resolve_device('auto'))}, "
        f"{torch.get_num_threads()} torch threads",
    )


def _writable(folder: Path) -> Finding:
    from cadenza.core.files import atomic_write_bytes

    probe = _existing(folder) / ".cadenza-doctor"

    def write() -> str:
        atomic_write_bytes(probe, b"probe")
        probe.unlink()
        return f"can write to {folder.resolve()}"

    return _try("folder", write)


def _git(folder: Path) -> Finding:
    from cadenza.core.provenance import GIT_SHA_UNKNOWN, git_state

    state = git_state(str(_existing(folder)))
    known = state.sha != GIT_SHA_UNKNOWN
    detail = (
        f"commit {state.sha[:12]}{', with uncommitted changes' if state.dirty else ''}"
        if known
        else "no repository here; results will carry commit 'unknown'"
    )
    return Finding(name="git", ok=known, detail=detail, required=False)


def _filter_detail() -> str:
    """Drive an ego at a standing partner; the filter must let it near and never touch."""
    from cadenza.benchmark.training import closest_approach

    closest, contact = closest_approach()
    if closest < contact:
        raise CadenzaError(
            f"expected a distance of at least {contact:.3f} m, got {closest:.6f} m; "
            "reinstall the package and run `make test`"
        )
    return f"stopped {closest - contact:.4f} m before contact with a standing partner"


def _determinism_detail() -> str:
    """Train twice for a moment; the weights must be the same bytes."""
    from cadenza.benchmark.training import short_training_digest

    first, second = short_training_digest(), short_training_digest()
    if first != second:
        raise CadenzaError(
            f"expected equal weights from equal seeds, got {first[:12]} and {second[:12]}; "
            "set OMP_NUM_THREADS=1 and report this machine"
        )
    return f"two short trainings with one seed gave the same weights ({first[:12]})"


def _optional(package: str) -> Finding:
    version = _version(package)
    purpose, extra = _OPTIONAL[package]
    detail = (
        f"{version}, for {purpose}" if version else f"pip install 'cadenza[{extra}]': {purpose}"
    )
    return Finding(name=package, ok=version is not None, detail=detail, required=False)


def _try(name: str, check: Callable[[], Any]) -> Finding:
    """Return a finding whose detail is the result of ``check``, or its expected error."""
    try:
        return Finding(name=name, ok=True, detail=str(check()))
    except (CadenzaError, OSError) as error:
        required = not isinstance(error, MissingExtraError)
        return Finding(name=name, ok=False, detail=str(error), required=required)


def _existing(folder: Path) -> Path:
    """Return ``folder`` or its nearest parent that exists."""
    folder = folder.resolve()
    return next(path for path in (folder, *folder.parents) if path.exists())
