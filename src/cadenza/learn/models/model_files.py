"""Parameters of a model in one file: a torch archive ``{"state_dict": {...}, ...}``.

Only tensors and plain values are read back, and a file is replaced in one step, so a crash leaves
the old one.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from torch import nn

from cadenza.core.errors import CheckpointError
from cadenza.core.files import atomic_write_bytes
from cadenza.core.payloads import deserialise, serialise

#: Larger archives are refused; a hundred times the largest dynamics model in use.
MAX_MODEL_BYTES: Final = 2**30
#: Name of the file where a folder is given.
FILE_NAME: Final = "model.pt"


def save_module(path: str | Path, states: Mapping[str, Mapping[str, Any]]) -> None:
    """Write state dicts by name to the file ``path``, or to ``model.pt`` in the folder ``path``.

    Raises:
        StorageError: The file system refused.
    """
    atomic_write_bytes(_file_of(path), serialise(states))


def load_module(
    path: str | Path, modules: Mapping[str, nn.Module], *, optional: tuple[str, ...] = ()
) -> list[str]:
    """Load the state dicts of the file into ``modules``, all of them or none.

    Args:
        path: What `save_module` was given.
        modules: Module by the name of its state dict.
        optional: Names a file may lack; their modules stay as they are.

    Returns:
        The names that were loaded.

    Raises:
        CheckpointError: The file is missing, damaged, or of another model.
    """
    states = _read(_file_of(path))
    missing = sorted(set(modules) - set(states) - set(optional))
    if missing:
        raise CheckpointError(
            f"{path}: expected the entries {sorted(modules)}, got {sorted(states)}; "
            "save the model again with its save method."
        )
    found = {name: module for name, module in modules.items() if name in states}
    before = {name: _copied(module.state_dict()) for name, module in found.items()}
    try:
        for name, module in found.items():
            module.load_state_dict(states[name])
    except (RuntimeError, TypeError, ValueError) as error:
        for name, module in found.items():
            module.load_state_dict(before[name])
        raise CheckpointError(
            f"{path}: expected the parameters of this {type(next(iter(found.values()))).__name__}, "
            f"got others ({error}); build the model with the sizes it was saved with."
        ) from error
    return list(found)


def _file_of(path: str | Path) -> Path:
    """Return the file that ``path`` stands for."""
    return Path(path) / FILE_NAME if Path(path).is_dir() else Path(path)


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """Return the state dicts in the file at ``path``."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"{path}: expected a saved model, got '{error.strerror}'; check the path."
        ) from error
    state = deserialise(data, max_bytes=MAX_MODEL_BYTES)
    if not all(isinstance(value, Mapping) for value in state.values()):
        raise CheckpointError(
            f"{path}: expected state dicts by name, got entries {sorted(map(str, state))}; "
            "save the model again with its save method."
        )
    return cast("dict[str, dict[str, Any]]", state)


def _copied(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state with its tensors cloned."""
    return {
        key: value.clone() if hasattr(value, "clone") else value for key, value in state.items()
    }
