"""The machine, the rules and the keys: everything but the store and LeRobot.

Secrets:  of keys only the names of the providers they belong to are told.
"""

import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cadenza.loop.config import LoopConfig
from cadenza.loop.disk_space import free_gib, obstacle
from cadenza.loop.doctor.check import Check, Level, tried
from cadenza.loop.doctor.configuration import (
    back_end_check,
    inputs_check,
    require_rules_allow,
)
from cadenza.loop.doctor.lerobot import lerobot_checks
from cadenza.loop.doctor.ray_cluster import ray_check
from cadenza.loop.doctor.store import store_check

#: A native run of some cycles writes some hundred MB; LeRobot's environment and policies far more.
_MIN_FREE_GIB: Final = 1.0
_ENOUGH_FREE_GIB: Final = {"native": 5.0, "lerobot": 30.0}
#: Streams of episodes and Ray keep their data there.
_ENOUGH_SHARED_GIB: Final = 0.5
#: Environment variables that hold the key of a provider; any of them will do.
_KEYS: Final = {
    "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
    "openai": ("OPENAI_API_KEY",),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
}


def examine(
    *,
    config: LoopConfig | None,
    store: Path | str,
    workdir: Path,
    environ: Mapping[str, str] = os.environ,
) -> list[Check]:
    """Return every check.

    Args:
        config: Configuration that must be able to run here; None for none in particular.
        store: Where the job store is or will be.
        workdir: Folder of all runs.
        environ: Environment variables.
    """
    backend = "native" if config is None else config.backend
    checks = [
        _python(),
        _compute(config),
        *lerobot_checks(environ, wanted=config if backend == "lerobot" else None),
        tried("constitution", "correct the rules or the configuration", lambda: _rules(config)),
        tried("store", None, lambda: store_check(store)),
        _disk(workdir, backend),
        _shared_memory(Path("/dev/shm")),  # noqa: S108 - looked at, not written to
        _language_model(config, environ),
    ]
    if config is not None and config.jobs.runner == "ray":
        checks.append(ray_check(config, environ))
    if config is not None:
        checks += [back_end_check(config), inputs_check(config)]
    return checks


def _python() -> Check:
    fine = (3, 11) <= sys.version_info[:2] < (3, 13)
    return Check(
        name="python",
        level="ok" if fine else "fail",
        detail=f"{platform.python_version()} on {platform.platform()}",
        fix=None if fine else "use Python 3.11 or 3.12",
    )


def _compute(config: LoopConfig | None) -> Check:
    import torch

    from cadenza.core.device import device_report, resolve_device

    detail = f"{os.cpu_count()} cores, {device_report(resolve_device('auto'))}"
    if torch.cuda.is_available():
        return Check(name="compute", level="ok", detail=detail)
    wanted = config is not None and config.improve.enabled and config.improve.device[:4] == "cuda"
    return Check(
        name="compute",
        level="fail" if wanted else "warn",
        detail=f"{detail}; no GPU, so max_gpu_hours counts the hours of all jobs",
        fix="set improve.device: cpu" if wanted else None,
    )


def _rules(config: LoopConfig | None) -> Check:
    from cadenza.loop.constitution import load_constitution
    from cadenza.loop.rules_in_force import rules_file, rules_of, shown_rules

    path = None if config is None else rules_file(config)
    constitution = load_constitution(None) if config is None else rules_of(config)
    if config is not None:
        require_rules_allow(config, constitution)
    allowed = constitution.rules.allowed_programs or ()
    return Check(
        name="constitution",
        level="ok",
        detail=f"{shown_rules(path, constitution.sha256)}, {len(allowed)} programs allowed",
    )


def _disk(workdir: Path, backend: str) -> Check:
    folder = workdir.resolve()
    blocking = obstacle(folder)
    if blocking is not None:
        return Check(
            name="disk",
            level="fail",
            detail=f"workdir: expected a folder, or room for one, got the file {blocking}",
            fix="name another folder in workdir, or with --workdir",
        )
    present = next(path for path in (folder, *folder.parents) if path.is_dir())
    free = free_gib(present)
    level: Level = "warn" if free >= _MIN_FREE_GIB else "fail"
    if not os.access(present, os.W_OK | os.X_OK):
        return Check(
            name="disk",
            level="fail",
            detail=f"may not write to {present}",
            fix="name a folder that you may write to, with --workdir",
        )
    enough = _ENOUGH_FREE_GIB[backend]
    fine = free >= enough
    return Check(
        name="disk",
        level="ok" if fine else level,
        detail=f"{free:.1f} GiB free at {folder}",
        fix=None if fine else f"free some space: {enough:.0f} GiB are wanted",
    )


def _shared_memory(folder: Path) -> Check:
    if not folder.is_dir():
        return Check(
            name="shared memory",
            level="warn",
            detail=f"no {folder}",
            fix="mount a tmpfs there: streams of episodes and Ray need it",
        )
    free = free_gib(folder)
    fine = free >= _ENOUGH_SHARED_GIB
    return Check(
        name="shared memory",
        level="ok" if fine else "warn",
        detail=f"{free:.1f} GiB free in {folder}",
        fix=None if fine else "remove old files there, or start the container with a larger one",
    )


def _language_model(config: LoopConfig | None, environ: Mapping[str, str]) -> Check:
    providers = [name for name, keys in _KEYS.items() if any(environ.get(key) for key in keys)]
    known = f"keys for {', '.join(providers)}" if providers else "no keys"
    if config is not None and config.llm:
        return tried("language model", None, lambda: _model(config, known, environ))
    return Check(
        name="language model",
        level="ok" if providers else "warn",
        detail=f"{known}; without a model, proposals are deterministic",
    )


def _model(config: LoopConfig, known: str, environ: Mapping[str, str]) -> Check:
    """Return how the configuration's model is; nobody is asked.

    Raises:
        CadenzaError: Its client cannot be made.
    """
    from cadenza.loop.llm.factory import make_llm
    from cadenza.loop.llm.spec import parse_spec

    make_llm(config.llm)
    model, most = parse_spec(config.llm or ""), config.llm_calls.max_cost_usd
    cost = "no limit on costs" if most is None else f"at most {most:g} US dollars a run"
    use = "curated proposals" if config.curation.enabled else "proposals"
    names = _KEYS[model.provider]
    own_server = model.address is not None or bool(environ.get("OPENAI_BASE_URL"))
    lacks_key = not any(environ.get(name) for name in names)
    missing = lacks_key and not (model.provider == "openai" and own_server)
    return Check(
        name="language model",
        level="warn" if missing else "ok",
        detail=f"{model.shown} for {use}; {known}; {cost}",
        fix=f"export {names[0]}: without a key every call fails and proposals are deterministic"
        if missing
        else None,
    )
