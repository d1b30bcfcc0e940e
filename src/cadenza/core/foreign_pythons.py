"""Interpreters of environments for packages that cannot be installed beside ours.

``CADENZA_<NAME>_PYTHON`` names one; else the newest finished environment in the user's cache
counts, as ``environments/install.py`` makes them.
"""

from collections.abc import Mapping
from pathlib import Path


def python_variable(name: str) -> str:
    """Return the environment variable that names the interpreter of the environment ``name``."""
    return f"CADENZA_{name.upper()}_PYTHON"


def foreign_python(name: str, environ: Mapping[str, str]) -> Path | None:
    """Return the interpreter of the environment ``name``; None if there is none.

    Args:
        name: What is installed there, e.g. ``"lerobot"``.
        environ: Environment variables.
    """
    named = environ.get(python_variable(name))
    if named:
        return Path(named) if Path(named).is_file() else None
    stamps = (user_cache(environ) / "environments").glob(f"{name}-*/.complete")
    newest = max(stamps, key=lambda stamp: stamp.stat().st_mtime, default=None)
    return None if newest is None else newest.parent / "bin" / "python"


def user_cache(environ: Mapping[str, str]) -> Path:
    """Return our folder in the user's cache; a relative ``XDG_CACHE_HOME`` does not count."""
    given = Path(environ.get("XDG_CACHE_HOME", ""))
    base = given if given.is_absolute() else Path(environ.get("HOME", "/")) / ".cache"
    return base / "cadenza"
