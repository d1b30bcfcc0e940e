"""Packages that only some need: they are imported where they are used, with a hint if absent.

For those that cannot be installed beside ours, ``CADENZA_<NAME>_PYTHON`` names the interpreter of
an environment; else the newest finished one in the user's cache counts, as
``environments/install.py`` makes them.
"""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cadenza.core.errors import MissingExtraError

#: The extra that installs a package.
_EXTRAS: Final = {
    "PIL": "train",
    "clarabel": "solvers",
    "cryptography": "sign",
    "fastapi": "dash",
    "imageio": "mujoco",
    "lbforaging": "foraging",
    "mani_skill": "maniskill",
    "markdown_it": "dash",
    "matplotlib": "train",
    "minari": "minari",
    "mjbatch": "mujoco",
    "mujoco": "mujoco",
    **dict.fromkeys(("onnx", "onnxruntime", "onnxscript"), "onnx"),
    "optuna": "sweep",
    "osqp": "solvers",
    "overcooked": "teamwork",
    "piqp": "solvers",
    "psutil": "train",
    "pyarrow": "lerobot",
    "qpsolvers": "solvers",
    "quadprog": "solvers",
    "ray": "ray",
    "sapien": "maniskill",
    "scipy": "train",
    "sqlalchemy": "loop",
    "starlette": "dash",
    "tensordict": "stream",
    "torchrl": "torchrl",
    "uvicorn": "dash",
    "wandb": "wandb",
}


def load_extra(module: str) -> Any:
    """Import a module of a package that an extra installs; Any, for many of them have no types.

    Raises:
        MissingExtraError: The package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        hint = hint_at_extra(error)
        if hint is None:
            raise
        raise hint from error


def hint_at_extra(error: ModuleNotFoundError) -> MissingExtraError | None:
    """Return an error that names the extra of an absent package; None if it is of no extra."""
    package = (error.name or "").partition(".")[0]
    if package not in _EXTRAS:
        return None
    return MissingExtraError(
        f"expected the package {package}, which is not installed; "
        f"run: pip install 'cadenza[{_EXTRAS[package]}]'"
    )


def python_variable(name: str) -> str:
    """Return the environment variable that names the interpreter of the environment ``name``."""
    return f"CADENZA_{name.upper()}_PYTHON"


def foreign_python(name: str, environ: Mapping[str, str]) -> Path | None:
    """Return the interpreter of an environment, e.g. ``"lerobot"``; None if there is none."""
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
