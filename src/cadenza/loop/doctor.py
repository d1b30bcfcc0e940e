"""Is this machine ready for loop runs, and if not, what to do: a list of checks.

Looked at:    Python, computing, LeRobot's environment, rules, store, disk, keys (only their names
              are told), Ray; and whether a run of a configuration would be refused.
Import time:  torch and SQLAlchemy are loaded when they are asked, not before.
Source:       CVE-2026-25874: LeRobot 0.4 and 0.5 unpickle what arrives at their
              asynchronous-inference server; the loop never starts it.
"""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from cadenza.core.errors import CadenzaError, ConfigurationError, IntegrityError
from cadenza.core.files import require_room_for
from cadenza.core.strict_json import parse_json_object
from cadenza.loop.backends.lerobot_probe import lerobot_python
from cadenza.loop.config import LoopConfig
from cadenza.loop.contracts.records import Record
from cadenza.loop.errors import StoreOutdatedError
from cadenza.loop.processes import job_environment

#: ``fail`` keeps the runs that were asked about from working, ``warn`` keeps others from it.
Level: TypeAlias = Literal["ok", "warn", "fail"]


class Check(Record):
    """What was found, and what to do; None if nothing need be done."""

    name: str
    level: Level
    detail: str
    fix: str | None = None


def _found(name: str, level: Level, detail: str, fix: str | None = None) -> Check:
    return Check(name=name, level=level, detail=detail, fix=fix)


def tried(name: str, fix: str | None, check: Callable[[], Check]) -> Check:
    """Return the outcome of ``check``, or a failure that tells its expected error, and ``fix``."""
    try:
        return check()
    except (CadenzaError, OSError) as error:
        return _found(name, "fail", " ".join(str(error).split()), fix)


def read_configuration(path: Path) -> tuple[LoopConfig | None, list[Check]]:
    """Return the configuration at ``path`` with its check, or None with one per problem."""
    try:
        config = LoopConfig.from_yaml(path)
    except ConfigurationError as error:
        first, *problems = str(error).splitlines()
        told = [f"{path}: {problem.strip()}" for problem in problems] or [first]
        return None, [
            _found("configuration", "fail", problem.removesuffix("."), "correct the file")
            for problem in told
        ]
    rungs = ", ".join(rung.name for rung in config.policy_ladder)
    told = f"at most {config.budgets.max_cycles} cycles of {rungs} on {config.eval.env_type}"
    return config, [_found("configuration", "ok", f"{path}: {told}"), *advice(config)]


#: Error budget of a run above which people are warned.
_LARGE_ALPHA: Final = 0.1


def advice(config: LoopConfig) -> list[Check]:
    """Return warnings of settings that are likely to be meant otherwise, or taken too lightly."""
    found: list[Check] = []
    alpha = config.thresholds.alpha
    if alpha > _LARGE_ALPHA:
        told = (
            f"warning: thresholds.alpha {alpha:g} lets a run bless a policy that is no better in "
            f"up to {100.0 * alpha:.3g} % of cases"
        )
        found.append(_found("alpha", "warn", told, "set it to 0.05, or to 0.1 at most"))
    if config.improve.enabled and not config.improve.adapt_steps:
        told = "improve.adapt_steps is 0: successes are collected, and no training reads them"
        fix = "set improve.adapt_steps, or improve.enabled: false"
        found.append(_found("harvest", "warn", told, fix))
    for number, init in enumerate(rung.init for rung in config.policy_ladder):
        if config.reference is None and init is not None and not Path(init).exists():
            told = f"policy_ladder[{number}].init {init} of a hub is not played as a reference"
            fix = f"set reference: {init} if it knows the task, else reference: none"
            found.append(_found("reference", "warn", told, fix))
    return found


def back_end_check(config: LoopConfig) -> Check:
    """Return whether the back end takes the configuration, and the rules its commands."""
    return tried("back end", None, lambda: _back_end(config))


def _back_end(config: LoopConfig) -> Check:
    from cadenza.loop.backends.base import make_backend
    from cadenza.loop.orchestrator.preflight import require_commands_allowed
    from cadenza.loop.resuming import rules_of

    backend = make_backend(config)
    require_commands_allowed(config, rules_of(config), backend)
    device = backend.capabilities.get("device", "cpu")  # asks LeRobot for its environment, too
    return _found("back end", "ok", f"{backend.name} on the {device}, its commands are allowed")


def inputs_check(config: LoopConfig) -> Check:
    """Return whether the data and weights that the configuration names are there, and fit."""
    return tried("inputs", None, lambda: _inputs(config))


def _inputs(config: LoopConfig) -> Check:
    from cadenza.loop.orchestrator.preflight import require_inputs, seeds_of_seed_data
    from cadenza.loop.resuming import rules_of
    from cadenza.loop.schedule import collects

    require_inputs(config, rules_of(config))
    where = str(config.seed_root or "the back end finds or makes it")
    if not collects(config) and seeds_of_seed_data(config) is None:
        where += "; its initial states are unknown, policies may be measured on some of them"
    return _found("inputs", "ok", f"{config.seed_dataset}: {where}")


#: A native run of some cycles writes some hundred MB; LeRobot's environment and policies far more.
_MIN_FREE_GIB: Final = 1.0
_ENOUGH_FREE_GIB: Final = {"native": 5.0, "lerobot": 30.0}
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

    ``config`` is a configuration that must be able to run here; None for none in particular.
    ``store`` and ``workdir`` are where the job store and all runs are or will be.
    """
    backend = "native" if config is None else config.backend
    checks = [
        _python(),
        _compute(config),
        *lerobot_checks(environ, wanted=config if backend == "lerobot" else None),
        tried("constitution", "correct the rules or the configuration", lambda: _rules(config)),
        tried("store", None, lambda: store_check(store)),
        tried(
            "disk",
            "name another folder in workdir, or with --workdir",
            lambda: _disk(workdir, backend),
        ),
        _language_model(config, environ),
    ]
    if config is not None and config.jobs.runner == "ray":
        checks.append(ray_check(config, environ))
    if config is not None:
        checks += [back_end_check(config), inputs_check(config)]
    return checks


def _python() -> Check:
    told = f"{platform.python_version()} on {platform.platform()}"
    if (3, 11) <= sys.version_info[:2] < (3, 14):
        return _found("python", "ok", told)
    return _found("python", "fail", told, "use Python 3.11, 3.12 or 3.13")


def _compute(config: LoopConfig | None) -> Check:
    import torch

    from cadenza.core.device import device_report, resolve_device

    detail = f"{os.cpu_count()} cores, {device_report(resolve_device('auto'))}"
    if torch.cuda.is_available():
        return _found("compute", "ok", detail)
    wanted = config is not None and config.improve.enabled and config.improve.device[:4] == "cuda"
    return _found(
        "compute",
        "fail" if wanted else "warn",
        f"{detail}; no GPU, so max_gpu_hours counts the hours of all jobs",
        "set improve.device: cpu" if wanted else None,
    )


def _rules(config: LoopConfig | None) -> Check:
    from cadenza.loop.constitution import load_constitution
    from cadenza.loop.orchestrator.preflight import require_preflight_allowed
    from cadenza.loop.resuming import rules_file, rules_of, shown_rules

    path = None if config is None else rules_file(config)
    constitution = load_constitution(None) if config is None else rules_of(config)
    if config is not None:
        require_preflight_allowed(config, constitution)
    allowed = constitution.rules.allowed_programs or ()
    told = f"{shown_rules(path, constitution.sha256)}, {len(allowed)} programs allowed"
    return _found("constitution", "ok", told)


def _disk(workdir: Path, backend: str) -> Check:
    folder = workdir.resolve()
    require_room_for(folder)
    present = next(path for path in (folder, *folder.parents) if path.is_dir())
    free = shutil.disk_usage(present).free / 2**30
    told, enough = f"{free:.1f} GiB free at {folder}", _ENOUGH_FREE_GIB[backend]
    if free >= enough:
        return _found("disk", "ok", told)
    level: Level = "warn" if free >= _MIN_FREE_GIB else "fail"
    return _found("disk", level, told, f"free some space: {enough:.0f} GiB are recommended")


def _language_model(config: LoopConfig | None, environ: Mapping[str, str]) -> Check:
    providers = [name for name, keys in _KEYS.items() if any(environ.get(key) for key in keys)]
    known = f"keys for {', '.join(providers)}" if providers else "no keys"
    if config is not None and config.llm:
        return tried("language model", None, lambda: _model(config, known, environ))
    return _found(
        "language model",
        "ok" if providers else "warn",
        f"{known}; without a model, proposals are deterministic",
    )


def _model(config: LoopConfig, known: str, environ: Mapping[str, str]) -> Check:
    """Return how the configuration's model is; nobody is asked."""
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
    fix = f"export {names[0]}: without a key every call fails and proposals are deterministic"
    told = f"{model.shown} for {use}; {known}; {cost}"
    return _found("language model", "warn" if missing else "ok", told, fix if missing else None)


def ray_check(config: LoopConfig, environ: Mapping[str, str]) -> Check:
    """Return whether jobs can be given to Ray; nothing is started."""
    from cadenza.loop.jobs.ray_runner import require_cluster

    address = config.jobs.ray_address
    return tried("ray", None, lambda: _found("ray", "ok", require_cluster(address, environ)))


def store_check(location: Path | str) -> Check:
    """Return how the store at a path or URL is; nothing in it changes.

    Raises:
        CadenzaError: It does not answer, is damaged, or is of a newer version.
    """
    from cadenza.loop.store.database import shown, url_of
    from cadenza.loop.store.jobstore import JobStore

    url = url_of(location)
    file = Path(url.database or "")
    if url.get_backend_name() == "sqlite" and not file.is_file():
        return _found("store", "ok", f"none yet; the first run makes {file.absolute()}")
    try:
        with JobStore.open_existing(location) as store:
            runs = len(store.list_runs())
            number = f"{runs} run{'' if runs == 1 else 's'}"
            if store.is_up_to_date:
                return _found("store", "ok", f"{shown(location)}: {number}")
    except StoreOutdatedError:
        pass
    told = f"{shown(location)}: of an older version; the next run upgrades it"
    return _found("store", "ok", told)


#: Longest time the other interpreter gets to answer, s.
_ANSWER_S: Final = 60.0
#: Asks the other interpreter what is installed there, without importing it.
_QUESTION: Final = """
import importlib.metadata as m, importlib.util as u, json
def version(name):
    try:
        return m.version(name)
    except m.PackageNotFoundError:
        return None
print(json.dumps({"lerobot": version("lerobot"), "torch": version("torch"),
                  "libero": u.find_spec("libero") is not None}))
"""
#: Releases whose asynchronous-inference server runs what it is sent.
_UNSAFE_SERVERS: Final = ("0.4.", "0.5.")
_EGL_HEADER: Final = Path("/usr/include/EGL/egl.h")
#: What simulators need on a machine without a screen.
_HEADLESS: Final = {"MUJOCO_GL": "egl", "SDL_VIDEODRIVER": "dummy"}


def lerobot_checks(environ: Mapping[str, str], *, wanted: LoopConfig | None) -> list[Check]:
    """Return what was found about LeRobot; nothing fails unless a run of it is ``wanted``."""
    bad: Level = "warn" if wanted is None else "fail"
    python = lerobot_python(environ)
    if python is None:
        fix = (
            "run: python environments/install.py environments/lerobot.txt "
            "--needs-header linux/input.h (8.5 GB), or set CADENZA_LEROBOT_PYTHON"
        )
        told = "no environment; the native back end needs none"
        return [_found("lerobot", bad, told, fix)]
    found = _ask(python)
    if found is None or not found.get("lerobot"):
        fix = "remove that environment and install it again"
        return [_found("lerobot", bad, f"{python}: no LeRobot there", fix)]
    checks = [_version(found, python)]
    env_type = None if wanted is None else wanted.eval.env_type
    if env_type in (None, "libero"):
        checks.append(_libero(found, environ, wanted=env_type is not None))
    if env_type in (None, "libero", "metaworld", "pusht"):
        checks.append(_headless(environ))
    return checks


def _ask(python: Path) -> dict[str, Any] | None:
    """Return what the other interpreter says is installed; None if it does not answer."""
    try:
        done = subprocess.run(  # noqa: S603 - our own words, no shell
            [str(python), "-I", "-c", _QUESTION],
            env=job_environment(os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ANSWER_S,
            check=True,
        )
        return parse_json_object(done.stdout, source=str(python))
    except (OSError, subprocess.SubprocessError, IntegrityError):
        return None


def _version(found: Mapping[str, Any], python: Path) -> Check:
    version = str(found["lerobot"])
    unsafe = version.startswith(_UNSAFE_SERVERS)
    told = f"{version} with torch {found.get('torch')} at {python}"
    fix = "do not run its asynchronous-inference server (CVE-2026-25874); the loop never does"
    return _found("lerobot", "warn" if unsafe else "ok", told, fix if unsafe else None)


def _libero(found: Mapping[str, Any], environ: Mapping[str, str], *, wanted: bool) -> Check:
    bad: Level = "fail" if wanted else "warn"
    if not found.get("libero"):
        header = "" if _EGL_HEADER.is_file() else "; its build needs libegl-dev and CMake below 4"
        fix = "install 'lerobot[libero]' into LeRobot's environment"
        return _found("libero", bad, f"not installed{header}", fix)
    home = Path(environ.get("HOME", "/"))
    config = Path(environ.get("LIBERO_CONFIG_PATH", home / ".libero")) / "config.yaml"
    if not config.is_file():
        fix = "import libero once by hand in LeRobot's environment and answer N"
        return _found("libero", bad, f"no {config}, so its first import asks questions", fix)
    return _found("libero", "ok", f"installed, configured by {config}")


def _headless(environ: Mapping[str, str]) -> Check:
    missing = [f"{name}={value}" for name, value in _HEADLESS.items() if not environ.get(name)]
    if environ.get("DISPLAY") or not missing:
        return _found("screen", "ok", "a screen, or set up for none")
    return _found(
        "screen", "warn", "no screen, and simulators need a setting", f"export {' '.join(missing)}"
    )
