"""Packages that only some need: they are imported where they are used, with a hint if absent."""

import importlib
from typing import Any, Final

from cadenza.core.errors import MissingExtraError

#: The extra that installs a package.
_EXTRAS: Final = {
    "PIL": "train",
    "alembic": "loop",
    "clarabel": "solvers",
    "hydra": "train",
    "imageio": "mujoco",
    "lbforaging": "foraging",
    "mani_skill": "maniskill",
    "matplotlib": "train",
    "minari": "minari",
    "mjbatch": "mujoco",
    "mujoco": "mujoco",
    "omegaconf": "train",
    "onnxruntime": "onnx",
    "overcooked": "teamwork",
    "psutil": "train",
    "pyarrow": "lerobot",
    "quadprog": "solvers",
    "sapien": "maniskill",
    "scipy": "train",
    "sqlalchemy": "loop",
    "tensordict": "tensordict",
    "torchrl": "torchrl",
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
