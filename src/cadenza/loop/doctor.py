"""Is this machine ready for loop runs, and if not, what to do: one list of named checks.

`examine` shows all of them; a run raises the first that fails of those that can refuse it
(`preflight.refusals`); `notes` tells what a dry run does without.

Looked at:    Python, computing, LeRobot's environment, rules, data and weights, store, disk, keys
              (only their names are told), Ray.
Import time:  torch and SQLAlchemy are loaded when they are asked, not before.
Source:       CVE-2026-25874: LeRobot 0.4 and 0.5 unpickle what arrives at their
              asynchronous-inference server; the loop never starts it.
"""

import os
import platform
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from cadenza.core.errors import CadenzaError, ConfigurationError, IntegrityError, MissingExtraError
from cadenza.core.files import require_room_for
from cadenza.core.strict_json import parse_json_object
from cadenza.loop.backends.base import make_backend
from cadenza.loop.backends.lerobot_probe import lerobot_python, output_of
from cadenza.loop.config import LoopConfig, parse_spec
from cadenza.loop.constitution import load_constitution
from cadenza.loop.llm.adapter import KEYS

#: ``fail`` keeps the runs that were asked about from working, ``warn`` keeps others from it.
Level: TypeAlias = Literal["ok", "warn", "fail"]


class Check(NamedTuple):
    """What was found, and what to do; None if nothing need be done."""

    name: str
    level: Level
    detail: str
    fix: str | None = None


def tried(name: str, check: Callable[[], str], *, missing: Level = "fail") -> Check:
    """Return what ``check`` found, or its expected error; ``missing`` if an extra is."""
    try:
        return Check(name, "ok", check())
    except MissingExtraError as error:
        return Check(name, missing, str(error))
    except (CadenzaError, OSError) as error:
        return Check(name, "fail", " ".join(str(error).split()))


#: Room without which nothing works, GiB: a quickstart writes 30 MB, a long training some hundred.
NEEDED_GIB: Final = 1.0


def python_check() -> Check:
    """Return whether the package supports this Python."""
    told = f"{platform.python_version()} on {platform.platform()}"
    if (3, 11) <= sys.version_info[:2] < (3, 14):
        return Check("python", "ok", told)
    return Check("python", "fail", told, "use Python 3.11, 3.12 or 3.13")


def disk_check(folder: Path, *, enough_gib: float) -> Check:
    """Return whether there is room at ``folder``, which need not exist yet."""
    folder = folder.resolve()
    present = next(path for path in (folder, *folder.parents) if path.is_dir())
    free = shutil.disk_usage(present).free / 2**30
    told = f"{free:.1f} GiB free at {folder}; {NEEDED_GIB:g} GiB is needed"
    if free >= enough_gib:
        return Check("disk", "ok", told)
    fix = f"free some space, or name another folder: {enough_gib:g} GiB are recommended"
    return Check("disk", "warn" if free >= NEEDED_GIB else "fail", told, fix)


def _compute(config: LoopConfig | None) -> Check:
    import torch

    from cadenza.core.device import device_report, resolve_device

    detail = f"{os.cpu_count()} cores, {device_report(resolve_device('auto'))}"
    if torch.cuda.is_available():
        return Check("compute", "ok", detail)
    wanted = config is not None and config.improve.enabled and config.improve.device[:4] == "cuda"
    told = f"{detail}; no GPU, so max_gpu_hours counts the hours of all jobs"
    fix = "set improve.device: cpu" if wanted else None
    return Check("compute", "fail" if wanted else "warn", told, fix)


#: A native run of some cycles writes some hundred MB; LeRobot's environment and policies far more.
_ENOUGH_GIB: Final = {"native": 5.0, "lerobot": 30.0}


def _keys(config: LoopConfig | None, environ: Mapping[str, str]) -> Check:
    """Return whether there is a key for the configuration's model; nobody is asked."""
    providers = [name for name, keys in KEYS.items() if any(environ.get(key) for key in keys)]
    known = f"keys for {', '.join(providers)}" if providers else "no keys"
    if config is None or not config.llm:
        told = f"{known}; without a model, proposals are deterministic"
        return Check("language model", "ok" if providers else "warn", told)
    model, most = parse_spec(config.llm), config.llm_calls.max_cost_usd
    cost = "no limit on costs" if most is None else f"at most {most:g} US dollars a run"
    use = "curated proposals" if config.curation.enabled else "proposals"
    own_server = model.address is not None or bool(environ.get("OPENAI_BASE_URL"))
    told = f"{model.shown} for {use}; {known}; {cost}"
    if model.provider in providers or (model.provider == "openai" and own_server):
        return Check("language model", "ok", told)
    name = KEYS[model.provider][0]
    fix = f"export {name}: without a key every call fails and proposals are deterministic"
    return Check("language model", "warn", told, fix)


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
    from cadenza.loop.orchestrator.preflight import refusals, store_found
    from cadenza.loop.resuming import shown_rules

    backend = "native" if config is None else config.backend
    if config is not None:
        checks = refusals(config, store, workdir, environ=environ)
        checks["device"] = lambda: make_backend(config, environ=environ).capabilities.get(
            "device", "cpu"
        )
    else:
        checks = {
            "constitution": lambda: shown_rules(None, load_constitution(None).sha256),
            "store": lambda: store_found(store),
            "disk": lambda: require_room_for(workdir) or "",
            "language model": lambda: "none",
        }
    told = {name: tried(name, check) for name, check in checks.items()}
    judged = {
        "disk": lambda: disk_check(workdir, enough_gib=_ENOUGH_GIB[backend]),
        "language model": lambda: _keys(config, environ),
    }
    told |= {name: judge() for name, judge in judged.items() if told[name].level == "ok"}
    wanted = config if backend == "lerobot" else None
    lerobot = lerobot_checks(environ, wanted=wanted)
    return [python_check(), _compute(config), *lerobot, *told.values()]


def notes(config: LoopConfig) -> list[str]:
    """Return what a dry run does without and a real run needs, and `advice`, a sentence each."""
    lacks: list[str] = []
    if config.seed_root is not None and not config.seed_root.is_dir():
        where = config.seed_root.absolute()
        lacks.append(f"seed_root: there is no folder {where} yet, which a real run needs")
    if config.backend == "lerobot" and lerobot_python(os.environ) is None:
        lacks.append("backend: there is no environment with LeRobot yet, which a real run needs")
    return lacks + [f"{check.detail}; {check.fix}" for check in advice(config)]


def read_configuration(path: Path) -> tuple[LoopConfig | None, list[Check]]:
    """Return the configuration at ``path`` with its check, or None with one per problem."""
    try:
        config = LoopConfig.from_yaml(path)
    except ConfigurationError as error:
        first, *problems = str(error).splitlines()
        told = [f"{path}: {problem.strip()}" for problem in problems] or [first]
        return None, [
            Check("configuration", "fail", problem.removesuffix("."), "correct the file")
            for problem in told
        ]
    rungs = ", ".join(rung.name for rung in config.policy_ladder)
    told = f"at most {config.budgets.max_cycles} cycles of {rungs} on {config.eval.env_type}"
    return config, [Check("configuration", "ok", f"{path}: {told}"), *advice(config)]


#: Error budget of a run above which people are warned.
_LARGE_ALPHA: Final = 0.1


def advice(config: LoopConfig) -> list[Check]:
    """Return warnings of settings that are likely to be meant otherwise, or taken too lightly."""
    checks: list[Check] = []
    alpha = config.thresholds.alpha
    if alpha > _LARGE_ALPHA:
        told = (
            f"warning: thresholds.alpha {alpha:g} lets a run bless a policy that is no better in "
            f"up to {100.0 * alpha:.3g} % of cases"
        )
        checks.append(Check("alpha", "warn", told, "set it to 0.05, or to 0.1 at most"))
    if config.improve.enabled and not config.improve.adapt_steps:
        told = "improve.adapt_steps is 0: successes are collected, and no training reads them"
        fix = "set improve.adapt_steps, or improve.enabled: false"
        checks.append(Check("harvest", "warn", told, fix))
    for number, init in enumerate(rung.init for rung in config.policy_ladder):
        if config.reference is None and init is not None and not Path(init).exists():
            told = f"policy_ladder[{number}].init {init} of a hub is not played as a reference"
            fix = f"set reference: {init} if it knows the task, else reference: none"
            checks.append(Check("reference", "warn", told, fix))
    return checks


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
        return [Check("lerobot", bad, "no environment; the native back end needs none", fix)]
    try:
        answer = output_of([str(python), "-I", "-c", _QUESTION], timeout_s=_ANSWER_S)
        installed = parse_json_object(answer.encode(), source=str(python))
    except (ConfigurationError, IntegrityError):
        installed = dict[str, Any]()
    if not installed.get("lerobot"):
        fix = "remove that environment and install it again"
        return [Check("lerobot", bad, f"{python}: no LeRobot there", fix)]
    version = str(installed["lerobot"])
    unsafe = version.startswith(_UNSAFE_SERVERS)
    told = f"{version} with torch {installed.get('torch')} at {python}"
    fix = "do not run its asynchronous-inference server (CVE-2026-25874); the loop never does"
    checks = [Check("lerobot", "warn" if unsafe else "ok", told, fix if unsafe else None)]
    env_type = None if wanted is None else wanted.eval.env_type
    if env_type in (None, "libero"):
        checks.append(_libero(installed.get("libero"), environ, bad))
    if env_type in (None, "libero", "metaworld", "pusht"):
        checks.append(_headless(environ))
    return checks


def _libero(installed: object, environ: Mapping[str, str], bad: Level) -> Check:
    if not installed:
        header = "" if _EGL_HEADER.is_file() else "; its build needs libegl-dev and CMake below 4"
        fix = "install 'lerobot[libero]' into LeRobot's environment"
        return Check("libero", bad, f"not installed{header}", fix)
    home = Path(environ.get("HOME", "/"))
    config = Path(environ.get("LIBERO_CONFIG_PATH", home / ".libero")) / "config.yaml"
    if config.is_file():
        return Check("libero", "ok", f"installed, configured by {config}")
    fix = "import libero once by hand in LeRobot's environment and answer N"
    return Check("libero", bad, f"no {config}, so its first import asks questions", fix)


def _headless(environ: Mapping[str, str]) -> Check:
    missing = [f"{name}={value}" for name, value in _HEADLESS.items() if not environ.get(name)]
    if environ.get("DISPLAY") or not missing:
        return Check("screen", "ok", "a screen, or set up for none")
    told, fix = "no screen, and simulators need a setting", f"export {' '.join(missing)}"
    return Check("screen", "warn", told, fix)
