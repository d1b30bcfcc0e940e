"""Read configuration files for commands; every failure is one readable `ConfigurationError`."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from cadenza.core.errors import ConfigurationError, did_you_mean

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

    from cadenza.aht.config import EgoAHTConfig

Result = TypeVar("Result")


def read_training_config(path: Path, overrides: Sequence[str]) -> "EgoAHTConfig":
    """Return the training configuration ``path``, a file or a shipped one, with ``overrides``.

    ``pettingzoo:module:env`` is the shipped configuration ``train/pettingzoo`` with that task.

    Raises:
        ConfigurationError: The file, an override or a value cannot be used.
    """
    from cadenza.aht.config import EgoAHTConfig, load_config
    from cadenza.benchmark.tasks import PETTINGZOO_PREFIX
    from cadenza.core.shipped_configs import find_config

    changes = list(overrides)
    if str(path).startswith(PETTINGZOO_PREFIX):
        changes.insert(0, f"env.task='{path}'")
        path = Path("pettingzoo")
    path = find_config(path, "train")
    return explained(path, EgoAHTConfig, lambda: load_config(config_path=path, overrides=changes))


def explained(path: Path, model: "type[BaseModel]", read: Callable[[], Result]) -> Result:
    """Return ``read()``, with parser and validation errors turned into sentences about ``path``.

    Keys of ``model`` are suggested for misspelt ones.

    Raises:
        ConfigurationError: ``read`` raised an error about the file's content.
    """
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from pydantic import ValidationError

    from cadenza.loop.validation import dotted_keys

    known = [key.replace("[]", "") for key in dotted_keys(model)]
    try:
        return read()
    except ValidationError as error:
        raise ConfigurationError(f"{path}: {_validation_message(error, known)}") from error
    except HydraException as error:
        reason = " ".join(str(error).split())
        named = re.search(r"Could not override '(.*?)'", reason)
        meant = did_you_mean(named[1], known) if named and named[1] not in known else ""
        raise ConfigurationError(
            f"{path}: {reason}{meant}; overrides are key=value pairs of keys in the file, "
            "+key=value adds one."
        ) from error
    except OmegaConfBaseException as error:
        reason = " ".join(str(error).split())
        raise ConfigurationError(f"{path}: expected values that resolve, got: {reason}") from error


def _validation_message(error: "ValidationError", known: Sequence[str]) -> str:
    """Return one line per wrong value: its key, what is wrong and what was given."""
    lines: list[str] = []
    for entry in error.errors(include_url=False, include_context=False):
        key = ".".join(str(part) for part in entry["loc"]) or "the whole file"
        what = entry["msg"].removeprefix("Value error, ")
        if entry["type"] == "extra_forbidden":
            plain = ".".join(part for part in entry["loc"] if isinstance(part, str))
            meant = did_you_mean(plain, known) or "; check its spelling"
            lines.append(f"{key}: unknown key (got {entry['input']!r}){meant}")
        elif entry["type"] == "missing":
            lines.append(f"{key}: required, but missing")
        elif "got " in what:  # a sentence of ours, which names key and value itself
            lines.append(what if what.startswith(key) or not entry["loc"] else f"{key}: {what}")
        else:
            lines.append(f"{key}: {what} (got {entry['input']!r})")
    return "; ".join(lines)
