"""LeRobot's environment, which is not ours: where it is, what is in it, what its tools need.

Source:  CVE-2026-25874: LeRobot 0.4 and 0.5 unpickle what arrives at their asynchronous-inference
         server; the loop never starts it.
"""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cadenza.core.errors import IntegrityError
from cadenza.core.strict_json import parse_json_object
from cadenza.loop.backends.lerobot_environment import lerobot_python
from cadenza.loop.config import LoopConfig
from cadenza.loop.doctor.check import Check, Level

#: Longest time the other interpreter gets to answer, s.
_TIMEOUT_S: Final = 60.0
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
    """Return what was found about LeRobot.

    Args:
        environ: Environment variables.
        wanted: Configuration that runs on LeRobot; None if none does, and nothing may fail.
    """
    bad: Level = "warn" if wanted is None else "fail"
    python = lerobot_python(environ)
    if python is None:
        return [
            Check(
                name="lerobot",
                level=bad,
                detail="no environment; the native back end needs none",
                fix="run: python environments/install.py environments/lerobot.txt "
                "--needs-header linux/input.h (8.5 GB), or set CADENZA_LEROBOT_PYTHON",
            )
        ]
    found = _ask(python)
    if found is None or not found.get("lerobot"):
        return [
            Check(
                name="lerobot",
                level=bad,
                detail=f"{python}: no LeRobot there",
                fix="remove that environment and install it again",
            )
        ]
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
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
        return parse_json_object(done.stdout, source=str(python))
    except (OSError, subprocess.SubprocessError, IntegrityError):
        return None


def _version(found: Mapping[str, Any], python: Path) -> Check:
    version = str(found["lerobot"])
    unsafe = version.startswith(_UNSAFE_SERVERS)
    return Check(
        name="lerobot",
        level="warn" if unsafe else "ok",
        detail=f"{version} with torch {found.get('torch')} at {python}",
        fix="do not run its asynchronous-inference server (CVE-2026-25874); the loop never does"
        if unsafe
        else None,
    )


def _libero(found: Mapping[str, Any], environ: Mapping[str, str], *, wanted: bool) -> Check:
    bad: Level = "fail" if wanted else "warn"
    if not found.get("libero"):
        header = "" if _EGL_HEADER.is_file() else "; its build needs libegl-dev and CMake below 4"
        return Check(
            name="libero",
            level=bad,
            detail=f"not installed{header}",
            fix="install 'lerobot[libero]' into LeRobot's environment",
        )
    home = Path(environ.get("HOME", "/"))
    config = Path(environ.get("LIBERO_CONFIG_PATH", home / ".libero")) / "config.yaml"
    if not config.is_file():
        return Check(
            name="libero",
            level=bad,
            detail=f"no {config}, so its first import asks questions",
            fix="import libero once by hand in LeRobot's environment and answer N",
        )
    return Check(name="libero", level="ok", detail=f"installed, configured by {config}")


def _headless(environ: Mapping[str, str]) -> Check:
    missing = [f"{name}={value}" for name, value in _HEADLESS.items() if not environ.get(name)]
    if environ.get("DISPLAY") or not missing:
        return Check(name="screen", level="ok", detail="a screen, or set up for none")
    return Check(
        name="screen",
        level="warn",
        detail="no screen, and simulators are not told so",
        fix=f"export {' '.join(missing)}",
    )
