"""Read configuration files for commands; every failure is one readable `ConfigurationError`."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from cadenza.core.errors import ConfigurationError
from cadenza.core.near_names import did_you_mean

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

    from cadenza.aht.config import EgoAHTConfig

Result = TypeVar("Result")


def read_training_config(path: Path, overrides: Sequence[str]) -> "EgoAHTConfig":
    """Return the training configuration ``path``, a file or a shipped one, with ``overrides``.

    Raises:
        ConfigurationError: The file is missing or unreadable, an override does not fit it, or a
            value is unknown, missing or out of range.
    """
    from cadenza.aht.config import EgoAHTConfig, load_config
    from cadenza.core.shipped_configs import find_config

    path = find_config(path, "train")
    return explained(
        path, EgoAHTConfig, lambda: load_config(config_path=path, overrides=list(overrides))
    )


def explained(path: Path, model: "type[BaseModel]", read: Callable[[], Result]) -> Result:
    """Return ``read()``, with parser and validation errors turned into sentences about ``path``.

    Args:
        path: The file.
        model: What it describes; its keys are suggested for misspelt ones.
        read: Reads it.

    Raises:
        ConfigurationError: ``read`` raised an error about the file's content.
    """
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from pydantic import ValidationError

    try:
        return read()
    except ValidationError as error:
        raise ConfigurationError(
            f"{path}: {_validation_message(error, [*_keys(model)])}"
        ) from error
    except HydraException as error:
        reason = " ".join(str(error).split())
        named = re.search(r"Could not override '(.*?)'", reason)
        meant = did_you_mean(named[1], {*_keys(model)} - {named[1]}) if named else ""
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


def _keys(model: "type[BaseModel]", prefix: str = "") -> Iterator[str]:
    """Yield every key of a configuration with dots between its parts, positions left out."""
    for name, field in model.model_fields.items():
        yield prefix + name
        for section in _models_in(field.annotation):
            yield from _keys(section, f"{prefix}{name}.")


def _models_in(annotation: Any) -> "Iterator[type[BaseModel]]":
    if hasattr(annotation, "model_fields"):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)
