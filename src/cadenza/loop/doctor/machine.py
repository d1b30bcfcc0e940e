"""The machine, the rules, the keys, the store and Ray: everything but LeRobot.

Secrets:  of keys only the names of the providers they belong to are told.
"""

import os
import platform
import socket
import sqlite3
import sys
import tempfile
from collections.abc import Mapping
from contextlib import closing
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from cadenza.loop.config import LoopConfig
from cadenza.loop.disk_space import free_gib, obstacle
from cadenza.loop.doctor.check import Check, Level, tried
from cadenza.loop.doctor.configuration import (
    back_end_check,
    inputs_check,
    require_rules_allow,
)
from cadenza.loop.doctor.lerobot import lerobot_checks
from cadenza.loop.errors import StoreCorruptError, StoreOutdatedError

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
    from cadenza.loop.resuming import rules_file, rules_of, shown_rules

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
    from cadenza.loop.config import parse_spec
    from cadenza.loop.llm.adapter import make_llm

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


#: Longest time the cluster gets to answer, s.
_TIMEOUT_S: Final = 5.0
#: Addresses that name no server: of a cluster that runs here, or one that is started.
_HERE: Final = ("auto", "local")


def ray_check(config: LoopConfig, environ: Mapping[str, str]) -> Check:
    """Return whether jobs can be given to Ray; nothing is started.

    Args:
        config: Configuration whose jobs run on Ray.
        environ: Environment variables.
    """
    try:
        release = version("ray")
    except PackageNotFoundError:
        return Check(
            name="ray",
            level="fail",
            detail="jobs.runner is ray, which is not installed",
            fix="install 'cadenza[ray]', or set jobs.runner: local",
        )
    address = config.jobs.ray_address or environ.get("RAY_ADDRESS")
    if not address:
        where = "the cluster of this machine, or one that is started for the run and ends with it"
        return Check(name="ray", level="ok", detail=f"{release}; {where}")
    refusal = None if address in _HERE else _refusal(address)
    if refusal is None:
        return Check(name="ray", level="ok", detail=f"{release}; {address}")
    return Check(
        name="ray",
        level="fail",
        detail=f"{release}; {address}: {refusal}",
        fix="start the cluster, or correct jobs.ray_address (RAY_ADDRESS where that is not set)",
    )


def _refusal(address: str) -> str | None:
    """Return why nothing can be asked at an address; None if somebody listens there."""
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or port is None:
        return "expected host:port"
    try:
        socket.create_connection((host, port), timeout=_TIMEOUT_S).close()
    except OSError as error:
        return f"nobody answers ({error})"
    return None


def store_check(location: Path | str) -> Check:
    """Return how the store at a path or URL is; nothing in it changes.

    Raises:
        CadenzaError: It does not answer, is damaged, or is of a newer version.
    """
    from cadenza.loop.store.database import shown
    from cadenza.loop.store.jobstore import JobStore

    file = _sqlite_file(location)
    if file is not None and not file.is_file():
        return Check(
            name="store", level="ok", detail=f"none yet; the first run makes {file.absolute()}"
        )
    try:
        with JobStore.open_existing(location) as store:
            runs = len(store.list_runs())
            number = f"{runs} run{'' if runs == 1 else 's'}"
            if store.is_up_to_date:
                return Check(name="store", level="ok", detail=f"{shown(location)}: {number}")
    except StoreOutdatedError:
        pass
    if file is not None:
        _rehearse(file)
    return Check(
        name="store",
        level="ok",
        detail=f"{shown(location)}: of an older version; the next run brings it up to date",
    )


def _sqlite_file(location: Path | str) -> Path | None:
    from cadenza.loop.store.database import url_of

    url = url_of(location)
    return Path(url.database or "") if url.get_backend_name() == "sqlite" else None


def _rehearse(file: Path) -> None:
    """Bring a copy of an SQLite store up to date."""
    from cadenza.loop.store.jobstore import JobStore

    with tempfile.TemporaryDirectory(prefix="cadenza-doctor-") as folder:
        copy = Path(folder) / file.name
        try:
            with (
                closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as source,
                closing(sqlite3.connect(copy)) as target,
            ):
                source.backup(target)
        except sqlite3.DatabaseError as error:
            raise StoreCorruptError(
                f"{file}: expected a sound database, got '{error}'; restore it from a copy."
            ) from error
        JobStore(copy).close()
