"""`cadenza doctor`: is this machine ready, and if not, what to do."""

import os
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cadenza import __version__
from cadenza.cli.output import AsJson, ExitCode, print_json, print_table, typed_exits
from cadenza.core.errors import CadenzaError

if TYPE_CHECKING:
    from cadenza.loop.doctor import Check

#: Optional dependency -> what works without it, and the extra that installs it.
_OPTIONAL: Final = {
    "scipy": ("training, evaluation and reports", "train"),
    "sqlalchemy": ("the improvement loop", "loop"),
    "pyarrow": ("LeRobot datasets", "lerobot"),
    "tensordict": ("streams into a training", "stream"),
    "wandb": ("Weights & Biases logging", "wandb"),
    "tensorboard": ("TensorBoard logging", "tensorboard"),
    "pettingzoo": ("PettingZoo view of the tasks", "pettingzoo"),
    "onnx": ("policies as ONNX files", "onnx"),
    "onnxruntime": ("running and checking ONNX files", "onnx"),
}


def doctor(
    folder: Annotated[
        Path, typer.Option("--folder", help="Where results would be written.")
    ] = Path(),
    as_json: AsJson = False,
) -> None:
    """Check that this machine can train and evaluate, and say how to mend what is missing."""
    with typed_exits(as_json=as_json):
        checks = examine(folder)
        healthy = all(check.level != "fail" for check in checks)
        if as_json:
            print_json({"ok": healthy, "findings": [_finding(check) for check in checks]})
        else:
            print_checks(f"cadenza {__version__}", checks, warn="-")
    if not healthy:
        raise typer.Exit(ExitCode.CHECK_FAILED)


def print_checks(title: str, checks: "Sequence[Check]", *, warn: str) -> None:
    """Write checks to stdout as a table, ``warn`` before what others need."""
    marks = {"ok": "ok", "warn": warn, "fail": "FAIL"}
    rows = [
        (marks[one.level], one.name, one.detail + (f"; {one.fix}" if one.fix else ""))
        for one in checks
    ]
    counts = [f"{sum(one.level == key for one in checks)} {mark}" for key, mark in marks.items()]
    print_table(title, ("", "what", "found"), rows, note=", ".join(counts))


def _finding(check: "Check") -> dict[str, Any]:
    """Return a check as it stands in the JSON; what is missing for nobody here is not required."""
    named = check._asdict()
    level = named.pop("level")
    return {**named, "ok": level == "ok", "required": level != "warn"}


def examine(folder: Path) -> "list[Check]":
    """Return every check; results would be written to ``folder``."""
    from cadenza.loop.doctor import NEEDED_GIB, Check, disk_check, python_check, tried

    packages = ", ".join(f"{name} {_version(name)}" for name in ("torch", "numpy", "gymnasium"))
    tries = {
        "folder": lambda: _written(folder),
        "safety filter": _filter_detail,
        "determinism": _determinism_detail,
    }
    return [
        python_check(),
        Check("packages", "ok", packages),
        Check("compute", "ok", _computing()),
        _gpu(),
        disk_check(folder, enough_gib=NEEDED_GIB),
        _git(folder),
        *(tried(name, check, missing="warn") for name, check in tries.items()),
        *(_optional(name) for name in _OPTIONAL),
    ]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _computing() -> str:
    import torch

    from cadenza.core.device import device_report, resolve_device

    report = device_report(resolve_device("auto"))
    return f"{os.cpu_count()} cores, {report}, {torch.get_num_threads()} torch threads"


def _gpu() -> "Check":
    from cadenza.core.device import cuda_fault
    from cadenza.loop.doctor import Check

    fault = cuda_fault()
    if fault is None:
        return Check("GPU", "ok", "works; agents use it with device='cuda' or 'auto'")
    return Check("GPU", "warn", f"{fault}; everything runs on the CPU")


def _written(folder: Path) -> str:
    from cadenza.core.files import require_room_for

    require_room_for(folder)
    return f"can write to {folder.resolve()}"


def _git(folder: Path) -> "Check":
    from cadenza.core.provenance import GIT_SHA_UNKNOWN, git_state
    from cadenza.loop.doctor import Check

    folder = folder.resolve()
    state = git_state(str(next(path for path in (folder, *folder.parents) if path.exists())))
    if state.sha == GIT_SHA_UNKNOWN:
        told = "no repository here; results will carry commit 'unknown'"
        return Check("git", "warn", told)
    changed = ", with uncommitted changes" if state.dirty else ""
    return Check("git", "ok", f"commit {state.sha[:12]}{changed}")


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


def _optional(package: str) -> "Check":
    from cadenza.loop.doctor import Check

    version = _version(package)
    purpose, extra = _OPTIONAL[package]
    if version:
        return Check(package, "ok", f"{version}, for {purpose}")
    return Check(package, "warn", f"pip install 'cadenza[{extra}]': {purpose}")
